//! Serves the requests that other nodes send to this node's consensus.
//!
//! Owns: the reply to each kind of request. Does not own: connections (`listener`), consensus, or the choice of the
//! snapshot that is being received (`raft`).

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    fmt,
    future::{Future, ready},
    rc::Rc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{FutureExt, future::LocalBoxFuture};
use thalweg_log::Purpose;
use thalweg_raft::{
    BarrierError, Begun, ChangeError, Consensus, RaftVote, Receiving, Reception, SnapshotId, SnapshotPosition,
};
use thalweg_replica::{Membership, NodeInfo, ProposeError};
use thalweg_state::membership::LogId;
use thalweg_types::{
    Action, Classified, Index, NodeId,
    codec::{EncodeError, List, Malformed},
    info::Removal,
};
use thalweg_wire::{
    RemainingBytes,
    peer::{
        Append, AskChunk, AskDigest, AskHistory, AskMarks, AskPreVote, AskRequests, AskSource, AskVersions, AskVote,
        Barrier, BeginSnapshot, Channel, Chunk, ChunkStored, Describe, Description, Digest, EndSnapshot, EntryId,
        EntryRequests, Facts, Failed, HashMark, Heartbeat, History, Manage, ManageKind, Managed, Marks, NamedEntry,
        PeerFrame, PeerKind, Ping, Pong, Propose, Proposed, ReadBarrier, Sign, SnapshotBegun, SnapshotChunk,
        SnapshotInstalled, Source, Transfer, Transferred, Versions,
    },
};
use tokio::{net::TcpStream, sync::watch};

use crate::{
    about::AboutNode,
    convert::{
        append_request, appended, heartbeat_request, peer_vote, pre_vote_request, pre_voted, raft_id, raft_vote,
        vote_request, voted,
    },
    data::Data,
    events::Events,
    frames::{Frame, encoded},
    handshake::{Names, Peer, REMOVED, Rejection, WAS_REMOVED},
    hearing::HearingRecord,
    link::UNKNOWN,
    link_counters::ChannelCounter,
    listener::Service,
    network::Network,
    pipeline::{YIELD_FROM_BYTES, is_far_behind},
    runs::Silence,
    secured::Secured,
    signs::Signs,
    subjects::Mesh,
    types::Rt,
};

/// Interval at which a node checks if the sender of an unfinished snapshot is silent.
pub(crate) const RECEIVING_TICK: Duration = Duration::from_millis(100);
/// Maximum time between two chunks of a received snapshot. After this time, this node drops the unfinished snapshot.
/// The sending leader gives up earlier: it keeps its snapshot and repeats a chunk for a shorter time.
const MAX_IDLE: Duration = Duration::from_secs(60);
const MAX_IDLE_TICKS: u32 = (MAX_IDLE.as_millis() / RECEIVING_TICK.as_millis()) as u32;

/// Minimum time that a connected process has to send a sign of life, after another process with the same node id has
/// tried to connect. If signs of life are frequent, as by default, this minimum applies.
const MIN_ANSWER: Duration = Duration::from_secs(3);
/// Number of signs of life that a connected process may miss, after another process with the same node id has tried to
/// connect, before the other one replaces it.
const MAX_MISSED_SIGNS: u32 = 4;

/// Maximum number of characters in one log line that the ids of client requests take.
const MAX_PRINTED: usize = 4096;

/// An error with which this node replies to a request of another node.
struct Refusal {
    class: Action,
    code: String,
    text: String,
    leader: Option<(NodeId, String)>,
}

impl Refusal {
    fn of(error: &(impl Classified + fmt::Display), leader: Option<(NodeId, String)>) -> Self {
        Self { class: error.action(), code: error.code().to_owned(), text: error.to_string(), leader }
    }

    fn removed() -> Self {
        Self::new(Action::Stop, REMOVED, WAS_REMOVED)
    }

    fn new(class: Action, code: &str, text: impl fmt::Display) -> Self {
        Self { class, code: code.to_owned(), text: text.to_string(), leader: None }
    }
}

/// Returns the ids of clients' requests (`names`) without control characters, for a log line. The sending node has
/// already escaped and shortened them; this makes sure that even wrong ids cannot break the line.
pub(crate) fn printable(names: &str) -> String {
    names.chars().filter(|char| !char.is_control()).take(MAX_PRINTED).collect()
}

