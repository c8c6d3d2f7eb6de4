//! Prepared segments and the preparer thread, so that the write path never creates, renames or extends files.
//!
//! Owns: the file numbers (slots) and generations in use; creating, zero-filling, recycling and removing
//! segment files. Does not own: live segments. A freed segment's file returns to this module when its last
//! reader drops it.
//!
//! Order of a creation, and the state that a crash leaves: `.tmp` created and zero-filled (a `.tmp`, deleted
//! at open), header written twice, file synced (still a `.tmp`), renamed, directory synced (a spare, whose name an open
//! makes durable), handed over.
//! Order of a recycling: both headers overwritten with a new id and generation, file synced, handed over. A
//! crash in between leaves the old live segment or a spare, because of two headers the higher generation is
//! valid.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Waker,
    time::{Duration, Instant},
};

use thalweg_disk::{Disk, File, Mapping, PacedJob, PacedWork, Pacer};
use thalweg_types::{Clock, Generation, Lsn};

use crate::{
    append_progress::{AppendProgress, TakeTimes},
    errors::{DiskFault, Explain},
    format::{HEADER_BLOCK_BYTES, SegmentHeader, SegmentId, SegmentState, segment_name},
    options::LogOptions,
    record::Purpose,
};

/// Number of bytes of zeroes in one write. Larger writes create large folios in the page cache, which halve
/// the speed of small writes later.
const ZERO_PIECE_BYTES: usize = 64 * 1024;
/// Number of bytes of zeroes written to a new segment file in one step and then synced. A sync of the writer
/// may have to wait for one step; with steps of 8 MiB it would wait 4 ms.
const PACE_STEP_BYTES: u64 = 1024 * 1024;
/// Minimum duration of one step of zero-filling (`PACE_STEP_BYTES`) while no writer waits for a segment. It
/// limits the speed to 256 MiB/s.
const PACE_STEP: Duration = Duration::from_millis(4);
/// Minimum duration of one step of zero-filling while the writer uses up segments slowly. It limits the speed
/// to 64 MiB/s, so that only one in twenty syncs of the writer has to wait for a step.
const EASY_PACE_STEP: Duration = Duration::from_millis(16);
/// Minimum number of recycled segments kept in addition to `spare_segments` while the disk has room. Keeping
/// them saves writing zeroes into new files.
const EXTRA_SPARES: usize = 2;
/// Maximum number of recycled segments kept because the writer used as many recently. `MAX_RECENT_BYTES`
/// bounds their total bytes.
const MAX_RECENT: u64 = 64;
const MAX_RECENT_BYTES: u64 = 2 << 30;
/// Interval between checks of the disk's free space while more than `spare_segments + EXTRA_SPARES` segments
/// are kept.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// An open segment file, with its path and slot.
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
    /// Ready segments, ordered by generation.
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
    /// True while the log rests, and needs no prepared segments.
    at_rest: bool,
    /// Monotonic time at which the last rest ended.
    rest_ended: Option<Duration>,
    /// True from the end of a rest until all segments are prepared again.
    is_refilling: bool,
    generation: u64,
    slots: BTreeSet<u32>,
    take_times: TakeTimes,
}

impl State {
    /// Records that a writer needs segments: an attempt to prepare one is due, and the rest of the log ends.
    fn need_segments(&mut self, now: Duration) {
        self.retry = true;
        self.end_rest(now);
    }

    /// Ends the rest of the log: an attempt to prepare a segment is due. Returns false if the log did not rest.
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

    /// Minimum duration of one step of zero-filling, chosen so that preparing a segment takes half the time
    /// in which the writer fills one. The result is between `PACE_STEP` and `EASY_PACE_STEP`. After a rest it is
    /// `PACE_STEP`: the writer may need a segment soon, and the time of its earlier ones says nothing.
    fn pace_step(&self, segment_bytes: u32) -> Duration {
        if self.is_refilling {
            return PACE_STEP;
        }
        let steps = (u64::from(segment_bytes) / PACE_STEP_BYTES).max(1) as u32;
        (self.take_times.last_interval() / 2 / steps).clamp(PACE_STEP, EASY_PACE_STEP)
    }
}

