//! Target that reaches a server over its HTTP API.
//!
//! Owns: paths, headers and bodies of requests, and the meaning of replies. Does not own the exchange itself; see
//! [`super::http`].

use std::{
    io::{BufRead, BufReader},
    ops::ControlFlow,
    time::Duration,
};

use serde_json::{Map, Value, json};
use thalweg_server::{GroupCall, parse::encode};
use thalweg_types::{
    Durability, SpaceTime,
    command::{AppendTerms, Compaction, Expect, ExpectedOffset, ProducerStamp, StreamConfig},
};
use ureq::http::{HeaderMap, Method};

use super::{
    Appended, Found, KeyspaceChange, NewRecord, Pair, ProducerRow, ScanQuery, StreamRow, Target, VisitPairs,
    VisitRecords, Written,
    events::Events,
    groups, holds_for_absent,
    http::{Ask, Http, Reply},
    record_of,
    snapshot::{PartialFile, SnapshotAsk},
    watch::{self, VisitChanges, WatchQuery},
};
use crate::{
    failure::{Exit, Failure},
    render::{insert_bytes, note, take_bytes},
};

/// Number of records requested per page.
const PAGE_RECORDS: u64 = 10_000;
/// Bytes of records requested per page.
const PAGE_BYTES: u64 = 4 * 1024 * 1024;
/// Time for which a tail retries to reach a lost server.
const TAIL_PATIENCE: Duration = Duration::from_secs(60);
/// Pause of a tail between two attempts to reach the server.
const TAIL_PAUSE: Duration = Duration::from_millis(200);

/// Target that is a server, reached over HTTP.
pub struct Remote {
    http: Http,
    durability: Option<Durability>,
}

impl Remote {
    pub fn new(url: &str, durability: Option<Durability>, timeout: Duration) -> Result<Self, Failure> {
        Ok(Self { http: Http::new(url, timeout)?, durability })
    }

    pub(super) fn http(&self) -> &Http {
        &self.http
    }

    /// Sends a write with its durability level and, if a header can express it, its condition.
    pub(super) fn write(&self, mut ask: Ask<'_>, expect: Option<Expect<'_>>) -> Result<Reply, Failure> {
        if let Some(level) = self.durability {
            ask = ask.header("thalweg-durability", level.name());
        }
        match expect {
            Some(Expect::Absent) => ask = ask.header("if-none-match", "*"),
            Some(Expect::Present) => ask = ask.header("if-match", "*"),
            Some(Expect::Revision(revision)) => ask = ask.header("if-match", format!("\"{revision}\"")),
            // These conditions are sent in the body: see `commit_if`.
            Some(Expect::Value(_) | Expect::Before(_) | Expect::After(_) | Expect::Unchanged(_) | Expect::Any)
            | None => {}
        }
        self.http.ask(ask)
    }

    fn change_keyspace(&self, method: Method, name: &str, change: &KeyspaceChange) -> Result<Reply, Failure> {
        let mut object = Map::new();
        if let Some(exact) = change.exact_counts {
            object.insert("exact_counts".into(), json!(exact));
        }
        if let Some(ttl) = change.default_ttl {
            object.insert("default_ttl_seconds".into(), json!(ttl.as_secs_f64()));
        }
        if let Some(history) = change.history {
            let bounds = json!({
                "revisions": history.revisions,
                "age_seconds": history.age.map(|age| age.as_secs_f64()),
            });
            object.insert("history".into(), if history.is_kept() { bounds } else { Value::Null });
        }
        let body = Value::Object(object).to_string();
        let ask = Ask::send(method, keyspace_path(name), body.as_bytes()).header("content-type", "application/json");
        self.write(ask, None)
    }

    /// Sends a write whose condition no header can express.
    pub(super) fn commit_if(
        &self,
        keyspace: &str,
        key: &[u8],
        expect: Expect<'_>,
        write: Value,
    ) -> Result<Written, Failure> {
        let mut condition = Map::new();
        condition.insert("keyspace".into(), json!(keyspace));
        insert_bytes(&mut condition, "key", key);
        condition.insert("expect".into(), expect_json(expect));
        let body = json!({ "conditions": [condition], "writes": [write] }).to_string();
        let ask = Ask::send(Method::POST, "/v1/commit", body.as_bytes()).header("content-type", "application/json");
        self.written(&self.write(ask, None)?)
    }

