//! Deadlines of the background syncer.
//!
//! Owns: the deadlines and the wait for them, without a timer while none is set. Does not own: the actions (see
//! `background`).

use std::{
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

use thalweg_types::Clock;

#[derive(Debug, Default)]
struct SyncDeadlines {
    /// Monotonic time at which the next sync is due.
    at: Option<Duration>,
    /// Monotonic time at which an idle marker is due, which attests that the log is durable and has no
    /// pending writes.
    mark: Option<Duration>,
    now: bool,
    stop: bool,
}

/// Deadlines for which the background sync thread waits.
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
    pub fn due_at(&self, at: Duration) {
        self.change(|due| due.at = Some(due.at.map_or(at, |earlier| earlier.min(at))));
    }

    /// Requests that the sync thread write an idle marker at time `at`, if the log has no pending writes
    /// then.
    pub fn mark_at(&self, at: Duration) {
        self.change(|due| due.mark = Some(at));
    }

    /// Requests a background sync as soon as possible.
    pub fn due_now(&self) {
        self.change(|due| due.now = true);
    }

    pub fn stop(&self) {
        self.change(|due| due.stop = true);
    }

    /// Sleeps until the sync thread has an action to perform.
    pub fn wait(&self, clock: &dyn Clock) -> DueAction {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if due.stop {
                return DueAction::Stop;
            }
            if due.now {
                due.now = false;
                return DueAction::Everything;
            }
            let Some(at) = due.at.into_iter().chain(due.mark).min() else {
                due = self.changed.wait(due).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = at.saturating_sub(clock.monotonic());
            if left.is_zero() {
                if due.at == Some(at) {
                    due.at = None;
                    return DueAction::Interval;
                }
                due.mark = None;
                return DueAction::Mark;
            }
            due = self.changed.wait_timeout(due, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Action that the background sync thread has to perform.
pub(crate) enum DueAction {
    Stop,
    /// All records written so far must be synced.
    Everything,
    /// The writes of durability level `interval` past their deadline must be synced.
    Interval,
    /// The log must be marked as durable and idle, if it has no pending writes.
    Mark,
}
