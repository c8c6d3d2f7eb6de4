//! Listening, serving connections, stopping.
//!
//! Owns: the listener, one task a connection, the order of a stop: no new connections, no new requests
//! on old ones, requests in progress may finish within `drain_timeout`, the rest is cut, the database
//! is closed.
//! Does not own: the runtime (the command creates it), signals, log output.

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use axum::{Router, body::Body, http::Response, routing::future::RouteFuture};
use hyper::{Request, body::Incoming};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use pin_project_lite::pin_project;
use thalweg_engine::{Database, WriteError};
use thalweg_transport::{Listener, listen};
use thalweg_types::{Action, Classified};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tower_service::Service as _;

use crate::{
    accepting::{accept_until, log_panic, turn_away},
    admission::Held,
    app::App,
    config::{Config, NativeAddress, RespAddress},
    connection::{Activity, Busy, Patience, Verdict, Watch, Watched},
    limits::{MAX_H2_STREAMS, MAX_HEADER_FIELDS, MAX_HEADER_LIST_BYTES, READ_BUFFER_BYTES},
    native,
    resp::{self, gathering::commit_gathered},
    routes::router,
    threads::Threads,
};

/// To the log.
const WHOSE: &str = "HTTP clients";

/// Why a server could not start or stop.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address could not be bound.
    #[error("cannot listen on {http}: {error}; is another server running there?")]
    Bind {
        /// The address.
        http: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// The native protocol's address could not be bound.
    #[error("{0} choose another with `native`, or serve none with native = off")]
    BindNative(#[from] thalweg_transport::ListenError),
    /// The port after HTTP's could not be bound, where the native protocol is served unless told otherwise.
    #[error(
        "{0} That is the port after HTTP's (native = next): choose another with `native`, or serve none with native = off"
    )]
    BindNext(thalweg_transport::ListenError),
    /// The native protocol's certificate cannot be used.
    #[error("{0}; it is for TLS and QUIC: native_tls = false and native_quic_sockets = 0 do without")]
    Certificate(#[from] thalweg_transport::IdentityError),
    /// The address for Redis clients could not be bound.
    #[error(
        "cannot listen on {resp} for Redis clients: {error}; choose another with `resp`, or serve none with resp = off"
    )]
    BindResp {
        /// The address.
        resp: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// A database of Redis clients cannot be served.
    #[error("{0}; `resp_databases` says which there are")]
    RespDatabase(#[from] resp::databases::DatabaseError),
    /// Threads that serve connections could not be started.
    #[error("cannot start threads for connections: {0}; `native_threads` and `resp_threads` say how many")]
    Threads(io::Error),
    /// The configuration does not hold together.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// The database could not be closed cleanly; nothing acknowledged is lost, the next open replays.
    #[error("the database was not closed cleanly: {0}; the next start will replay its log")]
    Close(WriteError),
}

impl Classified for ServerError {
    fn code(&self) -> &'static str {
        match self {
            Self::Bind { .. } | Self::BindNative(_) | Self::BindNext(_) | Self::BindResp { .. } => "bind",
            Self::RespDatabase(error) => error.code(),
            Self::Threads(_) => "threads",
            Self::Config(error) => error.code(),
            Self::Certificate(error) => error.code(),
            Self::Close(_) => "close",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Bind { .. }
            | Self::BindNative(_)
            | Self::BindNext(_)
            | Self::BindResp { .. }
            | Self::Threads(_)
            | Self::Config(_) => Action::Fix,
            Self::RespDatabase(error) => error.action(),
            Self::Certificate(error) => error.action(),
            Self::Close(_) => Action::Stop,
        }
    }
}

/// A server that is bound and not yet running.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    native: Option<Native>,
    resp: Option<Redis>,
    app: Arc<App>,
    stop: watch::Sender<bool>,
}

/// What serves native clients.
#[derive(Debug)]
struct Native {
    listener: Listener,
    threads: Threads,
}

/// What serves Redis clients.
#[derive(Debug)]
struct Redis {
    listener: TcpListener,
    address: SocketAddr,
    threads: Threads,
    resp: Arc<resp::Resp>,
}

