//! `WriteError`: the errors of writes, and the conversion of a rejected command's outcome to one.

use thalweg_log::AppendError;
use thalweg_replica::ProposeError;
use thalweg_state::machine::MachineError;
use thalweg_store::BackendError;
use thalweg_types::{
    Action, Attempt, Classified, GroupId, KeyspaceId, LeaseId, NodeId, Offset, Revision, StreamId,
    codec::Malformed,
    command::{CommandError, OperationError, Outcome, ProducerRefusal, StreamLimit, groups::GroupOutcome},
    record::RecordError,
};

/// Error returned when a write is not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The command exceeds a limit, for example on the length of a key or a value.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A record in the batch exceeds a limit, for example on its size.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The batch has no records.
    #[error("an append needs at least one record")]
    EmptyBatch,
    /// A condition of the command did not hold. Nothing happened.
    #[error("condition {condition} failed: the key {}", match actual { Some(revision) => format!("is at revision {revision}"), None => "does not exist".to_owned() })]
    ConditionFailed {
        /// Position of the failed condition in the command, from 0.
        condition: u32,
        /// Present revision of the key that the condition names; `None` if the key has no value.
        actual: Option<Revision>,
    },
    /// The stream's next offset is not the one that the append expected. Nothing happened.
    #[error("the stream's next offset is {next}, not the expected one")]
    OffsetConflict {
        /// Id of the stream to which the records were to be appended.
        stream: StreamId,
        /// Next offset that the stream will assign, instead of the expected one.
        next: Offset,
    },
    /// The append exceeds a limit in the stream's configuration. Nothing happened.
    #[error("the append has {got} bytes where the stream's {} allows {max}: send less, or raise the limit", limit.name())]
    OverStreamLimit {
        /// Id of the stream whose limit the append exceeds.
        stream: StreamId,
        /// Kind of the limit that the append exceeds.
        limit: StreamLimit,
        /// Maximum size in bytes that the stream's configuration sets.
        max: u64,
        /// Size in bytes of the record or batch that exceeds the limit.
        got: u64,
    },
    /// A producer's append was rejected. Nothing happened.
    #[error("stream {stream}: {}", producer_refusal(*refusal))]
    ProducerRefused {
        /// Id of the stream to which the producer's records were to be appended.
        stream: StreamId,
        /// Reason why the producer's append was rejected.
        refusal: ProducerRefusal,
    },
    /// The keyspace does not exist.
    #[error("there is no keyspace with id {0}: it was dropped; look up the id of its name again")]
    NoSuchKeyspace(KeyspaceId),
    /// The stream does not exist. It may have been deleted.
    #[error("there is no stream with id {0}: it was deleted; look up the id of its name again")]
    NoSuchStream(StreamId),
    /// The consumer group does not exist. It may have been deleted.
    #[error("there is no consumer group with id {0}: it was deleted; look up the id of its name again")]
    NoSuchGroup(GroupId),
    /// A commit settles (acks or nacks) records of a delivery attempt whose deadline has passed, or that the attempt
    /// does not hold. Nothing happened.
    #[error(
        "attempt {attempt} of consumer group {group} has lapsed, or its records were already settled: undo the work, \
        because the group delivers the records again"
    )]
    AttemptLapsed {
        /// Id of the consumer group whose records the commit settles.
        group: GroupId,
        /// Delivery attempt that the commit names.
        attempt: Attempt,
    },
    /// The consumer group cannot be configured this way. Nothing happened.
    #[error("{what}")]
    BadGroup {
        /// Description of what is wrong with the configuration.
        what: &'static str,
    },
    /// The lease does not exist: it has expired, was revoked, or was never granted. Nothing happened.
    #[error("no lease {0}: it expired, was revoked or never existed; grant a new one")]
    NoSuchLease(LeaseId),
    /// A lease with the requested id exists, or has ended and its keys are still being removed. Nothing happened.
    #[error("lease {0} already exists: use another id, or leave out the id to let the server choose one")]
    LeaseExists(LeaseId),
    /// The command exceeds a maximum number, for example of streams, of leases, or of rows that its conditions examine.
    #[error("too many {what}: the limit is {limit}")]
    TooMany {
        /// Kind of the objects that are too many, in words for a message (such as `leases`).
        what: &'static str,
        /// Maximum number of objects of the kind that `what` names.
        limit: usize,
    },
    /// The command would do too much work at once, and so block others for too long. It changed nothing.
    #[error("the command takes more than {limit} steps, which would block others for too long: split it")]
    TooExpensive {
        /// Maximum number of [steps](thalweg_types::steps) (units of work) of a command.
        limit: u64,
    },
    /// An operation of a transaction could not be carried out. The transaction changed nothing.
    #[error("operation {operation}: {error}")]
    OperationFailed {
        /// Position of the failed operation, from 0, in the list of operations that the transaction's conditions chose.
        operation: u32,
        /// Reason why the operation could not be carried out.
        error: OperationError,
    },
    /// The configuration of a keyspace or stream cannot be changed in the requested way.
    #[error("{what}")]
    CannotConfigure {
        /// Reason why the configuration cannot be changed in this way, and a possible alternative.
        what: &'static str,
    },
    /// The request is conditional, but its durability level acknowledges it before its outcome is known.
    #[error("a conditional write needs a durability of at least `os`: at `none` its outcome would be unknown")]
    LevelTooLow,
    /// The bytes of the command did not decode.
    #[error("malformed command: {0}")]
    Malformed(Malformed),
    /// The command needs a version of the state machine above the one in force. Nothing happened.
    #[error(
        "the command needs version {needed} of the state machine, and version {in_force} is in force: raise it once \
        every node supports that version (`thalweg state raise-version`)"
    )]
    VersionNotInForce {
        /// Version of the state machine that the command needs.
        needed: u16,
        /// Version of the state machine in force.
        in_force: u16,
    },
    /// This node does not support the version to which the state machine was to be raised. Nothing happened.
    #[error(
        "this node supports versions of the state machine up to {known}, and {to} was requested: upgrade the node \
        first"
    )]
    VersionUnknown {
        /// Version of the state machine that was requested.
        to: u16,
        /// Highest version of the state machine that this node supports.
        known: u16,
    },
    /// The queue of commands is full. Nothing happened.
    #[error("commands of {queued_bytes} bytes are queued: retry later")]
    Overloaded {
        /// Bytes of the commands in the queue.
        queued_bytes: usize,
    },
    /// The client's address has too many expensive commands waiting, or too many bytes of them. Nothing happened.
    #[error(
        "expensive commands of {waiting_bytes} bytes from this client's address are queued: wait for their replies and retry"
    )]
    AddressOverloaded {
        /// Bytes of the address's expensive commands in the queue.
        waiting_bytes: usize,
    },
    /// This node does not lead the cluster, and could not pass the command on to the leader. Nothing happened.
    #[error("this node does not lead the cluster: {}", shown_leader(.leader.as_ref()))]
    NotLeader {
        /// Id and address of the leader, if this node knows one.
        leader: Option<(NodeId, String)>,
    },
    /// The cluster has no leader, or this node does not know it. Nothing happened.
    #[error("the cluster has no leader at the moment: retry later")]
    NoLeader,
    /// The leader of the cluster has refused the command that this node forwarded to it. Nothing happened.
    #[error("the leader of the cluster has refused the write: {reason}")]
    LeaderRefused {
        /// Reason that the leader has given.
        reason: String,
    },
    /// The command may or may not have been carried out, and may still be.
    #[error(
        "the write may or may not have happened: {reason}; read before you repeat it, or repeat it if it may happen twice"
    )]
    OutcomeUnknown {
        /// Reason why the outcome is unknown.
        reason: String,
    },
    /// A record that concerns only this member, such as a move of bytes within its log, is in the log. The member
    /// applies it once the entries before it are committed, which has taken too long.
    #[error("entries before this change of the node wait for a quorum: retry later")]
    Behind,
    /// This member has stopped serving, because its data may differ from that of the other members. Nothing happened.
    #[error("this node has stopped serving: {reason}")]
    StoppedServing {
        /// Reason why the node has stopped serving.
        reason: String,
    },
    /// Too little disk space is left for new data. Nothing happened.
    #[error(
        "disk full: {} are free, and {} more are needed, because {} stay free for deletes and trims (reserve_bytes) \
         and the log grows by whole segments: add space, or delete or trim data; the node frees the space of deleted \
         data within a minute; `thalweg status` shows what keeps the log, and `thalweg space` what fills the directory",
        shown_bytes(*.free_bytes), shown_bytes(*.short_bytes), shown_bytes(*.reserve_bytes)
    )]
    DiskFull {
        /// Number of bytes that are free on the disk.
        free_bytes: u64,
        /// Bytes of disk space that are reserved for deletes and trims.
        reserve_bytes: u64,
        /// Number of bytes that must become free before new data is accepted.
        short_bytes: u64,
    },
    /// Too many members of the cluster have no disk space left for new data, or the leader has none. Nothing happened.
    /// Deletes and trims still succeed.
    #[error("disk full: {reason}")]
    NoRoom {
        /// Names of the members without disk space, and advice on what to do.
        reason: String,
    },
    /// The disk prepares log segments more slowly than writes fill them. Nothing happened.
    #[error("{reason}: retry later")]
    NoSegment {
        /// Message with which the log rejected the write.
        reason: String,
    },
    /// The command does not fit into a log segment of this node. Nothing happened.
    #[error(
        "the write takes {got} bytes of the log, and a segment holds {max}: write less at once, or raise `segment_bytes`"
    )]
    LargerThanSegment {
        /// Bytes that the command needs in the log.
        got: u64,
        /// Capacity of a log segment in bytes.
        max: u64,
    },
    /// The log has failed. The effect of the write is unknown.
    #[error("the log has failed and takes no more writes: {reason}; restart the node")]
    LogFailed {
        /// Description of the log's failure.
        reason: String,
    },
    /// The state could not be read or written. The write may be in the log.
    #[error("the state has failed and takes no more writes until the node is started again: {reason}")]
    StateFailed {
        /// Description of the state's failure.
        reason: String,
    },
    /// The database is closed.
    #[error("the database is closed")]
    Closed,
}

