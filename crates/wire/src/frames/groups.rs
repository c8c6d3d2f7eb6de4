//! Consumer groups: fetching, pushing, describing. Creating, configuring, deleting, seeking, ack, nack and extend are
//! commands.

use thalweg_types::{Attempt, Durability, GroupId, Offset, SpaceTime, StreamId, command::groups::GroupConfig};

use super::{Permit, RecordRun};
use crate::{
    codec::{Level, List},
    layouts::{choices, structure},
};

structure! {
    /// Describes a group.
    FindGroup<'a> as "find group" {
        /// Of which stream.
        stream: StreamId,
        /// Its name.
        name: &'a str,
    }
}

structure! {
    /// Lists groups by id.
    ListGroups as "list groups" {
        /// Of which stream; 0: of all.
        stream: StreamId,
        /// Those after this one; 0: from the first.
        after: GroupId,
        /// At most so many.
        limit: u32,
    }
}

structure! {
    /// Delivers records to a member, once.
    Fetch<'a> as "fetch" {
        /// From which group.
        group: GroupId,
        /// At most so many records.
        max_records: u32,
        /// At most so many bytes of keys, headers and payloads, but at least one record.
        max_bytes: u32,
        /// Microseconds to wait for the first record.
        wait: u64,
        /// The ack of the delivery itself.
        level: Level,
        /// Who fetches.
        member: &'a str,
    }
}

choices! {
    /// What becomes of what a receiver holds when its push ends.
    Release as "release" {
        /// It comes again after its deadline.
        AtDeadline = 0 "at deadline",
        /// It comes again at once, and this delivery counts.
        AtOnce = 1 "at once",
    }
}

structure! {
    /// Begins deliveries that come by themselves.
    Push<'a> as "push" {
        /// From which group.
        group: GroupId,
        /// At most so many records unsettled.
        held_records: u32,
        /// At most so many bytes unsettled.
        held_bytes: u64,
        /// The ack of the deliveries themselves.
        level: Level,
        /// What becomes of what is held at the end.
        release: Release,
        /// What it may send.
        permit: Permit,
        /// Who receives.
        member: &'a str,
    }
}

structure! {
    /// Records that were delivered equally often.
    DeliveryPart<'a> as "delivery part" {
        /// How often, this time included.
        deliveries: u32,
        /// In order.
        runs: List<'a, RecordRun<'a>>,
    }
}

structure! {
    /// Records for a member, to be settled by their attempt.
    Delivery<'a> as "delivery" {
        /// The level that the delivery reached.
        durability: Durability,
        /// By which it is settled; 0: there are no records.
        attempt: Attempt,
        /// When it lapses, in space time.
        deadline: SpaceTime,
        /// The records.
        parts: List<'a, DeliveryPart<'a>>,
    }
}

structure! {
    /// A push has begun. The bounds are those that hold, perhaps lower than asked for.
    Pushing as "pushing" {
        /// At most so many records unsettled.
        held_records: u32,
        /// At most so many bytes unsettled.
        held_bytes: u64,
    }
}

structure! {
    /// What a push sends: a delivery.
    Pushed<'a> as "pushed" {
        /// The level that the delivery reached.
        durability: Durability,
        /// By which it is settled.
        attempt: Attempt,
        /// When it lapses, in space time.
        deadline: SpaceTime,
        /// The records.
        parts: List<'a, DeliveryPart<'a>>,
    }
}

structure! {
    /// A member of a group.
    Member<'a> as "member" {
        /// When it last fetched, within ten seconds, in space time.
        last_fetch: SpaceTime,
        /// Records that it holds.
        in_flight: u64,
        /// Attempts that it holds.
        attempts: u64,
        /// As it calls itself.
        name: &'a str,
    }
}

structure! {
    /// A consumer group.
    Group<'a> as "group" {
        /// Its id, by which commands name it. Never used for another one.
        id: GroupId,
        /// Its stream.
        stream: StreamId,
        /// Next to deliver that was never delivered.
        cursor: Offset,
        /// All records below are settled.
        floor: Offset,
        /// Records that were never delivered.
        lag: u64,
        /// Records that wait for an ack or to be delivered again.
        pending: u64,
        /// Of them, with members.
        in_flight: u64,
        /// Of them, behind another record of their key.
        parked: u64,
        /// Dead letters on their way.
        dying: u64,
        /// Records delivered, each time counted.
        delivered: u64,
        /// Of them, those that had been delivered before.
        redelivered: u64,
        /// Records acked.
        acked: u64,
        /// Records that became dead letters.
        dead: u64,
        /// Records delivered too often, without a stream for dead letters.
        dropped: u64,
        /// How it delivers.
        config: GroupConfig,
        /// Its name.
        name: &'a str,
        /// Its stream's name.
        stream_name: &'a str,
        /// Who has fetched.
        members: List<'a, Member<'a>>,
    }
}

structure! {
    /// A group that was asked for.
    GroupFound<'a> as "group found" {
        /// The group.
        group: Group<'a>,
    }
}

structure! {
    /// Groups by id.
    GroupList<'a> as "group list" {
        /// Whether there are more behind the last.
        more: bool,
        /// Those asked for.
        groups: List<'a, Group<'a>>,
    }
}
