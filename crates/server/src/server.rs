//! Binding, serving and stopping of all protocols of a server.
//!
//! Owns: one listener per protocol, the collectors of `/metrics`, and the order of a stop. A stop has these steps: a
//! member of a cluster hands leadership over; the server accepts no new connections and no new requests on open ones;
//! requests in progress may finish within `drain_timeout`; the server closes the remaining connections; consensus
//! stops; the database is closed. Does not own: connections (each protocol's crate), the runtime (the command creates
//! it), signals, log output.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use prometheus_client::collector::Collector;
use thalweg_engine::{Database, WriteError};
use thalweg_transport::{ListenError, Listener, listen};
use thalweg_types::{Action, Classified};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

use thalweg_http::{self as http, Http};
use thalweg_native as native;
use thalweg_resp::{self as resp, gathering::commit_gathered};
use thalweg_serving::{
    accepting::log_panic,
    app::App,
    cluster::{Cluster, NodeAddresses},
    config::{Config, ConfigError, NativeAddress, RespAddress},
    metrics::{Caches, ClusterCollector, Groups, Node, Reads, Shares, Subjects},
    threads::Threads,
};

/// Error of a server that could not start or stop.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The server could not bind its HTTP address.
    #[error("cannot listen on {http}: {error}")]
    Bind {
        /// Configured HTTP address that could not be bound.
        http: SocketAddr,
        /// Error that the operating system returned.
        error: io::Error,
    },
    /// The server could not bind the address of the native protocol.
    #[error("{0}. Choose another address with `native`, or disable the protocol with native = off.")]
    BindNative(ListenError),
    /// The server could not bind the default address of the native protocol, which is the port after that of HTTP.
    #[error(
        "{0}. This is the port after HTTP's (native = next). Choose another address with `native`, or disable \
         the protocol with native = off."
    )]
    BindNext(ListenError),
    /// The options of the native protocol's listener are invalid: the required certificate is missing, or too many
    /// sockets are requested.
    #[error("{0}. `native_tls`, `native_quic_sockets`, `native_certificate` and `native_key` set them.")]
    NativeOptions(ListenError),
    /// The native protocol's certificate cannot be used.
    #[error("{0}. Without a certificate, disable TLS and QUIC with native_tls = false and native_quic_sockets = 0.")]
    Certificate(#[from] thalweg_transport::IdentityError),
    /// The server could not bind the address for Redis clients.
    #[error(
        "cannot listen on {resp} for Redis clients: {error}. Choose another address with `resp`, or disable the \
         protocol with resp = off."
    )]
    BindResp {
        /// Configured address for Redis clients.
        resp: SocketAddr,
        /// Error that the operating system returned.
        error: io::Error,
    },
    /// A database that the configuration offers to Redis clients cannot be served.
    #[error("{0}. `resp_databases` lists the databases.")]
    RespDatabase(#[from] resp::databases::DatabaseError),
    /// The server could not start the threads that serve connections.
    #[error("cannot start threads for connections: {0}. `native_threads` and `resp_threads` set their number.")]
    Threads(io::Error),
    /// Two values of the configuration contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The database could not be closed cleanly. No acknowledged write is lost: the next open replays the log.
    #[error("the database was not closed cleanly: {0}; the next start will replay its log")]
    Close(WriteError),
}

impl ServerError {
    /// Returns the address that the server could not bind, and the error of the operating system; `None` if the start
    /// failed for another reason.
    #[must_use]
    pub fn unbound(&self) -> Option<(SocketAddr, &io::Error)> {
        match self {
            Self::Bind { http: address, error }
            | Self::BindResp { resp: address, error }
            | Self::BindNative(ListenError::Bind { address, error })
            | Self::BindNext(ListenError::Bind { address, error }) => Some((*address, error)),
            _ => None,
        }
    }
}

impl Classified for ServerError {
    fn code(&self) -> &'static str {
        match self {
            Self::Bind { .. } | Self::BindNative(_) | Self::BindNext(_) | Self::BindResp { .. } => "bind",
            Self::RespDatabase(error) => error.code(),
            Self::Threads(_) => "threads",
            Self::Config(error) => error.code(),
            Self::NativeOptions(error) => error.code(),
            Self::Certificate(error) => error.code(),
            Self::Close(_) => "close",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Bind { .. }
            | Self::BindNative(_)
            | Self::BindNext(_)
            | Self::NativeOptions(_)
            | Self::BindResp { .. }
            | Self::Threads(_)
            | Self::Config(_) => Action::Fix,
            Self::RespDatabase(error) => error.action(),
            Self::Certificate(error) => error.action(),
            Self::Close(_) => Action::Stop,
        }
    }
}

/// Longest time for which a stopping leader waits until another node has become the leader. If that node already has
/// all log entries, the transfer of leadership takes one round trip.
const HAND_OVER: Duration = Duration::from_secs(2);

