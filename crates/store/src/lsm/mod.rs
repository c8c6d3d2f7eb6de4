//! A backend that stores the state in an LSM tree: memtables over sorted tables on disk.
//!
//! Owns: [`LsmBackend`], which applies batches, seals full memtables, stalls writes when flushes or compactions
//! fall behind, and creates views. `worker` flushes and compacts in the background.
//! Does not own: the log. A flush writes nothing before the log is durable up to the memtable's position. Changes
//! that were not flushed are lost with the process, and replayed from the log.
//!
//! ```text
//! apply -> active memtable -> sealed memtables -> level 0 -> level 1 ..   (tables on disk)
//!                          seal             flush       compact
//! ```
//! Invariants: memtables are sealed only between batches, with the `Applied` of their last batch, and flushed in
//! order. So the tables contain exactly the batches applied up to `persisted`.
//! `persisted <= oldest sealed <= .. <= applied`. Readers pin a `Version` and hold locks only briefly.

mod options;
mod tables;
mod version;
mod worker;

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use bytes::Bytes;

use crate::{
    backend::{Applied, Backend, BackendError, BackendStats, LogBarrier, View, WriteBatch},
    memtable::{ArenaPool, BatchNumber, Memtable, MemtableWriter},
};
pub use options::{Compaction, LsmOptions};
use tables::{Backlog, TableOptions, TableStore};
use version::{LsmView, Sealed, Version};

/// Runs on level 0 from which writes are slowed down, because compaction is behind.
const SLOW_LEVEL_0_RUNS: usize = 12;
/// Runs on level 0 at which writes wait for compaction.
const STOP_LEVEL_0_RUNS: usize = 24;
/// Maximum bytes per second of slowed-down writes.
const SLOW_BYTES_PER_SECOND: u64 = 16 << 20;
/// Minimum pause of a slowed-down write; shorter pauses accumulate.
const MIN_PAUSE: Duration = Duration::from_millis(1);

/// Number of arenas kept for the next memtable: writes and flushes alternate between two arenas.
const SPARE_ARENAS: usize = 1;

/// A backend of memtables over sorted tables; see the [module](self).
pub struct LsmBackend {
    shared: Arc<Shared>,
    /// Locked by the thread that applies or seals.
    writer: Mutex<Writer>,
    threads: Vec<JoinHandle<()>>,
}

struct Writer {
    memtable: MemtableWriter,
    /// Accumulated pause that slowed-down writes have not made yet.
    owed: Duration,
}

/// State shared by readers, the writer and the background threads.
struct Shared {
    options: LsmOptions,
    store: TableStore,
    pool: Arc<ArenaPool>,
    barrier: Arc<dyn LogBarrier>,
    /// The newest version, for point reads. Changed only while `state` is locked.
    version: ArcSwap<Version>,
    state: Mutex<State>,
    /// Signalled when a memtable was sealed, when tables were flushed, or when the threads must stop.
    work: Condvar,
    /// Signalled when a flush or compaction has finished or failed.
    progress: Condvar,
    counters: Counters,
}

/// State that changes together, under one lock.
struct State {
    version: Arc<Version>,
    /// Number of the last batch of the active memtable that `applied` covers.
    upto: BatchNumber,
    applied: Option<Applied>,
    persisted: Option<Applied>,
    /// Numbers of memtables sealed and flushed since open.
    sealed_count: u64,
    flushed_count: u64,
    /// Number of callers that wait for flushes.
    waiting: usize,
    /// True if level 0 may have something to compact.
    may_compact: bool,
    is_compacting: bool,
    /// Numbers of full compactions that callers requested, and that have finished.
    asked: u64,
    answered: u64,
    /// True if there may be tables whose blocks should be read ahead.
    may_warm: bool,
    failure: Option<BackendError>,
    stop: bool,
}

#[derive(Default)]
struct Counters {
    flushes: AtomicU64,
    flushed_bytes: AtomicU64,
    compactions: AtomicU64,
    compacted_bytes: AtomicU64,
    stalls: AtomicU64,
    stall_micros: AtomicU64,
}

