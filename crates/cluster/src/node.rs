//! A node's place in a cluster: the thread on which its consensus runs, and the handle to it.
//!
//! Owns: starting and stopping the thread with its listener, links, consensus and background tasks; calls from other
//! threads. Does not own: the database, which the caller opens as a member and closes after the node has stopped.
//!
//! Order of a stop: the background tasks and the listener end, then consensus, then the syncs, then the thread.
//! Proposals in flight end with an unknown outcome.

use std::{
    cell::{Cell, RefCell},
    fmt,
    net::SocketAddr,
    rc::Rc,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicBool},
    time::Instant,
};

use thalweg_engine::{Database, MemberParts, RepairNote};
use thalweg_raft::{Consensus, ConsensusParts, StartError, SyncQueue, SyncThread};
use thalweg_serving::cluster::{EventLog, NodeAddresses};
use thalweg_transport::PeerTls;
use thalweg_types::{Action, Classified, ClusterId, limits::MAX_CLUSTER_CALLS};
use tokio::{
    net::TcpListener,
    runtime::LocalOptions,
    sync::{mpsc, watch},
};

use crate::{
    about::AboutNode,
    calls::{answer_calls, note_addresses},
    comparison::reason,
    data::Data,
    events::Events,
    forwarder::LinkForwarder,
    handshake::Credentials,
    hearing::HearingRecord,
    link_counters::LinkCounters,
    listener,
    network::Network,
    options::NodeOptions,
    peers::Peers,
    service::Requests,
    shared::{Admitted, Calls, Shared},
    signs::Signs,
    subjects::Mesh,
    tasks::Tasks,
    types::Rt,
};

/// Error of a node that could not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The database was opened for a single node, not as a member of a cluster.
    #[error("the database is not a member of a cluster")]
    NotAMember,
    /// The node could not bind a socket to its address for other nodes.
    #[error("cannot listen on {address} for other nodes: {error}")]
    Bind {
        /// Address at which this node was to accept connections of other nodes.
        address: SocketAddr,
        /// Error that the operating system returned when this node tried to bind the address.
        error: std::io::Error,
    },
    /// The address is not a loopback address. Links between machines need encryption.
    #[error("{0} is not a loopback address: links between machines need TLS")]
    NotLoopback(SocketAddr),
    /// A thread could not be started, or ended immediately.
    #[error("cannot start the consensus thread: {0}")]
    Thread(std::io::Error),
    /// The file with the note about a repair could not be read.
    #[error("cannot read the file REPAIR: {0}; `thalweg cluster repair` replaces the state and removes the file")]
    RepairNote(std::io::Error),
    /// Consensus could not start.
    #[error(transparent)]
    Consensus(#[from] StartError),
}

impl Classified for NodeError {
    fn code(&self) -> &'static str {
        match self {
            Self::NotAMember => "not_a_member",
            Self::Bind { .. } => "bind",
            Self::NotLoopback(_) => "not_loopback",
            Self::Thread(_) => "threads",
            Self::RepairNote(_) => "repair_note",
            Self::Consensus(error) => error.code(),
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Bind { .. } | Self::NotLoopback(_) => Action::Fix,
            Self::Consensus(error) => error.action(),
            Self::NotAMember | Self::Thread(_) | Self::RepairNote(_) => Action::Stop,
        }
    }
}