impl From<ProposeError> for Refusal {
    fn from(error: ProposeError) -> Self {
        let leader = match &error {
            ProposeError::NotLeader { leader } => leader.clone(),
            _ => None,
        };
        Self::of(&error, leader)
    }
}

impl From<BarrierError> for Refusal {
    fn from(error: BarrierError) -> Self {
        let leader = match &error {
            BarrierError::NotLeader { leader } => leader.clone(),
            _ => None,
        };
        Self::of(&error, leader)
    }
}

impl From<ChangeError> for Refusal {
    fn from(error: ChangeError) -> Self {
        let leader = match &error {
            ChangeError::NotLeader { leader } => leader.clone(),
            _ => None,
        };
        Self::of(&error, leader)
    }
}

impl From<Malformed> for Refusal {
    fn from(error: Malformed) -> Self {
        Self::new(Action::Fix, "malformed_frame", error)
    }
}

impl From<EncodeError> for Refusal {
    fn from(error: EncodeError) -> Self {
        Self::new(Action::Fix, "too_large", error)
    }
}

fn raft_failed(error: impl fmt::Display) -> Refusal {
    Refusal::new(Action::Stop, "consensus_stopped", error)
}

fn io_failed(error: std::io::Error) -> Refusal {
    Refusal::new(Action::Retry, "snapshot_failed", error)
}

/// Encodes the reply to the request with this id. If `result` is an error, the reply is a frame with the error.
fn reply<'a, F: PeerFrame<'a>>(id: u64, result: Result<F, Refusal>) -> Vec<u8> {
    let refusal = match result.and_then(|frame| encoded(&frame, id).map_err(Refusal::from)) {
        Ok(bytes) => return bytes,
        Err(refusal) => refusal,
    };
    let (leader, address) = refusal.leader.map_or((None, String::new()), |(node, address)| (Some(node), address));
    let text: String = refusal.text.chars().take(1000).collect();
    let failed = Failed { class: refusal.class, code: &refusal.code, text: &text, leader, address: &address };
    // The texts are limited in length, so this frame always fits.
    encoded(&failed, id).unwrap_or_default()
}

fn within(millis: u32) -> Duration {
    Duration::from_millis(millis.into())
}

pub(crate) struct Requests {
    pub consensus: Consensus<Rt>,
    pub network: Network,
    pub hearing: HearingRecord,
    pub events: Events,
    pub mesh: Mesh,
    pub signs: Signs,
    pub snapshots: Option<Rc<dyn thalweg_raft::Snapshots>>,
    pub data: Data,
    pub about: RefCell<AboutNode>,
    pub receiving: Receiving,
    /// Time at which a member last asked this node for the ids of client requests; `None` if none has asked.
    pub names_asked: Cell<Option<Instant>>,
    /// Nodes that were removed while this node runs. This node ends their connections and refuses their frames.
    pub removed: watch::Sender<BTreeSet<NodeId>>,
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").field("consensus", &self.consensus).finish_non_exhaustive()
    }
}

impl Requests {
    pub(crate) fn new(
        consensus: Consensus<Rt>,
        (network, hearing, events, mesh): (Network, HearingRecord, Events, Mesh),
        signs: Signs,
        snapshots: Option<Rc<dyn thalweg_raft::Snapshots>>,
        data: Data,
        about: AboutNode,
    ) -> Self {
        let (about, receiving) = (RefCell::new(about), Receiving::new(MAX_IDLE_TICKS));
        let names_asked = Cell::default();
        let removed = watch::Sender::default();
        Self {
            consensus,
            network,
            hearing,
            events,
            mesh,
            signs,
            snapshots,
            data,
            about,
            receiving,
            names_asked,
            removed,
        }
    }

    /// Ends the connections of a removed node, and makes this node refuse its frames from now on.
    pub(crate) fn dismiss(&self, node: NodeId) {
        self.removed.send_if_modified(|removed| removed.insert(node));
    }

