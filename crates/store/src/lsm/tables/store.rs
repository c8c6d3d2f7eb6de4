//! All tables of the state on disk.
//!
//! Owns: [`TableStore`], the only code that writes through the LSM crate: creating tables from a memtable, compaction,
//! and the set of current tables. Does not own: the decision when to flush or compact, or the log barrier that must
//! come before a flush.
//!
//! Use of the LSM crate, with reasons:
//! * The memtables, reads and snapshots of the crate are not used. A [`TableSet`] keeps its tables open, so all data
//!   that a reader can see stays on disk without the crate's knowledge of readers. So compactions may drop every hidden
//!   version, and old manifests can be deleted immediately.
//! * A flush writes each key once. All items of a flush have one seqno, and seqnos increase from flush to flush. They
//!   start at 2^32, far above the private counters that the crate uses for its own manifests.
//! * The applied position of a flush is one more item, under a key that sorts after all others. It becomes current in
//!   the same manifest write as the data it describes, so the two always agree. Because the key sorts last, only the
//!   last table of a level overlaps later flushes.
//! * `clear` and `drop_range` are never called.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use lsm_tree::{AbstractTree, AnyTree, CompressionType, InternalValue, Tree, ValueType, compaction::Leveled};
use thalweg_disk::Pacer;

use super::{
    cache::BlockCache,
    config::{compression_type, config},
    discarding::Discarding,
    manifest,
    partial::PartialTables,
    private,
    seqno::{self, EVERYTHING},
    set::{Run, TableSet},
    table::{Table, TableEntry},
    throttle::{Throttle, WorkKind},
    writeback::WritebackTracker,
};
use crate::{
    backend::{Applied, BackendError, Change},
    caught::caught,
    files::{io_error, open_os_dir},
    lsm::TableCompression,
};

/// Lowest of the keys that the backend reserves for itself; user keys sort below it.
pub(crate) const RESERVED: &[u8] = &[0xff];
/// Reserved key under which each flush stores the applied position.
const APPLIED_KEY: &[u8] = b"\xffapplied";

/// Divisor: merges that return space to a full disk write tables of the usual size divided by this number. A merge of
/// deletes with small tables needs less free space at a time.
const SLICES_PER_TABLE: u64 = 16;
/// Minimum size in bytes of a table that a merge writes while space is returned to a full disk.
const MIN_SLICE_BYTES: u64 = 1 << 20;
/// Number of sorted runs on level 0, each from one flush, at which a compaction into the next level starts.
const LEVEL_0_FLUSHES: u8 = 4;
/// Value in a table's metadata that marks LZ4-compressed data blocks.
const LZ4_TAG: u8 = 1;

/// Options of the LSM tree's tables on disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableOptions {
    /// Maximum bytes of table blocks kept in the cache.
    pub cache_bytes: u64,
    /// Size in bytes at which a compaction begins a new table.
    pub table_bytes: u64,
    /// Size in bytes of the memory that the kernel has for pages of files.
    pub page_cache_bytes: u64,
    /// Compression of the tables below level 0.
    pub compression: TableCompression,
}

/// All tables in a directory; see the [module](self). Any thread may call the methods.
pub(crate) struct TableStore {
    dir: PathBuf,
    tree: Tree,
    cache: Arc<BlockCache>,
    growth: WritebackTracker,
    pace: Arc<Throttle>,
    discarding: Discarding,
    table_bytes: u64,
    page_cache_bytes: u64,
    /// Compression of tables that are written below level 0.
    compression: CompressionType,
    partial: PartialTables,
    /// Numbers of the tables at the last attempt to return space to the disk, if the attempt freed nothing; else empty.
    /// While the tables are still the same, further attempts are skipped.
    not_reclaimable: Mutex<Vec<u64>>,
    /// The newest set of tables. Readable without a lock, because readers take it while they hold the lock of the
    /// memtables.
    newest: ArcSwap<TableSet>,
    /// Lock that is held while a set is read from the LSM crate and its new files are opened, so that an older set
    /// never replaces a newer one.
    refreshing: Mutex<()>,
    next_seqno: AtomicU64,
}

/// Origin of a table: found at open, or written later.
#[derive(Clone, Copy)]
enum Origin {
    /// The table already existed when the store of tables was opened.
    Found,
    /// This process wrote the table after it opened the store.
    Written,
}