impl Classified for WriteError {
    fn code(&self) -> &'static str {
        match self {
            Self::Command(CommandError::KeyTooLong { .. }) => "key_too_long",
            Self::Command(CommandError::ValueTooLong { .. }) => "value_too_long",
            Self::Command(CommandError::CommitTooLarge) | Self::LargerThanSegment { .. } => "commit_too_large",
            Self::Command(CommandError::BadName { .. }) => "bad_name",
            Self::Command(CommandError::BadProducerId { .. }) => "bad_producer_id",
            Self::Command(CommandError::BadTtl { .. }) => "bad_ttl",
            Self::Command(CommandError::BadLeaseId) => "bad_lease_id",
            Self::Command(CommandError::BadHistory { .. }) => "bad_history",
            Self::Record(RecordError::TooLarge { .. } | RecordError::BatchTooLarge) => "record_too_large",
            Self::Record(RecordError::KeyTooLong { .. }) => "key_too_long",
            Self::Record(RecordError::Headers) => "bad_headers",
            Self::Record(RecordError::Tombstone) => "bad_tombstone",
            Self::EmptyBatch => "empty_batch",
            Self::ConditionFailed { .. } => "condition_failed",
            Self::OffsetConflict { .. } => "offset_conflict",
            Self::OverStreamLimit { .. } => "over_stream_limit",
            Self::ProducerRefused { refusal, .. } => match refusal {
                ProducerRefusal::DuplicateTooOld { .. } => "duplicate_too_old",
                ProducerRefusal::SequenceGap { .. } => "sequence_gap",
                ProducerRefusal::Fenced { .. } => "producer_fenced",
                ProducerRefusal::Unknown => "unknown_producer",
                ProducerRefusal::Mixed => "mixed_duplicates",
            },
            Self::NoSuchKeyspace(_) => "no_such_keyspace",
            Self::NoSuchStream(_) => "no_such_stream",
            Self::NoSuchGroup(_) => "no_such_group",
            Self::AttemptLapsed { .. } => "attempt_lapsed",
            Self::BadGroup { .. } | Self::Command(CommandError::BadGroup { .. }) => "bad_group",
            Self::Command(CommandError::TooManyRanges) => "too_many_ranges",
            Self::Command(CommandError::TooManyScans) => "too_many_scans",
            Self::NoSuchLease(_) => "no_such_lease",
            Self::LeaseExists(_) => "lease_exists",
            Self::TooMany { .. } => "too_many",
            Self::TooExpensive { .. } => "too_expensive",
            Self::OperationFailed { error: OperationError::NotANumber, .. } => "not_a_number",
            Self::OperationFailed { error: OperationError::HoldsCollection, .. } => "wrong_kind",
            Self::OperationFailed { error: OperationError::Overflow { .. }, .. } => "overflow",
            Self::OperationFailed { error: OperationError::ResultTooLarge { .. }, .. } => "result_too_large",
            Self::CannotConfigure { .. } => "cannot_configure",
            Self::LevelTooLow => "level_too_low",
            Self::Malformed(_) => "malformed",
            Self::VersionNotInForce { .. } => "version_not_in_force",
            Self::VersionUnknown { .. } => "version_unknown",
            Self::Overloaded { .. } | Self::AddressOverloaded { .. } => "overloaded",
            Self::NotLeader { .. } => "not_leader",
            Self::NoLeader => "no_leader",
            Self::LeaderRefused { .. } => "leader_refused",
            Self::OutcomeUnknown { .. } => "outcome_unknown",
            Self::Behind => "entries_uncommitted",
            Self::StoppedServing { .. } => "stopped_serving",
            Self::DiskFull { .. } | Self::NoRoom { .. } => "disk_full",
            Self::NoSegment { .. } => "no_segment",
            Self::LogFailed { .. } => "log_failed",
            Self::StateFailed { .. } => "state_failed",
            Self::Closed => "closed",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Overloaded { .. }
            | Self::AddressOverloaded { .. }
            | Self::NotLeader { .. }
            | Self::NoLeader
            | Self::LeaderRefused { .. }
            | Self::OutcomeUnknown { .. }
            | Self::Behind
            | Self::DiskFull { .. }
            | Self::NoRoom { .. }
            | Self::NoSegment { .. } => Action::Retry,
            Self::LogFailed { .. } | Self::StateFailed { .. } | Self::StoppedServing { .. } | Self::Closed => {
                Action::Stop
            }
            _ => Action::Fix,
        }
    }
}

