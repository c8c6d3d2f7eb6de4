//! Requests for keys and values, and for several of them at once.
//!
//! Owns: the types of conditions, scans and results, and the requests with their JSON and headers. Does not own: leases
//! and changes of a lifetime without a write (`leases`), keyspaces (`keyspaces`), or the HTTP exchange (`http`).

use std::time::Duration;

use serde_json::{Map, Value, json};
use thalweg_server::parse::encode;
use thalweg_types::{Durability, LeaseId, command::Deadline};
use ureq::http::Method;

use super::{
    Session,
    http::{Reply, RequestBuilder, Step},
};
use crate::{
    failure::{Exit, Failure},
    render::{insert_bytes, take_bytes},
};

/// Acknowledgement of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// Durability level that the write had reached when it was acknowledged.
    pub durability: Durability,
    /// Revision of the write; `None` if the write was acknowledged at the durability level `none`.
    pub revision: Option<u64>,
}

/// Value of a key with its revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValueAtRevision {
    pub value: Vec<u8>,
    pub revision: u64,
}

/// Condition under which a key, or an entry of a cache, is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Expected<'a> {
    #[default]
    Anything,
    Absent,
    Present,
    /// The key must have this revision, or the entry of the cache this version.
    Revision(u64),
    Value(&'a [u8]),
}

/// Condition of a put, and lifetime of the value.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PutTerms<'a> {
    pub expected: Expected<'a>,
    pub deadline: Deadline,
    pub lease: Option<LeaseId>,
}

/// Range and options of a scan.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScanQuery {
    pub prefix: Vec<u8>,
    /// First key of the range to scan, inclusive.
    pub start: Option<Vec<u8>>,
    /// End of the range of keys, exclusive.
    pub end: Option<Vec<u8>>,
    pub limit: Option<u64>,
    pub reverse: bool,
    pub keys_only: bool,
    /// Revision at which to read the keyspace; `None` for its current state.
    pub revision: Option<u64>,
    /// Cursor of an earlier page of the scan. The scan resumes after this page. `None` begins at the start of the
    /// range.
    pub cursor: Option<String>,
}

/// A key with its value and revision, as a scan returns it. `value` is `None` if only keys were requested.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<'a> {
    pub key: &'a [u8],
    pub value: Option<&'a [u8]>,
    pub revision: u64,
}

impl RequestBuilder<'_> {
    /// Adds the condition of a write as an HTTP header. A condition on the value has no header: the caller sends it in
    /// the body of a commit instead.
    pub(super) fn expect(self, expected: Expected<'_>) -> Self {
        match expected {
            Expected::Anything | Expected::Value(_) => self,
            Expected::Absent => self.header("if-none-match", "*"),
            Expected::Present => self.header("if-match", "*"),
            Expected::Revision(revision) => self.header("if-match", format!("\"{revision}\"")),
        }
    }

    /// Adds the lifetime of a value as an HTTP header, unless it is the default of the keyspace or cache.
    pub(super) fn deadline(self, deadline: Deadline) -> Self {
        if deadline == Deadline::Default { self } else { self.header("thalweg-ttl", ttl_text(deadline)) }
    }
}

impl Session {
    pub(crate) fn put(
        &self,
        keyspace: &str,
        key: &[u8],
        value: &[u8],
        terms: &PutTerms<'_>,
    ) -> Result<Written, Failure> {
        let PutTerms { expected, deadline, lease } = *terms;
        if let Expected::Value(expected) = expected {
            let mut write = write_json("put", keyspace, key, Some(value));
            write["ttl_seconds"] = match deadline {
                Deadline::After(ttl) => json!(ttl.as_secs_f64()),
                other => json!(ttl_text(other)),
            };
            if let Some(lease) = lease {
                write["lease"] = json!(lease.0);
            }
            return self.commit_if(keyspace, key, expected, write);
        }
        let mut ask =
            RequestBuilder::new(Method::PUT, key_path(keyspace, key)).body(value).expect(expected).deadline(deadline);
        if let Some(lease) = lease {
            ask = ask.header("thalweg-lease", lease.to_string());
        }
        self.written(&self.write(ask)?)
    }

