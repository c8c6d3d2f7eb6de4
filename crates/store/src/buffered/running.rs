//! Memtables in front of one store: applying batches, sealing full memtables, and waiting for the store.
//!
//! Owns: [`Running`], with the active memtable's writer and the background threads. Does not own: the store, or the
//! backend that shows it to readers (`Buffered`), which can continue with another `Running`.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use super::{
    ahead::{AheadRule, AheadThread},
    options::{Background, BufferOptions},
    pauses::OwedPause,
    shared::{Shared, lock},
    store::Store,
    worker::{self, ThreadMain},
};
use crate::{
    backend::{Applied, BackendError, BackendStats, LogBarrier, SyncMode, WriteBatch},
    memtable::{ArenaPool, Memtable, MemtableWriter},
};

/// Number of unused arenas (blocks of memory) kept for the next memtable. One is enough, because usually two arenas are
/// in use in turn: one memtable takes writes while the previous one is persisted.
const SPARE_ARENAS: usize = 1;
/// Divisor: for a batch of unknown size, [`Backend::make_room`] keeps the size of a memtable divided by this number
/// free.
const ROOM_SHARE: usize = 16;
/// Assumed size in bytes of a change while the active memtable is empty.
const DEFAULT_CHANGE_BYTES: usize = 256;

/// Minimum size in bytes of a memtable for which a thread prepares memory ahead of the writer. Smaller memtables have
/// small pages, and their memory is soon reused.
const AHEAD_FROM_BYTES: usize = 16 << 20;

/// Memtables in front of one store, with the threads that work on them.
pub(super) struct Running<S: Store> {
    pub shared: Arc<Shared<S>>,
    /// Lock that a thread holds while it applies a batch or seals the active memtable.
    writer: Mutex<Writer>,
    /// Thread that prepares memory for the writer. `None` for a backend without threads, for small memtables, and if
    /// each batch is synced.
    ahead: Option<AheadThread>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Writer {
    memtable: MemtableWriter,
    ahead: AheadRule,
    owed: OwedPause,
    /// True if the caller of the next `apply` has already waited for room in the memtables, so that `apply` need not
    /// wait.
    has_waited: bool,
}

impl<S: Store> Running<S> {
    /// Puts memtables in front of a store. Starts the thread that persists sealed memtables, and the store's own
    /// background threads, which are listed in `upkeep`. In stepped mode, no threads start, and callers do their work.
    pub(super) fn start(
        store: S,
        options: BufferOptions,
        barrier: Arc<dyn LogBarrier>,
        upkeep: &[ThreadMain<S>],
    ) -> Result<Self, BackendError> {
        let pool = Arc::new(ArenaPool::new(options.memtable_bytes, SPARE_ARENAS));
        let (active, memtable) = Memtable::create_in(&pool, options.memtable_bytes);
        let is_stepped = options.background == Background::Stepped;
        let steps = if is_stepped { worker::all(upkeep) } else { Vec::new() };
        let shared = Arc::new(Shared::new(store, options, barrier, pool, active, steps)?);
        let threads = if is_stepped { Vec::new() } else { worker::start(&shared, upkeep)? };
        let writer = Writer { memtable, ahead: AheadRule::default(), owed: OwedPause::default(), has_waited: false };
        let has_ahead = !is_stepped
            && shared.options.sync == SyncMode::BehindLog
            && shared.options.memtable_bytes >= AHEAD_FROM_BYTES;
        let ahead = if has_ahead { AheadThread::start() } else { None };
        Ok(Self { shared, writer: Mutex::new(writer), ahead, threads: Mutex::new(threads) })
    }

    /// Replaces the active memtable with a new one that has room for `bytes`. `seal` says if the old memtable is
    /// sealed, so that a thread persists it.
    fn replace_active(&self, writer: &mut Writer, bytes: usize, seal: SealTarget) -> Result<(), BackendError> {
        let shared = &*self.shared;
        let state = match seal {
            SealTarget::Active if writer.has_waited => shared.lock_unless_failed()?,
            SealTarget::Active => shared.wait_for_room()?,
            SealTarget::Nothing => shared.lock(),
        };
        let applied = state.applied.filter(|_| seal == SealTarget::Active);
        let (active, memtable) = Memtable::create_in(&shared.pool, shared.options.memtable_bytes.max(bytes));
        shared.replace_active(state, active, applied);
        writer.memtable = memtable;
        writer.ahead = AheadRule::default();
        Ok(())
    }

