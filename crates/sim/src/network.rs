//! The simulated network: messages between nodes take time, get lost, and are cut off in either direction.
//!
//! Owns: the links and their faults, the pings, forwarding to the leader, and the transfer of snapshots. Does not own:
//! the meaning of the messages (openraft, `raft`), or the rule by which a node notices that another node does not
//! receive its messages (`raft::Hearing`).
//!
//! The delay of each message is drawn separately, so messages overtake each other. A lost message looks to its sender
//! like one that was never answered.
//!
//! A leader's notices that entries are committed wait for the next append to the follower, as in the product. Their
//! delay differs between seeds. With the product's delay alone, notices would never wait in a cluster whose followers
//! forward requests all the time.
//!
//! Each node sends a ping to each other node that it knows, in every interval of heartbeats. Pings and appends carry
//! the number of the last ping that arrived from the recipient. A node ignores the appends of a leader that does not
//! hear it.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::Future,
    io,
    ops::Range,
    pin::pin,
    rc::Rc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    Stream,
    future::{Either, LocalBoxFuture, select},
};
use openraft::{
    OptionalSend,
    async_runtime::WatchReceiver,
    base::{BoxFuture, BoxStream},
    errors::{RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{RPCOption, RaftNetworkFactory, RaftNetworkV2, stream_append_sequential},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
        TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};
use thalweg_log::Purpose;
use thalweg_raft::{
    BarrierError, Begun, ConsensusOptions, FollowerRequests, Forwarder, Hearing, NoticeTimes, RaftSnapshot, RaftVote,
    Receiving, SnapshotHandle, SnapshotReader, Snapshots, without_needless_notices,
};
use thalweg_replica::{NodeInfo, ProposeError};
use thalweg_types::{Index, NodeId};

use crate::{
    plant::Plant,
    runtime::{ProcessId, SimRuntime, now, random, random_duration, sleep, spawn, timeout},
    types::{SimConsensus, Types},
};

/// Time between two pings of one node to another.
const PING: Duration = ConsensusOptions::DEFAULTS.heartbeat;
/// Time limit for sending a chunk of a snapshot.
const CHUNK_LIMIT: Duration = Duration::from_secs(1);
/// Time limit for the install of a received snapshot.
const INSTALL_LIMIT: Duration = Duration::from_secs(5);
/// Range of the delay of messages between nodes while no fault changes it.
pub const USUAL_DELAY: Range<Duration> = Duration::from_micros(50)..Duration::from_micros(300);

/// Time for which a leader delays notices of commits to followers, in a third of the seeds.
const LONG_NOTICE_DELAY: Duration = Duration::from_millis(10);
/// Time for which a leader delays notices of commits under the planted bug `WithheldNotice`. It is longer than any
/// simulation, so followers learn of a commit only from the next append.
const WITHHELD: Duration = Duration::from_secs(3600);

/// Number of pings from the sender, without a chunk among them, after which a node drops an unfinished snapshot. It
/// amounts to 6 s.
const MAX_IDLE_PINGS: u32 = (6_000 / PING.as_millis()) as u32;

/// State of a node as the receiver of snapshots from other nodes.
#[derive(Clone)]
struct Receiver {
    snapshots: Rc<dyn Snapshots>,
    receiving: Rc<Receiving>,
}

/// The network of a cluster. A clone refers to the same network.
#[derive(Clone)]
pub struct Network(Rc<Inner>);

struct Inner {
    nodes: RefCell<BTreeMap<ProcessId, SimConsensus>>,
    receivers: RefCell<BTreeMap<ProcessId, Receiver>>,
    /// State of the pings between two nodes. The first node of a key keeps the state; the second is the node that the
    /// state is about.
    hearings: RefCell<BTreeMap<(ProcessId, ProcessId), Hearing>>,
    /// Time of the last request that a follower has forwarded to a leader, and that the leader answers after a commit.
    /// The keys are pairs of leader and follower.
    requests: RefCell<BTreeMap<(ProcessId, ProcessId), FollowerRequests<SimRuntime>>>,
    notices: NoticeTimes,
    /// Links that are cut in one direction, from the first node to the second.
    cuts: RefCell<BTreeSet<(ProcessId, ProcessId)>>,
    /// Number of messages per thousand that the network loses at present.
    loss: Cell<u64>,
    delay: RefCell<Range<Duration>>,
    messages: Cell<u64>,
    /// Node of the cluster that has no vote; `None` if all nodes have one. The planted bug `LearnerInQuorum` needs it.
    learner: Cell<Option<ProcessId>>,
    plant: Option<Plant>,
}

/// Draws at random how long leaders delay the notices of commits to followers. With the planted bug `WithheldNotice`,
/// the delay is longer than any simulation.
fn draw_notices(plant: Option<Plant>) -> NoticeTimes {
    if plant == Some(Plant::WithheldNotice) {
        return NoticeTimes { delay: WITHHELD, at_once_for: Duration::ZERO };
    }
    match random(0..3) {
        0 => NoticeTimes::DEFAULTS,
        1 => NoticeTimes { at_once_for: Duration::ZERO, ..NoticeTimes::DEFAULTS },
        _ => NoticeTimes { delay: LONG_NOTICE_DELAY, at_once_for: Duration::ZERO },
    }
}

impl Network {
    /// Creates a network without nodes and without faults. Draws at random how long leaders delay the notices of
    /// commits.
    #[must_use]
    pub fn new(plant: Option<Plant>) -> Self {
        Self(Rc::new(Inner {
            nodes: RefCell::default(),
            receivers: RefCell::default(),
            hearings: RefCell::default(),
            requests: RefCell::default(),
            notices: draw_notices(plant),
            cuts: RefCell::default(),
            loss: Cell::new(0),
            delay: RefCell::new(USUAL_DELAY),
            messages: Cell::new(0),
            learner: Cell::default(),
            plant,
        }))
    }

    /// Sets the node of the cluster that has no vote; `None` if all nodes have one.
    pub fn set_learner(&self, learner: Option<ProcessId>) {
        self.0.learner.set(learner);
    }

    /// Connects a node that has started. Forgets the state that belongs to earlier runs of the node: the exchanged
    /// pings, and the requests that were forwarded to it.
    pub fn connect(&self, node: ProcessId, consensus: SimConsensus, snapshots: Rc<dyn Snapshots>) {
        self.0.hearings.borrow_mut().retain(|(from, to), _| *from != node && *to != node);
        self.0.requests.borrow_mut().retain(|(leader, _), _| *leader != node);
        let receiver = Receiver { snapshots, receiving: Rc::new(Receiving::new(MAX_IDLE_PINGS)) };
        // An install ends when the receiver is dropped, so a task that still runs holds only a weak reference.
        let receiving = Rc::downgrade(&receiver.receiving);
        self.0.receivers.borrow_mut().insert(node, receiver);
        self.0.nodes.borrow_mut().insert(node, consensus);
        let links = self.links_of(node);
        spawn(node, async move {
            loop {
                links.send_pings();
                if let Some(receiving) = receiving.upgrade() {
                    receiving.tick();
                }
                sleep(PING).await;
            }
        });
    }

    /// Disconnects a node that has crashed.
    pub fn disconnect(&self, node: ProcessId) {
        let removed = (self.0.nodes.borrow_mut().remove(&node), self.0.receivers.borrow_mut().remove(&node));
        drop(removed);
    }

    /// Returns the consensus of a node that runs.
    #[must_use]
    pub fn node(&self, node: ProcessId) -> Option<SimConsensus> {
        self.0.nodes.borrow().get(&node).cloned()
    }

    /// Calls `with` with the state of the pings that node `of` keeps about node `peer`.
    fn hearing<T>(&self, of: ProcessId, peer: ProcessId, with: impl FnOnce(&mut Hearing) -> T) -> T {
        let mut hearings = self.0.hearings.borrow_mut();
        with(hearings.entry((of, peer)).or_insert_with(|| Hearing::new(ConsensusOptions::DEFAULTS.deaf_after())))
    }

    /// Returns the record of the last request that node `follower` has forwarded to node `leader`.
    fn requests(&self, leader: ProcessId, follower: ProcessId) -> FollowerRequests<SimRuntime> {
        self.0.requests.borrow_mut().entry((leader, follower)).or_default().clone()
    }

    /// Cuts the link from one node to another; the link in the other direction stays.
    pub fn cut(&self, from: ProcessId, to: ProcessId) {
        self.0.cuts.borrow_mut().insert((from, to));
    }

    /// Returns true if the link from one node to another is cut.
    #[must_use]
    pub fn is_cut(&self, from: ProcessId, to: ProcessId) -> bool {
        self.0.cuts.borrow().contains(&(from, to))
    }

    /// Repairs the link from one node to another; the link in the other direction stays as it is.
    pub fn mend(&self, from: ProcessId, to: ProcessId) {
        self.0.cuts.borrow_mut().remove(&(from, to));
    }

    /// Sets the number of messages per thousand that the network loses.
    pub fn set_loss(&self, per_thousand: u64) {
        self.0.loss.set(per_thousand);
    }

    /// Sets the range of the delay of messages.
    pub fn set_delay(&self, delay: Range<Duration>) {
        *self.0.delay.borrow_mut() = delay;
    }

    /// Repairs all links, and ends loss and additional delay of messages.
    pub fn heal(&self) {
        self.0.cuts.borrow_mut().clear();
        self.set_loss(0);
        self.set_delay(USUAL_DELAY);
    }

    /// Returns the number of messages that nodes have sent so far.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.0.messages.get()
    }

    /// Returns the links through which node `from` reaches the other nodes.
    #[must_use]
    pub fn links_of(&self, from: ProcessId) -> Links {
        Links { network: self.clone(), from }
    }
}