    /// Puts all pairs of keys and values in one commit, or none of them.
    pub(crate) fn put_many(&self, keyspace: &str, pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<Written, Failure> {
        if let [(key, value)] = pairs {
            return self.put(keyspace, key, value, &PutTerms::default());
        }
        let writes = pairs.iter().map(|(key, value)| write_json("put", keyspace, key, Some(value)));
        let commit = json!({ "writes": writes.collect::<Vec<_>>() });
        self.written(&self.write(RequestBuilder::post("/v1/commit").json(&commit))?)
    }

    /// Returns the value of a key; `None` if the keyspace has no such key. A missing keyspace is a failure.
    pub(crate) fn get(&self, keyspace: &str, key: &[u8]) -> Result<Option<ValueAtRevision>, Failure> {
        self.found(RequestBuilder::get(key_path(keyspace, key)))
    }

    /// Returns the value of a key at a revision; `None` if the key had no value then.
    pub(crate) fn get_at(&self, keyspace: &str, key: &[u8], revision: u64) -> Result<Option<ValueAtRevision>, Failure> {
        let path = format!("{}?revision={revision}", key_path(keyspace, key));
        self.found(RequestBuilder::get(path))
    }

    fn found(&self, ask: RequestBuilder<'_>) -> Result<Option<ValueAtRevision>, Failure> {
        let reply = match self.http.ask(ask) {
            Err(failure) if failure.code == "not_found" => return Ok(None),
            reply => reply?,
        };
        let revision = self.http.required(reply.revision(), "revision of the value")?;
        Ok(Some(ValueAtRevision { value: reply.body, revision }))
    }

    /// Returns a page of the versions of a key before a revision, newest first, as JSON of the HTTP API.
    pub(crate) fn versions(
        &self,
        keyspace: &str,
        key: &[u8],
        before: Option<u64>,
        limit: u64,
    ) -> Result<Value, Failure> {
        let path = key_path(keyspace, key).replacen("/v1/kv/", "/v1/versions/", 1);
        let before = before.map_or(String::new(), |before| format!("&before={before}"));
        self.http.json(RequestBuilder::get(format!("{path}?limit={limit}{before}")))
    }

    /// Deletes a key. Deleting a missing key is a success, unless `expected` requires the key to exist.
    pub(crate) fn delete(&self, keyspace: &str, key: &[u8], expected: Expected<'_>) -> Result<Written, Failure> {
        if let Expected::Value(expected) = expected {
            return self.commit_if(keyspace, key, expected, write_json("delete", keyspace, key, None));
        }
        match self.write(RequestBuilder::delete(key_path(keyspace, key)).expect(expected)) {
            Err(failure) if failure.exit == Exit::NotFound => match expected {
                Expected::Anything | Expected::Absent => {
                    Ok(Written { durability: self.durability.unwrap_or_default(), revision: None })
                }
                _ => Err(Failure { exit: Exit::Conflict, ..failure }
                    .then("nothing was written, since the key does not exist")),
            },
            reply => self.written(&reply?),
        }
    }

    /// Writes a key if the key has exactly the value `value`. `write` is the write in the JSON format of the HTTP API.
    fn commit_if(&self, keyspace: &str, key: &[u8], value: &[u8], write: Value) -> Result<Written, Failure> {
        let mut expect = Map::new();
        insert_bytes(&mut expect, "value", value);
        let mut condition = Map::from_iter([("keyspace".into(), json!(keyspace)), ("expect".into(), expect.into())]);
        insert_bytes(&mut condition, "key", key);
        let commit = json!({ "conditions": [condition], "writes": [write] });
        self.written(&self.write(RequestBuilder::post("/v1/commit").json(&commit))?)
    }

    /// Calls `visit` with the pairs of a keyspace that the query covers. Returns a cursor if the query's limit left out
    /// some pairs; `None` otherwise.
    pub(crate) fn scan(
        &self,
        keyspace: &str,
        query: &ScanQuery,
        visit: &mut dyn FnMut(Pair<'_>) -> Step,
    ) -> Result<Option<String>, Failure> {
        if query.limit == Some(0) {
            return Ok(None);
        }
        let (mut whole, mut cursor) = (false, None);
        let scanned = self.http.lines(RequestBuilder::get(scan_path(keyspace, query)), |object, _| {
            let Some(key) = take_bytes(&object, "key") else {
                whole = object.contains_key("count");
                cursor = object.get("cursor").and_then(Value::as_str).map(str::to_owned);
                return Ok(std::ops::ControlFlow::Continue(()));
            };
            let value = take_bytes(&object, "value");
            let revision = object.get("revision").and_then(Value::as_u64).unwrap_or_default();
            let step = visit(Pair { key: &key, value: value.as_deref(), revision })?;
            whole |= step.is_break();
            Ok(step)
        });
        match scanned {
            Ok(()) if !whole => Err(self.http.unexpected_reply("the reply ended before its last line")),
            scanned => scanned.map(|()| cursor),
        }
    }

    /// Adds a number to the counter that a key contains. Returns the new value of the counter.
    pub(crate) fn add(&self, keyspace: &str, key: &[u8], delta: i64) -> Result<(i64, Written), Failure> {
        let reply = self.write(RequestBuilder::post(format!("{}?add={delta}", key_path(keyspace, key))))?;
        let value = self.http.parse::<Value>(&reply.body)?["value"].as_i64();
        Ok((self.http.required(value, "value of the counter")?, self.written(&reply)?))
    }

    /// Removes all keys with a prefix. Returns the number of removed keys; `None` if they were too many to be counted.
    pub(crate) fn delete_prefix(&self, keyspace: &str, prefix: &[u8]) -> Result<(Option<u64>, Written), Failure> {
        let path = format!("/v1/kv/{}?prefix={}", encode(keyspace.as_bytes()), encode(prefix));
        let reply = self.write(RequestBuilder::delete(path))?;
        Ok((self.http.parse::<Value>(&reply.body)?["keys"].as_u64(), self.written(&reply)?))
    }

    /// Executes a commit. The request and the answer are JSON of the HTTP API. A directory has no subjects, so a
    /// commit that publishes messages is rejected.
    pub(crate) fn commit(&self, commit: &[u8]) -> Result<Value, Failure> {
        let publishes = |commit: Value| commit["publish"].as_array().is_some_and(|batches| !batches.is_empty());
        if self.http.opened_directory().is_some() && serde_json::from_slice(commit).is_ok_and(publishes) {
            let message = "a directory has no subjects: leave out `publish`, or send the commit to a server";
            return Err(Failure::new(Exit::Usage, "no_server", message));
        }
        self.write_json(RequestBuilder::post("/v1/commit").json_text(commit))
    }

    /// Executes a transaction. The request and the answer are JSON of the HTTP API.
    pub(crate) fn transact(&self, transaction: &[u8]) -> Result<Value, Failure> {
        self.write_json(RequestBuilder::post("/v1/txn").json_text(transaction))
    }

    pub(super) fn written(&self, reply: &Reply) -> Result<Written, Failure> {
        Ok(Written { durability: self.http.level(reply)?, revision: reply.revision() })
    }
}

/// Formats a put or a delete as the JSON of one write within a commit.
fn write_json(op: &str, keyspace: &str, key: &[u8], value: Option<&[u8]>) -> Value {
    let mut object = Map::from_iter([("op".into(), json!(op)), ("keyspace".into(), json!(keyspace))]);
    insert_bytes(&mut object, "key", key);
    if let Some(value) = value {
        insert_bytes(&mut object, "value", value);
    }
    Value::Object(object)
}

/// Formats the lifetime of a value as the HTTP API expects it: seconds, `never`, `keep` or `default`.
pub(super) fn ttl_text(deadline: Deadline) -> String {
    match deadline {
        Deadline::After(ttl) => Duration::as_secs_f64(&ttl).to_string(),
        Deadline::Never => "never".to_owned(),
        Deadline::Keep => "keep".to_owned(),
        Deadline::Default | Deadline::At(_) => "default".to_owned(),
    }
}

pub(super) fn key_path(keyspace: &str, key: &[u8]) -> String {
    format!("/v1/kv/{}/{}", encode(keyspace.as_bytes()), encode(key))
}

fn scan_path(keyspace: &str, query: &ScanQuery) -> String {
    let mut path = format!("/v1/kv/{}?prefix={}", encode(keyspace.as_bytes()), encode(&query.prefix));
    let mut add = |name: &str, value: Option<String>| path.extend(value.map(|value| format!("&{name}={value}")));
    add("start", query.start.as_deref().map(encode));
    add("end", query.end.as_deref().map(encode));
    add("limit", query.limit.map(|limit| limit.to_string()));
    add("revision", query.revision.map(|revision| revision.to_string()));
    add("cursor", query.cursor.as_ref().map(|cursor| encode(cursor.as_bytes())));
    add("reverse", query.reverse.then(|| "true".to_owned()));
    add("keys_only", query.keys_only.then(|| "true".to_owned()));
    path
}
