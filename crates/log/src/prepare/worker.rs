//! The preparer thread: decides which segment file it creates, recycles or removes next, and how many prepared files
//! the log keeps.

use std::{
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use super::{Prepared, SegmentPool, Slot, State, files::PrepareSpeed};
use crate::errors::DiskFault;

/// Minimum number of recycled segments kept in addition to `spare_segments` while the disk has room. Keeping
/// them saves writing zeroes into new files.
const EXTRA_SPARES: usize = 2;
/// Maximum number of recycled segments that the log keeps beyond `spare_segments`, however many the writer used
/// recently. `MAX_RECENT_BYTES` bounds their total bytes.
const MAX_RECENT: u64 = 64;
const MAX_RECENT_BYTES: u64 = 2 << 30;
/// Interval between checks of the disk's free space while more than `spare_segments + EXTRA_SPARES` segments
/// are kept.
const LOOK_EVERY: Duration = Duration::from_secs(1);

enum Job {
    Recycle(Slot),
    Create,
    Remove(Slot),
    Stop,
}

impl SegmentPool {
    /// Body of the thread that prepares empty segment files.
    pub(crate) fn run(&self) {
        loop {
            let outcome = match self.next_job() {
                Job::Stop => return,
                Job::Recycle(slot) => self.recycle(slot).map(Some),
                Job::Create => self.create(PrepareSpeed::Bounded),
                Job::Remove(slot) => self.remove(&slot).map(|()| None),
            };
            self.done(outcome);
        }
    }

    /// Creates, recycles and removes the segment files that are due now, without waiting and at full speed. Returns
    /// true if there were any.
    pub(crate) fn perform_due(&self) -> bool {
        let mut has_worked = false;
        loop {
            self.check_free_space();
            let job = self.take_job(&mut self.state());
            let outcome = match job {
                None | Some(Job::Stop) => return has_worked,
                Some(Job::Recycle(slot)) => self.recycle(slot).map(Some),
                Some(Job::Create) => self.create(PrepareSpeed::Urgent),
                Some(Job::Remove(slot)) => self.remove(&slot).map(|()| None),
            };
            self.done(outcome);
            has_worked = true;
        }
    }

    /// Hands over a prepared segment to the waiting writers, or reports the failure to prepare one.
    fn done(&self, outcome: Result<Option<Prepared>, DiskFault>) {
        let mut state = self.state();
        match outcome {
            Ok(Some(prepared)) => {
                state.fault = None;
                state.ready.push_back(prepared);
                self.note_ready(&state);
                state.is_refilling &= state.ready.len() < self.target;
            }
            Ok(None) => {}
            Err(fault) => {
                state.fault = Some(fault);
                state.faults += 1;
            }
        }
        self.wake_waiting(state);
    }

    fn next_job(&self) -> Job {
        self.check_free_space();
        let mut state = self.state();
        loop {
            if let Some(job) = self.take_job(&mut state) {
                return job;
            }
            state = self.wait_for_work(state);
        }
    }

    /// Takes the job that is due now, if there is one.
    fn take_job(&self, state: &mut State) -> Option<Job> {
        if state.stop {
            return Some(Job::Stop);
        }
        let keep = self.segments_to_keep(state);
        if let Some(slot) = state.freed.pop() {
            let fits = slot.segment_bytes == self.segment_bytes && state.ready.len() < keep;
            return Some(if fits { Job::Recycle(slot) } else { Job::Remove(slot) });
        }
        if state.ready.len() > keep {
            // Removes the newest, so that the remaining ones stay ordered by generation.
            let surplus = state.ready.pop_back().expect("there are more than are kept");
            self.note_ready(state);
            return Some(Job::Remove(surplus.slot));
        }
        if state.ready.len() < self.target && state.retry && !state.at_rest {
            state.retry = false;
            return Some(Job::Create);
        }
        None
    }

    /// Blocks the preparer thread until there may be work for it.
    fn wait_for_work<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if state.ready.len() <= self.target + EXTRA_SPARES {
            return self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let state = self.work.wait_timeout(state, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        self.check_free_space();
        state
    }

    /// Number of prepared segments that the log keeps at present. The preparer thread removes those above this number.
    fn segments_to_keep(&self, state: &State) -> usize {
        if state.at_rest {
            return 0;
        }
        if self.is_low() {
            return self.target;
        }
        self.target + state.take_times.recent(self.clock.monotonic()).clamp(EXTRA_SPARES, self.max_extra())
    }

    /// Maximum number of recycled segments kept beyond `spare_segments`.
    pub(super) fn max_extra(&self) -> usize {
        EXTRA_SPARES.max((MAX_RECENT_BYTES / u64::from(self.segment_bytes)).min(MAX_RECENT) as usize)
    }

    /// Recycles freed segments while a new segment file is being filled with zeroes, so that a waiting writer
    /// need not wait for the zeroes.
    pub(super) fn recycle_freed(&self) {
        loop {
            let slot = {
                let mut state = self.state();
                if state.ready.len() >= self.segments_to_keep(&state) {
                    return;
                }
                let Some(at) = state.freed.iter().rposition(|slot| slot.segment_bytes == self.segment_bytes) else {
                    return;
                };
                state.freed.swap_remove(at)
            };
            self.done(self.recycle(slot).map(Some));
        }
    }
}
