//! Reading of request bodies, after the request was admitted and within the server's memory limits.
//!
//! Invariant: each byte of a body in memory counts in the limit `max_body_bytes_in_flight`. The exception is the first
//! bytes of each connection, which are part of the connection's memory.

use std::{
    future::{Future, poll_fn},
    ops::Deref,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
};

use axum_core::body::Body;
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body::Body as _;
use serde::de::DeserializeOwned;
use thalweg_serving::{
    admission::{Account, Reservation, Resource},
    app::App,
    config::Config,
    error::{ApiError, body_too_large},
    limits::BODY_STEP_BYTES,
    pace::Pace,
};
use thalweg_types::Action;
use tokio::time::Instant;

use crate::{json, reading};

/// Maximum length of a JSON body that is parsed on the thread of its connection. Lists of operations take longest:
/// about half a millisecond for this length. This is as long as a [short read](thalweg_types::steps::SHORT_READ) may
/// take.
const SHORT_JSON_BYTES: usize = 64 * 1024;

/// A request body in memory. Its bytes count in the limit `max_body_bytes_in_flight` until the last clone is dropped.
/// Clones share the bytes, so the bytes count once.
#[derive(Clone, Debug)]
pub(crate) struct HeldBody {
    bytes: Bytes,
    _held: Arc<Reservation>,
}

impl Deref for HeldBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads the whole body of a request. The bytes count in `max_body_bytes_in_flight` as they arrive, and the buffer
/// grows with them. So a client that only announces a long body holds no memory. A body whose announced length is above
/// the limit of one request is rejected before any of it is read.
pub(crate) async fn read(app: &App, account: &Arc<Account>, body: &mut Body) -> Result<HeldBody, ApiError> {
    let limit = app.config.max_body_bytes.0;
    let declared = body.size_hint().lower();
    if declared > limit {
        return Err(body_too_large(limit));
    }
    let mut held = account.empty(Resource::BodyBytes);
    let mut arrival = Arrival::new(body, &app.config);
    let Some(first) = arrival.next().await? else { return Ok(HeldBody { bytes: Bytes::new(), _held: Arc::new(held) }) };
    count_body(first.len() as u64, limit, &mut held)?;
    if arrival.body.is_end_stream() {
        return Ok(HeldBody { bytes: first, _held: Arc::new(held) });
    }
    let mut all = BytesMut::with_capacity(first.len().max(BODY_STEP_BYTES.min(declared as usize)));
    all.extend_from_slice(&first);
    drop(first);
    while let Some(data) = arrival.next().await? {
        let total = all.len() + data.len();
        count_body(total as u64, limit, &mut held)?;
        if total > all.capacity() {
            // The buffer doubles, but not beyond the announced length.
            let wanted = (2 * all.len()).min(declared as usize).max(total);
            all.reserve(wanted - all.len());
        }
        all.extend_from_slice(&data);
    }
    Ok(HeldBody { bytes: all.freeze(), _held: Arc::new(held) })
}

/// Parses a body of JSON. A long body is parsed on a thread for long reads, so that it does not delay other clients of
/// the calling thread. Returns the value together with the body. The value can take as much memory as the body, so the
/// caller keeps the body for as long as the value. The body's bytes then stay counted in `max_body_bytes_in_flight`.
pub(crate) async fn parse<T: Send + 'static>(
    app: &App,
    account: &Arc<Account>,
    body: HeldBody,
    parse: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, HeldBody), ApiError> {
    if body.len() <= SHORT_JSON_BYTES {
        return Ok((parse(&body)?, body));
    }
    let bytes = body.len();
    reading::on_reader(app, account, bytes, move || Ok((parse(&body)?, body))).await?
}

/// Parses a body of JSON like [`parse`], and drops the body. Meant for values that are much smaller than the body.
pub(crate) async fn parsed<T: DeserializeOwned + Send + 'static>(
    app: &App,
    account: &Arc<Account>,
    body: HeldBody,
) -> Result<T, ApiError> {
    Ok(parse(app, account, body, json::parse).await?.0)
}

/// Runs `work` on the calling thread if it is short, otherwise on a thread for long reads. `bytes` is the number of
/// bytes that the work processes, from which this function estimates its time.
pub(crate) async fn work<T: Send + 'static>(
    app: &App,
    account: &Arc<Account>,
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    if bytes <= SHORT_JSON_BYTES { Ok(work()) } else { reading::on_reader(app, account, bytes, work).await }
}

/// Checks that a body of `total` bytes is within the limit of one request, and counts it in the server's limit
/// `max_body_bytes_in_flight`.
fn count_body(total: u64, limit: u64, held: &mut Reservation) -> Result<(), ApiError> {
    if total > limit {
        return Err(body_too_large(limit));
    }
    if held.grow_to(total) { Ok(()) } else { Err(too_many_bytes()) }
}

/// A request body that is arriving. Measures the rate at which its bytes arrive.
pub(crate) struct Arrival<'a> {
    body: &'a mut Body,
    config: &'a Config,
    pace: Pace,
    /// Time at which the whole body must have arrived; `None` until the server first waits for bytes.
    end: Option<Instant>,
}

impl<'a> Arrival<'a> {
    /// Begins to read a body.
    pub(crate) fn new(body: &'a mut Body, config: &'a Config) -> Self {
        Self { body, config, pace: Pace::new(config.body_rate()), end: None }
    }

    /// Returns the next bytes of the body; `None` at its end. Returns an error if the bytes arrive too slowly.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let arrived = {
            let mut next = pin!(next_data(self.body));
            // Most bodies arrive together with their head, so the first poll mostly succeeds, and no timer is needed.
            match poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await {
                Poll::Ready(arrived) => arrived?,
                Poll::Pending => {
                    let now = std::time::Instant::now();
                    self.pace.waits(now);
                    let end = *self.end.get_or_insert_with(|| Instant::from_std(now) + self.config.body_timeout.0);
                    let until = self.pace.deadline().map_or(end, |due| end.min(Instant::from_std(due)));
                    tokio::time::timeout_at(until, next).await.map_err(|_| too_slow())??
                }
            }
        };
        self.pace.moved(arrived.as_ref().map_or(0, Bytes::len) as u64);
        Ok(arrived)
    }
}

async fn next_data(body: &mut Body) -> Result<Option<Bytes>, ApiError> {
    loop {
        match poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
            None => return Ok(None),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Some(Err(_)) => {
                return Err(ApiError::bad_request("bad_body", "the body ended early or its framing is invalid"));
            }
        }
    }
}

fn too_many_bytes() -> ApiError {
    ApiError::overloaded("too many request bytes in flight: retry later")
}

fn too_slow() -> ApiError {
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", Action::Retry, "the body took too long to arrive")
}
