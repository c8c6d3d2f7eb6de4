//! State that all protocols of a server share: the database, the configuration, the bounds on work and
//! memory, subjects and caches.
//!
//! Owns: [`App`], and the lookup of keyspaces and streams by name. Does not own: protocols and their metrics; each
//! protocol's crate keeps its own.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use thalweg_engine::{AsyncDatabase, Database, Keyspace, Origin, Stream};
use tokio::sync::watch;

use crate::{
    admission::{Account, AddressKey, Admission},
    bulk::{BulkTurns, SHARED_ROUND_BYTES},
    cluster::Cluster,
    config::Config,
    created::CreatedByClients,
    error::{self, ApiError},
    half_open::ConnectionSlots,
    held_log::HeldLog,
    metrics::Connections,
    objects::ObjectMemory,
    readers::Readers,
    sole_client::SoleClientMode,
    views::Views,
};

/// State that all requests of a server share.
#[derive(Debug)]
pub struct App {
    /// Handle of the database, with the configured durability level.
    pub db: AsyncDatabase,
    /// Cluster that the node belongs to; `None` if the node runs alone.
    pub cluster: Option<Cluster>,
    /// Configuration of the server.
    pub config: Config,
    /// Bounds on requests, connections and bytes, and the amounts that each client holds.
    pub admission: Arc<Admission>,
    /// Slots (places in a bounded table) of connections that have not finished a handshake, authenticated, or sent a
    /// request.
    pub slots: Arc<ConnectionSlots>,
    /// Account for work that the server does for itself and not for a client, such as creating configured caches at its
    /// start. An account counts the resources that its owner holds.
    pub local: Arc<Account>,
    /// Reservations for everything that clients have created in the database, by client address: keyspaces, streams,
    /// leases, groups, and deletes of many keys that are not finished.
    pub(crate) created: Arc<CreatedByClients>,
    /// Bound on the memory of streams, consumer groups and leases, with the amount in use.
    pub(crate) objects: Arc<ObjectMemory>,
    /// Measures how much log is kept because snapshots are open.
    pub held_log: Arc<HeldLog>,
    /// Counter of native connections. The status of the server reports it over every protocol.
    pub native_connections: Arc<Connections>,
    /// Detects a connection that is the only active one of the server.
    pub sole_client: SoleClientMode,
    /// Threads that perform long reads, and reads from the disk, for all protocols.
    pub readers: Arc<Readers>,
    /// Distributes turns to send bulk output (deliveries and other long output) among the connections on the async
    /// runtime: HTTP, and the native protocol over TLS and QUIC. Each thread that serves other connections has
    /// [turns](crate::threads::ThreadSlot::bulk) of its own.
    pub bulk: Arc<BulkTurns>,
    /// Receiver whose value becomes true when the server stops.
    pub stopping: watch::Receiver<bool>,
    /// Message broker for subjects, and the caches.
    pub views: Arc<Views>,
    /// Time at which the server started to listen.
    pub started: Instant,
    id_seed: u64,
    id_next: AtomicU64,
}

impl App {
    /// Creates the state of a server over a database that runs alone.
    #[must_use]
    pub fn new(config: Config, db: &Database, stopping: watch::Receiver<bool>) -> Arc<Self> {
        Self::of_member(config, db, None, stopping)
    }

    /// Creates the state of a server over a database that may be a member of a cluster.
    #[must_use]
    pub fn of_member(
        config: Config,
        db: &Database,
        cluster: Option<Cluster>,
        stopping: watch::Receiver<bool>,
    ) -> Arc<Self> {
        let admission = Admission::new(&config);
        let objects = ObjectMemory::new(&admission);
        objects.warn_at_start(db);
        let views = Arc::new(Views::new(&config, cluster.is_some()));
        if let Some(cluster) = &cluster {
            cluster.handle.carry_subjects(&views.broker);
        }
        Arc::new(Self {
            slots: Arc::new(ConnectionSlots::new(&config)),
            local: admission.account(AddressKey::LOCAL),
            created: Arc::default(),
            objects,
            held_log: Arc::default(),
            db: db.with_durability(config.durability).to_async(),
            cluster,
            admission,
            native_connections: Arc::default(),
            sole_client: SoleClientMode::new(Instant::now()),
            readers: Arc::new(Readers::with_bytes(config.reading_bytes())),
            bulk: BulkTurns::new(SHARED_ROUND_BYTES, &Arc::default()),
            stopping,
            views,
            started: Instant::now(),
            // Random per process, so that the ids of two runs differ. Correctness does not depend on it.
            id_seed: RandomState::new().build_hasher().finish(),
            id_next: AtomicU64::new(0),
            config,
        })
    }

    /// Returns a number that this process has not returned before, for use as an id.
    pub fn new_number(&self) -> u64 {
        self.id_seed.wrapping_add(self.id_next.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the origin of a client's commands: the client, and the name by which log lines identify the client's
    /// request, if a node needs this name. A name is needed if this node is not the leader and so forwards the
    /// commands, or if a member of the cluster logs the names with the log entries. `name` is called only if the name
    /// is needed.
    pub fn origin<T: Into<Arc<str>>>(&self, account: &Arc<Account>, name: impl FnOnce() -> T) -> Origin {
        let cluster = self.cluster.as_ref().map(|cluster| &cluster.handle);
        let is_named = cluster.is_some_and(|cluster| !cluster.leads() || cluster.names_requests());
        Origin {
            client: Some(Arc::clone(account.client())),
            request: is_named.then(|| name().into()),
            ..Origin::default()
        }
    }

    /// Finds a keyspace. Returns an error if it does not exist.
    pub fn find_keyspace(&self, name: &str) -> Result<Keyspace, ApiError> {
        self.db.blocking().find_keyspace(name).ok_or_else(|| error::no_such_keyspace(name))
    }

    /// Finds a stream. Returns an error if it does not exist.
    pub fn find_stream(&self, name: &str) -> Result<Stream, ApiError> {
        self.db.blocking().find_stream(name).ok_or_else(|| error::no_such_stream(name))
    }
}
