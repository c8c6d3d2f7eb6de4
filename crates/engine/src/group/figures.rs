//! Figures of all groups, cheap enough to be looked at every few seconds.

use crate::{database::Database, error::ReadError};

/// What a group has done, and what it has before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupFigures {
    /// Its stream's name.
    pub stream: String,
    /// Its name.
    pub name: String,
    /// Records that were never delivered.
    pub lag: u64,
    /// Records that wait for an ack or to be delivered again.
    pub pending: u64,
    /// Members that are remembered.
    pub members: u64,
    /// Records delivered, each time counted.
    pub delivered: u64,
    /// Of them, those that had been delivered before.
    pub redelivered: u64,
    /// Records acked.
    pub acked: u64,
    /// Records that became dead letters.
    pub dead: u64,
    /// Records that were delivered too often, without a stream for dead letters.
    pub dropped: u64,
}

impl Database {
    /// Figures of the first `max` groups by id, and how many groups there are. Goes through no pending records.
    pub fn group_figures(&self, max: usize) -> Result<(Vec<GroupFigures>, usize), ReadError> {
        let machine = &self.inner.open.machine;
        let (groups, count) = machine.group_counters(max)?;
        let figures = |group: thalweg_state::groups::GroupCounters| {
            // One whose stream was deleted meanwhile is left out.
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
