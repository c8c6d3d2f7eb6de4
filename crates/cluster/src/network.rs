//! openraft's network over the links between nodes.
//!
//! Owns: the links to all other nodes, and openraft's requests over them. Does not own: serving such requests
//! (`service`).
//!
//! Appends with entries are pipelined: several are in flight at a time, and their results are returned in order.
//! openraft sends a heartbeat as a stream with one append without entries. Such an append travels on the control
//! connection until the stream has sent entries, so it never waits behind entries.

use std::{
    cell::{Cell, OnceCell, RefCell},
    collections::BTreeMap,
    fmt,
    future::Future,
    io,
    pin::pin,
    rc::Rc,
    time::Duration,
};

use futures_util::{FutureExt, Stream, StreamExt, future::Either};
use openraft::{
    EntryPayload, OptionalSend,
    base::{BoxFuture, BoxStream},
    errors::{RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{RPCOption, RaftNetworkFactory, RaftNetworkV2},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendError, StreamAppendResult,
        TransferLeaderError, TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};
use thalweg_raft::{
    AppendTimes, FollowerRequests, LogReader, NoticeTimes, RaftEntry, RaftLogId, RaftSnapshot, RaftVote,
    SnapshotHandle, SnapshotReader, without_needless_notices,
};
use thalweg_replica::NodeInfo;
use thalweg_types::{Index, NodeId, SpaceTime, Term, codec::EncodeError};
use thalweg_wire::peer::{
    Appended, BeginSnapshot, Channel, ChunkStored, EndSnapshot, PreVoted, SHORT_FROM, SnapshotBegun, SnapshotChunk,
    SnapshotInstalled, Transfer, Transferred, Voted,
};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use crate::{
    convert::{AppendParts, Range, ask_pre_vote, ask_vote, entry_id, heartbeat, peer_vote, raft_vote, vote_response},
    frames::encoded_by,
    handshake::{Credentials, RemovalNotice},
    hearing::HearingRecord,
    link::{CallError, Connection, DialWarnings, Link, Owned, Path, PendingReply},
    link_counters::{ChannelCounter, LinkBytes, LinkCounters},
    old_entries::OldEntryThreads,
    pipeline::{EntryAge, Pipeline, YIELD_FROM_BYTES, is_far_behind},
    types::{Rt, Types},
};

/// Maximum number of appends to a follower that are in flight at a time.
const MAX_PIPELINED: usize = 32;
/// Maximum time that a follower may take to write the entries of an append. openraft's own limit is one heartbeat
/// interval. A slow fsync takes longer, so with that limit the leader would send the same entries repeatedly. If the
/// follower falls silent, the wait ends sooner; see `link`.
const APPEND_LIMIT: Duration = Duration::from_secs(5);
/// Maximum time between the request for a chunk of a snapshot and its reply. Allows for a slow disk.
pub(crate) const CHUNK_LIMIT: Duration = Duration::from_secs(30);
/// Maximum time that a follower takes to install a received snapshot.
const INSTALL_LIMIT: Duration = Duration::from_secs(600);

/// Links of this node to one other node: one for each channel except the channel for messages of subscribers.
#[derive(Clone)]
pub(crate) struct PeerLinks {
    pub appends: Link,
    pub control: Link,
    pub snapshots: Link,
    pub proposals: Link,
    /// Time of the last request that the other node has forwarded to this node as the leader, and that is answered
    /// after a commit.
    requests: FollowerRequests<Rt>,
    /// Last log entry that the other node has acknowledged to this node as the leader, in replication or in heartbeats.
    acknowledged: Acknowledged,
    /// Address of the other node according to the membership; empty if the membership has none.
    stated: Rc<RefCell<String>>,
}

impl PeerLinks {
    fn new(credentials: &Rc<Credentials>, node: NodeId, address: &str, path: &Path) -> Self {
        let link = |channel| Link::new(Rc::clone(credentials), node, address.to_owned(), channel, path.clone());
        Self {
            appends: link(Channel::Appends),
            control: link(Channel::Control),
            snapshots: link(Channel::Snapshots),
            proposals: link(Channel::Proposals),
            requests: FollowerRequests::default(),
            acknowledged: Acknowledged::default(),
            stated: Rc::default(),
        }
    }

    fn set_address(&self, address: &str) {
        let all = [&self.appends, &self.control, &self.snapshots, &self.proposals];
        all.into_iter().for_each(|link| link.set_address(address));
    }
}

struct Inner {
    credentials: Rc<Credentials>,
    peers: RefCell<BTreeMap<NodeId, PeerLinks>>,
    hearing: HearingRecord,
    counters: LinkCounters,
    warnings: DialWarnings,
    /// Reader of this node's log. It is set after consensus has started, because consensus needs this network to start.
    log: OnceCell<LogReader>,
    /// Counters of the times that appends take. They are set together with `log`.
    times: OnceCell<AppendTimes>,
    /// Threads that read and encode old log entries. They are set together with `log`.
    old_entries: OnceCell<OldEntryThreads>,
}

/// Links to all other nodes. A clone uses the same links.
#[derive(Clone)]
pub(crate) struct Network(Rc<Inner>);

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("credentials", &self.0.credentials).finish_non_exhaustive()
    }
}

