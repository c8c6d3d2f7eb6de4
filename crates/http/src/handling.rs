//! Handling of one HTTP request, from head to reply.
//!
//! Owns: request ids, and the order of steps: select the operation, admit the request, call the handler, count the
//! memory of the reply, turn errors into JSON, discard an unread body, count the request. Does not own: the selection
//! (`routes`), and the handler of each operation (`dispatch`). Invariant: every reply has the request's id and is
//! counted exactly once.

use std::{sync::Arc, time::Instant};

use axum_core::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body::Body as _;
use prometheus_client::collector::Collector;
use thalweg_serving::{
    admission::{Reservation, Resource},
    app::App,
    error::ApiError,
    limits::MAX_REQUEST_ID_BYTES,
};
use thalweg_types::Durability;

use crate::{
    call::Call,
    caller::{Caller, Service},
    clustered,
    dispatch::{Operation, dispatch},
    draining,
    origin::{self, Forbidden},
    reply::{self, DURABILITY, REQUEST_ID},
    reply_memory::{self, ReplyMemory},
    routes::{Selected, select},
    shared::Http,
};

/// Number by which all HTTP connections together are known to
/// [`SoleClientMode`](thalweg_serving::sole_client::SoleClientMode). This mode detects that only one connection of the
/// server is active. No channel of the native protocol has this number.
const HTTP: u64 = 0;

impl Http {
    /// Creates the state of the HTTP server. `app` is the state that all protocols share. `others` are collectors whose
    /// metrics `/metrics` shows after those of HTTP.
    #[must_use]
    pub fn new(app: &Arc<App>, others: Vec<Box<dyn Collector>>) -> Arc<Self> {
        let operations = Operation::ALL.iter().map(|operation| operation.name()).collect();
        Self::with_operations(app, operations, others)
    }

    /// Releases the snapshots that the server keeps for clients that may resume them. The server calls this when it
    /// stops.
    pub fn stop(&self) {
        self.snapshots.clear();
    }

    /// Handles a request that code of the same process makes without a connection. All such requests share one account,
    /// which counts the resources that they use.
    pub async fn respond<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<axum_core::BoxError>,
    {
        let caller = Caller { account: Arc::clone(&self.app.local), service: Service::Full };
        self.handle(request.map(Body::new), caller, None).await
    }

    /// Handles one request of the connection `caller`: selects its operation, admits the request, calls its handler,
    /// encodes an error as JSON, and counts the reply. If `forbidden` has a reason, the reply is an error with this
    /// reason, and no handler runs.
    pub(crate) async fn handle(
        &self,
        request: Request<Body>,
        caller: Caller,
        forbidden: Option<Forbidden>,
    ) -> Response<Body> {
        let started = Instant::now();
        self.app.sole_client.report_activity(HTTP, started);
        let (head, body) = request.into_parts();
        let Selected { operation, is_without_body, allow } = select(&head.method, head.uri.path());
        let id = self.request_id(&head.headers);
        let Caller { account, service } = caller;
        let reply_memory = operation.reply_memory(&head.method);
        let mut call = Call::new(account, head, id, body, reply_memory);
        let answer = match self.admit(operation, &call, service, forbidden) {
            Ok(_held) => match &self.app.cluster {
                None => dispatch(operation, self, &mut call).await,
                Some(cluster) => Box::pin(clustered::answer(operation, cluster, self, &mut call)).await,
            },
            Err(error) => Err(error),
        };
        let answer = match answer {
            // A reply to a HEAD request is sent without its body.
            Ok(response) if !is_without_body => {
                reply_memory::count(response, call.reply_memory, call.head.version, &call.account)
            }
            answer => answer,
        };
        let mut response = answer.unwrap_or_else(|error| self.refuse(operation, &call, error));
        if !draining::is_settled(&mut call) {
            Box::pin(draining::settle(&self.app, &mut call, &mut response)).await;
        }
        let level = response.headers().get(&DURABILITY).and_then(level_of_value);
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID, call.id);
        if origin::must_withhold(&call.head.method, call.head.uri.path()) {
            origin::withhold_from_other_origins(headers);
        }
        if service == Service::StatusOnly {
            // Closes the connection after one reply, so that it makes room for others.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(methods) = allow {
            response.headers_mut().insert(header::ALLOW, methods.clone());
        }
        if is_without_body {
            remove_body(&mut response);
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

    fn admit(
        &self,
        operation: Operation,
        call: &Call,
        service: Service,
        forbidden: Option<Forbidden>,
    ) -> Result<Option<Reservation>, ApiError> {
        if let Some(forbidden) = forbidden {
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

    fn refuse(&self, operation: Operation, call: &Call, error: ApiError) -> Response<Body> {
        let id = call.id.to_str().unwrap_or_default();
        // The log reports a change of the cluster once. It does not report such errors for every request.
        let is_usual = matches!(
            error.code,
            "overloaded" | "no_leader" | "not_leader" | "read_timeout" | "revision_not_reached" | "recovering"
        );
        if error.status.is_server_error() && !is_usual {
            let (name, path) = (operation.name(), call.head.uri.path());
            tracing::warn!(operation = name, path, code = error.code, request_id = id, "{}", error.message);
        }
        let error = error.with_names(self.app.db.blocking());
        let response = reply::refusal(&error, Some(id));
        reply_memory::count(response, ReplyMemory::Reserve, call.head.version, &call.account)
            .unwrap_or_else(|_| reply::refusal(&error.shortened(), Some(id)))
    }

    /// Returns the request id that the client sent, if it is short and printable; otherwise a new id.
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

/// Removes the body of a reply to a `HEAD` request. `Content-Length` still states the length of the body.
fn remove_body(response: &mut Response<Body>) {
    let body = std::mem::take(response.body_mut());
    if let Some(bytes) = body.size_hint().exact() {
        response.headers_mut().entry(header::CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(bytes));
    }
}

fn level_of_value(value: &HeaderValue) -> Option<Durability> {
    Durability::ALL.into_iter().find(|level| level.name().as_bytes() == value.as_bytes())
}