/// A server that is bound and not running yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    native: Option<Native>,
    resp: Option<Redis>,
    http: Arc<Http>,
    stop: watch::Sender<bool>,
}

/// Listener, threads and shared state that serve clients of the native protocol.
#[derive(Debug)]
struct Native {
    listener: Listener,
    threads: Threads,
    native: Arc<native::Native>,
}

/// Listener, threads and shared state that serve Redis clients.
#[derive(Debug)]
struct Redis {
    listener: TcpListener,
    address: SocketAddr,
    threads: Threads,
    resp: Arc<resp::Resp>,
}

impl Server {
    /// Binds the addresses of all protocols, to serve a database that is not a member of a cluster. Must be called on a
    /// tokio runtime. The server closes the database when it stops.
    pub async fn bind(config: Config, db: &Database) -> Result<Self, ServerError> {
        Self::bind_member(config, db, None).await
    }

    /// Binds the addresses of all protocols, to serve a database that is a member of `cluster`; `None` for a node
    /// alone. Must be called on a tokio runtime. When the server stops, it stops the member and closes the database.
    pub async fn bind_member(config: Config, db: &Database, cluster: Option<Cluster>) -> Result<Self, ServerError> {
        config.check()?;
        let http = config.http;
        let listener = listen(http).map_err(|error| ServerError::Bind { http, error })?;
        let address = listener.local_addr().map_err(|error| ServerError::Bind { http, error })?;
        let native = match config.native_address() {
            Some(at) => Some(bind_native(&config, at).await?),
            None => None,
        };
        let (stop, stopping) = watch::channel(false);
        let app = App::of_member(config, db, cluster, stopping);
        let native_metrics = Arc::new(native::metrics::Metrics::new(&app.native_connections));
        let resp_metrics = Arc::new(resp::metrics::Metrics::default());
        let http = Http::new(&app, collectors(&app, &native_metrics, &resp_metrics));
        let native = match native {
            Some(listener) => {
                if let Some(identity) = listener.identity() {
                    native_metrics.serves_as(identity);
                }
                let threads =
                    Threads::start("thalweg-native", app.config.native_threads, app.bulk.counters(), || async {});
                let threads = threads.map_err(ServerError::Threads)?;
                Some(Native { listener, threads, native: native::Native::new(&app, native_metrics) })
            }
            None => None,
        };
        let resp = match app.config.resp {
            RespAddress::At(at) => Some(bind_resp(&app, at, resp_metrics).await?),
            RespAddress::Off => None,
        };
        if let Some(cluster) = &app.cluster {
            let reachable = |at: SocketAddr| Some(app.config.reachable(at));
            cluster.handle.announce(NodeAddresses {
                http: reachable(address),
                native: native.as_ref().and_then(|native| reachable(native.listener.local_addr())),
                resp: resp.as_ref().and_then(|redis| reachable(redis.address)),
            });
        }
        Ok(Self { listener, address, native, resp, http, stop })
    }

    /// Returns the address at which the server listens for HTTP. If the configured port is 0, the address has the port
    /// that the system chose.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address of the native protocol, or `None` if it is not served.
    #[must_use]
    pub fn native_addr(&self) -> Option<SocketAddr> {
        self.native.as_ref().map(|native| native.listener.local_addr())
    }

    /// Returns the address for Redis clients, or `None` if they are not served.
    #[must_use]
    pub fn resp_addr(&self) -> Option<SocketAddr> {
        self.resp.as_ref().map(|redis| redis.address)
    }

    /// Returns the fingerprint of the native protocol's certificate, or `None` if it has no certificate.
    #[must_use]
    pub fn fingerprint(&self) -> Option<thalweg_transport::Fingerprint> {
        self.native.as_ref().and_then(|native| native.listener.fingerprint())
    }

    /// Returns the configured certificate of the native protocol, which can be reloaded. `None` if none is configured,
    /// or the protocol is not served.
    #[must_use]
    pub fn certificate(&self) -> Option<native::security::Certificate> {
        self.native
            .as_ref()
            .and_then(|native| native::security::Certificate::of(&native.listener, &self.http.app.config))
    }

