//! The background syncer: fsyncs `interval` writes when their time has come, and sealed segments soon; says of a
//! log that has come to rest that it is durable.
//!
//! Owns: when that is due. Asleep without a timer while nothing is due.

use std::{
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

use crate::log::Shared;

#[derive(Debug, Default)]
struct Due {
    /// Monotonic time of the clock.
    at: Option<Duration>,
    /// When the log is to be marked idle.
    mark: Option<Duration>,
    now: bool,
    stop: bool,
}

/// What the thread waits for.
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

    /// A sync is due at `at`, unless one is due earlier.
    pub fn due_at(&self, at: Duration) {
        self.change(|due| due.at = Some(due.at.map_or(at, |earlier| earlier.min(at))));
    }

    /// If the log is idle at `at`, it is to be marked so.
    pub fn mark_at(&self, at: Duration) {
        self.change(|due| due.mark = Some(at));
    }

    /// A sync is due as soon as possible.
    pub fn due_now(&self) {
        self.change(|due| due.now = true);
    }

    pub fn stop(&self) {
        self.change(|due| due.stop = true);
    }

    /// Sleeps until something is due.
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

    /// The thread's life. A failed sync fails the log and is seen there.
    pub fn run(&self, shared: &Shared) {
        loop {
            let core = match self.wait(shared) {
                Wanted::Stop => return,
                Wanted::Everything => shared.core(),
                Wanted::Mark => {
                    let mut core = shared.core();
                    let due = core.synced_at + shared.options.idle_mark_after;
                    if due > shared.clock.monotonic() {
                        // It has not rested: another sync ended meanwhile. No writer needs to ask again.
                        drop(core);
                        self.mark_at(due);
                        continue;
                    }
                    // If a sync is under way, whoever does it asks again at its end.
                    core.mark_due = false;
                    if shared.check_writable().is_ok() && shared.mark_idle(core).is_none() {
                        return;
                    }
                    continue;
                }
                Wanted::Interval => {
                    let core = shared.core();
                    // A sync has covered what this thread was set for; later `interval` writes have their own time.
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
    /// All that is written now.
    Everything,
    /// `interval` writes that have waited long enough.
    Interval,
    /// The log's rest, if it is at rest.
    Mark,
}
