//! Nodes of one process that call each other directly, over links that a test cuts.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::Future,
    rc::Rc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use openraft::{
    OptionalSend, RaftNetworkFactory, RaftNetworkV2,
    errors::{RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::RPCOption,
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
        VoteRequest, VoteResponse,
    },
};
use openraft_rt_tokio::TokioRuntime;
use thalweg_log::Purpose;
use thalweg_raft::{BarrierError, Forwarder, MemberFacts, RaftSnapshot, RaftVote, SnapshotHandle, Snapshots};
use thalweg_replica::{NodeInfo, ProposeError};
use thalweg_types::{Index, NodeId};

pub type Types = thalweg_raft::Types<TokioRuntime>;
pub type Consensus = thalweg_raft::Consensus<TokioRuntime>;

#[derive(Default)]
struct Inner {
    nodes: BTreeMap<u64, (Consensus, Rc<dyn Snapshots>)>,
    cuts: BTreeSet<(u64, u64)>,
    holds_facts: bool,
    loses_appends: bool,
    loses_transfers: bool,
    transfers: u64,
}

/// The network; a clone refers to the same one.
#[derive(Clone, Default)]
pub struct Network(Rc<RefCell<Inner>>);

impl Network {
    pub fn connect(&self, node: u64, consensus: Consensus, snapshots: Rc<dyn Snapshots>) {
        self.0.borrow_mut().nodes.insert(node, (consensus, snapshots));
    }

    pub fn disconnect(&self, node: u64) {
        let removed = self.0.borrow_mut().nodes.remove(&node);
        drop(removed);
    }

    /// Cuts the links of a node in both directions.
    pub fn isolate(&self, node: u64) {
        let mut inner = self.0.borrow_mut();
        let others: Vec<u64> = inner.nodes.keys().copied().filter(|other| *other != node).collect();
        for other in others {
            inner.cuts.insert((node, other));
            inner.cuts.insert((other, node));
        }
    }

    /// Cuts the link on which one node calls another, which also carries the answers.
    pub fn cut(&self, from: u64, to: u64) {
        self.0.borrow_mut().cuts.insert((from, to));
    }

    /// Lets no member learn the facts about another one, or ends that.
    pub fn hold_facts(&self, holds: bool) {
        self.0.borrow_mut().holds_facts = holds;
    }

    /// Loses all appends and heartbeats, or ends that. Votes get through.
    pub fn lose_appends(&self, loses: bool) {
        self.0.borrow_mut().loses_appends = loses;
    }

    /// Loses all requests to take over the leadership.
    pub fn lose_transfers(&self) {
        self.0.borrow_mut().loses_transfers = true;
    }

    /// Number of requests to take over the leadership, lost ones included.
    pub fn transfers(&self) -> u64 {
        self.0.borrow().transfers
    }

    pub fn heal(&self) {
        self.0.borrow_mut().cuts.clear();
    }

    pub fn links_of(&self, from: u64) -> Links {
        Links { network: self.clone(), from }
    }
}

/// The links of one node.
#[derive(Clone)]
pub struct Links {
    network: Network,
    from: u64,
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Links of node {}", self.from)
    }
}

impl Links {
    /// Returns the other node, if it can be reached.
    fn reach(&self, to: u64) -> Result<Consensus, Unreachable<Types>> {
        Ok(self.reach_parts(to)?.0)
    }

    /// Reports the facts about both ends of a link to each other, as signs of life do. Each node has room.
    fn exchange_facts(&self, to: u64) {
        let inner = self.network.0.borrow();
        let (Some((here, _)), Some((there, _))) = (inner.nodes.get(&self.from), inner.nodes.get(&to)) else { return };
        if !inner.holds_facts {
            let facts = |of: &Consensus| MemberFacts { lacks_room: false, ..of.own_facts() };
            there.report(NodeId(self.from), facts(here));
            here.report(NodeId(to), facts(there));
        }
    }

    fn reach_parts(&self, to: u64) -> Result<(Consensus, Rc<dyn Snapshots>), Unreachable<Types>> {
        let inner = self.network.0.borrow();
        if inner.cuts.contains(&(self.from, to)) {
            return Err(Unreachable::from_string("the link is cut"));
        }
        inner.nodes.get(&to).cloned().ok_or_else(|| Unreachable::from_string("the node is down"))
    }
}

impl RaftNetworkFactory<Types> for Links {
    type Network = Link;

    async fn new_client(&mut self, target: u64, _: &NodeInfo) -> Link {
        Link { links: self.clone(), to: target }
    }
}

/// The link to one node.
pub struct Link {
    links: Links,
    to: u64,
}

impl Link {
    /// Calls the other node, unless the link is cut before the call or before the answer.
    async fn call<T, E: std::error::Error + 'static, F: Future<Output = Result<T, E>>>(
        &self,
        serve: impl FnOnce(Consensus) -> F,
    ) -> Result<T, RPCError<Types>> {
        let served = serve(self.links.reach(self.to)?).await;
        self.links.reach(self.to)?;
        self.links.exchange_facts(self.to);
        served.map_err(|error| Unreachable::new(&error).into())
    }
}

impl RaftNetworkV2<Types> for Link {
    type SnapshotData = SnapshotHandle;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        if self.links.network.0.borrow().loses_appends {
            return Err(Unreachable::from_string("the append is lost").into());
        }
        self.call(|peer| async move { peer.append_entries(request).await }).await
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        _: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.call(|peer| async move { peer.vote(request).await }).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        _: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.call(|peer| async move { peer.pre_vote(request).await }).await
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        _: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let is_lost = {
            let mut inner = self.links.network.0.borrow_mut();
            inner.transfers += 1;
            inner.loses_transfers
        };
        if is_lost {
            return Err(Unreachable::from_string("the request is lost").into());
        }
        self.call(|peer| async move { peer.take_over(request).await }).await
    }

    async fn full_snapshot(
        &mut self,
        vote: RaftVote,
        snapshot: RaftSnapshot,
        _: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let SnapshotHandle::Send(Some(own)) = snapshot.snapshot else { panic!("a leader sends its own state") };
        let (peer, snapshots) = self.links.reach_parts(self.to)?;
        let installed = async {
            let mut reader = own.open(Index::ZERO).await?;
            let mut writer = snapshots.receive(reader.id()).await?;
            while let Some(chunk) = reader.chunk(writer.next()).await? {
                writer.write(chunk).await?;
            }
            peer.install_snapshot(vote, writer).await
        };
        installed.await.map_err(|error| Unreachable::new(&error).into())
    }
}

impl Forwarder for Links {
    fn propose(
        &self,
        leader: (NodeId, NodeInfo),
        payload: Bytes,
        purpose: Purpose,
        _requests: String,
        within: Duration,
    ) -> LocalBoxFuture<'static, Result<Index, ProposeError>> {
        let peer = self.reach(leader.0.0);
        Box::pin(async move {
            let peer = peer.map_err(|_| ProposeError::NoLeader)?;
            peer.propose_forwarded(payload, purpose, within).await
        })
    }

    fn read_index(
        &self,
        leader: (NodeId, NodeInfo),
        within: Duration,
    ) -> LocalBoxFuture<'static, Result<Index, BarrierError>> {
        let peer = self.reach(leader.0.0);
        Box::pin(async move { peer.map_err(|_| BarrierError::NoLeader)?.serve_read_index(within).await })
    }
}
