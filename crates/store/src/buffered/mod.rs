//! Memtables in front of a store with slow writes. The redb and SQLite backends are built on it.
//!
//! Owns: [`Buffered`], which applies batches, seals full memtables, stalls writes when the store falls behind, and
//! creates views; and a thread that persists sealed memtables. Does not own: the store, which is behind the trait
//! [`Store`].
//!
//! Reason: one transaction for each batch costs 13 µs in redb (not synced) and 14 µs in SQLite, but a change in a
//! memtable costs 1 µs. In bulk, the stores need 1.7 and 0.8 µs for a change, in time that writers spend waiting
//! for the log's next fsync. And nothing may be persisted before the log is durable; the memtables hold changes
//! back until then.
//!
//! ```text
//! apply -> active memtable -> sealed memtables -> store      (each in one durable transaction)
//!                          seal            persist
//! ```
//! Invariants: memtables are sealed only between batches, with the `Applied` of their last batch, and persisted in
//! order. So the store contains exactly the batches applied up to `persisted`.
//! `persisted <= oldest sealed <= .. <= applied`. In [`SyncMode::PerBatch`] the memtable stays empty and `persisted == applied`.

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

/// Number of arenas kept for the next memtable: writes and persisting alternate between two arenas.
const SPARE_ARENAS: usize = 1;

/// Options of the memtables. Total memory: `memtable_bytes` times `max_sealed + 2`, and about a tenth more for hash
/// indexes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferOptions {
    /// Time at which batches become durable.
    pub sync: SyncMode,
    /// Bytes at which a memtable is sealed and persisted. More takes memory, and time at open to replay batches
    /// that were not persisted; less makes more and smaller transactions.
    pub memtable_bytes: usize,
    /// Maximum number of sealed memtables. Beyond it, writes wait.
    pub max_sealed: usize,
    /// Maximum time that one write waits for the store to catch up. After that the backend fails, because its
    /// memory would grow without bound.
    pub max_stall: Duration,
    /// Number of log records, applied since the last persist, after which [`maintain`](Backend::maintain) persists.
    /// It bounds the replay at open.
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

/// A backend of memtables in front of a store; see the [module](self).
pub struct Buffered<S: Store> {
    shared: Arc<Shared<S>>,
    /// Locked by the thread that applies or seals.
    writer: Mutex<MemtableWriter>,
    thread: Option<JoinHandle<()>>,
}

/// State shared by readers, the writer and the background thread.
struct Shared<S> {
    options: BufferOptions,
    store: S,
    pool: Arc<ArenaPool>,
    barrier: Arc<dyn LogBarrier>,
    /// The newest version, for point reads. Changed only while `state` is locked.
    version: ArcSwap<Version>,
    state: Mutex<State>,
    /// Signalled when a memtable was sealed, or when the thread must stop.
    work: Condvar,
    /// Signalled when a memtable was persisted, or when persisting failed.
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
    /// Numbers of memtables sealed and persisted since open.
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

    /// Replaces the active memtable with one that has room for `bytes`. Seals the old one if `seal` requires it.
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

/// Decides if the replaced memtable must be persisted.
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
    /// Stops the thread after its current transaction. Persists nothing; callers use [`Backend::flush`] for that.
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is already recorded as the failure.
            let _ = thread.join();
        }
    }
}

impl<S> Shared<S> {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Makes a version the newest one. Returns the previous one.
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
        // After a failure no memtable is persisted any more. Writes may still use the remaining room.
        match &state.failure {
            Some(failure) if state.version.sealed.len() >= self.options.max_sealed => {
                Err(BackendError::Failed(failure.to_string()))
            }
            _ => Ok(state),
        }
    }

    /// Waits until all currently sealed memtables are persisted.
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
