//! Memtables in front of a store that is slow to change: how redb and SQLite serve as state backends.
//!
//! Owns: [`Buffered`]: applying, sealing full memtables, waiting when the store falls behind, views; a
//! thread that persists sealed memtables. Does not own: the store, which is behind a trait.
//!
//! Why: a transaction of its own for each batch costs redb (not synced) 13 µs and SQLite 14 µs, a change
//! in a memtable one; in bulk they take a change in 1.7 and 0.8 µs, while writers wait for the log's next
//! fsync anyway. And nothing may be persisted before the log is: a memtable holds it back until then.
//!
//! ```text
//! apply -> active memtable -> sealed memtables -> store      (each in one durable transaction)
//!                          seal            persist
//! ```
//! Invariants: memtables are sealed only between batches, with the `Applied` of their last batch, and
//! persisted in order, so the store holds exactly what was applied up to `persisted`.
//! `persisted <= oldest sealed <= .. <= applied`. In [`SyncMode::PerBatch`] the memtable stays empty and
//! `persisted == applied`.

mod checked;
mod cursor;
mod store;
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
    backend::{Applied, Backend, BackendError, BackendStats, LogBarrier, SyncMode, View, WriteBatch},
    memtable::{ArenaPool, BatchNumber, Memtable, MemtableWriter},
};
pub use checked::{CHECKSUM_BYTES, checked, checksum};
pub use store::{Page, Store, StoreView};
use version::{BufferedView, Sealed, Version};

/// Memtables' memory kept for the next one: what is written to and what is persisted take turns.
const SPARE_ARENAS: usize = 1;

/// How the memtables behave. Memory in all: `memtable_bytes` times `max_sealed + 2`, and about a tenth for
/// hash indexes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferOptions {
    /// When batches are made durable.
    pub sync: SyncMode,
    /// Bytes a memtable takes before it is persisted. More takes memory, and time at open to replay what was
    /// not persisted; less makes more and smaller transactions.
    pub memtable_bytes: usize,
    /// Sealed memtables that may wait; beyond it, writes wait.
    pub max_sealed: usize,
    /// Longest time that one write waits for the store to catch up. After that the backend counts as
    /// failed, because its memory would grow without bound.
    pub max_stall: Duration,
    /// [`maintain`](Backend::maintain) persists when this many log records have been applied since the last
    /// time: replay at open is bounded by it.
    pub max_unflushed_records: u64,
}

impl Default for BufferOptions {
    fn default() -> Self {
        Self {
            sync: SyncMode::default(),
            memtable_bytes: 64 << 20,
            max_sealed: 3,
            max_stall: Duration::from_secs(60),
            max_unflushed_records: 1_000_000,
        }
    }
}

/// See the module.
pub struct Buffered<S: Store> {
    shared: Arc<Shared<S>>,
    /// Held by whoever applies or seals.
    writer: Mutex<MemtableWriter>,
    thread: Option<JoinHandle<()>>,
}

/// What readers, writers and the background thread share.
struct Shared<S> {
    options: BufferOptions,
    store: S,
    pool: Arc<ArenaPool>,
    barrier: Arc<dyn LogBarrier>,
    /// The newest version, for point reads. Changed only with `state` locked.
    version: ArcSwap<Version>,
    state: Mutex<State>,
    /// Signalled when a memtable was sealed, or it is time to stop.
    work: Condvar,
    /// Signalled when a memtable is persisted or that has failed.
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
    /// Memtables sealed and persisted since open.
    sealed_count: u64,
    persisted_count: u64,
    failure: Option<BackendError>,
    stop: bool,
}

#[derive(Default)]
struct Counters {
    flushes: AtomicU64,
    flushed_bytes: AtomicU64,
    stalls: AtomicU64,
    stall_micros: AtomicU64,
}

