//! The changes that log entries made to keys, as history for watches and other readers of the log.
//!
//! Owns: the encoding of the two kinds of rows that make entries readable as history, and the iteration over an entry's
//! changes. Does not own: writing and reading these rows (`machine::verdicts`), the log, or former values of keys
//! (`history`).
//!
//! Invariant: together with its verdict, if it has one, an entry's bytes determine the revisions that it used and
//! the changes that it made.
//!
//! * `key_change`: one change of a key.
//! * `commits`: iterates over the commits of an entry.
//! * `verdict`: row of an entry with the facts that its bytes alone do not determine.
//! * `mark`: row with the position of a revision in the log.

pub(crate) mod commits;
pub(crate) mod key_change;
pub(crate) mod mark;
pub(crate) mod verdict;

pub use commits::{EntryCommit, EntryCommits};
pub use key_change::KeyChange;
pub use mark::Mark;