/// Counters of the thread that prepares segments, and of the appends that waited for it.
#[derive(Debug, Default)]
pub(crate) struct PrepareCounters {
    pub created: AtomicU64,
    pub recycled: AtomicU64,
    pub zeroed_bytes: AtomicU64,
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
    /// Reserve of the options, in bytes.
    min_reserve_bytes: u64,
    /// Needs of the log's user; see [`StateSpace`].
    state_bytes: AtomicU64,
    reusable_bytes: AtomicU64,
    state_is_full: AtomicBool,
    seed: u64,
    state: Mutex<State>,
    /// Notified when a segment is ready, or an attempt to prepare one failed. Tasks wait with a waker instead.
    ready: Condvar,
    /// Notified when there may be work for the preparer thread.
    work: Condvar,
    /// True if the last check of the disk found less free space than the reserve.
    low: AtomicBool,
    /// True while no segment is ready for data.
    is_short: AtomicBool,
    pub counters: PrepareCounters,
    pub progress: AppendProgress,
    /// Scheduler of all background work on the disk.
    pub pacer: Arc<Pacer>,
}

/// Disk space of the state that the log's user keeps beside the log, on the same disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateSpace {
    /// Bytes that persisting the state takes. The log keeps them free, if they are more than the reserve of its
    /// options.
    pub needed_bytes: u64,
    /// Bytes within the state's files that the state can use again. They count as free.
    pub reusable_bytes: u64,
    /// True if the state could not be persisted because the disk was full. The log then rejects data.
    pub is_full: bool,
}

/// Reason why a writer that waited got no segment.
#[derive(Debug)]
pub(crate) enum PrepareError {
    Failed(DiskFault),
    TimedOut,
    Stopped,
}

enum Job {
    Recycle(Slot),
    Create,
    Remove(Slot),
    Stop,
}

impl SegmentPool {
    /// Creates the set of prepared segments. `generation` is the highest one ever seen in the directory;
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

    /// Notes whether a segment is ready for data, after the ready segments have changed.
    fn note_ready(&self, state: &State) {
        self.is_short.store(state.ready.len() < Self::needed(Purpose::Data), Ordering::Relaxed);
    }

    /// Returns true while no segment is ready for data. Takes no lock.
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