/// The links from one node to all other nodes, as its consensus uses them.
#[derive(Clone)]
pub struct Links {
    network: Network,
    from: ProcessId,
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "links of node {}", self.from)
    }
}

impl Links {
    fn to(&self, to: ProcessId) -> Link {
        Link { network: self.network.clone(), from: self.from, to }
    }

    fn send_pings(&self) {
        let peers: Vec<ProcessId> = self.network.0.nodes.borrow().keys().copied().collect();
        for peer in peers.into_iter().filter(|peer| *peer != self.from) {
            let (link, network) = (self.to(peer), self.network.clone());
            let (number, echo) = network.hearing(self.from, peer, |hearing| (hearing.ping(now()), hearing.echo()));
            let facts = network.node(self.from).map(|node| node.own_facts());
            spawn(self.from, async move {
                if link.carry(link.from, link.to, Duration::ZERO).await.is_ok() {
                    if let (Some(mut facts), Some(node)) = (facts, network.node(link.to)) {
                        if network.0.plant == Some(Plant::LeaderClock) {
                            facts.wall = node.own_facts().wall;
                        }
                        node.report(NodeId(link.from), facts);
                    }
                    network.hearing(link.to, link.from, |hearing| {
                        hearing.received(number);
                        hearing.heard(echo);
                    });
                }
            });
        }
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
        let link = self.to(leader.0.0);
        Box::pin(async move {
            if link.network.node(link.to).is_none() {
                return Err(ProposeError::NoLeader);
            }
            let requests = link.network.requests(link.to, link.from);
            let repeats = link.network.0.plant == Some(Plant::RepeatedForward);
            let serve = |leader: SimConsensus| async move {
                requests.note();
                if repeats {
                    // The answer to this repeated batch has no recipient.
                    let _ = leader.propose_forwarded(payload.clone(), purpose, within).await;
                }
                Ok::<_, Never>(leader.propose_forwarded(payload, purpose, within).await)
            };
            let answered = link.call_within(within, serve).await;
            answered.unwrap_or_else(|error| Err(ProposeError::OutcomeUnknown { reason: error.to_string() }))
        })
    }

