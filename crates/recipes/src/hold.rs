//! What whoever has the turn holds.

use std::{fmt, time::Duration};

use thalweg_types::{LeaseId, Revision, command::Expect};

use crate::{coordinator::Coordinator, error::RecipeError, keeper::Kept, place::Place};

/// Says who holds: a later holder's token is higher. A resource that remembers the highest token it has seen, and
/// refuses lower ones, is safe from a holder that does not know yet that it has lost what it held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(pub u64);

impl FencingToken {
    /// The number.
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

/// A lock, a slot of a semaphore, or the leadership, that is held.
///
/// It is held as long as its lease lives: [`keep_alive`](Self::keep_alive) it well before
/// [`remaining`](Self::remaining) is over, or let a thread do that ([`keep`](Self::keep)). Dropping it lets go.
#[derive(Debug)]
pub struct Hold<C: Coordinator> {
    place: Place<C>,
}

impl<C: Coordinator> Hold<C> {
    pub(crate) fn new(place: Place<C>) -> Self {
        Self { place }
    }

    /// What is held.
    #[must_use]
    pub fn name(&self) -> &str {
        self.place.name()
    }

    /// The fencing token.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        FencingToken(self.place.revision.0)
    }

    /// The key that stands for the hold.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.place.key
    }

    /// What holds of [`key`](Self::key) as long as this is held: a condition that makes any commit of the same space
    /// a fenced one.
    #[must_use]
    pub fn expect(&self) -> Expect<'static> {
        Expect::Revision(Revision(self.place.revision.0))
    }

    /// The lease that it hangs on.
    #[must_use]
    pub fn lease(&self) -> LeaseId {
        self.place.lease
    }

    /// Where it is kept.
    #[must_use]
    pub fn coordinator(&self) -> &C {
        &self.place.coordinator
    }

    /// How long it is held for certain, as far as this side knows; zero once that is over.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.place.keeping.remaining(self.place.coordinator.now())
    }

    /// In how long it is to be kept alive.
    #[must_use]
    pub fn keep_alive_in(&self) -> Duration {
        self.place.keeping.due_in(self.place.coordinator.now())
    }

    pub(crate) fn until(&self) -> Duration {
        self.place.keeping.until()
    }

    /// Whether it is held for certain. Asks nobody; see [`remaining`](Self::remaining).
    pub fn check(&self) -> Result<(), RecipeError<C::Error>> {
        if self.place.keeping.is_live(self.place.coordinator.now()) {
            Ok(())
        } else {
            Err(RecipeError::Lost { lease: self.place.lease })
        }
    }

    /// Holds it for another TTL.
    ///
    /// # Errors
    /// [`RecipeError::Lost`] if it is not held any more, or if that could not be found out in time; any other error
    /// may be tried again as long as something [remains](Self::remaining).
    pub fn keep_alive(&mut self) -> Result<Duration, RecipeError<C::Error>> {
        self.place.keep_alive()?;
        Ok(self.remaining())
    }

    /// Lets go: the next one holds. Fine if it was lost before.
    ///
    /// # Errors
    /// If it fails, the lease ends by itself when nobody keeps it alive.
    pub fn release(mut self) -> Result<(), RecipeError<C::Error>> {
        self.place.leave()
    }
}

impl<C> Hold<C>
where
    C: Coordinator + Send + Sync + 'static,
    C::Error: Send,
{
    /// Starts a thread that keeps it alive, and notices when it is lost.
    #[must_use]
    pub fn keep(self) -> Kept<C> {
        Kept::start(self)
    }
}
