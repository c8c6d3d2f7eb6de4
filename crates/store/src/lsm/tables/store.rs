//! The tables on disk as a whole: adding to them and keeping them in shape.
//!
//! Owns: [`TableStore`], the only place that writes through the LSM crate: new tables from a memtable,
//! compaction, and which tables are current. Does not own: when to do which, or the log barrier that
//! must come before a flush.
//!
//! How the crate is used, and why:
//! * Its memtables, its reads and its snapshots are not used. A [`TableSet`] pins the tables it names,
//!   so whatever a reader can still see stays on disk without the crate knowing of readers. Hence
//!   compactions may drop every hidden version, and old manifests can go at once.
//! * A flush writes each key once. All of a flush's items have one seqno, and seqnos rise from flush to
//!   flush, from 2^32 up: far from the private counters that the crate draws from for its own manifests.
//! * What a flush had applied is one more item of it, under a key that sorts behind all others. It
//!   becomes current in the same manifest write as the data it describes, so it can't lie, and sorting
//!   last it makes only the last table of a level overlap what comes later.
//! * `clear` and `drop_range` are never called.

use std::{
    collections::{HashMap, HashSet},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lsm_tree::{
    AbstractTree, AnyTree, Cache, CompressionType, Config, InternalValue, SequenceNumberCounter, Tree, ValueType,
    compaction::Leveled,
    config::HashRatioPolicy,
    config::{BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry},
    config::{PartitioningPolicy, PinningPolicy, RestartIntervalPolicy},
};

use super::{
    cache::BlockCache,
    discarding::Discarding,
    growing::Growth,
    pace::{Chore, Pace},
    set::{Run, TableSet},
    table::{Found, Table},
};
use crate::{
    backend::{Applied, BackendError},
    memtable::{BatchNumber, Entry, Memtable},
};

/// Keys from here on are the backend's own.
pub const RESERVED: &[u8] = &[0xff];
/// Under this key each flush says what it had applied.
const APPLIED_KEY: &[u8] = b"\xffapplied";

const FIRST_SEQNO: u64 = 1 << 32;
/// Above every seqno of an item and below what the crate's counters refuse.
const EVERYTHING: u64 = 1 << 62;
const BLOCK_BYTES: u32 = 16 * 1024;
const FILTER_BITS_PER_KEY: f32 = 10.0;
const CRATE_CACHE_BYTES: u64 = 1 << 20;
/// Flushes on level 0 that start a compaction into the next level.
const LEVEL_0_FLUSHES: u8 = 4;

/// How tables are laid out.
#[derive(Clone, Copy, Debug)]
pub struct TableOptions {
    /// Bytes of blocks kept in memory.
    pub cache_bytes: u64,
    /// Bytes at which a compaction begins the next table.
    pub table_bytes: u64,
}

/// See the module. Methods may be called from any thread.
pub struct TableStore {
    tree: Tree,
    cache: Arc<BlockCache>,
    growth: Growth,
    pace: Arc<Pace>,
    discarding: Discarding,
    table_bytes: u64,
    /// The newest set and the next flush's seqno. Held while a set is read from the crate, so that sets
    /// never go back.
    newest: Mutex<Newest>,
}

/// Where a table comes from.
#[derive(Clone, Copy)]
enum Origin {
    /// There at open.
    Found,
    /// Written by this process.
    Written,
}

struct Newest {
    set: Arc<TableSet>,
    next_seqno: u64,
}

impl TableStore {
    /// Opens the tables in a directory, which is created if missing.
    pub fn open(dir: &Path, options: TableOptions) -> Result<Self, BackendError> {
        let cache = Arc::new(BlockCache::new(options.cache_bytes));
        let pace = Arc::default();
        let growth = Growth::of(dir, &pace);
        let config = config(dir).with_compaction_filter_factory(Some(Arc::new(growth.clone())));
        let tree = match guarded("open", || config.open())? {
            AnyTree::Standard(tree) => tree,
            AnyTree::Blob(_) => return Err(corrupt(dir, "the directory holds a tree of another kind")),
        };
        growth.begin(tree.get_next_table_id());
        let start = |error: std::io::Error| BackendError::Io { operation: "start thread", message: error.to_string() };
        let discarding = Discarding::start().map_err(start)?;
        let next_seqno = tree.get_highest_persisted_seqno().map_or(FIRST_SEQNO, |highest| highest + 1);
        let newest = Newest { set: Arc::default(), next_seqno: next_seqno.max(FIRST_SEQNO) };
        let table_bytes = options.table_bytes;
        let store = Self { tree, cache, growth, pace, discarding, table_bytes, newest: Mutex::new(newest) };
        store.refresh(&mut store.lock(), Origin::Found)?;
        Ok(store)
    }

    /// How much of the machine its flushes and compactions take.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// The newest tables.
    pub fn newest(&self) -> Arc<TableSet> {
        Arc::clone(&self.lock().set)
    }

    /// What the newest tables have applied.
    pub fn applied(&self) -> Result<Option<Applied>, BackendError> {
        let set = self.newest();
        match set.get(APPLIED_KEY)? {
            Some(Found::Value(bytes)) => {
                let corrupt = || corrupt(&self.tree.config.path, "the record of what was applied can't be read");
                Applied::decode(&bytes, corrupt).map(Some)
            }
            _ if set.is_empty() => Ok(None),
            _ => Err(corrupt(&self.tree.config.path, "no table says what was applied")),
        }
    }

    /// Writes all of a memtable into tables and makes them current, durably. Returns the bytes written.
    pub fn flush(&self, memtable: &Memtable, applied: Applied) -> Result<u64, BackendError> {
        let seqno = {
            let mut newest = self.lock();
            newest.next_seqno += 1;
            newest.next_seqno - 1
        };
        let items = memtable.iter(BatchNumber::MAX).map(|(key, entry)| match entry {
            Entry::Value(value) => InternalValue::from_components(key, value, seqno, ValueType::Value),
            Entry::Deleted => InternalValue::new_tombstone(key, seqno),
        });
        let last = InternalValue::from_components(APPLIED_KEY, applied.encode(), seqno, ValueType::Value);
        let mut growing = self.growth.watch(Chore::Flush);
        let items = items.chain([last]).map(|item| {
            growing.add(item.key.user_key.len() + item.value.len());
            Ok(item)
        });
        let written_bytes = guarded("flush", || {
            let Some((tables, _)) = self.tree.flush_to_tables(items)? else { return Ok(0) };
            self.tree.register_tables(&tables, None, None, &[], EVERYTHING)?;
            Ok(tables.iter().map(|table| table.metadata.file_size).sum())
        })?;
        self.refresh(&mut self.lock(), Origin::Written)?;
        Ok(written_bytes)
    }

    /// Does the most urgent compaction. Returns the bytes written; `None` if nothing was due.
    pub fn compact(&self) -> Result<Option<u64>, BackendError> {
        let before = self.newest();
        let strategy = Leveled::default().with_l0_threshold(LEVEL_0_FLUSHES).with_table_target_size(self.table_bytes);
        guarded("compaction", || self.tree.compact(Arc::new(strategy), EVERYTHING))?;
        self.compacted_since(&before)
    }

    /// Merges all tables into one run. Returns the bytes written; `None` if there was nothing to do.
    pub fn compact_all(&self) -> Result<Option<u64>, BackendError> {
        let before = self.newest();
        // Deleted pairs are left behind only on the way to the last level.
        if before.tables_per_level().split_last().is_none_or(|(_, above)| above.iter().all(|tables| *tables == 0)) {
            return Ok(None);
        }
        guarded("compaction", || self.tree.major_compact(self.table_bytes, EVERYTHING))?;
        self.compacted_since(&before)
    }

    /// Makes the tables that a compaction has left current. Returns the bytes it wrote; `None` if it did nothing.
    fn compacted_since(&self, before: &TableSet) -> Result<Option<u64>, BackendError> {
        let set = self.refresh(&mut self.lock(), Origin::Written)?;
        // A flush may have come meanwhile; it only adds to level 0.
        let known: HashSet<u64> = before.tables().map(|table| table.id()).collect();
        let below: Vec<_> = set.tables_below_level_0().collect();
        let written_bytes =
            below.iter().filter(|table| !known.contains(&table.id())).map(|table| table.file_bytes()).sum();
        let same = below.into_iter().map(|table| table.id()).eq(before.tables_below_level_0().map(|table| table.id()))
            && before.tables_per_level().get(1..) == set.tables_per_level().get(1..);
        Ok((!same).then_some(written_bytes))
    }

    /// Reads blocks of tables written since open into memory while there is room for them, newest data first:
    /// what was just written is likely to be read, and its pages are still in the kernel's memory. Ends early
    /// when `go_on` says so; then, and only then, false.
    pub fn warm(&self, go_on: &dyn Fn() -> bool) -> Result<bool, BackendError> {
        for table in self.newest().tables() {
            if !table.warm(go_on)? {
                // Full: what is read from now on decides what stays.
                return Ok(go_on());
            }
        }
        Ok(true)
    }

    /// Bytes of blocks in memory.
    pub fn cached_bytes(&self) -> u64 {
        self.cache.bytes()
    }

    fn lock(&self) -> MutexGuard<'_, Newest> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_table(&self, table: lsm_tree::Table, origin: Origin) -> Result<Table, BackendError> {
        let table = Table::open(table, Arc::clone(&self.cache), &self.discarding)?;
        Ok(match origin {
            Origin::Written => table,
            Origin::Found => table.leave_cold(),
        })
    }

    /// Reads the current tables from the crate, opening those that are new.
    fn refresh(&self, newest: &mut Newest, origin: Origin) -> Result<Arc<TableSet>, BackendError> {
        let known: HashMap<u64, &Arc<Table>> = newest.set.tables().map(|table| (table.id(), table)).collect();
        let mut set = TableSet::default();
        let version = self.tree.current_version();
        for (level, runs) in version.iter_levels().enumerate() {
            set.tables_per_level.push(runs.table_count() as u64);
            if level == 0 {
                set.level_0_runs = runs.run_count();
            }
            for run in runs.iter() {
                let mut tables = Vec::with_capacity(run.len());
                for table in run.iter() {
                    tables.push(match known.get(&table.id()) {
                        Some(table) => Arc::clone(table),
                        None => Arc::new(self.open_table(table.clone(), origin)?),
                    });
                }
                set.runs.push(Run::new(tables));
            }
        }
        newest.set = Arc::new(set);
        Ok(Arc::clone(&newest.set))
    }
}

