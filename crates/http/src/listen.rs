//! The listener for HTTP clients, and the tasks of their connections.
//!
//! Owns: the bound on connections, one task per connection, and the stop. During a stop, open connections accept no new
//! requests, and requests in progress may finish. Does not own: requests (`handling`), and the maximum time of a stop
//! (`server`).

use std::{convert::Infallible, future::Future, net::SocketAddr, pin::Pin, sync::Arc, time::Instant};

use axum_core::body::Body;
use http::Response;
use hyper::{Request, body::Incoming};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use thalweg_serving::{
    accepting::{accept_until, prepare},
    admission::{AddressKey, Resource},
    bulk::BulkSeat,
    half_open::Slot,
    limits::{MAX_H2_STREAMS, MAX_HEADER_FIELDS, MAX_HEADER_LIST_BYTES, READ_BUFFER_BYTES},
    pace::MinRate,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    caller::{Caller, Service},
    connection::{Activity, ActivityMonitor, Busy, ConnectionStatus, ConnectionTimeouts, MonitoredSocket},
    origin::OriginPolicy,
    shared::Http,
    waiting_parts::PacedBody,
};

/// Name of HTTP clients in log lines, beside those of other protocols.
const CLIENTS: &str = "HTTP clients";

/// Accepts connections until `shutdown` resolves. Connections that are open at that time stay in the set `connections`
/// until their requests in progress have ended.
pub async fn serve_until(
    shutdown: impl Future<Output = ()>,
    http: &Arc<Http>,
    listener: TcpListener,
    connections: &mut JoinSet<()>,
) {
    let begin = |(stream, peer), connections: &mut JoinSet<()>| begin(stream, peer, http, connections);
    accept_until(shutdown, || listener.accept(), begin, connections, CLIENTS).await;
}

/// Begins to serve a connection. Above the limit `max_connections`, the connection gets answers only to requests for
/// the server's health, metrics and status, so that an operator can see why the server is full. Every other request
/// gets 503.
fn begin(stream: TcpStream, peer: SocketAddr, http: &Arc<Http>, connections: &mut JoinSet<()>) {
    let app = &http.app;
    let account = app.admission.account(AddressKey::of(peer.ip()));
    let held = app.slots.connect(&account);
    let (slots, service) = match &held {
        Some(_) => (&app.slots.silent, Service::Full),
        None => (&app.slots.status, Service::StatusOnly),
    };
    let slot = Arc::new(slots.enter(account.address(), held));
    prepare(&stream);
    let caller = Caller { account, service };
    connections.spawn(serve(stream, Arc::clone(http), slot, caller));
}

fn builder(service: Service) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    if service == Service::StatusOnly {
        builder = builder.http1_only();
    }
    builder
        .http1()
        .timer(TokioTimer::new())
        // The watch bounds the time until a head has arrived, with one timer per connection. The library's own timeout
        // costs one timer per request.
        .header_read_timeout(None)
        .max_buf_size(READ_BUFFER_BYTES)
        // `pipeline_flush` stays off. It would save writes for clients that pipeline. But if a malformed request
        // follows, it first holds back the earlier replies and the 400, and then drops them.
        .max_headers(MAX_HEADER_FIELDS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_H2_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .max_send_buf_size(READ_BUFFER_BYTES);
    builder
}

/// Serves one connection until it ends. When the server runs short of connections, a newer connection may take over
/// `slot`, and this connection ends. This can happen before its first request, or at any time if it is above
/// `max_connections`.
async fn serve(stream: TcpStream, http: Arc<Http>, slot: Arc<Slot>, caller: Caller) {
    let app = &http.app;
    let activity = Arc::new(Activity::default());
    let local = stream.local_addr().ok().map(|address| address.ip());
    let policy = OriginPolicy::new(&app.config.allowed_hosts, local);
    let Caller { account, service } = caller.clone();
    let patience = ConnectionTimeouts::new(&app.config, service);
    let handler = PerConnection {
        http: Arc::clone(&http),
        policy,
        caller,
        slot: Arc::clone(&slot),
        activity: Arc::clone(&activity),
        reply_rate: patience.write,
    };
    let bulk = BulkSeat::new(&app.bulk, &account);
    let io = TokioIo::new(MonitoredSocket::new(stream, Arc::clone(&activity), Arc::clone(&slot), bulk));
    let builder = builder(service);
    let mut connection = std::pin::pin!(builder.serve_connection(io, handler));
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
            () = slot.lost(), if !slot.is_released() => return,
            _ = stopping.changed(), if !closing => {
                closing = true;
                connection.as_mut().graceful_shutdown();
            }
            _ = tick.tick() => {
                match watch.verdict(&activity, Instant::now(), account.is_over_share(Resource::Connections)) {
                    ConnectionStatus::Active => idle_ticks = 0,
                    ConnectionStatus::Idle if idle_ticks == 0 => {
                        idle_ticks = 1;
                        connection.as_mut().graceful_shutdown();
                    }
                    ConnectionStatus::Idle => return,
                    ConnectionStatus::Stuck(why) => {
                        tracing::debug!(why, "connection cut");
                        account.cut();
                        return;
                    }
                }
            }
        }
    }
}

/// The HTTP library's service for one connection: it checks the origin of each request, and passes the request to the
/// server's state.
struct PerConnection {
    http: Arc<Http>,
    policy: OriginPolicy,
    caller: Caller,
    slot: Arc<Slot>,
    activity: Arc<Activity>,
    /// Minimum rate at which the client must read each reply over HTTP/2.
    reply_rate: MinRate,
}

impl hyper::service::Service<Request<Incoming>> for PerConnection {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    /// Handles a request. The connection counts as busy until the future is dropped.
    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let forbidden = self.policy.check(&request).err();
        if self.caller.service == Service::Full && !self.slot.release() {
            // A newer connection has taken over the share of this connection, whose task therefore ends.
            return Box::pin(std::future::pending());
        }
        let busy = Busy::new(&self.activity);
        let (http, caller, reply_rate) = (Arc::clone(&self.http), self.caller.clone(), self.reply_rate);
        // The future is boxed, so that a connection without a request does not hold the memory of one.
        Box::pin(async move {
            let response = http.handle(request.map(Body::new), caller, forbidden).await;
            let activity = busy.activity();
            if !activity.is_http2() {
                return Ok(response);
            }
            Ok(response.map(|body| Body::new(PacedBody::new(body, &activity.streams, reply_rate))))
        })
    }
}
