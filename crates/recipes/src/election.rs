//! Elections: a lock whose holder publishes a value.

use std::time::Duration;

use crate::{
    acquire::Acquire,
    coordinator::{Coordinator, KeyWatch, WatchResult, Watched},
    error::RecipeError,
    hold::{FencingToken, Hold},
    lock::Lock,
    queue_entry::contenders,
    queue_order::prefix_of,
};

/// Pause of an observer before it creates another watch after one has ended.
const PAUSE: Duration = Duration::from_millis(50);

/// The leader of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Value that the leader published in its campaign.
    pub value: Vec<u8>,
    /// Fencing token of the leader, which is higher than the tokens of earlier leaders.
    pub token: FencingToken,
}

/// An election. It has at most one leader at a time. Every client can ask for the present leader.
#[derive(Clone, Debug)]
pub struct Election<C> {
    coordinator: C,
    name: String,
    lock: Lock<C>,
}

impl<C: Coordinator> Election<C> {
    /// Creates a handle of the election with that name. All clients that use this name in the same keyspace
    /// take part in the same election.
    pub fn new(coordinator: C, name: &str) -> Result<Self, RecipeError<C::Error>> {
        let lock = Lock::new(coordinator.clone(), name)?;
        Ok(Self { coordinator, name: name.to_owned(), lock })
    }

    /// Joins the election and waits until this contender leads. Observers then see the value `how.value` of
    /// the leader. The value stays the same until the leader resigns by releasing the returned hold.
    pub fn campaign(&self, how: &Acquire<'_>) -> Result<Hold<C>, RecipeError<C::Error>> {
        self.lock.acquire(how)
    }

    /// Returns the current leader of the election; `None` if there is none.
    pub fn leader(&self) -> Result<Option<Leader>, RecipeError<C::Error>> {
        loop {
            let contenders = contenders(&self.coordinator, &self.name)?;
            let Some(first) = contenders.first() else { return Ok(None) };
            // If the first contender's key has disappeared since the listing, another one is first.
            if let Some((revision, value)) = self.coordinator.get(&first.key).map_err(RecipeError::Store)?
                && revision == first.revision
            {
                return Ok(Some(Leader { value, token: FencingToken(revision.0) }));
            }
        }
    }

    /// Creates an observer of this election. The observer reports each change of the leader.
    #[must_use]
    pub fn observe(&self) -> Observer<C> {
        Observer { election: self.clone(), watch: None, reported: None }
    }
}

/// Reports the leader of an election whenever it changes.
#[derive(Debug)]
pub struct Observer<C: Coordinator> {
    election: Election<C>,
    watch: Option<C::Watch>,
    /// Fencing token of the leader that the observer reported last. The outer `None` means that the observer has
    /// reported nothing yet; the inner `None` means that it reported "no leader".
    reported: Option<Option<FencingToken>>,
}

impl<C: Coordinator> Observer<C> {
    /// Waits until the election's leader differs from the one that this observer reported last, at most for `timeout`.
    /// The first call returns immediately. Returns `Ok(None)` at the timeout, and `Ok(Some(None))` if there is no
    /// leader. If leaders change quickly, some may not be reported, but the last one always is.
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
            if self.reported != Some(token) {
                self.reported = Some(token);
                return Ok(Some(leader));
            }
            let left = until.map_or(C::LOOK_EVERY, |until| until.saturating_sub(coordinator.now()));
            if left.is_zero() {
                return Ok(None);
            }
            let Some(watch) = &mut self.watch else { continue };
            if watch.wait(left.min(C::LOOK_EVERY)) == WatchResult::Unknown {
                self.watch = None;
                std::thread::sleep(PAUSE.min(left));
            }
        }
    }
}