impl TableStore {
    /// Opens the tables in a directory; creates a missing one. `pacer` sets the pauses of flushes and compactions.
    pub(crate) fn open(dir: &Path, options: TableOptions, pacer: Arc<Pacer>) -> Result<Self, BackendError> {
        let compression = compression_type(options.compression)?;
        let disk = open_os_dir(dir)?;
        private::create(dir).map_err(io_error("create directory"))?;
        private::refuse_links(dir).map_err(io_error("open"))?;
        manifest::prepare(dir, &disk)?;
        let cache = Arc::new(BlockCache::new(options.cache_bytes));
        let pace = Arc::new(Throttle::new(pacer));
        let growth = WritebackTracker::of(dir, &pace);
        let config = config(dir, compression).with_compaction_filter_factory(Some(Arc::new(growth.clone())));
        let tree = match catch_panics("open", || config.open())? {
            AnyTree::Standard(tree) => tree,
            AnyTree::Blob(_) => {
                return Err(BackendError::corrupt(dir.display(), "the directory holds a tree of another kind"));
            }
        };
        growth.begin(tree.get_next_table_id());
        let discarding = Discarding::start(pace.pacer()).map_err(io_error("start thread"))?;
        let highest = catch_panics("open", || Ok(tree.get_highest_persisted_seqno()))?;
        let next_seqno = seqno::after(highest)
            .ok_or_else(|| BackendError::corrupt(dir.display(), "a table has a sequence number that no flush gives"))?;
        let store = Self {
            dir: dir.to_owned(),
            tree,
            cache,
            growth,
            pace,
            discarding,
            table_bytes: options.table_bytes,
            page_cache_bytes: options.page_cache_bytes,
            compression,
            partial: PartialTables::in_dir(dir),
            not_reclaimable: Mutex::default(),
            newest: ArcSwap::default(),
            refreshing: Mutex::default(),
            next_seqno: AtomicU64::new(next_seqno),
        };
        store.refresh(Origin::Found)?;
        Ok(store)
    }

    /// Returns the object that slows flushes and compactions down while clients write.
    pub(crate) fn pace(&self) -> &Throttle {
        &self.pace
    }

    /// Returns the newest set of tables, which reads should use.
    pub(crate) fn newest(&self) -> Arc<TableSet> {
        self.newest.load_full()
    }

    /// Returns the applied position that is stored in the newest tables; `None` if there are no tables.
    pub(crate) fn applied(&self) -> Result<Option<Applied>, BackendError> {
        let set = self.newest();
        let corrupt = |message| BackendError::corrupt(self.tree.config.path.display(), message);
        match set.get(APPLIED_KEY)? {
            Some(TableEntry::Value(bytes)) => {
                Applied::decode(&bytes, || corrupt("the applied position can't be read")).map(Some)
            }
            _ if set.is_empty() => Ok(None),
            _ => Err(corrupt("no table has the applied position")),
        }
    }

