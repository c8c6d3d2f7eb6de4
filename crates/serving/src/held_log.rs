//! Detection of snapshots that make the log grow above its bound.
//!
//! While a snapshot is open, the log frees no segment. Owns: the growth of the log since maintenance could last free a
//! segment, for the metric `snapshot_held_log_bytes`; a warning while this growth exceeds `history_bytes`. Does not
//! own: snapshots. A slow client cannot keep one snapshot open for long, because its connection is cut. But many short
//! snapshots that overlap hold the log like one long snapshot. Snapshots with pauses between them do not.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use thalweg_engine::Database;
use tokio::sync::watch;

use crate::config::Config;

/// Number of maintenance runs of the database between two measurements of the log's growth.
const ROUNDS: u32 = 5;
/// Longest time between two measurements of the log's growth.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Shortest time between two warnings that open snapshots make the log grow.
const WARNED_EVERY: Duration = Duration::from_secs(60);

/// Number of bytes by which the log has grown because open snapshots keep it from freeing segments.
#[derive(Debug, Default)]
pub struct HeldLog {
    bytes: AtomicU64,
}

/// Number of open snapshots and size of the log of the database, measured at one time.
#[derive(Clone, Copy, Debug)]
struct Measurement {
    /// Number of open snapshots.
    open: u64,
    /// Size of the node's log in bytes.
    log_bytes: u64,
    /// Number of maintenance runs so far in which the log was able to free segments.
    rounds: u64,
}

/// Measures by how much the log grows from one run of maintenance that could free segments to the next.
#[derive(Debug, Default)]
struct LogGrowth {
    /// Size of the log in bytes, and number of maintenance runs that could free segments, when the growth began; `None`
    /// if no snapshot is open.
    at_begin: Option<(u64, u64)>,
    warned: Option<Instant>,
}

impl LogGrowth {
    /// Records a measurement. Returns the growth of the log in bytes, and true if a warning is due: the growth exceeds
    /// `bound`, and the last warning is old enough.
    fn measure(&mut self, now: &Measurement, bound: u64, at: Instant) -> (u64, bool) {
        if now.open == 0 {
            *self = Self::default();
            return (0, false);
        }
        let begin = self.at_begin.filter(|(_, rounds)| *rounds == now.rounds);
        let (bytes, _) = *self.at_begin.insert(begin.unwrap_or((now.log_bytes, now.rounds)));
        let held = now.log_bytes.saturating_sub(bytes);
        let was_silent = self.warned.is_none_or(|warned| at.saturating_duration_since(warned) >= WARNED_EVERY);
        let warns = held > bound && was_silent;
        if warns {
            self.warned = Some(at);
        }
        (held, warns)
    }
}

impl HeldLog {
    /// Returns the bytes by which the log has grown while open snapshots keep it from freeing segments, as of the last
    /// measurement.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Measures periodically, until the server stops, by how many bytes the log has grown since it could last free a
    /// segment. Logs a warning while open snapshots make that exceed the configured `history_bytes`.
    pub async fn measure_until(&self, db: &Database, config: &Config, mut stopping: watch::Receiver<bool>) {
        let bound = config.history_bytes.0;
        let rounds = config.maintenance_interval.0.saturating_mul(ROUNDS);
        let pause = if rounds.is_zero() { MAX_PAUSE } else { rounds.min(MAX_PAUSE) };
        let mut measured = LogGrowth::default();
        loop {
            let stats = db.stats();
            let (open, log_bytes, rounds) = (stats.snapshots.open, stats.log.bytes, stats.freeing_rounds);
            let (held, warns) = measured.measure(&Measurement { open, log_bytes, rounds }, bound, Instant::now());
            self.bytes.store(held, Relaxed);
            if warns {
                tracing::warn!(
                    held_bytes = held,
                    history_bytes = bound,
                    snapshots = stats.snapshots.open,
                    "open snapshots keep the log above `history_bytes`: no segment is freed until they end"
                );
            }
            tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes measurements, and returns the result of each. A tuple has a time in seconds, the number of open snapshots,
    /// the bytes of the log, and the number of maintenance runs that could free segments.
    fn measured<const N: usize>(all: [(u64, u64, u64, u64); N]) -> [(u64, bool); N] {
        let (mut measured, begun) = (LogGrowth::default(), Instant::now());
        all.map(|(seconds, open, log_bytes, rounds)| {
            let now = Measurement { open, log_bytes, rounds };
            measured.measure(&now, 100, begun + Duration::from_secs(seconds))
        })
    }

    #[test]
    fn growth_counts_from_the_oldest_snapshot_and_warns_once_a_minute() {
        let found = measured([
            (0, 0, 500, 4),
            (5, 1, 500, 9),
            (10, 2, 600, 9),
            (15, 1, 601, 9),
            (20, 1, 700, 9),
            (75, 1, 700, 9),
            (80, 0, 700, 10),
            (85, 1, 700, 14),
        ]);
        let another = (0, false);
        assert_eq!(
            found,
            [(0, false), (0, false), (100, false), (101, true), (200, false), (200, true), (0, false), another]
        );
    }

    #[test]
    fn snapshots_with_pauses_between_them_hold_nothing_although_each_measurement_finds_one() {
        let found = measured([(0, 1, 500, 4), (5, 1, 900, 5), (10, 1, 1300, 6), (15, 1, 1350, 6), (20, 2, 1500, 6)]);
        assert_eq!(found, [(0, false), (0, false), (0, false), (50, false), (200, true)]);
    }
}
