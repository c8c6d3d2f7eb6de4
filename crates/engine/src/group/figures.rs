//! Statistics of all consumer groups, cheap enough to be read every few seconds.

use crate::{database::Database, error::ReadError};

/// Statistics of a consumer group, for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupFigures {
    /// Name of the stream that the group reads.
    pub stream: String,
    /// Name of the consumer group.
    pub name: String,
    /// Number of records that have never been delivered.
    pub lag: u64,
    /// Number of records that wait for an ack or for redelivery.
    pub pending: u64,
    /// Number of members that the group remembers.
    pub members: u64,
    /// Number of deliveries of records, including redeliveries.
    pub delivered: u64,
    /// Number of redeliveries: deliveries of records that had been delivered before.
    pub redelivered: u64,
    /// Number of records that consumers have acked.
    pub acked: u64,
    /// Number of records moved to the group's dead-letter stream.
    pub dead: u64,
    /// Number of records that failed for good and were dropped, because the group had no dead-letter stream.
    pub dropped: u64,
}

impl Database {
    /// Returns the statistics of the first `max` consumer groups in the order of ids, and the number of all groups.
    /// Does not read pending records.
    pub fn group_figures(&self, max: usize) -> Result<(Vec<GroupFigures>, usize), ReadError> {
        let machine = &self.inner.open.machine;
        let (groups, count) = machine.group_counters(max)?;
        let figures = |group: thalweg_state::groups::GroupCounters| {
            // A group whose stream was deleted in the meantime is left out.
            let stream = machine.stream(group.stream)?;
            Some(GroupFigures {
                stream: stream.name.to_string(),
                name: group.name.to_string(),
                lag: stream.next.0.saturating_sub(group.cursor.0),
                pending: group.pending,
                members: group.members,
                delivered: group.delivered,
                redelivered: group.redelivered,
                acked: group.acked,
                dead: group.dead,
                dropped: group.dropped,
            })
        };
        Ok((groups.into_iter().filter_map(figures).collect(), count))
    }
}
