//! Connections from this node to another one.
//!
//! Owns: [`Link`], one connection for one channel of one node: dialling with a pause after failures, requests and their
//! replies. Does not own: the meaning of frames.
//!
//! Each channel has its own TCP connection. The kernel then divides the network between the channels, and a large frame
//! of one channel never delays another channel. On a shared connection, all large frames would have to be cut into
//! pieces for a similar effect. A node has at most ten connections to each other node: five that it dials, of which
//! `subjects` dials one, and five that the other node dials.
//!
//! An attempt to dial continues after the deadline of the request that has started it. Between distant nodes, a new
//! connection takes three round trips, which is longer than a heartbeat may wait.
//!
//! If the network path is cut, a connection stays open, and TCP sends again at longer and longer intervals. On the
//! control channel, each request is answered immediately. So if a node does not answer there for [`SILENT_TICKS`]
//! ticks, all connections to the node are ended. The next request dials again.
//!
//! Invariants: a request that returns [`CallError::Unreachable`] was not sent; one that returns [`CallError::Lost`] may
//! have had its effect. Everything here runs on one thread.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::Rc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    FutureExt,
    future::{LocalBoxFuture, Shared},
};
use thalweg_raft::{Turn, Turns};
use thalweg_serving::cluster::NodeAddresses;
use thalweg_types::{Action, Index, NodeId, codec::EncodeError, limits::LINK_READ_BYTES};
use thalweg_wire::peer::{
    Channel, Chunk, Description, Digest, EntryRequests, Failed, History, MAX_BODY_BYTES, Marks, PeerFrame, PeerKind,
};
use tokio::{
    io::{BufReader, ReadHalf},
    net::TcpStream,
    sync::{Notify, oneshot},
    task::spawn_local,
    time::{Instant, MissedTickBehavior, interval, timeout_at},
};

use crate::{
    about::AboutNode,
    frames::{FrameSender, Heads, encoded, encoded_elsewhere, frame_queue, keep_alive, read_headed},
    handshake::{Credentials, DialledPeer, HandshakeError, OWN_ADDRESS, dial, host_of},
    link_counters::{ChannelCounter, LinkBytes},
    secured::Secured,
    sent_facts::SentFacts,
};

/// Placeholder for the id of a node of which only the address is known. No node has this id.
pub(crate) const UNKNOWN: NodeId = NodeId(0);

/// Pause after the first failed attempt to dial. It doubles with each further failure, up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_millis(200);
/// Maximum time to establish a TCP connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// Interval between two checks of a connection of the control channel.
const TICK: Duration = Duration::from_millis(500);
/// Number of ticks without any reply after which a node with unanswered requests counts as silent. Ticks are counted
/// instead of time, so that a pause of this process does not count.
const SILENT_TICKS: u32 = 4;

/// Returns the words with which error messages of this module name a node.
fn shown(node: &NodeId) -> String {
    if *node == UNKNOWN { "the other node".to_owned() } else { format!("node {node}") }
}

/// Error of a request to another node.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// There is no connection. The request was not sent.
    #[error("{} cannot be reached: {reason}", shown(.node))]
    Unreachable {
        /// Node to which the request was to be sent.
        node: NodeId,
        /// Reason why there is no connection, for people.
        reason: String,
    },
    /// This node itself answers at the address. The request was not sent.
    #[error("this node itself answers at this address")]
    OwnAddress,
    /// The request was sent, but no reply has arrived. It may have taken effect.
    #[error("{} did not answer: {reason}", shown(.node))]
    Lost {
        /// Node to which the request was sent.
        node: NodeId,
        /// Reason why no reply has arrived, for people.
        reason: String,
    },
    /// The other node has replied to the request with an error.
    #[error("{text}")]
    Failed {
        /// Advice of the error to the caller of the request: to retry, to fix the request, or to stop.
        class: Action,
        /// Code of the error in the reply, for programs.
        code: String,
        /// Description of the error for people.
        text: String,
        /// The leader and its address, if the node has named the leader.
        leader: Option<(NodeId, String)>,
    },
    /// The request is too large to be sent.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// Reply frame that this node has received to a request.
#[derive(Debug)]
pub(crate) struct Reply {
    kind: Option<PeerKind>,
    body: Bytes,
}