    /// Removes all prepared segments until the rest ends. See the module `rest`. Returns false, and changes nothing,
    /// while a thread or a task waits for a segment: the segment being prepared for it would be removed before it is
    /// taken.
    pub(crate) fn rest(&self) -> bool {
        let mut state = self.state();
        // A future that was dropped leaves its waker behind, which awaits nothing once segments are ready.
        if state.waiting > 0 || state.is_awaited() && state.ready.len() < Self::needed(Purpose::Data) {
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

    /// Ends the rest: segments are prepared again. Returns false if the log did not rest.
    pub(crate) fn end_rest(&self) -> bool {
        let rested = self.state().end_rest(self.clock.monotonic());
        if rested {
            self.work.notify_one();
        }
        rested
    }

    /// Returns the monotonic time at which the last rest ended; `None` before that.
    pub(crate) fn rest_ended(&self) -> Option<Duration> {
        self.state().rest_ended
    }

    pub(crate) fn ready_count(&self) -> usize {
        self.state().ready.len()
    }

    /// Returns true if the last check of the disk found less free space than the reserve.
    #[inline]
    pub(crate) fn is_low(&self) -> bool {
        self.low.load(Ordering::Relaxed)
    }

    /// Checks the disk: returns its free bytes, and true if they are below the reserve. A disk that cannot
    /// report its free bytes counts as full.
    pub(crate) fn check_free_space(&self) -> (u64, bool) {
        let free = self.disk.free_bytes().unwrap_or(0);
        let low = free < self.reserve_bytes() || self.state_is_full.load(Ordering::Relaxed);
        self.low.store(low, Ordering::Relaxed);
        (free, low)
    }

    /// Number of free bytes below which data is rejected.
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

    /// Number of bytes that must become free on the disk before the log accepts data for a further segment.
    /// It is the sum of the bytes missing from the reserve and the bytes of prepared segments still to be
    /// created. 0 if the log accepts data already.
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

    /// Body of the thread that prepares segments.
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

    /// Performs all jobs that are due now, without waiting and at full speed. Returns true if there were any.
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

    /// Number of ready segments to keep; the preparer thread removes further ones.
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
    fn max_extra(&self) -> usize {
        EXTRA_SPARES.max((MAX_RECENT_BYTES / u64::from(self.segment_bytes)).min(MAX_RECENT) as usize)
    }

    /// Creates a segment on the caller's thread. Used by open.
    pub(crate) fn create_now(&self) -> Result<Prepared, DiskFault> {
        self.claim_and_build(PrepareSpeed::Urgent)?
            .ok_or_else(|| DiskFault::new("prepare", &self.dir, &std::io::Error::other("the log is closing")))
    }

    /// Creates all prepared segments of a new log on the caller's thread, so that the log's first writes
    /// don't share the disk with the writing of zeroes. Ignores failures; the preparer thread tries again and
    /// reports them.
    pub(crate) fn fill(&self) {
        while self.ready_count() < self.target {
            let free = self.check_free_space().0;
            if free < self.reserve_bytes().saturating_add(self.segment_bytes.into()) {
                return;
            }
            let Ok(prepared) = self.create_now() else { return };
            let mut state = self.state();
            state.ready.push_back(prepared);
            self.note_ready(&state);
        }
    }

    fn create(&self, pace: PrepareSpeed) -> Result<Option<Prepared>, DiskFault> {
        let (free, _) = self.check_free_space();
        // Only the last spare, for deletes and trims, may use the reserve.
        let untouched = if self.ready_count() == 0 { 0 } else { self.reserve_bytes() };
        if free < untouched.saturating_add(self.segment_bytes.into()) {
            let error = std::io::Error::new(std::io::ErrorKind::StorageFull, "free space is below the reserve");
            return Err(DiskFault::new("prepare a segment in", &self.dir, &error));
        }
        self.claim_and_build(pace)
    }

    fn claim_and_build(&self, pace: PrepareSpeed) -> Result<Option<Prepared>, DiskFault> {
        let slot = self.claim();
        let built = self.build(slot, pace);
        let mut state = self.state();
        match &built {
            Ok(Some(_)) => state.retry = true,
            Ok(None) | Err(_) => {
                state.slots.remove(&slot);
                drop(state);
                // The error being returned matters more; the next open deletes a leftover file.
                let _ = self.disk.remove(&self.tmp_path(slot));
            }
        }
        built
    }

    fn claim(&self) -> u32 {
        let mut state = self.state();
        let slot = (1..).find(|slot| !state.slots.contains(slot)).expect("fewer than 2^32 segments");
        state.slots.insert(slot);
        slot
    }

    fn next_generation(state: &mut State) -> Generation {
        state.generation += 1;
        Generation(state.generation)
    }

    fn tmp_path(&self, slot: u32) -> String {
        format!("{}/{slot:08}.tmp", self.dir)
    }

    fn build(&self, number: u32, pace: PrepareSpeed) -> Result<Option<Prepared>, DiskFault> {
        let tmp = self.tmp_path(number);
        let path = format!("{}/{}", self.dir, segment_name(number));
        let file = self.disk.create(&tmp).explain("create", &tmp)?;
        if !self.zero_fill(&*file, &tmp, pace)? {
            return Ok(None);
        }
        let slot = Slot { file, path, slot: number, segment_bytes: self.segment_bytes };
        // The generation is taken only now, because segments recycled in the meantime are ready before this
        // one.
        let generation = Self::next_generation(&mut self.state());
        let id = SegmentId::draw(self.seed, generation);
        write_spare_header(&slot, id, generation).explain("write", &tmp)?;
        slot.file.sync_all().explain("sync", &tmp)?;
        self.disk.rename(&tmp, &slot.path).explain("rename", &tmp)?;
        self.disk.sync_dir(&self.dir).explain("sync", &self.dir)?;
        let mapping = slot.file.map(self.segment_bytes.into()).explain("map", &slot.path)?;
        self.counters.created.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Prepared { slot, id, generation, mapping }))
    }

    /// Writes zeroes into a segment file up to its size. Returns false if the thread must stop.
    fn zero_fill(&self, file: &dyn File, path: &str, pace: PrepareSpeed) -> Result<bool, DiskFault> {
        let zeroes = [0; ZERO_PIECE_BYTES];
        let total = u64::from(self.segment_bytes);
        let mut at = 0;
        let mut step_began = Instant::now();
        while at < total {
            let piece = (total - at).min(ZERO_PIECE_BYTES as u64);
            file.write_all_at(&zeroes[..piece as usize], at).explain("write", path)?;
            at += piece;
            self.counters.zeroed_bytes.fetch_add(piece, Ordering::Relaxed);
            if pace == PrepareSpeed::Bounded && at.is_multiple_of(PACE_STEP_BYTES) {
                let permit = self.pacer.begin(self.fill_job(total - at));
                file.write_out(at - PACE_STEP_BYTES, PACE_STEP_BYTES).explain("write out", path)?;
                if !self.pause(permit.finish(PACE_STEP_BYTES, |_| self.usual_pause(step_began))) {
                    return Ok(false);
                }
                self.recycle_freed();
                step_began = Instant::now();
            }
        }
        Ok(true)
    }