    /// Returns an error if this node has applied the removal of `node`. The connections of `node` end shortly
    /// afterwards.
    fn check_not_removed(&self, node: NodeId) -> Result<(), Refusal> {
        match self.consensus.is_removed(node) {
            Ok(false) => Ok(()),
            Ok(true) => Err(Refusal::removed()),
            Err(error) => Err(raft_failed(error)),
        }
    }

    /// Records the last ping that the sender of an append has received. Returns an error if the append must be ignored,
    /// because the sender does not receive this node's pings.
    fn hear_leader(&self, from: NodeId, heard: u64) -> Result<(), Refusal> {
        self.hearing.heard(from, heard);
        if !self.hearing.is_deaf(from) {
            return Ok(());
        }
        self.consensus.ignored_deaf(from);
        Err(Refusal::new(Action::Retry, "deaf_leader", "this node ignores a leader that does not hear it"))
    }

    /// Lets threads that serve clients run first, before this node serves an append with entries of `bytes` bytes.
    /// These threads may belong to other nodes on the same machine.
    fn give_way(&self, bytes: usize, is_far_behind: bool) {
        self.consensus.note_far_behind(is_far_behind);
        if is_far_behind && bytes >= YIELD_FROM_BYTES {
            // While this node catches up, its thread would run for many milliseconds without sleeping, and other
            // threads would wait for the scheduler's next tick.
            std::thread::yield_now();
        }
    }

    async fn append(self: Rc<Self>, from: NodeId, id: u64, body: Bytes) -> Vec<u8> {
        let result = async {
            let frame = Append::decode_body(&body)?;
            self.hear_leader(from, frame.heard)?;
            let request = append_request(&frame, &body);
            let request = request.map_err(|error| Refusal::new(Action::Fix, "malformed_frame", error))?;
            if !request.entries.is_empty() {
                self.give_way(body.len(), is_far_behind(&request));
            }
            if let Some(first) = frame.entries.get(0).filter(|first| first.id.index == Index::ZERO) {
                self.consensus.set_first_time(first.time);
            }
            let response = self.consensus.append_entries(request).await.map_err(raft_failed)?;
            Ok(appended(&response))
        };
        reply(id, result.await)
    }

    async fn heartbeat(self: Rc<Self>, from: NodeId, id: u64, body: Bytes) -> Vec<u8> {
        let result = async {
            let frame = Heartbeat::decode_body(&body)?;
            self.hear_leader(from, frame.heard)?;
            let request = heartbeat_request(&frame, from);
            let response = self.consensus.append_entries(request).await.map_err(raft_failed)?;
            Ok(appended(&response))
        };
        reply(id, result.await)
    }

    async fn ask_vote(self: Rc<Self>, id: u64, body: Bytes) -> Vec<u8> {
        let result = async {
            let request = vote_request(&AskVote::decode_body(&body)?);
            Ok(voted(&self.consensus.vote(request).await.map_err(raft_failed)?))
        };
        reply(id, result.await)
    }

    async fn ask_pre_vote(self: Rc<Self>, id: u64, body: Bytes) -> Vec<u8> {
        let result = async {
            let request = pre_vote_request(&AskPreVote::decode_body(&body)?);
            Ok(pre_voted(&self.consensus.pre_vote(request).await.map_err(raft_failed)?))
        };
        reply(id, result.await)
    }

    async fn transfer(self: Rc<Self>, id: u64, body: Bytes) -> Vec<u8> {
        let result = async {
            let Transfer { vote, to, last } = Transfer::decode_body(&body)?;
            let last = last.as_ref().map(raft_id);
            let request = openraft::raft::TransferLeaderRequest::new(raft_vote(&vote), to.0, last);
            let taken = self.consensus.take_over(request).await.map_err(raft_failed)?;
            Ok(Transferred { accepted: taken.is_ok() })
        };
        reply(id, result.await)
    }

    fn ping(&self, from: NodeId, id: u64, body: &Bytes) -> Vec<u8> {
        let ping = Ping::decode_body(body).map_err(Refusal::from);
        reply(id, ping.map(|ping| self.signs.pinged(from, &ping)))
    }

    /// Records a sign of life without a reply: a `Sign` or `Facts` frame.
    fn sign(&self, from: NodeId, kind: PeerKind, body: &Bytes) {
        let noted = match kind {
            PeerKind::Facts => Facts::decode_body(body).map(|facts| self.signs.facts(from, &facts)),
            _ => Sign::decode_body(body).map(|sign| self.signs.signed(from, &sign)),
        };
        if let Err(error) = noted {
            tracing::debug!(%from, %error, "a sign of life is malformed");
        }
    }

