//! Errors of requests to the cluster.
//!
//! Owns: `ClusterError`, each variant with a stable code, an HTTP status and the caller's next step. Does not own:
//! errors of commands that consensus forwards, which are the engine's `WriteError`.

use http::StatusCode;
use thalweg_types::{Index, Revision, classified};

use crate::error::ApiError;

/// Error of a read, or of an administrator's request, in a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// The request needs a cluster, but this node runs alone.
    #[error("this node is not part of a cluster: start it with --cluster and --cluster-init, or with --join")]
    NotClustered,
    /// No node leads, as far as this node knows: an election is in progress, or a majority of the voters is
    /// unreachable.
    #[error(
        "the cluster has no leader at present: retry; if this lasts, a majority of its voters is down or unreachable \
         (`thalweg cluster doctor`)"
    )]
    NoLeader,
    /// This node no longer leads, or could not forward the request. The request had no effect.
    #[error(
        "this node does not lead the cluster{}: retry",
        .leader.as_ref().map_or(String::new(), |leader| format!(" (the node {leader} does)"))
    )]
    NotLeader {
        /// Leader that this node knows, by name or by address; `None` if it knows none.
        leader: Option<String>,
    },
    /// The node has no complete state yet, because it recovers or receives a snapshot.
    #[error("this node is still recovering: retry, or use another node")]
    Recovering,
    /// A quorum did not confirm, before the deadline of a read, that this node's state is recent enough.
    #[error("the leader did not confirm the read in time: retry, or read with Thalweg-Read: stale")]
    ReadTimeout,
    /// This node's state did not reach the revision that a read requires before the read's deadline.
    #[error("this node's state has revision {applied} and not yet {wanted}: retry, or use another node")]
    RevisionNotReached {
        /// Revision that the read requires.
        wanted: Revision,
        /// Revision of the node's state when the read failed.
        applied: Revision,
    },
    /// The change was sent, but its outcome did not arrive before the request's deadline. The change may or may not
    /// take effect.
    #[error("the change may or may not have happened: look at the members before you repeat it")]
    OutcomeUnknown,
    /// The cluster has no member with this id or name.
    #[error("the cluster has no member {0:?}: `thalweg cluster members` lists the members")]
    NoSuchMember(String),
    /// The node was a member and has been removed. The text is its id.
    #[error("the node {0} was removed from the cluster before")]
    AlreadyRemoved(String),
    /// The node is a member of the cluster already. The text is its name.
    #[error("{0} is a member already")]
    AlreadyMember(String),
    /// The cluster's members cannot be changed now, because an earlier change of the members is not complete.
    #[error("another change of the members is in progress: retry when it is complete")]
    ChangeInProgress,
    /// A learner cannot become a voter, because it has not caught up.
    #[error("the learner is {entries} entries behind the leader: retry when it has caught up")]
    LearnerBehind {
        /// Number of log entries that the learner lacks.
        entries: u64,
    },
    /// A member cannot become a voter or the leader, because the leader has not heard from it recently. The text is its
    /// name.
    #[error("{0} has not answered the leader for a while: start it, or check the network, and repeat the request")]
    MemberSilent(String),
    /// The last voter cannot be removed.
    #[error("the last voter can't be removed: add another one first, or stop the node")]
    LastVoter,
    /// A member cannot be removed, because too few of the remaining voters are reachable to form a majority.
    #[error(
        "after this change {alive} of {voters} voters would be alive, which is no majority: bring a voter back first, \
         or add one"
    )]
    QuorumAtRisk {
        /// Number of voters that are alive, not counting the member to be removed.
        alive: usize,
        /// Number of voters, not counting the member to be removed.
        voters: usize,
    },
    /// The target of a leadership transfer is not a voter. The text is its name.
    #[error("{0} is a learner: promote it first")]
    NotVoter(String),
    /// The target of a leadership transfer did not take over in time. The leadership stays where it was, or goes to
    /// another node.
    #[error("no other member took over the leadership in time: retry")]
    TransferTimeout,
    /// No other voter can take over the leadership, because none is alive.
    #[error("no other voter is alive that could take over the leadership: retry when one is")]
    NoSuccessor,
    /// Some members did not report the hash of their state at the requested index in time.
    #[error("the digests were not complete in time, because {missing} members did not reach index {index}")]
    DigestTimeout {
        /// Index of the log entry after which the members were to compute the hash of their state.
        index: Index,
        /// Number of members that did not report a hash in time.
        missing: usize,
    },
    /// A version of the state machine cannot be put in force, because members do not support it.
    #[error("{members} can't execute version {to} of the state machine, and would stop: upgrade all nodes first")]
    VersionUnknown {
        /// Version of the state machine that the request would put in force.
        to: u16,
        /// Names of the members that do not support the version.
        members: String,
    },
    /// A version of the state machine cannot be put in force, because members did not answer in time which versions
    /// they support.
    #[error(
        "{members} did not say in time whether version {to} of the state machine is supported there, and would stop without: \
         start the nodes, or remove them, or repeat the request with force"
    )]
    VersionUnconfirmed {
        /// Version of the state machine that the request would put in force.
        to: u16,
        /// Names of the members that did not say which versions they support.
        members: String,
    },
    /// The cluster refuses a change of its members. `reason` explains why.
    #[error("{reason}")]
    Refused {
        /// Text that explains why the change of the members is not possible.
        reason: String,
    },
    /// The request changes the cluster, but has no administrator's token.
    #[error(
        "changes of the cluster need its admin token, as Authorization: Bearer TOKEN; the node printed the token when it \
         created the cluster"
    )]
    TokenMissing,
    /// The request changes the cluster, but its administrator's token is wrong.
    #[error("the admin token is wrong: use the one that was printed when the cluster was created")]
    TokenWrong,
    /// The node already answers as many reads and administrators' requests as it can at a time. The request had no
    /// effect.
    #[error("this node waits for too many answers of the cluster at a time: retry later")]
    Overloaded,
    /// The node is stopping and handles no further requests.
    #[error("this node is stopping: use another one")]
    Stopping,
    /// This member has stopped serving, because its state may differ from that of the other members.
    #[error("this node has stopped serving: {reason}")]
    StoppedServing {
        /// Reason why the node has stopped serving.
        reason: String,
    },
    /// The consensus of this node has failed. The node must be restarted.
    #[error("the consensus of this node has failed: {reason}; restart the node")]
    Failed {
        /// Cause of the failure of consensus.
        reason: String,
    },
}