impl<S: Store> std::fmt::Debug for Buffered<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct(S::NAME).field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl<S: Store> Buffered<S> {
    /// Puts memtables in front of a store and starts the background thread.
    pub fn over(store: S, options: BufferOptions, barrier: Arc<dyn LogBarrier>) -> Result<Self, BackendError> {
        let applied = store.applied()?;
        let pool = Arc::new(ArenaPool::new(options.memtable_bytes, SPARE_ARENAS));
        let (active, writer) = Memtable::create_in(&pool, options.memtable_bytes);
        let version = Arc::new(Version { active, sealed: Vec::new(), stored: store.view()? });
        let state = State {
            version: Arc::clone(&version),
            upto: BatchNumber::default(),
            applied,
            persisted: applied,
            sealed_count: 0,
            persisted_count: 0,
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
        let thread = Some(worker::start(&shared)?);
        Ok(Self { shared, writer: Mutex::new(writer), thread })
    }

    /// Puts a memtable with room for `bytes` in the place of the active one, which is sealed if anything
    /// was applied to it.
    fn rotate(&self, writer: &mut MemtableWriter, bytes: usize, seal: Seal) -> Result<(), BackendError> {
        let shared = &*self.shared;
        let mut state = match seal {
            Seal::Active => shared.wait_for_room()?,
            Seal::Nothing => shared.lock(),
        };
        let (active, next) = Memtable::create_in(&shared.pool, shared.options.memtable_bytes.max(bytes));
        let mut version = Version::clone(&state.version);
        let old = std::mem::replace(&mut version.active, active);
        if let (Seal::Active, Some(applied)) = (seal, state.applied) {
            version.sealed.insert(0, Sealed { memtable: old, applied });
            state.sealed_count += 1;
        }
        state.upto = BatchNumber::default();
        let retired = shared.publish(&mut state, version);
        drop(state);
        drop(retired);
        *writer = next;
        shared.work.notify_all();
        Ok(())
    }

    fn buffer(&self, batch: &WriteBatch, applied: Applied) -> Result<(), BackendError> {
        let bytes = Memtable::bytes_for(batch);
        if bytes > Memtable::MAX_BATCH_BYTES {
            return Err(BackendError::BadBatch("it takes more than 4 GiB of memory: split it"));
        }
        let mut writer = lock(&self.writer);
        if !batch.is_empty() {
            if !writer.has_room_for(batch) {
                let seal = if writer.memtable().is_empty() { Seal::Nothing } else { Seal::Active };
                self.rotate(&mut writer, bytes, seal)?;
            }
            writer.apply(batch).map_err(|full| BackendError::Failed(full.to_string()))?;
        }
        let mut state = self.shared.lock();
        state.upto = writer.memtable().visible();
        state.applied = Some(applied);
        Ok(())
    }

    fn sync(&self, batch: &WriteBatch, applied: Applied) -> Result<(), BackendError> {
        let _writer = lock(&self.writer);
        let shared = &*self.shared;
        if let Some(failure) = &shared.lock().failure {
            return Err(BackendError::Failed(failure.to_string()));
        }
        let persisted = shared.persist(&mut batch.changes(), applied).and_then(|()| {
            shared.republish(|state, _| {
                state.applied = Some(applied);
                state.persisted = Some(applied);
            })?;
            shared.tidy()
        });
        if let Err(failure) = &persisted {
            shared.lock().failure.get_or_insert(failure.clone());
        }
        persisted
    }
}

/// Whether what was applied so far has to be persisted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seal {
    Active,
    /// The active memtable is empty.
    Nothing,
}

impl<S: Store> Backend for Buffered<S> {
    fn apply(&self, batch: &WriteBatch, applied: Applied) -> Result<(), BackendError> {
        batch.check()?;
        match self.shared.options.sync {
            SyncMode::BehindLog => self.buffer(batch, applied),
            SyncMode::PerBatch => self.sync(batch, applied),
        }
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

    fn view(&self) -> Arc<dyn View> {
        let state = self.shared.lock();
        let version = Arc::clone(&state.version);
        Arc::new(BufferedView { version, upto: state.upto, applied: state.applied.unwrap_or_default() })
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
            self.rotate(&mut writer, 0, Seal::Active)?;
        }
        drop(writer);
        self.shared.wait_until_persisted()
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
        let mut stats = BackendStats {
            memory_bytes: memtables().map(|memtable| memtable.memory_bytes() as u64).sum::<u64>()
                + self.shared.pool.spare_bytes() as u64,
            sealed_memtables: version.sealed.len() as u64,
            flushes: count(&counters.flushes),
            flushed_bytes: count(&counters.flushed_bytes),
            stalls: count(&counters.stalls),
            stall_micros: count(&counters.stall_micros),
            estimated_keys: memtables().map(|memtable| memtable.len() as u64).sum(),
            ..BackendStats::default()
        };
        self.shared.store.add_stats(&mut stats);
        stats
    }

    fn name(&self) -> &'static str {
        S::NAME
    }
}

impl<S: Store> Drop for Buffered<S> {
    /// Stops the thread after what it is doing. Persists nothing: that is [`Backend::flush`]'s.
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        if let Some(thread) = self.thread.take() {
            // A worker that panicked has nothing left to say.
            let _ = thread.join();
        }
    }
}

impl<S> Shared<S> {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Makes a version the newest. Returns the one before.
    #[must_use]
    fn publish(&self, state: &mut State, version: Version) -> Arc<Version> {
        state.version = Arc::new(version);
        self.version.swap(Arc::clone(&state.version))
    }

    /// Waits until another memtable may be sealed.
    fn wait_for_room(&self) -> Result<MutexGuard<'_, State>, BackendError> {
        let is_full =
            |state: &mut State| state.failure.is_none() && state.version.sealed.len() >= self.options.max_sealed;
        let mut state = self.lock();
        if is_full(&mut state) {
            let start = Instant::now();
            let waited = self.progress.wait_timeout_while(state, self.options.max_stall, is_full);
            let (waited, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            self.counters.stalls.fetch_add(1, Ordering::Relaxed);
            self.counters.stall_micros.fetch_add(start.elapsed().as_micros() as u64, Ordering::Relaxed);
            state = waited;
            if timeout.timed_out() {
                let message = format!("the store did not catch up within {:?}", self.options.max_stall);
                state.failure = Some(BackendError::Failed(message));
            }
        }
        // After a failure nothing is persisted any more: what room is left may still be used.
        match &state.failure {
            Some(failure) if state.version.sealed.len() >= self.options.max_sealed => {
                Err(BackendError::Failed(failure.to_string()))
            }
            _ => Ok(state),
        }
    }

    /// Waits until all that is sealed now is persisted.
    fn wait_until_persisted(&self) -> Result<Option<Applied>, BackendError> {
        let mut state = self.lock();
        let target = state.sealed_count;
        while state.persisted_count < target && state.failure.is_none() {
            state = self.progress.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match &state.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(state.persisted),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
