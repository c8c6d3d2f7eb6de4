//! Errors of watches.

use thalweg_types::{Action, Classified, KeyspaceId, Revision, limits::MAX_WATCHES};

use crate::error::ReadError;

/// Error returned when a watch cannot begin or continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// The log no longer reaches back to the requested revision. The watch was too slow, or its client was away for
    /// too long. The client should read the present state, and watch from the revision of that read on.
    #[error("revision {requested} is below the history floor: the oldest that can be watched is {oldest}")]
    Compacted {
        /// Revision from which the client wants to watch changes.
        requested: Revision,
        /// First revision that a watch can still read from the log.
        oldest: Revision,
    },
    /// The requested revision is above the next one. The client got it from another directory, or from writes that a
    /// power loss has undone.
    #[error("revision {requested} has not been reached: the next one is {next}")]
    BeyondEnd {
        /// Revision from which the client wants to watch changes.
        requested: Revision,
        /// Revision that the next commit will get.
        next: Revision,
    },
    /// The keyspace does not exist. It may have been dropped.
    #[error("there is no keyspace with id {0}: it was dropped; look up the id of its name again")]
    NoSuchKeyspace(KeyspaceId),
    /// The maximum number of watches that follow live changes is reached.
    #[error("too many watches: the limit is {MAX_WATCHES}")]
    TooMany,
    /// The operating system could not start the thread for watches of live changes.
    #[error("the server can start no thread for watches: retry later")]
    NoThread,
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
            Self::NoThread => "overloaded",
            Self::Read(error) => error.code(),
            Self::Closed => "closed",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Compacted { .. } | Self::BeyondEnd { .. } | Self::NoSuchKeyspace(_) => Action::Fix,
            Self::TooMany | Self::NoThread => Action::Retry,
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
