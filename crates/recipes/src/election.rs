//! Elections: a lock whose holder has something to say.

use std::time::Duration;

use crate::{
    coordinator::{Coordinator, Noticed, Watched, Watching},
    error::RecipeError,
    hold::{FencingToken, Hold},
    lock::{Acquire, Lock},
    place::contenders,
    standing::prefix_of,
};

/// Before an observer watches anew.
const PAUSE: Duration = Duration::from_millis(50);

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// What it said of itself when it ran.
    pub value: Vec<u8>,
    /// Its fencing token.
    pub token: FencingToken,
}

/// An election: one leads at a time, and all can see which.
#[derive(Clone, Debug)]
pub struct Election<C> {
    coordinator: C,
    name: String,
    lock: Lock<C>,
}

impl<C: Coordinator> Election<C> {
    /// The election of that name. Others see the same one, if they look in the same keyspace.
    pub fn new(coordinator: C, name: &str) -> Result<Self, RecipeError<C::Error>> {
        let lock = Lock::new(coordinator.clone(), name)?;
        Ok(Self { coordinator, name: name.to_owned(), lock })
    }

    /// Runs, and waits until it leads. `how.value` is what observers see of it then; it stays the same until it
    /// resigns, by releasing what this returns.
    pub fn campaign(&self, how: &Acquire<'_>) -> Result<Hold<C>, RecipeError<C::Error>> {
        self.lock.acquire(how)
    }

    /// Who leads now.
    pub fn leader(&self) -> Result<Option<Leader>, RecipeError<C::Error>> {
        loop {
            let contenders = contenders(&self.coordinator, &self.name)?;
            let Some(first) = contenders.first() else { return Ok(None) };
            // Gone since it was listed: then another is first.
            if let Some((revision, value)) = self.coordinator.get(&first.key).map_err(RecipeError::Store)?
                && revision == first.revision
            {
                return Ok(Some(Leader { value, token: FencingToken(revision.0) }));
            }
        }
    }

    /// Watches who leads.
    #[must_use]
    pub fn observe(&self) -> Observer<C> {
        Observer { election: self.clone(), watch: None, told: None }
    }
}

/// Tells who leads whenever that changes.
#[derive(Debug)]
pub struct Observer<C: Coordinator> {
    election: Election<C>,
    watch: Option<C::Watch>,
    /// What was told last; `None` if nothing was yet.
    told: Option<Option<FencingToken>>,
}

impl<C: Coordinator> Observer<C> {
    /// Waits until the leader is another one than was told last, at most so long; the first time it is told at once.
    /// `Ok(None)`: the time is up. `Ok(Some(None))`: nobody leads. Of leaders that follow each other quickly, some
    /// may not be told; the last one always is.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Option<Leader>>, RecipeError<C::Error>> {
        let coordinator = self.election.coordinator.clone();
        let until = coordinator.now().checked_add(timeout);
        loop {
            if self.watch.is_none() {
                let prefix = prefix_of(&self.election.name);
                self.watch = Some(coordinator.watch(Watched::Prefix(&prefix)).map_err(RecipeError::Store)?);
            }
            let leader = self.election.leader()?;
            let token = leader.as_ref().map(|leader| leader.token);
            if self.told != Some(token) {
                self.told = Some(token);
                return Ok(Some(leader));
            }
            let left = until.map_or(C::LOOK_EVERY, |until| until.saturating_sub(coordinator.now()));
            if left.is_zero() {
                return Ok(None);
            }
            let Some(watch) = &mut self.watch else { continue };
            if watch.wait(left.min(C::LOOK_EVERY)) == Noticed::Unknown {
                self.watch = None;
                std::thread::sleep(PAUSE.min(left));
            }
        }
    }
}
