//! The tables of one version of the state.
//!
//! Owns: [`TableSet`], the sorted runs of tables, newest data first, and reads of single keys in them. A set is
//! immutable, and keeps its files on disk while it exists. Does not own: the replacement of one set by the next.

use std::{collections::HashSet, sync::Arc};

use super::table::{Table, TableEntry, key_hash};
use crate::backend::BackendError;

/// Number of sorted runs whose bloom filters a read checks in one step.
const RUNS_AT_A_TIME: usize = 8;

/// First key and last key of a table, both inclusive.
type KeyRange = (Box<[u8]>, Box<[u8]>);

/// A sorted run: one or more tables in ascending order whose key ranges don't overlap.
#[derive(Debug)]
pub struct Run {
    tables: Arc<[Arc<Table>]>,
    /// First and last key of each table of the sorted run, stored contiguously because every read compares them.
    ranges: Vec<KeyRange>,
}

impl Run {
    pub(super) fn new(tables: Vec<Arc<Table>>) -> Self {
        let ranges = tables.iter().map(|table| (table.min_key().into(), table.max_key().into())).collect();
        Self { tables: tables.into(), ranges }
    }

    /// Returns the tables of the sorted run in ascending order.
    #[must_use]
    pub fn tables(&self) -> &[Arc<Table>] {
        &self.tables
    }

    /// Returns the tables of the sorted run, shared, so that they stay open while the result exists.
    #[must_use]
    pub fn shared_tables(&self) -> Arc<[Arc<Table>]> {
        Arc::clone(&self.tables)
    }

    /// Returns the only table of the sorted run that can contain a key; `None` if none can.
    #[inline]
    fn table_for(&self, key: &[u8]) -> Option<&Table> {
        let candidate = self.ranges.partition_point(|(_, last)| **last < *key);
        let (first, _) = self.ranges.get(candidate)?;
        (**first <= *key).then(|| &*self.tables[candidate])
    }
}

/// An immutable set of sorted runs of tables; see the [module](self). Invariant: of two runs that contain a key, the
/// run with the newer change of the key comes first.
#[derive(Debug, Default)]
pub struct TableSet {
    pub(super) runs: Vec<Run>,
    /// Number of sorted runs on level 0.
    pub(super) level_0_runs: usize,
    pub(super) tables_per_level: Vec<u64>,
    pub(super) bytes_per_level: Vec<u64>,
}

impl TableSet {
    /// Returns true if the set has no tables.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns true if only the last level has tables. Then no merge is left that could drop deleted pairs.
    pub(super) fn is_merged(&self) -> bool {
        self.tables_per_level.split_last().is_none_or(|(_, above)| above.iter().all(|tables| *tables == 0))
    }

    /// Returns the sorted runs of the set, newest first.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Returns the number of sorted runs on level 0. A read searches up to this many more tables than it would search
    /// if compaction had caught up.
    #[must_use]
    pub fn level_0_runs(&self) -> usize {
        self.level_0_runs
    }

    /// Returns the number of tables on each level, level 0 first.
    #[must_use]
    pub fn tables_per_level(&self) -> &[u64] {
        &self.tables_per_level
    }

    /// Returns the bytes of the table files on each level, level 0 first.
    #[must_use]
    pub fn bytes_per_level(&self) -> &[u64] {
        &self.bytes_per_level
    }

    /// Iterates over the tables of all sorted runs.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.runs.iter().flat_map(Run::tables)
    }

    /// Iterates over the tables below level 0, which compactions have written or moved there.
    pub(super) fn tables_below_level_0(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.runs[self.level_0_runs..].iter().flat_map(Run::tables)
    }

    /// Returns the total bytes of the tables on level 0 of this set that are not on level 0 of the later set `after`.
    pub(crate) fn level_0_bytes_missing_in(&self, after: &Self) -> u64 {
        let left: HashSet<u64> = after.level_0().map(|table| table.id()).collect();
        self.level_0().filter(|table| !left.contains(&table.id())).map(|table| table.file_bytes()).sum()
    }

    fn level_0(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.runs[..self.level_0_runs].iter().flat_map(Run::tables)
    }

    /// Returns the total size of all table files in bytes.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.tables().map(|table| table.file_bytes()).sum()
    }

    /// Returns the number of items in all tables, including items hidden by newer ones.
    #[must_use]
    pub fn item_count(&self) -> u64 {
        self.tables().map(|table| table.item_count()).sum()
    }

    /// Returns the number of deletions in all tables.
    #[must_use]
    pub fn deletion_count(&self) -> u64 {
        self.tables().map(|table| table.deletion_count()).sum()
    }

    /// Asks the kernel to read the block that probably contains the key, without waiting for it.
    pub fn read_ahead(&self, key: &[u8]) {
        let hash = key_hash(key);
        let mut tables = self.runs.iter().filter_map(|run| run.table_for(key));
        if let Some(table) = tables.find(|table| table.may_hold_at_first_sight(hash) && table.may_hold(hash)) {
            table.read_ahead_of(key);
        }
    }

    /// Returns the newest entry of a key in the tables; `None` if no table contains the key.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Option<TableEntry>, BackendError> {
        if self.runs.is_empty() {
            return Ok(None);
        }
        let hash = key_hash(key);
        if let [run] = &*self.runs {
            // Most requested keys exist. If the block is in memory, checking the other bits of the filter costs more
            // than it saves.
            return match run.table_for(key) {
                Some(table) if table.may_hold_at_first_sight(hash) => table.get(key, hash),
                _ => Ok(None),
            };
        }
        for runs in self.runs.chunks(RUNS_AT_A_TIME) {
            // Most runs don't contain the key. Their filters are checked together, so that their cache misses
            // overlap instead of adding up.
            let mut candidates = [None; RUNS_AT_A_TIME];
            for (candidate, run) in candidates.iter_mut().zip(runs) {
                *candidate = run.table_for(key).filter(|table| table.may_hold_at_first_sight(hash));
            }
            for table in candidates.into_iter().flatten().filter(|table| table.may_hold(hash)) {
                if let Some(found) = table.get(key, hash)? {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }
}
