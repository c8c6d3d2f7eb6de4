//! A backend that holds the state in memory and persists it as checkpoints.
//!
//! Owns: [`MemoryBackend`], a persistent (structurally shared) ordered map under a lock. A view is a clone of the map.
//! Cloning takes constant time, and the clone shares every tree node with the map until the map changes that node. Does
//! not own: the bytes of a checkpoint file; see `checkpoint.rs`.
//!
//! Invariants: the map, its `Applied` and its byte count change under one lock, so a view never contains half a
//! batch. `persisted` is the position of the renamed checkpoint and never exceeds the durable end of the log.

mod checkpoint;

use std::{
    any::Any,
    ops::{Bound, ControlFlow},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard},
};

use bytes::Bytes;
use imbl::OrdMap;
use thalweg_disk::Disk;

use crate::files::create_dir;

use crate::backend::{
    Applied, Backend, BackendError, BackendHealth, BackendStats, BarrierFailed, Change, Direction, LogBarrier,
    Replaced, VerifiedRows, View, Visit, WriteBatch, bounds_are_empty,
};

/// Estimated memory in bytes of one pair in addition to its key and value: two reference-counted buffers and a share of
/// a tree node. Used only for [`BackendStats::memory_bytes`].
const PAIR_OVERHEAD_BYTES: u64 = 160;

/// Options of a [`MemoryBackend`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Directory of the checkpoint, relative to the disk's root. Created if missing.
    pub dir: String,
    /// Number of bytes of changes after which [`maintain`](Backend::maintain) writes a checkpoint, provided that they
    /// are also at least half the bytes of the map. A larger number makes the replay at open longer; with a smaller
    /// number the whole map is written more often.
    pub checkpoint_bytes: u64,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self { dir: "state/default".to_owned(), checkpoint_bytes: 64 << 20 }
    }
}

/// Backend with an ordered map in memory, which is persisted by writing the whole map to a checkpoint file.
pub struct MemoryBackend {
    options: MemoryOptions,
    disk: Arc<dyn Disk>,
    barrier: Arc<dyn LogBarrier>,
    live: RwLock<LiveMap>,
    /// Lock held while a checkpoint is written. The position of the checkpoint is stored in `durable`, so that
    /// `persisted` need not wait for this lock.
    writing: Mutex<Writing>,
    durable: Mutex<Durable>,
}

impl std::fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryBackend").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The current map and its counters. A clone takes constant time.
#[derive(Clone, Default)]
struct LiveMap {
    pairs: OrdMap<Bytes, Bytes>,
    applied: Option<Applied>,
    /// Total bytes of all keys and values in the map.
    live_bytes: u64,
    /// Total bytes of all changes since the state was created or opened.
    changed_bytes: u64,
}

struct Writing {
    /// Directory of the checkpoint. [`replace_with`](Backend::replace_with) changes it.
    dir: String,
    /// Value of `LiveMap::changed_bytes` at the time of the last checkpoint.
    cut_at_changed_bytes: u64,
    /// Failure of the log barrier. After such a failure no further checkpoint may be written.
    barrier_failed: Option<BarrierFailed>,
}

#[derive(Default)]
struct Durable {
    applied: Option<Applied>,
    file_bytes: u64,
    flushes: u64,
    flushed_bytes: u64,
    /// Message of the error with which the last checkpoint failed, if the disk was full.
    full: Option<String>,
}

impl MemoryBackend {
    /// Opens the state in `options.dir`. Loads the checkpoint, if one exists, and removes an unfinished checkpoint
    /// file.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: MemoryOptions,
        barrier: Arc<dyn LogBarrier>,
    ) -> Result<Self, BackendError> {
        let mut live = LiveMap::default();
        let mut durable = Durable::default();
        create_dir(&*disk, &options.dir)?;
        let loaded = checkpoint::load(&*disk, &options.dir, |key, value| {
            live.live_bytes += (key.len() + value.len()) as u64;
            live.pairs.insert(key, value);
        })?;
        if let Some(loaded) = loaded {
            live.applied = Some(loaded.applied);
            durable.applied = Some(loaded.applied);
            durable.file_bytes = loaded.file_bytes;
        }
        let writing = Writing { dir: options.dir.clone(), cut_at_changed_bytes: 0, barrier_failed: None };
        Ok(Self {
            options,
            disk,
            barrier,
            live: RwLock::new(live),
            writing: Mutex::new(writing),
            durable: Mutex::new(durable),
        })
    }

    fn read(&self) -> RwLockReadGuard<'_, LiveMap> {
        self.live.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a checkpoint of the current map, after it has made the log durable up to the map's position.
    fn checkpoint(&self, writing: &mut Writing) -> Result<Option<Applied>, BackendError> {
        if let Some(failed) = &writing.barrier_failed {
            return Err(failed.clone().into());
        }
        let cut = self.read().clone();
        let Some(applied) = cut.applied else { return Ok(None) };
        if self.persisted() == Some(applied) {
            return Ok(Some(applied));
        }
        if let Err(failed) = self.barrier.sync_through(applied.lsn) {
            writing.barrier_failed = Some(failed.clone());
            return Err(failed.into());
        }
        let needed = checkpoint::file_bytes(cut.pairs.len() as u64, cut.live_bytes);
        let written = self.write_checkpoint(&writing.dir, &cut, applied, needed);
        lock(&self.durable).full = written.as_ref().err().filter(|error| error.is_disk_full()).map(ToString::to_string);
        let file_bytes = written?;
        writing.cut_at_changed_bytes = cut.changed_bytes;
        let mut durable = lock(&self.durable);
        durable.applied = Some(applied);
        durable.file_bytes = file_bytes;
        durable.flushes += 1;
        durable.flushed_bytes += file_bytes;
        Ok(Some(applied))
    }
}

