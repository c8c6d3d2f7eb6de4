//! Statistics of the snapshots taken from a database.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Instant,
};

use thalweg_types::Log2Histogram;

use crate::error::SnapshotError;

/// Statistics of snapshots since the database was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotStats {
    /// Number of snapshots in progress. While it is above 0, no log segment is freed unless the disk is full.
    pub open: u64,
    /// Number of completed snapshots. A snapshot is complete when its last chunk was returned.
    pub taken: u64,
    /// Number of snapshots that ended with an error, including those that could not begin.
    pub failed: u64,
    /// Number of snapshots that the caller dropped before their last chunk, without an error.
    pub abandoned: u64,
    /// Bytes of all chunks returned. A chunk that is returned again counts again.
    pub bytes: u64,
    /// Histogram of the duration of completed snapshots in milliseconds, from the beginning to the last chunk. Time in
    /// which the caller requested no chunk is included.
    pub took_millis: Log2Histogram,
}

/// Counters over all snapshots of a database, and the damage that a snapshot has found.
#[derive(Debug, Default)]
pub struct Counters {
    stats: Mutex<SnapshotStats>,
    damage: OnceLock<String>,
}

impl Counters {
    /// Returns the statistics counted since the database was opened.
    #[must_use]
    pub fn get(&self) -> SnapshotStats {
        *self.lock()
    }

    /// Returns a description of the damage to the state that a snapshot has found; `None` if no snapshot has found any.
    #[must_use]
    pub fn damage(&self) -> Option<&str> {
        self.damage.get().map(String::as_str)
    }

    fn lock(&self) -> MutexGuard<'_, SnapshotStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts the chunks and the end of one snapshot.
#[derive(Debug)]
pub(crate) struct SnapshotCounter {
    counters: Arc<Counters>,
    begun: Instant,
    end: Option<End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Taken,
    Failed,
}

impl SnapshotCounter {
    pub(crate) fn begin(counters: &Arc<Counters>) -> Self {
        counters.lock().open += 1;
        Self { counters: Arc::clone(counters), begun: Instant::now(), end: None }
    }

    pub(crate) fn count_chunk(&self, bytes: usize) {
        self.counters.lock().bytes += bytes as u64;
    }

    /// Counts this snapshot as completed. Later calls for the same snapshot count nothing, because the caller may
    /// request the last chunk several times.
    pub(crate) fn taken(&mut self) {
        if self.end.is_none() {
            self.end = Some(End::Taken);
            let mut stats = self.counters.lock();
            stats.taken += 1;
            stats.took_millis.record(u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX));
        }
    }

    /// Counts this snapshot as failed. Later calls for the same snapshot count nothing.
    pub(crate) fn failed(&mut self, error: &SnapshotError) {
        if error.is_damage() {
            let _ = self.counters.damage.set(error.to_string());
        }
        if self.end.is_none() {
            self.end = Some(End::Failed);
            self.counters.lock().failed += 1;
        }
    }
}

impl Drop for SnapshotCounter {
    fn drop(&mut self) {
        let mut stats = self.counters.lock();
        stats.open -= 1;
        stats.abandoned += u64::from(self.end.is_none());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_snapshot_ends_in_one_way() {
        let counters = Arc::new(Counters::default());
        let mut taken = SnapshotCounter::begin(&counters);
        let mut failed = SnapshotCounter::begin(&counters);
        let abandoned = SnapshotCounter::begin(&counters);
        taken.count_chunk(10);
        taken.taken();
        taken.count_chunk(5);
        taken.taken();
        failed.failed(&SnapshotError::Expired);
        assert_eq!(counters.damage(), None);
        failed.failed(&SnapshotError::ValueDamaged("a bit flipped".to_owned()));
        failed.failed(&SnapshotError::ValueDamaged("another one".to_owned()));
        assert_eq!(counters.damage(), Some("a value could not be read: a bit flipped"));
        assert_eq!(counters.get().open, 3);
        drop((taken, failed, abandoned));
        let stats = counters.get();
        assert_eq!((stats.open, stats.taken, stats.failed, stats.abandoned, stats.bytes), (0, 1, 1, 1, 15));
        assert_eq!(stats.took_millis.count(), 1);
    }
}
