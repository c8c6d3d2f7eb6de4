//! Connections from this node to another one.
//!
//! Owns: [`Link`], one connection for one channel of one node: dialling with a pause after failures, requests and their
//! replies. Does not own: the meaning of frames.
//!
//! A channel has a TCP connection of its own instead of a share of one connection. The kernel then divides the network
//! between them, and a large frame of one channel never delays another one, which a single ordered byte stream could only
//! approach by cutting all large frames. A node has at most eight connections to each other node: four that it dials, and
//! four that the other dials.
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
use thalweg_serving::cluster::NodeAddresses;
use thalweg_types::{Action, Index, NodeId, codec::EncodeError};
use thalweg_wire::peer::{Channel, Description, Digest, Failed, MAX_BODY_BYTES, Marks, PeerFrame, PeerKind};
use tokio::{
    io::BufReader,
    net::{TcpStream, tcp::OwnedReadHalf},
    sync::{Mutex, oneshot},
    task::spawn_local,
    time::{Instant, timeout_at},
};

use crate::{
    about::AboutNode,
    frames::{FrameSender, encoded, frame_queue, read_frame},
    handshake::{Credentials, HandshakeError, dial},
};

/// Id of a node that is known by its address only. No node has it.
pub(crate) const UNKNOWN: NodeId = NodeId(0);

/// Pause before the first attempt to dial again after a failure. It doubles up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_millis(200);
/// Maximum time to establish a TCP connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// Size of the buffer in which small frames are read together.
const READ_BYTES: usize = 64 * 1024;

/// Error of a request to another node.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// There is no connection, and the request was not sent.
    #[error("node {node} cannot be reached: {reason}")]
    Unreachable {
        /// Node that was called.
        node: NodeId,
        /// Reason, for people.
        reason: String,
    },
    /// The request was sent, and no reply has arrived. It may have had its effect.
    #[error("node {node} did not answer: {reason}")]
    Lost {
        /// Node that was called.
        node: NodeId,
        /// Reason, for people.
        reason: String,
    },
    /// The node has answered with an error.
    #[error("{text}")]
    Failed {
        /// Class of the error.
        class: Action,
        /// Code of the error.
        code: String,
        /// Error, for people.
        text: String,
        /// Leader and its address, if the node has named it.
        leader: Option<(NodeId, String)>,
    },
    /// The request is too large to be sent.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// Reply to a request.
#[derive(Debug)]
pub(crate) struct Reply {
    kind: Option<PeerKind>,
    body: Bytes,
}

