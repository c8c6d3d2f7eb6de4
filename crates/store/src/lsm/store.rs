//! The tables of an LSM tree as a store behind memtables.
//!
//! Owns: [`LsmStore`], and [`Upkeep`], the pending background work: compactions, and reading new blocks into the cache.
//! Does not own: the threads that do this work, or the tables' bytes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    options::{Compaction, LsmOptions},
    slowdown::Slowdown,
    tables::{Backlog, RunCounts, TableOptions, TableSet, TableStore, WorkKind, WriteRoom},
};
use crate::{
    backend::{Applied, BackendError, BackendStats, Change},
    buffered::{Demand, Store},
};

/// The sorted tables of an LSM tree, as a store behind memtables; see the [module](super).
pub struct LsmStore {
    tables: TableStore,
    memtable_bytes: u64,
    max_sealed: usize,
    compaction: Compaction,
    slowdown: Slowdown,
    opened: Instant,
    written: WrittenRuns,
    is_compacting: AtomicBool,
    compactions: AtomicU64,
    compacted_bytes: AtomicU64,
}

/// Counters of the bytes that batches write, used to estimate how many written bytes become one sorted run on level 0.
/// A table has fewer bytes than the batches, because only the last change of each key reaches it.
struct WrittenRuns {
    bytes: AtomicU64,
    /// Number of bytes that batches had written when a memtable was last sealed.
    sealed_bytes: AtomicU64,
    /// Number of sealed memtables at the last call of [`note_sealed`](Self::note_sealed).
    sealed: AtomicUsize,
    /// Mean number of written bytes that become one sorted run. Recent runs count more.
    run_bytes: AtomicU64,
}

impl WrittenRuns {
    fn new(memtable_bytes: u64) -> Self {
        let none = || AtomicU64::new(0);
        let run_bytes = AtomicU64::new(memtable_bytes);
        Self { bytes: none(), sealed_bytes: none(), sealed: AtomicUsize::new(0), run_bytes }
    }

    /// Adds the bytes of a batch to the number of written bytes. Only the thread that holds the lock of the memtables'
    /// writer calls this.
    #[inline]
    fn add(&self, bytes: usize) {
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
    }

    /// Records the number of sealed memtables. If the number has risen, a memtable was sealed, and becomes one sorted
    /// run. Called under the lock of the memtables.
    fn note_sealed(&self, sealed: usize) {
        if sealed > self.sealed.swap(sealed, Ordering::Relaxed) {
            let bytes = self.bytes.load(Ordering::Relaxed);
            let added = bytes - self.sealed_bytes.swap(bytes, Ordering::Relaxed);
            self.run_bytes.store(u64::midpoint(self.run_bytes.load(Ordering::Relaxed), added), Ordering::Relaxed);
        }
    }

    fn run_bytes(&self) -> u64 {
        self.run_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that batches have written to the active memtable.
    fn active_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed).saturating_sub(self.sealed_bytes.load(Ordering::Relaxed))
    }
}

/// Pending work of the background threads: compaction, and reading new blocks into the cache.
#[derive(Default)]
pub struct Upkeep {
    /// True if level 0 may have enough tables for a compaction.
    may_compact: bool,
    /// True if the space of deleted data should be returned to the disk.
    is_space_wanted: bool,
    /// Number of full compactions that callers have requested so far. Requests up to number `answered` have finished.
    asked: u64,
    answered: u64,
    /// True if there may be new tables whose blocks should be read into the cache.
    pub(super) may_warm: bool,
}

/// Kind of compaction: of a few tables, of all tables, or only to return disk space.
#[derive(Clone, Copy)]
pub(super) enum Extent {
    MostUrgent,
    /// A compaction that returns the space of deleted data to a full disk.
    Reclaim,
    /// A compaction of all tables, which fulfils all requests for full compactions up to this number.
    All {
        asked: u64,
    },
}

impl Upkeep {
    /// Returns true if no compaction is pending or requested.
    pub(super) fn is_compacted(&self) -> bool {
        !self.may_compact && self.asked == self.answered
    }

    /// Returns true if the space of deleted data should be returned to the disk, and marks the request as fulfilled.
    pub(super) fn take_space_request(&mut self) -> bool {
        std::mem::take(&mut self.is_space_wanted)
    }

