//! Answers of the consensus thread to calls from other threads.
//!
//! Owns: the answers and their errors. Does not own: the work that the calls request (`raft`, `tasks`), and the handle
//! that sends them (`handle`).

use std::{rc::Rc, time::Duration};

use thalweg_raft::{BarrierError, ChangeError};
use thalweg_replica::Leadership;
use thalweg_serving::cluster::{ClusterError, DigestComparison, MemberDigest, MemberVersion};
use thalweg_types::{Index, NodeId, ReadLevel, Revision, command::FIRST_VERSION};
use thalweg_wire::peer::{AskDigest, AskVersions, ManageKind, Versions};
use tokio::{sync::mpsc, task::spawn_local};

use crate::{
    forwarder::{manage, millis},
    link::{CallError, DigestText, Owned},
    shared::{Admitted, Call, Change},
    tasks::{ASK_LIMIT, Tasks},
};

/// Answers the calls that other threads send through handles of this node, until the last handle is dropped.
pub(crate) async fn answer_calls(tasks: Rc<Tasks>, mut calls: mpsc::Receiver<Admitted>) {
    while let Some(Admitted { call, room }) = calls.recv().await {
        let tasks = Rc::clone(&tasks);
        spawn_local(async move {
            tasks.answer(call).await;
            drop(room);
        });
    }
}

/// Forwards the addresses at which this node serves clients to the other nodes, whenever they change.
pub(crate) async fn note_addresses(tasks: Rc<Tasks>) {
    let mut serves = tasks.shared.serves.subscribe();
    // The server may have set the addresses before this task started.
    serves.mark_changed();
    while serves.changed().await.is_ok() {
        tasks.requests.about.borrow_mut().serves = serves.borrow_and_update().clone();
    }
}

fn read_error(error: BarrierError) -> ClusterError {
    match error {
        BarrierError::NotLeader { leader } => {
            ClusterError::NotLeader { leader: leader.map(|(_, address)| format!("at {address}")) }
        }
        BarrierError::NoLeader => ClusterError::NoLeader,
        BarrierError::NoQuorum => ClusterError::ReadTimeout,
        BarrierError::Behind => ClusterError::Recovering,
        BarrierError::Stopped(reason) => ClusterError::Failed { reason },
    }
}

/// Converts the error of a membership change to the error that a caller of the handle gets. `name_of` returns the name
/// of a node.
fn change_error(error: ChangeError, name_of: impl Fn(NodeId) -> String) -> ClusterError {
    match error {
        ChangeError::NotLeader { leader: None } => ClusterError::NoLeader,
        ChangeError::NotLeader { leader } => {
            ClusterError::NotLeader { leader: leader.map(|(_, address)| format!("at {address}")) }
        }
        ChangeError::InProgress => ClusterError::ChangeInProgress,
        ChangeError::NotAMember(node) => ClusterError::NoSuchMember(node.to_string()),
        ChangeError::AlreadyMember(node) | ChangeError::AlreadyVotes(node) => {
            ClusterError::AlreadyMember(name_of(node))
        }
        ChangeError::NotVoter(node) => ClusterError::NotVoter(name_of(node)),
        ChangeError::Leads(node) => {
            ClusterError::Refused { reason: format!("{} leads: transfer its leadership first", name_of(node)) }
        }
        ChangeError::Lags { entries, .. } => ClusterError::LearnerBehind { entries },
        ChangeError::Silent(node) => ClusterError::MemberSilent(name_of(node)),
        ChangeError::NoMajority { alive, voters } => ClusterError::QuorumAtRisk { alive, voters },
        ChangeError::LastVoter(_) => ClusterError::LastVoter,
        ChangeError::NoSuccessor => ClusterError::NoSuccessor,
        ChangeError::OutcomeUnknown { .. } => ClusterError::OutcomeUnknown,
        ChangeError::Stopped(reason) => ClusterError::Failed { reason },
        other @ (ChangeError::Removed(_) | ChangeError::Refused(_) | ChangeError::Membership(_)) => {
            ClusterError::Refused { reason: other.to_string() }
        }
    }
}

