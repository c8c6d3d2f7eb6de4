//! Times of the appends that this node sends to followers.
//!
//! Owns: how the network reports them. Does not own: their histograms, which belong to the member.

use std::time::Duration;

use thalweg_replica::{Member, ReplicationStage};
use thalweg_types::Index;

use crate::reader::LogReader;

/// Counts the times of the appends to followers. A clone counts for the same member.
#[derive(Clone, Debug)]
pub struct AppendTimes {
    member: Member,
    reader: LogReader,
}

impl AppendTimes {
    pub(crate) fn new(member: Member, reader: LogReader) -> Self {
        Self { member, reader }
    }

    /// Notes that an append whose last entry is `last` was passed to the connection to a follower. Returns the
    /// monotonic time for [`acknowledged`](Self::acknowledged); `None` if the entry is not among the newest, as those
    /// for a follower that catches up: the times of such appends are not counted.
    #[must_use]
    pub fn sent(&self, last: Index) -> Option<Duration> {
        let written = self.reader.written(last)?;
        let now = self.member.monotonic();
        self.member.note_stage(ReplicationStage::Send, now.saturating_sub(written.ended));
        Some(now)
    }

    /// Notes that a follower has acknowledged all entries of an append that was sent at this monotonic time.
    pub fn acknowledged(&self, sent: Duration) {
        self.member.note_stage(ReplicationStage::Acknowledge, self.member.monotonic().saturating_sub(sent));
    }
}
