//! Reads that are as recent as their level says.
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
//! The lease is measured by a clock that stands still while the machine is suspended, and the others elect a leader
//! meanwhile. So after a suspension a leader relies only on answers to requests that it has sent since
//! ([`Suspensions`]).
//!
//! A leader serves no more lease reads in a term in which it has begun to transfer its leadership, because a transfer
//! makes followers forget their promises. For one lease after a restart a node makes no promises (`consensus`).

use std::{cell::Cell, pin::pin, time::Duration};

use futures_util::future::{Either, select};
use openraft::{
    Instant,
    async_runtime::{AsyncRuntime, OneshotSender, WatchReceiver},
    errors::{LinearizableReadError, RaftError},
    raft::linearizable_read::LinearizerOption,
    type_config::{TypeConfigExt, alias::InstantOf},
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

/// Maximum time of one round.
const MAX_ROUND: Duration = Duration::from_secs(1);
/// Longest suspension that a leader may overlook, much less than the quarter of the lease by which clocks may differ.
const MIN_SUSPENSION: Duration = Duration::from_millis(2);

/// Suspensions of the machine that this node has noticed.
pub(crate) struct Suspensions<Rt: AsyncRuntime> {
    /// Total time of the suspensions that were noticed, and of those before the start.
    total: Cell<Duration>,
    /// Time at which the last one was noticed; the suspension was over then.
    noticed_at: Cell<Option<InstantOf<Types<Rt>>>>,
}

impl<Rt: AsyncRuntime> Suspensions<Rt> {
    /// Creates the value of a node that starts, by the clock's [`suspended`](thalweg_types::Clock::suspended).
    pub(crate) fn new(total: Duration) -> Self {
        Self { total: Cell::new(total), noticed_at: Cell::new(None) }
    }

    /// Returns true if the machine was suspended after `sent`, as far as the present total of the clock shows.
    fn have_followed(&self, sent: Option<InstantOf<Types<Rt>>>, total: Duration) -> bool {
        if total > self.total.get() + MIN_SUSPENSION {
            self.noticed_at.set(Some(Types::<Rt>::now()));
            self.total.set(total);
        }
        // A reading can be too high, and never too low.
        self.total.set(self.total.get().min(total));
        self.noticed_at.get().is_some_and(|noticed_at| sent.is_none_or(|sent| sent <= noticed_at))
    }
}

impl<Rt: AsyncRuntime> Consensus<Rt> {
    /// Returns once this node's state contains everything that was committed before the call. Returns the index of the
    /// entry for which the call has waited.
    pub async fn read_linearizable(&self, within: Duration) -> Result<Index, BarrierError> {
        let gives_up = deadline::<Rt>(within);
        let index = match Types::<Rt>::timeout_at(gives_up, self.barrier()).await {
            Ok(index) => index?,
            Err(_) => return Err(BarrierError::NoQuorum),
        };
        if self.0.applied.reached(index, gives_up).await { Ok(index) } else { Err(BarrierError::Behind) }
    }

    /// Like [`read_linearizable`](Self::read_linearizable), but a leader relies on its lease. Correct if the speeds of
    /// the nodes' monotonic clocks differ by less than a quarter.
    pub async fn read_lease(&self, within: Duration) -> Result<Index, BarrierError> {
        let gives_up = deadline::<Rt>(within);
        match Types::<Rt>::timeout_at(gives_up, self.leased_index()).await {
            Ok(Some(index)) if self.0.applied.reached(index, gives_up).await => Ok(index),
            Ok(Some(_)) => Err(BarrierError::Behind),
            Ok(None) => self.read_linearizable(gives_up.saturating_duration_since(Types::<Rt>::now())).await,
            Err(_) => Err(BarrierError::NoQuorum),
        }
    }

    /// Waits until this node's state has reached a revision, as a client saw it in an earlier answer.
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

    /// Waits until this node has applied an entry.
    pub async fn wait_applied(&self, index: Index, within: Duration) -> Result<(), BarrierError> {
        let reached = self.0.applied.reached(index, deadline::<Rt>(within)).await;
        if reached { Ok(()) } else { Err(BarrierError::Behind) }
    }

    /// Serves a follower that asks up to which entry it must wait for a linearizable read.
    pub async fn serve_read_index(&self, within: Duration) -> Result<Index, BarrierError> {
        if !self.0.member.leads() {
            return Err(refusal(&self.0.member.leadership()));
        }
        match Types::<Rt>::timeout_at(deadline::<Rt>(within), self.barrier()).await {
            Ok(index) => index,
            Err(_) => Err(BarrierError::NoQuorum),
        }
    }

    /// Waits for a round of heartbeats that begins after the call.
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
                // The reader may have given up.
                let _ = reader.send(index.clone());
            }
        }
    }

    /// Asks a majority if the leader still leads. Ends as soon as this node knows that another node leads: a leader
    /// that stops may answer no more.
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

    /// Returns the entry up to which a read by lease must wait; `None` if this node has no lease to rely on.
    async fn leased_index(&self) -> Option<Index> {
        let Leadership::Leader { term } = self.0.member.leadership() else { return None };
        if self.0.transferred.get() == Some(term) {
            return None;
        }
        // openraft notes the time at which it has sent the request that was answered.
        let answered = self.0.raft.data_metrics().borrow_watched().last_quorum_acked.as_ref().map(|sent| **sent);
        if self.0.suspensions.have_followed(answered, self.0.member.clock().suspended()) {
            return None;
        }
        let age = self.0.options.lease() * 3 / 4;
        let option = LinearizerOption::new(Some(age), false).with_wait_timeout(Duration::ZERO);
        self.linearizer(option).await.ok()
    }
}

/// Returns the error of a read on a node that cannot ask the leader.
fn refusal(leadership: &Leadership) -> BarrierError {
    match leadership.refusal() {
        ProposeError::NotLeader { leader } => BarrierError::NotLeader { leader },
        _ => BarrierError::NoLeader,
    }
}

#[cfg(test)]
mod tests {
    use openraft_rt_tokio::TokioRuntime;

    use super::*;

    #[test]
    fn only_requests_after_a_suspension_extend_a_lease() {
        let seconds = Duration::from_secs;
        let suspensions = Suspensions::<TokioRuntime>::new(seconds(5));
        let before = Types::<TokioRuntime>::now();
        assert!(!suspensions.have_followed(None, seconds(5)), "the one before the start does not count");
        assert!(!suspensions.have_followed(Some(before), seconds(5) + MIN_SUSPENSION));
        assert!(suspensions.have_followed(Some(before), seconds(65)));
        assert!(suspensions.have_followed(Some(before), seconds(65)), "it is remembered");
        assert!(suspensions.have_followed(None, seconds(65)));
        let after = Types::<TokioRuntime>::now() + Duration::from_micros(1);
        assert!(!suspensions.have_followed(Some(after), seconds(65)));
        assert!(suspensions.have_followed(Some(after), seconds(66)));
    }

    /// A pause of the process between the readings of both clocks makes the total too high.
    #[test]
    fn a_total_that_was_read_too_high_hides_no_later_suspension() {
        let suspensions = Suspensions::<TokioRuntime>::new(Duration::from_secs(9));
        let sent = Types::<TokioRuntime>::now();
        assert!(!suspensions.have_followed(Some(sent), Duration::from_secs(5)));
        assert!(suspensions.have_followed(Some(sent), Duration::from_secs(6)));
    }
}
