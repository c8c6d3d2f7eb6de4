//! Versions of keys in keyspaces with history: their rows, keeping and pruning them, and reads of the past.

pub(crate) mod keep;
pub(crate) mod past;
pub(crate) mod past_scan;
pub(crate) mod prune;
pub(crate) mod rows;

pub use past::{Lasting, Past, PastError, Version, Versions};
pub use rows::Ending;