classified! {
    ClusterError {
        Self::NotClustered => "not_clustered", Fix;
        Self::NoLeader => "no_leader", Retry;
        Self::NotLeader { .. } => "not_leader", Retry;
        Self::Recovering => "recovering", Retry;
        Self::ReadTimeout => "read_timeout", Retry;
        Self::RevisionNotReached { .. } => "revision_not_reached", Retry;
        Self::OutcomeUnknown => "outcome_unknown", Retry;
        Self::NoSuchMember(_) => "no_such_member", Fix;
        Self::AlreadyRemoved(_) => "already_removed", Fix;
        Self::Refused { .. } => "change_refused", Fix;
        Self::VersionUnknown { .. } => "version_unknown", Fix;
        Self::VersionUnconfirmed { .. } => "version_unconfirmed", Fix;
        Self::AlreadyMember(_) => "already_member", Fix;
        Self::ChangeInProgress => "change_in_progress", Retry;
        Self::LearnerBehind { .. } => "learner_behind", Retry;
        Self::MemberSilent(_) => "member_silent", Retry;
        Self::LastVoter => "last_voter", Fix;
        Self::QuorumAtRisk { .. } => "quorum_at_risk", Fix;
        Self::NotVoter(_) => "not_voter", Fix;
        Self::TransferTimeout => "transfer_timeout", Retry;
        Self::NoSuccessor => "no_successor", Retry;
        Self::DigestTimeout { .. } => "digest_timeout", Retry;
        Self::TokenMissing => "token_missing", Fix;
        Self::TokenWrong => "token_wrong", Fix;
        Self::Overloaded => "overloaded", Retry;
        Self::Stopping => "stopping", Retry;
        Self::StoppedServing { .. } => "stopped_serving", Stop;
        Self::Failed { .. } => "consensus_failed", Stop;
    }
}

impl ClusterError {
    /// Returns the HTTP status of the error.
    fn status(&self) -> StatusCode {
        match self {
            Self::NotClustered
            | Self::AlreadyRemoved(_)
            | Self::AlreadyMember(_)
            | Self::LearnerBehind { .. }
            | Self::MemberSilent(_)
            | Self::LastVoter
            | Self::QuorumAtRisk { .. }
            | Self::Refused { .. }
            | Self::VersionUnknown { .. }
            | Self::VersionUnconfirmed { .. }
            | Self::NotVoter(_) => StatusCode::CONFLICT,
            Self::NoSuchMember(_) => StatusCode::NOT_FOUND,
            Self::TokenMissing | Self::TokenWrong => StatusCode::UNAUTHORIZED,
            Self::OutcomeUnknown => StatusCode::GATEWAY_TIMEOUT,
            Self::NoLeader
            | Self::NotLeader { .. }
            | Self::Recovering
            | Self::ReadTimeout
            | Self::RevisionNotReached { .. }
            | Self::ChangeInProgress
            | Self::TransferTimeout
            | Self::NoSuccessor
            | Self::DigestTimeout { .. }
            | Self::Overloaded
            | Self::Stopping
            | Self::StoppedServing { .. }
            | Self::Failed { .. } => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl From<ClusterError> for ApiError {
    fn from(error: ClusterError) -> Self {
        let mut api = Self::classified(error.status(), &error);
        api.detail = match error {
            ClusterError::RevisionNotReached { applied, .. } => Some(("applied", applied.0)),
            ClusterError::LearnerBehind { entries } => Some(("entries", entries)),
            _ => None,
        };
        api
    }
}

#[cfg(test)]
mod tests {
    use thalweg_types::Action;

    use super::*;

    #[test]
    fn clients_learn_whether_to_retry() {
        let api = ApiError::from(ClusterError::NoLeader);
        assert_eq!((api.status.as_u16(), api.code, api.action), (503, "no_leader", Action::Retry));
        let api = ApiError::from(ClusterError::OutcomeUnknown);
        assert_eq!((api.status.as_u16(), api.action), (504, Action::Retry));
        let api = ApiError::from(ClusterError::NotClustered);
        assert_eq!((api.status.as_u16(), api.code, api.action), (409, "not_clustered", Action::Fix));
        let behind = ClusterError::RevisionNotReached { wanted: Revision(9), applied: Revision(7) };
        assert_eq!(ApiError::from(behind).detail, Some(("applied", 7)));
    }
}
