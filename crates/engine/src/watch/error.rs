//! Why a watch was refused or ended.

use thalweg_types::{Action, Classified, KeyspaceId, Revision, limits::MAX_WATCHES};

use crate::error::ReadError;

/// A watch could not be begun, or cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// The log does not reach back so far any more. A watch that gets this has lost its place: it was too slow,
    /// or away for too long. Read what there is now, and watch on from the revision of that read.
    #[error("revision {requested} is below the history floor: the oldest that can be watched is {oldest}")]
    Compacted {
        /// The first revision that was wanted.
        requested: Revision,
        /// The first that can be had.
        oldest: Revision,
    },
    /// The revision has not been reached: it is of another directory, or of writes that were lost with the power.
    #[error("revision {requested} has not been reached: the next one is {next}")]
    BeyondEnd {
        /// The first revision that was wanted.
        requested: Revision,
        /// The one that the next commit will get.
        next: Revision,
    },
    /// The keyspace does not exist; it may have been dropped.
    #[error("no keyspace with id {0}")]
    NoSuchKeyspace(KeyspaceId),
    /// As many watches as there may be follow the space.
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
