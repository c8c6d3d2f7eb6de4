//! Statistics of all groups, cheap enough to be read every few seconds.

use crate::{database::Database, error::ReadError};

/// Statistics of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupFigures {
    /// Name of the group's stream.
    pub stream: String,
    /// Name of the group.
    pub name: String,
    /// Number of records that have never been delivered.
    pub lag: u64,
    /// Number of records that wait for an ack or for redelivery.
    pub pending: u64,
    /// Number of members that the group remembers.
    pub members: u64,
    /// Number of deliveries of records, redeliveries included.
    pub delivered: u64,
    /// Number of these deliveries that were redeliveries.
    pub redelivered: u64,
    /// Number of records acked.
    pub acked: u64,
    /// Number of records that became dead letters.
    pub dead: u64,
    /// Number of records dropped after too many deliveries, because the group has no stream for dead letters.
    pub dropped: u64,
}

impl Database {
    /// Returns the statistics of the first `max` groups by id, and the total number of groups. It reads no pending
    /// records.
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
