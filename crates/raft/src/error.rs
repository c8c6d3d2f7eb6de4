//! The error of a group's log.

use std::io;

use thalweg_log::{AppendError, ReadError};
use thalweg_replica::MembershipError;
use thalweg_types::{Index, Lsn, classified};

/// Error of a group's log. openraft receives it inside an [`io::Error`], and stops the group.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The log rejected a write, or a sync failed.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The log could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// An entry does not follow its predecessor.
    #[error("entry {found} follows, where entry {expected} should: the group's log has a gap")]
    Gap {
        /// Index that the entry should have.
        expected: Index,
        /// Index of the entry.
        found: Index,
    },
    /// The group has no entry with this index, although its log should contain it.
    #[error("entry {0} is missing in the log")]
    Missing(Index),
    /// The payload of a record has an unknown layout.
    #[error("the {what} at LSN {lsn} is malformed: another version of the program wrote it")]
    Malformed {
        /// LSN of the record.
        lsn: Lsn,
        /// Meaning of the record.
        what: &'static str,
    },
    /// A membership exceeds the limits of the log's format.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// The state could not be read.
    #[error("cannot read the state: {0}")]
    State(String),
    /// The group's syncs have ended, because the node stops.
    #[error("the log is closed")]
    Closed,
}

classified!(StoreError {
    Self::Append(error) => error.code(), error.action();
    Self::Read(error) => error.code(), error.action();
    Self::Gap { .. } => "raft_log_gap", Stop;
    Self::Missing(_) => "raft_entry_missing", Stop;
    Self::Malformed { .. } => "raft_record_malformed", Stop;
    Self::Membership(_) => "membership_invalid", Fix;
    Self::State(_) => "state_unreadable", Stop;
    Self::Closed => "log_closed", Stop;
});

impl From<StoreError> for io::Error {
    fn from(error: StoreError) -> Self {
        Self::other(error)
    }
}
