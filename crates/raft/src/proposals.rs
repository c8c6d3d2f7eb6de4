//! The task that turns the member's batches into entries, or forwards them.
//!
//! Owns: which batches are in flight, and what their proposers are told. Does not own: the queue (`replica`).
//!
//! Several entries are in flight at a time, up to [`ConsensusOptions::max_in_flight_bytes`]. Beyond it, batches stay in the
//! queue, which grows up to its own bound. A batch is answered at its deadline at the latest; its bytes count until
//! consensus has decided.
//!
//! | openraft says | proposers are told |
//! |---|---|
//! | applied | the outcomes |
//! | forward to leader | nothing was written: the batch is forwarded, or `not_leader`, `no_leader` |
//! | entry discarded | `outcome_unknown`: another leader may still commit it |
//! | nothing until the deadline, or stopped | `outcome_unknown` |
//!
//! A batch that was forwarded to a leader which another node has replaced is answered with `outcome_unknown` before its
//! deadline, [`REPLACED_LEASES`] leases after this node knows the new leader. In this time the former leader usually learns
//! from the new one what became of the entry, and says so. The batch is not forwarded to the new leader: its entry may be in
//! the log of a node that the new leader is replaced by, and batches behind it may have overtaken it.
//!
//! [`ConsensusOptions::max_in_flight_bytes`]: crate::ConsensusOptions::max_in_flight_bytes

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use futures_util::future::{Either, pending, select};
use openraft::{
    async_runtime::{AsyncRuntime, WatchReceiver},
    errors::{ClientWriteError, ForwardToLeader},
    impls::ProgressResponder,
    raft::ClientWriteResult,
    type_config::{TypeConfigExt, alias::OneshotReceiverOf},
};
use thalweg_log::Purpose;
use thalweg_replica::{Batch, Leadership, NodeInfo, ProposeError};
use thalweg_types::{Index, NodeId, Term};

use crate::{
    applied::deadline,
    consensus::Consensus,
    types::{Commands, Response, Types, detach},
};

type Decided<Rt> = OneshotReceiverOf<Types<Rt>, ClientWriteResult<Types<Rt>>>;

/// Leases for which a former leader may still say what became of a forwarded batch, once this node knows the new leader.
const REPLACED_LEASES: u32 = 2;

/// Bytes of a proposal in flight, which are given back when it is dropped.
struct InFlight<Rt: AsyncRuntime>(Consensus<Rt>, u64);

impl<Rt: AsyncRuntime> InFlight<Rt> {
    fn new(consensus: &Consensus<Rt>, bytes: usize) -> Self {
        let in_flight = &consensus.0.in_flight_bytes;
        in_flight.set(in_flight.get() + bytes as u64);
        Self(consensus.clone(), bytes as u64)
    }
}

impl<Rt: AsyncRuntime> Drop for InFlight<Rt> {
    fn drop(&mut self) {
        let in_flight = &self.0.0.in_flight_bytes;
        in_flight.set(in_flight.get() - self.1);
        self.0.0.bell.ring();
    }
}

impl<Rt: AsyncRuntime> Consensus<Rt> {
    /// Takes batches as long as consensus runs.
    pub(crate) async fn run_proposals(self) {
        while !self.0.is_stopped.get() {
            self.0.bell.heard().await;
            while self.has_room() {
                let leadership = self.0.member.leadership();
                let Some(batch) = self.0.member.take_batch() else { break };
                self.submit(leadership, batch).await;
            }
        }
    }

    /// Commands that another member has forwarded to this node. They are never forwarded again. Returns the index of their
    /// entry once it is committed.
    pub async fn propose_forwarded(
        &self,
        payload: Bytes,
        purpose: Purpose,
        within: Duration,
    ) -> Result<Index, ProposeError> {
        let member = &self.0.member;
        if !member.leads() {
            return Err(member.leadership().refusal());
        }
        if !self.has_room() {
            return Err(ProposeError::Overloaded { queued_bytes: self.0.in_flight_bytes.get() as usize });
        }
        if purpose == Purpose::Data {
            member.check_room()?;
        }
        let in_flight = InFlight::new(self, payload.len());
        let mut decided = self.write(payload).await?;
        match Types::<Rt>::timeout_at(deadline::<Rt>(within), &mut decided).await {
            Ok(Ok(result)) => {
                let written = result.map_err(|error| self.refusal_of(error))?;
                Ok(Index(written.log_id.index))
            }
            Ok(Err(_)) => Err(self.propose_stopped()),
            Err(_) => {
                detach::<Rt>(await_decision(decided, in_flight));
                Err(out_of_time())
            }
        }
    }

    fn has_room(&self) -> bool {
        self.0.in_flight_bytes.get() < self.0.options.max_in_flight_bytes
    }

    async fn submit(&self, leadership: Leadership, batch: Batch) {
        match leadership {
            Leadership::Leader { .. } => self.propose(batch).await,
            Leadership::Follower { leader: Some(leader), .. } => self.forward(leader, batch),
            Leadership::Follower { leader: None, .. } => batch.fail(&ProposeError::NoLeader),
        }
    }

    /// Hands an entry to openraft, in the order of the calls.
    async fn write(&self, bytes: Bytes) -> Result<Decided<Rt>, ProposeError> {
        let commands = Commands { time: self.0.member.clock().stamp(), bytes };
        let (responder, decided) = ProgressResponder::complete_only();
        let sent = self.0.raft.client_write_ff(commands, Some(responder)).await;
        sent.map_err(|_| self.propose_stopped())?;
        Ok(decided)
    }

    async fn propose(&self, batch: Batch) {
        let in_flight = InFlight::new(self, batch.payload().len());
        match self.write(batch.payload().clone()).await {
            Ok(decided) => {
                detach::<Rt>(self.clone().answer(batch, decided, in_flight));
            }
            Err(error) => batch.fail(&error),
        }
    }

