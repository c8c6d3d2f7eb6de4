//! `POST /v1/commit`: conditions and writes across keyspaces and streams, all or nothing.

use std::{collections::HashMap, sync::Arc};

use axum::http::{StatusCode, header};
use serde::Deserialize;
use serde_json::json;
use thalweg_engine::Ack;
use thalweg_types::{
    Action, Durability, GroupId, KeyspaceId, Offset, Revision, StreamId,
    command::{AppendTerms, CommitBuilder, Expect, ExpectedOffset, ProducerStamp, UnchangedRange},
    record::RecordBatch,
};

use crate::{
    app::{Answer, App, Call},
    batch::{JsonRecord, push_records},
    body,
    error::ApiError,
    groups::{self, JsonSettlement},
    json::{self, bytes_of, required_bytes},
    parse::{Media, request_media},
    reply, streams,
    ttl::{JsonTtl, json_terms},
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonCommit {
    #[serde(default)]
    conditions: Vec<JsonCondition>,
    writes: Vec<JsonWrite>,
    durability: Option<String>,
}

/// A condition on a key.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JsonCondition {
    /// The key's keyspace.
    pub keyspace: String,
    key: Option<String>,
    key_base64: Option<String>,
    expect: JsonExpect,
}

impl JsonCondition {
    /// Calls `add` with the key and what is expected of it.
    pub fn with(&self, add: impl FnOnce(&[u8], Expect<'_>) -> Result<(), ApiError>) -> Result<(), ApiError> {
        let key = required_bytes("key", self.key.as_ref(), self.key_base64.as_ref())?;
        let (value, end);
        let expect = match &self.expect {
            JsonExpect::Absent => Expect::Absent,
            JsonExpect::Present => Expect::Present,
            JsonExpect::Revision(revision) => Expect::Revision(Revision(*revision)),
            JsonExpect::Before(revision) => Expect::Before(Revision(*revision)),
            JsonExpect::After(revision) => Expect::After(Revision(*revision)),
            JsonExpect::Value(text) => Expect::Value(text.as_bytes()),
            JsonExpect::ValueBase64(base64) => {
                value = required_bytes("value", None, Some(base64))?;
                Expect::Value(&value)
            }
            JsonExpect::Unchanged(range) => {
                end = bytes_of("end", range.end.as_ref(), range.end_base64.as_ref())?;
                let (since, count) = (Revision(range.since), range.count);
                Expect::Unchanged(UnchangedRange { end: end.as_deref(), since, count })
            }
        };
        add(&key, expect)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum JsonExpect {
    Absent,
    Present,
    Revision(u64),
    Before(u64),
    After(u64),
    Value(String),
    ValueBase64(String),
    Unchanged(JsonUnchanged),
}

/// What was read of the range from the key on.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonUnchanged {
    end: Option<String>,
    end_base64: Option<String>,
    since: u64,
    count: u32,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
enum JsonWrite {
    Put {
        keyspace: String,
        key: Option<String>,
        key_base64: Option<String>,
        value: Option<String>,
        value_base64: Option<String>,
        ttl_seconds: Option<JsonTtl>,
        lease: Option<u64>,
    },
    Touch {
        keyspace: String,
        key: Option<String>,
        key_base64: Option<String>,
        ttl_seconds: JsonTtl,
    },
    Delete {
        keyspace: String,
        key: Option<String>,
        key_base64: Option<String>,
    },
    Append {
        stream: String,
        expected: Option<JsonExpected>,
        producer: Option<JsonProducer>,
        records: Vec<JsonRecord>,
    },
    Ack {
        stream: String,
        group: String,
        attempts: Vec<JsonSettlement>,
    },
    Nack {
        stream: String,
        group: String,
        attempts: Vec<JsonSettlement>,
        delay_seconds: Option<f64>,
        #[serde(default)]
        reject: bool,
        #[serde(default)]
        uncounted: bool,
        #[serde(default)]
        reason: String,
    },
}

/// An expected offset: a number, or a word.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum JsonExpected {
    /// The next offset.
    Offset(u64),
    /// `none` or `any`.
    Word(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonProducer {
    id: String,
    #[serde(default)]
    epoch: u32,
    sequence: u64,
}

/// What an append expects of its stream.
pub fn expected_offset(expected: Option<&JsonExpected>) -> Result<ExpectedOffset, ApiError> {
    Ok(match expected {
        None => ExpectedOffset::Any,
        Some(JsonExpected::Offset(offset)) => ExpectedOffset::Exact(Offset(*offset)),
        Some(JsonExpected::Word(word)) => ExpectedOffset::parse(word)
            .ok_or_else(|| ApiError::bad_request("bad_json", "expected is an offset, \"none\" or \"any\""))?,
    })
}

fn append_terms<'a>(
    expected: Option<&JsonExpected>,
    producer: Option<&'a JsonProducer>,
) -> Result<AppendTerms<'a>, ApiError> {
    let expected = expected_offset(expected)?;
    let producer = producer.map(|from| ProducerStamp { id: &from.id, epoch: from.epoch, sequence: from.sequence });
    Ok(AppendTerms { expected, producer })
}

/// An append as it was asked for, to name it in the answer.
struct Asked {
    stream: String,
    produced: bool,
}

/// Ids of the names in a commit. Keyspaces and streams that do not exist are created before it: that is
/// not part of what is atomic, and harmless if the commit then fails.
#[derive(Default)]
pub struct Names {
    keyspaces: HashMap<String, KeyspaceId>,
    streams: HashMap<String, StreamId>,
    /// By the names of their streams and of themselves.
    groups: HashMap<(String, String), GroupId>,
}

impl Names {
    /// Notes a keyspace's id.
    pub fn add_keyspace(&mut self, name: &str, id: KeyspaceId) {
        self.keyspaces.insert(name.to_owned(), id);
    }

    /// Notes a stream's id.
    pub fn add_stream(&mut self, name: &str, id: StreamId) {
        self.streams.insert(name.to_owned(), id);
    }

    /// Notes a consumer group's id.
    pub fn add_group(&mut self, stream: &str, group: &str, id: GroupId) {
        self.groups.insert((stream.to_owned(), group.to_owned()), id);
    }

    /// The id of a consumer group that has been looked up.
    pub fn known_group(&self, stream: &str, group: &str) -> Result<GroupId, ApiError> {
        let found = self.groups.get(&(stream.to_owned(), group.to_owned())).copied();
        found.ok_or_else(|| groups::no_such_group(stream, group))
    }

    /// The id of a keyspace that has been looked up.
    pub fn known_keyspace(&self, name: &str) -> Result<KeyspaceId, ApiError> {
        self.keyspaces.get(name).copied().ok_or_else(|| crate::error::no_such_keyspace(name))
    }

    /// The id of a stream that has been looked up.
    pub fn known_stream(&self, name: &str) -> Result<StreamId, ApiError> {
        self.streams.get(name).copied().ok_or_else(|| crate::error::no_such_stream(name))
    }

    /// A keyspace's id.
    pub async fn keyspace(&mut self, app: &App, name: &str) -> Result<KeyspaceId, ApiError> {
        if let Some(id) = self.keyspaces.get(name) {
            return Ok(*id);
        }
        let id = app.keyspace(name).await?.id();
        self.keyspaces.insert(name.to_owned(), id);
        Ok(id)
    }

    /// A stream's id.
    pub async fn stream(&mut self, app: &App, name: &str) -> Result<StreamId, ApiError> {
        if let Some(id) = self.streams.get(name) {
            return Ok(*id);
        }
        let id = app.stream(name).await?.id();
        self.streams.insert(name.to_owned(), id);
        Ok(id)
    }
}

/// `POST /v1/commit`
pub async fn commit(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    require_json(call)?;
    let asked = app.level(call)?;
    let body = body::read(app, call.body.get_mut()).await?;
    let sent: JsonCommit = json::parse(&body)?;
    let level = match &sent.durability {
        None => asked,
        Some(name) => {
            name.parse::<Durability>().map_err(|error| ApiError::bad_request("bad_json", error.to_string()))?
        }
    };
    if sent.writes.is_empty() {
        return Err(ApiError::bad_request("bad_json", "a commit has at least one write"));
    }
    let mut names = Names::default();
    let mut builder = CommitBuilder::new();
    for condition in &sent.conditions {
        add_condition(app, &mut names, &mut builder, condition).await?;
    }
    let mut appends = Vec::new();
    for write in &sent.writes {
        add_write(app, &mut names, &mut builder, write, &mut appends).await?;
    }
    let committed = app.db.commit(&builder, level);
    drop((builder, sent, body));
    let ack = committed.await?;
    Ok(answer(&ack, &appends))
}

/// Whether a body is the JSON of a commit.
pub fn check(body: &[u8]) -> Result<(), ApiError> {
    json::parse::<JsonCommit>(body).map(|_| ())
}

/// 415 unless the body says that it is JSON, or says nothing.
pub fn require_json(call: &Call) -> Result<(), ApiError> {
    match call.header(&header::CONTENT_TYPE) {
        Some(given) if request_media(given) != Some(Media::Json) => Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            Action::Fix,
            "Content-Type must be application/json",
        )),
        _ => Ok(()),
    }
}

