//! Reports of the progress of watches.
//!
//! A client that reconnects resumes its watch at the last revision that the server has reported. A watch of rarely
//! changed keys has few changes to send. So the server also reports how far the watch has come, before the history
//! floor of the log rises above the last report. Owns: the time at which such a report is due. Does not own: watches,
//! and the format of the reports.
//!
//! The floor rises for two reasons, and each makes a report due: time passes (`history_age`), and bytes are written
//! (`history_bytes`). The log frees whole segments, and never the one that it writes to. So one report for each new
//! segment is enough for the second reason.

use std::time::{Duration, Instant};

use thalweg_engine::Database;

use crate::config::Config;

/// Maximum time between the arrival of a watch at a revision and the report to its client; less if `tail_keep_alive` is
/// shorter.
const MAX_PROGRESS: Duration = Duration::from_secs(1);
/// Minimum time between two checks of the log, whatever the bounds of the history. A report costs a few dozen bytes.
const MIN_PROGRESS: Duration = Duration::from_millis(10);
/// Number of bytes that a fast disk writes per second. Checks of the log come often enough for such a disk.
const FAST_DISK_BYTES: u64 = 1 << 30;

/// Timer of the reports with which a watch tells its client how far it has come.
#[derive(Debug)]
pub struct ProgressTimer {
    /// Maximum time between two reports while the watch advances.
    every: Duration,
    /// Time between two checks of the log.
    pause: Duration,
    reported_at: Instant,
    /// Number of the segment to which the log wrote at the last report.
    segment: u64,
}

impl ProgressTimer {
    /// Creates the timer of a watch that has just told its client a revision.
    #[must_use]
    pub fn new(config: &Config, db: &Database) -> Self {
        let every = (config.history_age.0 / 4).clamp(MIN_PROGRESS, MAX_PROGRESS).min(config.tail_keep_alive.0);
        // Between two checks, no disk writes more than half of the history that is kept.
        let bytes = (config.history_bytes.0 / 2).max(config.segment_bytes.0);
        let pause = Duration::from_secs_f64(bytes as f64 / FAST_DISK_BYTES as f64).clamp(MIN_PROGRESS, every);
        Self { every, pause, reported_at: Instant::now(), segment: db.log_generation() }
    }

    /// Returns the time to wait for changes before the next check of the log.
    #[must_use]
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// Returns the time since the client was told a revision.
    #[must_use]
    pub fn silence(&self) -> Duration {
        self.reported_at.elapsed()
    }

    /// Returns true if the server must report the progress to the client now.
    #[must_use]
    pub fn is_due(&self, db: &Database) -> bool {
        self.silence() >= self.every || self.segment != db.log_generation()
    }

    /// Records that the server has reported the progress to the client.
    pub fn reported(&mut self, db: &Database) {
        (self.reported_at, self.segment) = (Instant::now(), db.log_generation());
    }
}