    /// Describes the zero-filling of a segment with `left_bytes` bytes to write. It is due when the writer has filled
    /// all segments that it may take.
    fn fill_job(&self, left_bytes: u64) -> PacedJob {
        let for_data = self.ready_count().saturating_sub(Self::needed(Purpose::Data) - 1);
        let ready_bytes = for_data as u64 * u64::from(self.segment_bytes);
        let deadline = self.progress.time_to_fill(self.pacer.now(), ready_bytes);
        PacedJob { work: PacedWork::Segment, left_bytes, deadline }
    }

    /// Time until a step of zero-filling that began at `began` has taken its minimum duration.
    fn usual_pause(&self, began: Instant) -> Duration {
        let step = self.state().pace_step(self.segment_bytes);
        (began + step).saturating_duration_since(Instant::now())
    }

    /// Waits for `pause` after a step of zero-filling, unless a writer waits for a segment. Returns false if the thread
    /// must stop.
    fn pause(&self, pause: Duration) -> bool {
        let began = Instant::now();
        let mut state = self.state();
        loop {
            let left = (began + pause).saturating_duration_since(Instant::now());
            if state.stop || state.is_awaited() || left.is_zero() {
                break;
            }
            state = self.work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        self.pacer.count_rest(PacedWork::Segment, pause.min(began.elapsed()));
        !state.stop
    }

    /// Recycles freed segments while a new segment file is being filled with zeroes, so that a waiting writer
    /// need not wait for the zeroes.
    fn recycle_freed(&self) {
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

    /// Gives a freed segment file a new id and generation, which makes all batches in it invalid.
    pub(crate) fn recycle(&self, slot: Slot) -> Result<Prepared, DiskFault> {
        let generation = Self::next_generation(&mut self.state());
        let id = SegmentId::draw(self.seed, generation);
        write_spare_header(&slot, id, generation).explain("write", &slot.path)?;
        slot.file.sync_data().explain("sync", &slot.path)?;
        let mapping = slot.file.map(slot.segment_bytes.into()).explain("map", &slot.path)?;
        self.counters.recycled.fetch_add(1, Ordering::Relaxed);
        Ok(Prepared { slot, id, generation, mapping })
    }

    fn remove(&self, slot: &Slot) -> Result<(), DiskFault> {
        self.disk.remove(&slot.path).explain("remove", &slot.path)?;
        self.disk.sync_dir(&self.dir).explain("sync", &self.dir)?;
        self.state().slots.remove(&slot.slot);
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrepareSpeed {
    /// Zeroes are written at the full speed of the disk.
    Urgent,
    /// Zeroes are written at a limited speed, which leaves the disk to the writer, unless a writer waits for
    /// a segment.
    Bounded,
}

/// Overwrites both headers of a segment file with those of a prepared segment, without syncing.
pub(crate) fn write_spare_header(slot: &Slot, id: SegmentId, generation: Generation) -> std::io::Result<()> {
    let header = SegmentHeader {
        state: SegmentState::Spare,
        id,
        generation,
        base: Lsn::ZERO,
        base_chain: 0,
        segment_bytes: slot.segment_bytes,
        slot: slot.slot,
        previous: Generation::ZERO,
    };
    let block = header.encode_block();
    slot.file.write_all_at(&block, 0)?;
    slot.file.write_all_at(&block, HEADER_BLOCK_BYTES.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_are_written_slowly_for_a_slow_writer_but_not_after_a_rest() {
        let hour = Duration::from_secs(3600);
        let mut state = State::default();
        for takes in 0..2 {
            state.take_times.add(hour * takes, 8);
        }
        assert_eq!(state.pace_step(64 << 20), EASY_PACE_STEP);
        assert!(!state.end_rest(hour), "it did not rest");
        assert_eq!(state.pace_step(64 << 20), EASY_PACE_STEP);
        state.at_rest = true;
        assert!(state.end_rest(hour));
        assert_eq!((state.pace_step(64 << 20), state.rest_ended), (PACE_STEP, Some(hour)));
    }
}