async fn add_condition(
    app: &App,
    names: &mut Names,
    builder: &mut CommitBuilder,
    condition: &JsonCondition,
) -> Result<(), ApiError> {
    let id = names.keyspace(app, &condition.keyspace).await?;
    condition.with(|key, expect| Ok(builder.expect(id, key, expect).map(|_| ())?))
}

async fn add_write(
    app: &App,
    names: &mut Names,
    builder: &mut CommitBuilder,
    write: &JsonWrite,
    appends: &mut Vec<Asked>,
) -> Result<(), ApiError> {
    match write {
        JsonWrite::Put { keyspace, key, key_base64, value, value_base64, ttl_seconds, lease } => {
            let id = names.keyspace(app, keyspace).await?;
            let key = required_bytes("key", key.as_ref(), key_base64.as_ref())?;
            let value = required_bytes("value", value.as_ref(), value_base64.as_ref())?;
            let terms = json_terms(ttl_seconds.as_ref(), *lease)?;
            if terms.is_plain() {
                builder.put(id, &key, &value)?;
            } else {
                builder.put_until(id, &key, &value, terms.deadline, terms.lease)?;
            }
        }
        JsonWrite::Touch { keyspace, key, key_base64, ttl_seconds } => {
            let id = names.keyspace(app, keyspace).await?;
            let deadline = ttl_seconds.deadline()?;
            builder.touch(id, &required_bytes("key", key.as_ref(), key_base64.as_ref())?, deadline)?;
        }
        JsonWrite::Delete { keyspace, key, key_base64 } => {
            let id = names.keyspace(app, keyspace).await?;
            builder.delete(id, &required_bytes("key", key.as_ref(), key_base64.as_ref())?)?;
        }
        JsonWrite::Append { stream, expected, producer, records } => {
            let id = names.stream(app, stream).await?;
            let mut batch = RecordBatch::new();
            push_records(&mut batch, records)?;
            if batch.is_empty() {
                return Err(ApiError::bad_request("no_records", "an append has at least one record"));
            }
            builder.append_with(id, &append_terms(expected.as_ref(), producer.as_ref())?, &batch)?;
            appends.push(Asked { stream: stream.clone(), produced: producer.is_some() });
        }
        JsonWrite::Ack { stream, group, attempts } => {
            let group = groups::find_named(app.db.blocking(), stream, group)?;
            builder.ack(group.id(), &groups::settlements(attempts)?)?;
        }
        JsonWrite::Nack { stream, group, attempts, delay_seconds, reject, uncounted, reason } => {
            let group = groups::find_named(app.db.blocking(), stream, group)?;
            let again = groups::again(*delay_seconds, *reject, *uncounted)?;
            builder.nack(group.id(), again, reason, &groups::settlements(attempts)?)?;
        }
    }
    Ok(())
}

fn answer(ack: &Ack, asked: &[Asked]) -> axum::http::Response<axum::body::Body> {
    // Of a repeated commit only the appends of producers are remembered.
    let mut object = json!({});
    if ack.duplicate {
        object["duplicate"] = json!(true);
    }
    object["appends"] = asked
        .iter()
        .filter(|asked| asked.produced || !ack.duplicate)
        .zip(&ack.appends)
        .map(|(asked, at)| {
            json!({ "stream": asked.stream, "first": at.first.0, "last": streams::last(at.first, at.count), "count": at.count })
        })
        .collect();
    reply::acked_json(ack, StatusCode::OK, object)
}
