//! Outcomes of commands about consumer groups.

use crate::{
    clock::SpaceTime,
    command::groups::settlements::OffsetRun,
    ids::{Attempt, GroupId, Offset},
};

/// Outcome of a command about a consumer group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupOutcome {
    /// The group exists: this command created it, or it existed before.
    Created {
        /// Id of the created or existing group.
        id: GroupId,
        /// True if this command created the group; false if the group already existed.
        created: bool,
    },
    /// The group was configured or deleted, as requested.
    Done,
    /// The fetch delivered records, or there were none to deliver.
    Fetched(Box<Fetched>),
    /// The command acked or nacked records. It skipped records that had been acked or nacked before, or whose ack
    /// deadline had passed.
    Settled {
        /// Number of records acked or nacked.
        settled: u32,
        /// Records that the command could not settle, because their deadline had passed or because they had been
        /// settled before. The command did not change them.
        lapsed: Vec<Lapsed>,
    },
    /// The command has moved the ack deadlines of attempts (deliveries of records).
    Extended {
        /// New ack deadline of the extended attempts (deliveries), by the clock that all replicas share (space time).
        deadline: SpaceTime,
        /// Numbers of the attempts (deliveries) that the command did not extend, because all their records were acked
        /// or nacked, or because their ack deadline had passed.
        lapsed: Vec<Attempt>,
    },
    /// The group's cursor was moved.
    Sought {
        /// New cursor: offset of the next record to deliver.
        cursor: Offset,
    },
    /// The command named a group that does not exist.
    NoSuchGroup(GroupId),
    /// A commit acks or nacks a record that cannot be settled: the ack deadline of its attempt (delivery) has passed,
    /// or the record was acked or nacked before. The commit changed nothing.
    AttemptLapsed {
        /// Id of the group whose record cannot be acked or nacked.
        group: GroupId,
        /// Number of the attempt (delivery) that delivered the record, as the commit named it.
        attempt: Attempt,
    },
    /// The new configuration would send the group's dead letters to the group's own stream, or would change the
    /// delivery order. Nothing was changed.
    BadConfig {
        /// Description of the error in the configuration.
        what: &'static str,
    },
}

/// Records that an ack or nack could not settle: the ack deadline of their attempt (delivery) had passed, or they had
/// been acked or nacked before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lapsed {
    /// Number of the attempt (delivery) that the ack or nack named.
    pub attempt: Attempt,
    /// Offsets of the records; `None` if the settlement named the attempt as a whole.
    pub run: Option<OffsetRun>,
}

/// Outcome of a fetch: the delivered records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Attempt number, which the member's ack or nack of these records must name. It has no meaning if nothing was
    /// delivered.
    pub attempt: Attempt,
    /// Ack deadline of the delivered records, by the clock that all replicas share (space time).
    pub deadline: SpaceTime,
    /// Delivered records in order of their offsets; empty if there were none to deliver.
    pub deliveries: Vec<DeliveredRun>,
    /// Cursor of the group after the fetch: offset of the next record that was never delivered.
    pub cursor: Offset,
    /// True if the group has dead letters that must be moved to the stream for dead letters.
    pub dead: bool,
}

/// Consecutive records that have been delivered the same number of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveredRun {
    /// Offsets of the delivered records.
    pub run: OffsetRun,
    /// Number of deliveries of each of the records, including this one.
    pub deliveries: u32,
}