impl Reply {
    /// Decodes the reply of node `node` as a frame of the type `F`. Returns an error if the reply is a frame of another
    /// kind, or if it reports a failure.
    fn read<'a, F: PeerFrame<'a>>(&'a self, node: NodeId) -> Result<F, CallError> {
        let lost = |reason: String| CallError::Lost { node, reason };
        match self.kind {
            Some(kind) if kind as u8 == F::KIND => {
                F::decode_body(&self.body).map_err(|error| lost(format!("its reply is malformed: {error}")))
            }
            Some(PeerKind::Failed) => {
                let failed = Failed::decode_body(&self.body);
                let failed = failed.map_err(|error| lost(format!("its reply is malformed: {error}")))?;
                Err(CallError::Failed {
                    class: failed.class,
                    code: failed.code.to_owned(),
                    text: failed.text.to_owned(),
                    leader: failed.leader.map(|leader| (leader, failed.address.to_owned())),
                })
            }
            kind => Err(lost(format!("its reply has another kind: {kind:?}"))),
        }
    }
}

type Waiting = Rc<RefCell<HashMap<u64, oneshot::Sender<Reply>>>>;

/// Minimum time between two warnings about failed connections to one address. Without it, each channel would warn again
/// and again.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// Number of stored addresses above which addresses without a recent warning are dropped.
const MAX_WARNED: usize = 1024;

/// Times of the last warnings about addresses that cannot be connected to. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct DialWarnings(Rc<RefCell<HashMap<String, Instant>>>);

impl DialWarnings {
    /// Returns true if a warning about an address is due at `now`, and stores `now` as the time of the last warning.
    fn may_warn(&self, address: &str, now: Instant) -> bool {
        let mut warned = self.0.borrow_mut();
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < WARNING_INTERVAL;
        if warned.get(address).is_some_and(is_recent) {
            return false;
        }
        if warned.len() >= MAX_WARNED {
            warned.retain(|_, at| is_recent(at));
        }
        warned.insert(address.to_owned(), now);
        true
    }
}

/// State that all connections to one other node share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Path {
    /// Notified when the other node falls silent. All connections to that node then end.
    silent: Rc<Notify>,
    bytes: LinkBytes,
    warnings: DialWarnings,
}

impl Path {
    /// Creates the shared state of the connections to a node. `bytes` counts the bytes on these connections.
    pub(crate) fn new(bytes: LinkBytes, warnings: DialWarnings) -> Self {
        Self { silent: Rc::default(), bytes, warnings }
    }
}

/// Numbers of requests that this node has sent and of replies that it has received on a connection so far.
#[derive(Debug, Default)]
struct Traffic {
    sent: Cell<u64>,
    received: Cell<u64>,
}

/// Waits until there have been unanswered requests, and no reply, for [`SILENT_TICKS`] ticks.
async fn silence(traffic: &Traffic) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut before, mut silent) = (traffic.received.get(), 0);
    loop {
        ticks.tick().await;
        let received = traffic.received.get();
        let is_silent = received == before && traffic.sent.get() > received;
        silent = if is_silent { silent + 1 } else { 0 };
        before = received;
        if silent > SILENT_TICKS {
            return;
        }
    }
}

/// An established connection to another node for one channel.
#[derive(Clone)]
pub(crate) struct Connection {
    node: NodeId,
    version: u16,
    sent_facts: Rc<RefCell<SentFacts>>,
    sender: FrameSender,
    waiting: Waiting,
    traffic: Rc<Traffic>,
    next_id: Rc<Cell<u64>>,
    has_ended: Rc<Cell<bool>>,
}