    fn read_index(
        &self,
        leader: (NodeId, NodeInfo),
        within: Duration,
    ) -> LocalBoxFuture<'static, Result<Index, BarrierError>> {
        let link = self.to(leader.0.0);
        Box::pin(async move {
            let requests = link.network.requests(link.to, link.from);
            let serve = |leader: SimConsensus| async move {
                requests.note();
                Ok::<_, Never>(leader.serve_read_index(within).await)
            };
            link.call_within(within, serve).await.unwrap_or(Err(BarrierError::NoLeader))
        })
    }
}

/// Error type of requests that cannot fail; it has no values.
#[derive(Debug)]
enum Never {}

impl fmt::Display for Never {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl RaftNetworkFactory<Types> for Links {
    type Network = Link;

    async fn new_client(&mut self, target: u64, _: &NodeInfo) -> Link {
        self.to(target)
    }
}

/// The link from one node to another, as the consensus of the sending node uses it.
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
    /// Delivers one message after its random delay. If the message is lost, the sender waits until its time limit.
    async fn carry(&self, from: ProcessId, to: ProcessId, limit: Duration) -> Result<(), Unreachable<Types>> {
        let network = &self.network.0;
        network.messages.set(network.messages.get() + 1);
        let is_cut = network.cuts.borrow().contains(&(from, to));
        if is_cut || random(0..1000) < network.loss.get() {
            sleep(limit).await;
            return Err(unreachable("the message was lost"));
        }
        let delay = network.delay.borrow().clone();
        sleep(random_duration(delay)).await;
        Ok(())
    }

