//! Deleted prefixes: the table that hides their rows, and the sweep that removes them.

pub(crate) mod apply;
pub(crate) mod table;