impl WriteError {
    /// Returns true if the write may have happened although it was not acknowledged. Repeating the write is safe only
    /// for an append of a producer, or if the write may take effect twice.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::LogFailed { .. } | Self::StateFailed { .. } | Self::OutcomeUnknown { .. } | Self::Closed)
    }

    /// Returns true if the state machine has certainly refused the command when it was applied. Errors that can also
    /// occur before the command is in the log return false.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::ConditionFailed { .. }
                | Self::OffsetConflict { .. }
                | Self::OverStreamLimit { .. }
                | Self::ProducerRefused { .. }
                | Self::NoSuchStream(_)
                | Self::TooMany { .. }
                | Self::TooExpensive { .. }
        )
    }
}

/// Formats a number of bytes for a message: in MiB, rounded up, or in bytes if it is less than one MiB.
fn shown_bytes(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{bytes} bytes"),
        _ => format!("{} MiB", bytes.div_ceil(1 << 20)),
    }
}

/// Formats the address at which a client finds the leader, for a message.
fn shown_leader(leader: Option<&(NodeId, String)>) -> String {
    match leader {
        Some((node, address)) => format!("node {:016x} at {address} does", node.0),
        None => "the leader is unknown, retry later".to_owned(),
    }
}

fn producer_refusal(refusal: ProducerRefusal) -> String {
    match refusal {
        ProducerRefusal::DuplicateTooOld { oldest } => format!(
            "this append was already made, and its result is no longer stored (results are stored from sequence \
            {oldest} on): continue with the next sequence"
        ),
        ProducerRefusal::SequenceGap { expected } => {
            format!("appends of this producer are missing: the next sequence is {expected}")
        }
        ProducerRefusal::Fenced { epoch } => format!(
            "another instance of this producer has taken over with epoch {epoch}: stop, or open the producer again"
        ),
        ProducerRefusal::Unknown => "the stream has no such producer, or removed it because it was idle for too long: \
            check its last append, open it again and begin at sequence 0"
            .to_owned(),
        ProducerRefusal::Mixed => "some appends of this commit were already made and others were not: repeat the \
            commit unchanged, or renumber it"
            .to_owned(),
    }
}