    /// Sends a request over the link to the other node, and waits for its answer.
    async fn call<T, E, F>(
        &self,
        option: &RPCOption,
        serve: impl FnOnce(SimConsensus) -> F,
    ) -> Result<T, RPCError<Types>>
    where
        T: 'static,
        E: fmt::Display + 'static,
        F: Future<Output = Result<T, E>> + 'static,
    {
        self.call_within(option.soft_ttl(), serve).await.map_err(Into::into)
    }

    async fn call_within<T, E, F>(
        &self,
        limit: Duration,
        serve: impl FnOnce(SimConsensus) -> F,
    ) -> Result<T, Unreachable<Types>>
    where
        T: 'static,
        E: fmt::Display + 'static,
        F: Future<Output = Result<T, E>> + 'static,
    {
        self.carry(self.from, self.to, limit).await?;
        let node = self.network.node(self.to).ok_or_else(|| unreachable("the node is down"))?;
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let served = serve(node);
        spawn(self.to, async move {
            // The caller may have given up.
            let _ = sender.send(served.await);
        });
        let Ok(Ok(answer)) = timeout(limit, receiver).await else { return Err(unreachable("no answer")) };
        self.carry(self.to, self.from, limit).await?;
        answer.map_err(|error| unreachable(&error.to_string()))
    }
}

impl Link {
    /// Calls the snapshot receiver of the node at the other end of the link.
    async fn call_receiver<T, F>(
        &self,
        limit: Duration,
        serve: impl FnOnce(SimConsensus, Receiver) -> F,
    ) -> Result<T, Unreachable<Types>>
    where
        T: 'static,
        F: Future<Output = io::Result<T>> + 'static,
    {
        let receiver = self.network.0.receivers.borrow().get(&self.to).cloned();
        let receiver = receiver.ok_or_else(|| unreachable("the node is down"))?;
        self.call_within(limit, |node| serve(node, receiver)).await
    }

