//! State that the memtables in front of a store share with background threads.
//!
//! Owns: [`Shared`], with the newest version (memtables and a view of the store), the functions in which writers and
//! callers wait, and the steps by which persisted data and a new view of the store become visible. Does not own: the
//! loops of the threads, or the active memtable's writer.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;

use super::{
    options::BufferOptions,
    pauses::Pauses,
    store::{Demand, Store},
    version::{BufferedView, Sealed, Version},
};
use crate::{
    backend::{Applied, BackendError, BackendHealth, Change, LogBarrier},
    memtable::{ArenaPool, BatchNumber, Memtable},
};

/// Name and main function of a background thread of the store. The function returns when the thread must stop.
pub(crate) type ThreadMain<S> = (&'static str, fn(&Shared<S>) -> Result<(), BackendError>);

/// Runs `work`, the main function of a background thread. If it panics, returns an error.
pub(super) fn run_caught<S: Store>(
    shared: &Shared<S>,
    work: fn(&Shared<S>) -> Result<(), BackendError>,
) -> Result<(), BackendError> {
    let panicked = |_| Err(BackendError::Failed("background work panicked".to_owned()));
    let work = std::panic::AssertUnwindSafe(|| work(shared));
    std::panic::catch_unwind(work).unwrap_or_else(panicked)
}

/// State that readers, the writer and the background threads of a backend share.
pub struct Shared<S: Store> {
    pub(super) options: BufferOptions,
    pub store: S,
    pub(super) pool: Arc<ArenaPool>,
    barrier: Arc<dyn LogBarrier>,
    state: Mutex<State<S>>,
    /// Condition variable signalled when a memtable was sealed, or when the background threads must stop.
    work: Condvar,
    /// Condition variable signalled when the store or its pending background work has changed, or when the threads must
    /// stop.
    upkeep: Condvar,
    /// Condition variable signalled when the store or its pending background work has changed, or when a background
    /// thread has ended.
    progress: Condvar,
    pub(super) counters: Counters,
    pub(super) pauses: Pauses,
    /// Main functions of the background work that callers run if the backend has no threads (stepped mode); empty if it
    /// has threads.
    steps: Vec<ThreadMain<S>>,
}

/// State of a backend whose fields change together, under one lock.
pub struct State<S: Store> {
    pub(super) version: Arc<Version<S::View>>,
    /// The cell from which readers of single keys take the newest version; `None` if another store has replaced this
    /// one.
    pub(super) front: Option<Arc<ArcSwap<Version<S::View>>>>,
    /// Number of the newest batch in the active memtable that `applied` includes.
    pub(super) upto: BatchNumber,
    pub(super) applied: Option<Applied>,
    pub(super) persisted: Option<Applied>,
    /// Number of memtables sealed since the backend was opened; `persisted_count` of them were persisted.
    pub(super) sealed_count: u64,
    pub(super) persisted_count: u64,
    /// Number of callers that wait until sealed memtables are persisted.
    waiting: usize,
    /// Pending work of the store's own background threads.
    pub upkeep: S::Upkeep,
    pub(super) failure: Option<BackendError>,
    /// Errors of background work that found the disk full.
    pub(super) full: FullDisk,
    stop: bool,
}

/// Errors and attempts of background work that found the disk full. Such work is repeated until the disk has room.
#[derive(Default)]
pub(super) struct FullDisk {
    /// Error of the last attempt to persist a memtable; `None` if that attempt succeeded.
    flush: Option<BackendError>,
    /// Error of the last attempt of the store's background work; `None` if that attempt succeeded.
    upkeep: Option<BackendError>,
    /// Number of failed attempts to persist a memtable since the backend was opened. `upkeep_attempts` counts those of
    /// the store's own background work.
    flush_attempts: u64,
    upkeep_attempts: u64,
}

impl FullDisk {
    fn slot(&mut self, work: FullDiskTask) -> (&mut Option<BackendError>, &mut u64) {
        match work {
            FullDiskTask::Flush => (&mut self.flush, &mut self.flush_attempts),
            FullDiskTask::Upkeep => (&mut self.upkeep, &mut self.upkeep_attempts),
        }
    }
}

/// Background work that can find the disk full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FullDiskTask {
    /// A flush: a sealed memtable is persisted.
    Flush,
    /// The store's own background work, such as a compaction.
    Upkeep,
}

