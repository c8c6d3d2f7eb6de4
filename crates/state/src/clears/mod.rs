//! Deleted prefixes: the table that hides their rows, and the sweep that removes them.
//!
//! Owns: the clear rows, the rule by which a clear hides a key, and the removal of hidden rows. Does not own: the
//! rows of keys (`keyspaces`), or the decision when a sweep runs.
//!
//! Invariant: a row is hidden from the moment its prefix is deleted, and stays hidden until a sweep removes it.
//!
//! * `table`: the clears in memory, their rows, and the rule of hiding.
//! * `apply`: deletes prefixes, drops keyspaces and sweeps.

pub(crate) mod apply;
pub(crate) mod table;
