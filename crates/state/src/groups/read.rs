//! Results of queries about consumer groups.

use std::sync::Arc;

use thalweg_types::{
    Attempt, GroupId, Offset, SpaceTime, StreamId,
    command::groups::{Delivered, GroupConfig, OffsetRun},
};

use crate::groups::{
    group::{Group, delivered},
    parcel::{self, Holder, Parcel},
};

/// Statistics of a group as of the last applied entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    /// Id of the group.
    pub id: GroupId,
    /// Name of the group, unique within the stream.
    pub name: Arc<str>,
    /// Stream whose records the group delivers.
    pub stream: StreamId,
    /// Configuration of the group.
    pub config: GroupConfig,
    /// Next offset that was never delivered.
    pub cursor: Offset,
    /// Offset below which all records are settled.
    pub floor: Offset,
    /// Number of records that wait for an ack or for redelivery.
    pub pending: u64,
    /// Number of pending records that members hold before their deadline.
    pub in_flight: u64,
    /// Number of pending records that are behind another record of their key.
    pub parked: u64,
    /// Time at which the next pending records can be redelivered.
    pub next_due: Option<SpaceTime>,
    /// Number of dead letters that are not in their stream yet.
    pub dying: u64,
    /// Number of deliveries, including redeliveries.
    pub delivered: u64,
    /// Number of deliveries of records that had been delivered before.
    pub redelivered: u64,
    /// Number of records that consumers have acked.
    pub acked: u64,
    /// Number of records that became dead letters.
    pub dead: u64,
    /// Number of records that were delivered too often while the group had no stream for dead letters.
    pub dropped: u64,
    /// Members that have fetched.
    pub members: Vec<MemberInfo>,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// Name that the member fetches with.
    pub name: String,
    /// Time of the last fetch, accurate to ten seconds.
    pub last_fetch: SpaceTime,
    /// Number of records that the member holds.
    pub in_flight: u64,
    /// Number of attempts that the member holds.
    pub attempts: u64,
}

/// Counters of a group, for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupCounters {
    /// Id of the group.
    pub id: GroupId,
    /// Name of the group.
    pub name: Arc<str>,
    /// Stream whose records the group delivers.
    pub stream: StreamId,
    /// Next offset that was never delivered.
    pub cursor: Offset,
    /// Number of records that wait for an ack or for redelivery.
    pub pending: u64,
    /// Number of members that the group remembers.
    pub members: u64,
    /// Number of deliveries, including redeliveries.
    pub delivered: u64,
    /// Number of deliveries of records that had been delivered before.
    pub redelivered: u64,
    /// Number of records that consumers have acked.
    pub acked: u64,
    /// Number of records that became dead letters.
    pub dead: u64,
    /// Number of records that were delivered too often while the group had no stream for dead letters.
    pub dropped: u64,
}

impl GroupCounters {
    pub(crate) fn of(id: GroupId, group: &Group) -> Self {
        let head = &group.head;
        Self {
            id,
            name: head.name.clone(),
            stream: head.stream,
            cursor: head.cursor,
            pending: group.pending(),
            members: group.members.iter().count() as u64,
            delivered: head.delivered,
            redelivered: head.redelivered,
            acked: head.acked,
            dead: head.dead,
            dropped: head.dropped,
        }
    }
}

/// Records that an attempt still holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldAttempt {
    /// Number of the attempt, as the fetch returned it.
    pub attempt: Attempt,
    /// Time at which the attempt lapses; meaningless if it holds no records.
    pub deadline: SpaceTime,
    /// Records held, ascending; empty if the attempt has lapsed or all its records are settled.
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

    /// Returns the number of records held.
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
    /// A fetch would deliver nothing before this time, unless the stream grows or records are returned.
    At(Option<SpaceTime>),
    /// The group does not exist.
    Gone,
}

/// Dead letters that are not in their stream yet. A commit moves them: it appends them there and acks this attempt,
/// so each is moved exactly once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadParcel {
    /// Attempt under which they are pending.
    pub attempt: Attempt,
    /// Reason why they are dead letters.
    pub reason: String,
    /// The records, and the number of deliveries of each.
    pub records: Vec<Delivered>,
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

impl GroupInfo {
    pub(crate) fn of(id: GroupId, group: &Group, now: SpaceTime) -> Self {
        let head = &group.head;
        let mut info = Self {
            id,
            name: head.name.clone(),
            stream: head.stream,
            config: head.config.clone(),
            cursor: head.cursor,
            floor: group.floor(),
            pending: group.pending(),
            in_flight: 0,
            parked: 0,
            next_due: group.next_due(),
            dying: group.dead(),
            delivered: head.delivered,
            redelivered: head.redelivered,
            acked: head.acked,
            dead: head.dead,
            dropped: head.dropped,
            members: Vec::new(),
        };
        let mut held: std::collections::BTreeMap<u32, (u64, u64)> = std::collections::BTreeMap::new();
        for (_, parcel) in group.parcels() {
            let count = parcel::count(&parcel.runs);
            match parcel.holder {
                Holder::Member(member) if now < parcel.due => {
                    info.in_flight += count;
                    let held = held.entry(member).or_default();
                    *held = (held.0 + count, held.1 + 1);
                }
                Holder::Parked => info.parked += count,
                Holder::Member(_) | Holder::Waiting | Holder::Dead(_) => {}
            }
        }
        info.members = group
            .members
            .iter()
            .map(|(id, member)| {
                let (in_flight, attempts) = held.get(&id).copied().unwrap_or_default();
                MemberInfo { name: member.name.to_string(), last_fetch: member.last_fetch, in_flight, attempts }
            })
            .collect();
        info
    }
}
