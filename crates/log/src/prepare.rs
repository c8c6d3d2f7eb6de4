//! Prepares empty segment files on a thread of its own (the preparer), so that an append never creates, renames or
//! extends files.
//!
//! Owns: the file numbers (slots) and generations in use; creating, zero-filling, recycling and removing segment files.
//! The submodule `worker` chooses the preparer thread's next job, and `files` does it. Does not own: live segments. A
//! freed segment's file returns to this module when its last reader drops it.
//!
//! Steps of creating a file: create `.tmp`, fill it with zeroes, write the header twice, sync the file, rename it, sync
//! the directory, hand the file to the writer. A crash before the rename leaves a `.tmp`, which the next open deletes.
//! A crash after it leaves a prepared segment, and the next open makes its name durable.
//!
//! Steps of recycling a file: overwrite both headers with a new id and generation, sync the file, hand it to the
//! writer. A crash in between leaves the old live segment or a prepared one: if the two headers differ, the one with
//! the higher generation is valid.

mod files;
mod worker;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Waker,
    time::{Duration, Instant},
};

use thalweg_disk::{Disk, File, Mapping, Pacer};
use thalweg_types::{Clock, Generation};

use crate::{
    append_progress::{AppendProgress, TakeTimes},
    errors::DiskFault,
    format::SegmentId,
    options::LogOptions,
    record::Purpose,
};

pub(crate) use files::write_spare_header;

/// An open segment file, with its path and the number in its name (the slot).
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub file: Arc<dyn File>,
    pub path: String,
    pub slot: u32,
    pub segment_bytes: u32,
}

/// A segment file that is empty and ready for writing.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub slot: Slot,
    pub id: SegmentId,
    pub generation: Generation,
    pub mapping: Box<dyn Mapping>,
}

#[derive(Debug, Default)]
struct State {
    /// Prepared segments that the writer can take, ordered by generation (segment number).
    ready: VecDeque<Prepared>,
    freed: Vec<Slot>,
    /// Number of writers that wait for an empty segment.
    waiting: u32,
    /// Wakers of tasks that wait for an empty segment. Bounded: one waker for each pending future.
    wakers: Vec<Waker>,
    /// Last failure to prepare a segment. `faults` is the number of failed attempts.
    fault: Option<DiskFault>,
    faults: u64,
    /// True if another attempt to create a segment is due although the last one failed.
    retry: bool,
    stop: bool,
    /// True while the log rests: nothing is appended, and the log keeps no prepared segments.
    at_rest: bool,
    /// Monotonic time at which the log last stopped resting (keeping no prepared segments); `None` if it has not rested
    /// yet.
    rest_ended: Option<Duration>,
    /// True from the time at which the log stops resting until all segments are prepared again.
    is_refilling: bool,
    generation: u64,
    slots: BTreeSet<u32>,
    take_times: TakeTimes,
}

impl State {
    /// Records that a writer needs segments: the preparer thread should try to prepare one. If the log is resting
    /// (keeping no prepared segments), it stops.
    fn need_segments(&mut self, now: Duration) {
        self.retry = true;
        self.end_rest(now);
    }

    /// Makes the log stop resting (keeping no prepared segments), so that the preparer thread prepares segments again.
    /// Returns false if the log was not resting.
    fn end_rest(&mut self, now: Duration) -> bool {
        let rested = std::mem::take(&mut self.at_rest);
        if rested {
            (self.retry, self.is_refilling, self.rest_ended) = (true, true, Some(now));
        }
        rested
    }

    /// True if a thread or a task waits for an empty segment.
    fn is_awaited(&self) -> bool {
        self.waiting > 0 || !self.wakers.is_empty()
    }

    /// True if a thread or a task waits for a segment, and too few segments are ready for an append of data. The second
    /// condition is needed because the first can be outdated: a woken thread counts as waiting until it runs again, and
    /// a dropped future leaves its waker behind.
    fn must_hurry(&self) -> bool {
        self.is_awaited() && self.ready.len() < SegmentPool::needed(Purpose::Data)
    }
}

/// Counters of the thread that prepares segments, and of the appends that waited for it.
#[derive(Debug, Default)]
pub(crate) struct PrepareCounters {
    pub created: AtomicU64,
    pub recycled: AtomicU64,
    pub zeroed_bytes: AtomicU64,
    /// Bytes of segments that were reserved without zeroes, because a writer waited.
    pub reserved_bytes: AtomicU64,
    pub waits: AtomicU64,
    pub wait_micros: AtomicU64,
}

