//! The simulated network: messages between nodes take time, get lost, and are cut off in either direction.
//!
//! Owns: the links and their faults, and the rule against deaf leaders. Does not own: what the messages mean (openraft).
//!
//! Each message travels alone, so messages overtake each other. A lost message looks to its sender like one that was
//! never answered.
//!
//! **Deaf leaders.** A leader whose messages arrive, but which receives none, keeps its followers quiet and commits
//! nothing. Therefore a node ignores appends from a node that has not heard it for 250 ms. On real links, frames
//! carry the number of the last ping received; here the time since the cut serves.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::Future,
    ops::Range,
    rc::Rc,
    time::Duration,
};

use openraft::{
    OptionalSend,
    errors::{RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{RPCOption, RaftNetworkFactory, RaftNetworkV2},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
        VoteRequest, VoteResponse,
    },
};
use thalweg_raft::RaftVote;
use thalweg_replica::NodeInfo;

use crate::{
    plant::Plant,
    runtime::{ProcessId, now, random, random_duration, sleep, spawn, timeout},
    state::SimRaft,
    types::{Snap, Types},
};

/// Time after which a node ignores a node that does not hear it: about one lease.
const DEAF_AFTER: Duration = Duration::from_millis(250);
/// Usual time of a message.
pub const USUAL_DELAY: Range<Duration> = Duration::from_micros(50)..Duration::from_micros(300);

/// The network of a cluster. A clone refers to the same network.
#[derive(Clone)]
pub struct Network(Rc<Inner>);

struct Inner {
    rafts: RefCell<BTreeMap<ProcessId, SimRaft>>,
    /// Directed links that are cut, and since when.
    cuts: RefCell<BTreeMap<(ProcessId, ProcessId), Duration>>,
    /// Lost messages per thousand.
    loss: Cell<u64>,
    delay: RefCell<Range<Duration>>,
    messages: Cell<u64>,
    /// Member without a vote, for a planted bug.
    learner: Cell<Option<ProcessId>>,
    plant: Option<Plant>,
}

impl Network {
    /// Creates a network without nodes and without faults.
    #[must_use]
    pub fn new(plant: Option<Plant>) -> Self {
        Self(Rc::new(Inner {
            rafts: RefCell::default(),
            cuts: RefCell::default(),
            loss: Cell::new(0),
            delay: RefCell::new(USUAL_DELAY),
            messages: Cell::new(0),
            learner: Cell::default(),
            plant,
        }))
    }

    /// Sets the member without a vote.
    pub fn set_learner(&self, learner: Option<ProcessId>) {
        self.0.learner.set(learner);
    }

    /// Connects a node that has started.
    pub fn connect(&self, node: ProcessId, raft: SimRaft) {
        self.0.rafts.borrow_mut().insert(node, raft);
    }

    /// Disconnects a node that has crashed.
    pub fn disconnect(&self, node: ProcessId) {
        let removed = self.0.rafts.borrow_mut().remove(&node);
        drop(removed);
    }

    /// Returns the Raft group's handle on a node that runs.
    #[must_use]
    pub fn raft(&self, node: ProcessId) -> Option<SimRaft> {
        self.0.rafts.borrow().get(&node).cloned()
    }

    /// Cuts the link from one node to another; the link in the other direction stays.
    pub fn cut(&self, from: ProcessId, to: ProcessId) {
        self.0.cuts.borrow_mut().insert((from, to), now());
    }

    /// Repairs a link.
    pub fn mend(&self, from: ProcessId, to: ProcessId) {
        self.0.cuts.borrow_mut().remove(&(from, to));
    }

    /// Sets the share of lost messages, per thousand.
    pub fn set_loss(&self, per_thousand: u64) {
        self.0.loss.set(per_thousand);
    }

    /// Sets the time that messages take.
    pub fn set_delay(&self, delay: Range<Duration>) {
        *self.0.delay.borrow_mut() = delay;
    }

    /// Repairs all links, and ends losses and delays.
    pub fn heal(&self) {
        self.0.cuts.borrow_mut().clear();
        self.set_loss(0);
        self.set_delay(USUAL_DELAY);
    }

