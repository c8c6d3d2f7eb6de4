//! Errors of consensus: of the replicated log, the start, reads, and changes of the membership.
//!
//! Owns: the errors of the replicated log (`StoreError`), of the start of consensus (`StartError`), of reads
//! (`BarrierError`) and of changes of the membership (`ChangeError`). Each has a stable code and names the caller's
//! next step. Does not own: errors of proposed commands (`thalweg_replica`).

use std::io;

use thalweg_log::{AppendError, ReadError};
use thalweg_replica::MembershipError;
use thalweg_types::{Index, Lsn, NodeId, classified};

/// Error of the replicated log on this node. openraft receives it inside an [`io::Error`], and ends consensus on this
/// node.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The node's log rejected a write, or an fsync failed.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The node's log could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The index of an entry to be appended is not the one after the last entry.
    #[error("the space's log has a gap: entry {found} follows instead of entry {expected}")]
    Gap {
        /// Index that the entry should have.
        expected: Index,
        /// Index that the entry has.
        found: Index,
    },
    /// The log has no entry with this index, although it should contain it.
    #[error("entry {0} is missing in the log")]
    Missing(Index),
    /// The payload of a record of the node's log has an unknown layout.
    #[error("the {what} at LSN {lsn} is malformed: another version of the program wrote it")]
    Malformed {
        /// LSN of the malformed record.
        lsn: Lsn,
        /// Expected content of the record: vote or membership, for example.
        what: &'static str,
    },
    /// A membership exceeds the limits of the log's format.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// The stored state of the replica could not be read.
    #[error("cannot read the state: {0}")]
    State(String),
    /// The node stops, and performs no more fsyncs for this log.
    #[error("the log is closed")]
    Closed,
}

classified!(StoreError {
    Self::Append(error) => error.code(), error.action();
    Self::Read(error) => error.code(), error.action();
    Self::Gap { .. } => "raft_log_gap", Stop;
    Self::Missing(_) => "raft_entry_missing", Stop;
    Self::Malformed { .. } => "raft_record_malformed", Stop;
    Self::Membership(_) => "membership_invalid", Fix;
    Self::State(_) => "state_unreadable", Stop;
    Self::Closed => "log_closed", Stop;
});

impl From<StoreError> for io::Error {
    fn from(error: StoreError) -> Self {
        Self::other(error)
    }
}

/// Error returned when consensus cannot start.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StartError {
    /// The options of consensus contradict each other.
    #[error("the options of consensus are invalid: {0}")]
    Options(String),
    /// The replicated log on this node cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// openraft did not start.
    #[error("consensus does not start: {0}")]
    Raft(String),
}

classified!(StartError {
    Self::Options(_) => "consensus_options", Fix;
    Self::Store(error) => error.code(), error.action();
    Self::Raft(_) => "consensus_start", Stop;
});

/// Error of a read that needs a certain freshness of the state. Nothing was read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BarrierError {
    /// This node does not lead the Raft group, and has no way to ask the leader.
    #[error("this node does not lead the space")]
    NotLeader {
        /// Id and address of the leader, if this node knows it.
        leader: Option<(NodeId, String)>,
    },
    /// The Raft group has no leader, or this node does not know it.
    #[error("the space has no leader at the moment: retry later")]
    NoLeader,
    /// The leader could not confirm in time that a majority still follows it.
    #[error("the leader has no majority at the moment: retry later")]
    NoQuorum,
    /// This node has not applied in time the entries that the read must see.
    #[error("this node is behind the entries that the read must see: retry later, or on another node")]
    Behind,
    /// Consensus has ended on this node.
    #[error("consensus has ended on this node: {0}")]
    Stopped(String),
}

classified!(BarrierError {
    Self::NotLeader { .. } => "not_leader", Retry;
    Self::NoLeader => "no_leader", Retry;
    Self::NoQuorum => "no_quorum", Retry;
    Self::Behind => "recovering", Retry;
    Self::Stopped(_) => "consensus_stopped", Stop;
});

