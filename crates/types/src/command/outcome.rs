//! What comes of a command.

use std::time::Duration;

use crate::{
    clock::SpaceTime,
    command::{OperationError, ProducerRefusal, StreamLimit, Transacted, groups::GroupOutcome},
    ids::{KeyspaceId, LeaseId, Offset, Revision, StreamId},
    record::Malformed,
    reply::Reply,
};

/// What came of a command. A failed condition is an outcome, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All writes happened at this revision.
    Committed {
        /// The command's revision, shared by all its writes.
        revision: Revision,
        /// Per append, in order: the offset of its first record and the count.
        appends: Vec<AppendedAt>,
    },
    /// A transaction's list of operations was carried out, be it the one or the other.
    Transacted(Box<Transacted>),
    /// An operation of a transaction could not be carried out; nothing of it happened.
    OperationFailed {
        /// Which of its list, from 0.
        operation: u32,
        /// Why.
        error: OperationError,
    },
    /// A condition did not hold; nothing happened.
    ConditionFailed {
        /// Which condition, from 0.
        condition: u32,
        /// The key's revision; `None` if it has no value.
        actual: Option<Revision>,
    },
    /// The commit happened before: a producer sent it again. Nothing happened now.
    Duplicate {
        /// The revision it got then.
        revision: Revision,
        /// Where the appends of producers went then, in order; those without a producer are not remembered.
        appends: Vec<AppendedAt>,
    },
    /// An append breaks one of the stream's own limits; nothing happened.
    OverStreamLimit {
        /// The stream.
        stream: StreamId,
        /// Which limit.
        limit: StreamLimit,
        /// What it allows.
        max: u64,
        /// What the append has.
        got: u64,
    },
    /// A producer's append cannot be taken; nothing happened.
    ProducerRefused {
        /// The stream.
        stream: StreamId,
        /// Why.
        refusal: ProducerRefusal,
    },
    /// The producer is open.
    Producer {
        /// Its new epoch; the next sequence is 0.
        epoch: u32,
    },
    /// An append's expected offset was not the next one; nothing happened.
    OffsetConflict {
        /// The stream.
        stream: StreamId,
        /// Its next offset.
        next: Offset,
    },
    /// The keyspace exists now.
    Keyspace {
        /// Its id.
        id: KeyspaceId,
        /// Whether this command created it.
        created: bool,
    },
    /// The stream exists now.
    Stream {
        /// Its id.
        id: StreamId,
        /// Whether this command created it.
        created: bool,
    },
    /// The keyspace is gone, at this revision.
    Dropped {
        /// The command's revision.
        revision: Revision,
    },
    /// Configured, trimmed or deleted.
    Done,
    /// This version of the state machine is in force now.
    Version {
        /// The version.
        in_force: u16,
    },
    /// The command needs a version of the state machine above the one in force. Nothing happened.
    VersionNotInForce {
        /// The version that the command needs.
        needed: u16,
        /// The version in force.
        in_force: u16,
    },
    /// Index entries or rows forgotten; `more` says whether some are left.
    Reclaimed {
        /// How many were forgotten, or looked at.
        entries: u32,
        /// Whether another command is wanted.
        more: bool,
    },
    /// The lease lives, granted or kept alive.
    Lease {
        /// Its id.
        id: LeaseId,
        /// How long it lives without being kept alive.
        ttl: Duration,
        /// When it ends unless it is kept alive before.
        deadline: SpaceTime,
    },
    /// There is no such lease: it has expired, was revoked, or never was. Nothing happened.
    NoSuchLease(LeaseId),
    /// A lease of that id lives, or its keys are still being removed. Nothing happened.
    LeaseExists(LeaseId),
    /// What was past its deadline is removed, or rows were forgotten.
    Expired {
        /// How many keys are gone.
        keys: u32,
        /// How many rows were looked at.
        rows: u32,
        /// Whether another command is wanted.
        more: bool,
    },
    /// The command named a keyspace that does not exist.
    NoSuchKeyspace(KeyspaceId),
    /// The command named a stream that does not exist.
    NoSuchStream(StreamId),
    /// A table of names is full.
    TooMany {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The configuration can't be changed like that.
    CannotConfigure {
        /// Why, and what can be done.
        what: &'static str,
    },
    /// What came of a command about a consumer group, or of a commit's acks.
    Group(GroupOutcome),
    /// What Redis commands answered, in order; `None`: a watched key had changed, and nothing happened.
    Redis(Option<Vec<Reply>>),
    /// The command did not decode; nothing happened. Only a foreign or newer writer makes such.
    Malformed(Malformed),
}

/// Where an append put its records: `first..first + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendedAt {
    /// The stream.
    pub stream: StreamId,
    /// Offset of the first record.
    pub first: Offset,
    /// How many records.
    pub count: u32,
}
