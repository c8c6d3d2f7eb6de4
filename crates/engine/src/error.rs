//! Error enums of the engine's operations: open, write, read.
//!
//! Owns: `OpenError`, `WriteError` and `ReadError`, each with a stable code and the caller's next step, and the
//! conversion of a rejected command's outcome to an error. Does not own: the errors of consumer groups (`group/error`),
//! watches (`watches/error`) and installs (`install_error`).

use std::{path::PathBuf, time::Duration};

use thalweg_log::AppendError;
use thalweg_redis::Collection;
use thalweg_replica::ProposeError;
use thalweg_state::{
    history::HistoryError,
    machine::{MachineError, StreamReadError},
};
use thalweg_store::BackendError;
use thalweg_types::{
    Action, Attempt, Classified, ClusterId, GroupId, KeyspaceId, LeaseId, NodeId, Offset, Revision, StreamId,
    codec::Malformed,
    command::{CommandError, OperationError, Outcome, ProducerRefusal, StreamLimit, groups::GroupOutcome},
    limits::MIN_MEMBER_SEGMENT_BYTES,
    record::RecordError,
};

use crate::clock_file::shown_span;

/// Error returned when a directory cannot be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another handle of this process, has the directory open.
    #[error(
        "{path} is in use by another process, or by a database or a snapshot of this one: stop that process, or use \
        another directory"
    )]
    Locked {
        /// Path of the data directory.
        path: PathBuf,
    },
    /// The data directory does not exist, and the options forbid creating it.
    #[error("{path} is not a Thalweg data directory: create one with `thalweg serve --data`, or check the path")]
    Missing {
        /// Path of the data directory.
        path: PathBuf,
    },
    /// The directory is not a data directory, and contains files of other programs.
    #[error(
        "{path} is not a Thalweg data directory, and not empty: it contains {}; choose an empty directory or a new path",
        shown(.found)
    )]
    NotEmpty {
        /// Path of the directory.
        path: PathBuf,
        /// Names of the files and directories found there, in order.
        found: Vec<String>,
    },
    /// The directory is the destination of a restore that has not finished.
    #[error("a restore into {path} did not finish: run it again, or remove the directory")]
    Unfinished {
        /// Path of the data directory.
        path: PathBuf,
    },
    /// The directory's state is kept by another backend.
    #[error(
        "the state in {path} is stored by the {found} backend, not by {wanted}: open it with {found}, or move it with \
        `thalweg migrate --data {path} --from {found} --to {wanted}`"
    )]
    OtherBackend {
        /// Path of the data directory.
        path: PathBuf,
        /// Backend that keeps the state.
        found: &'static str,
        /// Backend that the caller requested.
        wanted: &'static str,
    },
    /// The backend needs files of the operating system, which this (simulated) disk does not have.
    #[error("the {backend} backend cannot run on a simulated disk: open a directory of the operating system")]
    NoOsPath {
        /// Name of the backend.
        backend: &'static str,
    },
    /// The wall clock is far ahead of the time at which the directory was last in use. The time of a space never goes
    /// back, so a wrong clock would end leases and expire keys for good.
    #[error(
        "the wall clock is {} ahead of the last use of {path}, more than max_clock_jump ({}): opening it now would end \
         leases, expire keys and trim streams by that time, for good. If the clock is right, because the node was off, \
         accept it once with THALWEG_MAX_CLOCK_JUMP={} (`serve --max-clock-jump`). If it is wrong, correct it first",
        shown_span(*.jump), shown_span(*.max), shown_span(*.jump + Duration::from_secs(3600))
    )]
    ClockJump {
        /// Path of the data directory.
        path: PathBuf,
        /// Span between the last use of the directory and the time of the wall clock.
        jump: Duration,
        /// Maximum span that the options permit.
        max: Duration,
    },
    /// This build of the program does not contain the backend.
    #[error("this build has no {backend} backend: build it with `--features {backend}`")]
    NotBuilt {
        /// Name of the backend.
        backend: &'static str,
    },
    /// The directory was never in a cluster.
    #[error("{path} is not a member of a cluster: found a cluster with it, or open it alone")]
    NotAMember {
        /// Path of the data directory.
        path: PathBuf,
    },
    /// The directory has data of its own, so it cannot join a cluster.
    #[error(
        "{path} has data of its own and cannot join a cluster: join with a new directory, or found a cluster with this one"
    )]
    HasOwnData {
        /// Path of the data directory.
        path: PathBuf,
    },
    /// The directory has joined a cluster, so it cannot found one.
    #[error("{path} is a member of cluster {cluster} and cannot found another: use a new directory")]
    AlreadyMember {
        /// Path of the data directory.
        path: PathBuf,
        /// Cluster that the directory belongs to.
        cluster: ClusterId,
    },
    /// The directory belongs to another cluster.
    #[error("{path} belongs to cluster {found}, not to {wanted}: use a new directory")]
    OtherCluster {
        /// Path of the data directory.
        path: PathBuf,
        /// Cluster that the directory belongs to.
        found: ClusterId,
        /// Cluster that was requested.
        wanted: ClusterId,
    },
    /// The directory was created to join a cluster and has no data yet, so it cannot be opened alone.
    #[error("{path} has received nothing from cluster {cluster} yet: open it as a member, or use another directory")]
    NothingReceived {
        /// Path of the data directory.
        path: PathBuf,
        /// Cluster that the directory belongs to.
        cluster: ClusterId,
    },
    /// Other nodes of the cluster vote, or may vote, so this node must not decide alone.
    #[error(
        "{path} is a member of cluster {cluster}, and not known to be its only voter: open it as a member, and remove \
        the other members first"
    )]
    NotAlone {
        /// Path of the data directory.
        path: PathBuf,
        /// Cluster that the directory belongs to.
        cluster: ClusterId,
    },
    /// The log of a member is missing.
    #[error(
        "the log in {path} is missing, and with it votes and entries of cluster {cluster}: remove this member from the \
        cluster and join with a new directory"
    )]
    LogLost {
        /// Path of the data directory.
        path: PathBuf,
        /// Cluster that the directory belongs to.
        cluster: ClusterId,
    },
    /// The log of a node alone is missing, and the state was never persisted.
    #[error(
        "the log in {path} is missing or empty, although the directory was in use: put the log back, restore a backup into \
        a new directory, or open with --repair to begin with an empty log"
    )]
    LogMissing {
        /// Path of the data directory.
        path: PathBuf,
    },
    /// A member's log is repaired by its peers, not by cutting it off.
    #[error(
        "{path} is a member of a cluster, so its log must not be cut: votes and acknowledged entries would be lost. Open \
        it without the repair; if that fails, remove the member from the cluster and join with a new directory"
    )]
    CannotRepairMember {
        /// Path of the data directory.
        path: PathBuf,
    },
    /// The segments of the log are too small for a member. It could not append the largest entry on which the other
    /// members may agree, and would never catch up.
    #[error(
        "segment_bytes is {got}, and a member of a cluster needs at least {MIN_MEMBER_SEGMENT_BYTES} ({} MiB), because it \
         must append every entry that the others agree on: set segment_bytes (`serve --segment-bytes`) to that or more",
        MIN_MEMBER_SEGMENT_BYTES >> 20
    )]
    SmallSegments {
        /// Size of a segment in the options, in bytes.
        got: u32,
    },
    /// The directory could not be prepared for founding a cluster.
    #[error("the directory could not be made a member: {reason}; open it again")]
    Founding {
        /// Description of what failed.
        reason: String,
    },
    /// The identity file has contents that this version of the program does not write.
    #[error("{path}: the identity file is damaged or of a newer version: {message}")]
    Identity {
        /// Path of the data directory.
        path: PathBuf,
        /// Description of what is wrong with the identity file.
        message: String,
    },
    /// The file `INSTALLED` names a state directory that does not exist. Nothing was changed.
    #[error(
        "the file INSTALLED in {path} names the state directory {dir}, which does not exist: bring the directory back, \
        or restore the newest backup into a new directory; a member of a cluster can join again with a new directory"
    )]
    StateMissing {
        /// Path of the data directory.
        path: PathBuf,
        /// Path of the missing directory, within the data directory.
        dir: String,
    },
    /// The file `INSTALLED` was lost: a state directory exists that only an install leaves. Nothing was changed.
    #[error(
        "{path} has the state directory {dir} of an installed snapshot, but the file INSTALLED, which names the \
        current state directory, is missing: bring the file back, or restore the newest backup into a new directory; \
        a member of a cluster can join again with a new directory"
    )]
    InstalledMissing {
        /// Path of the data directory.
        path: PathBuf,
        /// Path of the newest state directory, within the data directory.
        dir: String,
    },
    /// A file could not be read or written.
    #[error("{operation} in {path} failed: {message}")]
    Io {
        /// Path of the data directory.
        path: PathBuf,
        /// Description of the file operation that failed.
        operation: &'static str,
        /// Message of the operating system.
        message: String,
    },
    /// The log was repaired, but the log records that complete the repair could not be written.
    #[error("the repair did not finish: {reason}; run it again")]
    Repair {
        /// Reason why the repair could not be completed.
        reason: String,
    },
    /// The log could not be opened.
    #[error(transparent)]
    Log(#[from] thalweg_log::OpenError),
    /// The backend of the state could not be opened.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The rows of the state could not be loaded.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The log and the state could not be reconciled, so later log records cannot be applied to the state.
    #[error(transparent)]
    Replica(#[from] thalweg_replica::OpenError),
}

/// Formats the names of the first few files for a message.
fn shown(found: &[String]) -> String {
    const FEW: usize = 3;
    let names: Vec<_> = found.iter().take(FEW).map(|name| format!("{name:?}")).collect();
    let more = match found.len().saturating_sub(FEW) {
        0 => String::new(),
        1 => " and 1 more entry".to_owned(),
        more => format!(" and {more} more entries"),
    };
    format!("{}{more}", names.join(", "))
}

impl Classified for OpenError {
    fn code(&self) -> &'static str {
        match self {
            Self::Locked { .. } => "locked",
            Self::Missing { .. } => "missing_directory",
            Self::NotEmpty { .. } => "directory_not_empty",
            Self::Unfinished { .. } => "unfinished_restore",
            Self::OtherBackend { .. } => "other_backend",
            Self::NoOsPath { .. } => "no_os_path",
            Self::ClockJump { .. } => "clock_jump",
            Self::NotBuilt { .. } => "backend_not_built",
            Self::NotAMember { .. } => "not_a_member",
            Self::HasOwnData { .. } => "has_own_data",
            Self::AlreadyMember { .. } => "already_member",
            Self::OtherCluster { .. } => "other_cluster",
            Self::NothingReceived { .. } => "nothing_received",
            Self::NotAlone { .. } => "not_alone",
            Self::LogLost { .. } | Self::LogMissing { .. } => "log_lost",
            Self::CannotRepairMember { .. } => "cannot_repair_member",
            Self::SmallSegments { .. } => "small_segments",
            Self::Founding { .. } => "founding_failed",
            Self::Identity { .. } => "bad_identity",
            Self::StateMissing { .. } => "state_missing",
            Self::InstalledMissing { .. } => "installed_missing",
            Self::Io { .. } => "io",
            Self::Repair { .. } => "repair_failed",
            Self::Log(error) => error.code(),
            Self::Backend(error) => error.code(),
            Self::Machine(error) => error.code(),
            Self::Replica(error) => error.code(),
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Locked { .. } => Action::Retry,
            Self::Missing { .. }
            | Self::NotEmpty { .. }
            | Self::Unfinished { .. }
            | Self::OtherBackend { .. }
            | Self::ClockJump { .. }
            | Self::NoOsPath { .. }
            | Self::NotAMember { .. }
            | Self::HasOwnData { .. }
            | Self::AlreadyMember { .. }
            | Self::OtherCluster { .. }
            | Self::NothingReceived { .. }
            | Self::NotAlone { .. }
            | Self::CannotRepairMember { .. }
            | Self::SmallSegments { .. }
            | Self::NotBuilt { .. } => Action::Fix,
            Self::LogLost { .. }
            | Self::LogMissing { .. }
            | Self::Founding { .. }
            | Self::Identity { .. }
            | Self::StateMissing { .. }
            | Self::InstalledMissing { .. }
            | Self::Io { .. }
            | Self::Repair { .. } => Action::Stop,
            Self::Log(error) => error.action(),
            Self::Backend(error) => error.action(),
            Self::Machine(error) => error.action(),
            Self::Replica(error) => error.action(),
        }
    }
}