    /// Answers a batch once openraft has decided, or at its deadline.
    async fn answer(self, batch: Batch, mut decided: Decided<Rt>, in_flight: InFlight<Rt>) {
        let gives_up = deadline::<Rt>(self.0.member.time_left(&batch));
        match Types::<Rt>::timeout_at(gives_up, &mut decided).await {
            Ok(Ok(Ok(written))) => {
                let Response { outcomes, steps } = written.data;
                batch.complete(outcomes, Some(steps));
            }
            Ok(Ok(Err(error))) => match (leader_of(&error), &self.0.forwarder) {
                (Some(leader), Some(_)) if leader.0 != self.0.member.node() => self.forward(leader, batch),
                _ => batch.fail(&self.refusal_of(error)),
            },
            Ok(Err(_)) => batch.fail(&self.propose_stopped()),
            Err(_) => {
                batch.fail(&out_of_time());
                await_decision(decided, in_flight).await;
            }
        }
    }

    /// Passes a batch to the leader, if this node can.
    fn forward(&self, leader: (NodeId, NodeInfo), batch: Batch) {
        let Some(forwarder) = &self.0.forwarder else {
            return batch.fail(&ProposeError::NotLeader { leader: Some((leader.0, leader.1.address)) });
        };
        let in_flight = InFlight::new(self, batch.payload().len());
        let gives_up = deadline::<Rt>(self.0.member.time_left(&batch));
        let within = self.0.member.time_left(&batch);
        let (node, term) = (leader.0, self.0.member.leadership().term());
        let forwarded = forwarder.propose(leader, batch.payload().clone(), batch.purpose(), batch.requests(), within);
        // The entry can be applied here before the leader's answer arrives.
        let outcomes = self.0.applied.keep_outcomes();
        let consensus = self.clone();
        detach::<Rt>(async move {
            let _in_flight = in_flight;
            let answered = async {
                let replaced = pin!(consensus.replaced_for_long(node, term));
                match select(forwarded, replaced).await {
                    Either::Left((answer, _)) => answer,
                    Either::Right(((), _)) => Err(leader_replaced()),
                }
            };
            match Types::<Rt>::timeout_at(gives_up, answered).await {
                // Answering after the entry is applied also lets the proposer read its own write on this node.
                Ok(Ok(index)) if consensus.0.applied.reached(index, gives_up).await => match outcomes.take(index) {
                    Some(Response { outcomes, steps }) => batch.complete(outcomes, Some(steps)),
                    None => batch.fail(&outcomes_missing()),
                },
                Ok(Ok(_)) => batch.fail(&not_applied_in_time()),
                Ok(Err(error)) => batch.fail(&error),
                Err(_) => batch.fail(&out_of_time()),
            }
        });
    }

    /// Waits until this node has known for [`REPLACED_LEASES`] leases that another node than `leader` leads in a later term.
    async fn replaced_for_long(&self, leader: NodeId, term: Term) {
        let mut metrics = self.0.raft.server_metrics();
        loop {
            let is_replaced = {
                let seen = metrics.borrow_watched();
                let is_other = seen.current_leader.is_some_and(|now| now != leader.0);
                is_other && Term(seen.vote.leader_id.term) > term
            };
            if is_replaced {
                return Types::<Rt>::sleep(REPLACED_LEASES * self.0.options.lease()).await;
            }
            if metrics.changed().await.is_err() {
                // Consensus has ended, and the deadline decides.
                return pending().await;
            }
        }
    }

    fn refusal_of(&self, error: ClientWriteError<Types<Rt>>) -> ProposeError {
        match error {
            ClientWriteError::ForwardToLeader(forward) => match leader_in(&forward) {
                Some((node, info)) => ProposeError::NotLeader { leader: Some((node, info.address)) },
                None => ProposeError::NoLeader,
            },
            other => ProposeError::OutcomeUnknown { reason: other.to_string() },
        }
    }
}

/// Waits until openraft has decided about an entry whose proposers have given up.
async fn await_decision<Rt: AsyncRuntime>(decided: Decided<Rt>, in_flight: InFlight<Rt>) {
    // The decision has no recipient; only the bytes count.
    let _ = decided.await;
    drop(in_flight);
}

fn not_applied_in_time() -> ProposeError {
    let reason = "the command is committed, but this node has not applied it in time".to_owned();
    ProposeError::OutcomeUnknown { reason }
}

/// Error of a forwarded command whose entry reached this node in a snapshot, or long before the leader's answer.
fn outcomes_missing() -> ProposeError {
    let reason = "the command is committed, but this node did not see its result".to_owned();
    ProposeError::OutcomeUnknown { reason }
}

fn leader_replaced() -> ProposeError {
    let reason = "another node leads now, and the former leader did not say if the command is committed".to_owned();
    ProposeError::OutcomeUnknown { reason }
}

fn out_of_time() -> ProposeError {
    ProposeError::OutcomeUnknown { reason: "no majority had the command in time".to_owned() }
}

/// Returns the leader that an error names, if the proposal was not written.
fn leader_of<Rt: AsyncRuntime>(error: &ClientWriteError<Types<Rt>>) -> Option<(NodeId, NodeInfo)> {
    match error {
        ClientWriteError::ForwardToLeader(forward) => leader_in(forward),
        _ => None,
    }
}

pub(crate) fn leader_in<Rt: AsyncRuntime>(forward: &ForwardToLeader<Types<Rt>>) -> Option<(NodeId, NodeInfo)> {
    Some((NodeId(forward.leader_id?), forward.leader_node.clone().unwrap_or_default()))
}
