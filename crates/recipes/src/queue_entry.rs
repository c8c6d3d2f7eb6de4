//! A contender's position in the queue: entering, waiting for its turn, leaving.
//!
//! A waiter keeps its own lease alive while it waits. A waiter of a lock watches only the previous contender,
//! so each departure wakes one waiter. A waiter of a semaphore watches all contenders and counts the
//! departures before it: each waiter is notified of every departure, but no waiter has to read keys then.

use std::{collections::BTreeSet, time::Duration};

use thalweg_types::{LeaseId, Revision, limits::MAX_CONTENDERS};

use crate::{
    coordinator::{Contender, Coordinator, EnterResult, KeyWatch, WatchResult, Watched},
    error::RecipeError,
    lease_schedule::LeaseSchedule,
    queue_order::{ahead_of, in_order, key_of, prefix_of},
};

/// Pause before an operation is retried after a transient error.
const PAUSE: Duration = Duration::from_millis(200);

/// Lists all contenders for a name, in queue order.
pub(crate) fn contenders<C: Coordinator>(coordinator: &C, name: &str) -> Result<Vec<Contender>, RecipeError<C::Error>> {
    let prefix = prefix_of(name);
    let listed = coordinator.list(&prefix, MAX_CONTENDERS + 1).map_err(RecipeError::Store)?;
    if listed.len() > MAX_CONTENDERS {
        return Err(RecipeError::TooMany);
    }
    Ok(in_order(&prefix, listed))
}

/// A contender's place in the queue, which is a key attached to its lease. Dropping this value removes the
/// contender from the queue.
#[derive(Debug)]
pub(crate) struct QueueEntry<C: Coordinator> {
    pub(crate) coordinator: C,
    name: String,
    pub(crate) key: Vec<u8>,
    pub(crate) revision: Revision,
    pub(crate) lease: LeaseId,
    pub(crate) keeping: LeaseSchedule,
    /// Time at which the contender began to enter the queue; its maximum wait counts from then on.
    began: Duration,
    /// True while the contender may have a key to remove.
    entered: bool,
}

