//! What can go wrong with a request to a group.

use thalweg_types::{Action, Classified, GroupId, command::CommandError, limits::MAX_WAITING_FETCHES};

use crate::error::{ReadError, WriteError};

/// A request to a consumer group failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// It could not be carried out.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// What it needs could not be read. Records that were delivered come again after their deadline.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The group does not exist; it may have been deleted.
    #[error("no consumer group with id {0}")]
    NoSuchGroup(GroupId),
    /// Too many fetches wait for records.
    #[error("{MAX_WAITING_FETCHES} fetches wait for records already: retry later, or without waiting")]
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
