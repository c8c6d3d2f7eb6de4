//! Messages between the subscribers of this node and those of the other nodes.
//!
//! Owns: the thread that carries them, and its tasks for each other node: one sends ([`outbound`]), one receives
//! ([`inbound`]). Does not own: the choice of receivers, the filters and the queues (`broker`), or the bytes
//! (`wire::peer`).
//!
//! ```text
//! publish ──► Broker ──► NodeLink ──► outbound ─── socket ───► inbound ──► Broker of the other node ──► its clients
//!                                        ▲
//!             Announcements ─────────────┘   before the batches that were taken earlier
//! ```
//! For this channel, each node dials each other node and sends its own filters and messages there. Messages from
//! another node arrive on the connection which that node has dialled. This thread is not the consensus thread, so a
//! heartbeat never waits for messages. The listener accepts the connections on the consensus thread and hands them over
//! to this one.
//!
//! Invariants: messages from another node go only to clients, so a message makes one hop. A publish never waits for
//! another node: the queue for each node is limited, and lost messages are counted. The filters of a node apply while
//! its connection lasts and the node is not down.

mod inbound;
mod outbound;
mod place;

use std::{
    collections::BTreeMap,
    io,
    rc::Rc,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use thalweg_broker::{Broker, NodeLink, NodeStats};
use thalweg_serving::{
    cluster::{ClusterReport, MemberHealth},
    views::Bell,
};
use thalweg_types::{NodeId, limits::MAX_NODE_QUEUE_BYTES};
use thalweg_wire::peer::SUBJECTS_FROM;
use tokio::{
    net::TcpStream,
    runtime::LocalOptions,
    sync::{mpsc, watch},
    task::{AbortHandle, spawn_local},
};

use self::place::PeerAddress;
use crate::{
    handshake::{Credentials, Peer},
    secured::Secured,
};

/// Maximum number of accepted connections that wait for the thread of the subject messages. Further ones are closed,
/// and their nodes dial again.
const MAX_ACCEPTED: usize = 64;
/// Maximum number of connected nodes that are not members and whose protocol versions are remembered. Above it, their
/// versions are forgotten.
const MAX_STRANGERS: usize = 64;

/// Addresses of the other members, each with a flag that the member accepts messages of subscribers.
type PeerAddresses = BTreeMap<NodeId, PeerAddress>;

/// An accepted connection on its way from the listener's thread to the thread that serves subject messages. A plain
/// socket is registered with the serving thread's runtime. A TLS session stays registered with the listener's runtime,
/// which wakes the serving thread.
enum HandedOver {
    Plain(std::net::TcpStream),
    Tls(Secured<TcpStream>),
}

impl HandedOver {
    fn new(stream: Secured<TcpStream>) -> io::Result<Self> {
        match stream {
            Secured::Plain(stream) => stream.into_std().map(Self::Plain),
            session @ Secured::Tls(_) => Ok(Self::Tls(session)),
        }
    }

    fn receive(self) -> io::Result<Secured<TcpStream>> {
        match self {
            Self::Plain(stream) => TcpStream::from_std(stream).map(Secured::Plain),
            Self::Tls(session) => Ok(session),
        }
    }
}

/// Receivers and credentials that the thread for subject messages takes over when it starts.
struct Parts {
    credentials: Credentials,
    accepted: mpsc::Receiver<(NodeId, HandedOver)>,
    places: watch::Receiver<PeerAddresses>,
    stop: watch::Receiver<bool>,
}

struct Inner {
    accepted: mpsc::Sender<(NodeId, HandedOver)>,
    places: watch::Sender<PeerAddresses>,
    /// Version of the protocol on the newest connection from each node.
    versions: Mutex<BTreeMap<NodeId, u16>>,
    parts: Mutex<Option<Parts>>,
    is_running: AtomicBool,
    links: Mutex<BTreeMap<NodeId, Arc<NodeLink>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Exchange of messages between this node and all others. Clones share it.
#[derive(Clone)]
pub(crate) struct Mesh(Arc<Inner>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mesh {
    /// Creates the exchange of messages between this node and all others. It carries no messages until
    /// [`start`](Self::start) is called.
    pub(crate) fn new(credentials: Credentials, stop: watch::Receiver<bool>) -> Self {
        let (accepted, receiver) = mpsc::channel(MAX_ACCEPTED);
        let (places, of_thread) = watch::channel(PeerAddresses::new());
        let parts = Parts { credentials, accepted: receiver, places: of_thread, stop };
        Self(Arc::new(Inner {
            accepted,
            places,
            versions: Mutex::default(),
            parts: Mutex::new(Some(parts)),
            is_running: AtomicBool::new(false),
            links: Mutex::default(),
            thread: Mutex::default(),
        }))
    }

    /// Starts a thread that exchanges the messages of this node's broker with the other nodes. Does nothing after the
    /// first call.
    pub(crate) fn start(&self, broker: &Broker) -> io::Result<()> {
        let Some(parts) = locked(&self.0.parts).take() else { return Ok(()) };
        let (mesh, broker) = (self.clone(), broker.clone());
        let thread = std::thread::Builder::new()
            .name("thalweg-mesh".to_owned())
            .spawn(move || run_thread(&mesh, parts, broker))?;
        *locked(&self.0.thread) = Some(thread);
        self.0.is_running.store(true, Ordering::Release);
        Ok(())
    }

    /// Waits until the thread that exchanges messages has ended. The caller must have set `stop` to true.
    pub(crate) fn join(&self) {
        let thread = locked(&self.0.thread).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread for messages between nodes has panicked");
        }
    }

    /// Records a connection from a node, on any channel.
    pub(crate) fn connected(&self, peer: &Peer) {
        locked(&self.0.versions).insert(peer.node, peer.version);
    }

    /// Takes over a connection for messages that a node has dialled. Closes it if this node does not carry messages
    /// yet.
    pub(crate) fn accept(&self, node: NodeId, stream: Secured<TcpStream>) {
        if !self.0.is_running.load(Ordering::Acquire) {
            return;
        }
        if let Ok(stream) = HandedOver::new(stream) {
            // If the queue is full, the connection is closed, and the node dials again.
            let _ = self.0.accepted.try_send((node, stream));
        }
    }

    /// Updates the list of members from this node's report about the cluster.
    pub(crate) fn update(&self, report: &ClusterReport) {
        let mut versions = locked(&self.0.versions);
        let others = report.members.iter().filter(|member| member.node != report.node);
        let place = |node| versions.get(&node).is_some_and(|version| *version >= SUBJECTS_FROM);
        let places: PeerAddresses = others
            .map(|member| {
                let is_usable = place(member.node) && member.health != MemberHealth::Down;
                (member.node, PeerAddress { address: member.address.clone(), is_usable })
            })
            .collect();
        if versions.len() > places.len() + MAX_STRANGERS {
            versions.retain(|node, _| places.contains_key(node));
        }
        drop(versions);
        self.0.places.send_if_modified(|known| {
            let has_changed = *known != places;
            *known = places;
            has_changed
        });
    }

    /// Returns statistics of the messages exchanged with each other node.
    pub(crate) fn stats(&self) -> Vec<(NodeId, NodeStats)> {
        locked(&self.0.links).iter().map(|(node, link)| (*node, link.stats())).collect()
    }
}

fn run_thread(mesh: &Mesh, parts: Parts, broker: Broker) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build_local(LocalOptions::default())
    {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "messages do not reach other nodes: cannot start their thread");
            return;
        }
    };
    runtime.block_on(carry(mesh, parts, broker));
    // This drops the tasks that still run, and their connections.
    runtime.shutdown_background();
    mesh.0.is_running.store(false, Ordering::Release);
    locked(&mesh.0.links).clear();
}