    async fn read_barrier(self: Rc<Self>, from: NodeId, id: u64, body: Bytes) -> Vec<u8> {
        self.network.note_waiting(from);
        let result = async {
            self.check_not_removed(from)?;
            let ReadBarrier { timeout_millis } = ReadBarrier::decode_body(&body)?;
            Ok(Barrier { index: self.consensus.serve_read_index(within(timeout_millis)).await? })
        };
        reply(id, result.await)
    }

    async fn propose(self: Rc<Self>, from: NodeId, id: u64, body: Bytes) -> Vec<u8> {
        self.network.note_waiting(from);
        let result = async {
            self.check_not_removed(from)?;
            let frame = Propose::decode_body(&body)?;
            let purpose = if frame.reclaims { Purpose::Reclaim } else { Purpose::Data };
            let payload = body.slice_ref(frame.payload.0);
            let (request_id, bytes) = (printable(frame.request), payload.len());
            let proposed = self.consensus.propose_forwarded(payload, purpose, within(frame.timeout_millis)).await;
            match &proposed {
                Ok(index) => {
                    self.consensus.names().note(*index, || request_id.clone());
                    tracing::debug!(%from, request_id, bytes, index = index.0, "forwarded commands are committed");
                }
                // The senders retry these requests, and the log reports the cause once.
                Err(ProposeError::NotLeader { .. } | ProposeError::NoLeader | ProposeError::Overloaded { .. }) => {
                    tracing::debug!(%from, request_id, bytes, "forwarded commands are refused");
                }
                Err(error) => tracing::warn!(%from, request_id, bytes, "forwarded commands failed: {error}"),
            }
            Ok(Proposed { index: proposed? })
        };
        reply(id, result.await)
    }

    /// Changes the members of the cluster, which this node leads. Returns the node that was added, changed or removed;
    /// after a transfer of the leadership, the new leader. If a member asks to join again, its name and address are
    /// updated.
    pub(crate) async fn change_members(
        &self,
        kind: ManageKind,
        node: NodeId,
        info: NodeInfo,
        within: Duration,
    ) -> Result<NodeId, ChangeError> {
        let consensus = &self.consensus;
        if matches!(kind, ManageKind::Join | ManageKind::JoinAsLearner) && node == UNKNOWN {
            return Err(ChangeError::Refused("no node has the id 0".to_owned()));
        }
        let change = async {
            match kind {
                ManageKind::Join | ManageKind::JoinAsLearner => {
                    let info = NodeInfo { stays_learner: kind == ManageKind::JoinAsLearner, ..info };
                    match consensus.add_learner(node, info.clone()).await {
                        Err(ChangeError::AlreadyMember(_)) => consensus.set_info(node, info).await?,
                        added => added?,
                    }
                }
                ManageKind::Promote => consensus.promote(node).await?,
                ManageKind::Remove => consensus.remove(node, Removal::Safe).await?,
                ManageKind::ForceRemove => consensus.remove(node, Removal::Forced).await?,
                ManageKind::Transfer => return consensus.transfer((node != UNKNOWN).then_some(node)).await,
            }
            Ok(node)
        };
        let in_time = tokio::time::timeout(within, change).await;
        in_time.unwrap_or_else(|_| {
            Err(ChangeError::OutcomeUnknown { reason: "it took longer than the request allows".to_owned() })
        })
    }

    async fn manage(self: Rc<Self>, from: NodeId, id: u64, body: Bytes) -> Vec<u8> {
        let result = async {
            self.check_not_removed(from)?;
            let Manage { kind, node, name, address, timeout_millis } = Manage::decode_body(&body)?;
            let info = NodeInfo { name: name.to_owned(), ..NodeInfo::at(address) };
            let node = self.change_members(kind, node, info, within(timeout_millis)).await?;
            Ok(Managed { node })
        };
        reply(id, result.await)
    }

