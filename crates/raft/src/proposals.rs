//! The task that takes batches of client commands from this node's queue, and proposes them as entries or forwards them
//! to the leader.
//!
//! Owns: the batches in flight, and the answers to their proposers. Does not own: the queue (`replica`).
//!
//! Several entries are in flight at a time, up to [`ConsensusOptions::max_in_flight_bytes`]. At this limit, further
//! batches stay in the queue, which has its own bound. A proposer is answered at its own deadline at the latest; the
//! other proposers of its batch keep waiting. The bytes of a batch count towards the limit until consensus has decided
//! about it.
//!
//! While the background work of the leader's state is behind, the leader takes commands only after pauses
//! ([`Member::pause_left`]), so that applying them does not hold up the consensus thread.
//!
//! Before it proposes an entry, this node checks the entry's commands and the free disk space, and stamps the entry
//! with space time (the members' common clock). The entry is written only in the term of these checks. If openraft has
//! reached another term, it refuses the entry unwritten. Commands that require the former term end with `not_leader` or
//! `no_leader`; the others may go to another leader.
//!
//! openraft takes a proposal only while a majority has acknowledged the leader within a lease. The votes of an election
//! do not count as acknowledgements. So a new leader leaves batches in the queue, and lets forwarded commands wait,
//! until a majority has acknowledged it. It also waits until its space time has caught up with the wall clocks
//! (`weighing`).
//!
//! | result of openraft | answer to the proposers |
//! |---|---|
//! | applied | the outcomes |
//! | forward to leader | nothing was written: the batch goes to the leader, or `not_leader`, `no_leader` |
//! | entry discarded | `outcome_unknown`: another leader may still commit it |
//! | nothing until the deadline, or stopped | `outcome_unknown` |
//! | nothing for [`LAST_ANSWER`] after another node has become the leader | `outcome_unknown` |
//!
//! A node that does not lead refuses a batch unwritten. The batch then goes to the leader that this node knows, or that
//! the refusing node names. This happens at most [`MAX_FORWARDS`] times, and not if later batches have overtaken the
//! batch (`target`).
//!
//! [`Member::pause_left`]: thalweg_replica::Member::pause_left
//! [`ConsensusOptions::max_in_flight_bytes`]: crate::ConsensusOptions::max_in_flight_bytes