impl Server {
    /// Binds `config.http` and `config.native`. Must be called on a tokio runtime. The server closes the database when it
    /// stops.
    pub async fn bind(config: Config, db: &Database) -> Result<Self, ServerError> {
        config.check()?;
        let http = config.http;
        let listener = listen(http).map_err(|error| ServerError::Bind { http, error })?;
        let address = listener.local_addr().map_err(|error| ServerError::Bind { http, error })?;
        let native = match config.native.resolve(http) {
            Some(at) => Some(bind_native(&config, at).await?),
            None => None,
        };
        let (stop, stopping) = watch::channel(false);
        let app = App::new(config, db, stopping);
        let native = match native {
            Some(listener) => {
                if let Some(identity) = listener.identity() {
                    app.native_metrics.serves_as(identity);
                }
                let threads = Threads::start("thalweg-native", app.config.native_threads, || async {});
                Some(Native { listener, threads: threads.map_err(ServerError::Threads)? })
            }
            None => None,
        };
        let resp = match app.config.resp {
            RespAddress::At(at) => Some(bind_resp(&app, at).await?),
            RespAddress::Off => None,
        };
        Ok(Self { listener, address, native, resp, app, stop })
    }

    /// Where it listens; with port 0 in the configuration, the port that the system chose.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Where it serves the native protocol, if it does.
    #[must_use]
    pub fn native_addr(&self) -> Option<SocketAddr> {
        self.native.as_ref().map(|native| native.listener.local_addr())
    }

    /// Where it serves Redis clients, if it does.
    #[must_use]
    pub fn resp_addr(&self) -> Option<SocketAddr> {
        self.resp.as_ref().map(|redis| redis.address)
    }

    /// The fingerprint of the native protocol's certificate, if it has one.
    #[must_use]
    pub fn fingerprint(&self) -> Option<thalweg_transport::Fingerprint> {
        self.native.as_ref().and_then(|native| native.listener.fingerprint())
    }

    /// The configured certificate of the native protocol, to be read anew; `None` if none is configured, or served.
    #[must_use]
    pub fn certificate(&self) -> Option<native::security::Certificate> {
        self.native.as_ref().and_then(|native| native::security::Certificate::of(&native.listener, &self.app.config))
    }

    /// Serves until `shutdown` resolves, then stops and closes the database.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ServerError> {
        let Self { listener, address, native, resp, app, stop } = self;
        tracing::info!(%address, durability = app.config.durability.name(), "serving HTTP");
        let mut connections = JoinSet::new();
        let reclaiming = tokio::spawn({
            let app = Arc::clone(&app);
            async move { app.views.reclaim_until(app.stopping.clone()).await }
        });
        if let Some(Native { listener, threads }) = native {
            native::security::announce(&listener, threads.count(), &app.config);
            // Ends with its last connection, so the drain below waits for those as for HTTP's.
            connections.spawn(native::listen::serve(native::Native::new(&app), listener, threads));
        }
        if let Some(Redis { listener, address, threads, resp }) = resp {
            tracing::info!(%address, threads = threads.count(), "serving Redis clients");
            connections.spawn(resp::listen::serve(resp, listener, threads));
        }
        let router = router(&app);
        let begin = |(stream, _), connections: &mut JoinSet<()>| begin(stream, &app, &router, connections);
        accept_until(shutdown, || listener.accept(), begin, &mut connections, WHOSE).await;
        drop(listener);
        let began = Instant::now();
        tracing::info!(connections = connections.len(), "stopping");
        let _ = stop.send(true);
        let all = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(app.config.drain_timeout.0, all).await.is_err() {
            tracing::warn!(connections = connections.len(), "cutting what did not finish in time");
            connections.shutdown().await;
        }
        log_panic(reclaiming.await, "the server");
        app.snapshots.clear();
        let db = app.db.blocking().clone();
        let closed = tokio::task::spawn_blocking(move || db.close()).await;
        tracing::info!(millis = began.elapsed().as_millis() as u64, "stopped");
        match closed {
            Ok(closed) => closed.map_err(ServerError::Close),
            Err(panic) => Err(ServerError::Close(WriteError::StateFailed { reason: panic.to_string() })),
        }
    }
}