impl std::fmt::Debug for LsmBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LsmBackend").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl LsmBackend {
    /// Opens the tables in `options.dir` and starts the background threads.
    pub fn open(options: LsmOptions, barrier: Arc<dyn LogBarrier>) -> Result<Self, BackendError> {
        let table_options = TableOptions { cache_bytes: options.cache_bytes, table_bytes: options.table_bytes };
        let store = TableStore::open(&options.dir, table_options)?;
        let applied = store.applied()?;
        let pool = Arc::new(ArenaPool::new(options.memtable_bytes, SPARE_ARENAS));
        let (active, memtable) = Memtable::create_in(&pool, options.memtable_bytes);
        let version = Arc::new(Version { active, sealed: Vec::new(), tables: store.newest() });
        let state = State {
            version: Arc::clone(&version),
            upto: BatchNumber::default(),
            applied,
            persisted: applied,
            sealed_count: 0,
            flushed_count: 0,
            waiting: 0,
            may_warm: false,
            may_compact: options.compaction == Compaction::Automatic,
            is_compacting: false,
            asked: 0,
            answered: 0,
            failure: None,
            stop: false,
        };
        let shared = Arc::new(Shared {
            options,
            store,
            pool,
            barrier,
            version: ArcSwap::new(version),
            state: Mutex::new(state),
            work: Condvar::new(),
            progress: Condvar::new(),
            counters: Counters::default(),
        });
        let threads = worker::start(&shared)?;
        Ok(Self { shared, writer: Mutex::new(Writer { memtable, owed: Duration::ZERO }), threads })
    }

    /// Seals the active memtable and replaces it with an empty one that has room for `bytes`.
    fn seal(&self, writer: &mut Writer, bytes: usize) -> Result<(), BackendError> {
        let shared = &*self.shared;
        let mut state = shared.wait_for_room()?;
        let Some(applied) = state.applied else { return Ok(()) };
        let (active, memtable) = Memtable::create_in(&shared.pool, shared.options.memtable_bytes.max(bytes));
        let mut version = Version::clone(&state.version);
        let sealed = std::mem::replace(&mut version.active, active);
        version.sealed.insert(0, Sealed { memtable: sealed, applied });
        state.sealed_count += 1;
        state.upto = BatchNumber::default();
        let retired = shared.publish(&mut state, version);
        drop(state);
        drop(retired);
        writer.memtable = memtable;
        shared.work.notify_all();
        Ok(())
    }

    /// Replaces the active memtable, which is empty, with one that has room for `bytes`.
    fn enlarge(&self, writer: &mut Writer, bytes: usize) {
        let shared = &*self.shared;
        let (active, memtable) = Memtable::create_in(&shared.pool, bytes);
        let mut state = shared.lock();
        let version = Version { active, ..Version::clone(&state.version) };
        state.upto = BatchNumber::default();
        let retired = shared.publish(&mut state, version);
        drop(state);
        drop(retired);
        writer.memtable = memtable;
    }

    /// Pauses a write in proportion to its bytes, because compaction is behind.
    fn slow_down(&self, writer: &mut Writer, bytes: usize) {
        let nanos = bytes as u64 * 1_000_000_000 / SLOW_BYTES_PER_SECOND;
        writer.owed += Duration::from_nanos(nanos);
        if writer.owed >= MIN_PAUSE {
            let pause = std::mem::take(&mut writer.owed).min(self.shared.options.max_stall);
            self.shared.stalled(|| std::thread::sleep(pause));
        }
    }
}

impl Backend for LsmBackend {
    fn apply(&self, batch: &WriteBatch, applied: Applied) -> Result<(), BackendError> {
        batch.check()?;
        let bytes = Memtable::bytes_for(batch);
        if bytes > Memtable::MAX_BATCH_BYTES {
            return Err(BackendError::BadBatch("it takes more than 4 GiB of memory: split it"));
        }
        let mut writer = lock(&self.writer);
        if !batch.is_empty() {
            if !writer.memtable.has_room_for(batch) {
                if writer.memtable.memtable().is_empty() {
                    self.enlarge(&mut writer, bytes);
                } else {
                    self.seal(&mut writer, bytes)?;
                }
            }
            writer.memtable.apply(batch).map_err(|full| BackendError::Failed(full.to_string()))?;
        }
        let level_0_runs = {
            let mut state = self.shared.lock();
            state.upto = writer.memtable.memtable().visible();
            state.applied = Some(applied);
            self.shared.store.pace().wrote();
            state.version.tables.level_0_runs()
        };
        if level_0_runs >= SLOW_LEVEL_0_RUNS && self.shared.compacts_by_itself() {
            self.slow_down(&mut writer, batch.byte_len());
        }
        Ok(())
    }

    fn applied(&self) -> Option<Applied> {
        self.shared.lock().applied
    }

    fn persisted(&self) -> Option<Applied> {
        self.shared.lock().persisted
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        let version = self.shared.version.load();
        version.get(key, version.active.visible())
    }

