//! The tables that make up one version of the state.
//!
//! Owns: [`TableSet`]: the runs of tables, newest data first, and point reads over them. Immutable;
//! holding one keeps its files on disk. Does not own: how sets follow one another.

use std::sync::Arc;

use super::table::{Found, Table, key_hash};
use crate::backend::BackendError;

/// Tables that don't overlap, in ascending order.
pub type Run = Vec<Arc<Table>>;

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
        self.runs.iter().flatten()
    }

    /// The tables that a compaction has written or moved.
    pub(super) fn tables_below_level_0(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.runs[self.level_0_runs..].iter().flatten()
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
        for run in &self.runs {
            let candidate = run.partition_point(|table| table.max_key() < key);
            let Some(table) = run.get(candidate).filter(|table| table.min_key() <= key) else { continue };
            if let Some(found) = table.get(key, hash)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}
