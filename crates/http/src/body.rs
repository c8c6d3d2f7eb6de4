//! Reading of request bodies, after the request was admitted and within the server's memory limits.
//!
//! Invariant: a body byte is in memory only while the limit `max_body_bytes_in_flight` counts it.

use std::{
    future::{Future, poll_fn},
    ops::Deref,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
};

use axum::{body::Body, http::StatusCode};
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use thalweg_serving::{
    admission::Reservation,
    app::App,
    error::{ApiError, body_too_large},
};
use thalweg_types::Action;

/// A request body in memory. The limit `max_body_bytes_in_flight` counts its bytes until the body is dropped.
#[derive(Debug)]
pub(crate) struct HeldBody {
    bytes: Bytes,
    _held: Reservation,
}

impl Deref for HeldBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads the whole body of a request. The declared length is checked and reserved in the limit on body bytes before the
/// first byte is read.
pub(crate) async fn read(app: &Arc<App>, body: &mut Body) -> Result<HeldBody, ApiError> {
    let limit = app.config.max_body_bytes.0;
    let declared = body.size_hint().lower();
    if declared > limit {
        return Err(body_too_large(limit));
    }
    let mut held = app.admission.body_bytes.take(declared).ok_or_else(too_many_bytes)?;
    let bytes = {
        let mut gathering = pin!(gather(body, declared, limit, &mut held));
        // Most bodies arrive with their head, and then no timer needs to be set.
        match poll_fn(|context| Poll::Ready(gathering.as_mut().poll(context))).await {
            Poll::Ready(bytes) => bytes?,
            Poll::Pending => {
                tokio::time::timeout(app.config.body_timeout.0, gathering).await.map_err(|_| too_slow())??
            }
        }
    };
    Ok(HeldBody { bytes, _held: held })
}

async fn gather(body: &mut Body, declared: u64, limit: u64, held: &mut Reservation) -> Result<Bytes, ApiError> {
    let mut room = declared;
    let Some(first) = next_data(body).await? else { return Ok(Bytes::new()) };
    count_body(first.len() as u64, &mut room, limit, held)?;
    if body.is_end_stream() {
        return Ok(first);
    }
    let mut all = BytesMut::with_capacity(first.len().max(declared as usize));
    all.extend_from_slice(&first);
    drop(first);
    while let Some(data) = next_data(body).await? {
        count_body((all.len() + data.len()) as u64, &mut room, limit, held)?;
        all.extend_from_slice(&data);
    }
    Ok(all.freeze())
}

/// Ensures that a body of `total` bytes is within the request's limit and counted in the server's limit on body bytes.
fn count_body(total: u64, room: &mut u64, limit: u64, held: &mut Reservation) -> Result<(), ApiError> {
    if total > limit {
        return Err(body_too_large(limit));
    }
    if total > *room {
        if !held.grow(total - *room) {
            return Err(too_many_bytes());
        }
        *room = total;
    }
    Ok(())
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
