//! Requests for consumer groups. Bodies and replies have the JSON format of the API; see `docs/http.md`.

use serde_json::{Map, Value, json};
use thalweg_server::parse::encode;
use ureq::http::Method;

use super::{
    Session,
    http::{RequestBuilder, Step},
    streams,
};
use crate::failure::Failure;

/// Kind of a request that concerns one consumer group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupCall {
    Get,
    Create,
    Configure,
    Delete,
    Fetch,
    Ack,
    Nack,
    Extend,
    Seek,
}

/// Request that the server pushes records of a consumer group to a member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PushRequest<'a> {
    pub member: &'a str,
    /// Maximum number of records that the member has received but neither acked nor nacked.
    pub credit_records: u32,
    /// Maximum total bytes of the records that the member has received but neither acked nor nacked.
    pub credit_bytes: Option<u64>,
    pub limit: Option<u64>,
}

/// Function that gets the received records, each as JSON of the HTTP API. It also gets empty lists, for keepalive
/// lines. `Break` ends the push.
type VisitPushed<'v> = &'v mut dyn FnMut(Vec<Map<String, Value>>) -> Step;

impl Session {
    /// Returns the consumer groups of a stream, or of all streams if `stream` is `None`.
    pub(crate) fn groups(&self, stream: Option<&str>) -> Result<Vec<Value>, Failure> {
        let path = stream.map_or("/v1".to_owned(), streams::path);
        self.list(&format!("{path}/groups?limit=1000"), "groups")
    }

    /// Makes a request that concerns one consumer group. Returns the JSON of the answer; an empty answer becomes an
    /// empty object.
    pub(crate) fn group(&self, call: GroupCall, stream: &str, group: &str, body: &Value) -> Result<Value, Failure> {
        let path = path(stream, group);
        let post = |action: &str| RequestBuilder::post(format!("{path}/{action}")).json(body);
        let reply = self.write(match call {
            GroupCall::Get => RequestBuilder::get(path),
            GroupCall::Create => RequestBuilder::new(Method::PUT, path).json(body),
            GroupCall::Configure => RequestBuilder::new(Method::PATCH, path).json(body),
            GroupCall::Delete => RequestBuilder::delete(path),
            GroupCall::Fetch => post("fetch"),
            GroupCall::Ack => post("ack"),
            GroupCall::Nack => post("nack"),
            GroupCall::Extend => post("extend"),
            GroupCall::Seek => post("seek"),
        })?;
        if reply.body.is_empty() { Ok(json!({})) } else { self.http.parse(&reply.body) }
    }

    /// Receives the records pushed to a member of a group, until the server or `visit` ends the push. Each call of
    /// `visit` gets all records that have arrived since the previous call.
    pub(crate) fn push(
        &self,
        stream: &str,
        group: &str,
        ask: &PushRequest<'_>,
        visit: VisitPushed<'_>,
    ) -> Result<(), Failure> {
        if self.http.opened_directory().is_some() {
            let message = "--push needs a server: no other process can append to a directory that is open here";
            return Err(Failure::usage(message));
        }
        let (member, records) = (encode(ask.member.as_bytes()), ask.credit_records);
        let mut path = format!("{}/push?member={member}&credit_records={records}", path(stream, group));
        for (name, value) in [("credit_bytes", ask.credit_bytes), ("limit", ask.limit)] {
            path.extend(value.map(|value| format!("&{name}={value}")));
        }
        let mut records = Vec::new();
        self.http.lines(RequestBuilder::get(path).header("accept", "application/x-ndjson"), |object, is_last| {
            // Lines without an offset are keepalive lines.
            if object.contains_key("offset") {
                records.push(object);
            }
            if !records.is_empty() && !is_last {
                return Ok(std::ops::ControlFlow::Continue(()));
            }
            visit(std::mem::take(&mut records))
        })
    }
}

fn path(stream: &str, group: &str) -> String {
    format!("{}/groups/{}", streams::path(stream), encode(group.as_bytes()))
}
