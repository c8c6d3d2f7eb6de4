//! Errors of locks, semaphores and elections.

use std::{error::Error, fmt, time::Duration};

use thalweg_types::{
    Action, Classified, LeaseId,
    limits::{MAX_CONTENDERS, MAX_RECIPE_NAME_BYTES},
};

/// Error returned by a lock, semaphore or election; `E` is the database's own error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecipeError<E: Error> {
    /// The name of a lock, a semaphore or an election is empty or too long.
    #[error("a name has between 1 and {MAX_RECIPE_NAME_BYTES} bytes, not {got}")]
    BadName {
        /// Length in bytes of the rejected name.
        got: usize,
    },
    /// A semaphore was created without slots.
    #[error("a semaphore has at least one slot")]
    NoSlots,
    /// The contender did not acquire the lock, slot or leadership within its maximum wait. It has left the queue.
    #[error("{} (waited {})", ContendersAhead(*ahead), Waited(*waited))]
    TimedOut {
        /// Time that the contender waited.
        waited: Duration,
        /// Number of contenders before this one in the queue, holders included; 0 if the contender did not learn its
        /// position.
        ahead: usize,
    },
    /// The caller's lock, slot or leadership is lost because its lease has ended. Another contender may have acquired
    /// it by now.
    #[error("lease {lease} has ended and the hold is lost: stop the work, then acquire again")]
    Lost {
        /// Id of the lease that ended.
        lease: LeaseId,
    },
    /// More contenders are in the queue than this crate permits. This contender has left the queue.
    #[error("more than {MAX_CONTENDERS} clients are waiting already: retry later")]
    TooMany,
    /// The database returned an error.
    #[error(transparent)]
    Store(E),
}

/// Number of contenders before this one, formatted for an error message.
struct ContendersAhead(usize);

impl fmt::Display for ContendersAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("not acquired"),
            1 => f.write_str("held by another client"),
            more => write!(f, "held or awaited by {more} other clients"),
        }
    }
}

/// Waited time, formatted for an error message: in milliseconds below 10 s, and in seconds from 10 s on.
struct Waited(Duration);

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            short if short < Duration::from_secs(10) => write!(f, "{} ms", short.as_millis()),
            long => write!(f, "{:.1} s", long.as_secs_f64()),
        }
    }
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
    /// Returns the stable code of an error that this crate defines; `None` if the database returned the error.
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn a_timeout_names_the_clients_ahead_and_a_rounded_time() {
        let message = |ahead, micros| {
            RecipeError::<Infallible>::TimedOut { waited: Duration::from_micros(micros), ahead }.to_string()
        };
        assert_eq!(message(0, 2_266), "not acquired (waited 2 ms)");
        assert_eq!(message(1, 2_266), "held by another client (waited 2 ms)");
        assert_eq!(message(3, 12_340_000), "held or awaited by 3 other clients (waited 12.3 s)");
    }
}
