//! Objects of the state that take memory as long as they exist: streams, consumer groups, and leases.
//!
//! Owns: the present numbers of these objects. Does not own: a bound on the numbers. A server checks its own bound
//! before it proposes a command that adds objects; the outcome of a committed command does not depend on that bound.

use thalweg_state::groups::GroupCounters;
use thalweg_types::{GroupId, StreamId};

use crate::{database::Database, error::ReadError};

/// Numbers of the objects that take memory as long as they exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredObjects {
    /// Number of streams.
    pub streams: u64,
    /// Number of leases, including ended ones whose keys are not all removed yet.
    pub leases: u64,
    /// Consumer groups, in the order of ids.
    pub groups: Vec<GroupObjects>,
}

/// Numbers of the objects of one consumer group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupObjects {
    /// Id of the consumer group.
    pub id: GroupId,
    /// Number of members that the group remembers.
    pub members: u64,
    /// Number of records that wait for an ack or for redelivery, and of dead letters that are not moved yet.
    pub records: u64,
}

impl From<GroupCounters> for GroupObjects {
    fn from(group: GroupCounters) -> Self {
        let counts = group.counts;
        Self { id: group.id, members: counts.members, records: counts.pending + counts.dying }
    }
}

impl Database {
    /// Returns the numbers of streams, groups and leases. Reads the counters of each consumer group; this takes about a
    /// millisecond for the maximum number of groups.
    pub fn stored_objects(&self) -> Result<StoredObjects, ReadError> {
        let (groups, _) = self.inner.open.machine.group_counters(usize::MAX)?;
        let groups = groups.into_iter().map(GroupObjects::from).collect();
        Ok(StoredObjects { streams: self.stream_count() as u64, leases: self.lease_count() as u64, groups })
    }

    /// Returns the number of streams. Costs nothing.
    #[must_use]
    pub fn stream_count(&self) -> usize {
        self.inner.open.machine.stream_count()
    }

    /// Returns true if a stream with this id exists.
    #[must_use]
    pub fn has_stream(&self, id: StreamId) -> bool {
        self.inner.open.machine.stream(id).is_some()
    }
}