async fn bind_native(config: &Config, at: SocketAddr) -> Result<Listener, ServerError> {
    let options = native::security::options(config, at.ip())?;
    let bound = Listener::bind(at, options).await;
    bound.map_err(|error| match config.native {
        NativeAddress::Next => ServerError::BindNext(error),
        _ => ServerError::BindNative(error),
    })
}

async fn bind_resp(app: &Arc<App>, at: SocketAddr) -> Result<Redis, ServerError> {
    let failed = |error| ServerError::BindResp { resp: at, error };
    let listener = listen(at).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let databases = resp::databases::Databases::open(app).await?;
    let threads = Threads::start("thalweg-resp", app.config.resp_threads, || commit_gathered(app.db.clone()));
    let threads = threads.map_err(ServerError::Threads)?;
    Ok(Redis { listener, address, threads, resp: resp::Resp::new(app, databases) })
}

fn begin(stream: TcpStream, app: &Arc<App>, router: &Router, connections: &mut JoinSet<()>) {
    match app.admission.connections.take(1) {
        Some(held) => {
            let _ = stream.set_nodelay(true);
            connections.spawn(serve(stream, Arc::clone(app), router.clone(), held));
        }
        None => turn_away(stream, no_room().as_bytes()),
    }
}

/// What is said to one connection too many.
fn no_room() -> String {
    const BODY: &str =
        "{\"code\":\"overloaded\",\"message\":\"too many connections: retry later\",\"retry\":\"retry\"}\n";
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{BODY}",
        BODY.len()
    )
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // The watch bounds the time of a head with one timer a connection; the library's own costs one
        // for every request.
        .header_read_timeout(None)
        .max_buf_size(READ_BUFFER_BYTES)
        // Not `pipeline_flush`: it would save writes for clients that pipeline, but it also holds back the
        // replies before a malformed request, and the 400 itself, and then drops them.
        .max_headers(MAX_HEADER_FIELDS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_H2_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .max_send_buf_size(READ_BUFFER_BYTES);
    builder
}

async fn serve(stream: TcpStream, app: Arc<App>, router: Router, held: Held) {
    let activity = Arc::new(Activity::default());
    let service = PerConnection { router, activity: Arc::clone(&activity) };
    let io = TokioIo::new(Watched::new(stream, Arc::clone(&activity), held));
    let builder = builder();
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    let patience = Patience::new(&app.config);
    let mut watch = Watch::new(patience, Instant::now());
    let mut tick = tokio::time::interval(patience.tick());
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut stopping = app.stopping.clone();
    let mut closing = *stopping.borrow_and_update();
    if closing {
        connection.as_mut().graceful_shutdown();
    }
    let mut idle_ticks = 0;
    loop {
        tokio::select! {
            biased;
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "connection ended");
                }
                return;
            }
            _ = stopping.changed(), if !closing => {
                closing = true;
                connection.as_mut().graceful_shutdown();
            }
            _ = tick.tick() => match watch.verdict(&activity, Instant::now()) {
                Verdict::Fine => idle_ticks = 0,
                Verdict::Idle if idle_ticks == 0 => {
                    idle_ticks = 1;
                    connection.as_mut().graceful_shutdown();
                }
                Verdict::Idle => return,
                Verdict::Stuck(why) => {
                    tracing::debug!(why, "connection cut");
                    return;
                }
            },
        }
    }
}

/// The router, and the connection that it serves.
struct PerConnection {
    router: Router,
    activity: Arc<Activity>,
}

impl hyper::service::Service<Request<Incoming>> for PerConnection {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Handling;

    fn call(&self, request: Request<Incoming>) -> Handling {
        Handling { _busy: Busy::new(&self.activity), inner: self.router.clone().call(request) }
    }
}

pin_project! {
    /// A request being handled; the connection counts as busy meanwhile.
    struct Handling {
        #[pin]
        inner: RouteFuture<Infallible>,
        _busy: Busy,
    }
}

impl Future for Handling {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().inner.poll(context)
    }
}
