//! Requests that this node's consensus forwards to the leader over the links.
//!
//! Owns: the errors that clients of a follower get. Does not own: the decision to forward a request (`raft`).

use std::{fmt, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, future::LocalBoxFuture};
use thalweg_log::Purpose;
use thalweg_raft::{BarrierError, ChangeError, Forwarder};
use thalweg_replica::{NodeInfo, ProposeError};
use thalweg_types::{Index, NodeId};
use thalweg_wire::{
    RemainingBytes,
    peer::{Barrier, Manage, ManageKind, Managed, Propose, Proposed, ReadBarrier},
};
use tokio::time::Instant;

use crate::{
    handshake::REMOVED,
    link::{CallError, Link, Owned},
    network::Network,
};

/// Extra time for which this node waits, compared with the leader, because of the network. The leader reaches its own
/// time limit first, so it can still report the outcome.
const ON_THE_WAY: Duration = Duration::from_millis(200);

/// Forwards requests of this node's clients to the leader over the links between nodes.
#[derive(Clone)]
pub(crate) struct LinkForwarder(pub Network);

impl fmt::Debug for LinkForwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkForwarder")
    }
}

pub(crate) fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

fn propose_error(error: CallError) -> ProposeError {
    match error {
        CallError::Unreachable { .. } | CallError::OwnAddress => ProposeError::NoLeader,
        CallError::Failed { code, leader, text, .. } => match code.as_str() {
            "not_leader" => ProposeError::NotLeader { leader },
            "no_leader" => ProposeError::NoLeader,
            "overloaded" => ProposeError::Overloaded { queued_bytes: 0 },
            "disk_full" => {
                let reason = text.strip_prefix("disk full: ").unwrap_or(&text);
                ProposeError::NoRoom { reason: format!("the leader of the cluster says: {reason}") }
            }
            "too_large" | REMOVED => ProposeError::LeaderRefused { reason: text },
            _ => ProposeError::OutcomeUnknown { reason: text },
        },
        CallError::Lost { reason, .. } => {
            ProposeError::OutcomeUnknown { reason: format!("the connection to the leader failed: {reason}") }
        }
        CallError::Encode(error) => ProposeError::OutcomeUnknown { reason: error.to_string() },
    }
}

fn barrier_error(error: CallError) -> BarrierError {
    match error {
        CallError::Failed { code, leader, .. } => match code.as_str() {
            "not_leader" => BarrierError::NotLeader { leader },
            "no_quorum" => BarrierError::NoQuorum,
            _ => BarrierError::NoLeader,
        },
        _ => BarrierError::NoLeader,
    }
}

impl Forwarder for LinkForwarder {
    fn propose(
        &self,
        (node, info): (NodeId, NodeInfo),
        payload: Bytes,
        purpose: Purpose,
        requests: String,
        within: Duration,
    ) -> LocalBoxFuture<'static, Result<Index, ProposeError>> {
        let network = self.0.clone();
        let link = network.peer(node, &info.address).proposals;
        // The turn is that of this call, not that of the future's first poll.
        let turn = link.queue();
        async move {
            let frame = Propose {
                timeout_millis: millis(within),
                reclaims: purpose == Purpose::Reclaim,
                request: &requests,
                payload: RemainingBytes(&payload),
            };
            let deadline = Instant::now() + within + ON_THE_WAY;
            let proposed = link.call_in_turn::<_, Owned, Proposed>(Some(turn), &frame, deadline).await;
            let proposed = proposed.inspect_err(|error| {
                if matches!(error, CallError::Failed { code, .. } if code == REMOVED) {
                    network.removal().set();
                }
            });
            Ok(proposed.map_err(propose_error)?.index)
        }
        .boxed_local()
    }

    fn read_index(
        &self,
        (node, info): (NodeId, NodeInfo),
        within: Duration,
    ) -> LocalBoxFuture<'static, Result<Index, BarrierError>> {
        let link = self.0.peer(node, &info.address).control;
        async move {
            let frame = ReadBarrier { timeout_millis: millis(within) };
            let deadline = Instant::now() + within + ON_THE_WAY;
            let barrier: Barrier = link.call::<_, Owned, _>(&frame, deadline).await.map_err(barrier_error)?;
            Ok(barrier.index)
        }
        .boxed_local()
    }
}

/// Sends a membership change to the node that probably leads.
pub(crate) async fn manage(
    link: &Link,
    kind: ManageKind,
    node: NodeId,
    info: &NodeInfo,
    within: Duration,
) -> Result<NodeId, ChangeError> {
    send_manage(link, kind, node, info, within).await.map_err(|error| change_error(error, node))
}

/// Sends a membership change to another node. Returns the error of the call to that node unchanged.
pub(crate) async fn send_manage(
    link: &Link,
    kind: ManageKind,
    node: NodeId,
    info: &NodeInfo,
    within: Duration,
) -> Result<NodeId, CallError> {
    let frame = Manage { kind, node, name: &info.name, address: &info.address, timeout_millis: millis(within) };
    let managed = link.call::<_, Owned, Managed>(&frame, Instant::now() + within + ON_THE_WAY).await;
    managed.map(|managed| managed.node)
}

