//! The background syncer, which fsyncs what no caller waits for: writes of durability level `interval` at their
//! deadline, and sealed segments as soon as possible. It also writes a batch without records into an idle log, which
//! attests that all records are durable. A thread does this work, or [`Log::step`](crate::Log::step) in a log without
//! threads.

use std::ops::ControlFlow;

use crate::{shared::Shared, syncer::DueAction};

impl Shared {
    /// Body of the background sync thread. A failed sync fails the log, and callers of the log get the error.
    pub(crate) fn run_syncer(&self) {
        while self.perform(&self.syncer.wait(&*self.clock)).is_continue() {}
    }

    /// Performs the background syncs that are due now, and writes a due idle marker (a batch without records, which
    /// attests that all records are durable). Returns true if there was anything to do.
    pub(crate) fn perform_due(&self) -> bool {
        let mut has_acted = false;
        while let Some(action) = self.syncer.poll(&*self.clock) {
            if self.perform(&action).is_break() {
                break;
            }
            has_acted = true;
        }
        has_acted
    }

    /// Performs one action of the background syncer. Returns `Break` if the syncer must stop or the log has failed.
    fn perform(&self, action: &DueAction) -> ControlFlow<()> {
        let core = match action {
            DueAction::Stop => return ControlFlow::Break(()),
            DueAction::Everything => self.core(),
            DueAction::Mark => return self.mark_if_idle(),
            DueAction::Interval => {
                let core = self.core();
                // A sync has covered the write that set this deadline; later `interval` writes have their
                // own deadline.
                let Some(since) = core.interval_since else { return ControlFlow::Continue(()) };
                let due = since + self.options.sync_interval;
                if due > self.clock.monotonic() {
                    drop(core);
                    self.syncer.due_at(due);
                    return ControlFlow::Continue(());
                }
                core
            }
        };
        let next = core.next;
        if self.durable() >= next && core.unsynced.is_empty() {
            return ControlFlow::Continue(());
        }
        if self.sync_files(core, next).is_err() {
            return ControlFlow::Break(());
        }
        self.segment_pool.check_free_space();
        ControlFlow::Continue(())
    }

    fn mark_if_idle(&self) -> ControlFlow<()> {
        let mut core = self.core();
        let due = core.synced_at + self.options.idle_mark_after;
        if due > self.clock.monotonic() {
            // The log was not idle: another sync ended in the meantime. No writer needs to
            // schedule the marker again.
            drop(core);
            self.syncer.mark_at(due);
            return ControlFlow::Continue(());
        }
        // If a sync is in progress, its leader schedules the marker again at its end.
        core.mark_due = false;
        if self.check_writable().is_ok() && self.mark_idle(core).is_none() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}