    /// Writes the changes of a memtable to new tables and makes these tables current, durably. The changes are in
    /// ascending order of their keys, one for each key. Returns the number of bytes written.
    pub(crate) fn flush<'a>(
        &self,
        changes: impl Iterator<Item = Change<'a>>,
        applied: Applied,
    ) -> Result<u64, BackendError> {
        let seqno = self.next_seqno.fetch_add(1, Ordering::Relaxed);
        let items = changes.map(|change| match change {
            Change::Put(key, value) => InternalValue::from_components(key, value, seqno, ValueType::Value),
            Change::Delete(key) => InternalValue::new_tombstone(key, seqno),
        });
        let last = InternalValue::from_components(APPLIED_KEY, applied.encode(), seqno, ValueType::Value);
        let mut growing = self.growth.watch(WorkKind::Flush);
        let items = items.chain([last]).map(|item| {
            growing.add(item.key.user_key.len() + item.value.len());
            Ok(item)
        });
        let written_bytes = self.write("flush", || {
            let Some((tables, _)) = self.tree.flush_to_tables(items)? else { return Ok(0) };
            self.tree.register_tables(&tables, None, None, &[], EVERYTHING)?;
            Ok(tables.iter().map(|table| table.metadata.file_size).sum())
        })?;
        self.refresh(Origin::Written)?;
        Ok(written_bytes)
    }

    /// Calls `work`, which writes tables through the LSM crate. If `work` fails, removes the tables that it has left
    /// behind.
    fn write<T>(&self, operation: &'static str, work: impl FnOnce() -> lsm_tree::Result<T>) -> Result<T, BackendError> {
        let written = self.partial.discard_on_error(&self.tree, || catch_panics(operation, work));
        if written.is_err() {
            // Removed tables leave a gap in the table numbers. Without this call, the search for new tables could stop
            // at the gap.
            self.growth.begin(self.tree.get_next_table_id());
        }
        written
    }

    /// Runs the most urgent compaction. Returns the number of bytes written; `None` if no compaction was necessary.
    pub(crate) fn compact(&self) -> Result<Option<u64>, BackendError> {
        let before = self.newest();
        let strategy = Leveled::default().with_l0_threshold(LEVEL_0_FLUSHES).with_table_target_size(self.table_bytes);
        self.write("compaction", || self.tree.compact(Arc::new(strategy), EVERYTHING))?;
        self.compacted_since(&before)
    }

    /// Returns the bytes that the most urgent compaction of this set will remove from level 0: all or none of them. The
    /// choice of [`Leveled`] is computed again here, because the crate does not report it. [`Leveled`] prefers a
    /// compaction into an empty level, and otherwise the level that exceeds its target size most.
    pub(crate) fn level_0_bytes_to_compact(&self, set: &TableSet) -> u64 {
        let (tables, bytes) = (set.tables_per_level(), set.bytes_per_level());
        let flushes = u64::from(LEVEL_0_FLUSHES);
        let Some(first) = (1..tables.len()).find(|level| tables[*level] > 0) else {
            return bytes.first().copied().unwrap_or(0);
        };
        let target =
            |level: usize, first: usize| (self.table_bytes * flushes) as f64 * 10_f64.powi((level - first) as i32);
        let below = || (first..tables.len()).filter(|level| tables[*level] > 0);
        // If all levels exceed their target sizes, the crate adds a level above them.
        let grows = first > 1 && below().all(|level| bytes[level] as f64 > target(level, first));
        let first = if grows { first - 1 } else { first };
        let excess = |level: usize| bytes[level] as f64 / target(level, first);
        let is_more_urgent = |level: usize| {
            let goes_into_empty = tables.get(level + 1).is_some_and(|next| *next == 0);
            excess(level) > 1.0 && (goes_into_empty || excess(level) >= tables[0] as f64 / flushes as f64)
        };
        let is_last = |level: usize| level + 1 == tables.len();
        if below().any(|level| !is_last(level) && is_more_urgent(level)) { 0 } else { bytes[0] }
    }

    /// Returns the number of bytes that flushes and compactions have written, including those in progress.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.growth.written_bytes()
    }

    /// Merges all tables into one sorted run, with the compression that the options choose. Returns the number of bytes
    /// written; `None` if there was nothing to do.
    pub(crate) fn compact_all(&self) -> Result<Option<u64>, BackendError> {
        let before = self.newest();
        // Tables can reach the last level without being written again, so they may still have another compression.
        let is_as_chosen = before.tables().all(|table| table.compression() == self.compression);
        if before.is_merged() && is_as_chosen { Ok(None) } else { self.merge_all(&before) }
    }

    /// Merges all tables into one sorted run. Returns the number of bytes written; `None` if no table changed.
    fn merge_all(&self, before: &TableSet) -> Result<Option<u64>, BackendError> {
        self.write("compaction", || self.tree.major_compact(self.table_bytes, EVERYTHING))?;
        self.compacted_since(before)
    }

    /// Makes one step of returning the space of deleted data to the disk. Merges all tables if the result fits into the
    /// free space. Otherwise merges deletes with a small part of the data below them, and writes small tables. Returns
    /// the number of bytes written; `None` if no step is possible or useful.
    pub(crate) fn reclaim(&self) -> Result<Option<u64>, BackendError> {
        let before = self.newest();
        let ids: Vec<u64> = before.tables().map(|table| table.id()).collect();
        if *self.not_reclaimable() == ids {
            return Ok(None);
        }
        let room = self.growth.room();
        let merged = if self.merged_bytes() <= room {
            if before.is_merged() { Ok(None) } else { self.merge_all(&before) }
        } else {
            let table_bytes = (self.table_bytes / SLICES_PER_TABLE).max(MIN_SLICE_BYTES);
            let strategy = Leveled::default().with_l0_threshold(1).with_table_target_size(table_bytes);
            self.write("compaction", || self.tree.compact(Arc::new(strategy), EVERYTHING))
                .and_then(|()| self.compacted_since(&before))
        };
        let merged = match merged {
            // The error is not returned, because other work may still find enough room.
            Err(error) if error.is_disk_full() => None,
            merged => merged?,
        };
        if merged.is_none() {
            *self.not_reclaimable() = ids;
        }
        Ok(merged)
    }

    fn not_reclaimable(&self) -> MutexGuard<'_, Vec<u64>> {
        self.not_reclaimable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an estimate of the size of all tables after they are merged into one sorted run.
    fn merged_bytes(&self) -> u64 {
        let (mut bytes, mut items, mut deletes) = (0, 0, 0);
        for table in self.tree.current_version().iter_tables() {
            bytes += table.metadata.file_size;
            items += table.metadata.item_count;
            deletes += table.metadata.tombstone_count;
        }
        // Each delete removes itself and, usually, one pair below it.
        let left = items.saturating_sub(deletes.saturating_mul(2));
        (u128::from(bytes) * u128::from(left) / u128::from(items.max(1))) as u64
    }

    /// Publishes the set of tables that a compaction has left; `before` is the set before the compaction. Returns the
    /// number of bytes that the compaction wrote; `None` if it changed no table.
    fn compacted_since(&self, before: &TableSet) -> Result<Option<u64>, BackendError> {
        let set = self.refresh(Origin::Written)?;
        // A flush may have finished during the compaction. It only adds tables to level 0.
        let known: HashSet<u64> = before.tables().map(|table| table.id()).collect();
        let below: Vec<_> = set.tables_below_level_0().collect();
        let written_bytes =
            below.iter().filter(|table| !known.contains(&table.id())).map(|table| table.file_bytes()).sum();
        let same = below.into_iter().map(|table| table.id()).eq(before.tables_below_level_0().map(|table| table.id()))
            && before.tables_per_level().get(1..) == set.tables_per_level().get(1..);
        Ok((!same).then_some(written_bytes))
    }

    /// Reads blocks into the cache while the cache has room: blocks of tables that were written since the open, newest
    /// data first. New data is likely to be read soon, and its pages are still in the kernel's memory. Returns false if
    /// `go_on` ended the reading early.
    pub(crate) fn warm(&self, go_on: &dyn Fn() -> bool) -> Result<bool, BackendError> {
        for table in self.newest().tables() {
            if !table.warm(go_on)? {
                // The cache is full. From now on, reads decide which blocks stay.
                return Ok(go_on());
            }
        }
        Ok(true)
    }

    /// Returns the bytes of table blocks in the cache.
    pub(crate) fn cached_bytes(&self) -> u64 {
        self.cache.bytes()
    }

    fn open_table(&self, table: lsm_tree::Table, origin: Origin) -> Result<Table, BackendError> {
        if matches!(origin, Origin::Written) {
            private::restrict(&table.path).map_err(io_error("set permissions"))?;
        }
        let table = Table::open(table, Arc::clone(&self.cache), &self.discarding)?;
        Ok(match origin {
            Origin::Written => table,
            Origin::Found => table.without_warming(),
        })
    }

    /// Reads the set of current tables from the LSM crate, and opens the new ones among them.
    fn refresh(&self, origin: Origin) -> Result<Arc<TableSet>, BackendError> {
        let _refreshing = self.refreshing.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = self.newest();
        let known: HashMap<u64, &Arc<Table>> = newest.tables().map(|table| (table.id(), table)).collect();
        let mut set = TableSet::default();
        let version = self.tree.current_version();
        for (level, runs) in version.iter_levels().enumerate() {
            set.tables_per_level.push(runs.table_count() as u64);
            set.bytes_per_level.push(0);
            if level == 0 {
                set.level_0_runs = runs.run_count();
            }
            for run in runs.iter() {
                let mut tables = Vec::with_capacity(run.len());
                for table in run.iter() {
                    let table = match known.get(&table.id()) {
                        Some(table) => Arc::clone(table),
                        None => Arc::new(self.open_table(table.clone(), origin)?),
                    };
                    set.bytes_per_level[level] += table.file_bytes();
                    tables.push(table);
                }
                set.runs.push(Run::new(tables));
            }
        }
        private::restrict_manifests(&self.dir).map_err(io_error("set permissions"))?;
        self.growth.keep_pages(set.bytes_per_level.iter().sum::<u64>() <= self.page_cache_bytes);
        let set = Arc::new(set);
        self.newest.store(Arc::clone(&set));
        Ok(set)
    }
}