/// Formats a number of bytes for a message: in MiB, rounded up, or in bytes if it is less than one MiB.
fn shown_bytes(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{bytes} bytes"),
        _ => format!("{} MiB", bytes.div_ceil(1 << 20)),
    }
}

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
        /// Index of the failed condition in the command, from 0.
        condition: u32,
        /// Present revision of the key, if it has a value.
        actual: Option<Revision>,
    },
    /// The stream's next offset is not the one that the append expected. Nothing happened.
    #[error("the stream's next offset is {next}, not the expected one")]
    OffsetConflict {
        /// Id of the stream.
        stream: StreamId,
        /// Next offset that the stream will assign.
        next: Offset,
    },
    /// The append exceeds a limit in the stream's configuration. Nothing happened.
    #[error("the append has {got} bytes where the stream's {} allows {max}: send less, or raise the limit", limit.name())]
    OverStreamLimit {
        /// Id of the stream.
        stream: StreamId,
        /// Kind of the limit that the append exceeds.
        limit: StreamLimit,
        /// Value of the limit in bytes.
        max: u64,
        /// Size in bytes of the record or batch that exceeds the limit.
        got: u64,
    },
    /// A producer's append was rejected. Nothing happened.
    #[error("stream {stream}: {}", producer_refusal(*refusal))]
    ProducerRefused {
        /// Id of the stream.
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
        /// Id of the group.
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
    /// A lease with that id exists, or the keys of an ended one are still being removed. Nothing happened.
    #[error("lease {0} already exists: use another id, or leave out the id to let the server choose one")]
    LeaseExists(LeaseId),
    /// The command exceeds a maximum number: for example of streams, of leases, or of rows that its conditions
    /// examine.
    #[error("too many {what}: the limit is {limit}")]
    TooMany {
        /// Description of the counted objects, for messages (such as `leases`).
        what: &'static str,
        /// Maximum number of objects of this kind.
        limit: usize,
    },
    /// The command would do too much work at once, and so block others for too long. It changed nothing.
    #[error("the command takes more than {limit} steps, which would block others for too long: split it")]
    TooExpensive {
        /// Maximum number of [steps](thalweg_types::steps) of a command.
        limit: u64,
    },
    /// An operation of a transaction could not be carried out. The transaction changed nothing.
    #[error("operation {operation}: {error}")]
    OperationFailed {
        /// Index of the failed operation in the chosen list of operations, from 0.
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
    /// The leader of the cluster has refused the command. Nothing happened.
    #[error("the leader of the cluster has refused the write: {reason}")]
    LeaderRefused {
        /// Reason of the leader.
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
    /// A record of this member alone, such as a move of bytes within its log, waits for entries before it.
    #[error("entries before this change of the node wait for a quorum: retry later")]
    Behind,
    /// This member has stopped serving. Nothing happened.
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
    /// Too many members of the cluster have no room for new data, or its leader has none. Nothing happened. Deletes and
    /// trims still succeed.
    #[error("disk full: {reason}")]
    NoRoom {
        /// Members without room, and what to do.
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
        /// Description of the failure.
        reason: String,
    },
    /// The state has failed. The write may be in the log.
    #[error("the state has failed and takes no more writes until the node is started again: {reason}")]
    StateFailed {
        /// Description of the failure.
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
    /// if it is an append of a producer, or if its effect may happen twice.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::LogFailed { .. } | Self::StateFailed { .. } | Self::OutcomeUnknown { .. } | Self::Closed)
    }

    /// Returns true if the state machine has refused the command when it was applied. Errors that may also come from
    /// before the log are not among them.
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

/// Formats where a client finds the leader, for a message.
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
            // Only commands of other members are refused so; an own command that is too large never gets to the leader.
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

/// Converts the outcome of a rejected command to its error. Returns the outcome of a command that was carried out.
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

/// Error returned when a read cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The requested offset is below the log start offset of the stream: its record was trimmed.
    #[error("offset {requested} has been trimmed: the stream starts at {start}")]
    Trimmed {
        /// Offset that the reader requested.
        requested: Offset,
        /// Oldest offset that can be read from the stream.
        start: Offset,
    },
    /// The requested offset is above the log end offset of the stream.
    #[error("offset {requested} is beyond the end: the next offset is {next}")]
    BeyondEnd {
        /// Offset that the reader requested.
        requested: Offset,
        /// Offset that the next record of the stream will get.
        next: Offset,
    },
    /// The stream does not exist. It may have been deleted.
    #[error("there is no stream with id {0}: it was deleted; look up the id of its name again")]
    NoSuchStream(StreamId),
    /// The keyspace does not exist. It may have been dropped.
    #[error("there is no keyspace with id {0}: it was dropped; look up the id of its name again")]
    NoSuchKeyspace(KeyspaceId),
    /// The keyspace keeps no history, so it cannot be read at a past revision.
    #[error("the keyspace keeps no history: configure one to read at a revision from then on")]
    NoHistory,
    /// The requested revision is older than the history that the keyspace, or one of the keys, has kept.
    #[error("revision {requested} is not kept any more: the oldest that can be read is {oldest}")]
    Compacted {
        /// Revision that the reader requested.
        requested: Revision,
        /// Oldest revision that can still be read, of the keyspace or of the key.
        oldest: Revision,
    },
    /// No command has used the requested revision yet.
    #[error("revision {requested} has not been used yet: the newest is {newest}")]
    FutureRevision {
        /// Revision that the reader requested.
        requested: Revision,
        /// Newest revision that a command has used.
        newest: Revision,
    },
    /// The cursor does not belong to this scan: it is damaged, or of another keyspace or range.
    #[error("bad cursor: {what}")]
    BadCursor {
        /// Description of what is wrong with the cursor.
        what: &'static str,
    },
    /// The key refers to a Redis hash or stream, so it has no bytes to return.
    #[error("the key holds a {kind}: read it with a Redis client")]
    HoldsCollection {
        /// Name of the collection's kind: `hash` or `stream`.
        kind: &'static str,
    },
    /// The view that was read shows a value which has since been overwritten, and whose bytes in the log are freed.
    #[error(
        "the view is too old: a value it shows has been overwritten and its bytes freed; scan again from the last key"
    )]
    ViewExpired,
    /// This member has stopped serving.
    #[error("this node has stopped serving: {reason}")]
    StoppedServing {
        /// Reason why the node has stopped serving.
        reason: String,
    },
    /// Bytes on disk differ from those that were written.
    #[error("corrupt data: {0}; run `thalweg log verify`")]
    Corrupt(String),
    /// The disk could not be read.
    #[error("read failed: {0}")]
    Io(String),
}

