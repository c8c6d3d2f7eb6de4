//! The background syncer. It fsyncs `interval` writes at their deadline and sealed segments soon, and marks
//! an idle log as durable.

use crate::{shared::Shared, syncer::DueAction};

impl Shared {
    /// Body of the background sync thread. A failed sync fails the log, and callers of the log get the error.
    pub fn run_syncer(&self) {
        loop {
            let core = match self.syncer.wait(&*self.clock) {
                DueAction::Stop => return,
                DueAction::Everything => self.core(),
                DueAction::Mark => {
                    let mut core = self.core();
                    let due = core.synced_at + self.options.idle_mark_after;
                    if due > self.clock.monotonic() {
                        // The log was not idle: another sync ended in the meantime. No writer needs to
                        // schedule the marker again.
                        drop(core);
                        self.syncer.mark_at(due);
                        continue;
                    }
                    // If a sync is in progress, its leader schedules the marker again at its end.
                    core.mark_due = false;
                    if self.check_writable().is_ok() && self.mark_idle(core).is_none() {
                        return;
                    }
                    continue;
                }
                DueAction::Interval => {
                    let core = self.core();
                    // A sync has covered the write that set this deadline; later `interval` writes have their
                    // own deadline.
                    let Some(since) = core.interval_since else { continue };
                    let due = since + self.options.sync_interval;
                    if due > self.clock.monotonic() {
                        drop(core);
                        self.syncer.due_at(due);
                        continue;
                    }
                    core
                }
            };
            let next = core.next;
            if self.durable() >= next && core.unsynced.is_empty() {
                continue;
            }
            if self.sync_files(core, next).is_err() {
                return;
            }
            self.segment_pool.check_free_space();
        }
    }
}
