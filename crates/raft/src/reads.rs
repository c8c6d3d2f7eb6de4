//! Reads with a guaranteed freshness.
//!
//! Owns: the condition under which a read may use this node's state. Does not own: the read itself.
//!
//! | level | waits for |
//! |---|---|
//! | linearizable | a round of heartbeats that a majority answers; all reads that arrived before the round share it |
//! | lease | nothing, if a majority has answered the leader within three quarters of the lease; else as `linearizable` |
//! | stale | nothing |
//!
//! On a follower, the leader performs the round, and the follower waits until it has applied the entry that the leader
//! names.
//!
//! The lease is measured by a clock that stands still while the machine is suspended. In that time the other nodes may
//! elect a leader. So after a suspension, a leader relies only on answers to requests that it has sent since the
//! suspension (`suspensions`). A sole voter needs no answer, because no other node is elected without its vote.
//!
//! A leader serves no more lease reads in a term in which it has begun to transfer its leadership, because a transfer
//! lets followers vote although they have promised not to. For one lease after a restart, a node does not vote
//! (`consensus`).

use std::{pin::pin, time::Duration};

use futures_util::future::{Either, select};
use openraft::{
    Instant,
    async_runtime::{AsyncRuntime, OneshotSender, WatchReceiver},
    errors::{LinearizableReadError, RaftError},
    raft::linearizable_read::LinearizerOption,
    type_config::TypeConfigExt,
};
use thalweg_replica::{Leadership, ProposeError};
use thalweg_types::{Index, Revision};

use crate::{
    applied::deadline,
    consensus::Consensus,
    error::BarrierError,
    proposals::leader_in,
    types::{Types, detach},
};

/// Maximum time that reads wait for one round of heartbeats.
const MAX_ROUND: Duration = Duration::from_secs(1);

impl<Rt: AsyncRuntime> Consensus<Rt> {
    /// Waits until this node's state contains everything that was committed before the call, at most `within`. Returns
    /// the index of the last entry that the state must contain.
    pub async fn read_linearizable(&self, within: Duration) -> Result<Index, BarrierError> {
        let gives_up = deadline::<Rt>(within);
        let index = match Types::<Rt>::timeout_at(gives_up, self.barrier()).await {
            Ok(index) => index?,
            Err(_) => return Err(BarrierError::NoQuorum),
        };
        if self.0.applied.reached(index, gives_up).await { Ok(index) } else { Err(BarrierError::Behind) }
    }

    /// Waits like [`read_linearizable`](Self::read_linearizable), but a leader with a lease asks no other node. Correct
    /// if the speeds of the nodes' monotonic clocks differ by less than a quarter.
    pub async fn read_lease(&self, within: Duration) -> Result<Index, BarrierError> {
        let gives_up = deadline::<Rt>(within);
        match Types::<Rt>::timeout_at(gives_up, self.leased_index()).await {
            Ok(Some(index)) if self.0.applied.reached(index, gives_up).await => Ok(index),
            Ok(Some(_)) => Err(BarrierError::Behind),
            Ok(None) => self.read_linearizable(gives_up.saturating_duration_since(Types::<Rt>::now())).await,
            Err(_) => Err(BarrierError::NoQuorum),
        }
    }

    /// Waits until this node's state has reached a revision that a client has seen in an earlier answer, at most
    /// `within`.
    pub async fn read_at_least(&self, revision: Revision, within: Duration) -> Result<(), BarrierError> {
        let gives_up = deadline::<Rt>(within);
        loop {
            let next = self.0.applied.get().map_or(Index::ZERO, Index::next);
            if self.0.member.machine().applied().revision >= revision {
                return Ok(());
            }
            if !self.0.applied.reached(next, gives_up).await {
                return Err(BarrierError::Behind);
            }
        }
    }

    /// Waits until this node has applied entry `index`, at most `within`.
    pub async fn wait_applied(&self, index: Index, within: Duration) -> Result<(), BarrierError> {
        let reached = self.0.applied.reached(index, deadline::<Rt>(within)).await;
        if reached { Ok(()) } else { Err(BarrierError::Behind) }
    }

    /// Serves a follower that has a linearizable read: returns the index of the entry that the follower must apply
    /// first.
    pub async fn serve_read_index(&self, within: Duration) -> Result<Index, BarrierError> {
        if !self.0.member.leads() {
            return Err(refusal(&self.0.member.leadership()));
        }
        match Types::<Rt>::timeout_at(deadline::<Rt>(within), self.barrier()).await {
            Ok(index) => index,
            Err(_) => Err(BarrierError::NoQuorum),
        }
    }