fn change_error(error: CallError, node: NodeId) -> ChangeError {
    match error {
        CallError::Unreachable { .. } | CallError::OwnAddress => ChangeError::NotLeader { leader: None },
        CallError::Failed { code, text, leader, .. } => match code.as_str() {
            "not_leader" => ChangeError::NotLeader { leader },
            "change_in_progress" => ChangeError::InProgress,
            "not_a_member" => ChangeError::NotAMember(node),
            "already_member" => ChangeError::AlreadyMember(node),
            "already_votes" => ChangeError::AlreadyVotes(node),
            "node_removed" => ChangeError::Removed(node),
            "last_voter" => ChangeError::LastVoter(node),
            "node_leads" => ChangeError::Leads(node),
            "not_voter" => ChangeError::NotVoter(node),
            "no_successor" => ChangeError::NoSuccessor,
            "learner_lags" => lag_in(&text, node).unwrap_or(ChangeError::Refused(text)),
            "member_silent" => ChangeError::Silent(node),
            "no_majority_left" => majority_in(&text).unwrap_or(ChangeError::Refused(text)),
            // The leader checks for these errors before it begins the change, so nothing has changed.
            "membership_invalid" | "malformed_frame" | REMOVED => ChangeError::Refused(text),
            _ => ChangeError::OutcomeUnknown { reason: text },
        },
        CallError::Encode(error) => ChangeError::Refused(error.to_string()),
        other => ChangeError::OutcomeUnknown { reason: other.to_string() },
    }
}

/// Returns the number that follows a word in a text.
fn number_after(text: &str, word: &str) -> Option<u64> {
    let digits = text.split_once(word)?.1.split(|char: char| !char.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// Returns the leader's [`ChangeError::Lags`], if `text` describes one. The frame contains its numbers only in this
/// text.
fn lag_in(text: &str, node: NodeId) -> Option<ChangeError> {
    let (entries, max) = (number_after(text, " lacks ")?, number_after(text, "more than ")?);
    Some(ChangeError::Lags { node, entries, max })
}

/// Returns the leader's [`ChangeError::NoMajority`], if `text` describes one, with the numbers from this text.
fn majority_in(text: &str) -> Option<ChangeError> {
    let number = |word| usize::try_from(number_after(text, word)?).ok();
    Some(ChangeError::NoMajority { alive: number("only ")?, voters: number(" of ")? })
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, future::ready, rc::Rc};

    use thalweg_replica::MembershipError;
    use thalweg_types::Classified;
    use thalweg_wire::peer::PeerFrame;
    use tokio::task::spawn_local;

    use super::*;
    use crate::{
        detector::DetectorOptions,
        frames::encoded,
        hearing::HearingRecord,
        link_counters::LinkCounters,
        testing::{SERVER, Server, credentials, run},
    };

    /// The leader and a follower that asks the leader return the same error, with the same next step, to a client.
    #[test]
    fn a_refused_change_of_the_members_keeps_its_error_on_the_way() {
        let node = NodeId(7);
        let sent = |error: &ChangeError| CallError::Failed {
            class: error.action(),
            code: error.code().to_owned(),
            text: error.to_string(),
            leader: None,
        };
        for error in [
            ChangeError::InProgress,
            ChangeError::NotAMember(node),
            ChangeError::AlreadyVotes(node),
            ChangeError::Removed(node),
            ChangeError::Lags { node, entries: 1_234, max: 1_000 },
            ChangeError::Silent(node),
            ChangeError::NoMajority { alive: 1, voters: 4 },
            ChangeError::LastVoter(node),
            ChangeError::Leads(node),
            ChangeError::NotVoter(node),
            ChangeError::NoSuccessor,
        ] {
            assert_eq!(change_error(sent(&error), node), error);
        }
        let invalid = ChangeError::Membership(MembershipError::NoVoters);
        let refused = change_error(sent(&invalid), node);
        assert_eq!(refused, ChangeError::Refused(invalid.to_string()), "nothing was changed");
        let unknown = ChangeError::OutcomeUnknown { reason: "no majority had the change in time".to_owned() };
        assert!(matches!(change_error(sent(&unknown), node), ChangeError::OutcomeUnknown { .. }));
    }

    const LARGE: usize = 2 * 1024 * 1024;
    const LONG: Duration = Duration::from_secs(60);

    /// Commands arrive in the order in which they were sent, although large ones are compressed on another thread and
    /// the first ones wait until the node is connected.
    #[test]
    fn small_commands_do_not_overtake_large_ones() {
        run(async {
            let received = Rc::new(RefCell::new(Vec::new()));
            let lengths = Rc::clone(&received);
            let server = Server::start(move |_, request| {
                lengths.borrow_mut().push(Propose::decode_body(&request.body).unwrap().payload.0.len());
                ready(encoded(&Proposed { index: Index(1) }, request.id).unwrap()).boxed_local()
            })
            .await;
            let hearing = HearingRecord::new(Duration::from_secs(1), DetectorOptions::DEFAULTS);
            let network = Network::new(credentials(NodeId(1), 5), hearing, LinkCounters::default());
            let (forwarder, leader) = (LinkForwarder(network), (SERVER, NodeInfo::at(server.address.to_string())));
            for round in 0..10 {
                received.borrow_mut().clear();
                let sent = [LARGE + round, 1, LARGE / 2 + round, 2];
                let waiting = sent.map(|bytes| {
                    let payload = vec![7; bytes].into();
                    let proposed = forwarder.propose(leader.clone(), payload, Purpose::Data, String::new(), LONG);
                    spawn_local(proposed)
                });
                for proposed in waiting {
                    proposed.await.unwrap().unwrap();
                }
                assert_eq!(*received.borrow(), sent, "round {round}");
            }
        });
    }
}
