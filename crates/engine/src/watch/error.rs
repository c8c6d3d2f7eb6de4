//! Errors of watches.

use thalweg_types::{Action, Classified, KeyspaceId, Revision, limits::MAX_WATCHES};

use crate::error::ReadError;

/// Error returned when a watch cannot begin, or cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// The log no longer reaches back that far. A watch that gets this error was too slow, or its client was away for
    /// too long. Read the present state, and watch from the revision of that read on.
    #[error("revision {requested} is below the history floor: the oldest that can be watched is {oldest}")]
    Compacted {
        /// Requested revision.
        requested: Revision,
        /// First revision that can be watched.
        oldest: Revision,
    },
    /// The revision has not been reached: it comes from another directory, or from writes that were lost in a power
    /// loss.
    #[error("revision {requested} has not been reached: the next one is {next}")]
    BeyondEnd {
        /// Requested revision.
        requested: Revision,
        /// Revision that the next commit will get.
        next: Revision,
    },
    /// The keyspace does not exist. It may have been dropped.
    #[error("no keyspace with id {0}")]
    NoSuchKeyspace(KeyspaceId),
    /// The maximum number of watches follows the space.
    #[error("too many watches: the limit is {MAX_WATCHES}")]
    TooMany,
    /// The log or the state could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The database is closed.
    #[error("the database is closed")]
    Closed,
}

impl Classified for WatchError {
    fn code(&self) -> &'static str {
        match self {
            Self::Compacted { .. } => "compacted",
            Self::BeyondEnd { .. } => "beyond_end",
            Self::NoSuchKeyspace(_) => "no_such_keyspace",
            Self::TooMany => "too_many",
            Self::Read(error) => error.code(),
            Self::Closed => "closed",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Compacted { .. } | Self::BeyondEnd { .. } | Self::NoSuchKeyspace(_) => Action::Fix,
            Self::TooMany => Action::Retry,
            Self::Read(error) => error.action(),
            Self::Closed => Action::Stop,
        }
    }
}

impl From<thalweg_state::machine::MachineError> for WatchError {
    fn from(error: thalweg_state::machine::MachineError) -> Self {
        Self::Read(error.into())
    }
}