impl Reply {
    /// Decodes the reply and passes it to `read`.
    fn read<'a, F: PeerFrame<'a>>(&'a self, node: NodeId) -> Result<F, CallError> {
        let lost = |reason: String| CallError::Lost { node, reason };
        match self.kind {
            Some(kind) if kind == F::KIND => {
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

/// An established connection.
#[derive(Clone)]
pub(crate) struct Connection {
    node: NodeId,
    sender: FrameSender,
    waiting: Waiting,
    next_id: Rc<Cell<u64>>,
    has_ended: Rc<Cell<bool>>,
}

impl Connection {
    fn begin(node: NodeId, stream: TcpStream) -> Self {
        let (reading, writing) = stream.into_split();
        let (sender, writer) = frame_queue(writing);
        let (waiting, has_ended) = (Waiting::default(), Rc::new(Cell::new(false)));
        let next_id = Rc::new(Cell::new(1));
        let end = {
            let (waiting, has_ended) = (Rc::clone(&waiting), Rc::clone(&has_ended));
            move || {
                has_ended.set(true);
                // The callers see that their replies will not come.
                waiting.borrow_mut().clear();
            }
        };
        let (ended_by_write, ended_by_read) = (end.clone(), end);
        spawn_local(async move {
            if let Err(error) = writer.await {
                tracing::debug!(%node, %error, "a connection to the node has ended");
            }
            ended_by_write();
        });
        let answered = Rc::clone(&waiting);
        spawn_local(async move {
            if let Err(error) = read_replies(reading, &answered).await {
                tracing::debug!(%node, %error, "a connection to the node has ended");
            }
            ended_by_read();
        });
        Self { node, sender, waiting, next_id, has_ended }
    }

    /// Node at the other end.
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    fn lost(&self, reason: &str) -> CallError {
        CallError::Lost { node: self.node, reason: reason.to_owned() }
    }

    /// Sends a request. The returned receiver gets the reply, or an error when the connection ends.
    pub(crate) async fn send<'a, F: PeerFrame<'a>>(&self, frame: &F) -> Result<PendingReply, CallError> {
        let id = self.next_id.replace(self.next_id.get() + 1);
        let bytes = encoded(frame, id)?;
        let (sender, receiver) = oneshot::channel();
        if self.has_ended.get() {
            return Err(CallError::Unreachable { node: self.node, reason: "the connection has ended".to_owned() });
        }
        self.waiting.borrow_mut().insert(id, sender);
        let pending = PendingReply { id, waiting: Rc::clone(&self.waiting), receiver, node: self.node };
        self.sender.send(bytes).await.map_err(|_| self.lost("the connection has ended"))?;
        Ok(pending)
    }
}

/// Reply that has not arrived yet. Dropping it forgets the request.
pub(crate) struct PendingReply {
    id: u64,
    waiting: Waiting,
    receiver: oneshot::Receiver<Reply>,
    node: NodeId,
}

impl PendingReply {
    /// Waits for the reply until `deadline`, and passes it to `read`.
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

/// Conversion of a reply to a value that owns its data.
pub(crate) trait ReadReply<'a, T> {
    /// Decodes and converts the reply.
    fn read(reply: &'a Reply, node: NodeId) -> Result<T, CallError>;
}

/// A reply whose frame owns its data already.
pub(crate) struct Owned;

impl<'a, F: PeerFrame<'a>> ReadReply<'a, F> for Owned {
    fn read(reply: &'a Reply, node: NodeId) -> Result<F, CallError> {
        reply.read(node)
    }
}

/// A digest in hexadecimal.
pub(crate) struct DigestText;

impl<'a> ReadReply<'a, String> for DigestText {
    fn read(reply: &'a Reply, node: NodeId) -> Result<String, CallError> {
        Ok(reply.read::<Digest<'a>>(node)?.hex.to_owned())
    }
}

/// Running hashes, with the indexes of their entries.
pub(crate) struct MarkList;

impl<'a> ReadReply<'a, Vec<(Index, u64)>> for MarkList {
    fn read(reply: &'a Reply, node: NodeId) -> Result<Vec<(Index, u64)>, CallError> {
        Ok(reply.read::<Marks<'a>>(node)?.marks.iter().map(|mark| (mark.index, mark.hash)).collect())
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

async fn read_replies(reading: OwnedReadHalf, waiting: &Waiting) -> std::io::Result<()> {
    let mut reading = BufReader::with_capacity(READ_BYTES, reading);
    while let Some(frame) = read_frame(&mut reading, MAX_BODY_BYTES).await? {
        // A caller that has given up has removed itself.
        let waiter = waiting.borrow_mut().remove(&frame.id);
        if let Some(waiter) = waiter {
            let _ = waiter.send(Reply { kind: frame.kind, body: frame.body });
        }
    }
    Ok(())
}

#[derive(Default)]
struct Dialling {
    failures: u32,
    /// Time before which no further attempt is made, and the reason of the last failure.
    pause: Option<(Instant, String)>,
}

struct Inner {
    credentials: Rc<Credentials>,
    node: NodeId,
    address: RefCell<String>,
    channel: Channel,
    connection: RefCell<Option<Connection>>,
    /// Locked by the request that dials; the others wait for it.
    dialling: Mutex<Dialling>,
}

/// This node's connection to another node for one channel. A clone uses the same connection.
#[derive(Clone)]
pub(crate) struct Link(Rc<Inner>);

impl Link {
    pub(crate) fn new(credentials: Rc<Credentials>, node: NodeId, address: String, channel: Channel) -> Self {
        let (address, connection, dialling) = (RefCell::new(address), RefCell::default(), Mutex::default());
        Self(Rc::new(Inner { credentials, node, address, channel, connection, dialling }))
    }

    /// Sets the address of the node, which the next dialling uses.
    pub(crate) fn set_address(&self, address: &str) {
        if *self.0.address.borrow() != address {
            address.clone_into(&mut self.0.address.borrow_mut());
            self.0.connection.borrow_mut().take();
        }
    }

    fn established(&self) -> Option<Connection> {
        let connection = self.0.connection.borrow();
        connection.as_ref().filter(|connection| !connection.has_ended.get()).cloned()
    }

    /// Returns the connection, and dials if there is none.
    pub(crate) async fn connection(&self, deadline: Instant) -> Result<Connection, CallError> {
        if let Some(connection) = self.established() {
            return Ok(connection);
        }
        let node = self.0.node;
        let unreachable = |reason: String| CallError::Unreachable { node, reason };
        let connecting = async {
            let mut dialling = self.0.dialling.lock().await;
            if let Some(connection) = self.established() {
                return Ok(connection);
            }
            if let Some((until, reason)) = &dialling.pause
                && Instant::now() < *until
            {
                return Err(unreachable(reason.clone()));
            }
            match self.dial().await {
                Ok(connection) => {
                    *dialling = Dialling::default();
                    *self.0.connection.borrow_mut() = Some(connection.clone());
                    Ok(connection)
                }
                Err(reason) => {
                    let pause = MAX_PAUSE.min(MIN_PAUSE * 2_u32.pow(dialling.failures.min(4)));
                    dialling.failures += 1;
                    dialling.pause = Some((Instant::now() + pause, reason.clone()));
                    Err(unreachable(reason))
                }
            }
        };
        timeout_at(deadline, connecting).await.unwrap_or_else(|_| Err(unreachable("the time is over".to_owned())))
    }

    async fn dial(&self) -> Result<Connection, String> {
        let address = self.0.address.borrow().clone();
        if address.is_empty() {
            return Err("its address is not known".to_owned());
        }
        let connecting = tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(&address));
        let connected = connecting.await.map_err(|_| format!("no connection to {address} within {CONNECT_LIMIT:?}"))?;
        let mut stream = connected.map_err(|error| format!("{address}: {error}"))?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let expected = (self.0.node != UNKNOWN).then_some(self.0.node);
        let dialled = dial(&mut stream, &self.0.credentials, self.0.channel, expected).await;
        match dialled {
            Ok(node) => Ok(Connection::begin(node, stream)),
            Err(error) => {
                if !matches!(error, HandshakeError::Io(_)) {
                    tracing::warn!(node = %self.0.node, %address, %error, "cannot connect to a node of the cluster");
                }
                Err(error.to_string())
            }
        }
    }

    /// Sends a request and waits for its reply until `deadline`.
    pub(crate) async fn call<'f, F, R, T>(&self, frame: &F, deadline: Instant) -> Result<T, CallError>
    where
        F: PeerFrame<'f>,
        R: for<'a> ReadReply<'a, T>,
    {
        let connection = self.connection(deadline).await?;
        let sent = timeout_at(deadline, connection.send(frame)).await;
        sent.map_err(|_| connection.lost("the time is over"))??.wait::<R, T>(deadline).await
    }
}
