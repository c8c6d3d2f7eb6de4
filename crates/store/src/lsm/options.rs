//! Options of the LSM backend.

use std::{path::PathBuf, time::Duration};

/// Choice of when tables are compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Compaction {
    /// A background thread compacts as tables accumulate. Reads stay fast and disk usage small.
    #[default]
    Automatic,
    /// Only [`compact`](crate::backend::Backend::compact) compacts. For bulk loads and for measurements. Every
    /// flush adds a table that each read must search, so the caller must compact in time.
    WhenAsked,
}

/// Options of [`LsmBackend`](super::LsmBackend). Total memory: `cache_bytes`, plus `memtable_bytes` times
/// `max_sealed + 2` (one takes writes, one is kept for the next) and about a tenth more for hash indexes, plus 2
/// bytes for each key on disk for filters and block indexes. One open file for each table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LsmOptions {
    /// Directory of the tables. Created if missing.
    pub dir: PathBuf,
    /// Bytes of table blocks in memory, including 12 bytes of index for each key. Less costs a disk read for blocks
    /// that don't fit.
    pub cache_bytes: u64,
    /// Bytes at which a memtable is sealed and flushed. More takes memory, and time at open to replay batches that
    /// were not flushed; less makes more and smaller tables, and so more compaction.
    pub memtable_bytes: usize,
    /// Maximum number of sealed memtables that wait for a flush; beyond it, writes wait. More takes memory and
    /// absorbs longer bursts.
    pub max_sealed: usize,
    /// Bytes at which a compaction begins the next table. Levels 0 and 1 are full at 4 times this size. More makes
    /// fewer and longer compactions; less makes more files.
    pub table_bytes: u64,
    /// Choice of when tables are compacted.
    pub compaction: Compaction,
    /// Maximum time that one write waits for flushes and compactions to catch up. After that the backend fails,
    /// because its memory would grow without bound.
    pub max_stall: Duration,
    /// Number of log records, applied since the last flush, after which
    /// [`maintain`](crate::backend::Backend::maintain) flushes, even if their changes are small. It bounds the
    /// replay at open.
    pub max_unflushed_records: u64,
}

impl LsmOptions {
    /// Default options with the given directory.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            cache_bytes: 256 << 20,
            memtable_bytes: 64 << 20,
            max_sealed: 3,
            table_bytes: 64 << 20,
            compaction: Compaction::Automatic,
            max_stall: Duration::from_secs(60),
            max_unflushed_records: 1_000_000,
        }
    }
}
