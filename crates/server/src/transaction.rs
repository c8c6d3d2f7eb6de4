//! `POST /v1/txn`: conditions that choose between two lists of operations. Counters and deletes by prefix,
//! which are transactions of one operation.

use std::sync::Arc;

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use thalweg_engine::{Database, TransactionAck};
use thalweg_types::{
    Durability, Revision,
    command::{OperationResult, Operations, ScanOperation, ScannedItem, TransactionBuilder},
    limits::MAX_TRANSACTION_SCAN_ITEMS,
    record::RecordBatch,
};

use crate::{
    app::{Answer, App, Call},
    batch::{JsonRecord, push_records},
    body,
    commit::{JsonCondition, JsonExpected, Names, expected_offset, require_json},
    error::ApiError,
    groups::{self, JsonSettlement},
    json::{self, bytes_of, required_bytes},
    parse::{Params, ParseError, kv_path},
    reply, streams,
    ttl::{JsonTtl, json_terms},
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonTransaction {
    #[serde(default)]
    conditions: Vec<JsonCondition>,
    #[serde(default)]
    then: Vec<JsonOperation>,
    #[serde(default, rename = "else")]
    otherwise: Vec<JsonOperation>,
    durability: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
enum JsonOperation {
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
        records: Vec<JsonRecord>,
    },
    Add {
        keyspace: String,
        key: Option<String>,
        key_base64: Option<String>,
        delta: i64,
    },
    DeletePrefix {
        keyspace: String,
        prefix: Option<String>,
        prefix_base64: Option<String>,
    },
    Get {
        keyspace: String,
        key: Option<String>,
        key_base64: Option<String>,
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
    Scan {
        keyspace: String,
        prefix: Option<String>,
        prefix_base64: Option<String>,
        start: Option<String>,
        start_base64: Option<String>,
        end: Option<String>,
        end_base64: Option<String>,
        #[serde(default)]
        reverse: bool,
        #[serde(default)]
        keys_only: bool,
        limit: Option<u32>,
    },
}

impl JsonTransaction {
    fn operations(&self) -> impl Iterator<Item = &JsonOperation> {
        self.then.iter().chain(&self.otherwise)
    }

    /// The transaction, by the ids of all that it names.
    fn build(&self, names: &Names) -> Result<TransactionBuilder, ApiError> {
        let mut builder = TransactionBuilder::new();
        for condition in &self.conditions {
            let id = names.known_keyspace(&condition.keyspace)?;
            condition.with(|key, expect| Ok(builder.expect(id, key, expect).map(|_| ())?))?;
        }
        self.then.iter().try_for_each(|operation| operation.add(builder.then(), names))?;
        self.otherwise.iter().try_for_each(|operation| operation.add(builder.otherwise(), names))?;
        Ok(builder)
    }

    fn level(&self, asked: Durability) -> Result<Durability, ApiError> {
        let Some(name) = &self.durability else { return Ok(asked) };
        name.parse::<Durability>().map_err(|error| ApiError::bad_request("bad_json", error.to_string()))
    }

    fn answer(&self, ack: &TransactionAck) -> Value {
        answer(ack, if ack.succeeded() { &self.then } else { &self.otherwise })
    }
}

/// `POST /v1/txn`
pub async fn transaction(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    require_json(call)?;
    let asked = app.level(call)?;
    let body = body::read(app, call.body.get_mut()).await?;
    let sent: JsonTransaction = json::parse(&body)?;
    let level = sent.level(asked)?;
    let mut names = Names::default();
    for condition in &sent.conditions {
        names.keyspace(app, &condition.keyspace).await?;
    }
    for operation in sent.operations() {
        match operation.target() {
            Target::Keyspace(name) => drop(names.keyspace(app, name).await?),
            Target::Stream(name) => drop(names.stream(app, name).await?),
            Target::Group(stream, name) => {
                names.add_group(stream, name, groups::find_named(app.db.blocking(), stream, name)?.id());
            }
        }
    }
    let transacted = app.db.transact(&sent.build(&names)?, level);
    drop(body);
    let ack = transacted.await?;
    Ok(done(ack.durability, ack.outcome.revision, &sent.answer(&ack)))
}

/// Carries out a transaction that is written as `POST /v1/txn` takes it, and answers as that does. For
/// whoever has the database open in his own process.
pub fn transact_json(db: &Database, body: &[u8]) -> Result<Value, ApiError> {
    let sent: JsonTransaction = json::parse(body)?;
    let db = db.with_durability(sent.level(db.durability())?);
    let mut names = Names::default();
    for condition in &sent.conditions {
        names.add_keyspace(&condition.keyspace, db.keyspace(&condition.keyspace)?.id());
    }
    for operation in sent.operations() {
        match operation.target() {
            Target::Keyspace(name) => names.add_keyspace(name, db.keyspace(name)?.id()),
            Target::Stream(name) => names.add_stream(name, db.stream(name)?.id()),
            Target::Group(stream, name) => names.add_group(stream, name, groups::find_named(&db, stream, name)?.id()),
        }
    }
    let ack = db.transact(&sent.build(&names)?)?;
    Ok(sent.answer(&ack))
}

/// What an operation is about.
enum Target<'a> {
    Keyspace(&'a str),
    Stream(&'a str),
    /// Of a stream.
    Group(&'a str, &'a str),
}

impl JsonOperation {
    fn target(&self) -> Target<'_> {
        match self {
            Self::Append { stream, .. } => Target::Stream(stream),
            Self::Ack { stream, group, .. } | Self::Nack { stream, group, .. } => Target::Group(stream, group),
            Self::Put { keyspace, .. }
            | Self::Touch { keyspace, .. }
            | Self::Delete { keyspace, .. }
            | Self::Add { keyspace, .. }
            | Self::DeletePrefix { keyspace, .. }
            | Self::Get { keyspace, .. }
            | Self::Scan { keyspace, .. } => Target::Keyspace(keyspace),
        }
    }

    fn add(&self, list: &mut Operations, names: &Names) -> Result<(), ApiError> {
        match self {
            Self::Put { keyspace, key, key_base64, value, value_base64, ttl_seconds, lease } => {
                let id = names.known_keyspace(keyspace)?;
                let key = required_bytes("key", key.as_ref(), key_base64.as_ref())?;
                let value = required_bytes("value", value.as_ref(), value_base64.as_ref())?;
                let terms = json_terms(ttl_seconds.as_ref(), *lease)?;
                if terms.is_plain() {
                    list.put(id, &key, &value)?;
                } else {
                    list.put_until(id, &key, &value, terms.deadline, terms.lease)?;
                }
            }
            Self::Touch { keyspace, key, key_base64, ttl_seconds } => {
                let id = names.known_keyspace(keyspace)?;
                let deadline = ttl_seconds.deadline()?;
                list.touch(id, &required_bytes("key", key.as_ref(), key_base64.as_ref())?, deadline)?;
            }
            Self::Delete { keyspace, key, key_base64 } => {
                let id = names.known_keyspace(keyspace)?;
                list.delete(id, &required_bytes("key", key.as_ref(), key_base64.as_ref())?)?;
            }
            Self::Append { stream, expected, records } => {
                let id = names.known_stream(stream)?;
                let mut batch = RecordBatch::new();
                push_records(&mut batch, records)?;
                if batch.is_empty() {
                    return Err(ApiError::bad_request("no_records", "an append has at least one record"));
                }
                list.append(id, expected_offset(expected.as_ref())?, &batch)?;
            }
            Self::Add { keyspace, key, key_base64, delta } => {
                let id = names.known_keyspace(keyspace)?;
                list.add(id, &required_bytes("key", key.as_ref(), key_base64.as_ref())?, *delta)?;
            }
            Self::DeletePrefix { keyspace, prefix, prefix_base64 } => {
                let id = names.known_keyspace(keyspace)?;
                list.delete_prefix(id, &required_bytes("prefix", prefix.as_ref(), prefix_base64.as_ref())?)?;
            }
            Self::Get { keyspace, key, key_base64 } => {
                let id = names.known_keyspace(keyspace)?;
                list.get(id, &required_bytes("key", key.as_ref(), key_base64.as_ref())?)?;
            }
            Self::Ack { stream, group, attempts } => {
                list.ack(names.known_group(stream, group)?, &groups::settlements(attempts)?)?;
            }
            Self::Nack { stream, group, attempts, delay_seconds, reject, uncounted, reason } => {
                let again = groups::again(*delay_seconds, *reject, *uncounted)?;
                list.nack(names.known_group(stream, group)?, again, reason, &groups::settlements(attempts)?)?;
            }
            Self::Scan {
                keyspace,
                prefix,
                prefix_base64,
                start,
                start_base64,
                end,
                end_base64,
                reverse,
                keys_only,
                limit,
            } => {
                let id = names.known_keyspace(keyspace)?;
                let prefix = bytes_of("prefix", prefix.as_ref(), prefix_base64.as_ref())?.unwrap_or_default();
                let start = bytes_of("start", start.as_ref(), start_base64.as_ref())?;
                let end = bytes_of("end", end.as_ref(), end_base64.as_ref())?;
                let limit = limit.unwrap_or(MAX_TRANSACTION_SCAN_ITEMS as u32);
                let (start, end) = (start.as_deref(), end.as_deref());
                let scan =
                    ScanOperation { prefix: &prefix, start, end, reverse: *reverse, keys_only: *keys_only, limit };
                list.scan(id, &scan)?;
            }
        }
        Ok(())
    }
}

fn answer(ack: &TransactionAck, operations: &[JsonOperation]) -> Value {
    let results = operations.iter().zip(&ack.outcome.results);
    let failed = ack
        .outcome
        .failed
        .map(|failed| json!({ "condition": failed.condition, "revision": failed.actual.map(Revision::get) }));
    json!({
        "succeeded": ack.succeeded(),
        "failed": failed,
        "wrote": ack.outcome.wrote,
        "revision": ack.outcome.revision.0,
        "durability": ack.durability.name(),
        "results": results.map(|(operation, result)| result_json(operation, result)).collect::<Vec<_>>(),
    })
}

fn done(durability: Durability, revision: Revision, object: &Value) -> axum::http::Response<axum::body::Body> {
    let mut response = reply::json(StatusCode::OK, object);
    let headers = response.headers_mut();
    headers.insert(reply::DURABILITY, reply::level_value(durability));
    reply::put_revision(headers, revision);
    response
}

fn result_json(operation: &JsonOperation, result: &OperationResult) -> Value {
    let named = |op: &str| Map::from_iter([("op".to_owned(), Value::from(op))]);
    let with = |op: &str, fields: Value| {
        let mut object = named(op);
        if let Value::Object(fields) = fields {
            object.extend(fields);
        }
        Value::Object(object)
    };
    match result {
        OperationResult::Put => Value::Object(named("put")),
        OperationResult::Deleted { existed } => with("delete", json!({ "existed": existed })),
        OperationResult::Touched { existed } => with("touch", json!({ "existed": existed })),
        OperationResult::Appended(at) => {
            let stream = if let JsonOperation::Append { stream, .. } = operation { stream.as_str() } else { "" };
            let last = streams::last(at.first, at.count);
            with("append", json!({ "stream": stream, "first": at.first.0, "last": last, "count": at.count }))
        }
        OperationResult::Added { value } => with("add", json!({ "value": value })),
        OperationResult::PrefixDeleted { keys } => with("delete_prefix", json!({ "keys": keys })),
        OperationResult::Settled { records } => with(
            if matches!(operation, JsonOperation::Ack { .. }) { "ack" } else { "nack" },
            json!({ "settled": records }),
        ),
        OperationResult::Got(None) => with("get", json!({ "found": false })),
        OperationResult::Got(Some(got)) => {
            let mut object = named("get");
            object.insert("found".into(), true.into());
            json::insert_bytes(&mut object, "value", &got.value);
            object.insert("revision".into(), got.revision.0.into());
            Value::Object(object)
        }
        OperationResult::Scanned(page) => {
            let mut object = named("scan");
            object.insert("items".into(), page.items.iter().map(item_json).collect());
            if let Some(after) = &page.after {
                json::insert_bytes(&mut object, "after", after);
            }
            Value::Object(object)
        }
    }
}

fn item_json(item: &ScannedItem) -> Value {
    let mut object = Map::new();
    json::insert_bytes(&mut object, "key", &item.key);
    if let Some(value) = &item.value {
        json::insert_bytes(&mut object, "value", value);
    }
    object.insert("revision".into(), item.revision.0.into());
    Value::Object(object)
}

/// The one parameter of a request, which must be there.
fn only_parameter(call: &Call, wanted: &'static str) -> Result<Vec<u8>, ApiError> {
    let mut found = None;
    for parameter in Params::new(call.head.uri.query()) {
        let (name, value) = parameter?;
        if name != wanted {
            return Err(ParseError::UnknownParameter { name: name.chars().take(64).collect() }.into());
        }
        if found.replace(value.into_owned()).is_some() {
            return Err(ParseError::Repeated { name: wanted }.into());
        }
    }
    found.ok_or_else(|| ParseError::Missing { name: wanted }.into())
}

/// `POST /v1/kv/{keyspace}/{key}?add=5`
pub async fn add_to(app: &Arc<App>, call: &mut Call) -> Answer {
    let delta = only_parameter(call, "add")?;
    let delta = std::str::from_utf8(&delta).ok().and_then(|text| text.parse::<i64>().ok());
    let expected = "a whole number between -2^63 and 2^63-1";
    let delta = delta.ok_or(ParseError::BadParameter { name: "add", expected })?;
    let level = app.level(call)?;
    let (name, key) = kv_path(call.path_after("/v1/kv/"))?;
    let keyspace = app.keyspace(&name).await?;
    let transacted = {
        let mut builder = TransactionBuilder::new();
        builder.then().add(keyspace.id(), &key.unwrap_or_default(), delta)?;
        app.db.transact(&builder, level)
    };
    let ack = transacted.await?;
    let value = match ack.outcome.results[..] {
        [OperationResult::Added { value }] => Some(value),
        _ => None,
    };
    let revision = ack.outcome.revision;
    let object = json!({ "value": value, "revision": revision.0, "durability": ack.durability.name() });
    Ok(done(ack.durability, revision, &object))
}

/// `DELETE /v1/kv/{keyspace}?prefix=`
pub async fn delete_prefix(app: &Arc<App>, call: &mut Call) -> Answer {
    let prefix = only_parameter(call, "prefix")?;
    let level = app.level(call)?;
    let (name, _) = kv_path(call.path_after("/v1/kv/"))?;
    let keyspace = app.find_keyspace(&name)?;
    let transacted = {
        let mut builder = TransactionBuilder::new();
        builder.then().delete_prefix(keyspace.id(), &prefix)?;
        app.db.transact(&builder, level)
    };
    let ack = transacted.await?;
    let keys = match ack.outcome.results[..] {
        [OperationResult::PrefixDeleted { keys }] => keys,
        _ => None,
    };
    let revision = ack.outcome.revision;
    let object = json!({ "keys": keys, "revision": revision.0, "durability": ack.durability.name() });
    Ok(done(ack.durability, revision, &object))
}
