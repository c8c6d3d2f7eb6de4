//! Reports of the progress of watches: messages that tell a client how far its watch has come when there are no changes
//! to send.
//!
//! A client that reconnects resumes its watch at the last revision that the server has reported. A watch of rarely
//! changed keys has few changes to send. So the server also reports the progress alone, before the log frees the
//! history after the last report. Owns: the time at which such a report is due. Does not own: watches, and the format
//! of the reports.
//!
//! The log frees old history for two reasons, and each makes a report due: time passes (`history_age`), and bytes are
//! written (`history_bytes`). The log frees whole segments, and never the one that it writes to. So one report for each
//! new segment is enough for the second reason.

use std::time::{Duration, Instant};

use thalweg_engine::Database;

use crate::config::Config;

/// Maximum time between the moment at which a watch reaches a revision and the report of this revision to its client.
/// It is less if `tail_keep_alive` is shorter.
const MAX_PROGRESS: Duration = Duration::from_secs(1);
/// Minimum time between two checks if the log has begun a new segment, whatever the bounds of the history. A report to
/// the client costs a few dozen bytes.
const MIN_PROGRESS: Duration = Duration::from_millis(10);
/// Number of bytes that a fast disk writes per second. The log is checked for a new segment so often that such a disk
/// cannot write more than half of the kept history in between.
const FAST_DISK_BYTES: u64 = 1 << 30;

/// Timer of the reports with which a watch tells its client how far it has come.
#[derive(Debug)]
pub struct ProgressTimer {
    /// Maximum time between two reports of a watch's progress to its client.
    every: Duration,
    /// Time between two checks if the log has begun a new segment, because a report is then due.
    pause: Duration,
    reported_at: Instant,
    /// Number of the log segment that was being written at the time of the last report.
    segment: u64,
}

impl ProgressTimer {
    /// Creates the timer of a watch whose client has just been told a revision.
    #[must_use]
    pub fn new(config: &Config, db: &Database) -> Self {
        let every = (config.history_age.0 / 4).clamp(MIN_PROGRESS, MAX_PROGRESS).min(config.tail_keep_alive.0);
        // Between two checks, no disk writes more than half of the history that is kept.
        let bytes = (config.history_bytes.0 / 2).max(config.segment_bytes.0);
        let pause = Duration::from_secs_f64(bytes as f64 / FAST_DISK_BYTES as f64).clamp(MIN_PROGRESS, every);
        Self { every, pause, reported_at: Instant::now(), segment: db.log_generation() }
    }

    /// Returns the time for which the watch waits for changes before it checks again if a report is due.
    #[must_use]
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// Returns the time since the server last reported the progress of the watch to its client.
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
