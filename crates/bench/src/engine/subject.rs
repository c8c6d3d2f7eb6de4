//! The traits of a key-value store that the engine suite measures, so that other stores can run the same workloads.

use std::{fmt, ops::Range, path::Path};

use thalweg_engine::Compaction;

use crate::{BenchError, data::Values};

/// The moment at which a put is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// A put is acknowledged when the kernel has it; an fsync follows at most a second later.
    Interval,
    /// A put is acknowledged after its fsync.
    Disk,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interval => "interval 1s",
            Self::Disk => "disk",
        })
    }
}

/// Options of a new store.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Level of every write.
    pub level: Level,
    /// Block or page cache.
    pub cache_bytes: u64,
    /// Memtable; `None` for the store's default. Stores without one ignore it.
    pub memtable_bytes: Option<u64>,
    /// When tables are merged. A store that does not let [`KvSubject::compact`] decide merges them by its own schedule.
    pub compaction: Compaction,
}

/// Result of a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupResult {
    /// The key has no value.
    Missing,
    /// The key has the expected value.
    Right,
    /// The key has another value.
    Wrong,
}

/// A store that can be measured.
pub trait Contender: Sync {
    /// Its name in reports, with its version if it is not ours.
    fn name(&self) -> &str;
    /// Describes the store's make, for the report's head.
    fn describe(&self) -> String;
    /// Opens a new store in an empty directory.
    fn open(&self, dir: &Path, options: &StoreOptions) -> Result<Box<dyn KvSubject>, BenchError>;
}

/// A pair to be written.
pub type Pair<'a> = (&'a [u8], &'a [u8]);

/// Callback of a range for each pair, in order.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) + 'a;

/// An open store with one map. Its files go away with the directory, not with it.
pub trait KvSubject: Send + Sync {
    /// Writes one pair at the store's level.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), BenchError>;
    /// Writes pairs atomically.
    fn put_batch(&self, pairs: &[Pair<'_>]) -> Result<(), BenchError>;
    /// Writes the pairs of the indices from concurrent tasks on this thread. Returns `None` if the store can only
    /// block.
    fn put_by_tasks(&self, _tasks: usize, _indices: Range<u64>, _values: &Values) -> Option<Result<(), BenchError>> {
        None
    }
    /// Removes a key.
    fn delete(&self, key: &[u8]) -> Result<(), BenchError>;
    /// Reads a key and compares its value.
    fn get(&self, key: &[u8], expected: &[u8]) -> Result<LookupResult, BenchError>;
    /// Visits the pairs with `start <= key < end` in order.
    fn range(&self, start: &[u8], end: &[u8], visit: &mut Visit<'_>) -> Result<(), BenchError>;
    /// Puts everything written so far into tables on disk.
    fn flush(&self) -> Result<(), BenchError>;
    /// Waits until flushes and compactions that go on by themselves have ended.
    fn settle(&self) -> Result<(), BenchError>;
    /// Compacts as far as the store does when asked; one that goes by its own schedule only settles.
    fn compact(&self) -> Result<(), BenchError> {
        self.settle()
    }
    /// Number of tables, where there are such.
    fn tables(&self) -> Option<u64>;
    /// Bytes of the tables or of the data file.
    fn data_bytes(&self) -> Option<u64>;
    /// Returns the fsyncs since the store was opened, if it counts them.
    fn fsyncs(&self) -> Option<u64>;
}
