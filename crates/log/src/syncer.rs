//! The background syncer. It fsyncs writes of durability level `interval` at their deadline, and sealed
//! segments soon. It also marks the log as durable when no writes are pending.
//!
//! Owns: the deadlines. The thread sleeps without a timer while no deadline is set.

use std::{
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

use crate::log::Shared;

#[derive(Debug, Default)]
struct Due {
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
    due: Mutex<Due>,
    changed: Condvar,
}

impl Syncer {
    fn change(&self, change: impl FnOnce(&mut Due)) {
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
    fn wait(&self, shared: &Shared) -> Wanted {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if due.stop {
                return Wanted::Stop;
            }
            if due.now {
                due.now = false;
                return Wanted::Everything;
            }
            let Some(at) = due.at.into_iter().chain(due.mark).min() else {
                due = self.changed.wait(due).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = at.saturating_sub(shared.clock.monotonic());
            if left.is_zero() {
                if due.at == Some(at) {
                    due.at = None;
                    return Wanted::Interval;
                }
                due.mark = None;
                return Wanted::Mark;
            }
            due = self.changed.wait_timeout(due, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Body of the background sync thread. A failed sync fails the log, and callers of the log get the error.
    pub fn run(&self, shared: &Shared) {
        loop {
            let core = match self.wait(shared) {
                Wanted::Stop => return,
                Wanted::Everything => shared.core(),
                Wanted::Mark => {
                    let mut core = shared.core();
                    let due = core.synced_at + shared.options.idle_mark_after;
                    if due > shared.clock.monotonic() {
                        // The log was not idle: another sync ended in the meantime. No writer needs to
                        // schedule the marker again.
                        drop(core);
                        self.mark_at(due);
                        continue;
                    }
                    // If a sync is in progress, its leader schedules the marker again at its end.
                    core.mark_due = false;
                    if shared.check_writable().is_ok() && shared.mark_idle(core).is_none() {
                        return;
                    }
                    continue;
                }
                Wanted::Interval => {
                    let core = shared.core();
                    // A sync has covered the write that set this deadline; later `interval` writes have their
                    // own deadline.
                    let Some(since) = core.interval_since else { continue };
                    let due = since + shared.options.sync_interval;
                    if due > shared.clock.monotonic() {
                        drop(core);
                        self.due_at(due);
                        continue;
                    }
                    core
                }
            };
            let next = core.next;
            if shared.durable() >= next && core.unsynced.is_empty() {
                continue;
            }
            if shared.sync_files(core, next).is_err() {
                return;
            }
            shared.spares.look();
        }
    }
}

enum Wanted {
    Stop,
    /// All records written so far must be synced.
    Everything,
    /// The writes of durability level `interval` past their deadline must be synced.
    Interval,
    /// The log must be marked as durable and idle, if it has no pending writes.
    Mark,
}