    async fn send_snapshot(
        &self,
        vote: RaftVote,
        reader: &mut dyn SnapshotReader,
    ) -> Result<SnapshotResponse<Types>, Unreachable<Types>> {
        let (from, id) = (self.from, reader.id().clone());
        let nonce = id.nonce;
        let begin = |node: SimConsensus, Receiver { snapshots, receiving }: Receiver| async move {
            let own = node.raft().server_metrics().borrow_watched().vote;
            if own > vote {
                return Ok(Begun::Higher(own));
            }
            receiving.begin(&*snapshots, (NodeId(from), vote), &id).await
        };
        let mut number = match self.call_receiver(CHUNK_LIMIT, begin).await? {
            Begun::Next(next) => next,
            Begun::Higher(vote) => return Ok(SnapshotResponse::new(vote)),
        };
        let failed = |error: io::Error| unreachable(&error.to_string());
        let take = move |receiving: &Receiving| {
            let reception = receiving.take(NodeId(from), nonce);
            reception.ok_or_else(|| io::Error::other("the snapshot was not begun here"))
        };
        while let Some(chunk) = reader.chunk(number).await.map_err(failed)? {
            let write = |_, Receiver { receiving, .. }: Receiver| async move {
                let mut reception = take(&receiving)?;
                if reception.writer.next() != number {
                    return Err(io::Error::other("another chunk is next"));
                }
                reception.writer.write(chunk).await?;
                receiving.put_back(reception);
                Ok(())
            };
            self.call_receiver(CHUNK_LIMIT, write).await?;
            number += 1;
        }
        let end = |node: SimConsensus, Receiver { receiving, .. }: Receiver| async move {
            let writer = take(&receiving)?.writer;
            if writer.next() != number {
                return Err(io::Error::other("chunks are missing"));
            }
            node.install_snapshot(vote, writer).await
        };
        self.call_receiver(INSTALL_LIMIT, end).await
    }
}

impl RaftNetworkV2<Types> for Link {
    type SnapshotData = SnapshotHandle;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let network = self.network.clone();
        let (from, to) = (self.from, self.to);
        let echo = network.hearing(from, to, |hearing| hearing.echo());
        let keeps_deaf = network.0.plant == Some(Plant::DeafLeaderKept);
        let serve = |network: Network, request| {
            move |node: SimConsensus| async move {
                let is_deaf = network.hearing(to, from, |hearing| {
                    hearing.heard(echo);
                    hearing.is_deaf(now())
                });
                if is_deaf && !keeps_deaf {
                    node.ignored_deaf(NodeId(from));
                    return Err("the follower ignores a node that does not hear it".to_owned());
                }
                node.append_entries(request).await.map_err(|error| error.to_string())
            }
        };
        let answered = self.call(&option, serve(network.clone(), request.clone())).await;
        let learner = network.0.learner.get().filter(|learner| *learner != self.to);
        match learner {
            Some(learner) if answered.is_err() && network.0.plant == Some(Plant::LearnerInQuorum) => {
                let other = Self { to: learner, ..self.clone() };
                other.call(&option, |node| async move { node.append_entries(request).await }).await
            }
            _ => answered,
        }
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<StreamAppendResult<Types>, RPCError<Types>>>, RPCError<Types>>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        let requests = self.network.requests(self.from, self.to);
        let appends = without_needless_notices(input, self.network.0.notices, requests);
        stream_append_sequential(self, Box::pin(appends), option)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let votes_at_once = self.network.0.plant == Some(Plant::VoteAfterRestart);
        let serve = |node: SimConsensus| async move {
            if votes_at_once { node.raft().vote(request).await } else { node.vote(request).await }
        };
        self.call(&option, serve).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let votes_at_once = self.network.0.plant == Some(Plant::VoteAfterRestart);
        let serve = |node: SimConsensus| async move {
            if votes_at_once { node.raft().pre_vote(request).await } else { node.pre_vote(request).await }
        };
        self.call(&option, serve).await
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        self.call(&option, |node| async move { node.take_over(request).await }).await
    }

    async fn full_snapshot(
        &mut self,
        vote: RaftVote,
        snapshot: RaftSnapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let SnapshotHandle::Send(Some(snapshots)) = snapshot.snapshot else {
            return Err(unreachable("the snapshot was received").into());
        };
        let least = snapshot.meta.last_log_id.as_ref().map_or(Index::ZERO, |last| Index(last.index));
        let sending = async {
            let mut reader = snapshots.open(least).await.map_err(|error| unreachable(&error.to_string()))?;
            self.send_snapshot(vote, &mut *reader).await
        };
        let (sending, cancel) = (pin!(sending), pin!(cancel));
        match select(sending, cancel).await {
            Either::Left((sent, _)) => sent.map_err(Into::into),
            Either::Right((closed, _)) => Err(StreamingError::Closed(closed)),
        }
    }
}
