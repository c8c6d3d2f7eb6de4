//! Frames of consumer groups: fetching, pushing and describing. Creating, configuring, deleting and seeking a group
//! are commands, and so are ack, nack and extend.

use thalweg_types::{
    Attempt, Durability, GroupId, SpaceTime, StreamId,
    codec::{Level, List, choices, structure},
};

pub use thalweg_types::info::{Group, Member};

use super::{Permit, RecordRun};

structure! {
    /// Requests the description of a group.
    FindGroup<'a> as "find group" {
        /// Id of the stream.
        stream: StreamId,
        /// Name of the group.
        name: &'a str,
    }
}

structure! {
    /// Requests a page of groups, ordered by id.
    ListGroups as "list groups" {
        /// Id of the stream; 0 selects all streams.
        stream: StreamId,
        /// Last id of the previous page; 0 for the first page.
        after: GroupId,
        /// Maximum number of groups in the page.
        limit: u32,
    }
}

structure! {
    /// Requests one delivery of records to a member.
    Fetch<'a> as "fetch" {
        /// Id of the group.
        group: GroupId,
        /// Maximum number of records.
        max_records: u32,
        /// Maximum number of bytes of keys, headers and payloads. At least one record is delivered.
        max_bytes: u32,
        /// Longest time to wait for the first record, in microseconds.
        wait: u64,
        /// Durability level that the delivery itself must reach.
        level: Level,
        /// Name of the member that fetches.
        member: &'a str,
    }
}

choices! {
    /// Treatment of unsettled records when the push to a receiver ends.
    Release as "release" {
        /// The group delivers them again after their deadline.
        AtDeadline = 0 "at deadline",
        /// The group delivers them again immediately. This delivery still counts.
        AtOnce = 1 "at once",
    }
}

structure! {
    /// Begins a subscription in which the server sends deliveries as records arrive.
    Push<'a> as "push" {
        /// Id of the group.
        group: GroupId,
        /// Maximum number of records delivered and not settled.
        held_records: u32,
        /// Maximum number of bytes delivered and not settled.
        held_bytes: u64,
        /// Durability level that the deliveries themselves must reach.
        level: Level,
        /// Treatment of unsettled records at the end.
        release: Release,
        /// Initial credit of the subscription.
        permit: Permit,
        /// Name of the member that receives.
        member: &'a str,
    }
}

structure! {
    /// Records that have been delivered equally often.
    DeliveryPart<'a> as "delivery part" {
        /// Number of deliveries, including this one.
        deliveries: u32,
        /// Records in order of their offsets.
        runs: List<'a, RecordRun<'a>>,
    }
}

structure! {
    /// Reply to [`Fetch`]: records for a member, which settles them by the number of their attempt.
    Delivery<'a> as "delivery" {
        /// Durability level that the delivery reached.
        durability: Durability,
        /// Attempt that settles the records; 0 means that there are no records.
        attempt: Attempt,
        /// Deadline of the attempt, in space time.
        deadline: SpaceTime,
        /// Records of the delivery.
        parts: List<'a, DeliveryPart<'a>>,
    }
}

structure! {
    /// Reply to [`Push`]: the push has begun. The bounds in force may be lower than the requested ones.
    Pushing as "pushing" {
        /// Maximum number of records delivered and not settled.
        held_records: u32,
        /// Maximum number of bytes delivered and not settled.
        held_bytes: u64,
    }
}

structure! {
    /// A delivery that a push sends.
    Pushed<'a> as "pushed" {
        /// Durability level that the delivery reached.
        durability: Durability,
        /// Attempt that settles the records.
        attempt: Attempt,
        /// Deadline of the attempt, in space time.
        deadline: SpaceTime,
        /// Records of the delivery.
        parts: List<'a, DeliveryPart<'a>>,
    }
}

structure! {
    /// Reply to [`FindGroup`].
    GroupFound as "group found" {
        /// Description of the group.
        group: Group,
    }
}

structure! {
    /// Reply to [`ListGroups`].
    GroupList<'a> as "group list" {
        /// True if more groups follow the last one.
        more: bool,
        /// Groups of the page, ordered by id.
        groups: List<'a, Group>,
    }
}