impl Connection {
    fn begin(
        DialledPeer { node, version }: DialledPeer,
        channel: Channel,
        path: &Path,
        stream: Secured<TcpStream>,
    ) -> Self {
        let (reading, writing) = tokio::io::split(stream);
        let (counter, heads) = (path.bytes.of(channel), Heads::of(version));
        let (sender, writer) = frame_queue(writing, heads, counter.clone());
        let (waiting, has_ended) = (Waiting::default(), Rc::new(Cell::new(false)));
        let (traffic, next_id) = (Rc::new(Traffic::default()), Rc::new(Cell::new(1)));
        let (answered, counted, ended, path) =
            (Rc::clone(&waiting), Rc::clone(&traffic), Rc::clone(&has_ended), path.clone());
        spawn_local(async move {
            let silent = async {
                match channel {
                    Channel::Control => silence(&counted).await,
                    _ => std::future::pending().await,
                }
                path.silent.notify_waiters();
            };
            let end =
                |reason: std::io::Result<()>| reason.map_or_else(|error| error.to_string(), |()| "ended".to_owned());
            // Reading has priority: after a pause of this process, replies that have arrived count before the elapsed
            // time.
            let reason = tokio::select! {
                biased;
                read = read_replies(reading, heads, &answered, &counted, &counter) => end(read),
                written = writer => end(written),
                () = path.silent.notified() => "the node is silent".to_owned(),
                () = silent => "the node is silent".to_owned(),
            };
            tracing::debug!(%node, ?channel, reason, "a connection to the node has ended");
            ended.set(true);
            // This tells callers that their replies will not come.
            answered.borrow_mut().clear();
        });
        Self { node, version, sent_facts: Rc::default(), sender, waiting, traffic, next_id, has_ended }
    }

    /// Returns the id of the node at the other end of the connection.
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// Version of the protocol that both nodes use.
    pub(crate) fn version(&self) -> u16 {
        self.version
    }

    /// Facts about this node (such as its log's end and its clock) that it has sent over this connection.
    pub(crate) fn sent_facts(&self) -> &RefCell<SentFacts> {
        &self.sent_facts
    }

    fn lost(&self, reason: &str) -> CallError {
        CallError::Lost { node: self.node, reason: reason.to_owned() }
    }

    /// Sends a frame that has no reply, unless the connection has ended or its queue is full.
    pub(crate) fn post<'a, F: PeerFrame<'a>>(&self, frame: &F) -> Result<(), CallError> {
        let unsent = |reason: &str| CallError::Unreachable { node: self.node, reason: reason.to_owned() };
        if self.has_ended.get() {
            return Err(unsent("the connection has ended"));
        }
        self.sender.try_send(encoded(frame, 0)?).map_err(|_| unsent("its queue is full"))
    }

    /// Sends a request. The returned receiver gets the reply, or an error when the connection ends.
    pub(crate) async fn send<'a, F: PeerFrame<'a>>(&self, frame: &F) -> Result<PendingReply, CallError> {
        self.send_in_turn(frame, None).await
    }

    /// Sends a request like [`send`](Self::send). With a `turn` (a position in the order of sending), first waits until
    /// all requests with earlier turns are sent.
    async fn send_in_turn<'a, F: PeerFrame<'a>>(
        &self,
        frame: &F,
        turn: Option<&Turn>,
    ) -> Result<PendingReply, CallError> {
        let id = self.take_id();
        let bytes = encoded_elsewhere(frame, id).await?;
        if let Some(turn) = turn {
            turn.come().await;
        }
        self.send_bytes(id, bytes).await
    }

    /// Sends a request. `encode` gets the request's id and encodes the frame, possibly on another thread.
    pub(crate) async fn send_encoded<B>(&self, encode: impl FnOnce(u64) -> B) -> Result<PendingReply, CallError>
    where
        B: Future<Output = Result<Vec<u8>, EncodeError>>,
    {
        let id = self.take_id();
        let bytes = encode(id).await?;
        self.send_bytes(id, bytes).await
    }

    fn take_id(&self) -> u64 {
        self.next_id.replace(self.next_id.get() + 1)
    }

    async fn send_bytes(&self, id: u64, bytes: Vec<u8>) -> Result<PendingReply, CallError> {
        let (sender, receiver) = oneshot::channel();
        if self.has_ended.get() {
            return Err(CallError::Unreachable { node: self.node, reason: "the connection has ended".to_owned() });
        }
        self.waiting.borrow_mut().insert(id, sender);
        let pending = PendingReply { id, waiting: Rc::clone(&self.waiting), receiver, node: self.node };
        self.sender.send(bytes).await.map_err(|_| self.lost("the connection has ended"))?;
        self.traffic.sent.set(self.traffic.sent.get() + 1);
        Ok(pending)
    }
}

/// A reply that has not arrived yet. If it is dropped, a later reply is ignored.
pub(crate) struct PendingReply {
    id: u64,
    waiting: Waiting,
    receiver: oneshot::Receiver<Reply>,
    node: NodeId,
}

