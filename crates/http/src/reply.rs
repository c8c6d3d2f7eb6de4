//! Construction of replies: headers with revisions and durability levels, and bodies of known size.

use axum_core::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json};
use thalweg_engine::Ack;
use thalweg_serving::error::ApiError;
use thalweg_types::{Action, Durability, Offset, Revision};

use crate::parse::Media;

/// Number of headers for which a reply with a body reserves memory at once, to avoid later allocations.
const MOST_HEADERS: usize = 12;
/// Header with a durability level: the level that a request states for its write, or the level of the reply's data.
pub(crate) const DURABILITY: HeaderName = HeaderName::from_static("thalweg-durability");
/// Header with a key's revision.
const REVISION: HeaderName = HeaderName::from_static("thalweg-revision");
/// Header with the request's id.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Returns the header value of a durability level.
#[must_use]
pub(crate) fn level_value(level: Durability) -> HeaderValue {
    HeaderValue::from_static(level.name())
}

/// Adds the headers `Thalweg-Revision` and `ETag` for a revision; one allocation serves both.
pub(crate) fn put_revision(headers: &mut HeaderMap, revision: Revision) {
    let mut digits = [0_u8; 22];
    let mut at = digits.len() - 1;
    digits[at] = b'"';
    let mut rest = revision.0;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    at -= 1;
    digits[at] = b'"';
    let tag = Bytes::copy_from_slice(&digits[at..]);
    let plain = tag.slice(1..tag.len() - 1);
    if let (Ok(tag), Ok(plain)) = (HeaderValue::from_maybe_shared(tag), HeaderValue::from_maybe_shared(plain)) {
        headers.insert(header::ETAG, tag);
        headers.insert(REVISION, plain);
    }
}

/// Creates a reply without a body.
#[must_use]
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// Creates a reply with a body of a media type. The reply states the durability level of the data in its body.
#[must_use]
pub(crate) fn shown(media: Media, body: Body, level: Durability) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    // These replies have the most headers. A map that grows allocates twice.
    headers.reserve(MOST_HEADERS);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media.name()));
    headers.insert(DURABILITY, level_value(level));
    response
}

/// Creates a reply whose body is one line of JSON.
#[must_use]
pub(crate) fn json(status: StatusCode, value: &Value) -> Response<Body> {
    json_of(status, value)
}

/// Creates a reply whose body is one line of JSON, from a value whose serialization cannot fail.
#[must_use]
pub(crate) fn json_of(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let mut text = serde_json::to_vec(value).expect("keys are text, and nothing refuses");
    text.push(b'\n');
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(Media::Json.name()));
    response
}

/// Returns error 503 for a large reply that does not fit into the limit on unsent bytes of replies.
pub(crate) fn no_room() -> ApiError {
    ApiError::overloaded("too many bytes of replies wait for clients: retry later")
}

/// Creates the reply to a failed request.
#[must_use]
pub(crate) fn refusal(error: &ApiError, request_id: Option<&str>) -> Response<Body> {
    let mut body = error.to_json(request_id).to_string();
    body.push('\n');
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = error.status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if error.status == StatusCode::SERVICE_UNAVAILABLE && error.action == Action::Retry {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    if let Some(level) = error.shown {
        headers.insert(DURABILITY, level_value(level));
    }
    response
}

/// Returns the offset of the last of `count` records whose first offset is `first`.
#[must_use]
pub(crate) fn last(first: Offset, count: u32) -> u64 {
    first.0 + u64::from(count.saturating_sub(1))
}

/// Returns the HTTP status of an acknowledged write: `status`, or 202 at level `none`, because the outcome is then
/// still unknown.
#[must_use]
fn ack_status(ack: &Ack, status: StatusCode) -> StatusCode {
    if ack.durability == Durability::None { StatusCode::ACCEPTED } else { status }
}

/// Adds the headers that describe an acknowledged write: revision and durability level.
pub(crate) fn put_ack(headers: &mut HeaderMap, ack: &Ack) {
    headers.insert(DURABILITY, level_value(ack.durability));
    if let Some(revision) = ack.revision {
        put_revision(headers, revision);
    }
}

/// Creates the reply to an acknowledged write, without a body.
#[must_use]
pub(crate) fn acked(ack: &Ack, status: StatusCode) -> Response<Body> {
    let mut response = empty(ack_status(ack, status));
    put_ack(response.headers_mut(), ack);
    response
}

/// Creates the reply to an acknowledged write, with `object` as JSON. Adds the revision and the durability level to the
/// object.
#[must_use]
pub(crate) fn acked_json(ack: &Ack, status: StatusCode, object: Value) -> Response<Body> {
    let mut response = json(ack_status(ack, status), &with_ack(ack, object));
    put_ack(response.headers_mut(), ack);
    response
}

/// Adds the durability level and the revision of an acknowledged write to a JSON object.
pub(crate) fn with_ack(ack: &Ack, mut object: Value) -> Value {
    object["durability"] = json!(ack.durability.name());
    object["revision"] = json!(ack.revision.map(Revision::get));
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_are_written_out_in_full() {
        for revision in [0, 7, 10, 1_234_567_890, u64::MAX] {
            let mut headers = HeaderMap::new();
            put_revision(&mut headers, Revision(revision));
            assert_eq!(headers[REVISION].to_str().unwrap(), revision.to_string());
            assert_eq!(headers[header::ETAG].to_str().unwrap(), format!("\"{revision}\""));
        }
    }
}