    pub(super) fn written(&self, reply: &Reply) -> Result<Written, Failure> {
        Ok(Written { durability: self.http.level(&reply.headers)?, revision: revision(&reply.headers) })
    }

    pub(super) fn json_of(&self, reply: &Reply) -> Result<Value, Failure> {
        serde_json::from_slice(&reply.body).map_err(|error| self.http.not_ours(&error.to_string()))
    }

    fn list_groups(&self, path: &str) -> Result<Value, Failure> {
        let (mut all, mut next) = (Vec::new(), path.to_owned());
        loop {
            let mut page = self.http.json(Ask::get(next)).map_err(groups::advised)?;
            match page["groups"].take() {
                Value::Array(groups) => all.extend(groups),
                _ => return Err(self.http.not_ours("no list of groups")),
            }
            match page["cursor"].as_str() {
                Some(cursor) => next = format!("{path}?cursor={cursor}"),
                None => return Ok(serde_json::json!({ "groups": all })),
            }
        }
    }

    fn row(&self, value: &Value) -> Result<StreamRow, Failure> {
        row_of(value).ok_or_else(|| self.http.not_ours("no stream as it should be"))
    }

    /// Calls `line` with each line of an NDJSON reply as an object.
    fn lines(&self, ask: Ask<'_>, mut line: impl FnMut(Map<String, Value>) -> Step) -> Result<(), Failure> {
        let mut input = BufReader::with_capacity(256 * 1024, self.http.stream(ask)?);
        let mut text = Vec::new();
        loop {
            text.clear();
            let read = input.read_until(b'\n', &mut text).map_err(|error| self.http.lost(&error.into()))?;
            if read == 0 {
                return Ok(());
            }
            let Ok(Value::Object(object)) = serde_json::from_slice(&text) else {
                return Err(self.http.not_ours("a line that is no JSON object"));
            };
            if let Some(error) = object.get("error") {
                return Err(self.http.failure_of(error, 500));
            }
            if line(object)?.is_break() {
                return Ok(());
            }
        }
    }
}

type Step = Result<ControlFlow<()>, Failure>;

impl Target for Remote {
    fn put(&self, keyspace: &str, key: &[u8], value: &[u8], expect: Option<Expect<'_>>) -> Result<Written, Failure> {
        if let Some(expect) = expect.filter(|expect| !fits_headers(*expect)) {
            return self.commit_if(keyspace, key, expect, write_json("put", keyspace, key, Some(value)));
        }
        self.written(&self.write(Ask::send(Method::PUT, key_path(keyspace, key), value), expect)?)
    }

