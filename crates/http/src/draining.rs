//! Bodies that are still arriving when the answer to their request is ready.
//!
//! A client may send head and body in two packets. If the head alone causes an error, the answer is ready while the
//! body is still arriving. Over HTTP/1.1, the next request of the connection follows this body. So this module reads a
//! short body to its end, and discards it. For a long body, the reply announces that the connection ends, so that the
//! client sends its next request on another connection.
//!
//! Owns: the decision, and the discarding. Does not own: bodies that handlers read (`body`). HTTP/2 ends a request's
//! stream without its connection, so this module does nothing there. Bound: a request holds one frame of its body at a
//! time, for at most `body_timeout`. The body must arrive at `min_transfer_rate`, like a body that a handler reads.

use axum_core::body::Body;
use http::{HeaderValue, Response, StatusCode, Version, header};
use http_body::Body as _;
use thalweg_serving::app::App;

use crate::{body::Arrival, call::Call};

/// Maximum number of bytes of a body that are discarded, unless `max_body_bytes` is smaller.
const MAX_DRAINED_BYTES: u64 = 64 * 1024;

/// Returns true if the request's body was read to its end or is empty, so that the reply can be sent immediately.
pub(crate) fn is_settled(call: &mut Call) -> bool {
    call.head.version >= Version::HTTP_2 || call.body.get_mut().is_end_stream()
}

/// Reads the rest of a request's body before the reply is sent, or marks the reply as the connection's last.
pub(crate) async fn settle(app: &App, call: &mut Call, response: &mut Response<Body>) {
    let body = call.body.get_mut();
    // A client that waits for permission to send its body does not send it after a final status. If the body arrived
    // too slowly before, the server does not wait for it again.
    let is_awaited =
        !call.head.headers.contains_key(header::EXPECT) && response.status() != StatusCode::REQUEST_TIMEOUT;
    let limit = MAX_DRAINED_BYTES.min(app.config.max_body_bytes.0);
    let is_drained =
        is_awaited && body.size_hint().lower() <= limit && discard(Arrival::new(body, &app.config), limit).await;
    if !is_drained {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
}

/// Reads a body to its end. Returns false if it has more than `limit` bytes, arrives too slowly, or is cut off.
async fn discard(mut arrival: Arrival<'_>, limit: u64) -> bool {
    let mut left = limit;
    loop {
        match arrival.next().await {
            Ok(None) => return true,
            Err(_) => return false,
            Ok(Some(data)) => {
                let Some(rest) = left.checked_sub(data.len() as u64) else { return false };
                left = rest;
            }
        }
    }
}
