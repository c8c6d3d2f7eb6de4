//! Handling of one HTTP request, from head to reply.
//!
//! Owns: the router, request ids, and the order of steps: admit, dispatch, turn errors into JSON, discard an unread body,
//! count.
//! Does not own: the handler of each operation (`dispatch`).
//! Invariant: every reply has the request's id and is counted exactly once.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderValue, Response, header, request::Parts},
    routing::MethodRouter,
};
use bytes::Bytes;
use prometheus_client::collector::Collector;
use sync_wrapper::SyncWrapper;
use thalweg_serving::{
    admission::{Reservation, Resource},
    app::App,
    error::ApiError,
    limits::MAX_REQUEST_ID_BYTES,
};
use thalweg_types::Durability;

use crate::{
    call::Call,
    caller::{self, Service},
    clustered,
    dispatch::{Operation, ROUTES, dispatch},
    draining,
    origin::Forbidden,
    reply::{self, DURABILITY, REQUEST_ID},
    shared::Http,
};

/// Number that represents all HTTP requests in [`SoleClientMode`](thalweg_serving::sole_client::SoleClientMode). No
/// channel has this number.
const HTTP: u64 = 0;

/// Creates the router over all routes. The router only selects the operation, and `Http::handle` does everything else,
/// so a request passes no stack of middleware layers.
pub fn router(http: &Arc<Http>) -> Router {
    let handler = |operation| {
        let http = Arc::clone(http);
        move |request: Request| Arc::clone(&http).handle(operation, request)
    };
    let mut paths: Vec<&str> = ROUTES.iter().map(|route| route.path).collect();
    paths.sort_unstable();
    paths.dedup();
    let mut router = Router::new();
    for path in paths {
        let methods = ROUTES
            .iter()
            .filter(|route| route.path == path)
            .fold(MethodRouter::new(), |methods, route| methods.on(route.filter, handler(route.operation)));
        router = router.route(path, methods);
    }
    router.fallback(handler(Operation::Unknown)).method_not_allowed_fallback(handler(Operation::WrongMethod))
}

impl Http {
    /// Creates the state of the HTTP server. `app` is the state that all protocols share; `/metrics` shows the figures
    /// of `others` after those of HTTP.
    #[must_use]
    pub fn new(app: &Arc<App>, others: Vec<Box<dyn Collector>>) -> Arc<Self> {
        let operations = Operation::ALL.iter().map(|operation| operation.name()).collect();
        Self::with_operations(app, operations, others)
    }

    /// Releases the snapshots that are kept for clients that may resume them. The server calls this when it stops.
    pub fn stop(&self) {
        self.snapshots.clear();
    }

    /// Handles one request: admits it, calls its handler, encodes an error as JSON, and counts the reply.
    async fn handle(self: Arc<Self>, operation: Operation, request: Request) -> Response<Body> {
        let started = Instant::now();
        self.app.sole_client.report_activity(HTTP, started);
        let (head, body) = request.into_parts();
        let id = self.request_id(&head.headers);
        let (account, service) = match caller::take() {
            Some(caller) => (caller.account, caller.service),
            None => (Arc::clone(&self.app.local), Service::Full),
        };
        let mut call =
            Call { account, head, id: id.clone(), body: SyncWrapper::new(body), waits_since: OnceLock::new() };
        let answer = match self.admit(operation, &mut call, service) {
            Ok(_held) => match &self.app.cluster {
                None => dispatch(operation, &self, &mut call).await,
                Some(cluster) => Box::pin(clustered::answer(operation, cluster, &self, &mut call)).await,
            },
            Err(error) => Err(error),
        };
        let mut response = answer.unwrap_or_else(|error| self.refuse(operation, &call.head, error, &id));
        if !draining::is_settled(&mut call) {
            Box::pin(draining::settle(&self.app, &mut call, &mut response)).await;
        }
        let level = response.headers().get(&DURABILITY).and_then(level_of_value);
        response.headers_mut().insert(REQUEST_ID, id);
        if service == Service::StatusOnly {
            // The connection makes room for others after one reply.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let took = started.elapsed();
        self.requests.record(operation as usize, level, response.status(), took);
        tracing::debug!(
            operation = operation.name(),
            status = response.status().as_u16(),
            micros = took.as_micros() as u64,
            request_id = response.headers().get(&REQUEST_ID).and_then(|id| id.to_str().ok()),
            "request"
        );
        response
    }

    fn admit(&self, operation: Operation, call: &mut Call, service: Service) -> Result<Option<Reservation>, ApiError> {
        if let Some(forbidden) = call.head.extensions.remove::<Forbidden>() {
            return Err(forbidden.into());
        }
        if operation.is_always_admitted() {
            return Ok(None);
        }
        if service == Service::StatusOnly {
            return Err(ApiError::overloaded("too many connections: retry later"));
        }
        let held = call.account.take(Resource::Requests, 1);
        held.map(Some).ok_or_else(|| ApiError::overloaded("too many requests in flight: retry later"))
    }

    fn refuse(&self, operation: Operation, head: &Parts, error: ApiError, id: &HeaderValue) -> Response<Body> {
        let id = id.to_str().unwrap_or_default();
        // The log reports the state of the cluster once, and not with every request.
        let is_usual = matches!(
            error.code,
            "overloaded" | "no_leader" | "not_leader" | "read_timeout" | "revision_not_reached" | "recovering"
        );
        if error.status.is_server_error() && !is_usual {
            let (name, path) = (operation.name(), head.uri.path());
            tracing::warn!(operation = name, path, code = error.code, request_id = id, "{}", error.message);
        }
        reply::refusal(error.with_names(self.app.db.blocking()), Some(id))
    }

    /// Returns the request id that the client sent if it is short and printable, or else a new one.
    fn request_id(&self, headers: &HeaderMap) -> HeaderValue {
        match headers.get(&REQUEST_ID) {
            Some(id) if !id.is_empty() && id.len() <= MAX_REQUEST_ID_BYTES && id.to_str().is_ok() => id.clone(),
            _ => {
                let number = self.app.new_number();
                let digits: [u8; 16] =
                    std::array::from_fn(|at| b"0123456789abcdef"[(number >> (60 - 4 * at) & 15) as usize]);
                HeaderValue::from_maybe_shared(Bytes::copy_from_slice(&digits)).expect("hexadecimal digits")
            }
        }
    }
}

fn level_of_value(value: &HeaderValue) -> Option<Durability> {
    Durability::ALL.into_iter().find(|level| level.name().as_bytes() == value.as_bytes())
}
