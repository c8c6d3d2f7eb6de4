//! What readers see of groups.

use std::sync::Arc;

use thalweg_types::{
    Attempt, GroupId, Offset, SpaceTime, StreamId,
    command::groups::{Delivered, GroupConfig, OffsetRun},
};

use crate::groups::{
    group::{Group, delivered},
    parcel::{self, Holder, Parcel},
};

/// A group as of the last applied entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    /// Its id.
    pub id: GroupId,
    /// Its name, unique within the stream.
    pub name: Arc<str>,
    /// Whose records it delivers.
    pub stream: StreamId,
    /// How.
    pub config: GroupConfig,
    /// Next to deliver that was never delivered.
    pub cursor: Offset,
    /// All below are settled.
    pub floor: Offset,
    /// Records that wait for an ack or to be delivered again.
    pub pending: u64,
    /// Of them, with members before their deadline.
    pub in_flight: u64,
    /// Of them, behind another record of their key.
    pub parked: u64,
    /// When the next pending records come free again.
    pub next_due: Option<SpaceTime>,
    /// Dead letters on their way to their stream.
    pub dying: u64,
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
    /// Who has fetched.
    pub members: Vec<MemberInfo>,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// As it calls itself.
    pub name: String,
    /// When it last fetched, within ten seconds.
    pub last_fetch: SpaceTime,
    /// Records that it holds.
    pub in_flight: u64,
    /// Attempts that it holds.
    pub attempts: u64,
}

/// A group's counters, for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupCounters {
    /// Its id.
    pub id: GroupId,
    /// Its name.
    pub name: Arc<str>,
    /// Whose records it delivers.
    pub stream: StreamId,
    /// Next to deliver that was never delivered.
    pub cursor: Offset,
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

/// What an attempt still holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldAttempt {
    /// The attempt.
    pub attempt: Attempt,
    /// When it lapses; meaningless if it holds nothing.
    pub deadline: SpaceTime,
    /// Which records, ascending; none if it has lapsed, or all is settled.
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

    /// How many records.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.count)).sum()
    }
}

/// Whether a fetch is worth it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupReady {
    /// It would deliver something.
    Now,
    /// Not before this time, unless the stream grows or records are given back.
    At(Option<SpaceTime>),
    /// There is no such group.
    Gone,
}

/// Dead letters that wait to be moved to their stream: that is done by a commit that appends them there and
/// acks this attempt, so it happens once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadParcel {
    /// Their attempt.
    pub attempt: Attempt,
    /// Why.
    pub reason: String,
    /// Which records, and how often each was delivered.
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