    fn describe(&self, id: u64, body: &Bytes) -> Vec<u8> {
        let described = self.about.borrow();
        let text = |address: &Option<String>| address.clone().unwrap_or_default();
        let (http, native, resp) =
            (text(&described.serves.http), text(&described.serves.native), text(&described.serves.resp));
        let result = Describe::decode_body(body).map_err(Refusal::from).map(|Describe {}| Description {
            name: &described.name,
            zone: &described.zone,
            software: env!("CARGO_PKG_VERSION"),
            http: &http,
            native: &native,
            resp: &resp,
        });
        reply(id, result)
    }

    async fn ask_digest(self: Rc<Self>, id: u64, body: Bytes) -> Vec<u8> {
        let asked = AskDigest::decode_body(&body);
        let digest = match &asked {
            Ok(AskDigest { index, timeout_millis }) => self.data.digest(*index, within(*timeout_millis)).await,
            Err(_) => None,
        };
        let result = asked.map_err(Refusal::from).and_then(|_| match &digest {
            Some(hex) => Ok(Digest { hex }),
            None => Err(Refusal::new(Action::Retry, "no_digest", "this node has no digest of its state at this entry")),
        });
        reply(id, result)
    }

    fn ask_marks(&self, id: u64, body: &Bytes) -> Vec<u8> {
        let marks: Vec<_> = self.data.marks().map(|(index, hash)| HashMark { index, hash }).collect();
        let asked = AskMarks::decode_body(body).map_err(Refusal::from);
        reply(id, asked.map(|AskMarks {}| Marks { marks: List::Items(&marks) }))
    }

    fn ask_source(&self, id: u64, body: &Bytes) -> Vec<u8> {
        let db = &self.data.0;
        let gives = db.stopped_serving().is_none() && !db.scrub_stats().is_state_damaged;
        reply(id, AskSource::decode_body(body).map_err(Refusal::from).map(|AskSource {}| Source { gives }))
    }

    fn ask_history(&self, id: u64, body: &Bytes) -> Vec<u8> {
        let thalweg_raft::History { has_voted, has_entries } = self.consensus.history();
        let asked = AskHistory::decode_body(body).map_err(Refusal::from);
        reply(id, asked.map(|AskHistory {}| History { has_voted, has_entries }))
    }

    fn ask_requests(&self, id: u64, body: &Bytes) -> Vec<u8> {
        let asked = AskRequests::decode_body(body);
        let (first, names) = match &asked {
            Ok(AskRequests { after }) => {
                self.names_asked.set(Some(Instant::now()));
                self.consensus.names().after(*after)
            }
            Err(_) => (0, Vec::new()),
        };
        let entries: Vec<_> = names.iter().map(|(index, requests)| NamedEntry { index: *index, requests }).collect();
        reply(id, asked.map_err(Refusal::from).map(|_| EntryRequests { first, entries: List::Items(&entries) }))
    }

    fn ask_versions(&self, id: u64, body: &Bytes) -> Vec<u8> {
        let db = &self.data.0;
        let versions = Versions { known: db.known_version(), in_force: db.version_in_force() };
        reply(id, AskVersions::decode_body(body).map_err(Refusal::from).map(|AskVersions {}| versions))
    }

    async fn begin_snapshot(self: Rc<Self>, from: NodeId, id: u64, body: Bytes) -> Vec<u8> {
        let result = async {
            let frame = BeginSnapshot::decode_body(&body)?;
            let snapshots = self.snapshots.as_ref();
            let snapshots = snapshots.ok_or_else(|| Refusal::new(Action::Stop, "no_snapshots", "no snapshots here"))?;
            let own = self.vote();
            if own > raft_vote(&frame.vote) {
                return Ok(SnapshotBegun { next: 0, higher: Some(peer_vote(&own)) });
            }
            let membership = Membership::decode(frame.membership)
                .ok_or_else(|| Refusal::new(Action::Fix, "malformed_frame", "the membership is malformed"))?;
            let log_id = |id: &EntryId| LogId { term: id.term, index: id.index };
            let at = frame.membership_at.as_ref().map_or(log_id(&frame.last), log_id);
            let position = SnapshotPosition { last: log_id(&frame.last), membership: (at, membership) };
            let snapshot = SnapshotId { position, nonce: frame.snapshot };
            let begun = self.receiving.begin(&**snapshots, (from, raft_vote(&frame.vote)), &snapshot);
            Ok(match begun.await.map_err(io_failed)? {
                Begun::Next(next) => SnapshotBegun { next, higher: None },
                Begun::Higher(vote) => SnapshotBegun { next: 0, higher: Some(peer_vote(&vote)) },
            })
        };
        reply(id, result.await)
    }