impl MemoryBackend {
    /// Writes a checkpoint of the map `cut`, which takes `needed` bytes, if the disk has room for it. The previous
    /// checkpoint stays until the new one is complete. Without this check, each failing attempt would fill the disk
    /// first.
    fn write_checkpoint(&self, dir: &str, cut: &LiveMap, applied: Applied, needed: u64) -> Result<u64, BackendError> {
        // A disk that cannot report its free space is not checked.
        let free = self.disk.free_bytes().unwrap_or(u64::MAX);
        if free < needed {
            let message = format!("{needed} bytes are needed, and {free} are free");
            return Err(BackendError::DiskFull { operation: "checkpoint", message });
        }
        let pairs = cut.pairs.iter().map(|(key, value)| (&key[..], &value[..]));
        checkpoint::write(&*self.disk, dir, applied, pairs)
    }
}

impl Backend for MemoryBackend {
    fn apply(&self, batch: &WriteBatch, applied: Applied) -> Result<(), BackendError> {
        batch.check()?;
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        for change in batch.changes() {
            live.change(change);
        }
        live.changed_bytes += batch.byte_len() as u64;
        live.applied = Some(applied);
        Ok(())
    }

    fn applied(&self) -> Option<Applied> {
        self.read().applied
    }

    fn persisted(&self) -> Option<Applied> {
        lock(&self.durable).applied
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        Ok(self.read().pairs.get(key).cloned())
    }

    fn view(&self) -> Arc<dyn View> {
        let live = self.read();
        Arc::new(MemoryView { pairs: live.pairs.clone(), applied: live.applied.unwrap_or_default() })
    }

    fn flush(&self) -> Result<Option<Applied>, BackendError> {
        self.checkpoint(&mut lock(&self.writing))
    }

    fn maintain(&self) -> Result<(), BackendError> {
        let mut writing = lock(&self.writing);
        let (changed, live_bytes) = {
            let live = self.read();
            (live.changed_bytes - writing.cut_at_changed_bytes, live.live_bytes)
        };
        if changed > self.options.checkpoint_bytes.max(live_bytes / 2) {
            self.checkpoint(&mut writing)?;
        }
        Ok(())
    }

    fn verify(&self, step: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<VerifiedRows, BackendError> {
        loop {
            let dir = lock(&self.writing).dir.clone();
            let verified = checkpoint::verify(&*self.disk, &dir, step);
            // The files of a replaced state may have been removed in the meantime.
            if verified.is_ok() || lock(&self.writing).dir == dir {
                return verified;
            }
        }
    }

    fn health(&self) -> BackendHealth {
        let full = lock(&self.durable).full.clone();
        full.map_or(BackendHealth::Good, BackendHealth::DiskFull)
    }

    fn bytes_to_persist(&self) -> u64 {
        let live = self.read();
        checkpoint::file_bytes(live.pairs.len() as u64, live.live_bytes)
    }

    fn stats(&self) -> BackendStats {
        let (pairs, live_bytes) = {
            let live = self.read();
            (live.pairs.len() as u64, live.live_bytes)
        };
        let durable = lock(&self.durable);
        BackendStats {
            memory_bytes: live_bytes + pairs * PAIR_OVERHEAD_BYTES,
            disk_bytes: durable.file_bytes,
            flushes: durable.flushes,
            flushed_bytes: durable.flushed_bytes,
            estimated_keys: pairs,
            ..BackendStats::default()
        }
    }

    fn replace_with(&self, other: &dyn Backend) -> Result<Replaced, BackendError> {
        let other: &dyn Any = other;
        let other = other.downcast_ref::<Self>().filter(|other| !std::ptr::eq(*other, self));
        let other = other.ok_or(BackendError::OtherKind { kind: self.name() })?;
        // Waits for a checkpoint that is being written.
        let mut writing = lock(&self.writing);
        let taken = lock(&other.writing);
        writing.dir.clone_from(&taken.dir);
        writing.cut_at_changed_bytes = taken.cut_at_changed_bytes;
        let mut durable = lock(&self.durable);
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        let former = std::mem::replace(&mut *live, other.read().clone());
        *durable = std::mem::take(&mut *lock(&other.durable));
        Ok(Replaced::new(former))
    }

    fn name(&self) -> &'static str {
        "memory"
    }
}

impl LiveMap {
    fn change(&mut self, change: Change<'_>) {
        let removed = match change {
            Change::Put(key, value) => {
                self.live_bytes += (key.len() + value.len()) as u64;
                let old = self.pairs.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
                old.map(|old| key.len() + old.len())
            }
            Change::Delete(key) => self.pairs.remove(key).map(|old| key.len() + old.len()),
        };
        self.live_bytes -= removed.unwrap_or(0) as u64;
    }
}

/// View of the memory backend: an immutable clone of the map.
struct MemoryView {
    pairs: OrdMap<Bytes, Bytes>,
    applied: Applied,
}

impl View for MemoryView {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        Ok(self.pairs.get(key).cloned())
    }

    fn scan(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), BackendError> {
        if bounds_are_empty(lower, upper) {
            return Ok(());
        }
        let range = self.pairs.range::<_, [u8]>((lower, upper));
        let mut step = |(key, value): (&Bytes, &Bytes)| visit(key, value);
        let _: ControlFlow<()> = match direction {
            Direction::Forward => { range }.try_for_each(&mut step),
            Direction::Reverse => range.rev().try_for_each(&mut step),
        };
        Ok(())
    }

    fn applied(&self) -> Applied {
        self.applied
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