impl PendingReply {
    /// Waits for the reply until `deadline`, and converts it to a `T` with the reader `R`.
    pub(crate) async fn wait<R, T>(mut self, deadline: Instant) -> Result<T, CallError>
    where
        R: for<'a> ReadReply<'a, T>,
    {
        let node = self.node;
        let lost = |reason: &str| CallError::Lost { node, reason: reason.to_owned() };
        match timeout_at(deadline, &mut self.receiver).await {
            Ok(Ok(reply)) => R::read(&reply, node),
            Ok(Err(_)) => Err(lost("the connection has ended")),
            Err(_) => Err(lost("the time is over")),
        }
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        self.waiting.borrow_mut().remove(&self.id);
    }
}

/// Conversion of a received reply to a value that does not borrow from the reply's bytes.
pub(crate) trait ReadReply<'a, T> {
    /// Decodes the reply of node `node` and converts it to a `T`.
    fn read(reply: &'a Reply, node: NodeId) -> Result<T, CallError>;
}

/// Reads a reply of a frame type that owns its data, so the decoded frame itself is the result.
pub(crate) struct Owned;

impl<'a, F: PeerFrame<'a>> ReadReply<'a, F> for Owned {
    fn read(reply: &'a Reply, node: NodeId) -> Result<F, CallError> {
        reply.read(node)
    }
}

/// Reads the reply with the digest of a member's state, as hexadecimal text.
pub(crate) struct DigestText;

impl<'a> ReadReply<'a, String> for DigestText {
    fn read(reply: &'a Reply, node: NodeId) -> Result<String, CallError> {
        Ok(reply.read::<Digest<'a>>(node)?.hex.to_owned())
    }
}

/// Reads the leader's reply to the question for the ids (names) of client requests. Returns the number of the first
/// name, and each name with the index of its log entry.
pub(crate) struct NameList;

impl<'a> ReadReply<'a, (u64, Vec<(Index, String)>)> for NameList {
    fn read(reply: &'a Reply, node: NodeId) -> Result<(u64, Vec<(Index, String)>), CallError> {
        let EntryRequests { first, entries } = reply.read::<EntryRequests<'a>>(node)?;
        Ok((first, entries.iter().map(|entry| (entry.index, entry.requests.to_owned())).collect()))
    }
}

/// Reads the reply with a member's running hashes (hashes over all applied entries), each with the index of the log
/// entry after which it was taken.
pub(crate) struct MarkList;

impl<'a> ReadReply<'a, Vec<(Index, u64)>> for MarkList {
    fn read(reply: &'a Reply, node: NodeId) -> Result<Vec<(Index, u64)>, CallError> {
        Ok(reply.read::<Marks<'a>>(node)?.marks.iter().map(|mark| (mark.index, mark.hash)).collect())
    }
}

/// Reads the reply with a chunk of a snapshot. Also returns the number that the sender has given to the snapshot.
pub(crate) struct SentChunk;

impl<'a> ReadReply<'a, (u64, Bytes)> for SentChunk {
    fn read(reply: &'a Reply, node: NodeId) -> Result<(u64, Bytes), CallError> {
        let chunk = reply.read::<Chunk<'a>>(node)?;
        Ok((chunk.snapshot, reply.body.slice_ref(chunk.bytes.0)))
    }
}

/// Reads the reply to the question if a node has voted and has log entries.
pub(crate) struct AnsweredHistory;

impl<'a> ReadReply<'a, thalweg_raft::History> for AnsweredHistory {
    fn read(reply: &'a Reply, node: NodeId) -> Result<thalweg_raft::History, CallError> {
        let History { has_voted, has_entries } = reply.read(node)?;
        Ok(thalweg_raft::History { has_voted, has_entries })
    }
}

impl<'a> ReadReply<'a, AboutNode> for AboutNode {
    fn read(reply: &'a Reply, node: NodeId) -> Result<AboutNode, CallError> {
        let described = reply.read::<Description<'a>>(node)?;
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Ok(AboutNode {
            name: described.name.to_owned(),
            zone: described.zone.to_owned(),
            version: described.software.to_owned(),
            serves: NodeAddresses {
                http: text(described.http),
                native: text(described.native),
                resp: text(described.resp),
            },
        })
    }
}

async fn read_replies(
    reading: ReadHalf<Secured<TcpStream>>,
    heads: Heads,
    waiting: &Waiting,
    traffic: &Traffic,
    counter: &ChannelCounter,
) -> std::io::Result<()> {
    let mut reading = BufReader::with_capacity(LINK_READ_BYTES, reading);
    while let Some(frame) = read_headed(&mut reading, heads, MAX_BODY_BYTES).await? {
        traffic.received.set(traffic.received.get() + 1);
        counter.received(frame.wire_bytes);
        // If the caller has given up, its waiter is gone already.
        let waiter = waiting.borrow_mut().remove(&frame.id);
        if let Some(waiter) = waiter {
            let _ = waiter.send(Reply { kind: frame.kind, body: frame.body });
        }
    }
    Ok(())
}

/// Reason why an attempt to dial another node has failed.
#[derive(Clone, Debug)]
struct DialFailure {
    reason: String,
    /// True if the attempt has failed because this node itself has answered.
    is_own: bool,
}

impl From<String> for DialFailure {
    fn from(reason: String) -> Self {
        Self { reason, is_own: false }
    }
}

impl DialFailure {
    fn of(error: &HandshakeError) -> Self {
        let is_own = matches!(error, HandshakeError::Rejected { code, .. } if code == OWN_ADDRESS);
        Self { reason: error.to_string(), is_own }
    }
}

/// An attempt to dial. Any number of requests can wait for it.
type Attempt = Shared<LocalBoxFuture<'static, Result<Connection, DialFailure>>>;

#[derive(Default)]
struct Dialling {
    attempt: Option<Attempt>,
    failures: u32,
    /// Time until which no further attempt to dial is made, and the reason why the last attempt failed; `None` if
    /// dialling need not wait.
    pause: Option<(Instant, DialFailure)>,
}

struct Inner {
    credentials: Rc<Credentials>,
    node: NodeId,
    address: RefCell<String>,
    channel: Channel,
    path: Path,
    connection: RefCell<Option<Connection>>,
    dialling: RefCell<Dialling>,
    turns: Turns,
}

/// This node's connection to another node for one channel. A clone uses the same connection.
#[derive(Clone)]
pub(crate) struct Link(Rc<Inner>);

impl Link {
    pub(crate) fn new(
        credentials: Rc<Credentials>,
        node: NodeId,
        address: String,
        channel: Channel,
        path: Path,
    ) -> Self {
        let (address, connection, dialling) = (RefCell::new(address), RefCell::default(), RefCell::default());
        let turns = Turns::default();
        Self(Rc::new(Inner { credentials, node, address, channel, path, connection, dialling, turns }))
    }