/// This process's member of a cluster: its consensus, links and background tasks. Clones refer to the same member.
#[derive(Clone)]
pub struct Node {
    pub(crate) shared: Arc<Shared>,
    address: SocketAddr,
    tls: Option<PeerTls>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Parts of a node that its consensus thread takes over when it starts.
struct Start {
    db: Database,
    parts: MemberParts,
    cluster: ClusterId,
    options: NodeOptions,
    note: RepairNote,
    listener: std::net::TcpListener,
    credentials: Credentials,
    calls: mpsc::Receiver<Admitted>,
    stop: watch::Receiver<bool>,
    events: Arc<EventLog>,
}

impl Node {
    /// Starts the consensus of a database that was opened as a member. Consensus gets its own thread; this call blocks
    /// until it runs. If a note in the directory says that the node's state is wrong, the node does not serve clients.
    pub fn start(db: &Database, cluster: ClusterId, options: NodeOptions) -> Result<Self, NodeError> {
        let parts = db.member_parts().ok_or(NodeError::NotAMember)?;
        let listen = options.listen;
        if !listen.ip().is_loopback() && options.tls.is_none() {
            return Err(NodeError::NotLoopback(listen));
        }
        let note = db.repair_note().map_err(NodeError::RepairNote)?;
        if let Some(due) = &note.due {
            db.stop_serving(reason(due.after, note.done, options.repairs_itself));
        }
        let tls = options.tls.clone();
        let bound = |error| NodeError::Bind { address: listen, error };
        let listener = std::net::TcpListener::bind(listen).map_err(bound)?;
        listener.set_nonblocking(true).map_err(bound)?;
        let address = listener.local_addr().map_err(bound)?;
        let (calls, receiver) = Calls::new(MAX_CLUSTER_CALLS);
        let (stop, stopping) = watch::channel(false);
        let events = Arc::new(EventLog::default());
        let report = crate::report::empty(cluster, parts.member.node(), options.triggers);
        let advertise = if options.advertise.is_empty() { address.to_string() } else { options.advertise.clone() };
        let credentials = Credentials::of_node(cluster, parts.member.node(), advertise, &options);
        let mesh = Mesh::new(credentials.clone(), stopping.clone());
        let shared = Arc::new(Shared {
            member: parts.member.clone(),
            db: db.clone(),
            report: Mutex::new(report),
            events: Arc::clone(&events),
            mesh,
            counters: LinkCounters::default(),
            calls,
            names_requests: AtomicBool::new(false),
            serves: watch::Sender::default(),
            stop,
            repair_is_due: watch::Sender::new(false),
            thread: Mutex::default(),
        });
        let start = Start {
            db: db.clone(),
            parts,
            cluster,
            options,
            note,
            listener,
            credentials,
            calls: receiver,
            stop: stopping,
            events,
        };
        let (started, starting) = std::sync::mpsc::channel();
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("thalweg-raft".to_owned())
            .spawn(move || run_thread(start, &of_thread, &started))
            .map_err(NodeError::Thread)?;
        *shared.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        match starting.recv() {
            Ok(Ok(())) => Ok(Self { shared, address, tls }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(NodeError::Thread(std::io::Error::other("it has panicked"))),
        }
    }

    /// Returns the address at which this node accepts connections of other nodes.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the TLS configuration of the links, with which their files can be read again; `None` for plain TCP.
    #[must_use]
    pub fn tls(&self) -> Option<&PeerTls> {
        self.tls.as_ref()
    }

    /// Stops consensus and waits until its thread has ended. Later calls do nothing.
    pub fn shut_down(&self) {
        // If the thread has ended already, there is no receiver.
        let _ = self.shared.stop.send(true);
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the consensus thread has panicked");
        }
        self.shared.mesh.join();
    }

    /// Waits until this node must be repaired: its state is wrong or damaged, and other members can give it theirs. At
    /// that time this node's directory names these members (`Database::repair_note`). The caller then stops the node,
    /// closes the database, opens it again, and calls [`repair`](fn@crate::repair) before it starts the node again.
    pub async fn repair_is_due(&self) {
        let mut is_due = self.shared.repair_is_due.subscribe();
        // This cannot fail, because `shared` holds the sender.
        let _ = is_due.wait_for(|is_due| *is_due).await;
    }
}

/// Number of tasks that run before the consensus thread looks for replies on its sockets. While a follower catches up,
/// a single task reads and sends entries for a third of a millisecond. With tokio's default of 61 tasks, the
/// acknowledgements of other followers waited for up to 20 ms.
const EVENT_INTERVAL: u32 = 4;

fn run_thread(start: Start, shared: &Arc<Shared>, started: &std::sync::mpsc::Sender<Result<(), NodeError>>) {
    // With a `LocalSet`, each event that wakes a task would also wake the thread through its eventfd.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = match builder.enable_all().event_interval(EVENT_INTERVAL).build_local(LocalOptions::default()) {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = started.send(Err(NodeError::Thread(error)));
            return;
        }
    };
    runtime.block_on(async {
        match begin(start, shared).await {
            Ok(running) => {
                let _ = started.send(Ok(()));
                running.await;
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        }
    });
    // This drops the tasks that still run, and their connections.
    runtime.shutdown_background();
}