impl Network {
    pub(crate) fn new(credentials: Rc<Credentials>, hearing: HearingRecord, counters: LinkCounters) -> Self {
        let (peers, warnings) = (RefCell::default(), DialWarnings::default());
        let (log, times, old_entries) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Self(Rc::new(Inner { credentials, peers, hearing, counters, warnings, log, times, old_entries }))
    }

    /// Flag that this node was removed from the cluster.
    pub(crate) fn removal(&self) -> &RemovalNotice {
        &self.0.credentials.removal
    }

    fn new_links(&self, node: NodeId, address: &str) -> PeerLinks {
        let path = Path::new(self.0.counters.of(node), self.0.warnings.clone());
        PeerLinks::new(&self.0.credentials, node, address, &path)
    }

    /// Returns the counter of the bytes that a node exchanges with this one over a channel.
    pub(crate) fn counter(&self, node: NodeId, channel: Channel) -> ChannelCounter {
        self.0.counters.of(node).of(channel)
    }

    /// Returns the links to a node. `address` is the node's address in the membership. If it has changed there, the
    /// links use the new address from now on.
    pub(crate) fn peer(&self, node: NodeId, address: &str) -> PeerLinks {
        let mut peers = self.0.peers.borrow_mut();
        let links = peers.entry(node).or_insert_with(|| self.new_links(node, address));
        if !address.is_empty() && *links.stated.borrow() != address {
            address.clone_into(&mut links.stated.borrow_mut());
            links.set_address(address);
        }
        links.clone()
    }

    /// Records the address that a connected node has stated. It is used if no other address is known, or if the node
    /// cannot be reached at the known one.
    ///
    /// A joining node is not in the membership yet, and the membership may lack a node's address. If a follower cannot
    /// ping its leader, it ignores the leader's entries, and one of these could contain the address. If the addresses
    /// of many members have changed, no leader can be elected with the addresses in the membership.
    pub(crate) fn introduce(&self, node: NodeId, address: &str) {
        let mut peers = self.0.peers.borrow_mut();
        let links = peers.entry(node).or_insert_with(|| self.new_links(node, address));
        if links.control.address().is_empty() || links.control.cannot_connect() {
            links.set_address(address);
        }
    }

    /// Records that a node has forwarded a request of its client. The node can answer the client only after it has
    /// applied the resulting log entry.
    pub(crate) fn note_waiting(&self, node: NodeId) {
        if let Some(links) = self.0.peers.borrow().get(&node) {
            links.requests.note();
        }
    }

    /// Sets the reader of this node's log and the counters of append times. Starts the threads that read and encode old
    /// entries. Only the first call has an effect.
    pub(crate) fn set_log(&self, log: LogReader, times: AppendTimes) -> io::Result<()> {
        let threads = OldEntryThreads::start()?;
        let reading = threads.clone();
        log.read_old_entries_elsewhere(move |read| {
            let threads = reading.clone();
            async move { threads.run(read).await }.boxed_local()
        });
        let _ = self.0.log.set(log);
        let _ = self.0.times.set(times);
        let _ = self.0.old_entries.set(threads);
        Ok(())
    }

    /// Returns [`EntryAge::Old`] if an append begins with an entry that is no longer in memory, or goes to a follower
    /// that is far behind; otherwise [`EntryAge::New`].
    fn age_of(&self, request: &AppendEntriesRequest<Types>) -> EntryAge {
        let first = self.0.log.get().zip(request.entries.first());
        let is_in_file = first.is_some_and(|(log, first)| log.is_old(Index(first.log_id.index)));
        if is_in_file || is_far_behind(request) { EntryAge::Old } else { EntryAge::New }
    }

