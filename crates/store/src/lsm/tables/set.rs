//! The tables that make up one version of the state.
//!
//! Owns: [`TableSet`]: the runs of tables, newest data first, and point reads over them. Immutable;
//! holding one keeps its files on disk. Does not own: how sets follow one another.

use std::sync::Arc;

use super::table::{Found, Table, key_hash};
use crate::backend::BackendError;

/// Runs whose filters are asked together.
const RUNS_AT_A_TIME: usize = 8;

/// First and last key, both included.
type KeyRange = (Box<[u8]>, Box<[u8]>);

/// Tables that don't overlap, in ascending order, never none.
#[derive(Debug)]
pub struct Run {
    tables: Vec<Arc<Table>>,
    /// First and last key of each table, beside one another: every read compares them.
    ranges: Vec<KeyRange>,
}

impl Run {
    pub(super) fn new(tables: Vec<Arc<Table>>) -> Self {
        let ranges = tables.iter().map(|table| (table.min_key().into(), table.max_key().into())).collect();
        Self { tables, ranges }
    }

    /// Its tables.
    #[must_use]
    pub fn tables(&self) -> &[Arc<Table>] {
        &self.tables
    }

    /// The only table that can hold a key.
    #[inline]
    fn table_for(&self, key: &[u8]) -> Option<&Table> {
        let candidate = self.ranges.partition_point(|(_, last)| **last < *key);
        let (first, _) = self.ranges.get(candidate)?;
        (**first <= *key).then(|| &*self.tables[candidate])
    }
}

/// See the module. Invariant: of two runs that hold a key, the one with the newer change comes first.
#[derive(Debug, Default)]
pub struct TableSet {
    pub(super) runs: Vec<Run>,
    /// How many of the runs are on level 0.
    pub(super) level_0_runs: usize,
    pub(super) tables_per_level: Vec<u64>,
}

impl TableSet {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The runs, newest first.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// How many runs are on level 0: how many more tables a read has to ask than it would if compaction
    /// had caught up.
    #[must_use]
    pub fn level_0_runs(&self) -> usize {
        self.level_0_runs
    }

    /// Number of tables on each level.
    #[must_use]
    pub fn tables_per_level(&self) -> &[u64] {
        &self.tables_per_level
    }

    /// All tables.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.runs.iter().flat_map(Run::tables)
    }

    /// The tables that a compaction has written or moved.
    pub(super) fn tables_below_level_0(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.runs[self.level_0_runs..].iter().flat_map(Run::tables)
    }

    /// Bytes of all files.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.tables().map(|table| table.file_bytes()).sum()
    }

    /// Number of items, those that newer ones hide included.
    #[must_use]
    pub fn item_count(&self) -> u64 {
        self.tables().map(|table| table.item_count()).sum()
    }

    /// What the tables say of a key.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Option<Found>, BackendError> {
        if self.runs.is_empty() {
            return Ok(None);
        }
        let hash = key_hash(key);
        if let [run] = &*self.runs {
            // Most keys that are asked for are there, and if their block is in memory, the rest of the filter
            // costs more than it saves.
            return match run.table_for(key) {
                Some(table) if table.may_hold_at_first_sight(hash) => table.get(key, hash),
                _ => Ok(None),
            };
        }
        for runs in self.runs.chunks(RUNS_AT_A_TIME) {
            // Most runs don't hold the key. Their filters are asked all together, so that their cache
            // misses overlap instead of adding up.
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
