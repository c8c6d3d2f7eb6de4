//! Outcomes of commands.

use std::time::Duration;

use crate::{
    clock::SpaceTime,
    codec::Malformed,
    command::{
        append::{AppendedAt, ProducerRefusal},
        groups::GroupOutcome,
        stream_config::StreamLimit,
        transaction::{OperationError, Transacted},
    },
    ids::{KeyspaceId, LeaseId, Offset, Revision, StreamId},
    reply::Reply,
};

/// Outcome of a command. A failed condition is an outcome, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All writes of the commit happened.
    Committed {
        /// Revision of the command, shared by all its writes.
        revision: Revision,
        /// Positions of the appends, in order.
        appends: Vec<AppendedAt>,
    },
    /// A transaction's first or second list of operations was carried out.
    Transacted(Box<Transacted>),
    /// An operation of a transaction could not be carried out. Nothing of the transaction happened.
    OperationFailed {
        /// Index of the operation in its list, from 0.
        operation: u32,
        /// Cause of the failure.
        error: OperationError,
    },
    /// A condition did not hold. Nothing happened.
    ConditionFailed {
        /// Index of the condition, from 0.
        condition: u32,
        /// Present revision of the key; `None` if it has no value.
        actual: Option<Revision>,
    },
    /// The commit happened before, and its producer sent it again. Nothing happened now.
    Duplicate {
        /// Revision of the first execution.
        revision: Revision,
        /// Positions of the producers' appends, in order. Positions of other appends are not kept.
        appends: Vec<AppendedAt>,
    },
    /// An append exceeds a limit of its stream. Nothing happened.
    OverStreamLimit {
        /// Id of the stream.
        stream: StreamId,
        /// Limit that the append exceeds.
        limit: StreamLimit,
        /// Value of the limit.
        max: u64,
        /// Size of the record or of the append.
        got: u64,
    },
    /// A producer's append was rejected. Nothing happened.
    ProducerRefused {
        /// Id of the stream.
        stream: StreamId,
        /// Reason of the rejection.
        refusal: ProducerRefusal,
    },
    /// The producer is open.
    Producer {
        /// New epoch of the producer. Its next sequence is 0.
        epoch: u32,
    },
    /// The stream's next offset is not the one that an append expected. Nothing happened.
    OffsetConflict {
        /// Id of the stream.
        stream: StreamId,
        /// Next offset of the stream.
        next: Offset,
    },
    /// The keyspace exists now.
    Keyspace {
        /// Id of the keyspace.
        id: KeyspaceId,
        /// True if this command created the keyspace.
        created: bool,
    },
    /// The stream exists now.
    Stream {
        /// Id of the stream.
        id: StreamId,
        /// True if this command created the stream.
        created: bool,
    },
    /// The keyspace has been dropped.
    Dropped {
        /// Revision of the command.
        revision: Revision,
    },
    /// The object was configured, trimmed or deleted.
    Done,
    /// The state machine has this version in force now.
    Version {
        /// Version in force.
        in_force: u16,
    },
    /// The command needs a version of the state machine above the one in force. Nothing happened.
    VersionNotInForce {
        /// Version that the command needs.
        needed: u16,
        /// Version in force.
        in_force: u16,
    },
    /// Index entries or rows were forgotten.
    Reclaimed {
        /// Number of entries or rows forgotten or read.
        entries: u32,
        /// True if some are left for another command.
        more: bool,
    },
    /// The lease was granted or kept alive.
    Lease {
        /// Id of the lease.
        id: LeaseId,
        /// Time to live after each keep-alive.
        ttl: Duration,
        /// Deadline unless a keep-alive arrives before, in space time.
        deadline: SpaceTime,
    },
    /// The lease does not exist: it has expired, was revoked, or was never granted. Nothing happened.
    NoSuchLease(LeaseId),
    /// A lease with that id is alive, or its keys are still being removed. Nothing happened.
    LeaseExists(LeaseId),
    /// Expired keys were removed, or rows were forgotten.
    Expired {
        /// Number of keys removed.
        keys: u32,
        /// Number of rows read.
        rows: u32,
        /// True if some are left for another command.
        more: bool,
    },
    /// The command named a keyspace that does not exist.
    NoSuchKeyspace(KeyspaceId),
    /// The command named a stream that does not exist.
    NoSuchStream(StreamId),
    /// A table of names is full.
    TooMany {
        /// Name of the table.
        what: &'static str,
        /// Maximum number of entries.
        limit: usize,
    },
    /// The configuration cannot be changed this way.
    CannotConfigure {
        /// Reason, and a possible alternative.
        what: &'static str,
    },
    /// Outcome of a command about a consumer group, or of a commit's acks.
    Group(GroupOutcome),
    /// Replies of Redis commands, in order. `None` means that a watched key had changed, and nothing happened.
    Redis(Option<Vec<Reply>>),
    /// The command did not decode. Nothing happened. Only foreign or newer writers send such commands.
    Malformed(Malformed),
}