impl From<ProposeError> for WriteError {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::Overloaded { queued_bytes } => Self::Overloaded { queued_bytes },
            ProposeError::AddressOverloaded { waiting_bytes } => Self::AddressOverloaded { waiting_bytes },
            ProposeError::Append(error) => error.into(),
            ProposeError::State(reason) => Self::StateFailed { reason },
            ProposeError::Closed => Self::Closed,
            ProposeError::NotLeader { leader } => Self::NotLeader { leader },
            ProposeError::NoLeader => Self::NoLeader,
            ProposeError::LeaderRefused { reason } => Self::LeaderRefused { reason },
            // This error only concerns commands that other members forward; a command of this node is checked before.
            error @ ProposeError::TooLarge { .. } => Self::LeaderRefused { reason: error.to_string() },
            ProposeError::NoRoom { reason } => Self::NoRoom { reason },
            ProposeError::OutcomeUnknown { reason } => Self::OutcomeUnknown { reason },
            ProposeError::Behind => Self::Behind,
        }
    }
}

impl From<AppendError> for WriteError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::DiskFull { free_bytes, reserve_bytes, short_bytes } => {
                Self::DiskFull { free_bytes, reserve_bytes, short_bytes }
            }
            AppendError::Closed => Self::Closed,
            AppendError::TooLarge { got, max } => Self::LargerThanSegment { got, max },
            AppendError::NoSegment { .. } => Self::NoSegment { reason: error.to_string() },
            other => Self::LogFailed { reason: other.to_string() },
        }
    }
}