fn config(dir: &Path) -> Config {
    let bloom = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(FILTER_BITS_PER_KEY));
    Config::new(dir, SequenceNumberCounter::default(), SequenceNumberCounter::default())
        // For what the crate reads through it while it opens a table; blocks of data are in a cache of our own.
        .use_cache(Arc::new(Cache::with_capacity_bytes(CRATE_CACHE_BYTES)))
        .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES))
        .data_block_restart_interval_policy(RestartIntervalPolicy::all(1))
        .data_block_hash_ratio_policy(HashRatioPolicy::all(0.0))
        // Said although it is our build's default: another crate in the same build may turn on the crate's
        // compression, and with it another default.
        .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
        .index_block_compression_policy(CompressionPolicy::all(CompressionType::None))
        .filter_policy(FilterPolicy::all(bloom))
        .filter_block_partitioning_policy(PartitioningPolicy::all(false))
        // Tables keep an index and a filter of their own; the crate needs its ones only while it opens a table.
        .filter_block_pinning_policy(PinningPolicy::all(false))
        .index_block_pinning_policy(PinningPolicy::all(false))
        .index_block_partitioning_policy(PartitioningPolicy::all(false))
}

/// Runs a call into the crate. It panics on some damage; that is an error like any other here.
fn guarded<T>(operation: &'static str, call: impl FnOnce() -> lsm_tree::Result<T>) -> Result<T, BackendError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(lsm_tree::Error::Io(error))) => Err(BackendError::Io { operation, message: error.to_string() }),
        Ok(Err(error)) => Err(BackendError::Corrupt { what: operation.to_owned(), message: error.to_string() }),
        Err(panic) => {
            let message = panic.downcast_ref::<String>().cloned();
            let message = message.or_else(|| panic.downcast_ref::<&str>().map(|message| (*message).to_owned()));
            let message = message.unwrap_or_else(|| "it panicked".to_owned());
            Err(BackendError::Corrupt { what: operation.to_owned(), message })
        }
    }
}

