//! Errors of requests to consumer groups.

use thalweg_types::{Action, Classified, GroupId, command::CommandError, limits::MAX_WAITING_FETCHES};

use crate::error::{ReadError, WriteError};

/// Error returned when a request to a consumer group fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// The command about the group could not be carried out.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The state, or records in the log, could not be read. Records that were delivered are redelivered after their
    /// ack deadline.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The consumer group does not exist. It may have been deleted.
    #[error("there is no consumer group with id {0}: it was deleted; look up the id of its name again")]
    NoSuchGroup(GroupId),
    /// The maximum number of fetches already waits for records, so this fetch may not wait.
    #[error("{MAX_WAITING_FETCHES} fetches already wait for records: retry later, or fetch without waiting")]
    TooManyWaiting,
}

impl From<CommandError> for GroupError {
    fn from(error: CommandError) -> Self {
        Self::Write(error.into())
    }
}

impl Classified for GroupError {
    fn code(&self) -> &'static str {
        match self {
            Self::Write(error) => error.code(),
            Self::Read(error) => error.code(),
            Self::NoSuchGroup(_) => "no_such_group",
            Self::TooManyWaiting => "overloaded",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Write(error) => error.action(),
            Self::Read(error) => error.action(),
            Self::NoSuchGroup(_) => Action::Fix,
            Self::TooManyWaiting => Action::Retry,
        }
    }
}