/// Runs a call into the LSM crate. The crate panics on some kinds of damage; such a panic is returned as an error of
/// corruption.
fn catch_panics<T>(operation: &'static str, call: impl FnOnce() -> lsm_tree::Result<T>) -> Result<T, BackendError> {
    match caught(call) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(lsm_tree::Error::Io(error))) => Err(BackendError::of_io(operation, &error)),
        // A build without LZ4 does not know its tag. All other tags are damage.
        Ok(Err(lsm_tree::Error::InvalidTag(("CompressionType", LZ4_TAG)))) => {
            Err(BackendError::CompressionNotBuilt { compression: TableCompression::Lz4.name() })
        }
        Ok(Err(error)) => Err(BackendError::corrupt(operation, error)),
        Err(text) => Err(BackendError::corrupt(operation, text)),
    }
}

#[cfg(test)]
mod tests {
    use std::ops::{Bound, ControlFlow};

    use thalweg_types::budget::{Budget, BudgetSpent};

    use super::{
        super::{cursor::RunCursor, table::key_hash},
        *,
    };
    use crate::{
        backend::{Direction, WriteBatch},
        cursor::Cursor as _,
        memtable::Memtable,
        span::{Reads, Span},
    };

    fn sized(cache_bytes: u64, table_bytes: u64) -> TableOptions {
        TableOptions { cache_bytes, table_bytes, page_cache_bytes: u64::MAX, compression: TableCompression::None }
    }

