//! Consumer groups of a directory or a server: paths, and what failures mean. Bodies and answers are those
//! of the API, see `docs/http.md`.

use std::{
    io::{BufRead, BufReader},
    ops::ControlFlow,
};

use serde_json::{Map, Value};
use thalweg_server::{GroupCall, parse::encode};
use ureq::http::Method;

use super::http::{Ask, Http};
use crate::failure::Failure;

/// What a push is asked for.
#[derive(Clone, Copy, Debug)]
pub struct PushAsk<'a> {
    pub member: &'a str,
    /// So many records may be held unsettled.
    pub credit_records: u32,
    /// And so many bytes.
    pub credit_bytes: Option<u64>,
    pub limit: Option<u64>,
}

/// Called with the records that are at hand, each as the API shows it; `Break` ends the push.
pub type VisitPushed<'v> = &'v mut dyn FnMut(Vec<Map<String, Value>>) -> Result<ControlFlow<()>, Failure>;

/// Takes what a server pushes, until it ends.
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
        // Other lines only break the silence.
        if object.contains_key("offset") {
            records.push(object);
        }
        if !records.is_empty() && !input.buffer().contains(&b'\n') && visit(std::mem::take(&mut records))?.is_break() {
            return Ok(());
        }
    }
}

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