use std::{
    future::{Future, pending},
    pin::pin,
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::{Either, select};
use openraft::{
    async_runtime::{AsyncRuntime, OneshotSender, WatchReceiver},
    errors::{ClientWriteError, ForwardToLeader},
    impls::ProgressResponder,
    raft::ClientWriteResult,
    type_config::{
        TypeConfigExt,
        alias::{InstantOf, OneshotReceiverOf},
    },
    vote::leader_id_std::CommittedLeaderId,
};
use thalweg_log::Purpose;
use thalweg_replica::{Batch, Leadership, NodeInfo, ProposeError};
use thalweg_types::{Index, NodeId, Term};

use crate::{
    applied::deadline,
    consensus::Consensus,
    store::max_payload_bytes,
    target::Run,
    types::{Commands, Response, Types, detach},
};

/// Longest time for which a proposer waits for the answer of a leader after another node has become the leader. The
/// entry may be on a majority already. Then the former leader learns from its successor that the entry is committed.
const LAST_ANSWER: Duration = Duration::from_millis(500);
/// Maximum number of nodes to which a batch is forwarded, one after the other.
const MAX_FORWARDS: u32 = 3;

/// Longest time for which a leader that pauses sleeps before it checks again if the pause is over. [`MIN_PAUSE_STEP`]
/// is the shortest.
const MAX_PAUSE_STEP: Duration = Duration::from_millis(20);
const MIN_PAUSE_STEP: Duration = Duration::from_millis(1);

type Decided<Rt> = OneshotReceiverOf<Types<Rt>, ClientWriteResult<Types<Rt>>>;

/// Guard that counts the bytes of one proposal in the total of proposals in flight. Dropping it subtracts them.
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
    /// Takes batches of client commands from this node's queue and submits them until consensus ends.
    pub(crate) async fn run_proposals(self) {
        let mut pause = Duration::ZERO;
        while !self.0.is_stopped.get() {
            // The commands of an address that makes a pause are taken when the pause ends.
            let to_next = if pause.is_zero() { self.0.member.time_to_next() } else { Some(pause_step(pause)) };
            match to_next {
                Some(pause) if !pause.is_zero() => _ = Types::<Rt>::timeout(pause, self.0.bell.heard()).await,
                _ => self.0.bell.heard().await,
            }
            pause = Duration::ZERO;
            while self.has_room() {
                pause = self.0.member.pause_left();
                if !pause.is_zero() {
                    break;
                }
                self.begin_of_leadership().await;
                let Some(batch) = self.0.member.take_batch() else { break };
                self.submit(batch).await;
            }
        }
    }

    /// Proposes commands that another member has forwarded to this node. This node never forwards them again. Returns
    /// the index of their entry once it is committed.
    pub async fn propose_forwarded(
        &self,
        payload: Bytes,
        purpose: Purpose,
        within: Duration,
    ) -> Result<Index, ProposeError> {
        let member = &self.0.member;
        let gives_up = deadline::<Rt>(within);
        let leadership = member.leadership();
        let Some(term) = leadership.led_term() else { return Err(leadership.refusal()) };
        // The log would refuse a larger entry, and an error of the log ends consensus.
        let (bytes, max) = (payload.len() as u64, max_payload_bytes(member.log()));
        if bytes > max {
            return Err(ProposeError::TooLarge { bytes, max });
        }
        if !self.has_room() {
            return Err(ProposeError::Overloaded { queued_bytes: self.0.in_flight_bytes.get() as usize });
        }
        if purpose == Purpose::Data {
            member.check_room()?;
        }
        let in_flight = InFlight::new(self, payload.len());
        // Commands that wait for the beginning of the leadership are written in the order in which they arrived.
        let turn = self.0.forwarded.queue();
        let may_write = async {
            self.begin_of_leadership().await;
            turn.come().await;
            self.end_of_pause().await;
        };
        let is_acknowledged = Types::<Rt>::timeout_at(gives_up, may_write).await.is_ok();
        if !is_acknowledged && !member.pause_left().is_zero() {
            return Err(ProposeError::Overloaded { queued_bytes: self.0.in_flight_bytes.get() as usize });
        }
        let leadership = member.leadership();
        if !is_acknowledged || leadership.led_term() != Some(term) {
            return Err(leadership.refusal());
        }
        let written = self.write(payload, term).await;
        drop(turn);
        let decided = counted_until_decided(written?, in_flight);
        match self.answer_of(member.node(), gives_up, decided).await {
            Ok(Ok(result)) => {
                let written = result.map_err(|error| self.refusal_of(error))?;
                Ok(Index(written.log_id.index))
            }
            Ok(Err(_)) => Err(self.propose_stopped()),
            Err(unknown) => Err(unknown),
        }
    }

    /// If this node has just been elected, waits until a majority has acknowledged it and the members' common clock has
    /// caught up with the wall clocks.
    async fn begin_of_leadership(&self) {
        self.first_acknowledgement().await;
        self.caught_up().await;
    }

    /// Waits until a majority has acknowledged this node as the leader, if it has just been elected, or until it leads
    /// no more. A leader that no majority acknowledges stops to count as the leader after a while
    /// (`update_leadership`).
    async fn first_acknowledgement(&self) {
        let mut metrics = self.0.raft.data_metrics();
        while self.0.member.leads() && metrics.borrow_watched().last_quorum_acked.is_none() {
            // The leadership can end without a change of these metrics.
            if let Ok(Err(_)) = Types::<Rt>::timeout(self.0.options.heartbeat, metrics.changed()).await {
                return;
            }
        }
    }

    /// Waits while this node, as the leader, takes no commands because the background work of its state is behind.
    async fn end_of_pause(&self) {
        loop {
            let pause = self.0.member.pause_left();
            if pause.is_zero() {
                return;
            }
            Types::<Rt>::sleep(pause_step(pause)).await;
        }
    }

    fn has_room(&self) -> bool {
        self.0.in_flight_bytes.get() < self.0.options.max_in_flight_bytes
    }

    async fn submit(&self, batch: Batch) {
        if batch.term().is_some() {
            let run = self.new_run(self.0.member.node());
            return self.propose(batch, run).await;
        }
        match self.0.member.leadership() {
            Leadership::Follower { leader: Some(leader), .. } => {
                let run = self.new_run(leader.0);
                self.forward(leader, batch, (run, 1));
            }
            _ => batch.fail(&ProposeError::NoLeader),
        }
    }

    /// Notes that a new batch is sent to `node`. Returns the number of its run (consecutive batches to one node).
    fn new_run(&self, node: NodeId) -> Run {
        let (run, target) = self.0.target.get().send(node);
        self.0.target.set(target);
        run
    }

    /// Hands an entry to openraft. Entries are written in the order of the calls. openraft refuses an entry unless this
    /// node leads in `term`.
    async fn write(&self, bytes: Bytes, term: Term) -> Result<Decided<Rt>, ProposeError> {
        let commands = Commands { time: self.0.member.clock().stamp(), bytes };
        let (responder, decided) = ProgressResponder::complete_only();
        let write = self.0.raft.write(commands).responder(responder).with_leader(CommittedLeaderId::new(term.0));
        write.await.map_err(|_| self.propose_stopped())?;
        Ok(decided)
    }

    /// Proposes a batch on this node, in the term in which its commands were checked. `run` identifies the sequence of
    /// consecutive batches to one node that includes this batch.
    async fn propose(&self, batch: Batch, run: Run) {
        let Some(term) = batch.term() else { return batch.fail(&ProposeError::NoLeader) };
        let in_flight = InFlight::new(self, batch.payload().len());
        match self.write(batch.payload().clone(), term).await {
            Ok(decided) => self.answer(batch, decided, in_flight, run),
            Err(error) => batch.fail(&error),
        }
    }

    /// Starts a task that answers a batch once openraft has decided about it. The task answers proposers whose
    /// deadlines pass earlier.
    fn answer(&self, mut batch: Batch, mut decided: Decided<Rt>, in_flight: InFlight<Rt>, run: Run) {
        let (consensus, here) = (self.clone(), self.0.member.node());
        let gives_up = deadline::<Rt>(self.0.member.time_left(&batch));
        detach::<Rt>(async move {
            let answered = consensus.answer_of(here, gives_up, &mut decided);
            match consensus.expiring(&mut batch, answered).await {
                Ok(Ok(Ok(written))) => {
                    consensus.0.names.note(Index(written.log_id.index), || batch.requests());
                    let Response { outcomes, steps, times } = written.data;
                    consensus.0.member.complete(batch, outcomes, steps, times);
                }
                Ok(Ok(Err(error))) => {
                    // By now, later batches may have been sent to the new leader.
                    let refusal = consensus.refusal_of(error);
                    consensus.submit_again(here, batch, (run, 0), &refusal).await;
                }
                Ok(Err(_)) => batch.fail(&consensus.propose_stopped()),
                Err(unknown) => {
                    batch.fail(&unknown);
                    await_decision(decided, in_flight).await;
                }
            }
        });
    }

    /// Waits for an answer to a batch, which arrives at the last deadline of its proposers at the latest. Answers the
    /// proposers whose deadlines pass in the meantime.
    async fn expiring<T>(&self, batch: &mut Batch, answer: impl Future<Output = T>) -> T {
        let mut answer = pin!(answer);
        while let Some(left) = self.0.member.time_to_expiry(batch) {
            if let Ok(answer) = Types::<Rt>::timeout_at(deadline::<Rt>(left), answer.as_mut()).await {
                return answer;
            }
            self.0.member.expire(batch, &out_of_time());
        }
        answer.await
    }

    /// Waits for the answer of a leader until the deadline `gives_up`. If another node becomes the leader meanwhile,
    /// waits only [`LAST_ANSWER`] longer.
    async fn answer_of<T>(
        &self,
        leader: NodeId,
        gives_up: InstantOf<Types<Rt>>,
        answer: impl Future<Output = T>,
    ) -> Result<T, ProposeError> {
        let term = Term(self.0.raft.server_metrics().borrow_watched().vote.leader_id.term);
        let (mut answer, replaced) = (pin!(answer), pin!(self.replaced(leader, term)));
        let first = Types::<Rt>::timeout_at(gives_up, select(answer.as_mut(), replaced)).await;
        let first = first.map(|first| match first {
            Either::Left((answer, _)) => Some(answer),
            Either::Right(_) => None,
        });
        match first {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => {
                let until = gives_up.min(deadline::<Rt>(LAST_ANSWER));
                Types::<Rt>::timeout_at(until, answer).await.map_err(|_| leader_replaced())
            }
            Err(_) => Err(out_of_time()),
        }
    }

    /// Waits until this node learns that a node other than `leader` leads in a term later than `term`.
    pub(crate) async fn replaced(&self, leader: NodeId, term: Term) {
        let mut metrics = self.0.raft.server_metrics();
        loop {
            let is_replaced = {
                let seen = metrics.borrow_watched();
                let is_other = seen.current_leader.is_some_and(|now| now != leader.0);
                is_other && seen.vote.leader_id.term > term.0
            };
            if is_replaced {
                return;
            }
            if metrics.changed().await.is_err() {
                // Consensus has ended. The caller's wait ends by an answer or at its deadline.
                pending::<()>().await;
            }
        }
    }

    /// Forwards a batch that node `tried` has refused unwritten to the next leader. Fails the batch instead if no other
    /// leader is known, if the batch would arrive after a later one, or after [`MAX_FORWARDS`] forwards. `forwards`
    /// counts the nodes to which the batch was forwarded since this node refused it itself.
    async fn submit_again(&self, tried: NodeId, batch: Batch, (run, forwards): (Run, u32), refusal: &ProposeError) {
        let named = match refusal {
            ProposeError::NotLeader { leader } => leader.clone(),
            ProposeError::NoLeader => None,
            _ => return batch.fail(refusal),
        };
        let here = self.0.member.node();
        let known = match self.0.member.leadership() {
            // A wait until space time has caught up could change the order of batches. So a batch that would have to
            // wait is refused.
            Leadership::Leader { term } => self.may_stamp(term).then(|| (here, NodeInfo::default())),
            Leadership::Follower { leader, .. } => leader,
        };
        let named = named.filter(|(node, _)| *node != here).map(|(node, address)| (node, NodeInfo::at(address)));
        let is_other = |(node, _): &(NodeId, NodeInfo)| *node != tried;
        let next = known.filter(is_other).or_else(|| named.filter(is_other)).filter(|_| forwards < MAX_FORWARDS);
        let sent = next.and_then(|next| Some((self.0.target.get().send_again(run, next.0)?, next)));
        let Some(((run, target), next)) = sent else { return batch.fail(refusal) };
        self.0.target.set(target);
        if next.0 == here {
            if let Some(batch) = self.0.member.readmit(batch) {
                self.propose(batch, run).await;
            }
        } else if let Some(batch) = batch.for_any_leader(refusal) {
            self.forward(next, batch, (run, forwards + 1));
        }
    }

    /// Forwards a batch to the leader, or fails it if this node has no forwarder. `run` identifies the sequence of
    /// consecutive batches to one node that includes this batch. `forwards` is the number of forwards of the batch,
    /// including this one.
    fn forward(&self, leader: (NodeId, NodeInfo), mut batch: Batch, (run, forwards): (Run, u32)) {
        let Some(forwarder) = &self.0.forwarder else {
            return batch.fail(&ProposeError::NotLeader { leader: Some((leader.0, leader.1.address)) });
        };
        let in_flight = InFlight::new(self, batch.payload().len());
        let gives_up = deadline::<Rt>(self.0.member.time_left(&batch));
        let within = self.0.member.time_left(&batch);
        let tried = leader.0;
        let forwarded = forwarder.propose(leader, batch.payload().clone(), batch.purpose(), batch.requests(), within);
        // This node may apply the entry before the leader's answer arrives.
        let outcomes = self.0.applied.keep_outcomes(batch.payload().clone());
        let consensus = self.clone();
        detach::<Rt>(async move {
            let answered = async {
                let answer = consensus.answer_of(tried, gives_up, forwarded).await;
                // Answering after this node has applied the entry also lets the proposer read its own write on this
                // node.
                let is_applied = match &answer {
                    Ok(Ok(index)) => consensus.0.applied.reached(*index, gives_up).await,
                    _ => false,
                };
                (answer, is_applied)
            };
            match consensus.expiring(&mut batch, answered).await {
                (Ok(Ok(index)), true) => match outcomes.take(index) {
                    Some(Response { outcomes, steps, .. }) => batch.complete(outcomes, Some(steps)),
                    None => batch.fail(&outcomes_missing()),
                },
                (Ok(Ok(_)), false) => batch.fail(&not_applied_in_time()),
                (Ok(Err(refusal)), _) => {
                    drop(outcomes);
                    consensus.submit_again(tried, batch, (run, forwards), &refusal).await;
                }
                (Err(unknown), _) => batch.fail(&unknown),
            }
            drop(in_flight);
        });
    }

    fn refusal_of(&self, error: ClientWriteError<Types<Rt>>) -> ProposeError {
        match error {
            // The named leader may be this node itself, which leads again in a later term.
            ClientWriteError::ForwardToLeader(forward) => match leader_in(&forward) {
                Some((node, info)) if node != self.0.member.node() => {
                    ProposeError::NotLeader { leader: Some((node, info.address)) }
                }
                _ => ProposeError::NoLeader,
            },
            other => ProposeError::OutcomeUnknown { reason: other.to_string() },
        }
    }
}