/// Pause before background work is retried after it has found the disk full.
const RETRY_AFTER: Duration = Duration::from_millis(250);
/// Interval at which a waiting caller checks the background work: its progress, and whether the disk is full.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct Counters {
    /// Number of changes that flushes have read from memtables, including those of the flush in progress.
    persisted_changes: AtomicU64,
    pub flushes: AtomicU64,
    pub flushed_bytes: AtomicU64,
    pub stalls: AtomicU64,
    pub stall_micros: AtomicU64,
}

impl<S: Store> State<S> {
    /// Returns true if no sealed memtable waits to be persisted, and no failure or stop prevents the threads from
    /// working.
    pub fn is_idle(&self) -> bool {
        !self.stop && self.failure.is_none() && self.version.sealed.is_empty()
    }

    /// Returns a view of all batches applied so far.
    pub(super) fn view(&self) -> BufferedView<S::View> {
        let applied = self.applied.unwrap_or_default();
        BufferedView { version: Arc::clone(&self.version), upto: self.upto, applied }
    }
}

impl<S: Store> Shared<S> {
    /// Creates the shared state over a store, with an empty active memtable.
    pub(super) fn new(
        store: S,
        options: BufferOptions,
        barrier: Arc<dyn LogBarrier>,
        pool: Arc<ArenaPool>,
        active: Arc<Memtable>,
        steps: Vec<ThreadMain<S>>,
    ) -> Result<Self, BackendError> {
        let applied = store.applied()?;
        let mut upkeep = S::Upkeep::default();
        let stored = store.publish(&store.view()?, &mut upkeep);
        let version = Arc::new(Version { active, sealed: Vec::new(), stored });
        let state = State {
            version,
            front: None,
            upto: BatchNumber::default(),
            applied,
            persisted: applied,
            sealed_count: 0,
            persisted_count: 0,
            waiting: 0,
            upkeep,
            failure: None,
            full: FullDisk::default(),
            stop: false,
        };
        Ok(Self {
            options,
            store,
            pool,
            barrier,
            state: Mutex::new(state),
            work: Condvar::new(),
            upkeep: Condvar::new(),
            progress: Condvar::new(),
            counters: Counters::default(),
            pauses: Pauses::default(),
            steps,
        })
    }

    pub(super) fn is_stepped(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Does all pending background work on the caller's thread, if the backend has no threads for it (stepped mode).
    /// Leaves out work that waits for free disk space. Returns true if anything was persisted or compacted.
    pub(super) fn work_off(&self) -> bool {
        if !self.is_stepped() {
            return false;
        }
        let version = Arc::clone(&self.lock().version);
        for (_, work) in &self.steps {
            if let Err(failure) = run_caught(self, *work) {
                self.lock().failure.get_or_insert(failure);
            }
        }
        !Arc::ptr_eq(&self.lock().version, &version)
    }

    pub fn lock(&self) -> MutexGuard<'_, State<S>> {
        lock(&self.state)
    }

    /// Makes a version the newest one. Returns the previous version, which the caller drops only after it releases the
    /// lock, because the drop can free memory, delete files or return connections.
    #[must_use]
    fn publish(&self, state: &mut State<S>, version: Version<S::View>) -> Arc<Version<S::View>> {
        let retired = std::mem::replace(&mut state.version, Arc::new(version));
        self.report_demand(state);
        if let Some(front) = &state.front {
            front.store(Arc::clone(&state.version));
        }
        retired
    }

    /// Replaces the active memtable with an empty one. If `applied` is given, the old memtable is sealed with this
    /// position, and a thread persists it; if `applied` is `None`, the old memtable is empty and is dropped.
    pub(super) fn replace_active(
        &self,
        mut state: MutexGuard<'_, State<S>>,
        active: Arc<Memtable>,
        applied: Option<Applied>,
    ) {
        let mut version = Version::clone(&state.version);
        let memtable = std::mem::replace(&mut version.active, active);
        if let Some(applied) = applied {
            version.sealed.insert(0, Sealed { memtable, applied });
            state.sealed_count += 1;
        }
        state.upto = BatchNumber::default();
        let retired = self.publish(&mut state, version);
        drop(state);
        drop(retired);
        self.work.notify_all();
    }