    /// Address of the node; empty if none is known.
    pub(crate) fn address(&self) -> String {
        self.0.address.borrow().clone()
    }

    /// Sets the address of the node. If the address has changed, later requests dial the new one.
    pub(crate) fn set_address(&self, address: &str) {
        if *self.0.address.borrow() != address {
            address.clone_into(&mut self.0.address.borrow_mut());
            self.0.connection.borrow_mut().take();
            *self.0.dialling.borrow_mut() = Dialling::default();
        }
    }

    /// Returns true if there is no connection and the last attempt to dial the present address has failed.
    pub(crate) fn cannot_connect(&self) -> bool {
        self.established().is_none() && self.0.dialling.borrow().failures > 0
    }

    fn established(&self) -> Option<Connection> {
        let connection = self.0.connection.borrow();
        connection.as_ref().filter(|connection| !connection.has_ended.get()).cloned()
    }

    /// Returns the connection of this link. If there is none, dials and waits until `deadline`. The attempt to dial
    /// continues after that, because later requests can use the connection.
    pub(crate) async fn connection(&self, deadline: Instant) -> Result<Connection, CallError> {
        let failed = |DialFailure { reason, is_own }| {
            if is_own { CallError::OwnAddress } else { CallError::Unreachable { node: self.0.node, reason } }
        };
        if let Some(connection) = self.established() {
            return Ok(connection);
        }
        let attempt = self.attempt().map_err(failed)?;
        let connected = timeout_at(deadline, attempt).await;
        connected.map_err(|_| failed("the time is over".to_owned().into()))?.map_err(failed)
    }