impl<C: Coordinator> QueueEntry<C> {
    /// Grants a lease, and writes a key attached to it at the end of the queue.
    pub(crate) fn enter(
        coordinator: &C,
        name: &str,
        value: &[u8],
        ttl: Duration,
    ) -> Result<Self, RecipeError<C::Error>> {
        let sent = coordinator.now();
        let lease = coordinator.grant(ttl).map_err(RecipeError::Store)?;
        let mut place = Self {
            coordinator: coordinator.clone(),
            name: name.to_owned(),
            key: key_of(name, lease),
            revision: Revision::ZERO,
            lease,
            keeping: LeaseSchedule::granted(sent, ttl),
            began: sent,
            entered: true,
        };
        // The key contains this contender's own lease. So an existing key is from an earlier attempt whose
        // answer was lost.
        place.revision = match coordinator.enter(&place.key, value, lease).map_err(RecipeError::Store)? {
            EnterResult::At(revision) => revision,
            EnterResult::Exists => match coordinator.get(&place.key).map_err(RecipeError::Store)? {
                Some((revision, _)) => revision,
                None => return Err(place.lost()),
            },
            EnterResult::LeaseEnded => return Err(place.lost()),
        };
        Ok(place)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn lost(&mut self) -> RecipeError<C::Error> {
        self.keeping.end();
        self.entered = false;
        RecipeError::Lost { lease: self.lease }
    }

    /// Extends the contender's lease by another TTL (time to live).
    pub(crate) fn keep_alive(&mut self) -> Result<(), RecipeError<C::Error>> {
        let sent = self.coordinator.now();
        match self.coordinator.keep_alive(self.lease) {
            Ok(true) => {
                self.keeping.record_keepalive(sent);
                Ok(())
            }
            Ok(false) => Err(self.lost()),
            Err(error) => {
                let now = self.coordinator.now();
                self.keeping.retry_later(now);
                if self.keeping.is_live(now) {
                    Err(RecipeError::Store(error))
                } else {
                    Err(RecipeError::Lost { lease: self.lease })
                }
            }
        }
    }

    /// Removes the contender from the queue by revoking its lease.
    pub(crate) fn leave(&mut self) -> Result<(), RecipeError<C::Error>> {
        if !self.entered {
            return Ok(());
        }
        self.coordinator.revoke(self.lease).map_err(RecipeError::Store)?;
        self.keeping.end();
        self.entered = false;
        Ok(())
    }

    /// Waits until fewer than `slots` contenders are before this one. Returns an error when `wait` has passed
    /// since the contender began to enter.
    pub(crate) fn wait_turn(&mut self, slots: usize, wait: Option<Duration>) -> Result<(), RecipeError<C::Error>> {
        let began = self.began;
        let mut wait = Wait { began, until: wait.and_then(|wait| began.checked_add(wait)), ahead: 0 };
        loop {
            let waited = if slots == 1 { self.wait_behind(&mut wait) } else { self.wait_among(slots, &mut wait) };
            match waited {
                Err(RecipeError::Store(error)) if C::is_transient(&error) => {
                    self.keep_alive_while_waiting(&wait)?;
                    std::thread::sleep(PAUSE);
                }
                waited => return waited,
            }
        }
    }

    fn ahead(&mut self) -> Result<Vec<Contender>, RecipeError<C::Error>> {
        let contenders = contenders(&self.coordinator, &self.name)?;
        ahead_of(contenders, &self.key, self.revision).ok_or_else(|| self.lost())
    }

    /// Waits for a lock: until no contender is before this one.
    fn wait_behind(&mut self, wait: &mut Wait) -> Result<(), RecipeError<C::Error>> {
        loop {
            let ahead = self.ahead()?;
            wait.ahead = ahead.len();
            let Some(before) = ahead.last() else { return self.confirm_entry() };
            let mut watch = self.coordinator.watch(Watched::Key(&before.key)).map_err(RecipeError::Store)?;
            // The read comes after the start of the watch, so that no change is missed in between.
            while let Some((revision, _)) = self.coordinator.get(&before.key).map_err(RecipeError::Store)?
                && revision == before.revision
            {
                if self.pause(&mut watch, wait)? != WatchResult::Nothing {
                    break;
                }
            }
        }
    }

    /// Waits for a semaphore: until fewer than `slots` contenders are before this one.
    fn wait_among(&mut self, slots: usize, wait: &mut Wait) -> Result<(), RecipeError<C::Error>> {
        loop {
            let prefix = prefix_of(&self.name);
            let mut watch = self.coordinator.watch(Watched::Prefix(&prefix)).map_err(RecipeError::Store)?;
            let ahead = self.ahead()?;
            let mut ahead: BTreeSet<Vec<u8>> = ahead.into_iter().map(|contender| contender.key).collect();
            let looked = self.coordinator.now();
            loop {
                wait.ahead = ahead.len();
                if ahead.len() < slots {
                    return self.confirm_entry();
                }
                match self.pause(&mut watch, wait)? {
                    // These contenders wrote their keys before the listing, so a change of a key means its
                    // removal.
                    WatchResult::Keys(keys) => keys.iter().for_each(|key| _ = ahead.remove(key)),
                    // A lease may have ended without the removal of its keys. A check lists all keys here, so
                    // it is rarer than for a lock.
                    WatchResult::Nothing if self.coordinator.now().saturating_sub(looked) < C::LOOK_EVERY * 10 => {}
                    WatchResult::Nothing | WatchResult::Unknown => break,
                }
            }
        }
    }

    /// Checks that the contender's own key still exists. If it does not, the contender has lost its turn.
    fn confirm_entry(&mut self) -> Result<(), RecipeError<C::Error>> {
        let found = self.coordinator.get(&self.key).map_err(RecipeError::Store)?;
        if found.is_some_and(|(revision, _)| revision == self.revision) {
            return self.keep_alive_while_waiting(&Wait { until: None, ..Wait::default() });
        }
        Err(self.lost())
    }

    fn pause(&mut self, watch: &mut C::Watch, wait: &Wait) -> Result<WatchResult, RecipeError<C::Error>> {
        self.keep_alive_while_waiting(wait)?;
        let now = self.coordinator.now();
        let left = wait.until.map_or(C::LOOK_EVERY, |until| until.saturating_sub(now));
        Ok(watch.wait(left.min(self.keeping.due_in(now)).min(C::LOOK_EVERY)))
    }

    /// Keeps the contender's lease alive if a keepalive is due. Returns an error if the wait has timed out.
    fn keep_alive_while_waiting(&mut self, wait: &Wait) -> Result<(), RecipeError<C::Error>> {
        if self.keeping.due_in(self.coordinator.now()).is_zero() {
            match self.keep_alive() {
                Err(RecipeError::Store(error)) if C::is_transient(&error) => {}
                kept => kept?,
            }
        }
        let now = self.coordinator.now();
        if !self.keeping.is_live(now) {
            return Err(RecipeError::Lost { lease: self.lease });
        }
        match wait.until {
            Some(until) if now >= until => {
                Err(RecipeError::TimedOut { waited: now.saturating_sub(wait.began), ahead: wait.ahead })
            }
            _ => Ok(()),
        }
    }
}

/// Limit and progress of a contender's wait in the queue.
#[derive(Clone, Copy, Debug, Default)]
struct Wait {
    began: Duration,
    /// Time at which the wait ends without success; `None` without a limit.
    until: Option<Duration>,
    /// Number of contenders before this one at the last check.
    ahead: usize,
}

impl<C: Coordinator> Drop for QueueEntry<C> {
    fn drop(&mut self) {
        // If this fails, the lease ends on its own.
        let _ = self.leave();
    }
}