    fn look(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<(), BackendError> {
        let version = self.shared.version.load();
        version.look(key, version.active.visible(), show)
    }

    fn warm(&self, keys: &[&[u8]]) {
        self.shared.version.load().active.warm(keys);
    }

    fn view(&self) -> Arc<dyn View> {
        let state = self.shared.lock();
        let version = Arc::clone(&state.version);
        Arc::new(LsmView { version, upto: state.upto, applied: state.applied.unwrap_or_default() })
    }

    fn flush(&self) -> Result<Option<Applied>, BackendError> {
        let mut writer = lock(&self.writer);
        let state = self.shared.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let newest_sealed = state.version.sealed.first().map(|sealed| sealed.applied);
        let is_covered = newest_sealed.or(state.persisted) == state.applied;
        drop(state);
        if !is_covered {
            self.seal(&mut writer, 0)?;
        }
        drop(writer);
        self.shared.wait_for_flushes()
    }

    fn compact(&self) -> Result<(), BackendError> {
        self.flush()?;
        let shared = &*self.shared;
        let mut state = shared.lock();
        state.asked += 1;
        shared.tell_backlog(&state);
        let asked = state.asked;
        shared.work.notify_all();
        while state.answered < asked && state.failure.is_none() {
            state = shared.progress.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.failure.clone().map_or(Ok(()), Err)
    }

    fn maintain(&self) -> Result<(), BackendError> {
        let gathered = {
            let state = self.shared.lock();
            let lsn = |applied: Option<Applied>| applied.map_or(0, |applied| applied.lsn.0);
            lsn(state.applied).saturating_sub(lsn(state.persisted))
        };
        if gathered > self.shared.options.max_unflushed_records {
            self.flush()?;
        }
        Ok(())
    }

    fn stats(&self) -> BackendStats {
        let version = self.shared.version.load_full();
        let memtables = || [&version.active].into_iter().chain(version.sealed.iter().map(|sealed| &sealed.memtable));
        let counters = &self.shared.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let is_compacting = {
            let state = self.shared.lock();
            state.is_compacting && state.failure.is_none()
        };
        BackendStats {
            memory_bytes: memtables().map(|memtable| memtable.memory_bytes() as u64).sum::<u64>()
                + self.shared.pool.spare_bytes() as u64,
            disk_bytes: version.tables.disk_bytes(),
            tables: version.tables.tables().count() as u64,
            tables_per_level: version.tables.tables_per_level().to_vec(),
            sealed_memtables: version.sealed.len() as u64,
            flushes: count(&counters.flushes),
            compactions: count(&counters.compactions),
            is_compacting,
            flushed_bytes: count(&counters.flushed_bytes),
            compacted_bytes: count(&counters.compacted_bytes),
            stalls: count(&counters.stalls),
            stall_micros: count(&counters.stall_micros),
            estimated_keys: memtables().map(|memtable| memtable.len() as u64).sum::<u64>()
                + version.tables.item_count(),
            cache_bytes: self.shared.store.cached_bytes(),
        }
    }

    fn name(&self) -> &'static str {
        "lsm"
    }
}

impl Drop for LsmBackend {
    /// Stops the threads after their current work. Flushes nothing; callers use [`Backend::flush`] for that.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stop = true;
        self.shared.tell_backlog(&state);
        drop(state);
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A panic of a thread is already recorded as the failure.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn compacts_by_itself(&self) -> bool {
        self.options.compaction == Compaction::Automatic
    }

    /// Makes a version the newest one. Returns the previous one, which the caller drops after releasing the lock,
    /// because that can free memory and delete files.
    #[must_use]
    fn publish(&self, state: &mut State, version: Version) -> Arc<Version> {
        state.version = Arc::new(version);
        self.tell_backlog(state);
        self.version.swap(Arc::clone(&state.version))
    }

    /// Updates the urgency of flushes and compactions.
    fn tell_backlog(&self, state: &State) {
        self.store.pace().tell(Backlog {
            is_awaited: state.stop || state.waiting > 0 || state.answered < state.asked,
            sealed: state.version.sealed.len(),
            level_0_runs: state.version.tables.level_0_runs(),
        });
    }

    /// Returns true if no flush or compaction is pending, so that blocks may be read ahead.
    fn is_calm(state: &State) -> bool {
        !state.may_compact
            && state.asked == state.answered
            && !state.stop
            && state.failure.is_none()
            && state.version.sealed.is_empty()
    }

    /// Waits until another memtable may be sealed.
    fn wait_for_room(&self) -> Result<MutexGuard<'_, State>, BackendError> {
        let is_full = |state: &mut State| {
            state.failure.is_none()
                && (state.version.sealed.len() >= self.options.max_sealed
                    || (state.version.tables.level_0_runs() >= STOP_LEVEL_0_RUNS && self.compacts_by_itself()))
        };
        let mut state = self.lock();
        if is_full(&mut state) {
            let wait = || self.progress.wait_timeout_while(state, self.options.max_stall, is_full);
            let (waited, timeout) = self.stalled(wait).unwrap_or_else(PoisonError::into_inner);
            state = waited;
            if timeout.timed_out() {
                let message = format!("flushes and compactions did not catch up within {:?}", self.options.max_stall);
                state.failure = Some(BackendError::Failed(message));
            }
        }
        // After a failure no memtable is flushed any more. Writes may still use the remaining room.
        match &state.failure {
            Some(failure) if state.version.sealed.len() >= self.options.max_sealed => {
                Err(BackendError::Failed(failure.to_string()))
            }
            _ => Ok(state),
        }
    }

    /// Waits until all currently sealed memtables are flushed.
    fn wait_for_flushes(&self) -> Result<Option<Applied>, BackendError> {
        let mut state = self.lock();
        let target = state.sealed_count;
        state.waiting += 1;
        self.tell_backlog(&state);
        while state.flushed_count < target && state.failure.is_none() {
            state = self.progress.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
        self.tell_backlog(&state);
        match &state.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(state.persisted),
        }
    }

    /// Runs `wait` and counts its time as a write stall.
    fn stalled<T>(&self, wait: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let waited = wait();
        self.counters.stalls.fetch_add(1, Ordering::Relaxed);
        self.counters.stall_micros.fetch_add(start.elapsed().as_micros() as u64, Ordering::Relaxed);
        waited
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