    /// Encodes an append. If it has many bytes of old entries, the thread for old entries does this.
    async fn encode(&self, append: AppendParts, age: EntryAge, id: u64) -> Result<Vec<u8>, EncodeError> {
        let bytes = append.payload_bytes();
        let threads = self.0.old_entries.get().filter(|_| age == EntryAge::Old && bytes >= YIELD_FROM_BYTES);
        match threads {
            Some(threads) => threads.run(move || append.encode(id)).await,
            None => encoded_by(bytes, move || append.encode(id)).await,
        }
    }

    /// Records that an append was handed to its connection. If its duration is to be measured, returns the present
    /// time; otherwise returns `None`.
    fn sent(&self, request: &AppendEntriesRequest<Types>) -> Option<Duration> {
        self.0.times.get()?.sent(Index(request.entries.last()?.log_id.index))
    }

    /// Records that a follower has acknowledged all entries of an append. `sent` is the result of [`sent`](Self::sent)
    /// for this append.
    fn acknowledged(&self, sent: Option<Duration>) {
        if let Some((times, sent)) = self.0.times.get().zip(sent) {
            times.acknowledged(sent);
        }
    }

    /// Time of the first log entry, by the members' common clock (space time).
    fn first_time(&self) -> SpaceTime {
        self.0.log.get().and_then(LogReader::first_time).unwrap_or_default()
    }

    /// Returns a new link to a node at this address. The node need not be in the membership.
    pub(crate) fn link_to(&self, node: NodeId, address: &str, channel: Channel) -> Link {
        let path = Path::new(LinkBytes::default(), self.0.warnings.clone());
        Link::new(Rc::clone(&self.0.credentials), node, address.to_owned(), channel, path)
    }

