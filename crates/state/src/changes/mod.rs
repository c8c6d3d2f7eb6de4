//! Changes that entries of the log made, read again from their own bytes.

pub(crate) mod commits;
pub(crate) mod keep;
pub(crate) mod mark;
pub(crate) mod verdict;

pub use commits::{EntryCommit, EntryCommits, KeyChange};
pub use keep::Verdicts;
pub use mark::Mark;
