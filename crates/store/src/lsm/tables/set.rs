//! The tables of one version of the state.
//!
//! Owns: [`TableSet`], the runs of tables, newest data first, and point reads over them. Immutable; a set keeps its
//! files on disk while it exists. Does not own: the replacement of one set by the next.

use std::sync::Arc;

use super::table::{Table, TableEntry, key_hash};
use crate::backend::BackendError;

/// Number of runs whose filters are checked together.
const RUNS_AT_A_TIME: usize = 8;

/// First and last key, both inclusive.
type KeyRange = (Box<[u8]>, Box<[u8]>);

/// Tables that don't overlap, in ascending order. At least one.
#[derive(Debug)]
pub struct Run {
    tables: Vec<Arc<Table>>,
    /// First and last key of each table, stored contiguously because every read compares them.
    ranges: Vec<KeyRange>,
}

impl Run {
    pub(super) fn new(tables: Vec<Arc<Table>>) -> Self {
        let ranges = tables.iter().map(|table| (table.min_key().into(), table.max_key().into())).collect();
        Self { tables, ranges }
    }

    /// Returns the run's tables.
    #[must_use]
    pub fn tables(&self) -> &[Arc<Table>] {
        &self.tables
    }

    /// Returns the only table that can contain a key.
    #[inline]
    fn table_for(&self, key: &[u8]) -> Option<&Table> {
        let candidate = self.ranges.partition_point(|(_, last)| **last < *key);
        let (first, _) = self.ranges.get(candidate)?;
        (**first <= *key).then(|| &*self.tables[candidate])
    }
}

/// An immutable set of runs; see the [module](self). Invariant: of two runs that contain a key, the one with the
/// newer change comes first.
#[derive(Debug, Default)]
pub struct TableSet {
    pub(super) runs: Vec<Run>,
    /// Number of runs on level 0.
    pub(super) level_0_runs: usize,
    pub(super) tables_per_level: Vec<u64>,
}

impl TableSet {
    /// Returns true if there are no tables.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the runs, newest first.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Returns the number of runs on level 0. A read searches up to this many more tables than it would if
    /// compaction had caught up.
    #[must_use]
    pub fn level_0_runs(&self) -> usize {
        self.level_0_runs
    }

    /// Returns the number of tables on each level.
    #[must_use]
    pub fn tables_per_level(&self) -> &[u64] {
        &self.tables_per_level
    }

    /// Iterates over the tables of all runs.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.runs.iter().flat_map(Run::tables)
    }

    /// Iterates over the tables that a compaction has written or moved.
    pub(super) fn tables_below_level_0(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.runs[self.level_0_runs..].iter().flat_map(Run::tables)
    }

    /// Returns the bytes of all files.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.tables().map(|table| table.file_bytes()).sum()
    }

    /// Returns the number of items, including those hidden by newer ones.
    #[must_use]
    pub fn item_count(&self) -> u64 {
        self.tables().map(|table| table.item_count()).sum()
    }

    /// Returns the newest entry of a key in the tables.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Option<TableEntry>, BackendError> {
        if self.runs.is_empty() {
            return Ok(None);
        }
        let hash = key_hash(key);
        if let [run] = &*self.runs {
            // Most requested keys exist, and if their block is in memory, the other probes of the filter cost more
            // than they save.
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