/// Error of a change of the membership (voters and learners) of a Raft group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// This node does not lead the Raft group, so it cannot change the membership.
    #[error("this node does not lead the space")]
    NotLeader {
        /// Id and address of the leader, if this node knows it.
        leader: Option<(NodeId, String)>,
    },
    /// Another change of the membership is not complete.
    #[error("another change of the membership is in progress: wait for it")]
    InProgress,
    /// The node that the request concerns is not a member.
    #[error("node {0} is not a member")]
    NotAMember(NodeId),
    /// The node to be added is a member already, with another address.
    #[error("node {0} is a member already, at another address")]
    AlreadyMember(NodeId),
    /// The member to be promoted is a voter already.
    #[error("node {0} votes already")]
    AlreadyVotes(NodeId),
    /// A node with this id was a member, and was removed. Ids are never used again.
    #[error("node {0} was removed from this cluster: it can only join with a new directory")]
    Removed(NodeId),
    /// The learner to be promoted lacks too many entries to become a voter.
    #[error("node {node} lacks {entries} entries, more than {max}: wait until it has caught up")]
    Lags {
        /// Id of the learner to be promoted.
        node: NodeId,
        /// Number of entries that the learner lacks.
        entries: u64,
        /// Maximum number of entries that a learner may lack to become a voter.
        max: u64,
    },
    /// The member that was to become a voter or the leader has not answered recently.
    #[error("node {0} has not answered for a while: start it, or check the network between it and the leader")]
    Silent(NodeId),
    /// The voters that answer would not be a majority after the change.
    #[error("after the change only {alive} of {voters} voters would answer, which is no majority: repair them first")]
    NoMajority {
        /// Number of voters after the change that have answered the leader recently.
        alive: usize,
        /// Number of voters that there would be after the change.
        voters: usize,
    },
    /// The node to be removed is the only voter.
    #[error("node {0} is the only voter: add another one first")]
    LastVoter(NodeId),
    /// The node to be removed is the leader. Its leadership must be transferred first.
    #[error("node {0} leads: transfer its leadership first")]
    Leads(NodeId),
    /// The node that was to become the leader is a learner, which cannot lead.
    #[error("node {0} is a learner: promote it first")]
    NotVoter(NodeId),
    /// No other voter can take over the leadership from this leader.
    #[error("no other voter has all entries: retry later")]
    NoSuccessor,
    /// This node has forwarded the change to the leader, and the leader has refused it.
    #[error("{0}")]
    Refused(String),
    /// The membership exceeds the limits of its format.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// The change of the membership may or may not take effect.
    #[error("the outcome of the change is unknown: {reason}; look at the members before you repeat it")]
    OutcomeUnknown {
        /// Reason why the outcome of the change is unknown.
        reason: String,
    },
    /// Consensus has ended on this node.
    #[error("consensus has ended on this node: {0}")]
    Stopped(String),
}

classified!(ChangeError {
    Self::NotLeader { .. } => "not_leader", Retry;
    Self::InProgress => "change_in_progress", Retry;
    Self::NotAMember(_) => "not_a_member", Fix;
    Self::AlreadyMember(_) => "already_member", Fix;
    Self::AlreadyVotes(_) => "already_votes", Fix;
    Self::Removed(_) => "node_removed", Fix;
    Self::Lags { .. } => "learner_lags", Retry;
    Self::Silent(_) => "member_silent", Retry;
    Self::NoMajority { .. } => "no_majority_left", Fix;
    Self::LastVoter(_) => "last_voter", Fix;
    Self::Leads(_) => "node_leads", Fix;
    Self::NotVoter(_) => "not_voter", Fix;
    Self::NoSuccessor => "no_successor", Retry;
    Self::Refused(_) => "change_refused", Fix;
    Self::Membership(_) => "membership_invalid", Fix;
    Self::OutcomeUnknown { .. } => "outcome_unknown", Retry;
    Self::Stopped(_) => "consensus_stopped", Stop;
});
