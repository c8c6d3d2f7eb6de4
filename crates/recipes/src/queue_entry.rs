//! A contender's position in the queue: entering, waiting for its turn, leaving.
//!
//! Owns: the key and the lease of one contender, and its wait. Does not own: the order of the queue (`queue_order`),
//! the time for which a lease certainly lives (`lease_schedule`), or the hold after its acquisition (`hold`).
//!
//! A waiter keeps its own lease alive while it waits. A waiter of a lock watches only the previous contender, so each
//! departure wakes one waiter. A waiter of a semaphore watches all contenders and counts the departures before it. Each
//! departure therefore wakes all waiters of a semaphore, but none of them has to read keys.
//!
//! A waiter has nothing to lose but its position. So a waiter treats its lease as ended only if the database reports
//! this, and then enters the queue again at its end ([`QueueEntry::acquire`]). A holder is stricter: it also treats its
//! lease as ended when the lease may have ended by the holder's clock ([`QueueEntry::keep_alive`]).

use std::{collections::BTreeSet, error::Error, time::Duration};

use thalweg_types::{LeaseId, Revision, limits::MAX_CONTENDERS};

use crate::{
    acquire::Acquire,
    coordinator::{Contender, Coordinator, EnterResult, KeyWatch, WatchResult, Watched},
    error::RecipeError,
    lease_schedule::LeaseSchedule,
    queue_order::{ahead_of, in_order, key_of, prefix_of},
};

/// Pause before an operation is retried after a transient error.
const PAUSE: Duration = Duration::from_millis(200);

/// Lists all contenders for the lock, semaphore or election with this name, in queue order.
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
    /// True while the database may contain this contender's key. The key must be removed when the contender leaves.
    entered: bool,
}

impl<C: Coordinator> QueueEntry<C> {
    /// Enters the queue, and waits until fewer than `slots` contenders are before this one. A contender whose
    /// lease ends in the meantime enters again, with a new lease and at the end of the queue.
    ///
    /// If `wait` has a limit, retries after transient errors until the limit. Without a limit, retries only once the
    /// contender has entered the queue. So a caller that waits without a limit still learns immediately that the
    /// database cannot be reached.
    pub(crate) fn acquire(
        coordinator: &C,
        name: &str,
        slots: usize,
        how: &Acquire<'_>,
    ) -> Result<Self, RecipeError<C::Error>> {
        let began = coordinator.now();
        let mut wait = Wait { began, until: how.wait.and_then(|wait| began.checked_add(wait)), ahead: 0 };
        let mut has_entered = false;
        loop {
            let entered = Self::enter(coordinator, name, how.value, how.ttl).and_then(|mut entry| {
                has_entered = true;
                entry.wait_turn(slots, &mut wait).map(|()| entry)
            });
            let now = coordinator.now();
            match entered {
                Err(RecipeError::Lost { .. }) => wait.check::<C::Error>(now)?,
                Err(RecipeError::Store(error)) if C::is_transient(&error) && (has_entered || wait.until.is_some()) => {
                    if wait.is_over(now) {
                        return Err(RecipeError::Store(error));
                    }
                }
                entered => return entered,
            }
            std::thread::sleep(wait.until.map_or(PAUSE, |until| until.saturating_sub(now).min(PAUSE)));
        }
    }

