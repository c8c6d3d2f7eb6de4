//! Changes that entries of the log made, read again from their own bytes.

pub(crate) mod commits;
pub(crate) mod keep;
pub(crate) mod key_change;
pub(crate) mod mark;
pub(crate) mod verdict;

pub use commits::{EntryCommit, EntryCommits};
pub use keep::Verdicts;
pub use key_change::KeyChange;
pub use mark::Mark;