/// A running task. Dropping this value ends the task.
struct Running(AbortHandle);

impl Running {
    fn spawn(task: impl Future<Output = ()> + 'static) -> Self {
        Self(spawn_local(task).abort_handle())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Another member of the cluster, with the tasks that exchange messages with it.
struct Member {
    link: Arc<NodeLink>,
    place: watch::Sender<PeerAddress>,
    _sending: Running,
    receiving: Option<Running>,
}

async fn carry(mesh: &Mesh, parts: Parts, broker: Broker) {
    let Parts { credentials, mut accepted, mut places, mut stop } = parts;
    let credentials = Rc::new(credentials);
    let mut members: BTreeMap<NodeId, Member> = BTreeMap::new();
    places.mark_changed();
    loop {
        tokio::select! {
            changed = places.changed() => {
                if changed.is_err() {
                    return;
                }
                let known = places.borrow_and_update().clone();
                let mut links = locked(&mesh.0.links);
                members.retain(|node, _| known.contains_key(node));
                links.retain(|node, _| known.contains_key(node));
                for (node, place) in known {
                    let member = members.entry(node).or_insert_with(|| begin(node, &broker, &credentials));
                    if !place.is_usable && member.receiving.take().is_some() {
                        member.link.clear();
                    }
                    links.insert(node, Arc::clone(&member.link));
                    member.place.send_replace(place);
                }
            }
            Some((node, stream)) = accepted.recv() => {
                // A node that is not known as a member yet is closed here, and dials again.
                if let Some(member) = members.get_mut(&node)
                    && let Ok(stream) = stream.receive()
                {
                    let receiving = inbound::receive(node, stream, Arc::clone(&member.link), broker.clone());
                    // The former connection is ended first. Otherwise its end would clear the filters of the new one.
                    member.receiving = None;
                    member.receiving = Some(Running::spawn(receiving));
                }
            }
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

fn begin(node: NodeId, broker: &Broker, credentials: &Rc<Credentials>) -> Member {
    let bell = Bell::new();
    let link = Arc::new(broker.open_node(Arc::clone(&bell) as _, MAX_NODE_QUEUE_BYTES));
    let (place, of_task) = watch::channel(PeerAddress::default());
    let sending = outbound::Outbound {
        node,
        credentials: Rc::clone(credentials),
        broker: broker.clone(),
        link: Arc::clone(&link),
        bell,
        place: of_task,
    };
    Member { link, place, _sending: Running::spawn(sending.run()), receiving: None }
}

#[cfg(test)]
mod tests;