impl Classified for ReadError {
    fn code(&self) -> &'static str {
        match self {
            Self::Trimmed { .. } => "trimmed",
            Self::BeyondEnd { .. } => "beyond_end",
            Self::NoSuchStream(_) => "no_such_stream",
            Self::NoSuchKeyspace(_) => "no_such_keyspace",
            Self::NoHistory => "no_history",
            Self::Compacted { .. } => "compacted",
            Self::FutureRevision { .. } => "future_revision",
            Self::BadCursor { .. } => "bad_cursor",
            Self::HoldsCollection { .. } => "wrong_kind",
            Self::ViewExpired => "view_expired",
            Self::StoppedServing { .. } => "stopped_serving",
            Self::Corrupt(_) => "corrupt",
            Self::Io(_) => "io",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Trimmed { .. } | Self::BeyondEnd { .. } | Self::NoSuchStream(_) => Action::Fix,
            Self::NoSuchKeyspace(_)
            | Self::NoHistory
            | Self::Compacted { .. }
            | Self::FutureRevision { .. }
            | Self::BadCursor { .. }
            | Self::HoldsCollection { .. } => Action::Fix,
            Self::ViewExpired => Action::Retry,
            Self::StoppedServing { .. } | Self::Corrupt(_) | Self::Io(_) => Action::Stop,
        }
    }
}