impl From<BackendError> for WriteError {
    fn from(error: BackendError) -> Self {
        Self::StateFailed { reason: error.to_string() }
    }
}

impl From<MachineError> for WriteError {
    fn from(error: MachineError) -> Self {
        Self::StateFailed { reason: error.to_string() }
    }
}

/// Returns the error of a rejected command, or the outcome of a command that was carried out.
pub(crate) fn refusal(outcome: Outcome) -> Result<Outcome, WriteError> {
    match outcome {
        Outcome::ConditionFailed { condition, actual } => Err(WriteError::ConditionFailed { condition, actual }),
        Outcome::OffsetConflict { stream, next } => Err(WriteError::OffsetConflict { stream, next }),
        Outcome::OverStreamLimit { stream, limit, max, got } => {
            Err(WriteError::OverStreamLimit { stream, limit, max, got })
        }
        Outcome::ProducerRefused { stream, refusal } => Err(WriteError::ProducerRefused { stream, refusal }),
        Outcome::NoSuchKeyspace(id) => Err(WriteError::NoSuchKeyspace(id)),
        Outcome::NoSuchStream(id) => Err(WriteError::NoSuchStream(id)),
        Outcome::NoSuchLease(id) => Err(WriteError::NoSuchLease(id)),
        Outcome::LeaseExists(id) => Err(WriteError::LeaseExists(id)),
        Outcome::TooMany { what, limit } => Err(WriteError::TooMany { what, limit }),
        Outcome::TooExpensive { limit } => Err(WriteError::TooExpensive { limit }),
        Outcome::CannotConfigure { what } => Err(WriteError::CannotConfigure { what }),
        Outcome::Group(GroupOutcome::NoSuchGroup(id)) => Err(WriteError::NoSuchGroup(id)),
        Outcome::Group(GroupOutcome::AttemptLapsed { group, attempt }) => {
            Err(WriteError::AttemptLapsed { group, attempt })
        }
        Outcome::Group(GroupOutcome::BadConfig { what }) => Err(WriteError::BadGroup { what }),
        Outcome::Malformed(malformed) => Err(WriteError::Malformed(malformed)),
        Outcome::VersionNotInForce { needed, in_force } => Err(WriteError::VersionNotInForce { needed, in_force }),
        Outcome::OperationFailed { operation, error } => Err(WriteError::OperationFailed { operation, error }),
        Outcome::Committed { .. }
        | Outcome::Duplicate { .. }
        | Outcome::Producer { .. }
        | Outcome::Transacted(_)
        | Outcome::Redis(_)
        | Outcome::Dropped { .. }
        | Outcome::Keyspace { .. }
        | Outcome::Stream { .. }
        | Outcome::Done
        | Outcome::Version { .. }
        | Outcome::Group(_)
        | Outcome::Lease { .. }
        | Outcome::Expired { .. }
        | Outcome::Reclaimed { .. } => Ok(outcome),
    }
}