/// Starts all parts of a node. Returns the future that runs until the node stops.
async fn begin(start: Start, shared: &Arc<Shared>) -> Result<impl Future<Output = ()> + use<>, NodeError> {
    let Start { db, parts, cluster, options, note, listener, credentials, calls, mut stop, events } = start;
    let address = options.listen;
    let bound = |error| NodeError::Bind { address, error };
    let listener = TcpListener::from_std(listener).map_err(bound)?;
    let address = listener.local_addr().map_err(bound)?;
    let advertise = credentials.address.clone();
    let MemberParts { log, member, .. } = parts;
    let protection = match &options.tls {
        None => "plain",
        Some(tls) if tls.has_authority() => "tls with an authority",
        Some(_) => "tls with the secret",
    };
    let credentials = Rc::new(credentials);
    let hearing = HearingRecord::new(options.consensus.deaf_after(), options.detector);
    let events = Events(events);
    let network = Network::new(Rc::clone(&credentials), hearing.clone(), shared.counters.clone());
    let queue = Arc::new(SyncQueue::<Rt>::new(log));
    let syncs = Arc::new(SyncThread::start(Arc::clone(&queue)).map_err(NodeError::Thread)?);
    let snapshots = crate::snapshots::of(&db);
    let consensus = Consensus::start(
        ConsensusParts {
            member: member.clone(),
            queue,
            driver: Arc::clone(&syncs) as _,
            network: network.clone(),
            snapshots: snapshots.clone(),
            forwarder: Some(Rc::new(LinkForwarder(network.clone()))),
        },
        options.consensus,
    )
    .await?;
    network.set_log(consensus.reader().clone(), consensus.append_times()).map_err(NodeError::Thread)?;
    let about = AboutNode {
        name: options.name.clone(),
        zone: options.zone.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        serves: NodeAddresses::default(),
    };
    let data = Data(db.clone());
    let peers = Peers::default();
    let signs =
        Signs { consensus: consensus.clone(), hearing: hearing.clone(), events: events.clone(), peers: peers.clone() };
    let requests = Requests::new(
        consensus.clone(),
        (network.clone(), hearing.clone(), events.clone(), shared.mesh.clone()),
        signs.clone(),
        snapshots,
        data.clone(),
        about,
    );
    let requests = Rc::new(requests);
    tokio::task::spawn_local(listener::serve(listener, credentials, Rc::clone(&requests), stop.clone()));
    let tasks = Rc::new(Tasks {
        consensus: consensus.clone(),
        network,
        hearing,
        events,
        peers,
        signs,
        data,
        db,
        requests,
        shared: Arc::clone(shared),
        options,
        note: RefCell::new(note),
        cluster,
        advertise,
        was_removed: Cell::new(false),
        undecided: Cell::new(None),
    });
    Tasks::spawn(&tasks);
    tokio::task::spawn_local(answer_calls(Rc::clone(&tasks), calls));
    tokio::task::spawn_local(note_addresses(Rc::clone(&tasks)));
    tracing::info!(%address, %cluster, node = %member.node(), protection, "serving other nodes");
    Ok(async move {
        // An error means that the last handle was dropped, which also stops the node.
        let _ = stop.wait_for(|stop| *stop).await;
        let began = Instant::now();
        tasks.consensus.stop().await;
        drop(syncs);
        tracing::info!(millis = began.elapsed().as_millis() as u64, "consensus has ended");
    })
}
