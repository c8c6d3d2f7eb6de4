//! Detection of snapshots that hold the log above its bound.
//!
//! While a snapshot is open, the log frees no segment. Owns: how much the log has grown since the oldest open snapshot
//! began, for the metric `snapshot_held_log_bytes`, and a warning while that is more than `history_bytes`. Does not own:
//! snapshots. A slow client cannot hold one for long, because its connection is cut.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use thalweg_engine::Database;
use tokio::sync::watch;

/// Time between two measurements.
const PAUSE: Duration = Duration::from_secs(5);
/// Shortest time between two warnings.
const WARNED_EVERY: Duration = Duration::from_secs(60);

/// Growth of the log while snapshots are open.
#[derive(Debug, Default)]
pub struct HeldLog {
    bytes: AtomicU64,
}

/// State of the measurements.
#[derive(Debug, Default)]
struct Measured {
    /// Bytes of the log when the oldest open snapshot was first seen; `None` if no snapshot is open.
    at_begin: Option<u64>,
    warned: Option<Instant>,
}

impl Measured {
    /// Records a measurement. Returns the growth of the log, and true if a warning is due.
    fn measure(&mut self, open: u64, log_bytes: u64, bound: u64, now: Instant) -> (u64, bool) {
        if open == 0 {
            *self = Self::default();
            return (0, false);
        }
        let held = log_bytes.saturating_sub(*self.at_begin.get_or_insert(log_bytes));
        let was_silent = self.warned.is_none_or(|warned| now.saturating_duration_since(warned) >= WARNED_EVERY);
        let warns = held > bound && was_silent;
        if warns {
            self.warned = Some(now);
        }
        (held, warns)
    }
}

impl HeldLog {
    /// Returns the bytes by which the log has grown since the oldest open snapshot began, as of the last measurement.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Measures the growth of the log periodically until the server stops. Logs a warning while the growth exceeds
    /// `bound` bytes.
    pub async fn measure_until(&self, db: &Database, bound: u64, mut stopping: watch::Receiver<bool>) {
        let mut measured = Measured::default();
        loop {
            let stats = db.stats();
            let (held, warns) = measured.measure(stats.snapshots.open, stats.log.bytes, bound, Instant::now());
            self.bytes.store(held, Relaxed);
            if warns {
                tracing::warn!(
                    held_bytes = held,
                    history_bytes = bound,
                    snapshots = stats.snapshots.open,
                    "open snapshots hold the log above its bound: it frees no segment until they end"
                );
            }
            tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_counts_from_the_oldest_snapshot_and_warns_once_a_minute() {
        let (mut measured, begun) = (Measured::default(), Instant::now());
        let mut at = |seconds, open, bytes| measured.measure(open, bytes, 100, begun + Duration::from_secs(seconds));
        assert_eq!(at(0, 0, 500), (0, false));
        assert_eq!(at(5, 1, 500), (0, false));
        assert_eq!(at(10, 2, 600), (100, false));
        assert_eq!(at(15, 1, 601), (101, true));
        assert_eq!(at(20, 1, 700), (200, false));
        assert_eq!(at(75, 1, 700), (200, true));
        assert_eq!(at(80, 0, 700), (0, false));
        assert_eq!(at(85, 1, 700), (0, false), "another snapshot begins to count again");
    }
}
