//! A node to which nothing is written: what it holds on disk only for further writes goes back.
//!
//! Owns: noticing that the log has not grown for a while, by the node's clock, and the two steps that follow. The state
//! persists its newest changes, so that the log need not keep them for a replay; then the log gives its prepared
//! segments back. Does not own: the conditions of the log ([`Log::rest`](thalweg_log::Log::rest)), or freeing segments
//! (see [`crate::mover`]).

use std::time::Duration;

use thalweg_types::Lsn;

use crate::{error::WriteError, inner::Inner};

/// Time without a log record after which the state persists its newest changes.
const QUIET_BEFORE_FLUSH: Duration = Duration::from_secs(10);
/// Share of the disk space of a node that its prepared segments must exceed, so that giving them back is worth while:
/// one in this number.
const REST_SHARE: u64 = 16;
/// Time without a log record after which the log gives its prepared segments back.
const QUIET_BEFORE_REST: Duration = Duration::from_secs(30);
/// Share of a full memtable from which its changes are persisted: one in this number. A smaller share would make a node
/// that is written to every now and then compact more.
const FLUSH_SHARE: usize = 8;
/// Share that is enough if the state has not been persisted in this way for [`RARE_FLUSH_INTERVAL`].
const RARE_FLUSH_SHARE: usize = 64;
const RARE_FLUSH_INTERVAL: Duration = Duration::from_secs(600);

/// State that is kept between maintenance rounds.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    /// End of the log, and the monotonic time at which a round first found it there.
    end: Lsn,
    since: Duration,
    /// Monotonic time at which the state was last persisted because the node was quiet.
    flushed: Option<Duration>,
}

impl Inner {
    /// Gives back what only further writes need, if there were none for a while.
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