fn corrupt(dir: &Path, message: &str) -> BackendError {
    BackendError::Corrupt { what: dir.display().to_string(), message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::ops::{Bound, ControlFlow};

    use super::{
        super::cursor::{Reads, RunCursor, Span},
        *,
    };
    use crate::backend::{Direction, WriteBatch};

    /// Opens a store below `dir` and flushes 1 MiB of pairs into it.
    fn filled(dir: &Path, cache_bytes: u64) -> TableStore {
        let store = TableStore::open(dir, TableOptions { cache_bytes, table_bytes: 64 << 20 }).unwrap();
        let (memtable, mut writer) = Memtable::create(4 << 20);
        let mut batch = WriteBatch::new();
        (0..10_000_u32).for_each(|number| batch.put(&[b"k", &number.to_be_bytes()], &[&[7; 100]]));
        writer.apply(&batch).unwrap();
        store.flush(&memtable, Applied::default()).unwrap();
        store
    }

    #[test]
    fn what_was_written_is_read_ahead_and_what_was_found_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let store = filled(dir.path(), 64 << 20);
        assert!(!store.warm(&|| false).unwrap(), "told to stop");
        assert_eq!(store.cached_bytes(), 0);
        assert!(store.warm(&|| true).unwrap());
        let all = store.cached_bytes();
        assert!(all > 10_000 * 100, "{all} bytes in memory");
        assert!(store.warm(&|| true).unwrap());
        assert_eq!(store.cached_bytes(), all, "nothing is left to read");
        drop(store);
        let reopened = TableStore::open(dir.path(), TableOptions { cache_bytes: 64 << 20, table_bytes: 64 << 20 });
        let reopened = reopened.unwrap();
        assert!(reopened.warm(&|| true).unwrap());
        assert_eq!(reopened.cached_bytes(), 0);
    }

    #[test]
    fn a_walk_keeps_blocks_in_memory_unless_they_are_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = filled(dir.path(), 64 << 20);
        let set = store.newest();
        let walk = |reads| {
            let (lower, upper) = (Bound::Unbounded, Bound::Excluded(RESERVED));
            let span = Span { lower, upper, direction: Direction::Forward, reads };
            let mut pairs = 0;
            let mut cursor = RunCursor::open(set.runs()[0].tables(), span).unwrap().unwrap();
            let mut visit = |_: &[u8], value: &[u8]| {
                assert_eq!(value, [7; 100]);
                pairs += 1;
                ControlFlow::Continue(())
            };
            cursor.walk(&mut visit).unwrap();
            (pairs, store.cached_bytes())
        };
        assert_eq!(walk(Reads::Once), (10_000, 0));
        let (pairs, cached) = walk(Reads::Again);
        assert!(pairs == 10_000 && cached > 10_000 * 100, "{cached} bytes in memory");
        assert_eq!(walk(Reads::Once), (10_000, cached), "what is in memory is used");
    }

    #[test]
    fn reading_ahead_ends_where_it_would_push_something_out() {
        let dir = tempfile::tempdir().unwrap();
        let capacity = super::super::cache::ROOM_LEFT_BYTES + (200 << 10);
        let store = filled(dir.path(), capacity);
        assert!(store.warm(&|| true).unwrap(), "full is finished");
        assert!((100 << 10..=capacity).contains(&store.cached_bytes()), "{} bytes in memory", store.cached_bytes());
    }
}
