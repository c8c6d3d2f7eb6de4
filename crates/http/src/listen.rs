//! Listening for HTTP clients, and serving of their connections.
//!
//! Owns: the bound on connections, one task per connection, and the stop. During a stop, open connections take no new
//! requests, and requests in progress may finish. Does not own: requests (`handling`), and the maximum time of a stop
//! (`server`).

use std::{
    convert::Infallible,
    future::Future,
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
use thalweg_serving::{
    accepting::{accept_until, reject_connection},
    admission::Reservation,
    app::App,
    limits::{MAX_H2_STREAMS, MAX_HEADER_FIELDS, MAX_HEADER_LIST_BYTES, READ_BUFFER_BYTES},
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tower_service::Service as _;

use crate::{
    connection::{Activity, ActivityMonitor, Busy, ConnectionStatus, ConnectionTimeouts, MonitoredSocket},
    handling::router,
    origin::OriginPolicy,
    shared::Http,
};

/// Name of HTTP connections' clients in log lines.
const WHOSE: &str = "HTTP clients";

/// Accepts connections until `shutdown` resolves. The connections that are then open stay in `connections`, each until
/// its requests in progress have ended.
pub async fn serve_until(
    shutdown: impl Future<Output = ()>,
    http: &Arc<Http>,
    listener: TcpListener,
    connections: &mut JoinSet<()>,
) {
    let router = router(http);
    let begin = |(stream, _), connections: &mut JoinSet<()>| begin(stream, &http.app, &router, connections);
    accept_until(shutdown, || listener.accept(), begin, connections, WHOSE).await;
}

fn begin(stream: TcpStream, app: &Arc<App>, router: &Router, connections: &mut JoinSet<()>) {
    match app.admission.connections.take(1) {
        Some(held) => {
            let _ = stream.set_nodelay(true);
            connections.spawn(serve(stream, Arc::clone(app), router.clone(), held));
        }
        None => reject_connection(stream, no_room().as_bytes()),
    }
}

/// Returns the reply to a connection above the limit `max_connections`.
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
        // The watch bounds the time of a head with one timer per connection. The library's own timeout costs one timer
        // per request.
        .header_read_timeout(None)
        .max_buf_size(READ_BUFFER_BYTES)
        // `pipeline_flush` stays off. It would save writes for pipelining clients. But it also holds back the replies
        // before a malformed request, and the 400 itself, and then drops them.
        .max_headers(MAX_HEADER_FIELDS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_H2_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .max_send_buf_size(READ_BUFFER_BYTES);
    builder
}

async fn serve(stream: TcpStream, app: Arc<App>, router: Router, held: Reservation) {
    let activity = Arc::new(Activity::default());
    let local = stream.local_addr().ok().map(|address| address.ip());
    let policy = OriginPolicy::new(&app.config.allowed_hosts, local);
    let service = PerConnection { router, policy, activity: Arc::clone(&activity) };
    let io = TokioIo::new(MonitoredSocket::new(stream, Arc::clone(&activity), held));
    let builder = builder();
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    let patience = ConnectionTimeouts::new(&app.config);
    let mut watch = ActivityMonitor::new(patience, Instant::now());
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
                ConnectionStatus::Active => idle_ticks = 0,
                ConnectionStatus::Idle if idle_ticks == 0 => {
                    idle_ticks = 1;
                    connection.as_mut().graceful_shutdown();
                }
                ConnectionStatus::Idle => return,
                ConnectionStatus::Stuck(why) => {
                    tracing::debug!(why, "connection cut");
                    return;
                }
            },
        }
    }
}

/// Service of one connection: the router, the check of the requests' origins, and the connection's activity counters.
struct PerConnection {
    router: Router,
    policy: OriginPolicy,
    activity: Arc<Activity>,
}

impl hyper::service::Service<Request<Incoming>> for PerConnection {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Handling;

    fn call(&self, mut request: Request<Incoming>) -> Handling {
        self.policy.mark(&mut request);
        Handling { _busy: Busy::new(&self.activity), inner: self.router.clone().call(request) }
    }
}

pin_project! {
    /// Future that handles a request. The connection counts as busy until the future is dropped.
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