    /// Drops the links to all nodes that are not in `nodes`.
    pub(crate) fn keep(&self, nodes: &[NodeId]) {
        self.0.peers.borrow_mut().retain(|node, _| nodes.contains(node));
        self.0.counters.keep(nodes);
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = PeerNetwork;

    async fn new_client(&mut self, target: u64, info: &NodeInfo) -> PeerNetwork {
        let node = NodeId(target);
        PeerNetwork {
            links: self.peer(node, &info.address),
            network: self.clone(),
            hearing: self.0.hearing.clone(),
            node,
        }
    }
}

/// Last entry that a follower has acknowledged to the leader of one term. Clones share it.
#[derive(Clone, Default)]
struct Acknowledged(Rc<Cell<(Term, Option<RaftLogId>)>>);

impl Acknowledged {
    /// Records the result of an append of the leader of `term`. If the follower has lost entries, returns the last
    /// entry that it has acknowledged.
    ///
    /// A loss shows itself as a conflict with an append that begins at or before this entry. Within one term, a
    /// follower never loses acknowledged entries in a regular way: it acknowledges only entries on its disk, and only a
    /// leader can truncate them. Between two terms of this leader, another leader may have truncated them.
    fn note(&self, term: Term, result: &StreamAppendResult<Types>) -> Option<RaftLogId> {
        let (noted, last) = self.0.get();
        if term < noted {
            return None;
        }
        let acknowledged = last.filter(|_| term == noted);
        match result {
            Ok(last) => {
                self.0.set((term, acknowledged.max(*last)));
                None
            }
            Err(StreamAppendError::Conflict(previous)) => {
                let lost = acknowledged.filter(|last| last >= previous);
                if lost.is_some() {
                    // Replication and heartbeats both notice the loss. Clearing the entry makes sure that it is logged
                    // only once.
                    self.0.set((term, None));
                }
                lost
            }
            Err(StreamAppendError::HigherVote(_)) => None,
        }
    }
}

fn log_loss(node: NodeId, lost: RaftLogId) {
    tracing::error!(
        %node,
        index = lost.index,
        "a member lacks entries that it has acknowledged: it runs on an older copy of its directory, or its disk has \
         lost writes; it gets them again, but may have forgotten votes: replace it"
    );
}

/// openraft's view of the connection to one other node, for the time of one leadership of this node.
pub(crate) struct PeerNetwork {
    links: PeerLinks,
    network: Network,
    hearing: HearingRecord,
    node: NodeId,
}

fn unreachable(error: impl fmt::Display) -> Unreachable<Types> {
    Unreachable::from_string(error.to_string())
}

fn rpc(error: impl fmt::Display) -> RPCError<Types> {
    unreachable(error).into()
}

fn streaming(error: impl fmt::Display) -> StreamingError<Types> {
    unreachable(error).into()
}

fn deadline(option: &RPCOption) -> Instant {
    Instant::now() + option.soft_ttl()
}

/// Sends an append. Returns the pending reply, and the range of entries that is needed to interpret it.
async fn send_append(
    connection: &Connection,
    request: &AppendEntriesRequest<Types>,
    age: EntryAge,
    heard: u64,
    network: &Network,
) -> Result<(Range, PendingReply), CallError> {
    let here = network.0.credentials.node;
    let idle = heartbeat(request, here, heard).filter(|_| connection.version() >= SHORT_FROM);
    if let Some(heartbeat) = idle {
        return Ok((Range::of(request), connection.send(&heartbeat).await?));
    }
    let lost = |reason: String| CallError::Lost { node: connection.node(), reason };
    let first_time = if request.prev_log_id.is_none() { network.first_time() } else { SpaceTime::default() };
    let append = AppendParts::of(request, heard, first_time).map_err(|error| lost(error.to_string()))?;
    let pending = connection.send_encoded(|id| network.encode(append, age, id)).await?;
    Ok((Range::of(request), pending))
}

/// Returns the number of bytes of all commands in an append.
fn payload_bytes(request: &AppendEntriesRequest<Types>) -> usize {
    let bytes = |entry: &RaftEntry| match &entry.payload {
        EntryPayload::Normal(commands) => commands.bytes.len(),
        _ => 0,
    };
    request.entries.iter().map(bytes).sum()
}

/// An append in flight. Its bytes count against the limit on bytes in flight until this value is dropped.
struct SentAppend {
    range: Range,
    pending: PendingReply,
    /// Monotonic time of sending; `None` if the duration of this append is not measured.
    counted: Option<Duration>,
    /// Time of sending, if the append's log entries are old; `None` if they are new.
    old_since: Option<Instant>,
    _connection: Connection,
    _room: OwnedSemaphorePermit,
}

impl PeerNetwork {
    async fn send_snapshot(
        &self,
        vote: RaftVote,
        reader: &mut dyn SnapshotReader,
    ) -> Result<SnapshotResponse<Types>, CallError> {
        let link = &self.links.snapshots;
        let lost = |error: &dyn fmt::Display| CallError::Lost { node: self.node, reason: error.to_string() };
        let id = reader.id().clone();
        let (membership_at, membership) = &id.position.membership;
        let begin = BeginSnapshot {
            vote: peer_vote(&vote),
            last: entry_id(&thalweg_raft::raft_log_id(id.position.last)),
            membership_at: Some(entry_id(&thalweg_raft::raft_log_id(*membership_at))),
            membership: &membership.encode(),
            snapshot: id.nonce,
        };
        let limit = || Instant::now() + CHUNK_LIMIT;
        let begun: SnapshotBegun = link.call::<_, Owned, _>(&begin, limit()).await?;
        if let Some(higher) = &begun.higher {
            return Ok(SnapshotResponse::new(raft_vote(higher)));
        }
        let mut number = begun.next;
        while let Some(chunk) = reader.chunk(number).await.map_err(|error| lost(&error))? {
            let bytes = thalweg_wire::RemainingBytes(&chunk);
            let stored: ChunkStored =
                link.call::<_, Owned, _>(&SnapshotChunk { snapshot: id.nonce, number, bytes }, limit()).await?;
            number += 1;
            if stored.next != number {
                return Err(lost(&"it lost a chunk of the snapshot"));
            }
        }
        let end = EndSnapshot { vote: peer_vote(&vote), snapshot: id.nonce, chunks: number };
        let installed: SnapshotInstalled = link.call::<_, Owned, _>(&end, Instant::now() + INSTALL_LIMIT).await?;
        Ok(SnapshotResponse::new(raft_vote(&installed.vote)))
    }
}

impl RaftNetworkV2<Types> for PeerNetwork {
    type SnapshotData = SnapshotHandle;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let link = if request.entries.is_empty() { &self.links.control } else { &self.links.appends };
        let deadline = deadline(&option);
        let connection = link.connection(deadline).await.map_err(rpc)?;
        let heard = self.hearing.echo(self.node);
        let age = self.network.age_of(&request);
        let (range, pending) = send_append(&connection, &request, age, heard, &self.network).await.map_err(rpc)?;
        let appended: Appended = pending.wait::<Owned, _>(deadline).await.map_err(rpc)?;
        range.response(&appended).map_err(rpc)
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<StreamAppendResult<Types>, RPCError<Types>>>, RPCError<Types>>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        let setup = option.soft_ttl();
        Box::pin(async move {
            let (links, hearing, node) = (self.links.clone(), self.hearing.clone(), self.node);
            let acknowledged = links.acknowledged.clone();
            let network = self.network.clone();
            let pipeline = Rc::new(Pipeline::default());
            let has_sent_entries = Rc::new(Cell::new(false));
            let term = Rc::new(Cell::new(Term::ZERO));
            let appends_term = Rc::clone(&term);
            let acknowledging = (network.clone(), Rc::clone(&pipeline));
            let appends = without_needless_notices(input, NoticeTimes::DEFAULTS, links.requests.clone());
            let sent = appends.then(move |request| {
                appends_term.set(Term(request.vote.leader_id.term));
                has_sent_entries.set(has_sent_entries.get() || !request.entries.is_empty());
                // Once entries are in flight, all appends use their connection, because only a single byte stream keeps
                // their order.
                let link = if has_sent_entries.get() { links.appends.clone() } else { links.control.clone() };
                let (pipeline, hearing, network) = (Rc::clone(&pipeline), hearing.clone(), network.clone());
                async move {
                    let age = network.age_of(&request);
                    let room = pipeline.room_for(payload_bytes(&request), age).await;
                    let connection = link.connection(Instant::now() + setup).await?;
                    let heard = hearing.echo(node);
                    let (range, pending) = send_append(&connection, &request, age, heard, &network).await?;
                    let counted = network.sent(&request);
                    let old_since = (age == EntryAge::Old).then(Instant::now);
                    let (_connection, _room) = (connection, room);
                    Ok::<_, CallError>(SentAppend { range, pending, counted, old_since, _connection, _room })
                }
            });
            let results = sent
                .map(move |sent| (sent, acknowledging.clone()))
                .map(|(sent, (network, pipeline))| async move {
                    let SentAppend { range, pending, counted, old_since, _connection, _room } = sent.map_err(rpc)?;
                    let deadline = Instant::now() + APPEND_LIMIT;
                    let appended: Appended = pending.wait::<Owned, _>(deadline).await.map_err(rpc)?;
                    let result = range.result(&appended).map_err(rpc)?;
                    let is_whole = matches!(&result, Ok(last) if *last == range.last);
                    network.acknowledged(counted.filter(|_| is_whole));
                    if let Some(since) = old_since {
                        pipeline.acknowledged(since.elapsed());
                    }
                    Ok((result, is_whole))
                })
                .buffered(MAX_PIPELINED);
            // After a failure or a partial success, the results of later appends are meaningless.
            let results = results.scan(false, move |has_ended, result| {
                let next = (!*has_ended).then_some(result);
                *has_ended = !matches!(&next, Some(Ok((_, true))));
                if let Some(Ok((result, _))) = &next
                    && let Some(lost) = acknowledged.note(term.get(), result)
                {
                    log_loss(node, lost);
                }
                std::future::ready(next.map(|result| result.map(|(result, _)| result)))
            });
            let results: BoxStream<'s, _> = Box::pin(results);
            Ok(results)
        })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let voted: Voted =
            self.links.control.call::<_, Owned, _>(&ask_vote(&request), deadline(&option)).await.map_err(rpc)?;
        Ok(vote_response(&voted))
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let ask = ask_pre_vote(&request);
        let PreVoted { vote, granted, last } =
            self.links.control.call::<_, Owned, _>(&ask, deadline(&option)).await.map_err(rpc)?;
        Ok(vote_response(&Voted { vote, granted, last }))
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let transfer = Transfer {
            vote: peer_vote(request.from_leader()),
            to: NodeId(*request.to_node_id()),
            last: request.last_log_id().map(entry_id),
        };
        let transferred: Transferred =
            self.links.control.call::<_, Owned, _>(&transfer, deadline(&option)).await.map_err(rpc)?;
        if transferred.accepted {
            return Ok(Ok(()));
        }
        let expected = *request.from_leader();
        Ok(Err(TransferLeaderError::VoteChanged { expected, actual: expected }))
    }

    async fn full_snapshot(
        &mut self,
        vote: RaftVote,
        snapshot: RaftSnapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let SnapshotHandle::Send(Some(snapshots)) = snapshot.snapshot else {
            return Err(streaming("this node makes no snapshots"));
        };
        let least = snapshot.meta.last_log_id.as_ref().map_or(Index::ZERO, |last| Index(last.index));
        let sending = async {
            let mut reader = snapshots.open(least).await.map_err(streaming)?;
            self.send_snapshot(vote, &mut *reader).await.map_err(streaming)
        };
        let (sending, cancel) = (pin!(sending), pin!(cancel.fuse()));
        match futures_util::future::select(sending, cancel).await {
            Either::Left((sent, _)) => sent,
            Either::Right((closed, _)) => Err(StreamingError::Closed(closed)),
        }
    }
}

#[cfg(test)]
mod tests;
