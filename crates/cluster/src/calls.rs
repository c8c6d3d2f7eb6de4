//! Calls of other threads to a node: the handle that the protocols of a server use.
//!
//! Owns: the translation of calls and errors between the server and consensus. Does not own: what the calls do (`raft`,
//! `tasks`).

use std::{
    rc::Rc,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use thalweg_raft::{BarrierError, ChangeError};
use thalweg_replica::{Leadership, NodeInfo};
use thalweg_serving::cluster::{
    ClusterError, ClusterFuture, ClusterHandle, ClusterReport, DigestComparison, EventLog, JoinRequest, MemberDigest,
    NodeAddresses, Removal,
};
use thalweg_types::{Index, NodeId, ReadLevel, Revision};
use thalweg_wire::peer::{AskDigest, ManageKind};
use tokio::{
    sync::{mpsc, oneshot},
    task::spawn_local,
};

use crate::{
    forwarder::{manage, millis},
    link::{DigestText, UNKNOWN},
    node::Node,
    tasks::Tasks,
};

/// Time after which a digest that is being computed is looked for again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A call to the consensus thread.
pub(crate) enum Call {
    Read(ReadLevel, Duration, oneshot::Sender<Result<Revision, ClusterError>>),
    Change(Change, Duration, oneshot::Sender<Result<NodeId, ClusterError>>),
    Digest(Index, Duration, oneshot::Sender<Result<DigestComparison, ClusterError>>),
    HandOver(Duration, oneshot::Sender<Result<(), ClusterError>>),
    Announce(NodeAddresses),
}

/// A change of the members.
pub(crate) struct Change {
    pub kind: ManageKind,
    pub node: NodeId,
    pub info: NodeInfo,
}

/// Answers calls until the last handle is dropped.
pub(crate) async fn answer_calls(tasks: Rc<Tasks>, mut calls: mpsc::UnboundedReceiver<Call>) {
    while let Some(call) = calls.recv().await {
        let tasks = Rc::clone(&tasks);
        match call {
            Call::Announce(serves) => tasks.requests.about.borrow_mut().serves = serves,
            // The callers may have given up.
            Call::Read(level, within, reply) => {
                spawn_local(async move { reply.send(tasks.read(level, within).await) });
            }
            Call::Change(change, within, reply) => {
                spawn_local(async move { reply.send(tasks.change(change, within).await) });
            }
            Call::Digest(index, within, reply) => {
                spawn_local(async move { reply.send(Ok(tasks.compare_digests(index, within).await)) });
            }
            Call::HandOver(within, reply) => {
                spawn_local(async move { reply.send(tasks.hand_over(within).await) });
            }
        }
    }
}

fn read_error(error: BarrierError) -> ClusterError {
    match error {
        BarrierError::NotLeader { leader } => ClusterError::NotLeader { leader: leader.map(|(node, _)| node) },
        BarrierError::NoLeader => ClusterError::NoLeader,
        BarrierError::NoQuorum => ClusterError::ReadTimeout,
        BarrierError::Behind => ClusterError::Recovering,
        BarrierError::Stopped(reason) => ClusterError::Failed { reason },
    }
}

fn change_error(error: ChangeError) -> ClusterError {
    match error {
        ChangeError::NotLeader { leader: None } => ClusterError::NoLeader,
        ChangeError::NotLeader { leader } => ClusterError::NotLeader { leader: leader.map(|(node, _)| node) },
        ChangeError::InProgress => ClusterError::ChangeInProgress,
        ChangeError::NotAMember(node) => ClusterError::NoSuchMember(node.to_string()),
        ChangeError::AlreadyMember(node) | ChangeError::AlreadyVotes(node) => ClusterError::AlreadyMember(node),
        ChangeError::Lags { entries, .. } => ClusterError::LearnerBehind { entries },
        ChangeError::NoMajority { alive, voters } => ClusterError::QuorumAtRisk { alive, voters },
        ChangeError::LastVoter(_) => ClusterError::LastVoter,
        ChangeError::NoSuccessor => ClusterError::TransferTimeout,
        ChangeError::OutcomeUnknown { .. } => ClusterError::OutcomeUnknown,
        ChangeError::Stopped(reason) => ClusterError::Failed { reason },
        other @ (ChangeError::Removed(_)
        | ChangeError::Leads(_)
        | ChangeError::Refused(_)
        | ChangeError::Membership(_)) => ClusterError::Refused { reason: other.to_string() },
    }
}

impl Tasks {
    fn revision(&self) -> Revision {
        self.consensus.member().machine().applied().revision
    }

    async fn read(&self, level: ReadLevel, within: Duration) -> Result<Revision, ClusterError> {
        let read = match level {
            ReadLevel::Linearizable => self.consensus.read_linearizable(within).await.map(drop),
            ReadLevel::Lease => self.consensus.read_lease(within).await.map(drop),
            ReadLevel::Stale => Ok(()),
            ReadLevel::AtLeast(revision) => {
                return match self.consensus.read_at_least(revision, within).await {
                    Ok(()) => Ok(self.revision()),
                    Err(BarrierError::Behind) => {
                        Err(ClusterError::RevisionNotReached { wanted: revision, applied: self.revision() })
                    }
                    Err(error) => Err(read_error(error)),
                };
            }
        };
        read.map(|()| self.revision()).map_err(read_error)
    }

    /// Changes the members here if this node leads, and otherwise on the leader.
    async fn change(&self, change: Change, within: Duration) -> Result<NodeId, ClusterError> {
        let Change { kind, node, info } = change;
        let changed = match self.consensus.member().leadership() {
            Leadership::Leader { .. } => self.requests.change_members(kind, node, info, within).await,
            Leadership::Follower { leader: Some((leader, at)), .. } => {
                let link = self.network.peer(leader, &at.address).control;
                manage(&link, kind, node, &info, within).await
            }
            Leadership::Follower { leader: None, .. } => Err(ChangeError::NotLeader { leader: None }),
        };
        self.refresh();
        changed.map_err(change_error)
    }

    /// Collects the digests of all members after an entry that requests one.
    async fn compare_digests(&self, index: Index, within: Duration) -> DigestComparison {
        let members = self.consensus.status().members;
        let here = self.here();
        let asked = members.into_iter().map(|(node, member)| async move {
            let digest = if node == here {
                self.data.digest(index, within).await.ok_or_else(|| "it was not computed in time".to_owned())
            } else {
                let link = self.network.peer(node, &member.info.address).control;
                let deadline = tokio::time::Instant::now() + within;
                let ask = AskDigest { index, timeout_millis: millis(within) };
                link.call::<_, DigestText, String>(&ask, deadline).await.map_err(|error| error.to_string())
            };
            MemberDigest { node, digest }
        });
        DigestComparison { index, members: futures_util::future::join_all(asked).await }
    }

    async fn hand_over(&self, within: Duration) -> Result<(), ClusterError> {
        if !self.consensus.member().leads() {
            return Ok(());
        }
        let transferred = tokio::time::timeout(within, self.consensus.transfer(None)).await;
        match transferred {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(change_error(error)),
            Err(_) => Err(ClusterError::TransferTimeout),
        }
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

fn answer<T: Send + 'static>(receiver: oneshot::Receiver<Result<T, ClusterError>>) -> ClusterFuture<T> {
    Box::pin(async move { receiver.await.unwrap_or(Err(ClusterError::Stopping)) })
}

impl Node {
    fn change(&self, kind: ManageKind, node: NodeId, info: NodeInfo, deadline: Instant) -> ClusterFuture<NodeId> {
        let change = Change { kind, node, info };
        answer(self.call(|reply| Call::Change(change, left(deadline), reply)))
    }
}

fn nothing(changed: ClusterFuture<NodeId>) -> ClusterFuture<()> {
    Box::pin(async move { changed.await.map(drop) })
}

impl ClusterHandle for Node {
    fn leads(&self) -> bool {
        self.shared.member.leads()
    }

    fn try_read(&self, level: ReadLevel) -> Option<Revision> {
        let revision = self.shared.member.machine().applied().revision;
        match level {
            ReadLevel::Stale => Some(revision),
            ReadLevel::AtLeast(wanted) => (revision >= wanted).then_some(revision),
            ReadLevel::Linearizable | ReadLevel::Lease => None,
        }
    }

    fn read(&self, level: ReadLevel, deadline: Instant) -> ClusterFuture<Revision> {
        answer(self.call(|reply| Call::Read(level, left(deadline), reply)))
    }

    fn announce(&self, serves: NodeAddresses) {
        self.announce_addresses(serves);
    }

    fn report(&self) -> ClusterReport {
        self.shared.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn join(&self, request: JoinRequest, deadline: Instant) -> ClusterFuture<NodeId> {
        let kind = if request.stays_learner { ManageKind::JoinAsLearner } else { ManageKind::Join };
        self.change(kind, request.node, NodeInfo { name: request.name, address: request.address }, deadline)
    }

    fn promote(&self, node: NodeId, deadline: Instant) -> ClusterFuture<()> {
        nothing(self.change(ManageKind::Promote, node, NodeInfo::default(), deadline))
    }

    fn remove(&self, node: NodeId, removal: Removal, deadline: Instant) -> ClusterFuture<()> {
        let kind = match removal {
            Removal::Safe => ManageKind::Remove,
            Removal::Forced => ManageKind::ForceRemove,
        };
        nothing(self.change(kind, node, NodeInfo::default(), deadline))
    }

    fn transfer(&self, to: Option<NodeId>, deadline: Instant) -> ClusterFuture<NodeId> {
        self.change(ManageKind::Transfer, to.unwrap_or(UNKNOWN), NodeInfo::default(), deadline)
    }

    fn digest(&self, deadline: Instant) -> ClusterFuture<DigestComparison> {
        let (node, db) = (self.clone(), self.shared.db.clone());
        Box::pin(async move {
            let before = node.shared.member.machine().applied().index;
            // The database proposes the command, which blocks.
            let requesting = db.clone();
            let requested = tokio::task::spawn_blocking(move || requesting.request_digest()).await;
            let failed = |reason: String| ClusterError::Failed { reason };
            requested.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
            loop {
                let newest = db.state_digests().last().map(|report| report.state.applied.index);
                if let Some(index) = newest.filter(|index| *index > before) {
                    return answer(node.call(|reply| Call::Digest(index, left(deadline), reply))).await;
                }
                if left(deadline).is_zero() {
                    return Err(ClusterError::DigestTimeout { index: before, missing: 1 });
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        })
    }

    fn events(&self) -> &Arc<EventLog> {
        &self.shared.events
    }

    fn hand_over(&self, deadline: Instant) -> ClusterFuture<()> {
        answer(self.call(|reply| Call::HandOver(left(deadline), reply)))
    }

    fn stop(&self) -> ClusterFuture<()> {
        let node = self.clone();
        Box::pin(async move {
            let stopped = tokio::task::spawn_blocking(move || node.shut_down()).await;
            stopped.map_err(|error| ClusterError::Failed { reason: error.to_string() })
        })
    }
}