    /// Publishes a new version (memtables and a view of the store). The new version has the store's current view and
    /// the modifications that `change` makes.
    pub fn publish_after(&self, change: impl FnOnce(&mut State<S>, &mut Version<S::View>)) -> Result<(), BackendError> {
        // Writers that wait for room or are slowed down need the new version immediately; warm blocks help only
        // readers. By now, the blocks may have left the kernel's memory, so that loading each one costs a read from the
        // disk.
        self.store.warm(&|| {
            let state = self.lock();
            let delays_writers =
                state.version.sealed.len() >= self.options.max_sealed || self.store.slows_down(&state.version.stored);
            !state.stop && !delays_writers
        })?;
        let view = self.store.view()?;
        let mut state = self.lock();
        let stored = self.store.publish(&view, &mut state.upkeep);
        let mut version = Version { stored, ..Version::clone(&state.version) };
        change(&mut state, &mut version);
        let retired = self.publish(&mut state, version);
        self.changed();
        drop(state);
        drop((retired, view));
        Ok(())
    }

    /// Calls `change` to change the pending work of the store's background threads, and wakes these threads.
    pub fn change_upkeep<T>(&self, change: impl FnOnce(&mut S::Upkeep) -> T) -> T {
        let mut state = self.lock();
        let changed = change(&mut state.upkeep);
        self.report_demand(&state);
        self.changed();
        changed
    }

    fn report_demand(&self, state: &State<S>) {
        let is_awaited = state.stop || state.waiting > 0;
        let demand = Demand { is_awaited, sealed: state.version.sealed.len() };
        // `may_wait` turns true one memtable before the limit: a caller that sees false can still write a memtable's
        // worth of batches. In stepped mode no call waits for another thread.
        let may_be_stopped = demand.sealed + 1 >= self.options.max_sealed.max(2);
        let may_wait = may_be_stopped || self.store.slows_down(&state.version.stored);
        self.pauses.set_may_wait(may_wait && !self.is_stepped());
        self.store.report_demand(&state.version.stored, &state.upkeep, demand);
    }

    fn changed(&self) {
        self.upkeep.notify_all();
        self.progress.notify_all();
    }

    /// Blocks a background thread of the store until `due` returns work for the thread. Returns `None` when the thread
    /// must stop.
    pub fn wait_for_upkeep<T>(&self, due: impl FnMut(&mut State<S>) -> Option<T>) -> Option<T> {
        self.wait_for(&self.upkeep, due)
    }

    /// Waits until a sealed memtable exists, and returns the oldest one. Returns `None` when the calling thread must
    /// stop.
    pub(super) fn next_sealed(&self) -> Option<Sealed> {
        self.wait_for(&self.work, |state| state.version.sealed.last().cloned())
    }

