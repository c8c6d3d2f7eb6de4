//! Consumer groups of a server: paths, pushes, and the meaning of failures. Bodies and answers are those of the API;
//! see `docs/http.md`.

use std::{
    io::{BufRead, BufReader},
    ops::ControlFlow,
};

use serde_json::{Map, Value};
use thalweg_server::{GroupCall, parse::encode};
use ureq::http::Method;

use super::http::{Ask, Http};
use crate::failure::Failure;

/// Request for a push to a member of a consumer group.
#[derive(Clone, Copy, Debug)]
pub struct PushAsk<'a> {
    pub member: &'a str,
    /// Maximum number of unsettled records.
    pub credit_records: u32,
    /// Maximum bytes of unsettled records.
    pub credit_bytes: Option<u64>,
    pub limit: Option<u64>,
}

/// Called with the received records, each in the API's form; `Break` ends the push.
pub type VisitPushed<'v> = &'v mut dyn FnMut(Vec<Map<String, Value>>) -> Result<ControlFlow<()>, Failure>;

/// Receives pushed records until the server or `visit` ends the push.
pub fn push(http: &Http, stream: &str, group: &str, ask: &PushAsk<'_>, visit: VisitPushed<'_>) -> Result<(), Failure> {
    let (_, group) = method_and_path(GroupCall::Get, stream, group);
    let (member, records) = (encode(ask.member.as_bytes()), ask.credit_records);
    let mut path = format!("{group}/push?member={member}&credit_records={records}");
    for (name, value) in [("credit_bytes", ask.credit_bytes), ("limit", ask.limit)] {
        path.extend(value.map(|value| format!("&{name}={value}")));
    }
    let body = http.stream(Ask::get(path).header("accept", "application/x-ndjson")).map_err(advised)?;
    let mut input = BufReader::with_capacity(256 * 1024, body);
    let (mut records, mut line) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line).map_err(|error| http.lost(&error.into()))? == 0 {
            return Ok(());
        }
        let Ok(Value::Object(object)) = serde_json::from_slice(&line) else {
            return Err(http.not_ours("a line that is no JSON object"));
        };
        if let Some(error) = object.get("error") {
            return Err(advised(http.failure_of(error, 500)));
        }
        // Other lines are keepalives.
        if object.contains_key("offset") {
            records.push(object);
        }
        if !records.is_empty() && !input.buffer().contains(&b'\n') && visit(std::mem::take(&mut records))?.is_break() {
            return Ok(());
        }
    }
}

/// Returns the method and path of a request.
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

/// Returns the request, with `body` for the calls that send one.
pub fn ask<'a>(call: GroupCall, stream: &str, group: &str, body: &'a [u8]) -> Ask<'a> {
    let (method, path) = method_and_path(call, stream, group);
    match call {
        GroupCall::List | GroupCall::ListAll | GroupCall::Get | GroupCall::Delete => Ask { method, ..Ask::get(path) },
        _ => Ask::send(method, path, body).header("content-type", "application/json"),
    }
}

/// Adds advice where the API's message refers to requests rather than commands.
pub fn advised(failure: Failure) -> Failure {
    match &*failure.code {
        "no_such_group" => failure.then("`thalweg groups list` shows what is there; `thalweg groups create` makes one"),
        "no_such_stream" => failure.then(super::STREAMS_HINT),
        _ => failure,
    }
}

/// Parses an answer. An empty body becomes an empty object.
pub fn parsed(body: &[u8]) -> serde_json::Result<Value> {
    if body.is_empty() { Ok(Value::Object(serde_json::Map::new())) } else { serde_json::from_slice(body) }
}