    /// Returns the number of messages sent so far.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.0.messages.get()
    }

    /// Returns the network as node `from` sees it.
    #[must_use]
    pub fn links_of(&self, from: ProcessId) -> Links {
        Links { network: self.clone(), from }
    }

    /// Returns true if `to` has been unable to reach `from` for so long that it ignores `from`.
    fn is_deaf(&self, from: ProcessId, to: ProcessId) -> bool {
        let since = self.0.cuts.borrow().get(&(to, from)).copied();
        self.0.plant != Some(Plant::DeafLeaderKept) && since.is_some_and(|since| since + DEAF_AFTER < now())
    }
}

/// The links of one node.
#[derive(Clone)]
pub struct Links {
    network: Network,
    from: ProcessId,
}

impl RaftNetworkFactory<Types> for Links {
    type Network = Link;

    async fn new_client(&mut self, target: u64, _: &NodeInfo) -> Link {
        Link { network: self.network.clone(), from: self.from, to: target }
    }
}

/// The link from one node to another.
#[derive(Clone)]
pub struct Link {
    network: Network,
    from: ProcessId,
    to: ProcessId,
}

fn unreachable(reason: &str) -> Unreachable<Types> {
    Unreachable::from_string(reason)
}

impl Link {
    /// Carries one message. A lost message costs its sender the time limit.
    async fn carry(&self, from: ProcessId, to: ProcessId, limit: Duration) -> Result<(), Unreachable<Types>> {
        let network = &self.network.0;
        network.messages.set(network.messages.get() + 1);
        let is_cut = network.cuts.borrow().contains_key(&(from, to));
        if is_cut || random(0..1000) < network.loss.get() {
            sleep(limit).await;
            return Err(unreachable("the message was lost"));
        }
        let delay = network.delay.borrow().clone();
        sleep(random_duration(delay)).await;
        Ok(())
    }

    /// Sends a request and waits for its answer.
    async fn call<T, E, F>(&self, option: &RPCOption, serve: impl FnOnce(SimRaft) -> F) -> Result<T, RPCError<Types>>
    where
        T: 'static,
        E: std::fmt::Display + 'static,
        F: Future<Output = Result<T, E>> + 'static,
    {
        let limit = option.soft_ttl();
        self.carry(self.from, self.to, limit).await?;
        let raft = self.network.raft(self.to).ok_or_else(|| unreachable("the node is down"))?;
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let served = serve(raft);
        spawn(self.to, async move {
            // The caller may have given up.
            let _ = sender.send(served.await);
        });
        let Ok(Ok(answer)) = timeout(limit, receiver).await else { return Err(unreachable("no answer").into()) };
        self.carry(self.to, self.from, limit).await?;
        answer.map_err(|error| unreachable(&error.to_string()).into())
    }
}

impl RaftNetworkV2<Types> for Link {
    type SnapshotData = ();

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        if self.network.is_deaf(self.from, self.to) {
            sleep(option.soft_ttl()).await;
            return Err(unreachable("the follower ignores a node that does not hear it").into());
        }
        let repeated = request.clone();
        let answered = self.call(&option, |raft| async move { raft.append_entries(request).await }).await;
        let learner = self.network.0.learner.get().filter(|learner| *learner != self.to);
        match learner {
            Some(learner) if answered.is_err() && self.network.0.plant == Some(Plant::LearnerInQuorum) => {
                let other = Self { to: learner, ..self.clone() };
                other.call(&option, |raft| async move { raft.append_entries(repeated).await }).await
            }
            _ => answered,
        }
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.call(&option, |raft| async move { raft.vote(request).await }).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.call(&option, |raft| async move { raft.pre_vote(request).await }).await
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        self.call(&option, |raft| async move { raft.handle_transfer_leader(request).await }).await
    }

    async fn full_snapshot(
        &mut self,
        _: RaftVote,
        _: Snap,
        _: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        Err(unreachable("logs are never purged, so no node needs a snapshot").into())
    }
}
