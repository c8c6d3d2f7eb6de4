//! Errors of opening a space (a Raft group on this node), and of proposing commands to it.

use thalweg_log::{AppendError, ReadError};
use thalweg_state::machine::MachineError;
use thalweg_types::{Index, Lsn, NodeId, Term, classified};

/// Error returned when a space (Raft group) cannot be opened from its log and its state.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// The state has applied entries that are missing in the log. Serving such a state would show writes that are not
    /// in the log.
    #[error(
        "the state is ahead of the log: it has applied up to LSN {applied}, the log ends at {end}; restore the log, or keep the state with `thalweg serve --repair`"
    )]
    StateAhead {
        /// Exclusive end of the log positions that the state has applied.
        applied: Lsn,
        /// Exclusive end of the log positions that the log contains.
        end: Lsn,
    },
    /// The log no longer contains records that the state has not applied yet.
    #[error(
        "the log starts at LSN {start} but the state needs it from {needed} on: the state directory is older than the log; restore both from one backup"
    )]
    LogTooShort {
        /// First LSN that the state needs from the log.
        needed: Lsn,
        /// First LSN that the log contains.
        start: Lsn,
    },
    /// The indexes of the Raft group's entries in the log are not consecutive.
    #[error("entry {found} follows entry {last} in the log: an entry is missing; run `thalweg log verify`")]
    Gap {
        /// Index of the last log entry before the gap.
        last: Index,
        /// Index of the log entry found after the gap.
        found: Index,
    },
    /// The Raft term of a log entry is lower than the term of the entry before it.
    #[error(
        "an entry of term {found} follows one of term {last}: the log mixes several spaces; run `thalweg log verify`"
    )]
    TermWentBack {
        /// Raft term of the previous log entry.
        last: Term,
        /// Raft term of the log entry that follows it.
        found: Term,
    },
    /// Reading the log failed while the space (Raft group) was opened.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Writing the log failed while the space (Raft group) was opened.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The state machine could not apply a log entry.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A record of Raft itself (membership or vote) does not decode.
    #[error("record at LSN {lsn} does not decode: {what}")]
    Malformed {
        /// LSN of the malformed record.
        lsn: Lsn,
        /// Expected content of the record.
        what: &'static str,
    },
    /// The state has applied entries, but contains no membership or no vote of the space (Raft group).
    #[error("the state contains no {what} of the space: remove the state directory to rebuild it from the log")]
    NoMembership {
        /// Name of the missing item: membership or vote.
        what: &'static str,
    },
    /// Other nodes vote in the space (Raft group), or have voted in it. So the entries of this node's log may lack the
    /// agreement of a quorum, and the node must not serve them alone.
    #[error(
        "nodes {voters:?} vote in this space: a single node must not decide for them; start it as a member of its cluster"
    )]
    NotAlone {
        /// All nodes that vote in the space (Raft group).
        voters: Vec<NodeId>,
    },
    /// The caller has ended the replay of the log before its end. Nothing is lost: the next open continues the replay.
    #[error("the replay of the log was interrupted: open the directory again")]
    Interrupted,
    /// A truncation record in the log declares an entry void that the state has applied. Applied entries were agreed
    /// on, so the log and the state must belong to different nodes.
    #[error(
        "the record at LSN {lsn} voids entries from {index} on, but the state has applied them up to {applied}: log and state do not belong together; restore both from one backup"
    )]
    Truncated {
        /// LSN of the truncation record.
        lsn: Lsn,
        /// First index that the truncation declares void.
        index: Index,
        /// Index of the last log entry that the state has applied.
        applied: Index,
    },
}