impl Tasks {
    async fn answer(&self, call: Call) {
        // An error of sending the answer means that the caller no longer waits.
        match call {
            Call::Read(level, within, reply) => drop(reply.send(self.read(level, within).await)),
            Call::Change(change, within, reply) => drop(reply.send(self.change(change, within).await)),
            Call::Digest(index, within, reply) => drop(reply.send(Ok(self.compare_digests(index, within).await))),
            Call::Versions(within, reply) => drop(reply.send(self.known_versions(within).await)),
            Call::HandOver(within, reply) => drop(reply.send(self.hand_over(within).await)),
        }
    }

    fn revision(&self) -> Revision {
        self.consensus.member().machine().applied().revision
    }

    /// Returns an error if this node has stopped serving clients.
    fn check_serving(&self) -> Result<(), ClusterError> {
        self.db.stopped_serving().map_or(Ok(()), |reason| Err(ClusterError::StoppedServing { reason }))
    }

    async fn read(&self, level: ReadLevel, within: Duration) -> Result<Revision, ClusterError> {
        self.check_serving()?;
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

    /// Changes the membership: on this node if it leads, otherwise through a request to the leader.
    async fn change(&self, change: Change, within: Duration) -> Result<NodeId, ClusterError> {
        let Change { kind, node, info } = change;
        let removes = matches!(kind, ManageKind::Remove | ManageKind::ForceRemove);
        // The other nodes no longer answer a removed node. A removal that this node has applied is final, so it needs
        // no answer.
        let was_removed = node == self.here() && self.was_removed.get();
        if removes && (was_removed || self.consensus.is_removed(node).unwrap_or(false)) {
            return Err(ClusterError::AlreadyRemoved(node.to_string()));
        }
        let changed = match self.consensus.member().leadership() {
            Leadership::Leader { .. } => self.requests.change_members(kind, node, info, within).await,
            Leadership::Follower { leader: Some((leader, at)), .. } => {
                let link = self.network.peer(leader, &at.address).control;
                manage(&link, kind, node, &info, within).await
            }
            Leadership::Follower { leader: None, .. } => Err(ChangeError::NotLeader { leader: None }),
        };
        self.refresh();
        changed.map_err(|error| match error {
            ChangeError::Removed(node) if removes => ClusterError::AlreadyRemoved(node.to_string()),
            error => change_error(error, |node| self.name_of(node)),
        })
    }

    /// Returns the name of a member, or its address if it has no name. For a node that is not a member, returns its id.
    pub(crate) fn name_of(&self, node: NodeId) -> String {
        match self.consensus.status().members.get(&node) {
            Some(member) if member.info.name.is_empty() => format!("the node at {}", member.info.address),
            Some(member) => member.info.name.clone(),
            None => format!("the node with id {node}"),
        }
    }

    /// Collects the digests of all members' states, each computed after the log entry `index`. This entry is a request
    /// for a digest. A member that has no digest within the time `within` gets an error in the result.
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

    /// Asks all members which versions of the state machine they support. Performs a read barrier first, so that the
    /// list of members is at least as new as the call.
    async fn known_versions(&self, within: Duration) -> Result<Vec<MemberVersion>, ClusterError> {
        let deadline = tokio::time::Instant::now() + within;
        self.read(ReadLevel::Linearizable, within).await?;
        let here = self.here();
        let asked = self.consensus.status().members.into_iter().map(|(node, member)| async move {
            if node == here {
                return MemberVersion { node, known: Ok(self.db.known_version()) };
            }
            let link = self.network.peer(node, &member.info.address).control;
            let deadline = deadline.min(tokio::time::Instant::now() + ASK_LIMIT);
            let known = match link.call::<_, Owned, Versions>(&AskVersions {}, deadline).await {
                Ok(versions) => Ok(versions.known),
                // Earlier builds do not know this request, and support only the first version.
                Err(CallError::Failed { code, .. }) if code == "unknown_kind" => Ok(FIRST_VERSION),
                Err(error) => Err(error.to_string()),
            };
            MemberVersion { node, known }
        });
        Ok(futures_util::future::join_all(asked).await)
    }

    async fn hand_over(&self, within: Duration) -> Result<(), ClusterError> {
        if !self.consensus.member().leads() {
            return Ok(());
        }
        let transferred = tokio::time::timeout(within, self.consensus.transfer(None)).await;
        match transferred {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(change_error(error, |node| self.name_of(node))),
            Err(_) => Err(ClusterError::TransferTimeout),
        }
    }
}