    async fn snapshot_chunk(self: Rc<Self>, from: NodeId, id: u64, body: Bytes) -> Vec<u8> {
        let result = async {
            let frame = SnapshotChunk::decode_body(&body)?;
            let mut receiving = self.take_receiving(from, frame.snapshot)?;
            if receiving.writer.next() != frame.number {
                return Err(Refusal::new(Action::Retry, "snapshot_order", "another chunk is next"));
            }
            receiving.writer.write(body.slice_ref(frame.bytes.0)).await.map_err(io_failed)?;
            let next = receiving.writer.next();
            self.receiving.put_back(receiving);
            Ok(ChunkStored { next })
        };
        reply(id, result.await)
    }

    async fn end_snapshot(self: Rc<Self>, from: NodeId, id: u64, body: Bytes) -> Vec<u8> {
        let result = async {
            let frame = EndSnapshot::decode_body(&body)?;
            let receiving = self.take_receiving(from, frame.snapshot)?;
            if receiving.writer.next() != frame.chunks {
                return Err(Refusal::new(Action::Retry, "snapshot_order", "chunks are missing"));
            }
            let installed = self.consensus.install_snapshot(raft_vote(&frame.vote), receiving.writer).await;
            Ok(SnapshotInstalled { vote: peer_vote(&installed.map_err(io_failed)?.vote) })
        };
        reply(id, result.await)
    }

    /// Serves a member that repairs its state: sends one chunk of a snapshot.
    async fn ask_chunk(self: Rc<Self>, id: u64, body: Bytes) -> Vec<u8> {
        match self.chunk(&body).await {
            Ok((snapshot, bytes)) => reply(id, Ok(Chunk { snapshot, bytes: RemainingBytes(&bytes) })),
            Err(refusal) => reply::<Chunk<'_>>(id, Err(refusal)),
        }
    }

    /// Reads one chunk of a snapshot for the request in `body`. Returns the number of the open snapshot, and the chunk.
    /// The chunk is empty after the last one, or if the request names another snapshot than the open one.
    async fn chunk(&self, body: &[u8]) -> Result<(u64, Bytes), Refusal> {
        let AskChunk { snapshot, number, least } = AskChunk::decode_body(body)?;
        let snapshots = self.snapshots.as_ref();
        let snapshots = snapshots.ok_or_else(|| Refusal::new(Action::Stop, "no_snapshots", "no snapshots here"))?;
        let mut reader = snapshots.open(least).await.map_err(io_failed)?;
        let open = reader.id().nonce;
        if snapshot != 0 && snapshot != open {
            return Ok((open, Bytes::new()));
        }
        let chunk = reader.chunk(number).await.map_err(io_failed)?;
        Ok((open, chunk.unwrap_or_default()))
    }

    fn take_receiving(&self, from: NodeId, number: u64) -> Result<Reception, Refusal> {
        let receiving = self.receiving.take(from, number);
        receiving.ok_or_else(|| Refusal::new(Action::Retry, "no_snapshot", "the snapshot was not begun here"))
    }

    fn vote(&self) -> RaftVote {
        use openraft::async_runtime::WatchReceiver;
        self.consensus.raft().server_metrics().borrow_watched().vote
    }
}

impl Service for Requests {
    fn admits(&self, node: NodeId) -> Result<Names, Rejection> {
        match self.consensus.is_removed(node) {
            Ok(false) => Ok(self.consensus.status().members.get(&node).map(|member| member.info.clone())),
            Ok(true) => Err(Rejection::Removed),
            Err(error) => Err(Rejection::Other(format!("this node cannot read its state: {error}").into())),
        }
    }

    fn silence(&self) -> Silence {
        // A node whose signs of life are late for a moment must not lose its id to a process on a copy of its
        // directory.
        let max_answer = MIN_ANSWER.max(MAX_MISSED_SIGNS * self.hearing.sign_interval());
        Silence { max: 3 * self.hearing.down_after(), max_answer }
    }