classified!(OpenError {
    Self::StateAhead { .. } => "state_ahead_of_log", Stop;
    Self::LogTooShort { .. } => "log_too_short", Stop;
    Self::Gap { .. } => "entry_missing", Stop;
    Self::TermWentBack { .. } => "term_went_back", Stop;
    Self::Read(_) => "log_read", Stop;
    Self::Append(_) => "log_append", Stop;
    Self::Machine(error) => error.code(), Stop;
    Self::Malformed { .. } => "malformed_record", Stop;
    Self::NoMembership { .. } => "membership_missing", Stop;
    Self::NotAlone { .. } => "not_alone", Stop;
    Self::Interrupted => "interrupted", Retry;
    Self::Truncated { .. } => "entries_truncated", Stop;
});

/// Error returned when a proposed command was not committed, or when its outcome is unknown.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProposeError {
    /// The queue of proposals is full. Only async callers get this error; blocking callers wait for room.
    #[error("the queue is full with commands of {queued_bytes} bytes: retry later")]
    Overloaded {
        /// Total size in bytes of the queued commands.
        queued_bytes: usize,
    },
    /// The client's address has too many expensive proposals waiting, or too many bytes of them. The queue accepts the
    /// proposals of other addresses.
    #[error(
        "expensive commands of {waiting_bytes} bytes from this client's address are queued: wait for their replies and retry"
    )]
    AddressOverloaded {
        /// Total size in bytes of the address's expensive commands in the queue.
        waiting_bytes: usize,
    },
    /// The log rejected the append or failed. The contained error states if bytes were written.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The state machine failed, or consensus has ended on this node. The command's entry may be in the log. The space
    /// (Raft group) accepts no further proposals.
    #[error("the state failed: {0}")]
    State(String),
    /// This member does not lead the space (Raft group), and could not forward the command to the leader. Nothing was
    /// written.
    #[error("this node does not lead the space")]
    NotLeader {
        /// Id and address of the leader, if this member knows it.
        leader: Option<(NodeId, String)>,
    },
    /// The space (Raft group) has no leader, or this member does not know it. Nothing was written.
    #[error("the space has no leader at the moment: retry later")]
    NoLeader,
    /// This member has forwarded the command to the leader, and the leader has refused it. Nothing was written.
    #[error("the leader has refused the command: {reason}")]
    LeaderRefused {
        /// Reason that the leader has given.
        reason: String,
    },
    /// Commands that another member has forwarded do not fit in a segment of this leader's log. Nothing was written. A
    /// member never sends such commands, so the sender has other limits or a fault.
    #[error("commands of {bytes} bytes do not fit in an entry of this leader, which has at most {max}")]
    TooLarge {
        /// Total size of the commands in bytes.
        bytes: u64,
        /// Maximum total size in bytes of the commands of one log entry.
        max: u64,
    },
    /// Too many members of the space (Raft group) have no disk space left for new data, or the leader has none. Nothing
    /// was written. Deletes and trims are still accepted.
    #[error("disk full: {reason}")]
    NoRoom {
        /// Names of the members without disk space, and advice on what to do.
        reason: String,
    },
    /// The command may have been committed, or may still be committed.
    #[error("the outcome of the command is unknown: {reason}")]
    OutcomeUnknown {
        /// Reason why the outcome is unknown.
        reason: String,
    },
    /// A record that concerns only this node is in the log, but entries before it were not committed in time. The node
    /// applies the record once those entries are committed.
    #[error("entries before this record wait for a quorum: retry later")]
    Behind,
    /// The space (Raft group) is closed and accepts no proposals.
    #[error("the space is closed")]
    Closed,
}

classified!(ProposeError {
    Self::Overloaded { .. } | Self::AddressOverloaded { .. } => "overloaded", Retry;
    Self::Append(error) => error.code(), error.action();
    Self::State(_) => "state_failed", Stop;
    Self::NotLeader { .. } => "not_leader", Retry;
    Self::NoLeader => "no_leader", Retry;
    Self::LeaderRefused { .. } => "leader_refused", Retry;
    Self::TooLarge { .. } => "too_large", Fix;
    Self::NoRoom { .. } => "disk_full", Retry;
    Self::OutcomeUnknown { .. } => "outcome_unknown", Retry;
    Self::Behind => "entries_uncommitted", Retry;
    Self::Closed => "closed", Stop;
});