    fn buffer(&self, batch: &WriteBatch, applied: Applied) -> Result<(), BackendError> {
        let bytes = Memtable::bytes_for(batch);
        if bytes > Memtable::MAX_BATCH_BYTES {
            return Err(BackendError::BadBatch("it takes more than 4 GiB of memory: split it"));
        }
        let mut writer = lock(&self.writer);
        if !batch.is_empty() {
            if !writer.memtable.has_room_for(batch) {
                self.start_memtable(&mut writer, bytes)?;
            }
            writer.memtable.apply(batch).map_err(|full| BackendError::Failed(full.to_string()))?;
            self.work_ahead(&mut writer);
        }
        let owed = {
            let mut state = self.shared.lock();
            state.upto = writer.memtable.memtable().visible();
            state.applied = Some(applied);
            self.shared.store.wrote(&state.version.stored, batch.byte_len())
        };
        // In stepped mode there are no pauses, because no other thread catches up meanwhile.
        if !batch.is_empty() && !self.shared.is_stepped() {
            writer.owed.add(owed);
        }
        if !std::mem::take(&mut writer.has_waited) {
            self.pause(&mut writer);
        }
        Ok(())
    }

    /// Asks the background thread, if there is one, to prepare memory of the active memtable for its writer.
    #[inline]
    fn work_ahead(&self, writer: &mut Writer) {
        if let Some(ahead) = &self.ahead {
            let (used, capacity) = (writer.memtable.used_bytes(), writer.memtable.capacity_bytes());
            ahead.prepare(&mut writer.ahead, writer.memtable.memtable(), used, capacity);
        }
    }

    /// Replaces the active memtable with a new one that has room for `bytes`, and seals the old one if it has changes.
    fn start_memtable(&self, writer: &mut Writer, bytes: usize) -> Result<(), BackendError> {
        let seal = if writer.memtable.memtable().is_empty() { SealTarget::Nothing } else { SealTarget::Active };
        self.replace_active(writer, bytes, seal)
    }

    /// Makes the pause that is due because the store's background work is behind, or leaves the pause to the caller.
    fn pause(&self, writer: &mut Writer) {
        let Some(pause) = writer.owed.take() else { return };
        let pauses = &self.shared.pauses;
        if pauses.are_left_to_caller() {
            pauses.owe(pause);
        } else {
            std::thread::sleep(pause);
            pauses.count(pause);
        }
    }

    fn sync(&self, batch: &WriteBatch, applied: Applied) -> Result<(), BackendError> {
        let _writer = lock(&self.writer);
        let shared = &*self.shared;
        if let Some(failure) = &shared.lock().failure {
            return Err(BackendError::Failed(failure.to_string()));
        }
        let persisted = shared.persist(batch.changes(), applied).and_then(|()| {
            shared.publish_after(|state, _| {
                state.applied = Some(applied);
                state.persisted = Some(applied);
            })?;
            shared.maintain()
        });
        if let Err(failure) = &persisted
            && !failure.is_disk_full()
        {
            shared.lock().failure.get_or_insert(failure.clone());
        }
        persisted
    }

    /// Applies a batch; see [`Backend::apply`](crate::Backend::apply).
    pub(super) fn apply(&self, batch: &WriteBatch, applied: Applied) -> Result<(), BackendError> {
        batch.check()?;
        match self.shared.options.sync {
            SyncMode::BehindLog => self.buffer(batch, applied),
            SyncMode::PerBatch => self.sync(batch, applied),
        }
    }

    /// Waits until a batch of `bytes` bytes can be applied without a wait; see
    /// [`Backend::make_room`](crate::Backend::make_room).
    pub(super) fn make_room(&self, bytes: usize) -> Result<(), BackendError> {
        if self.shared.options.sync == SyncMode::PerBatch {
            return Ok(());
        }
        let mut writer = lock(&self.writer);
        writer.has_waited = false;
        self.pause(&mut writer);
        // The share of the memtable that is kept free in addition is large enough for the batches of ordinary log
        // entries.
        let wanted = bytes.saturating_add(self.shared.options.memtable_bytes / ROOM_SHARE);
        if writer.memtable.free_bytes() < wanted && !writer.memtable.memtable().is_empty() {
            self.replace_active(&mut writer, wanted, SealTarget::Active)?;
        }
        writer.has_waited = true;
        Ok(())
    }

