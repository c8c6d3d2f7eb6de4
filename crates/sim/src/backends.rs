//! The storage of a simulated node's state: the product's backends, without threads, on the node's disk.
//!
//! Owns: the options that a node is started with, and opening its backend. Does not own: when the state is persisted
//! (`node`).
//!
//! The memory backend and redb do their I/O through the simulated disk. The LSM crate opens files of the operating system
//! by itself, so its tables are in a real directory of the node ([`Tables`]). A call that persists a memtable does not
//! return before the crate has synced all of its files, and takes no virtual time. So a simulated crash finds the tables
//! as after the last such call, which is what the directory has.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use thalweg_disk::Disk;
use thalweg_log::{Log, LogOptions};
use thalweg_state::blobs::{BlobUnreadable, Blobs};
use thalweg_store::{
    Backend, BackendError, BackendHealth, Background, BarrierFailed, BufferOptions, LogBarrier,
    lsm::{LsmBackend, LsmOptions},
    memory::{MemoryBackend, MemoryOptions},
    redb::{RedbBackend, RedbOptions},
};
use thalweg_types::{BlobRef, Lsn};

use crate::runtime::random;

/// Free bytes of a disk below which the state is not persisted.
const MIN_FREE_BYTES: u64 = 16 << 20;

/// Kind of a node's backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// A map in memory, with checkpoints.
    Memory,
    /// An LSM tree.
    Lsm,
    /// A B-tree.
    Redb,
}

/// Options with which a node starts. None of them may affect the answers to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeOptions {
    /// Backend of the state.
    pub backend: BackendKind,
    /// Size of a log segment in bytes.
    pub segment_bytes: u32,
    /// Length of the longest value that the state stores itself.
    pub inline_value_bytes: usize,
    /// Size at which a memtable is persisted.
    pub memtable_bytes: usize,
    /// Mean time between two calls that persist the state.
    pub flush_pause: Duration,
}

impl NodeOptions {
    /// Draws options.
    #[must_use]
    pub fn random() -> Self {
        let pick = |from: &[u64]| from[random(0..from.len() as u64) as usize];
        Self {
            backend: match random(0..3) {
                0 => BackendKind::Memory,
                1 => BackendKind::Lsm,
                _ => BackendKind::Redb,
            },
            segment_bytes: pick(&[64 * 1024, 256 * 1024, 1024 * 1024]) as u32,
            inline_value_bytes: pick(&[128, 512, 4096]) as usize,
            memtable_bytes: pick(&[64 * 1024, 1024 * 1024]) as usize,
            flush_pause: Duration::from_millis(pick(&[150, 600, 2_500])),
        }
    }

    /// Returns the options of the node's log.
    #[must_use]
    pub fn log(&self) -> LogOptions {
        LogOptions {
            segment_bytes: self.segment_bytes,
            reserve_bytes: 0,
            idle_mark_after: Duration::ZERO,
            ..LogOptions::default()
        }
    }
}

/// Barrier that syncs the log before the backend persists any part of the state.
struct Barrier(Log);

impl LogBarrier for Barrier {
    fn sync_through(&self, lsn: Lsn) -> Result<(), BarrierFailed> {
        self.0.sync_through(lsn).map_err(|error| BarrierFailed(error.to_string()))
    }
}

/// Reader of values that stay in the log.
#[derive(Debug)]
pub(crate) struct LogBlobs(pub(crate) Log);

impl Blobs for LogBlobs {
    fn read(&self, blob: &BlobRef) -> Result<Bytes, BlobUnreadable> {
        self.0.read_blob(blob).map_err(|error| BlobUnreadable(error.to_string()))
    }
}

/// Number of directories that this process has created.
static DIRECTORIES: AtomicU64 = AtomicU64::new(0);

/// A real directory for the tables of a node's LSM tree, removed with the node.
#[derive(Debug)]
pub struct Tables(PathBuf);

impl Default for Tables {
    fn default() -> Self {
        let number = DIRECTORIES.fetch_add(1, Relaxed);
        Self(all_tables().join(number.to_string()))
    }
}

