//! Statistics of all consumer groups, cheap enough to be read every few seconds.

use thalweg_types::info::GroupCounts;

use crate::{database::Database, error::ReadError};

/// Statistics of a consumer group, for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupFigures {
    /// Name of the stream that the group reads.
    pub stream: String,
    /// Name of the consumer group.
    pub name: String,
    /// Number of records of the stream that the group has never delivered.
    pub lag: u64,
    /// Counters of the group, which the state keeps.
    pub counts: GroupCounts,
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
                counts: group.counts,
            })
        };
        Ok((groups.into_iter().filter_map(figures).collect(), count))
    }
}
