//! Options of the LSM backend, which stores the state in an LSM tree.

use std::{path::PathBuf, sync::Arc, time::Duration};

use thalweg_disk::Pacer;

use crate::buffered::Background;

/// Choice of when the tables of the LSM tree are compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Compaction {
    /// A background thread compacts tables as they accumulate. Reads stay fast and disk usage stays small.
    #[default]
    Automatic,
    /// Tables are compacted only when a caller calls [`compact`](crate::backend::Backend::compact). For bulk loads and
    /// for measurements. Every flush adds a table that each read must search, so the caller must compact in time.
    WhenAsked,
}

/// Compression of the tables below level 0 of the LSM tree. Tables keep the compression with which they were written
/// until a compaction rewrites them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TableCompression {
    /// Tables are not compressed. A read of a block costs the least time.
    #[default]
    None,
    /// LZ4, in builds with the feature `lz4`. Takes less disk space; reads of blocks and compactions take more
    /// processor time.
    Lz4,
}

impl TableCompression {
    /// Returns the name by which configurations select the compression, such as `lz4`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
        }
    }
}

/// Options of [`LsmBackend`](super::LsmBackend). Total memory: `cache_bytes`, plus `memtable_bytes` times `max_sealed +
/// 2` (one memtable takes writes, and the memory of another is kept for the next) and about a tenth more for hash
/// indexes, plus 2 bytes for each key on disk for filters and block indexes. Each table takes one open file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LsmOptions {
    /// Directory of the tables (the sorted files of the LSM tree). Created if missing.
    pub dir: PathBuf,
    /// Maximum size in bytes of the table blocks kept in memory, including 12 bytes of index for each key in a block.
    /// If it is smaller than the data that is read often, reads of other blocks read the disk.
    pub cache_bytes: u64,
    /// Size in bytes of the memory that the kernel has for pages of files. If the tables are larger than this, newly
    /// written tables are removed from that memory: otherwise the kernel would evict other pages for them while other
    /// threads wait. Affects only speed.
    pub page_cache_bytes: u64,
    /// Size in bytes at which a memtable is sealed and flushed. A larger size takes more memory, and more time at open
    /// to replay batches that were not flushed; a smaller size causes more and smaller tables, and so more compaction.
    pub memtable_bytes: usize,
    /// Maximum number of sealed memtables that wait for a flush; at this number, writes that need another memtable
    /// wait. A larger number takes more memory and absorbs longer bursts of writes.
    pub max_sealed: usize,
    /// Size in bytes at which a compaction begins a new table. Levels 0 and 1 are full at 4 times this size. A larger
    /// size causes fewer and longer compactions; a smaller size causes more files.
    pub table_bytes: u64,
    /// Compression of the tables below level 0. A directory may be opened with another choice each time; existing
    /// tables change when they are compacted.
    pub compression: TableCompression,
    /// Choice of when the tables are compacted: automatically or only on request.
    pub compaction: Compaction,
    /// Maximum time that a write waits while flushes and compactions write nothing. If the wait is longer, the backend
    /// fails, because its memory would grow without bound. As long as they write, the write waits.
    pub max_stall: Duration,
    /// Number of log records, applied since the last flush, after which [`maintain`](crate::backend::Backend::maintain)
    /// flushes the memtables, even if they are small. This bounds the replay at open.
    pub max_unflushed_records: u64,
    /// Choice of threads that flush memtables and compact tables: the backend's own, or the caller's.
    pub background: Background,
    /// Scheduler of background work on the disk, shared with the log if the log is on this disk. `None` creates a
    /// scheduler for this backend alone.
    pub pacer: Option<Arc<Pacer>>,
}

impl LsmOptions {
    /// Creates the default options with the given directory.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            cache_bytes: 256 << 20,
            page_cache_bytes: u64::MAX,
            memtable_bytes: 64 << 20,
            max_sealed: 3,
            table_bytes: 64 << 20,
            compression: TableCompression::None,
            compaction: Compaction::Automatic,
            max_stall: Duration::from_secs(60),
            max_unflushed_records: 1_000_000,
            background: Background::Threads,
            pacer: None,
        }
    }

    /// Returns the scheduler of background disk work (the pacer) from the options, or a new one. A backend without
    /// threads gets a pacer that never pauses.
    pub(super) fn pacer(&self) -> Arc<Pacer> {
        match (&self.pacer, self.background) {
            (Some(pacer), _) => Arc::clone(pacer),
            (None, Background::Threads) => Arc::default(),
            (None, Background::Stepped) => Arc::new(Pacer::stepped()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pacer_is_the_given_one_or_one_of_the_backend_alone() {
        let alone = LsmOptions::new("state");
        assert!(!Arc::ptr_eq(&alone.pacer(), &alone.pacer()));
        let pacer = Arc::new(Pacer::default());
        for background in [Background::Threads, Background::Stepped] {
            let shared = LsmOptions { pacer: Some(Arc::clone(&pacer)), background, ..LsmOptions::new("state") };
            assert!(Arc::ptr_eq(&shared.pacer(), &pacer));
            assert_eq!(shared, shared.clone());
            assert_ne!(shared, LsmOptions { pacer: None, ..shared.clone() });
        }
        let stepped = LsmOptions { background: Background::Stepped, ..alone };
        assert!(stepped.pacer().is_stepped());
    }
}