    fn put_many(&self, keyspace: &str, pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<Written, Failure> {
        if let [(key, value)] = pairs {
            return self.put(keyspace, key, value, None);
        }
        let writes = pairs.iter().map(|(key, value)| write_json("put", keyspace, key, Some(value)));
        let body = json!({ "writes": writes.collect::<Vec<_>>() }).to_string();
        let ask = Ask::send(Method::POST, "/v1/commit", body.as_bytes()).header("content-type", "application/json");
        self.written(&self.write(ask, None)?)
    }

    fn get(&self, keyspace: &str, key: &[u8]) -> Result<Option<Found>, Failure> {
        let reply = match self.http.ask(Ask::get(key_path(keyspace, key))) {
            Err(failure) if failure.exit == Exit::NotFound => return Ok(None),
            reply => reply?,
        };
        let revision = revision(&reply.headers).ok_or_else(|| self.http.not_ours("a value without a revision"))?;
        Ok(Some(Found { value: reply.body, revision }))
    }

    fn delete(&self, keyspace: &str, key: &[u8], expect: Option<Expect<'_>>) -> Result<Written, Failure> {
        if let Some(expect) = expect.filter(|expect| !fits_headers(*expect)) {
            return self.commit_if(keyspace, key, expect, write_json("delete", keyspace, key, None));
        }
        let ask = Ask { method: Method::DELETE, ..Ask::get(key_path(keyspace, key)) };
        match self.write(ask, expect) {
            Err(failure) if failure.exit == Exit::NotFound => match expect {
                Some(expect) if !holds_for_absent(expect) => {
                    Err(Failure { exit: Exit::Conflict, ..failure }.then("the key is not there; nothing was written"))
                }
                Some(_) | None => Ok(Written { durability: self.durability.unwrap_or_default(), revision: None }),
            },
            reply => self.written(&reply?),
        }
    }

    fn scan(&self, keyspace: &str, query: &ScanQuery, visit: VisitPairs<'_>) -> Result<Option<String>, Failure> {
        if query.limit == Some(0) {
            return Ok(None);
        }
        let (mut whole, mut cursor) = (false, None);
        let scanned = self.lines(Ask::get(scan_path(keyspace, query)), |object| {
            let Some(key) = take_bytes(&object, "key") else {
                whole = object.contains_key("count");
                cursor = object.get("cursor").and_then(Value::as_str).map(str::to_owned);
                return Ok(ControlFlow::Continue(()));
            };
            let value = take_bytes(&object, "value");
            let revision = object.get("revision").and_then(Value::as_u64).unwrap_or_default();
            let step = visit(Pair { key: &key, value: value.as_deref(), revision })?;
            whole |= step.is_break();
            Ok(step)
        });
        match scanned {
            Err(failure) if failure.code == "no_such_keyspace" => Ok(None),
            Ok(()) if !whole => Err(self.http.not_ours("the reply broke off before its last line")),
            scanned => scanned.map(|()| cursor),
        }
    }

    fn watch(&self, keyspace: &str, query: &WatchQuery, visit: VisitChanges<'_>) -> Result<(), Failure> {
        watch::remote(&self.http, keyspace, query, visit)
    }

    fn keyspaces(&self) -> Result<Vec<String>, Failure> {
        let list = self.http.json(Ask::get("/v1/kv"))?;
        let items = list["keyspaces"].as_array().ok_or_else(|| self.http.not_ours("no list of keyspaces"))?;
        Ok(items.iter().filter_map(|item| item["name"].as_str().map(str::to_owned)).collect())
    }

    fn add(&self, keyspace: &str, key: &[u8], delta: i64) -> Result<(i64, Written), Failure> {
        let path = format!("{}?add={delta}", key_path(keyspace, key));
        let reply = self.write(Ask::send(Method::POST, path, b""), None)?;
        let value = self.json_of(&reply)?["value"].as_i64().ok_or_else(|| self.http.not_ours("no counter"))?;
        Ok((value, self.written(&reply)?))
    }

    fn delete_prefix(&self, keyspace: &str, prefix: &[u8]) -> Result<(Option<u64>, Written), Failure> {
        let path = format!("/v1/kv/{}?prefix={}", encode(keyspace.as_bytes()), encode(prefix));
        let reply = self.write(Ask { method: Method::DELETE, ..Ask::get(path) }, None)?;
        Ok((self.json_of(&reply)?["keys"].as_u64(), self.written(&reply)?))
    }

    fn commit(&self, commit: &[u8]) -> Result<Value, Failure> {
        let ask = Ask::send(Method::POST, "/v1/commit", commit).header("content-type", "application/json");
        self.json_of(&self.write(ask, None)?)
    }

    fn transact(&self, transaction: &[u8]) -> Result<Value, Failure> {
        let ask = Ask::send(Method::POST, "/v1/txn", transaction).header("content-type", "application/json");
        self.json_of(&self.write(ask, None)?)
    }

    fn keyspace(&self, name: &str) -> Result<Value, Failure> {
        self.http.json(Ask::get(keyspace_path(name)))
    }

    fn create_keyspace(&self, name: &str, change: &KeyspaceChange) -> Result<Value, Failure> {
        self.json_of(&self.change_keyspace(Method::PUT, name, change)?)
    }

    fn configure_keyspace(&self, name: &str, change: &KeyspaceChange) -> Result<Value, Failure> {
        self.change_keyspace(Method::PATCH, name, change)?;
        self.keyspace(name)
    }

    fn drop_keyspace(&self, name: &str) -> Result<(), Failure> {
        self.write(Ask { method: Method::DELETE, ..Ask::get(keyspace_path(name)) }, None).map(|_| ())
    }

    fn append(&self, stream: &str, records: &[NewRecord], terms: &AppendTerms<'_>) -> Result<Appended, Failure> {
        let mut path = format!("{}/records?", stream_path(stream));
        if terms.expected != ExpectedOffset::Any {
            path.push_str(&format!("expected={}&", terms.expected));
        }
        if let Some(ProducerStamp { id, epoch, sequence }) = terms.producer {
            let id = encode(id.as_bytes());
            path.push_str(&format!("producer={id}&epoch={epoch}&sequence={sequence}&"));
        }
        let reply = match records {
            // A single payload is sent as raw bytes: as JSON, one of the largest size could exceed the request limit.
            [NewRecord { key, headers, payload, is_tombstone: false }] if headers.is_empty() => {
                if let Some(key) = key {
                    path.push_str(&format!("key={}", encode(key)));
                }
                let ask = Ask::send(Method::POST, path, payload);
                self.write(ask.header("content-type", "application/octet-stream"), None)?
            }
            records => {
                let body = records_json(records).to_string();
                let ask = Ask::send(Method::POST, path, body.as_bytes());
                self.write(ask.header("content-type", "application/json"), None)?
            }
        };
        let durability = self.http.level(&reply.headers)?;
        let ack = self.json_of(&reply)?;
        let count = ack["count"].as_u64().unwrap_or(records.len() as u64);
        let offsets = ack["first"].as_u64().map(|first| (first, first + count));
        Ok(Appended { durability, offsets, duplicate: ack["duplicate"] == json!(true) })
    }

    fn producers(&self, stream: &str) -> Result<Vec<ProducerRow>, Failure> {
        let list = self.http.json(Ask::get(format!("{}/producers", stream_path(stream))))?;
        let items = list["producers"].as_array().ok_or_else(|| self.http.not_ours("no list of producers"))?;
        let row = |item: &Value| {
            Some(ProducerRow {
                id: item["id"].as_str()?.to_owned(),
                epoch: item["epoch"].as_u64()?,
                next_sequence: item["next_sequence"].as_u64()?,
                last_time: item["last_time_micros"].as_u64()?,
            })
        };
        items.iter().map(|item| row(item).ok_or_else(|| self.http.not_ours("a producer without its figures"))).collect()
    }

    fn open_producer(&self, stream: &str, id: &str) -> Result<u64, Failure> {
        let path = format!("{}/producers/{}", stream_path(stream), encode(id.as_bytes()));
        let reply = self.write(Ask::send(Method::POST, path, b""), None)?;
        self.json_of(&reply)?["epoch"].as_u64().ok_or_else(|| self.http.not_ours("a producer without its epoch"))
    }

    fn read(&self, stream: &str, from: u64, limit: u64, visit: VisitRecords<'_>) -> Result<(), Failure> {
        let (mut from, mut left, mut end) = (from, limit, None);
        while left > 0 && end.is_none_or(|end| from < end) {
            let page = left.min(PAGE_RECORDS);
            let path = format!("{}/records?from={from}&limit={page}&max_bytes={PAGE_BYTES}", stream_path(stream));
            let (mut whole, mut stopped) = (false, false);
            self.lines(Ask::get(path), |object| {
                let Some(record) = record_of(&object) else {
                    whole = true;
                    // Records appended during the read are not part of it.
                    end = end.or(object.get("high_watermark").and_then(Value::as_u64));
                    // Compaction may leave gaps, so the last record does not show how far the page reaches.
                    from = object.get("next").and_then(Value::as_u64).unwrap_or(from).max(from);
                    return Ok(ControlFlow::Continue(()));
                };
                from = record.offset + 1;
                left -= 1;
                let step = visit(record)?;
                stopped = step.is_break();
                Ok(step)
            })?;
            if stopped {
                break;
            }
            if !whole || end.is_none() {
                return Err(self.http.not_ours("the reply broke off before its last line"));
            }
        }
        Ok(())
    }

    /// Tails the stream and continues after restarts of the server, from the record after the last one seen.
    fn tail(&self, stream: &str, from: u64, visit: VisitRecords<'_>) -> Result<(), Failure> {
        let (mut from, mut lost_at) = (from, None);
        loop {
            let path = format!("{}/records?from={from}", stream_path(stream));
            let opened = self.http.stream(Ask::get(path).header("accept", "text/event-stream"));
            let failure = match opened {
                Ok(body) => {
                    lost_at = None;
                    let events = Events::new(BufReader::new(body));
                    match follow(events, &mut from, visit, &self.http)? {
                        ControlFlow::Break(()) => return Ok(()),
                        ControlFlow::Continue(()) => None,
                    }
                }
                Err(failure) if failure.exit == Exit::Unavailable => Some(failure),
                Err(failure) => return Err(failure),
            };
            let since = *lost_at.get_or_insert_with(|| {
                note(&format!("the connection to {} is gone; trying again from offset {from}", self.http.base()));
                std::time::Instant::now()
            });
            if let Some(failure) = failure
                && since.elapsed() > TAIL_PATIENCE
            {
                return Err(failure);
            }
            std::thread::sleep(TAIL_PAUSE);
        }
    }

    fn offset_at(&self, stream: &str, micros: u64) -> Result<u64, Failure> {
        let path = format!("{}/records?since={}&limit=1", stream_path(stream), SpaceTime(micros));
        let mut found = None;
        self.lines(Ask::get(path), |object| {
            found = found.or(record_of(&object).map(|record| record.offset));
            Ok(ControlFlow::Continue(()))
        })?;
        match found {
            Some(offset) => Ok(offset),
            None => Ok(self.stream(stream)?.next),
        }
    }

    fn streams(&self) -> Result<Vec<StreamRow>, Failure> {
        let (mut rows, mut cursor) = (Vec::new(), String::new());
        loop {
            let list = self.http.json(Ask::get(format!("/v1/streams?limit=10000{cursor}")))?;
            let items = list["streams"].as_array().ok_or_else(|| self.http.not_ours("no list of streams"))?;
            for item in items {
                rows.push(self.row(item)?);
            }
            match list["cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return Ok(rows),
            }
        }
    }

    fn stream(&self, name: &str) -> Result<StreamRow, Failure> {
        self.row(&self.http.json(Ask::get(stream_path(name)))?)
    }

    fn create_stream(&self, name: &str, config: &StreamConfig) -> Result<(StreamRow, bool), Failure> {
        let body = super::config_json(config).to_string();
        let ask = Ask::send(Method::PUT, stream_path(name), body.as_bytes()).header("content-type", "application/json");
        let reply = self.write(ask, None)?;
        Ok((self.row(&self.json_of(&reply)?)?, reply.status == 201))
    }

    fn configure_stream(&self, name: &str, config: &StreamConfig) -> Result<StreamRow, Failure> {
        let body = super::config_json(config).to_string();
        let ask =
            |method| Ask::send(method, stream_path(name), body.as_bytes()).header("content-type", "application/json");
        match self.write(ask(Method::PATCH), None) {
            Err(failure) if failure.exit == Exit::NotFound => self.write(ask(Method::PUT), None)?,
            reply => reply?,
        };
        self.stream(name)
    }

    fn trim_stream(&self, name: &str, before: u64) -> Result<StreamRow, Failure> {
        let body = json!({ "before": before }).to_string();
        let path = format!("{}/trim", stream_path(name));
        let ask = Ask::send(Method::POST, path, body.as_bytes()).header("content-type", "application/json");
        self.write(ask, None)?;
        self.stream(name)
    }

    fn delete_stream(&self, name: &str) -> Result<(), Failure> {
        self.write(Ask { method: Method::DELETE, ..Ask::get(stream_path(name)) }, None).map(|_| ())
    }

    fn group(&self, call: GroupCall, stream: &str, group: &str, body: &Value) -> Result<Value, Failure> {
        if matches!(call, GroupCall::List | GroupCall::ListAll) {
            return self.list_groups(&groups::method_and_path(call, stream, group).1);
        }
        let body = body.to_string();
        let reply = self.write(groups::ask(call, stream, group, body.as_bytes()), None).map_err(groups::advised)?;
        groups::parsed(&reply.body).map_err(|error| self.http.not_ours(&error.to_string()))
    }

    fn push(
        &self,
        stream: &str,
        group: &str,
        ask: &groups::PushAsk<'_>,
        visit: groups::VisitPushed<'_>,
    ) -> Result<(), Failure> {
        groups::push(&self.http, stream, group, ask, visit)
    }

    fn snapshot(&self, ask: &mut SnapshotAsk<'_>, out: &mut PartialFile) -> Result<(), Failure> {
        self.take_snapshot(ask, out)
    }

    fn state_digest(&self, _: &mut dyn FnMut(u64)) -> Result<Value, Failure> {
        let reply = self.write(Ask::send(Method::POST, "/v1/state/digest".to_owned(), b""), None)?;
        serde_json::from_slice(&reply.body).map_err(|error| self.http.not_ours(&error.to_string()))
    }

    fn last_state_digest(&self) -> Result<Value, Failure> {
        self.http.json(Ask::get("/v1/state/digest"))
    }

    fn state_version(&self) -> Result<Value, Failure> {
        self.http.json(Ask::get("/v1/state/version"))
    }

    fn raise_version(&self, to: u16) -> Result<Value, Failure> {
        let body = json!({ "to": to }).to_string();
        let ask = Ask::send(Method::POST, "/v1/state/version".to_owned(), body.as_bytes());
        let reply = self.write(ask.header("content-type", "application/json"), None)?;
        serde_json::from_slice(&reply.body).map_err(|error| self.http.not_ours(&error.to_string()))
    }

    fn status(&self) -> Result<Value, Failure> {
        self.http.json(Ask::get("/v1/status"))
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        Ok(())
    }
}

/// Returns true if HTTP's conditional headers can express the condition.
pub(super) fn fits_headers(expect: Expect<'_>) -> bool {
    matches!(expect, Expect::Absent | Expect::Present | Expect::Revision(_))
}

/// Formats a condition for `/v1/commit`.
fn expect_json(expect: Expect<'_>) -> Value {
    match expect {
        Expect::Absent => json!("absent"),
        Expect::Present => json!("present"),
        Expect::Revision(revision) => json!({ "revision": revision.0 }),
        Expect::Before(revision) => json!({ "before": revision.0 }),
        Expect::After(revision) => json!({ "after": revision.0 }),
        Expect::Unchanged(range) => {
            let mut object = Map::new();
            if let Some(end) = range.end {
                insert_bytes(&mut object, "end", end);
            }
            object.insert("since".to_owned(), range.since.0.into());
            object.insert("count".to_owned(), range.count.into());
            json!({ "unchanged": object })
        }
        // Every state of a key is older than the highest revision.
        Expect::Any => json!({ "before": u64::MAX }),
        Expect::Value(value) => {
            let mut object = Map::new();
            insert_bytes(&mut object, "value", value);
            Value::Object(object)
        }
    }
}

/// Formats a put or a delete for `/v1/commit`.
pub(super) fn write_json(op: &str, keyspace: &str, key: &[u8], value: Option<&[u8]>) -> Value {
    let mut object = Map::new();
    object.insert("op".into(), json!(op));
    object.insert("keyspace".into(), json!(keyspace));
    insert_bytes(&mut object, "key", key);
    if let Some(value) = value {
        insert_bytes(&mut object, "value", value);
    }
    Value::Object(object)
}

/// Visits the events of a tail's connection until it ends (`Continue`) or `visit` ends the tail (`Break`).
fn follow(
    mut events: Events<impl BufRead>,
    from: &mut u64,
    visit: VisitRecords<'_>,
    http: &Http,
) -> Result<ControlFlow<()>, Failure> {
    while let Some(event) = events.next_event() {
        let Ok(Value::Object(object)) = serde_json::from_str(&event.data) else {
            return Err(http.not_ours("an event that is no JSON object"));
        };
        if event.name == "error" {
            let failure = http.failure_of(&Value::Object(object), 500);
            return if failure.exit == Exit::Unavailable { Ok(ControlFlow::Continue(())) } else { Err(failure) };
        }
        let Some(record) = record_of(&object) else { continue };
        *from = record.offset + 1;
        if visit(record)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

pub(super) fn key_path(keyspace: &str, key: &[u8]) -> String {
    format!("/v1/kv/{}/{}", encode(keyspace.as_bytes()), encode(key))
}

fn keyspace_path(keyspace: &str) -> String {
    format!("/v1/keyspaces/{}", encode(keyspace.as_bytes()))
}

fn stream_path(stream: &str) -> String {
    format!("/v1/streams/{}", encode(stream.as_bytes()))
}

fn scan_path(keyspace: &str, query: &ScanQuery) -> String {
    let mut path = format!("/v1/kv/{}?prefix={}", encode(keyspace.as_bytes()), encode(&query.prefix));
    for (name, bound) in [("start", &query.start), ("end", &query.end)] {
        if let Some(key) = bound {
            path.push_str(&format!("&{name}={}", encode(key)));
        }
    }
    if let Some(limit) = query.limit {
        path.push_str(&format!("&limit={limit}"));
    }
    if let Some(revision) = query.revision {
        path.push_str(&format!("&revision={revision}"));
    }
    if let Some(cursor) = &query.cursor {
        path.push_str(&format!("&cursor={}", encode(cursor.as_bytes())));
    }
    for (name, set) in [("reverse", query.reverse), ("keys_only", query.keys_only)] {
        if set {
            path.push_str(&format!("&{name}=true"));
        }
    }
    path
}

pub(super) fn revision(headers: &HeaderMap) -> Option<u64> {
    headers.get("thalweg-revision")?.to_str().ok()?.parse().ok()
}

/// Formats records with keys and headers; bytes that are not UTF-8 as base64.
pub(super) fn records_json(records: &[NewRecord]) -> Value {
    let records = records.iter().map(|record| Value::Object(record_object(record)));
    json!({ "records": records.collect::<Vec<_>>() })
}

/// Formats a record or message in the API's form.
pub fn record_object(record: &NewRecord) -> Map<String, Value> {
    let mut object = Map::new();
    if let Some(key) = &record.key {
        insert_bytes(&mut object, "key", key);
    }
    if !record.headers.is_empty() {
        let header = |(name, value): &(String, Vec<u8>)| {
            let mut header = Map::new();
            header.insert("name".into(), json!(name));
            insert_bytes(&mut header, "value", value);
            Value::Object(header)
        };
        object.insert("headers".into(), record.headers.iter().map(header).collect());
    }
    insert_bytes(&mut object, "payload", &record.payload);
    if record.is_tombstone {
        object.insert("tombstone".into(), json!(true));
    }
    object
}

/// Parses a stream in the API's form; `None` if fields are missing.
fn row_of(value: &Value) -> Option<StreamRow> {
    let number = |name: &str| value.get(name).and_then(Value::as_u64);
    Some(StreamRow {
        name: value.get("name")?.as_str()?.to_owned(),
        start: number("start")?,
        next: number("next")?,
        bytes: number("bytes")?,
        last_time: number("last_time_micros").unwrap_or_default(),
        config: StreamConfig {
            max_age: value["config"]["max_age_seconds"].as_f64().and_then(|age| Duration::try_from_secs_f64(age).ok()),
            max_bytes: value["config"]["max_bytes"].as_u64(),
            max_records: value["config"]["max_records"].as_u64(),
            max_record_bytes: value["config"]["max_record_bytes"].as_u64(),
            max_batch_bytes: value["config"]["max_batch_bytes"].as_u64(),
            compaction: value["config"]["compaction"]["tombstone_grace_seconds"]
                .as_f64()
                .and_then(|grace| Duration::try_from_secs_f64(grace).ok())
                .map(|tombstone_grace| Compaction { tombstone_grace }),
        },
    })
}
