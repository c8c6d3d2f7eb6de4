//! A held lock, slot or leadership.

use std::{fmt, time::Duration};

use thalweg_types::{LeaseId, Revision, command::Expect};

use crate::{coordinator::Coordinator, error::RecipeError, place::Place};

/// Identifies a holder: a later holder's token is higher. A resource that stores the highest token it has
/// seen, and rejects lower ones, is safe from a holder that does not know yet that it has lost its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(pub u64);

impl FencingToken {
    /// The token as a number.
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

/// A held lock, slot of a semaphore, or leadership.
///
/// It is held while its lease lives. Call [`keep_alive`](Self::keep_alive) well before
/// [`remaining`](Self::remaining) is over, or start a thread that does ([`keep`](Self::keep)). Dropping a
/// hold releases it.
#[derive(Debug)]
pub struct Hold<C: Coordinator> {
    place: Place<C>,
}

impl<C: Coordinator> Hold<C> {
    pub(crate) fn new(place: Place<C>) -> Self {
        Self { place }
    }

    /// Name of the lock, semaphore or election.
    #[must_use]
    pub fn name(&self) -> &str {
        self.place.name()
    }

    /// Fencing token of the hold.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        FencingToken(self.place.revision.0)
    }

    /// Key that represents the hold in the keyspace.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.place.key
    }

    /// Condition on [`key`](Self::key) that is true while this is held. A commit to the same space with this
    /// condition is fenced.
    #[must_use]
    pub fn expect(&self) -> Expect<'static> {
        Expect::Revision(Revision(self.place.revision.0))
    }

    /// Lease to which the hold's key is attached.
    #[must_use]
    pub fn lease(&self) -> LeaseId {
        self.place.lease
    }

    /// Database that stores the hold.
    #[must_use]
    pub fn coordinator(&self) -> &C {
        &self.place.coordinator
    }

    /// Time for which the hold is certainly still held, by this side's clock; zero afterwards.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.place.keeping.remaining(self.place.coordinator.now())
    }

    /// Time until the next keepalive is due.
    #[must_use]
    pub fn keep_alive_in(&self) -> Duration {
        self.place.keeping.due_in(self.place.coordinator.now())
    }

    pub(crate) fn until(&self) -> Duration {
        self.place.keeping.until()
    }

    /// Checks by the local clock that the hold is certainly still held, without a request; see
    /// [`remaining`](Self::remaining).
    pub fn check(&self) -> Result<(), RecipeError<C::Error>> {
        if self.place.keeping.is_live(self.place.coordinator.now()) {
            Ok(())
        } else {
            Err(RecipeError::Lost { lease: self.place.lease })
        }
    }

    /// Extends the hold by another TTL. Returns the remaining time.
    ///
    /// # Errors
    /// [`RecipeError::Lost`] if the hold is lost, or if its state could not be determined in time. After any
    /// other error, retry while time [remains](Self::remaining).
    pub fn keep_alive(&mut self) -> Result<Duration, RecipeError<C::Error>> {
        self.place.keep_alive()?;
        Ok(self.remaining())
    }

    /// Releases the hold; the next contender acquires it. Succeeds if the hold was lost before.
    ///
    /// # Errors
    /// If the release fails, the lease ends on its own because it is no longer kept alive.
    pub fn release(mut self) -> Result<(), RecipeError<C::Error>> {
        self.place.leave()
    }
}
