//! A lock, semaphore slot or leadership that a contender has acquired.

use std::{fmt, time::Duration};

use thalweg_types::{LeaseId, Revision, command::Expect};

use crate::{coordinator::Coordinator, error::RecipeError, queue_entry::QueueEntry};

/// Number that identifies one holder of a lock, slot or leadership. A later holder has a higher token. A resource can
/// store the highest token it has seen, and reject lower ones. This protects the resource from a former holder that has
/// not yet noticed the loss of its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(pub u64);

impl FencingToken {
    /// Returns the fencing token as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A hold: a lock, slot of a semaphore, or leadership that the caller has acquired.
///
/// A hold lasts while its lease lives. Call [`keep_alive`](Self::keep_alive) well before [`remaining`](Self::remaining)
/// is over, or start a thread that calls it ([`keep`](Self::keep)). Dropping a hold releases it.
#[derive(Debug)]
pub struct Hold<C: Coordinator> {
    entry: QueueEntry<C>,
}

impl<C: Coordinator> Hold<C> {
    pub(crate) fn new(entry: QueueEntry<C>) -> Self {
        Self { entry }
    }

    /// Name of the lock, semaphore or election that is held.
    #[must_use]
    pub fn name(&self) -> &str {
        self.entry.name()
    }

    /// Fencing token of the hold: a number that is higher than the tokens of earlier holders.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        FencingToken(self.entry.revision.0)
    }

    /// Key that the holder has written in the keyspace. It exists while the lock, slot or leadership is held.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.entry.key
    }

    /// Condition for a commit: the holder's [`key`](Self::key) still exists and was not written again. A commit with
    /// this condition to the same database fails if the lock, slot or leadership is lost.
    #[must_use]
    pub fn expect(&self) -> Expect<'static> {
        Expect::Revision(Revision(self.entry.revision.0))
    }

    /// Id of the lease to which the holder's key is attached.
    #[must_use]
    pub fn lease(&self) -> LeaseId {
        self.entry.lease
    }

    /// Database that stores the key of the hold.
    #[must_use]
    pub fn coordinator(&self) -> &C {
        &self.entry.coordinator
    }

    /// Time for which the caller certainly still holds the lock, slot or leadership, by the local clock; zero once this
    /// is no longer certain.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.entry.keeping.remaining(self.entry.coordinator.now())
    }

    /// Time until the holder should send its next keepalive.
    #[must_use]
    pub fn keep_alive_in(&self) -> Duration {
        self.entry.keeping.due_in(self.entry.coordinator.now())
    }

    pub(crate) fn until(&self) -> Duration {
        self.entry.keeping.until()
    }

    /// Returns an error if, by the local clock, the lock, slot or leadership may already be lost. Sends no request to
    /// the database; see [`remaining`](Self::remaining).
    pub fn check(&self) -> Result<(), RecipeError<C::Error>> {
        if self.entry.keeping.is_live(self.entry.coordinator.now()) {
            Ok(())
        } else {
            Err(RecipeError::Lost { lease: self.entry.lease })
        }
    }

    /// Extends the lease of the lock, slot or leadership by another TTL (time to live). Returns the time for which the
    /// caller now certainly holds it.
    ///
    /// # Errors
    /// [`RecipeError::Lost`] if the lock, slot or leadership is lost, or if the database did not answer in time. After
    /// any other error, the caller should retry while time [remains](Self::remaining).
    pub fn keep_alive(&mut self) -> Result<Duration, RecipeError<C::Error>> {
        self.entry.keep_alive()?;
        Ok(self.remaining())
    }

    /// Releases the hold, so that the next contender acquires the lock, slot or leadership. Succeeds also if the hold
    /// was already lost.
    ///
    /// # Errors
    /// If the release fails, the lease ends on its own because it is no longer kept alive.
    pub fn release(mut self) -> Result<(), RecipeError<C::Error>> {
        self.entry.leave()
    }
}
