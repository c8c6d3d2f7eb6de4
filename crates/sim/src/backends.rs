//! Options of a simulated node's database, and the files of its LSM tree.
//!
//! Owns: the options that a node is started with, and the real directories. Does not own: opening the database
//! (`node`).
//!
//! The memory backend and redb do their I/O through the simulated disk. The LSM crate opens files of the operating
//! system itself, so its tables are in a real directory of the node ([`Tables`]). A call that persists a memtable
//! returns only after the crate has synced all of its files, and takes no virtual time. So the directory always has the
//! tables of the last such call, and a simulated crash need not change the directory.

use std::{
    cell::RefCell,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

pub use thalweg_engine::BackendKind;
use thalweg_engine::Options;

use crate::runtime::random;

/// Maximum size in bytes of the queue of commands that a node has proposed to its consensus.
const MAX_QUEUE_BYTES: usize = 1 << 20;
/// Maximum age of log that a node keeps only so that watches can read past changes. `history_bytes` limits its size.
const HISTORY_AGE: Duration = Duration::from_secs(1);

/// Options with which a node starts. None of them may affect the answers to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeOptions {
    /// Backend that stores the state. It stays the same for as long as the node's directory exists.
    pub backend: BackendKind,
    /// Size of a log segment in bytes.
    pub segment_bytes: u32,
    /// Maximum length in bytes of a value that the state stores itself. For a longer value, the state stores only its
    /// position in the log.
    pub inline_value_bytes: usize,
    /// Size in bytes at which a memtable is persisted.
    pub memtable_bytes: usize,
    /// Maximum number of bytes that the log grows after the state was last persisted. Then the node persists the state
    /// again.
    pub max_replay_bytes: u64,
    /// Maximum number of bytes of log that a node keeps only for slow followers and for watches of past changes.
    pub history_bytes: u64,
    /// Mean time between two runs of the database's maintenance.
    pub maintenance_pause: Duration,
    /// Number of bytes of the state (keys and values in the store) that each chunk of a snapshot contains.
    pub chunk_bytes: usize,
}

fn pick(from: &[u64]) -> u64 {
    from[random(0..from.len() as u64) as usize]
}

impl NodeOptions {
    /// Draws random options for a node, including its backend.
    #[must_use]
    pub fn random() -> Self {
        Self::with_backend(match random(0..3) {
            0 => BackendKind::Memory,
            1 => BackendKind::Lsm,
            _ => BackendKind::Redb,
        })
    }

    /// Draws random options for a node whose directory already has data of the kind `backend`.
    #[must_use]
    pub fn with_backend(backend: BackendKind) -> Self {
        Self {
            backend,
            segment_bytes: pick(&[64 * 1024, 64 * 1024, 256 * 1024]) as u32,
            inline_value_bytes: pick(&[128, 512, 4096]) as usize,
            memtable_bytes: pick(&[64 * 1024, 1024 * 1024]) as usize,
            max_replay_bytes: pick(&[16 * 1024, 64 * 1024, 256 * 1024]),
            history_bytes: pick(&[0, 0, 128 * 1024]),
            maintenance_pause: Duration::from_millis(pick(&[100, 250, 800])),
            chunk_bytes: pick(&[2 * 1024, 16 * 1024, 1024 * 1024]) as usize,
        }
    }

    /// Returns these options in the form in which the engine takes them when it opens the node's database.
    #[must_use]
    pub fn database(&self) -> Options {
        Options {
            backend: Some(self.backend),
            segment_bytes: self.segment_bytes,
            reserve_bytes: 0,
            history_bytes: self.history_bytes,
            history_age: HISTORY_AGE,
            inline_value_bytes: self.inline_value_bytes,
            cache_bytes: 4 << 20,
            memtable_bytes: self.memtable_bytes,
            max_queue_bytes: MAX_QUEUE_BYTES,
            max_replay_bytes: self.max_replay_bytes,
            max_clock_jump: Duration::ZERO,
            ..Options::default()
        }
    }
}

/// Number of table directories that this process has created. It makes the name of each directory unique.
static DIRECTORIES: AtomicU64 = AtomicU64::new(0);

/// A real directory for the tables of a node's LSM tree, removed with the node.
#[derive(Debug)]
pub struct Tables {
    dir: PathBuf,
    /// Bytes of the tables in which the simulation has flipped a bit, each as the path of its table, its offset, and
    /// its value after the flip.
    flips: RefCell<Vec<(PathBuf, usize, u8)>>,
}

impl Default for Tables {
    fn default() -> Self {
        let number = DIRECTORIES.fetch_add(1, Relaxed);
        Self { dir: all_tables().join(number.to_string()), flips: RefCell::default() }
    }
}

/// Returns the directory that contains the table directories of all nodes of this process.
fn all_tables() -> PathBuf {
    std::env::temp_dir().join(format!("thalweg-sim-tables-{}", std::process::id()))
}

/// Removes the LSM tables of the nodes of all simulations of this process. Called before the process ends.
pub fn remove_tables() {
    // If the removal fails, the tables only take space: later processes use other directories.
    let _ = fs::remove_dir_all(all_tables());
}

impl Tables {
    /// Removes all tables of the node's LSM tree.
    pub fn clear(&self) {
        // An error is ignored, because the directory may be missing.
        let _ = fs::remove_dir_all(&self.dir);
    }

    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// Returns true if a table with a flipped bit still exists. The LSM tree never changes a table, it only removes
    /// tables.
    pub(crate) fn are_flipped(&self) -> bool {
        let is_flipped = |(path, at, flipped): &(PathBuf, usize, u8)| {
            fs::read(path).is_ok_and(|bytes| bytes.get(*at) == Some(flipped))
        };
        self.flips.borrow().iter().any(is_flipped)
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Flips a random bit of a random table. Returns a description of the bit's position; `None` if there are no tables.
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
    tables.flips.borrow_mut().push((path.clone(), at, bytes[at]));
    fs::write(path, bytes).ok()?;
    Some(format!("{} at {at}", path.file_name()?.display()))
}
