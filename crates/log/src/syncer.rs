//! Deadlines at which the background sync thread must sync the log or mark it as idle.
//!
//! Owns: the deadlines and the wait for them, without a timer while none is set. Does not own: the syncs (see
//! `background`).

use std::{
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

use thalweg_types::Clock;

#[derive(Debug, Default)]
struct SyncDeadlines {
    /// Monotonic time at which the next background sync is due; `None` if no deadline is set.
    at: Option<Duration>,
    /// Monotonic time at which an idle marker is due, which attests that the log is durable and has no
    /// pending writes.
    mark: Option<Duration>,
    now: bool,
    stop: bool,
}

impl SyncDeadlines {
    /// Takes the action that is due now. If none is due, returns the time until the next deadline as an error;
    /// `Err(None)` means that no deadline is set.
    fn next(&mut self, clock: &dyn Clock) -> Result<DueAction, Option<Duration>> {
        if self.stop {
            return Ok(DueAction::Stop);
        }
        if self.now {
            self.now = false;
            return Ok(DueAction::Everything);
        }
        let at = self.at.into_iter().chain(self.mark).min().ok_or(None)?;
        let left = at.saturating_sub(clock.monotonic());
        if !left.is_zero() {
            return Err(Some(left));
        }
        if self.at == Some(at) {
            self.at = None;
            return Ok(DueAction::Interval);
        }
        self.mark = None;
        Ok(DueAction::Mark)
    }
}

/// Deadlines of the background syncs and idle markers, for which the background sync thread waits.
#[derive(Debug, Default)]
pub(crate) struct Syncer {
    due: Mutex<SyncDeadlines>,
    changed: Condvar,
}

impl Syncer {
    fn change(&self, change: impl FnOnce(&mut SyncDeadlines)) {
        change(&mut self.due.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
    }

    /// Sets the deadline of the next background sync to `at`, unless an earlier deadline is set.
    pub(crate) fn due_at(&self, at: Duration) {
        self.change(|due| due.at = Some(due.at.map_or(at, |earlier| earlier.min(at))));
    }

    /// Requests that the sync thread write an idle marker at time `at`, if the log has no pending writes then. The
    /// marker attests that all records are durable.
    pub(crate) fn mark_at(&self, at: Duration) {
        self.change(|due| due.mark = Some(at));
    }

    /// Requests that the sync thread sync all written records as soon as possible.
    pub(crate) fn due_now(&self) {
        self.change(|due| due.now = true);
    }

    pub(crate) fn stop(&self) {
        self.change(|due| due.stop = true);
    }

    /// Sleeps until the sync thread has an action to perform.
    pub(crate) fn wait(&self, clock: &dyn Clock) -> DueAction {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            due = match due.next(clock) {
                Ok(action) => return action,
                Err(None) => self.changed.wait(due).unwrap_or_else(PoisonError::into_inner),
                Err(Some(left)) => self.changed.wait_timeout(due, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    /// Returns the action that is due now, without waiting.
    pub(crate) fn poll(&self, clock: &dyn Clock) -> Option<DueAction> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner).next(clock).ok()
    }
}

/// Action that the background sync thread has to perform.
pub(crate) enum DueAction {
    Stop,
    /// The thread must sync all records written so far.
    Everything,
    /// The thread must sync writes of durability level `interval`, whose deadline has passed.
    Interval,
    /// An idle marker must be written, if the log has no pending writes. It attests that all records are durable.
    Mark,
}