    /// Waits for a round of heartbeats that begins after the call. Returns the index of the entry that a read must wait
    /// for.
    async fn barrier(&self) -> Result<Index, BarrierError> {
        let (sender, receiver) = Types::<Rt>::oneshot();
        self.0.barriers.waiting.borrow_mut().push(sender);
        if !self.0.barriers.is_running.replace(true) {
            detach::<Rt>(self.clone().run_rounds());
        }
        receiver.await.unwrap_or_else(|_| Err(BarrierError::Stopped(self.stopped_reason())))
    }

    async fn run_rounds(self) {
        loop {
            let waiting = self.0.barriers.waiting.take();
            if waiting.is_empty() {
                self.0.barriers.is_running.set(false);
                return;
            }
            let index = self.round().await;
            for reader in waiting {
                // The waiting read may have given up.
                let _ = reader.send(index.clone());
            }
        }
    }

    /// Confirms by a round of heartbeats that a majority still follows the leader. A follower asks the leader to do
    /// this. Ends early if this node learns that a new leader was elected, because the former leader may never answer.
    async fn round(&self) -> Result<Index, BarrierError> {
        let leadership = self.0.member.leadership();
        let leader = match &leadership {
            Leadership::Leader { .. } => self.0.member.node(),
            Leadership::Follower { leader: Some((leader, _)), .. } => *leader,
            Leadership::Follower { leader: None, .. } => return Err(refusal(&leadership)),
        };
        let (asked, replaced) = (pin!(self.ask(leadership.clone())), pin!(self.replaced(leader, leadership.term())));
        match select(asked, replaced).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(refusal(&self.0.member.leadership())),
        }
    }

    async fn ask(&self, leadership: Leadership) -> Result<Index, BarrierError> {
        match (leadership, &self.0.forwarder) {
            (Leadership::Leader { .. }, _) => {
                let option = LinearizerOption::new(Some(Duration::ZERO), true).with_wait_timeout(MAX_ROUND);
                self.linearizer(option).await
            }
            (Leadership::Follower { leader: Some(leader), .. }, Some(forwarder)) => {
                match Types::<Rt>::timeout(MAX_ROUND, forwarder.read_index(leader, MAX_ROUND)).await {
                    Ok(index) => index,
                    Err(_) => Err(BarrierError::NoLeader),
                }
            }
            (other, _) => Err(refusal(&other)),
        }
    }

    async fn linearizer(&self, option: LinearizerOption) -> Result<Index, BarrierError> {
        match self.0.raft.get_read_linearizer(option).await {
            Ok(linearizer) => Ok(Index(linearizer.read_log_id().log_id().index)),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
                Err(match leader_in(&forward) {
                    Some((node, info)) => BarrierError::NotLeader { leader: Some((node, info.address)) },
                    None => BarrierError::NoLeader,
                })
            }
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => Err(BarrierError::NoQuorum),
            Err(RaftError::Fatal(error)) => Err(BarrierError::Stopped(error.to_string())),
        }
    }

    /// Returns the index of the entry that a read under the lease must wait for; `None` if this node has no valid
    /// lease.
    async fn leased_index(&self) -> Option<Index> {
        let Leadership::Leader { term } = self.0.member.leadership() else { return None };
        if self.0.transferred.get() == Some(term) {
            return None;
        }
        // openraft notes the time at which it sent the answered request.
        let answered = self.0.raft.data_metrics().borrow_watched().last_quorum_acked.as_ref().map(|sent| **sent);
        if self.0.suspensions.have_followed(answered, self.0.member.clock().suspended()) && !self.votes_alone() {
            return None;
        }
        let age = self.0.options.lease() * 3 / 4;
        let option = LinearizerOption::new(Some(age), false).with_wait_timeout(Duration::ZERO);
        self.linearizer(option).await.ok()
    }

    /// Returns true if this node is the only voter. Then no other node is elected without its vote, even while it is
    /// suspended, and no answers of other nodes are needed.
    fn votes_alone(&self) -> bool {
        self.membership().is_ok_and(|membership| membership.sole_voter() == Some(self.0.member.node()))
    }
}

/// Returns the error for a read on a node that is not the leader and cannot ask the leader.
fn refusal(leadership: &Leadership) -> BarrierError {
    match leadership.refusal() {
        ProposeError::NotLeader { leader } => BarrierError::NotLeader { leader },
        _ => BarrierError::NoLeader,
    }
}