    /// Marks all requests for full compactions up to this number as fulfilled.
    pub(super) fn answer(&mut self, asked: u64) {
        self.answered = asked;
    }
}

impl LsmStore {
    pub(super) fn open(options: &LsmOptions) -> Result<Self, BackendError> {
        let LsmOptions { cache_bytes, table_bytes, page_cache_bytes, compression, .. } = *options;
        let table_options = TableOptions { cache_bytes, table_bytes, page_cache_bytes, compression };
        Ok(Self {
            tables: TableStore::open(&options.dir, table_options, options.pacer())?,
            memtable_bytes: options.memtable_bytes as u64,
            max_sealed: options.max_sealed,
            compaction: options.compaction,
            slowdown: Slowdown::new(options.memtable_bytes as u64),
            opened: Instant::now(),
            written: WrittenRuns::new(options.memtable_bytes as u64),
            is_compacting: AtomicBool::default(),
            compactions: AtomicU64::default(),
            compacted_bytes: AtomicU64::default(),
        })
    }

    fn is_compaction_automatic(&self) -> bool {
        self.compaction == Compaction::Automatic
    }

    /// Returns the compaction to run next; `None` if none is pending or requested.
    pub(super) fn next_compaction(&self, upkeep: &mut Upkeep) -> Option<Extent> {
        let extent = if upkeep.answered < upkeep.asked {
            Some(Extent::All { asked: upkeep.asked })
        } else if std::mem::take(&mut upkeep.may_compact) {
            Some(Extent::MostUrgent)
        } else {
            std::mem::take(&mut upkeep.is_space_wanted).then_some(Extent::Reclaim)
        };
        self.is_compacting.store(extent.is_some(), Ordering::Relaxed);
        extent
    }

    /// Runs a compaction. Returns true if it changed the tables.
    pub(super) fn compact(&self, extent: Extent) -> Result<bool, BackendError> {
        // Only the size of the most urgent compaction is estimated in advance. Callers wait for the other kinds, so
        // these never pause.
        self.tables.pace().expect_compaction(0);
        let written_bytes = match extent {
            Extent::MostUrgent => self.compact_most_urgent()?,
            Extent::Reclaim => self.tables.reclaim()?,
            Extent::All { .. } => self.tables.compact_all()?,
        };
        if let Some(written_bytes) = written_bytes {
            self.compactions.fetch_add(1, Ordering::Relaxed);
            self.compacted_bytes.fetch_add(written_bytes, Ordering::Relaxed);
        }
        Ok(written_bytes.is_some())
    }

    /// Runs the most urgent compaction, and measures it if it was not throttled.
    fn compact_most_urgent(&self) -> Result<Option<u64>, BackendError> {
        let (before, begun) = (self.tables.newest(), Instant::now());
        let is_throttled = || self.tables.pace().throttles_compactions();
        let level_0_bytes = self.tables.level_0_bytes_to_compact(&before);
        let merge = self.slowdown.begin_merge(level_0_bytes);
        if level_0_bytes > 0 {
            // A merge of level 0 also rewrites the uppermost level below that has tables.
            let below = before.bytes_per_level().iter().skip(1).find(|bytes| **bytes > 0);
            self.tables.pace().expect_compaction(level_0_bytes + below.copied().unwrap_or(0));
        }
        let was_throttled = is_throttled();
        if !was_throttled {
            self.slowdown.hurry_merge(self.opened.elapsed());
        }
        let written_bytes = self.tables.compact()?;
        drop(merge);
        if !was_throttled && !is_throttled() && written_bytes.is_some() {
            let removed_bytes = before.level_0_bytes_missing_in(&self.tables.newest());
            self.slowdown.add_compaction(removed_bytes, begun.elapsed());
        }
        Ok(written_bytes)
    }

    /// Reads newly written blocks into the cache while the cache has room. Returns false if `go_on` ended the reading
    /// early.
    pub(super) fn read_ahead(&self, go_on: &dyn Fn() -> bool) -> Result<bool, BackendError> {
        self.tables.warm(go_on)
    }
}

impl Store for LsmStore {
    const NAME: &'static str = "lsm";
    type View = TableSet;
    type Upkeep = Upkeep;

