//! Replies: the headers that carry revisions and levels, and bodies of known size.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header},
};
use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};
use thalweg_engine::Ack;
use thalweg_serving::{app::App, error::ApiError};
use thalweg_types::{Action, Durability, Offset, Revision};

use crate::parse::Media;

/// The level that a request asks for, and that a reply states.
pub(crate) const DURABILITY: HeaderName = HeaderName::from_static("thalweg-durability");
/// A key's revision.
const REVISION: HeaderName = HeaderName::from_static("thalweg-revision");
/// The request's id.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The header value of a level.
#[must_use]
pub(crate) fn level_value(level: Durability) -> HeaderValue {
    HeaderValue::from_static(level.name())
}

/// Puts a revision into `Thalweg-Revision` and `ETag`; one allocation serves both.
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

/// A reply without a body.
#[must_use]
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// A reply of a media type, stating the level of what it shows.
#[must_use]
pub(crate) fn shown(media: Media, body: Body, level: Durability) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media.name()));
    headers.insert(DURABILITY, level_value(level));
    response
}

/// A JSON reply, one line.
#[must_use]
pub(crate) fn json(status: StatusCode, value: &Value) -> Response<Body> {
    json_of(status, value)
}

/// A JSON reply of anything that can always be written as JSON, one line.
#[must_use]
pub(crate) fn json_of(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let mut text = serde_json::to_vec(value).expect("keys are text, and nothing refuses");
    text.push(b'\n');
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(Media::Json.name()));
    response
}

/// A body of these bytes; refused if too many wait for clients already.
pub(crate) fn counted_body(app: &App, bytes: Bytes) -> Result<Body, ApiError> {
    app.admission.reply(bytes).map(Body::from).ok_or_else(no_room)
}

/// As [`counted_body`] for what has happened already: it is counted and never refused.
pub(crate) fn told_body(app: &App, bytes: Bytes) -> Body {
    Body::from(app.admission.told(bytes))
}

/// 503 because there is no room for a large reply.
pub(crate) fn no_room() -> ApiError {
    ApiError::overloaded("too many bytes of replies wait for clients: retry later")
}

/// The reply to a request that failed.
#[must_use]
pub(crate) fn refusal(error: ApiError, request_id: Option<&str>) -> Response<Body> {
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

/// The offset of the last of `count` records from `first` on.
#[must_use]
pub(crate) fn last(first: Offset, count: u32) -> u64 {
    first.0 + u64::from(count.saturating_sub(1))
}

/// The status of an ack: as given, or 202 at `none`, where the outcome is not known yet.
#[must_use]
fn ack_status(ack: &Ack, status: StatusCode) -> StatusCode {
    if ack.durability == Durability::None { StatusCode::ACCEPTED } else { status }
}

/// The headers of an ack.
pub(crate) fn put_ack(headers: &mut HeaderMap, ack: &Ack) {
    headers.insert(DURABILITY, level_value(ack.durability));
    if let Some(revision) = ack.revision {
        put_revision(headers, revision);
    }
}

/// An ack without a body.
#[must_use]
pub(crate) fn acked(ack: &Ack, status: StatusCode) -> Response<Body> {
    let mut response = empty(ack_status(ack, status));
    put_ack(response.headers_mut(), ack);
    response
}

/// An ack with a JSON object, to which revision and level are added.
#[must_use]
pub(crate) fn acked_json(ack: &Ack, status: StatusCode, object: Value) -> Response<Body> {
    let mut response = json(ack_status(ack, status), &with_ack(ack, object));
    put_ack(response.headers_mut(), ack);
    response
}

/// An object that also says level and revision of an ack.
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
