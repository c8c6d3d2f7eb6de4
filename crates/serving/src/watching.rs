//! Reports of the progress of watches.
//!
//! A client that reconnects resumes its watch at the last revision that the server has told it. A watch of rarely
//! changed keys has few changes to send, so the server also reports how far it has come, before the history floor of
//! the log rises above the last report. Owns: when such a report is due. Does not own: watches, and the form of the
//! reports.
//!
//! The floor rises for two reasons, and a report is due for each: with time (`history_age`), and with the bytes that
//! are written (`history_bytes`). The log frees whole segments, and never the one that it writes to, so one report for
//! each new segment is enough for the second.

use std::time::{Duration, Instant};

use thalweg_engine::Database;

use crate::config::Config;

/// Longest time for which a watch withholds a revision that it has reached, unless `tail_keep_alive` is shorter.
const MAX_PROGRESS: Duration = Duration::from_secs(1);
/// Shortest time between two looks at the log, whatever the bounds of the history. A report costs a few dozen bytes.
const MIN_PROGRESS: Duration = Duration::from_millis(10);
/// Bytes that a fast disk writes in a second.
const FAST_DISK_BYTES: u64 = 1 << 30;

/// The time at which a watch must report its progress.
#[derive(Debug)]
pub struct ProgressTimer {
    /// Maximum time between two reports while there is progress.
    every: Duration,
    /// Time between two looks at the log.
    pause: Duration,
    reported_at: Instant,
    /// Generation of the segment to which the log wrote at the last report.
    segment: u64,
}

impl ProgressTimer {
    /// Creates the timer of a watch that has just told its client a revision.
    #[must_use]
    pub fn new(config: &Config, db: &Database) -> Self {
        let every = (config.history_age.0 / 4).clamp(MIN_PROGRESS, MAX_PROGRESS).min(config.tail_keep_alive.0);
        // Between two looks, no disk writes more than half of the history that is kept.
        let bytes = (config.history_bytes.0 / 2).max(config.segment_bytes.0);
        let pause = Duration::from_secs_f64(bytes as f64 / FAST_DISK_BYTES as f64).clamp(MIN_PROGRESS, every);
        Self { every, pause, reported_at: Instant::now(), segment: db.log_generation() }
    }

    /// Returns the time to wait for changes before the next look at the log.
    #[must_use]
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// Returns the time since the client was told a revision.
    #[must_use]
    pub fn silence(&self) -> Duration {
        self.reported_at.elapsed()
    }

    /// Returns true if the client must be told about progress now.
    #[must_use]
    pub fn is_due(&self, db: &Database) -> bool {
        self.silence() >= self.every || self.segment != db.log_generation()
    }

    /// Notes that the client is told how far the watch has come.
    pub fn reported(&mut self, db: &Database) {
        (self.reported_at, self.segment) = (Instant::now(), db.log_generation());
    }
}
