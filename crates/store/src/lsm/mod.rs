//! The state in an LSM tree: memtables of our own over sorted tables on disk.
//!
//! Owns: [`LsmBackend`]: applying, sealing full memtables, waiting when flushes or compactions fall
//! behind, and views. `worker` flushes and compacts in the background.
//! Does not own: the log. Nothing is written here before the log is durable as far as it reaches, and
//! what was not flushed is lost with the process: it is replayed from the log.
//!
//! ```text
//! apply -> active memtable -> sealed memtables -> level 0 -> level 1 ..   (tables on disk)
//!                          seal             flush       compact
//! ```
//! Invariants: memtables are sealed only between batches, with the `Applied` of their last batch, and
//! flushed in order, so what the tables hold is exactly what was applied up to `persisted`.
//! `persisted <= oldest sealed <= .. <= applied`. Readers pin a `Version` and take no lock for long.

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

/// Runs on level 0 from which on writes are slowed down: compaction is behind.
const SLOW_LEVEL_0_RUNS: usize = 12;
/// Runs on level 0 at which writes wait for compaction.
const STOP_LEVEL_0_RUNS: usize = 24;
/// Bytes per second that slowed-down writes may bring.
const SLOW_BYTES_PER_SECOND: u64 = 16 << 20;
/// Shortest pause of a slowed-down write; less is saved up.
const MIN_PAUSE: Duration = Duration::from_millis(1);

/// Memtables' memory kept for the next one: what is written to and what is flushed take turns.
const SPARE_ARENAS: usize = 1;

/// See the module.
pub struct LsmBackend {
    shared: Arc<Shared>,
    /// Held by whoever applies or seals.
    writer: Mutex<Writer>,
    threads: Vec<JoinHandle<()>>,
}

struct Writer {
    memtable: MemtableWriter,
    /// Pause that slowed-down writes have not made yet.
    owed: Duration,
}

/// What readers, writers and the background threads share.
struct Shared {
    options: LsmOptions,
    store: TableStore,
    pool: Arc<ArenaPool>,
    barrier: Arc<dyn LogBarrier>,
    /// The newest version, for point reads. Changed only with `state` locked.
    version: ArcSwap<Version>,
    state: Mutex<State>,
    /// Signalled when a memtable was sealed, tables were flushed, or it is time to stop.
    work: Condvar,
    /// Signalled when a flush or compaction is done or has failed.
    progress: Condvar,
    counters: Counters,
}

/// What changes together.
struct State {
    version: Arc<Version>,
    /// Batches of the active memtable that `applied` covers.
    upto: BatchNumber,
    applied: Option<Applied>,
    persisted: Option<Applied>,
    /// Memtables sealed and flushed since open.
    sealed_count: u64,
    flushed_count: u64,
    /// How many wait for flushes.
    waiting: usize,
    /// Whether level 0 may have something to compact.
    may_compact: bool,
    is_compacting: bool,
    /// Compactions of everything that were asked for and that are done.
    asked: u64,
    answered: u64,
    /// Whether there may be tables whose blocks are worth reading into memory.
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

    /// Seals the active memtable and puts an empty one with room for `bytes` in its place.
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

    /// Puts a memtable with room for `bytes` in the place of the active one, which is empty.
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

    /// Makes a write pause if compaction is behind, in proportion to its bytes.
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
    /// Stops the threads after what they are doing. Flushes nothing: that is [`Backend::flush`]'s.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stop = true;
        self.shared.tell_backlog(&state);
        drop(state);
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A worker that panicked has nothing left to say.
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

    /// Makes a version the newest. Returns the one before: dropping it may free memory and delete
    /// files, which is better done without the lock.
    #[must_use]
    fn publish(&self, state: &mut State, version: Version) -> Arc<Version> {
        state.version = Arc::new(version);
        self.tell_backlog(state);
        self.version.swap(Arc::clone(&state.version))
    }

    /// Tells flushes and compactions how urgent they are.
    fn tell_backlog(&self, state: &State) {
        self.store.pace().tell(Backlog {
            is_awaited: state.stop || state.waiting > 0 || state.answered < state.asked,
            sealed: state.version.sealed.len(),
            level_0_runs: state.version.tables.level_0_runs(),
        });
    }

    /// Whether the background has nothing better to do than reading ahead.
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
        // After a failure nothing is flushed any more: what room is left may still be used.
        match &state.failure {
            Some(failure) if state.version.sealed.len() >= self.options.max_sealed => {
                Err(BackendError::Failed(failure.to_string()))
            }
            _ => Ok(state),
        }
    }

    /// Waits until all that is sealed now is flushed.
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

    /// Counts the time that a write waits.
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