    /// Opens a store in `dir` and flushes 1 MiB of pairs to its tables.
    fn filled(dir: &Path, cache_bytes: u64) -> TableStore {
        filled_with(dir, sized(cache_bytes, 64 << 20))
    }

    fn filled_with(dir: &Path, options: TableOptions) -> TableStore {
        let store = TableStore::open(dir, options, Arc::default()).unwrap();
        let (memtable, mut writer) = Memtable::create(4 << 20);
        let mut batch = WriteBatch::new();
        (0..10_000_u32).for_each(|number| batch.put(&[b"k", &number.to_be_bytes()], &[&[7; 100]]));
        writer.apply(&batch).unwrap();
        store.flush(memtable.changes(), Applied::default()).unwrap();
        store
    }

    #[test]
    fn tables_and_manifests_are_private_whatever_the_default_mode_is() {
        use std::os::unix::fs::PermissionsExt as _;

        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let root = tempfile::tempdir().unwrap();
        let probe = root.path().join("probe");
        std::fs::write(&probe, b"").unwrap();
        assert_ne!(mode(&probe), 0o600, "the default mode of this process lets others read, as is usual");
        let dir = root.path().join("state");
        let store = filled(&dir, 1 << 20);
        for (place, least) in [(dir.clone(), 2), (dir.join("tables"), 1)] {
            assert_eq!(mode(&place), 0o700, "{}", place.display());
            let files: Vec<_> = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()).collect();
            let files: Vec<_> = files.into_iter().filter(|path| path.is_file()).collect();
            assert!(files.len() >= least, "{files:?}");
            files.iter().for_each(|file| assert_eq!(mode(file), 0o600, "{}", file.display()));
        }
        drop(store);
    }

    /// Tests that the open checks the list's checksum. The LSM crate does not, and it accepts some lists with a flipped
    /// bit.
    #[test]
    fn each_flipped_bit_in_the_list_of_tables_is_found_at_the_open() {
        let dir = tempfile::tempdir().unwrap();
        drop(filled(dir.path(), 1 << 20));
        let open = || TableStore::open(dir.path(), sized(1 << 20, 64 << 20), Arc::default());
        drop(open().unwrap());
        let current = std::fs::read(dir.path().join("current")).unwrap();
        let list = format!("v{}", u64::from_le_bytes(current[..8].try_into().unwrap()));
        for name in [list.as_str(), "current"] {
            let path = dir.path().join(name);
            let whole = std::fs::read(&path).unwrap();
            for at in 0..whole.len() {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << (at % 8);
                std::fs::write(&path, &flipped).unwrap();
                assert!(matches!(open(), Err(BackendError::Corrupt { .. })), "byte {at} of {name}");
            }
            std::fs::write(&path, &whole).unwrap();
            drop(open().unwrap());
        }
    }

    #[test]
    fn a_table_whose_compression_this_build_lacks_is_no_damage() {
        let open = |tag| catch_panics("open", || Err::<(), _>(lsm_tree::Error::InvalidTag(("CompressionType", tag))));
        assert!(matches!(open(1), Err(BackendError::CompressionNotBuilt { compression: "lz4" })));
        assert!(matches!(open(2), Err(BackendError::Corrupt { .. })));
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
        let reopened = TableStore::open(dir.path(), sized(64 << 20, 64 << 20), Arc::default());
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
    fn compactions_of_level_0_are_foreseen() {
        let dir = tempfile::tempdir().unwrap();
        let options = sized(1 << 20, 32 << 10);
        let store = TableStore::open(dir.path(), options, Arc::default()).unwrap();
        let (mut of_level_0, mut of_others) = (0, 0);
        for round in 0..200_u32 {
            let (memtable, mut writer) = Memtable::create(1 << 20);
            let mut batch = WriteBatch::new();
            for number in 0..200 {
                let key = (round * 200 + number).wrapping_mul(0x9e37_79b9);
                batch.put(&[b"k", &key.to_be_bytes()], &[&[7; 100]]);
            }
            writer.apply(&batch).unwrap();
            store.flush(memtable.changes(), Applied::default()).unwrap();
            if round % 5 < 3 {
                // Let runs accumulate on level 0.
                continue;
            }
            loop {
                let before = store.newest();
                let foreseen = store.level_0_bytes_to_compact(&before);
                if store.compact().unwrap().is_none() {
                    break;
                }
                let removed = before.level_0_bytes_missing_in(&store.newest());
                assert_eq!(foreseen, removed, "round {round}: {:?}", before.bytes_per_level());
                *(if removed > 0 { &mut of_level_0 } else { &mut of_others }) += 1;
            }
        }
        assert!(of_level_0 > 10 && of_others > 10, "{of_level_0} and {of_others}");
    }

    #[test]
    fn a_cursor_reads_no_block_of_a_table_outside_the_span() {
        let dir = tempfile::tempdir().unwrap();
        let store = filled_with(dir.path(), sized(64 << 20, 128 << 10));
        store.compact_all().unwrap();
        let set = store.newest();
        let tables = set.runs()[0].tables();
        assert!(set.runs().len() == 1 && tables.len() > 3, "{} tables", tables.len());
        let open = |lower, upper, direction| {
            let span = Span { lower, upper, direction, reads: Reads::Again };
            RunCursor::open(tables, span).unwrap()
        };
        for direction in [Direction::Forward, Direction::Reverse] {
            for pair in tables.windows(2) {
                let (lower, upper) = (pair[0].max_key(), pair[1].min_key());
                assert!(open(Bound::Excluded(lower), Bound::Excluded(upper), direction).is_none());
            }
            assert!(open(Bound::Unbounded, Bound::Excluded(tables[0].min_key()), direction).is_none());
        }
        assert_eq!(store.cached_bytes(), 0);
        (0..tables[1].index().len()).for_each(|number| drop(tables[1].block(number, Reads::Again).unwrap()));
        let cached = store.cached_bytes();
        for direction in [Direction::Forward, Direction::Reverse] {
            for upper in [Bound::Included(tables[1].max_key()), Bound::Excluded(tables[2].min_key())] {
                let mut pairs = 0;
                let mut visit = |_: &[u8], _: &[u8]| {
                    pairs += 1;
                    ControlFlow::Continue(())
                };
                open(Bound::Included(tables[1].min_key()), upper, direction).unwrap().walk(&mut visit).unwrap();
                assert_eq!((pairs, store.cached_bytes()), (tables[1].item_count(), cached));
            }
        }
    }

    #[test]
    fn filters_are_more_precise_where_there_are_many_runs() {
        const PROBES: u32 = 100_000;
        let dir = tempfile::tempdir().unwrap();
        let store = filled(dir.path(), 1 << 20);
        let false_positives = || {
            let set = store.newest();
            let table = set.tables().next().unwrap();
            let hash = |number: u32| key_hash(&[b"k", &number.to_be_bytes()[..]].concat());
            assert!((0..10_000).all(|number| table.may_hold(hash(number))));
            (10_000..10_000 + PROBES).filter(|number| table.may_hold(hash(*number))).count() as u32
        };
        let on_level_0 = false_positives();
        assert!(on_level_0 < PROBES / 1000, "{on_level_0} of {PROBES}");
        store.compact_all().unwrap().unwrap();
        let on_last_level = false_positives();
        assert!((PROBES / 500..PROBES / 50).contains(&on_last_level), "{on_last_level} of {PROBES}");
    }

    #[test]
    fn a_read_that_must_not_wait_for_the_disk_ends_at_a_block_that_is_not_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let store = filled(dir.path(), 64 << 20);
        let get = |number: u32| {
            let found = store.newest().get(&[b"k", &number.to_be_bytes()[..]].concat()).unwrap();
            assert!(matches!(found, Some(TableEntry::Value(value)) if *value == [7; 100]));
        };
        let file = std::fs::File::open(
            dir.path().join("tables").join(store.newest().tables().next().unwrap().id().to_string()),
        );
        let file = file.unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        // A file system in memory drops no pages, and the kernel may ignore the advice for all or part of a file.
        let (offset, size) = store.newest().tables().next().unwrap().index().block_position(0);
        let is_dropped = thalweg_disk::read_resident(&file, size as usize, offset).unwrap().is_none();
        let begun = Budget::RESIDENT.perform(|| store.newest().get(b"k\0\0\0\x07").map(drop));
        assert_eq!(begun.is_err_and(|spent| spent == BudgetSpent::Disk), is_dropped);
        assert_eq!(Budget::COLD.perform(|| get(7)), Ok(()), "this thread may wait");
        assert_eq!(Budget::RESIDENT.perform(|| get(7)), Ok(()), "the block is in the cache now");
    }

    #[test]
    fn a_long_scan_that_may_wait_for_the_disk_reads_ahead() {
        let dir = tempfile::tempdir().unwrap();
        let store = filled(dir.path(), 0);
        let set = store.newest();
        let tables = set.runs()[0].tables();
        let block_bytes = |number: usize| u64::from(tables[0].index().block_position(number).1);
        for direction in [Direction::Forward, Direction::Reverse] {
            let span = Span { lower: Bound::Unbounded, upper: Bound::Unbounded, direction, reads: Reads::Once };
            // Visits this many blocks, and returns the number of blocks read ahead after each visit.
            let ahead = |blocks: usize| {
                let Ok(Some(mut cursor)) = RunCursor::open(tables, span) else { return Vec::new() };
                let mut ahead = vec![cursor.blocks_ahead()];
                let mut block = cursor.block_number();
                while ahead.len() < blocks && cursor.advance().unwrap_or(false) {
                    if cursor.block_number() != block {
                        block = cursor.block_number();
                        ahead.push(cursor.blocks_ahead());
                    }
                }
                ahead
            };
            let first = ahead(8);
            assert_eq!(first[..5], [0; 5], "a short scan reads what it visits: {first:?}");
            assert_eq!([first[6], first[7]], [first[5] - 1, first[5] - 2]);
            let middle = tables[0].index().len() / 2;
            let bytes = first[5] as u64 * block_bytes(middle);
            assert!((200 << 10..300 << 10).contains(&bytes), "{bytes} bytes ahead");
            // To the end of the table and no further.
            let all = ahead(tables[0].index().len());
            assert_eq!(all.last(), Some(&1), "{all:?}");
            let resident = Budget::resident(u64::MAX).perform(|| ahead(8));
            assert!(resident.is_err() || resident.is_ok_and(|ahead| ahead == [0; 8]), "another thread will do it");
        }
        let cached = filled(&dir.path().join("cached"), 64 << 20);
        assert!(cached.warm(&|| true).unwrap());
        let set = cached.newest();
        let (lower, upper) = (Bound::Unbounded, Bound::Unbounded);
        let span = Span { lower, upper, direction: Direction::Forward, reads: Reads::Again };
        let mut cursor = RunCursor::open(set.runs()[0].tables(), span).unwrap().unwrap();
        while cursor.advance().unwrap() {
            assert_eq!(cursor.blocks_ahead(), 0, "the blocks are in the cache");
        }
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