    fn connected(&self, peer: &Peer) {
        if peer.channel == Channel::Control {
            self.hearing.reconnected(peer.node);
        }
        self.network.introduce(peer.node, &peer.address);
        self.mesh.connected(peer);
    }

    fn take_over(&self, peer: &Peer, stream: Secured<TcpStream>) -> Option<Secured<TcpStream>> {
        if peer.channel != Channel::Subjects {
            return Some(stream);
        }
        self.mesh.accept(peer.node, stream);
        None
    }

    fn dismissal(&self, peer: &Peer) -> LocalBoxFuture<'static, ()> {
        let (mut removed, node) = (self.removed.subscribe(), peer.node);
        async move {
            if removed.wait_for(|removed| removed.contains(&node)).await.is_err() {
                // The sender is gone because this node stops, which also ends the connection.
                std::future::pending::<()>().await;
            }
        }
        .boxed_local()
    }

    fn counter(&self, peer: &Peer) -> ChannelCounter {
        self.network.counter(peer.node, peer.channel)
    }

    fn serve(self: Rc<Self>, peer: &Peer, request: Frame) -> LocalBoxFuture<'static, Vec<u8>> {
        let (from, id, body) = (peer.node, request.id, request.body);
        if self.removed.borrow().contains(&from) {
            let refused = if id == 0 { Vec::new() } else { reply::<Pong>(id, Err(Refusal::removed())) };
            return ready(refused).boxed_local();
        }
        // A member that repairs its state does not take part in the cluster, so its requests are no signs of life.
        let is_alive = request.kind != Some(PeerKind::AskChunk);
        if is_alive && let Some(change) = self.hearing.alive(from) {
            self.events.changed(change);
        }
        fn boxed(future: impl Future<Output = Vec<u8>> + 'static) -> LocalBoxFuture<'static, Vec<u8>> {
            future.boxed_local()
        }
        match request.kind {
            Some(PeerKind::Append) => boxed(self.append(from, id, body)),
            Some(PeerKind::AskVote) => boxed(self.ask_vote(id, body)),
            Some(PeerKind::AskPreVote) => boxed(self.ask_pre_vote(id, body)),
            Some(PeerKind::Transfer) => boxed(self.transfer(id, body)),
            Some(PeerKind::Ping) => boxed(ready(self.ping(from, id, &body))),
            Some(kind @ (PeerKind::Sign | PeerKind::Facts)) => {
                self.sign(from, kind, &body);
                boxed(ready(Vec::new()))
            }
            Some(PeerKind::Heartbeat) => boxed(self.heartbeat(from, id, body)),
            Some(PeerKind::ReadBarrier) => boxed(self.read_barrier(from, id, body)),
            Some(PeerKind::Propose) => boxed(self.propose(from, id, body)),
            Some(PeerKind::Manage) => boxed(self.manage(from, id, body)),
            Some(PeerKind::Describe) => boxed(ready(self.describe(id, &body))),
            Some(PeerKind::AskDigest) => boxed(self.ask_digest(id, body)),
            Some(PeerKind::AskMarks) => boxed(ready(self.ask_marks(id, &body))),
            Some(PeerKind::BeginSnapshot) => boxed(self.begin_snapshot(from, id, body)),
            Some(PeerKind::SnapshotChunk) => boxed(self.snapshot_chunk(from, id, body)),
            Some(PeerKind::EndSnapshot) => boxed(self.end_snapshot(from, id, body)),
            Some(PeerKind::AskSource) => boxed(ready(self.ask_source(id, &body))),
            Some(PeerKind::AskChunk) => boxed(self.ask_chunk(id, body)),
            Some(PeerKind::AskVersions) => boxed(ready(self.ask_versions(id, &body))),
            Some(PeerKind::AskHistory) => boxed(ready(self.ask_history(id, &body))),
            Some(PeerKind::AskRequests) => boxed(ready(self.ask_requests(id, &body))),
            _ => {
                let refusal = Refusal::new(Action::Fix, "unknown_kind", "this node does not know the kind of request");
                boxed(ready(reply::<Pong>(id, Err(refusal))))
            }
        }
    }
}