    /// Returns the attempt to dial that is in progress, or begins one. During the pause after a failed attempt, returns
    /// the reason of that failure as the error.
    fn attempt(&self) -> Result<Attempt, DialFailure> {
        let mut dialling = self.0.dialling.borrow_mut();
        if let Some(attempt) = &dialling.attempt {
            return Ok(attempt.clone());
        }
        if let Some((until, failure)) = &dialling.pause
            && Instant::now() < *until
        {
            return Err(failure.clone());
        }
        let link = self.clone();
        let task = spawn_local(async move {
            let address = link.0.address.borrow().clone();
            let dialled = link.dial(&address).await;
            link.finish(&address, &dialled);
            dialled
        });
        let attempt =
            task.map(|dialled| dialled.unwrap_or_else(|error| Err(error.to_string().into()))).boxed_local().shared();
        dialling.attempt = Some(attempt.clone());
        Ok(attempt)
    }

    /// Records the result of an attempt to dial `address`. Does nothing if the node has another address in the
    /// meantime.
    fn finish(&self, address: &str, dialled: &Result<Connection, DialFailure>) {
        if *self.0.address.borrow() != address {
            return;
        }
        let mut dialling = self.0.dialling.borrow_mut();
        dialling.attempt = None;
        match dialled {
            Ok(connection) => {
                *dialling = Dialling::default();
                *self.0.connection.borrow_mut() = Some(connection.clone());
            }
            Err(failure) => {
                let pause = MAX_PAUSE.min(MIN_PAUSE * 2_u32.pow(dialling.failures.min(4)));
                dialling.failures += 1;
                dialling.pause = Some((Instant::now() + pause, failure.clone()));
            }
        }
    }

    async fn dial(&self, address: &str) -> Result<Connection, DialFailure> {
        if address.is_empty() {
            return Err("its address is not known".to_owned().into());
        }
        if self.0.credentials.removal.is_set() {
            return Err(DialFailure::of(&HandshakeError::Removed));
        }
        let connecting = tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(address));
        let connected = connecting.await.map_err(|_| format!("no connection to {address} within {CONNECT_LIMIT:?}"))?;
        let stream = connected.map_err(|error| format!("{address}: {error}"))?;
        stream.set_nodelay(true).and_then(|()| keep_alive(&stream)).map_err(|error| error.to_string())?;
        let expected = (self.0.node != UNKNOWN).then_some(self.0.node);
        let dialled = dial(stream, &self.0.credentials, self.0.channel, expected, host_of(address)).await;
        match dialled {
            Ok((met, stream)) => Ok(Connection::begin(met, self.0.channel, &self.0.path, stream)),
            Err(error) => {
                let failure = DialFailure::of(&error);
                // A node that starts or stops deserves no warning, and a removal is logged elsewhere.
                let is_expected = failure.is_own || matches!(error, HandshakeError::Io(_) | HandshakeError::Removed);
                if !is_expected && self.0.path.warnings.may_warn(address, Instant::now()) {
                    tracing::warn!(
                        node = %self.0.node, %address, %error,
                        "cannot connect to a node of the cluster; this is logged at most once a minute"
                    );
                }
                Err(failure)
            }
        }
    }

    /// Sends a request and waits for its reply until `deadline`.
    pub(crate) async fn call<'f, F, R, T>(&self, frame: &F, deadline: Instant) -> Result<T, CallError>
    where
        F: PeerFrame<'f>,
        R: for<'a> ReadReply<'a, T>,
    {
        self.call_in_turn::<F, R, T>(None, frame, deadline).await
    }

    /// Reserves the next position in the order in which requests are sent over this link. Positions are in the order of
    /// the calls of this function.
    pub(crate) fn queue(&self) -> Turn {
        self.0.turns.queue()
    }

    /// Sends a request like [`call`](Self::call). With a `turn` (a position in the order of sending) from
    /// [`queue`](Self::queue), sends it after all requests with earlier turns. Without turns, requests could overtake
    /// each other: a large frame is compressed on another thread, and callers learn of a new connection at different
    /// times.
    pub(crate) async fn call_in_turn<'f, F, R, T>(
        &self,
        turn: Option<Turn>,
        frame: &F,
        deadline: Instant,
    ) -> Result<T, CallError>
    where
        F: PeerFrame<'f>,
        R: for<'a> ReadReply<'a, T>,
    {
        let connection = self.connection(deadline).await?;
        let sent = timeout_at(deadline, connection.send_in_turn(frame, turn.as_ref())).await;
        let pending = sent.map_err(|_| connection.lost("the time is over"))??;
        drop(turn);
        pending.wait::<R, T>(deadline).await
    }
}

#[cfg(test)]
mod tests;
