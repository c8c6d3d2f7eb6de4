//! Why a recipe could not do what it was asked.

use std::{error::Error, time::Duration};

use thalweg_types::{
    Action, Classified, LeaseId,
    limits::{MAX_CONTENDERS, MAX_RECIPE_NAME_BYTES},
};

/// Why a recipe could not do what it was asked; `E` is the database's own error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecipeError<E: Error> {
    /// No name of a lock, a semaphore or an election.
    #[error("a name has between 1 and {MAX_RECIPE_NAME_BYTES} bytes, not {got}")]
    BadName {
        /// Its length in bytes.
        got: usize,
    },
    /// A semaphore that nobody could hold.
    #[error("a semaphore has at least one slot")]
    NoSlots,
    /// It was not this contender's turn in time. It has left the queue.
    #[error("still {ahead} ahead after waiting {waited:?}: try again, or wait longer")]
    TimedOut {
        /// How long it waited.
        waited: Duration,
        /// How many were before it, those that hold included.
        ahead: usize,
    },
    /// The lease has ended: what hung on it is lost, and may be another's by now.
    #[error("lease {lease} has ended, and what hung on it is lost: stop the work, and begin anew")]
    Lost {
        /// The lease.
        lease: LeaseId,
    },
    /// Too many wait. This contender has left the queue.
    #[error("more than {MAX_CONTENDERS} contend already: try again later")]
    TooMany,
    /// The database failed.
    #[error(transparent)]
    Store(E),
}

impl<E: Error + Classified> Classified for RecipeError<E> {
    fn code(&self) -> &'static str {
        match self {
            Self::Store(error) => error.code(),
            other => other.own_code().unwrap_or("store"),
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::BadName { .. } | Self::NoSlots | Self::Lost { .. } => Action::Fix,
            Self::TimedOut { .. } | Self::TooMany => Action::Retry,
            Self::Store(error) => error.action(),
        }
    }
}

impl<E: Error> RecipeError<E> {
    /// The code, unless it is the database's error.
    #[must_use]
    pub fn own_code(&self) -> Option<&'static str> {
        match self {
            Self::BadName { .. } => Some("bad_name"),
            Self::NoSlots => Some("no_slots"),
            Self::TimedOut { .. } => Some("timed_out"),
            Self::Lost { .. } => Some("lease_lost"),
            Self::TooMany => Some("too_many"),
            Self::Store(_) => None,
        }
    }
}
