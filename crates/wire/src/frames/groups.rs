//! Frames of consumer groups: fetching, pushing and describing. An *attempt* is one delivery of records to a member,
//! with a number and a deadline. A record is *settled* when a member has acked or nacked it. Creating, configuring,
//! deleting and seeking a group are commands, and so are ack, nack and extend.

use thalweg_types::{
    Attempt, Durability, GroupId, SpaceTime, StreamId,
    codec::{Level, List, choices, structure},
};

pub use thalweg_types::info::{Group, Member};

use super::{Permit, RecordRun};

structure! {
    /// Requests the description of a consumer group by its name.
    FindGroup<'a> as "find group" {
        /// Id of the group's stream.
        stream: StreamId,
        /// Name of the group to find.
        name: &'a str,
    }
}

structure! {
    /// Requests a page of consumer groups, ordered by id.
    ListGroups as "list groups" {
        /// Id of the stream whose groups to list; 0 selects all streams.
        stream: StreamId,
        /// Id of the last group of the previous page; 0 for the first page.
        after: GroupId,
        /// Maximum number of groups in the page.
        limit: u32,
    }
}

structure! {
    /// Requests one delivery of a group's records to a member.
    Fetch<'a> as "fetch" {
        /// Id of the consumer group to fetch from.
        group: GroupId,
        /// Maximum number of records in the delivery.
        max_records: u32,
        /// Maximum number of bytes of keys, headers and payloads. At least one record is delivered if there is one,
        /// even above this limit.
        max_bytes: u32,
        /// Longest time that the server waits for the first record, in microseconds.
        wait: u64,
        /// Durability level that the log entry of the delivery must reach before the reply.
        level: Level,
        /// Name of the group member that fetches.
        member: &'a str,
    }
}

choices! {
    /// Treatment of delivered records that are neither acked nor nacked when a push (a subscription to a group's
    /// records) ends.
    Release as "release" {
        /// The group delivers the records again after their delivery deadline.
        AtDeadline = 0 "at deadline",
        /// The group delivers the records again immediately. The ended delivery still counts towards the limit of
        /// deliveries.
        AtOnce = 1 "at once",
    }
}

structure! {
    /// Begins a subscription in which the server sends a group's deliveries to a member as records arrive.
    Push<'a> as "push" {
        /// Id of the consumer group whose records the server sends.
        group: GroupId,
        /// Maximum number of records that the member holds: delivered, and neither acked nor nacked.
        held_records: u32,
        /// Maximum number of bytes that the member holds: delivered, and neither acked nor nacked.
        held_bytes: u64,
        /// Durability level that the log entry of each delivery must reach before the delivery is sent.
        level: Level,
        /// Treatment of the records that the member still holds when the push (the subscription to the group's records)
        /// ends.
        release: Release,
        /// Initial credit of the subscription: the messages and bytes that the server may send at first.
        permit: Permit,
        /// Name of the group member that receives.
        member: &'a str,
    }
}

structure! {
    /// Records of a delivery that have been delivered the same number of times.
    DeliveryPart<'a> as "delivery part" {
        /// Number of times that the records were delivered, including this delivery.
        deliveries: u32,
        /// Records of this part in the order of their offsets, as runs of records that were appended together.
        runs: List<'a, RecordRun<'a>>,
    }
}

structure! {
    /// Reply to [`Fetch`]: records that the group delivers to a member. The member acks or nacks them with the number
    /// of the attempt.
    Delivery<'a> as "delivery" {
        /// Durability level that the log entry of the delivery has reached.
        durability: Durability,
        /// Number of this delivery, with which the member acks or nacks its records; 0 means that there are no records.
        attempt: Attempt,
        /// Time until which the member must ack or nack the records, in microseconds since 1970 by the clock that all
        /// nodes share.
        deadline: SpaceTime,
        /// Records of the delivery, divided by the number of times that they were delivered.
        parts: List<'a, DeliveryPart<'a>>,
    }
}

structure! {
    /// Reply to [`Push`]: the push has begun. Its fields are the limits that the server applies, which may be lower
    /// than the requested ones.
    Pushing as "pushing" {
        /// Maximum number of records that the member holds: delivered, and neither acked nor nacked.
        held_records: u32,
        /// Maximum number of bytes that the member holds: delivered, and neither acked nor nacked.
        held_bytes: u64,
    }
}

structure! {
    /// A delivery that the server pushes to a member of a group.
    Pushed<'a> as "pushed" {
        /// Durability level that the log entry of the delivery has reached.
        durability: Durability,
        /// Number of this delivery, with which the member acks or nacks its records.
        attempt: Attempt,
        /// Time until which the member must ack or nack the records, in microseconds since 1970 by the clock that all
        /// nodes share.
        deadline: SpaceTime,
        /// Records of the delivery, divided by the number of times that they were delivered.
        parts: List<'a, DeliveryPart<'a>>,
    }
}

structure! {
    /// Reply to [`FindGroup`]: the description of a consumer group.
    GroupFound as "group found" {
        /// Description of the group.
        group: Group,
    }
}

structure! {
    /// Reply to [`ListGroups`]: a page of consumer groups.
    GroupList<'a> as "group list" {
        /// True if more groups follow after this page.
        more: bool,
        /// Groups in the page, ordered by id.
        groups: List<'a, Group>,
    }
}
