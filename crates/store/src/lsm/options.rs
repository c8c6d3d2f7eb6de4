//! How the LSM backend behaves.

use std::{path::PathBuf, time::Duration};

/// When tables are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Compaction {
    /// As they come: reads stay fast, space stays small.
    #[default]
    Automatic,
    /// Only by [`compact`](crate::backend::Backend::compact): for loading much at once, and for measuring. Every flush
    /// makes another table that each read must ask, so whoever chooses this asks in time.
    WhenAsked,
}

/// Options of [`LsmBackend`](super::LsmBackend). Memory in all: `cache_bytes`, plus `memtable_bytes`
/// times `max_sealed + 2` (one takes writes, one is kept for the next) and about a tenth for hash indexes,
/// plus 2 bytes per key on disk for filters and block indexes. One open file per table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LsmOptions {
    /// Directory of the tables. Created if missing.
    pub dir: PathBuf,
    /// Bytes of table blocks kept in memory, with 12 bytes per key to find it by. Less costs a read from
    /// disk for what doesn't fit.
    pub cache_bytes: u64,
    /// Bytes a memtable takes before it is flushed. More takes memory, and time at open to replay what
    /// was not flushed; less makes more and smaller tables, and so more compaction.
    pub memtable_bytes: usize,
    /// Sealed memtables that may wait for a flush; beyond it, writes wait. More takes memory and rides
    /// out longer bursts.
    pub max_sealed: usize,
    /// Bytes at which compaction begins the next table; at 4 times as many, level 0 and level 1 are
    /// full. More makes fewer, longer compactions; less more files.
    pub table_bytes: u64,
    /// When tables are merged.
    pub compaction: Compaction,
    /// Longest time that one write waits for flushes and compactions to catch up. After that the
    /// backend counts as failed, because its memory would grow without bound.
    pub max_stall: Duration,
    /// [`maintain`](crate::backend::Backend::maintain) flushes when this many log records have been
    /// applied since the last flush, however few bytes they left here: replay at open is bounded by it.
    pub max_unflushed_records: u64,
}

impl LsmOptions {
    /// The defaults, in a directory.
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