    fn wait_for<T>(&self, signal: &Condvar, mut due: impl FnMut(&mut State<S>) -> Option<T>) -> Option<T> {
        let mut state = self.lock();
        loop {
            if state.stop || state.failure.is_some() {
                return None;
            }
            if let Some(work) = due(&mut state) {
                return Some(work);
            }
            if self.is_stepped() {
                return None;
            }
            state = signal.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Repeats `attempt`, with pauses in between, until its error is no longer a full disk. Returns `None` when the
    /// calling thread must stop.
    pub fn until_there_is_room<T>(
        &self,
        work: FullDiskTask,
        mut attempt: impl FnMut() -> Result<T, BackendError>,
    ) -> Result<Option<T>, BackendError> {
        loop {
            let failure = match attempt() {
                Err(failure) if failure.is_disk_full() => failure,
                done => {
                    self.lock().full.slot(work).0.take();
                    return done.map(Some);
                }
            };
            let mut state = self.lock();
            let (full, attempts) = state.full.slot(work);
            *full = Some(failure);
            *attempts += 1;
            self.progress.notify_all();
            if self.is_stepped() {
                return Ok(None);
            }
            let signal = if work == FullDiskTask::Flush { &self.work } else { &self.upkeep };
            let goes_on = |state: &mut State<S>| !state.stop && state.failure.is_none();
            let (state, _) =
                signal.wait_timeout_while(state, RETRY_AFTER, goes_on).unwrap_or_else(PoisonError::into_inner);
            if state.stop || state.failure.is_some() {
                return Ok(None);
            }
        }
    }

    /// Returns the backend's ability to persist batches.
    pub(super) fn health(&self) -> BackendHealth {
        let full_store = self.store.full_disk();
        let state = self.lock();
        let full = full_store.or_else(|| state.full.flush.clone()).or_else(|| state.full.upkeep.clone());
        match (&state.failure, full) {
            (Some(failure), _) => BackendHealth::Failed(failure.to_string()),
            (None, Some(full)) => BackendHealth::DiskFull(full.to_string()),
            (None, None) => BackendHealth::Good,
        }
    }

    /// Makes all background threads stop after their current work.
    pub(super) fn stop(&self) {
        let mut state = self.lock();
        state.stop = true;
        self.report_demand(&state);
        drop(state);
        self.store.stop();
        self.work.notify_all();
        self.changed();
    }

    /// Records that a background thread has ended. If it failed, the other threads stop and the error is stored, unless
    /// an earlier error is stored already.
    pub(super) fn ended(&self, outcome: Result<(), BackendError>) {
        if let Err(failure) = outcome {
            self.lock().failure.get_or_insert(failure);
        }
        self.work.notify_all();
        self.changed();
    }

    /// Makes the log durable up to `applied`, then persists the changes of a memtable or batch in one durable
    /// transaction of the store.
    pub(super) fn persist<'a>(
        &self,
        changes: impl Iterator<Item = Change<'a>>,
        applied: Applied,
    ) -> Result<(), BackendError> {
        // The changes were taken before the log is synced, so the log contains all of them.
        self.barrier.sync_through(applied.lsn)?;
        let changes = changes.inspect(|_| _ = self.counters.persisted_changes.fetch_add(1, Ordering::Relaxed));
        let bytes = self.store.persist(changes, applied)?;
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        self.counters.flushed_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Runs the store's maintenance after a transaction, once the newest view includes this transaction. Publishes a
    /// new view if that lets the store drop old data.
    pub(super) fn maintain(&self) -> Result<(), BackendError> {
        if self.store.maintain()? {
            self.publish_after(|_, _| {})?;
        }
        self.store.release()
    }

    /// Waits until another memtable may be sealed: until the number of sealed memtables and the store's pending work
    /// are within their limits.
    ///
    /// While the disk is full, the number of sealed memtables is not limited: a wait would never end, and deletes must
    /// continue. Instead, the log limits the memory. While the state reports a full disk, the log accepts no new data,
    /// and accepts deletes only until its segments are full.
    pub(super) fn wait_for_room(&self) -> Result<MutexGuard<'_, State<S>>, BackendError> {
        let is_full = |state: &mut State<S>| {
            let sealed = state.version.sealed.len() >= self.options.max_sealed;
            state.failure.is_none()
                && ((sealed && state.full.flush.is_none() && self.store.full_disk().is_none())
                    || (state.full.upkeep.is_none() && self.store.is_behind(&state.version.stored)))
        };
        let mut state = self.lock();
        if self.is_stepped() && is_full(&mut state) {
            drop(state);
            self.work_off();
            state = self.lock();
        }
        if is_full(&mut state) {
            state = self.count_stall(|| self.wait_while_work_goes_on(state, is_full));
        }
        self.unless_failed(state)
    }

    /// Waits while `is_full` returns true. If the background work makes no progress for `max_stall`, records a failure,
    /// which ends the wait. Slow progress, as on a slow disk, is not a failure, however long the wait is.
    fn wait_while_work_goes_on<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<S>>,
        mut is_full: impl FnMut(&mut State<S>) -> bool,
    ) -> MutexGuard<'a, State<S>> {
        let max_stall = self.options.max_stall;
        let work = || self.counters.persisted_changes.load(Ordering::Relaxed) + self.store.written_bytes();
        let mut watch = WorkWatch { seen: work(), since: Instant::now() };
        while is_full(&mut state) {
            let waited = self.progress.wait_timeout_while(state, LOOK_EVERY.min(max_stall), &mut is_full);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if watch.time_without_work(work(), Instant::now()) >= max_stall && is_full(&mut state) {
                let message = format!("the store did not catch up, and wrote nothing for {max_stall:?}");
                state.failure = Some(BackendError::Failed(message));
            }
        }
        state
    }

    /// Locks the state so that another memtable can be sealed, without waiting for room. If a background thread has
    /// failed and the maximum number of sealed memtables is reached, returns an error.
    pub(super) fn lock_unless_failed(&self) -> Result<MutexGuard<'_, State<S>>, BackendError> {
        self.unless_failed(self.lock())
    }

    /// Returns the locked state if another memtable may be sealed. After a failure no memtable is persisted any more,
    /// so sealing is permitted only up to the maximum number of sealed memtables.
    fn unless_failed<'a>(&self, state: MutexGuard<'a, State<S>>) -> Result<MutexGuard<'a, State<S>>, BackendError> {
        match &state.failure {
            Some(failure) if state.version.sealed.len() >= self.options.max_sealed => {
                Err(BackendError::Failed(failure.to_string()))
            }
            _ => Ok(state),
        }
    }

    /// Waits until all memtables that are sealed now are persisted.
    pub(super) fn wait_until_persisted(&self) -> Result<Option<Applied>, BackendError> {
        let mut state = self.lock();
        let target = state.sealed_count;
        // An attempt that is already running may have begun before there was room, so its failure does not count.
        let attempts = state.full.flush_attempts + 2;
        state.waiting += 1;
        self.report_demand(&state);
        let is_pending = |state: &mut State<S>| {
            state.persisted_count < target && state.failure.is_none() && state.full.flush_attempts < attempts
        };
        let mut full = None;
        while self.is_stepped() && is_pending(&mut state) {
            drop(state);
            self.work_off();
            state = self.lock();
        }
        while is_pending(&mut state) && full.is_none() {
            let waited = self.progress.wait_timeout_while(state, LOOK_EVERY, is_pending);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            full = self.store.full_disk();
        }
        state.waiting -= 1;
        self.report_demand(&state);
        if state.persisted_count < target
            && let Some(failure) = state.failure.clone().or(full).or_else(|| state.full.flush.clone())
        {
            return Err(failure);
        }
        state.failure.clone().map_or(Ok(state.persisted), Err)
    }

    /// Requests a compaction, which removes overwritten and deleted data from the store, and waits until it is
    /// finished.
    pub(super) fn compact(&self) -> Result<(), BackendError> {
        let Some(request) = self.change_upkeep(S::request_compaction) else { return Ok(()) };
        let state = self.lock();
        let attempts = state.full.upkeep_attempts + 2;
        let is_pending =
            |state: &State<S>| !S::has_compacted(&state.upkeep, request) && state.full.upkeep_attempts < attempts;
        let mut state = state;
        while self.is_stepped() && is_pending(&state) && state.failure.is_none() {
            drop(state);
            self.work_off();
            state = self.lock();
        }
        let state = self.wait_while(state, is_pending);
        match (&state.failure, &state.full.upkeep) {
            (Some(failure), _) => Err(failure.clone()),
            (None, Some(full)) if !S::has_compacted(&state.upkeep, request) => Err(full.clone()),
            (None, _) => Ok(()),
        }
    }

    /// Waits until `is_pending` returns false or a background thread has failed.
    fn wait_while<'a>(
        &self,
        state: MutexGuard<'a, State<S>>,
        is_pending: impl Fn(&State<S>) -> bool,
    ) -> MutexGuard<'a, State<S>> {
        let waited = self.progress.wait_while(state, |state| is_pending(state) && state.failure.is_none());
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `wait` and counts its duration as a write stall in the statistics.
    pub(super) fn count_stall<T>(&self, wait: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let waited = wait();
        self.counters.stalls.fetch_add(1, Ordering::Relaxed);
        self.counters.stall_micros.fetch_add(start.elapsed().as_micros() as u64, Ordering::Relaxed);
        waited
    }
}

/// Measures for how long background work has made no progress.
struct WorkWatch {
    /// Amount of background work that was finished when progress was last observed.
    seen: u64,
    since: Instant,
}

impl WorkWatch {
    /// Returns the time since progress was last observed. `work` is the amount of work finished until now.
    fn time_without_work(&mut self, work: u64, now: Instant) -> Duration {
        if work != self.seen {
            (self.seen, self.since) = (work, now);
        }
        now.saturating_duration_since(self.since)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_goes_on_slowly_does_not_stand_still() {
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        let mut watch = WorkWatch { seen: 7, since: begun };
        let waits: Vec<_> = [7, 7, 8, 8, 8, 9, 9]
            .into_iter()
            .zip(1..)
            .map(|(work, seconds)| watch.time_without_work(work, begun + second * seconds))
            .collect();
        assert_eq!(waits, [1, 2, 0, 1, 2, 0, 1].map(|seconds| second * seconds));
    }
}