impl PrepareCounters {
    /// Counts a wait of an append for the next segment.
    pub(crate) fn count_wait(&self, waited: Duration) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.wait_micros.fetch_add(u64::try_from(waited.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct SegmentPool {
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    dir: String,
    segment_bytes: u32,
    target: usize,
    /// Free disk bytes that the log's options keep in reserve.
    min_reserve_bytes: u64,
    /// Disk bytes that the state of the log's user needs; see [`StateSpace`].
    state_bytes: AtomicU64,
    reusable_bytes: AtomicU64,
    state_is_full: AtomicBool,
    seed: u64,
    state: Mutex<State>,
    /// Notified when a segment is ready, or an attempt to prepare one failed. Tasks wait with a waker instead.
    ready: Condvar,
    /// Notified when there may be work for the preparer thread.
    work: Condvar,
    /// True if the last check of the disk found less free space than the reserve that the log's options require.
    low: AtomicBool,
    /// True while an append of data would find no prepared segment. The last prepared segment is reserved for deletes.
    is_short: AtomicBool,
    pub counters: PrepareCounters,
    pub progress: AppendProgress,
    /// Scheduler of all background work on the disk.
    pub pacer: Arc<Pacer>,
}

/// Disk space that the log's user needs for its state, which lies on the same disk as the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateSpace {
    /// Free disk bytes that the user needs to persist its state. The log keeps the larger of this number and
    /// `reserve_bytes` of its options free.
    pub needed_bytes: u64,
    /// Bytes within the state's files that the state can use again. They count as free.
    pub reusable_bytes: u64,
    /// True if the state could not be persisted because the disk was full. The log then rejects data.
    pub is_full: bool,
}

/// Reason why a writer got no empty segment, although it waited for one.
#[derive(Debug)]
pub(crate) enum PrepareError {
    Failed(DiskFault),
    TimedOut,
    Stopped,
}

impl SegmentPool {
    /// Creates the set of prepared segments. `generation` is the highest segment number ever seen in the directory;
    /// `slots` are the file numbers in use.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        (clock, pacer): (Arc<dyn Clock>, Arc<Pacer>),
        dir: &str,
        options: &LogOptions,
        seed: u64,
        generation: Generation,
        slots: BTreeSet<u32>,
    ) -> Self {
        let state = State { generation: generation.0, slots, retry: true, ..State::default() };
        Self {
            disk,
            clock,
            dir: dir.to_owned(),
            segment_bytes: options.segment_bytes,
            target: options.spare_segments as usize,
            min_reserve_bytes: options.reserve_bytes,
            state_bytes: AtomicU64::new(0),
            reusable_bytes: AtomicU64::new(0),
            state_is_full: AtomicBool::new(false),
            seed,
            state: Mutex::new(state),
            ready: Condvar::new(),
            work: Condvar::new(),
            low: AtomicBool::new(false),
            is_short: AtomicBool::new(true),
            counters: PrepareCounters::default(),
            progress: AppendProgress::default(),
            pacer,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code under this lock panics during a change of the state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a prepared segment for the writer, if `purpose` permits: the last prepared segment is reserved
    /// for deletes and trims.
    pub(crate) fn take(&self, purpose: Purpose) -> Option<Prepared> {
        let mut state = self.state();
        let kept_back = match purpose {
            Purpose::Data => 1,
            Purpose::Reclaim => 0,
        };
        if state.ready.len() <= kept_back {
            return None;
        }
        let now = self.clock.monotonic();
        state.need_segments(now);
        state.take_times.add(now, self.max_extra());
        self.work.notify_one();
        let taken = state.ready.pop_front();
        self.note_ready(&state);
        taken
    }

    /// Updates `is_short` after the number of prepared segments has changed.
    fn note_ready(&self, state: &State) {
        self.is_short.store(state.ready.len() < Self::needed(Purpose::Data), Ordering::Relaxed);
    }

    /// Returns true while an append of data would find no prepared segment. Takes no lock.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Waits until [`take`](Self::take) may succeed, an attempt to prepare a segment has failed, or
    /// `patience` ends.
    pub(crate) fn wait(&self, purpose: Purpose, patience: Duration) -> Result<(), PrepareError> {
        let needed = Self::needed(purpose);
        let mut state = self.state();
        let faults = state.faults;
        state.waiting += 1;
        state.need_segments(self.clock.monotonic());
        self.work.notify_one();
        let deadline = Instant::now() + patience;
        let result = loop {
            if state.ready.len() >= needed {
                break Ok(());
            }
            if state.stop {
                break Err(PrepareError::Stopped);
            }
            if state.faults > faults {
                let fault = state.fault.clone();
                break Err(fault.map_or(PrepareError::TimedOut, PrepareError::Failed));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Err(PrepareError::TimedOut);
            }
            state = self.ready.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        state.waiting -= 1;
        result
    }

    /// Minimum number of ready segments at which a writer with this purpose may take one.
    fn needed(purpose: Purpose) -> usize {
        match purpose {
            Purpose::Data => 2,
            Purpose::Reclaim => 1,
        }
    }

    /// Makes the preparer thread prepare a segment if none is ready for `purpose`. Does not wait. Returns the number
    /// of failed attempts so far.
    pub(crate) fn request(&self, purpose: Purpose) -> u64 {
        let mut state = self.state();
        if state.ready.len() < Self::needed(purpose) {
            state.need_segments(self.clock.monotonic());
            self.work.notify_one();
        }
        state.faults
    }

    /// Returns `Ok` if [`take`](Self::take) succeeds now, and an error if an attempt to prepare a segment has failed
    /// since there were `faults` failures. Returns `None` if a segment is still being prepared.
    pub(crate) fn has_ready(&self, purpose: Purpose, faults: u64) -> Option<Result<(), PrepareError>> {
        let state = self.state();
        if state.ready.len() >= Self::needed(purpose) {
            return Some(Ok(()));
        }
        if state.stop {
            return Some(Err(PrepareError::Stopped));
        }
        let fault = state.fault.clone().filter(|_| state.faults > faults);
        fault.map(|fault| Err(PrepareError::Failed(fault)))
    }

    /// Registers a waker for the next change: a segment is ready, an attempt to prepare one failed, or the pool stops.
    pub(crate) fn wake_when_ready(&self, waker: &Waker) {
        let mut state = self.state();
        if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
        state.end_rest(self.clock.monotonic());
        // Zeroes are written at full speed from now on.
        self.work.notify_one();
    }

    /// Wakes all threads and tasks that wait for a segment.
    fn wake_waiting(&self, state: MutexGuard<'_, State>) {
        let mut state = state;
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.ready.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Accepts a segment file that is not in use any more, for recycling.
    pub(crate) fn return_file(&self, slot: Slot) {
        let mut state = self.state();
        state.freed.push(slot);
        state.retry = true;
        self.work.notify_one();
    }

    /// Makes the log rest: the preparer thread removes all prepared segments, and prepares no others until
    /// [`end_rest`](Self::end_rest). Returns false, and changes nothing, while a thread or a task waits for a segment:
    /// otherwise the segment prepared for it would be removed before it is taken.
    pub(crate) fn rest(&self) -> bool {
        let mut state = self.state();
        if state.waiting > 0 || state.must_hurry() {
            return false;
        }
        state.at_rest = true;
        self.work.notify_one();
        true
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        self.state().at_rest
    }

    /// Returns the bytes of the files of all prepared segments.
    pub(crate) fn ready_bytes(&self) -> u64 {
        self.ready_count() as u64 * u64::from(self.segment_bytes)
    }

    /// Makes the log stop resting (keeping no prepared segments), so that segments are prepared again. Returns false if
    /// the log was not resting.
    pub(crate) fn end_rest(&self) -> bool {
        let rested = self.state().end_rest(self.clock.monotonic());
        if rested {
            self.work.notify_one();
        }
        rested
    }

    /// Returns the monotonic time at which the log last stopped resting (keeping no prepared segments); `None` if it
    /// has not rested since it was opened.
    pub(crate) fn rest_ended(&self) -> Option<Duration> {
        self.state().rest_ended
    }

    pub(crate) fn ready_count(&self) -> usize {
        self.state().ready.len()
    }

    /// Returns true if the last check of the disk found less free space than the reserve that the log's options
    /// require.
    #[inline]
    pub(crate) fn is_low(&self) -> bool {
        self.low.load(Ordering::Relaxed)
    }

    /// Checks the disk: returns its free bytes, and true if they are below the reserve that the log's options require.
    /// A disk that cannot report its free bytes counts as full.
    pub(crate) fn check_free_space(&self) -> (u64, bool) {
        let free = self.disk.free_bytes().unwrap_or(0);
        let low = free < self.reserve_bytes() || self.state_is_full.load(Ordering::Relaxed);
        self.low.store(low, Ordering::Relaxed);
        (free, low)
    }

    /// Number of free bytes on the disk below which the log rejects new data.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        let needed = self.min_reserve_bytes.max(self.state_bytes.load(Ordering::Relaxed));
        needed.saturating_sub(self.reusable_bytes.load(Ordering::Relaxed))
    }

    pub(crate) fn set_state_space(&self, state: StateSpace) {
        self.state_bytes.store(state.needed_bytes, Ordering::Relaxed);
        self.reusable_bytes.store(state.reusable_bytes, Ordering::Relaxed);
        self.state_is_full.store(state.is_full, Ordering::Relaxed);
        if self.check_free_space().1 {
            // Deletes may need the reserved segment soon.
            self.end_rest();
        }
    }

    /// Number of bytes that must become free on the disk before the log accepts data for a further segment. It is the
    /// sum of the bytes missing from the reserve (the free bytes that the log's options require) and the bytes of
    /// prepared segments still to be created. 0 if the log accepts data already.
    pub(crate) fn short_bytes(&self) -> u64 {
        let missing = 2_u64.saturating_sub(self.ready_count() as u64);
        let wanted = self.reserve_bytes().saturating_add(missing * u64::from(self.segment_bytes));
        let short = wanted.saturating_sub(self.check_free_space().0);
        let is_full = self.state_is_full.load(Ordering::Relaxed);
        if is_full { short.max(self.segment_bytes.into()) } else { short }
    }

    pub(crate) fn stop(&self) {
        let mut state = self.state();
        state.stop = true;
        self.work.notify_all();
        self.wake_waiting(state);
    }
}