    fn applied(&self) -> Result<Option<Applied>, BackendError> {
        self.tables.applied()
    }

    fn persist<'a>(&self, changes: impl Iterator<Item = Change<'a>>, applied: Applied) -> Result<u64, BackendError> {
        self.tables.flush(changes, applied)
    }

    fn view(&self) -> Result<Arc<TableSet>, BackendError> {
        Ok(self.tables.newest())
    }

    /// Reads newly written blocks into the cache while the cache has room. Without this, reads would have to load
    /// blocks whose data was in a memtable a moment ago.
    fn warm(&self, go_on: &dyn Fn() -> bool) -> Result<(), BackendError> {
        self.read_ahead(go_on).map(drop)
    }

    fn publish(&self, _: &Arc<TableSet>, upkeep: &mut Upkeep) -> Arc<TableSet> {
        // Both a flush and a compaction can make another compaction due.
        upkeep.may_compact = self.is_compaction_automatic();
        upkeep.may_warm = true;
        self.tables.newest()
    }

    #[inline]
    fn wrote(&self, tables: &TableSet, bytes: usize) -> Duration {
        self.tables.pace().count_write(bytes);
        self.written.add(bytes);
        if !self.slows_down(tables) {
            return Duration::ZERO;
        }
        self.slowdown.pause(tables.level_0_runs(), self.written.run_bytes(), bytes, self.opened.elapsed())
    }

    fn written_bytes(&self) -> u64 {
        self.tables.written_bytes()
    }

    #[inline]
    fn slows_down(&self, tables: &TableSet) -> bool {
        tables.level_0_runs() >= self.slowdown.limits().slow && self.is_compaction_automatic()
    }

    fn is_behind(&self, tables: &TableSet) -> bool {
        tables.level_0_runs() >= self.slowdown.limits().stop && self.is_compaction_automatic()
    }

    fn report_demand(&self, tables: &TableSet, upkeep: &Upkeep, demand: Demand) {
        self.written.note_sealed(demand.sealed);
        let counts = RunCounts {
            sealed: demand.sealed,
            max_sealed: self.max_sealed,
            level_0_runs: tables.level_0_runs(),
            slow_runs: self.slowdown.limits().slow,
        };
        self.tables.pace().report(Backlog {
            is_awaited: demand.is_awaited || upkeep.answered < upkeep.asked,
            sealed: demand.sealed,
            level_0_runs: tables.level_0_runs(),
            // The active memtable can be sealed at any time, so it counts too.
            flush_bytes: (demand.sealed as u64 + 1) * self.memtable_bytes,
            room: WriteRoom::of(counts, self.written.run_bytes(), self.written.active_bytes()),
        });
        if !self.tables.pace().throttles_compactions() {
            self.slowdown.hurry_merge(self.opened.elapsed());
        }
    }

    fn request_space(upkeep: &mut Upkeep) {
        upkeep.is_space_wanted = true;
    }

    fn request_compaction(upkeep: &mut Upkeep) -> Option<u64> {
        upkeep.asked += 1;
        Some(upkeep.asked)
    }

    fn has_compacted(upkeep: &Upkeep, request: u64) -> bool {
        upkeep.answered >= request
    }

    fn add_stats(&self, tables: &TableSet, stats: &mut BackendStats) {
        stats.disk_bytes += tables.disk_bytes();
        stats.tables += tables.tables().count() as u64;
        stats.tables_per_level = tables.tables_per_level().to_vec();
        stats.bytes_per_level = tables.bytes_per_level().to_vec();
        stats.deletions += tables.deletion_count();
        stats.compactions += self.compactions.load(Ordering::Relaxed);
        stats.is_compacting = self.is_compacting.load(Ordering::Relaxed);
        stats.slowdown_bytes_per_second = self.slowdown.bytes_per_second();
        stats.flush_rest_micros = self.tables.pace().rest_micros(WorkKind::Flush);
        stats.compaction_rest_micros = self.tables.pace().rest_micros(WorkKind::Compaction);
        stats.compacted_bytes += self.compacted_bytes.load(Ordering::Relaxed);
        stats.estimated_keys += tables.item_count();
        stats.cache_bytes += self.tables.cached_bytes();
    }
}