    /// Grants a lease, and writes a key attached to it at the end of the queue.
    fn enter(coordinator: &C, name: &str, value: &[u8], ttl: Duration) -> Result<Self, RecipeError<C::Error>> {
        let sent = coordinator.now();
        let lease = coordinator.grant(ttl).map_err(RecipeError::Store)?;
        let mut place = Self {
            coordinator: coordinator.clone(),
            name: name.to_owned(),
            key: key_of(name, lease),
            revision: Revision::ZERO,
            lease,
            keeping: LeaseSchedule::granted(sent, ttl),
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

    /// Extends the lease of a holder by another TTL (time to live). The hold is lost if the database reports
    /// that the lease has ended, and also if the request failed and the lease may have ended by now.
    pub(crate) fn keep_alive(&mut self) -> Result<(), RecipeError<C::Error>> {
        match self.extend_lease() {
            Err(RecipeError::Store(_)) if !self.is_lease_live() => Err(RecipeError::Lost { lease: self.lease }),
            extended => extended,
        }
    }

    /// Extends the contender's lease by another TTL (time to live). Returns [`RecipeError::Lost`] only if the
    /// database reports that the lease has ended.
    fn extend_lease(&mut self) -> Result<(), RecipeError<C::Error>> {
        let sent = self.coordinator.now();
        match self.coordinator.keep_alive(self.lease) {
            Ok(true) => {
                self.keeping.record_keepalive(sent);
                Ok(())
            }
            Ok(false) => Err(self.lost()),
            Err(error) => {
                self.keeping.retry_later(self.coordinator.now());
                Err(RecipeError::Store(error))
            }
        }
    }

    fn is_lease_live(&self) -> bool {
        self.keeping.is_live(self.coordinator.now())
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

    /// Waits until fewer than `slots` contenders are before this one. Returns an error when the time limit of `wait`
    /// has passed.
    fn wait_turn(&mut self, slots: usize, wait: &mut Wait) -> Result<(), RecipeError<C::Error>> {
        loop {
            let waited = if slots == 1 { self.wait_behind(wait) } else { self.wait_among(slots, wait) };
            match waited {
                Err(RecipeError::Store(error)) if C::is_transient(&error) => {
                    if wait.is_over(self.coordinator.now()) && wait.ahead == 0 {
                        // The contender never learned its position, so the error is more useful to the caller than a
                        // timeout.
                        return Err(RecipeError::Store(error));
                    }
                    self.keep_alive_while_waiting(wait)?;
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

    /// Waits until no contender is before this one, as a lock requires.
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

    /// Waits until fewer than `slots` contenders are before this one, as a semaphore requires.
    fn wait_among(&mut self, slots: usize, wait: &mut Wait) -> Result<(), RecipeError<C::Error>> {
        loop {
            let prefix = prefix_of(&self.name);
            let mut watch = self.coordinator.watch(Watched::Prefix(&prefix)).map_err(RecipeError::Store)?;
            // The time is taken before the listing: a lease that ends during the listing counts as not seen by it.
            let looked = self.coordinator.now();
            let ahead = self.ahead()?;
            let mut ahead: BTreeSet<Vec<u8>> = ahead.into_iter().map(|contender| contender.key).collect();
            loop {
                wait.ahead = ahead.len();
                if ahead.len() < slots {
                    return self.confirm_entry();
                }
                match self.pause(&mut watch, wait)? {
                    // These contenders wrote their keys before the listing, so a change of a key means its
                    // removal.
                    WatchResult::Keys(keys) => keys.iter().for_each(|key| _ = ahead.remove(key)),
                    // A lease may have ended while its keys are not removed yet. This check lists all keys, so it runs
                    // less often than the check for a lock, which reads one key.
                    WatchResult::Nothing if self.coordinator.now().saturating_sub(looked) < C::LOOK_EVERY * 10 => {}
                    WatchResult::Nothing | WatchResult::Unknown => break,
                }
            }
        }
    }

    /// Checks that the contender's own key still exists, and extends the lease if a keepalive is due. Returns
    /// [`RecipeError::Lost`] if the key is gone, or if the lease may have ended by the local clock.
    fn confirm_entry(&mut self) -> Result<(), RecipeError<C::Error>> {
        let found = self.coordinator.get(&self.key).map_err(RecipeError::Store)?;
        if found.is_none_or(|(revision, _)| revision != self.revision) {
            return Err(self.lost());
        }
        if self.keeping.due_in(self.coordinator.now()).is_zero() || !self.is_lease_live() {
            match self.extend_lease() {
                // It is enough that the lease certainly lives. The holder retries the keepalive.
                Err(RecipeError::Store(_)) if self.is_lease_live() => {}
                extended => extended?,
            }
        }
        // The request may have taken longer than the TTL, so the lease is checked after the reply.
        if self.is_lease_live() { Ok(()) } else { Err(RecipeError::Lost { lease: self.lease }) }
    }

    fn pause(&mut self, watch: &mut C::Watch, wait: &Wait) -> Result<WatchResult, RecipeError<C::Error>> {
        self.keep_alive_while_waiting(wait)?;
        let now = self.coordinator.now();
        let left = wait.until.map_or(C::LOOK_EVERY, |until| until.saturating_sub(now));
        Ok(watch.wait(left.min(self.keeping.due_in(now)).min(C::LOOK_EVERY)))
    }

    /// Keeps the contender's lease alive if a keepalive is due. Returns an error if the wait is over, or if the
    /// database reports that the lease has ended.
    fn keep_alive_while_waiting(&mut self, wait: &Wait) -> Result<(), RecipeError<C::Error>> {
        if self.keeping.due_in(self.coordinator.now()).is_zero() {
            match self.extend_lease() {
                Err(RecipeError::Store(error)) if C::is_transient(&error) => {}
                kept => kept?,
            }
        }
        wait.check(self.coordinator.now())
    }
}

/// Limit and progress of a contender's wait in the queue.
#[derive(Clone, Copy, Debug)]
struct Wait {
    began: Duration,
    /// Time at which the wait ends without success; `None` without a limit.
    until: Option<Duration>,
    /// Number of contenders before this one at the last check.
    ahead: usize,
}

impl Wait {
    fn is_over(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    /// Returns an error if the maximum wait has passed.
    fn check<E: Error>(&self, now: Duration) -> Result<(), RecipeError<E>> {
        if self.is_over(now) {
            return Err(RecipeError::TimedOut { waited: now.saturating_sub(self.began), ahead: self.ahead });
        }
        Ok(())
    }
}

impl<C: Coordinator> Drop for QueueEntry<C> {
    fn drop(&mut self) {
        // If the contender cannot leave, its lease ends on its own because nobody keeps it alive.
        let _ = self.leave();
    }
}
