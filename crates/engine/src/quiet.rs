//! Releases disk space on a node to which nothing is written for a while.
//!
//! Owns: the check that the log has not grown for a while, and the two steps that follow. The state persists its newest
//! changes, so that the log need not keep them for a replay; then the log gives its prepared segments back. Does not
//! own: when the log may give them back ([`Log::rest`](thalweg_log::Log::rest)), or freeing segments ([`crate::mover`]).

use std::time::Duration;

use thalweg_types::Lsn;

use crate::{error::WriteError, inner::Inner};

/// Time without a log record after which the state persists its newest changes.
const QUIET_BEFORE_FLUSH: Duration = Duration::from_secs(10);
/// Prepared segments are freed if they take more than the disk space of the log and the state divided by this number.
const REST_SHARE: u64 = 16;
/// Time without a log record after which the log gives its prepared segments back.
const QUIET_BEFORE_REST: Duration = Duration::from_secs(30);
/// Changes in memory are persisted if they exceed a full memtable divided by this number. Persisting fewer changes
/// would cause more compaction on a node that is written to now and then.
const FLUSH_SHARE: usize = 8;
/// Like [`FLUSH_SHARE`], but used if a quiet node last persisted its state at least [`RARE_FLUSH_INTERVAL`] ago.
const RARE_FLUSH_SHARE: usize = 64;
const RARE_FLUSH_INTERVAL: Duration = Duration::from_secs(600);

/// Observations about a quiet node that are kept between maintenance rounds.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    /// LSN after the log's last record in the last round. `since` is the monotonic time when it was first seen.
    end: Lsn,
    since: Duration,
    /// Monotonic time at which the state was last persisted because the node was quiet.
    flushed: Option<Duration>,
}

impl Inner {
    /// Persists the state and gives prepared segments back if nothing was written for a while.
    pub(crate) fn rest_if_quiet(&self, quiet: &mut Quiet) -> Result<(), WriteError> {
        let (now, end) = (self.open.clock.monotonic(), self.open.log.end());
        if end != quiet.end {
            (quiet.end, quiet.since) = (end, now);
        }
        let time = now.saturating_sub(quiet.since);
        if time >= QUIET_BEFORE_REST {
            self.open.log.rest(self.disk_bytes() / REST_SHARE);
        }
        if time >= QUIET_BEFORE_FLUSH && !self.is_disk_full() {
            let is_rare = quiet.flushed.is_none_or(|flushed| now.saturating_sub(flushed) >= RARE_FLUSH_INTERVAL);
            let share = if is_rare { RARE_FLUSH_SHARE } else { FLUSH_SHARE };
            if self.open.backend.flush_above(self.options.memtable_bytes / share)? {
                quiet.flushed = Some(now);
            }
        }
        Ok(())
    }

    /// Returns the bytes that the log and the state take on the disk, without prepared segments.
    fn disk_bytes(&self) -> u64 {
        let log: u64 = self.open.log.segments().iter().map(|segment| u64::from(segment.bytes)).sum();
        log + self.open.backend.stats().disk_bytes
    }
}