impl From<HistoryError> for ReadError {
    fn from(error: HistoryError) -> Self {
        match error {
            HistoryError::NoHistory => Self::NoHistory,
            HistoryError::Compacted { requested, oldest } => Self::Compacted { requested, oldest },
            HistoryError::NotYet { requested, newest } => Self::FutureRevision { requested, newest },
            HistoryError::Machine(error) => error.into(),
        }
    }
}

impl From<MachineError> for ReadError {
    fn from(error: MachineError) -> Self {
        match error {
            MachineError::Backend(BackendError::Io { .. }) => Self::Io(error.to_string()),
            other => Self::Corrupt(other.to_string()),
        }
    }
}

impl ReadError {
    /// Converts an error of reading a stream, and adds the requested offset.
    pub(crate) fn of_stream(error: StreamReadError, requested: Offset) -> Self {
        match error {
            StreamReadError::NoSuchStream(id) => Self::NoSuchStream(id),
            StreamReadError::Trimmed { start } => Self::Trimmed { requested, start },
            StreamReadError::BeyondEnd { next } => Self::BeyondEnd { requested, next },
            StreamReadError::Machine(error) => error.into(),
        }
    }
}

impl From<thalweg_log::ReadError> for ReadError {
    fn from(error: thalweg_log::ReadError) -> Self {
        match error {
            thalweg_log::ReadError::Gone { .. } => Self::ViewExpired,
            thalweg_log::ReadError::Disk(_) => Self::Io(error.to_string()),
            // Both messages name the command to run.
            thalweg_log::ReadError::Corrupt(corruption) => Self::Corrupt(corruption.to_string()),
            other => Self::Corrupt(other.to_string()),
        }
    }
}

/// Creates the error for a key that refers to a Redis collection instead of bytes.
pub(crate) fn holds(collection: &Collection) -> ReadError {
    ReadError::HoldsCollection { kind: collection.kind.name() }
}