    /// Persists all applied batches; see [`Backend::flush`](crate::Backend::flush).
    pub(super) fn flush(&self) -> Result<Option<Applied>, BackendError> {
        if self.must_seal()? {
            // This waits without the lock of the writer, so that other writes continue while the active memtable has
            // room for them.
            drop(self.shared.wait_for_room()?);
        }
        let mut writer = lock(&self.writer);
        if self.must_seal()? {
            self.replace_active(&mut writer, 0, SealTarget::Active)?;
        }
        drop(writer);
        self.shared.wait_until_persisted()
    }

    /// Returns true if the active memtable has batches that must be persisted.
    fn must_seal(&self) -> Result<bool, BackendError> {
        let state = self.shared.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let newest_sealed = state.version.sealed.first().map(|sealed| sealed.applied);
        Ok(newest_sealed.or(state.persisted) != state.applied)
    }

    /// Persists all applied batches if the active memtable uses at least `bytes` bytes; see
    /// [`Backend::flush_above`](crate::Backend::flush_above).
    pub(super) fn flush_above(&self, bytes: usize) -> Result<bool, BackendError> {
        let version = Arc::clone(&self.shared.lock().version);
        let is_due = !version.active.is_empty() && version.active.used_bytes() >= bytes;
        drop(version);
        if is_due {
            self.flush()?;
        }
        Ok(is_due)
    }

    /// Persists the memtables if enough records have been applied since the last time, and releases disk space that
    /// only former readers needed; see [`Backend::maintain`](crate::Backend::maintain).
    pub(super) fn maintain(&self) -> Result<(), BackendError> {
        let gathered = {
            let state = self.shared.lock();
            let lsn = |applied: Option<Applied>| applied.map_or(0, |applied| applied.lsn.0);
            lsn(state.applied).saturating_sub(lsn(state.persisted))
        };
        if gathered > self.shared.options.max_unflushed_records {
            self.flush()?;
        }
        match self.shared.store.release() {
            Err(error) if !error.is_disk_full() => Err(error),
            _ => Ok(()),
        }
    }

    /// Estimates the disk space in bytes that persisting all applied batches takes.
    pub(super) fn bytes_to_persist(&self) -> u64 {
        let version = Arc::clone(&self.shared.lock().version);
        let active = &version.active;
        // The active memtable may be full a moment later. So the estimate assumes a full memtable, whose changes have
        // the present mean size.
        let mean_bytes = active.used_bytes().checked_div(active.len()).unwrap_or(DEFAULT_CHANGE_BYTES).max(1);
        let changes = self.shared.options.memtable_bytes / mean_bytes;
        let memtables = version.sealed.len() as u64 + 1;
        self.shared.store.bytes_to_persist(memtables, changes as u64, self.shared.options.memtable_bytes as u64)
    }

    /// Returns the statistics of the memtables and the store.
    pub(super) fn stats(&self) -> BackendStats {
        let version = Arc::clone(&self.shared.lock().version);
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
            pauses: count(&self.shared.pauses.made),
            pause_micros: count(&self.shared.pauses.micros),
            estimated_keys: memtables().map(|memtable| memtable.len() as u64).sum(),
            ..BackendStats::default()
        };
        self.shared.store.add_stats(&version.stored, &mut stats);
        stats.is_compacting &= self.shared.lock().failure.is_none();
        stats
    }

    /// Stops the background threads after their current work, and waits for them. Persists nothing; callers that need
    /// durability flush first.
    pub(super) fn end(&self) {
        self.shared.stop();
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            // A panic of a thread is already recorded as the failure.
            let _ = thread.join();
        }
    }
}

/// Choice of sealing the active memtable when a new one replaces it. A thread persists sealed memtables.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SealTarget {
    Active,
    /// The active memtable is empty, so there is nothing to seal.
    Nothing,
}

impl<S: Store> Drop for Running<S> {
    fn drop(&mut self) {
        self.end();
    }
}
