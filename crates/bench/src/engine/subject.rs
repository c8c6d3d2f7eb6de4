//! Traits of a key-value store that the engine suite measures, so that other stores can run the same workloads.

use std::{fmt, ops::Range, path::Path};

use thalweg_engine::Compaction;

use crate::{BenchError, data::Values};

/// Durability level of a store's writes: the time at which a put is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// A put is acknowledged after the write to the kernel. An fsync follows within a second.
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

/// Options with which a new store is opened.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Durability level of every write.
    pub level: Level,
    /// Size of the block or page cache in bytes.
    pub cache_bytes: u64,
    /// Size of the memtable in bytes; `None` for the store's default. Stores without a memtable ignore this option.
    pub memtable_bytes: Option<u64>,
    /// Choice of when the store merges tables: by its own schedule, or only on request. Some stores always merge by
    /// their own schedule, and ignore this option.
    pub compaction: Compaction,
}

/// Result of reading a key and comparing its value with the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupResult {
    /// The store has no value for the key.
    Missing,
    /// The key has the expected value.
    Right,
    /// The store has another value for the key than the expected one.
    Wrong,
}

/// A kind of store that the suite can open and measure.
pub trait Contender: Sync {
    /// Name of the store in reports. For stores of other systems it includes the version.
    fn name(&self) -> &str;
    /// Describes how the store works, for the head of the report.
    fn describe(&self) -> String;
    /// Opens a new store in the empty directory `dir`.
    fn open(&self, dir: &Path, options: &StoreOptions) -> Result<Box<dyn KvSubject>, BenchError>;
}

/// Key and value of a pair to be written.
pub type Pair<'a> = (&'a [u8], &'a [u8]);

/// Callback that gets the key and the value of each pair of a range, in key order.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) + 'a;

/// An open store with one map from keys to values. Dropping it leaves its files. The caller removes the directory.
pub trait KvSubject: Send + Sync {
    /// Writes one pair at the durability level with which the store was opened.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), BenchError>;
    /// Writes several pairs of key and value atomically.
    fn put_batch(&self, pairs: &[Pair<'_>]) -> Result<(), BenchError>;
    /// Writes the pairs with these indices from `tasks` concurrent tasks on the calling thread. Returns `None` if the
    /// store has only blocking writes.
    fn put_by_tasks(&self, _tasks: usize, _indices: Range<u64>, _values: &Values) -> Option<Result<(), BenchError>> {
        None
    }
    /// Deletes a key from the store.
    fn delete(&self, key: &[u8]) -> Result<(), BenchError>;
    /// Reads a key and compares its value with `expected`.
    fn get(&self, key: &[u8], expected: &[u8]) -> Result<LookupResult, BenchError>;
    /// Calls `visit` for each pair with `start <= key < end`, in key order.
    fn range(&self, start: &[u8], end: &[u8], visit: &mut Visit<'_>) -> Result<(), BenchError>;
    /// Flushes everything written so far into tables on disk.
    fn flush(&self) -> Result<(), BenchError>;
    /// Waits until the store's background flushes and compactions have ended.
    fn settle(&self) -> Result<(), BenchError>;
    /// Compacts the store, if it compacts on request. For other stores, only waits until background flushes and
    /// compactions have ended, as [`settle`](Self::settle) does.
    fn compact(&self) -> Result<(), BenchError> {
        self.settle()
    }
    /// Returns the number of tables; `None` if the store has no tables.
    fn tables(&self) -> Option<u64>;
    /// Returns the bytes of the tables, or of the data file; `None` if they are not known.
    fn data_bytes(&self) -> Option<u64>;
    /// Returns the number of fsyncs since the store was opened; `None` if the store does not count them.
    fn fsyncs(&self) -> Option<u64>;
}