    /// Serves until `shutdown` resolves, then stops and closes the database.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ServerError> {
        let Self { listener, address, native, resp, http, stop } = self;
        let app = Arc::clone(&http.app);
        tracing::info!(%address, durability = app.config.acknowledged().name(), "serving HTTP");
        let mut connections = JoinSet::new();
        let reclaiming = tokio::spawn({
            let app = Arc::clone(&app);
            async move { app.views.reclaim_until(app.stopping.clone()).await }
        });
        let measuring = tokio::spawn({
            let app = Arc::clone(&app);
            async move { app.held_log.measure_until(app.db.blocking(), &app.config, app.stopping.clone()).await }
        });
        if let Some(Native { listener, threads, native }) = native {
            native::security::announce(&listener, threads.count(), &app.config);
            // This task ends with its last connection, so the drain below waits for native connections as it does for
            // HTTP connections.
            connections.spawn(native::listen::serve(native, listener, threads));
        }
        if let Some(Redis { listener, address, threads, resp }) = resp {
            tracing::info!(%address, threads = threads.count(), "serving Redis clients");
            connections.spawn(resp::listen::serve(resp, listener, threads));
        }
        let shutdown = async {
            shutdown.await;
            hand_over(&app).await;
        };
        http::serve_until(shutdown, &http, listener, &mut connections).await;
        let began = Instant::now();
        tracing::info!(connections = connections.len(), "stopping");
        let _ = stop.send(true);
        let all = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(app.config.drain_timeout.0, all).await.is_err() {
            tracing::warn!(connections = connections.len(), "canceling requests that did not finish in time");
            connections.shutdown().await;
        }
        log_panic(reclaiming.await, "the server");
        log_panic(measuring.await, "the server");
        http.stop();
        {
            let app = Arc::clone(&app);
            log_panic(tokio::task::spawn_blocking(move || app.readers.stop()).await, "the readers");
        }
        if let Some(cluster) = &app.cluster
            && let Err(error) = cluster.handle.stop().await
        {
            tracing::warn!(%error, "the links to the other nodes were not closed cleanly");
        }
        let db = app.db.blocking().clone();
        let closed = tokio::task::spawn_blocking(move || db.close()).await;
        tracing::info!(millis = began.elapsed().as_millis() as u64, "stopped");
        match closed {
            Ok(closed) => closed.map_err(ServerError::Close),
            Err(panic) => Err(ServerError::Close(WriteError::StateFailed { reason: panic.to_string() })),
        }
    }
}

/// Hands leadership over to another node while this server still serves, so that writes continue there.
async fn hand_over(app: &App) {
    let Some(cluster) = app.cluster.as_ref().filter(|cluster| cluster.handle.leads()) else { return };
    tracing::info!("handing leadership over");
    if let Err(error) = cluster.handle.hand_over(Instant::now() + HAND_OVER).await {
        tracing::warn!(%error, "leadership was not handed over: the other nodes elect a leader");
    }
}

async fn bind_native(config: &Config, at: SocketAddr) -> Result<Listener, ServerError> {
    let options = native::security::options(config, at.ip())?;
    let bound = Listener::bind(at, options).await;
    bound.map_err(|error| match error {
        ListenError::Bind { .. } if config.native == NativeAddress::Next => ServerError::BindNext(error),
        ListenError::Bind { .. } => ServerError::BindNative(error),
        ListenError::NoCertificate | ListenError::TooManySockets { .. } => ServerError::NativeOptions(error),
    })
}

async fn bind_resp(app: &Arc<App>, at: SocketAddr, metrics: Arc<resp::metrics::Metrics>) -> Result<Redis, ServerError> {
    let failed = |error| ServerError::BindResp { resp: at, error };
    let listener = listen(at).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let databases = resp::databases::Databases::open(app).await?;
    let threads = Threads::start("thalweg-resp", app.config.resp_threads, app.bulk.counters(), || {
        commit_gathered(app.db.clone())
    });
    let threads = threads.map_err(ServerError::Threads)?;
    Ok(Redis { listener, address, threads, resp: resp::Resp::new(app, databases, metrics) })
}

/// Returns the metrics collectors of the node and of the protocols. `/metrics` shows them in this order, after the
/// metrics of HTTP.
fn collectors(
    app: &App,
    native: &Arc<native::metrics::Metrics>,
    resp: &Arc<resp::metrics::Metrics>,
) -> Vec<Box<dyn Collector>> {
    let db = app.db.blocking();
    let cluster = app.cluster.iter().map(|cluster| {
        let collector: Box<dyn Collector> = Box::new(ClusterCollector(Arc::clone(&cluster.handle)));
        collector
    });
    let mut all: Vec<Box<dyn Collector>> = vec![
        Box::new(Node(db.clone())),
        Box::new(Reads(Arc::clone(&app.readers))),
        Box::new(native::metrics::NativeCollector(Arc::clone(native))),
        Box::new(resp::metrics::RespCollector(Arc::clone(resp))),
        Box::new(Groups(db.clone())),
        Box::new(Subjects(Arc::clone(&app.views))),
        Box::new(Caches(Arc::clone(&app.views))),
        Box::new(Shares {
            admission: Arc::clone(&app.admission),
            slots: Arc::clone(&app.slots),
            held_log: Arc::clone(&app.held_log),
            bulk: Arc::clone(app.bulk.counters()),
        }),
    ];
    all.extend(cluster);
    all
}
