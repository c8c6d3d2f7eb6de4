//! Results of queries about consumer groups.

use std::sync::Arc;

use thalweg_types::{
    Attempt, GroupId, Offset, SpaceTime, StreamId,
    command::groups::{DeliveredRun, OffsetRun},
    info::{self, GroupCounts},
    parcel::{Holder, Parcel},
};

use crate::groups::{
    group::{Group, delivered},
    parcels::HeldCounts,
};

/// Counters of a consumer group, for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupCounters {
    /// Id of the group.
    pub id: GroupId,
    /// Name of the group.
    pub name: Arc<str>,
    /// Stream whose records the group delivers.
    pub stream: StreamId,
    /// Lowest offset that the group has never delivered.
    pub cursor: Offset,
    /// Numbers of records and members, such as pending and acked records and dead letters.
    pub counts: GroupCounts,
}

impl GroupCounters {
    pub(crate) fn of(id: GroupId, group: &Group) -> Self {
        let head = &group.head;
        Self {
            id,
            name: head.name.clone(),
            stream: head.stream,
            cursor: head.cursor,
            counts: GroupCounts {
                pending: group.parcels.pending(),
                dying: group.parcels.dead(),
                members: group.members.len() as u64,
                delivered: head.delivered,
                redelivered: head.redelivered,
                acked: head.acked,
                dead: head.dead,
                dropped: head.dropped,
            },
        }
    }
}

/// Records that a delivery attempt still holds: delivered, neither acked nor nacked, and before their ack deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldAttempt {
    /// Number of the delivery attempt, as the fetch returned it.
    pub attempt: Attempt,
    /// Time at which the attempt's ack deadline passes; meaningless if the attempt holds no records.
    pub deadline: SpaceTime,
    /// Records that the attempt still holds, ascending; empty if its ack deadline has passed or all are acked or
    /// nacked.
    pub runs: Vec<OffsetRun>,
}

impl HeldAttempt {
    pub(crate) fn nothing(attempt: Attempt) -> Self {
        Self { attempt, deadline: SpaceTime(0), runs: Vec::new() }
    }

    pub(crate) fn of(attempt: Attempt, parcel: &Parcel) -> Self {
        let runs = delivered(&parcel.runs).into_iter().map(|delivered| delivered.run).collect();
        Self { attempt, deadline: parcel.due, runs }
    }

    /// Returns the number of records that the attempt holds.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.count)).sum()
    }
}

/// Result of checking if a fetch would deliver records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupReady {
    /// A fetch would deliver records now.
    Now,
    /// A fetch would deliver nothing before this time, unless new records are appended or a consumer returns records.
    /// `None` means that no pending record waits for a time.
    At(Option<SpaceTime>),
    /// The group does not exist.
    NoGroup,
}

/// Dead letters of a group that are not in the dead-letter stream yet. One commit appends them to that stream and acks
/// this attempt, so each dead letter is moved exactly once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadParcel {
    /// Attempt number under which the dead letters are kept.
    pub attempt: Attempt,
    /// Reason why the records are dead letters.
    pub reason: String,
    /// The dead letters, and the number of deliveries of each.
    pub records: Vec<DeliveredRun>,
}

impl DeadParcel {
    pub(crate) fn of(attempt: Attempt, parcel: &Parcel) -> Self {
        let reason = match &parcel.holder {
            Holder::Dead(reason) => reason.to_string(),
            _ => String::new(),
        };
        Self { attempt, reason, records: delivered(&parcel.runs) }
    }
}

/// Describes a group at `now`, without the name of its stream and the lag behind the stream's end.
pub(crate) fn describe(id: GroupId, group: &Group, now: SpaceTime) -> info::Group {
    let (head, parcels) = (&group.head, &group.parcels);
    let held = parcels.held_at(now);
    let members = group.members.iter().map(|(id, member)| {
        let HeldCounts { records: in_flight, attempts } = held.get(&id).copied().unwrap_or_default();
        info::Member { last_fetch: member.last_fetch, in_flight, attempts, name: member.name.to_string() }
    });
    info::Group {
        id,
        stream: head.stream,
        cursor: head.cursor,
        floor: group.floor(),
        lag: 0,
        pending: parcels.pending(),
        in_flight: held.values().map(|counts| counts.records).sum(),
        parked: parcels.parked(),
        dying: parcels.dead(),
        delivered: head.delivered,
        redelivered: head.redelivered,
        acked: head.acked,
        dead: head.dead,
        dropped: head.dropped,
        config: head.config.clone(),
        name: head.name.to_string(),
        stream_name: String::new(),
        members: members.collect(),
    }
}
