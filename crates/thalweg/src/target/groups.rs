//! Consumer groups of a directory or a server: paths, and what failures mean. Bodies and answers are those
//! of the API, see `docs/http.md`.

use serde_json::Value;
use thalweg_server::{GroupCall, parse::encode};
use ureq::http::Method;

use super::http::Ask;
use crate::failure::Failure;

/// Method and path of a request.
pub fn method_and_path(call: GroupCall, stream: &str, group: &str) -> (Method, String) {
    if call == GroupCall::ListAll {
        return (Method::GET, "/v1/groups".to_owned());
    }
    let groups = format!("/v1/streams/{}/groups", encode(stream.as_bytes()));
    let one = format!("{groups}/{}", encode(group.as_bytes()));
    match call {
        GroupCall::List | GroupCall::ListAll => (Method::GET, groups),
        GroupCall::Get => (Method::GET, one),
        GroupCall::Create => (Method::PUT, one),
        GroupCall::Configure => (Method::PATCH, one),
        GroupCall::Delete => (Method::DELETE, one),
        GroupCall::Fetch => (Method::POST, format!("{one}/fetch")),
        GroupCall::Ack => (Method::POST, format!("{one}/ack")),
        GroupCall::Nack => (Method::POST, format!("{one}/nack")),
        GroupCall::Extend => (Method::POST, format!("{one}/extend")),
        GroupCall::Seek => (Method::POST, format!("{one}/seek")),
    }
}

/// The request; `body` is sent where there is something to say.
pub fn ask<'a>(call: GroupCall, stream: &str, group: &str, body: &'a [u8]) -> Ask<'a> {
    let (method, path) = method_and_path(call, stream, group);
    match call {
        GroupCall::List | GroupCall::ListAll | GroupCall::Get | GroupCall::Delete => Ask { method, ..Ask::get(path) },
        _ => Ask::send(method, path, body).header("content-type", "application/json"),
    }
}

/// Says what to do where the API's words are about requests.
pub fn advised(failure: Failure) -> Failure {
    match &*failure.code {
        "no_such_group" => failure.then("`thalweg groups list` shows what is there; `thalweg groups create` makes one"),
        "no_such_stream" => failure.then(super::STREAMS_HINT),
        _ => failure,
    }
}

/// An answer without a body is an empty object.
pub fn parsed(body: &[u8]) -> serde_json::Result<Value> {
    if body.is_empty() { Ok(Value::Object(serde_json::Map::new())) } else { serde_json::from_slice(body) }
}