/// Directory of all tables of this process.
fn all_tables() -> PathBuf {
    std::env::temp_dir().join(format!("thalweg-sim-tables-{}", std::process::id()))
}

/// Removes the tables of all simulations of this process, before it ends.
pub fn remove_tables() {
    // What remains takes some space, and no later process finds it.
    let _ = fs::remove_dir_all(all_tables());
}

impl Tables {
    /// Removes all tables.
    pub fn clear(&self) {
        // Nothing is left for the node to find, whatever the system says about it.
        let _ = fs::remove_dir_all(&self.0);
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        self.clear();
    }
}

fn dir_of(kind: BackendKind) -> String {
    format!("state/{kind:?}").to_lowercase()
}

/// Opens the backend of a node.
pub(crate) fn open(
    options: &NodeOptions,
    disk: &Arc<dyn Disk>,
    tables: &Tables,
    log: &Log,
) -> Result<Arc<dyn Backend>, BackendError> {
    let barrier: Arc<dyn LogBarrier> = Arc::new(Barrier(log.clone()));
    let (dir, memtable_bytes) = (dir_of(options.backend), options.memtable_bytes);
    Ok(match options.backend {
        BackendKind::Memory => {
            let checkpoint_bytes = memtable_bytes as u64;
            Arc::new(MemoryBackend::open(Arc::clone(disk), MemoryOptions { dir, checkpoint_bytes }, barrier)?)
        }
        BackendKind::Redb => {
            let background = Background::Stepped;
            let buffer = BufferOptions { memtable_bytes, background, ..BufferOptions::default() };
            let options = RedbOptions { dir, cache_bytes: 4 << 20, buffer };
            Arc::new(RedbBackend::open(disk, options, barrier)?)
        }
        BackendKind::Lsm => {
            let options = LsmOptions {
                memtable_bytes,
                cache_bytes: 4 << 20,
                background: Background::Stepped,
                ..LsmOptions::new(tables.path())
            };
            Arc::new(LsmBackend::open(options, barrier)?)
        }
    })
}

/// Persists the state, if the disk has room for that.
pub(crate) fn persist(backend: &dyn Backend, disk: &dyn Disk) -> Result<(), BackendError> {
    // redb fails for good if it finds the disk full.
    let has_room = disk.free_bytes().is_ok_and(|free| free > MIN_FREE_BYTES + 2 * backend.bytes_to_persist());
    if !has_room {
        return Ok(());
    }
    let persisted = if random(0..4) == 0 { backend.flush().map(drop) } else { backend.maintain() };
    backend.step();
    if let BackendHealth::Failed(message) = backend.health() {
        return Err(BackendError::Failed(message));
    }
    persisted.or_else(|error| if error.is_disk_full() { Ok(()) } else { Err(error) })
}

/// Flips a random bit of a random table. Returns its place; `None` if there are no tables.
pub(crate) fn flip_in(tables: &Tables) -> Option<String> {
    let mut files = Vec::new();
    let mut dirs = vec![tables.path().to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).ok()?.flatten() {
            let path = entry.path();
            if path.is_dir() { dirs.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    let path = files.get(random(0..files.len().max(1) as u64) as usize)?;
    let mut bytes = fs::read(path).ok().filter(|bytes| !bytes.is_empty())?;
    let (at, bit) = (random(0..bytes.len() as u64) as usize, random(0..8));
    bytes[at] ^= 1 << bit;
    fs::write(path, bytes).ok()?;
    Some(format!("{} at {at}", path.file_name()?.display()))
}

/// Removes what a kind of backend has stored, so that it begins with an empty state.
pub(crate) fn discard(kind: BackendKind, disk: &dyn Disk, tables: &Tables) -> io::Result<()> {
    if kind == BackendKind::Lsm {
        tables.clear();
        return Ok(());
    }
    let dir = dir_of(kind);
    match disk.list(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        listed => {
            listed?.into_iter().try_for_each(|name| disk.remove(&format!("{dir}/{name}")))?;
            disk.sync_dir(&dir)
        }
    }
}
