//! Measurement of the time from sending log entries to a follower until the follower has acknowledged them.
//!
//! Owns: the calls by which the network reports these times. Does not own: the histograms, which belong to the member.

use std::time::Duration;

use thalweg_replica::{Member, ReplicationStage};
use thalweg_types::Index;

use crate::reader::LogReader;

/// Recorder for the times of appends (messages with entries) to followers. Clones record into the same histograms.
#[derive(Clone, Debug)]
pub struct AppendTimes {
    member: Member,
    reader: LogReader,
}

impl AppendTimes {
    pub(crate) fn new(member: Member, reader: LogReader) -> Self {
        Self { member, reader }
    }

    /// Notes that an append whose last entry is `last` was passed to the connection to a follower. Returns the present
    /// monotonic time, which the caller passes to [`acknowledged`](Self::acknowledged). Returns `None` if this node
    /// wrote the entry long ago: the follower is catching up, and the time of such an append is not measured.
    #[must_use]
    pub fn sent(&self, last: Index) -> Option<Duration> {
        let written = self.reader.written(last)?;
        let now = self.member.monotonic();
        self.member.note_stage(ReplicationStage::Send, now.saturating_sub(written.ended));
        Some(now)
    }

    /// Notes that a follower has acknowledged all entries of an append. `sent` is the monotonic time at which the
    /// append was sent.
    pub fn acknowledged(&self, sent: Duration) {
        self.member.note_stage(ReplicationStage::Acknowledge, self.member.monotonic().saturating_sub(sent));
    }
}