fn pause_step(pause: Duration) -> Duration {
    pause.clamp(MIN_PAUSE_STEP, MAX_PAUSE_STEP)
}

/// Passes on openraft's decision about an entry, and counts the entry's bytes as in flight until then. They also count
/// if the caller no longer waits, for example because a client's connection has ended: the entry is still in this
/// node's memory.
fn counted_until_decided<Rt: AsyncRuntime>(decided: Decided<Rt>, in_flight: InFlight<Rt>) -> Decided<Rt> {
    let (sender, receiver) = Types::<Rt>::oneshot();
    detach::<Rt>(async move {
        let decision = decided.await;
        drop(in_flight);
        if let Ok(decision) = decision {
            // The receiver may have given up.
            let _ = sender.send(decision);
        }
    });
    receiver
}

/// Waits until openraft has decided about an entry whose proposers have all given up.
async fn await_decision<Rt: AsyncRuntime>(decided: Decided<Rt>, in_flight: InFlight<Rt>) {
    // The decision has no recipient. The wait only keeps the entry's bytes counted.
    let _ = decided.await;
    drop(in_flight);
}

fn not_applied_in_time() -> ProposeError {
    let reason = "the command is committed, but this node has not applied it in time".to_owned();
    ProposeError::OutcomeUnknown { reason }
}

/// Returns the error for a forwarded command whose outcomes this node has not kept: it received the entry in a
/// snapshot, or applied it long before the leader's answer.
fn outcomes_missing() -> ProposeError {
    let reason = "the command is committed, but this node did not see its result".to_owned();
    ProposeError::OutcomeUnknown { reason }
}

fn out_of_time() -> ProposeError {
    ProposeError::OutcomeUnknown { reason: "no majority had the command in time".to_owned() }
}

fn leader_replaced() -> ProposeError {
    let reason = "another node has become the leader before a majority had the command".to_owned();
    ProposeError::OutcomeUnknown { reason }
}

pub(crate) fn leader_in<Rt: AsyncRuntime>(forward: &ForwardToLeader<Types<Rt>>) -> Option<(NodeId, NodeInfo)> {
    Some((NodeId(forward.leader_id?), forward.leader_node.clone().unwrap_or_default()))
}
