//! The handler of `POST /v1/txn`: conditions that choose between two lists of operations. Also counters and deletes by
//! prefix, which are transactions of one operation.

use std::sync::Arc;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use thalweg_engine::TransactionAck;
use thalweg_serving::{admission::Account, app::App, error::ApiError};
use thalweg_types::{
    Durability, Revision,
    budget::{Budget, Spent},
    command::{Command, OperationResult, ScannedItem, TransactionBuilder},
    limits::{MAX_COMMAND_STEPS, MAX_TRANSACTION_RESULT_BYTES},
};
use utoipa::ToSchema;

use crate::{
    body,
    call::{Answer, Call},
    describe::{Durable, KeyPath, KeyspacePath, Level},
    json,
    names::Names,
    operations::{JsonCondition, JsonOperation, level_of, targets},
    parse::{AddQuery, PrefixQuery, Required, kv_path},
    read_gate, reading, reply,
    shapes::{Added, PrefixDeleted},
};

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Transaction)]
struct JsonTransaction {
    #[serde(default)]
    conditions: Vec<JsonCondition>,
    #[serde(default)]
    then: Vec<JsonOperation>,
    #[serde(default, rename = "else")]
    otherwise: Vec<JsonOperation>,
    #[schema(value_type = Option<Durable>)]
    durability: Option<String>,
}

impl JsonTransaction {
    fn operations(&self) -> impl Iterator<Item = &JsonOperation> {
        self.then.iter().chain(&self.otherwise)
    }

    /// Returns true if no operation of either list writes.
    fn only_reads(&self) -> bool {
        self.operations().all(JsonOperation::reads)
    }

    /// Builds the transaction, using the ids of all names that it contains.
    fn build(&self, names: &Names) -> Result<TransactionBuilder, ApiError> {
        let mut builder = TransactionBuilder::new();
        for condition in &self.conditions {
            let id = names.keyspace(&condition.keyspace)?;
            condition.with(|key, expect| Ok(builder.expect(id, key, expect).map(|_| ())?))?;
        }
        self.then.iter().try_for_each(|operation| operation.add(builder.then(), names))?;
        self.otherwise.iter().try_for_each(|operation| operation.add(builder.otherwise(), names))?;
        Ok(builder)
    }

    fn answer(&self, ack: &TransactionAck) -> Value {
        let operations = if ack.succeeded() { &self.then } else { &self.otherwise };
        let failed = ack.outcome.failed.map(|failed| {
            let condition = self.conditions.get(failed.condition as usize);
            let mut object = condition.map(JsonCondition::named).unwrap_or_default();
            object.insert("condition".to_owned(), failed.condition.into());
            object.insert("revision".to_owned(), json!(failed.actual.map(Revision::get)));
            object
        });
        json!({
            "succeeded": ack.succeeded(),
            "failed": failed,
            "wrote": ack.outcome.wrote,
            "revision": ack.outcome.revision.0,
            "durability": ack.durability.name(),
            "results": operations.iter().zip(&ack.outcome.results)
                .map(|(operation, result)| result_json(operation, result)).collect::<Vec<_>>(),
        })
    }
}

/// Handles `POST /v1/txn`: executes conditions that choose between two lists of operations.
#[utoipa::path(
    post, path = "/v1/txn", params(Level), request_body = JsonTransaction,
    responses((status = 200,
            description = "succeeded, failed, wrote, revision, durability, and `results`, one per executed operation.",
            body = Object))
)]
pub(crate) async fn transaction(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    call.require_json()?;
    let asked = call.level(app)?;
    let body = body::read(app, &call.account, call.body.get_mut()).await?;
    let (sent, body): (JsonTransaction, _) = body::parse(app, &call.account, body, json::parse).await?;
    let level = level_of(sent.durability.as_ref(), asked)?;
    let only_reads = level != Durability::None && sent.only_reads();
    let shown = read_gate::before_transaction(app, call, only_reads).await?;
    let names = Names::of(app, call, targets(&sent.conditions, sent.operations())).await?;
    let transaction = sent.build(&names)?;
    if only_reads {
        let ack = read(app, &call.account, &transaction).await?;
        return Ok(read_gate::showing(done(ack.durability, ack.outcome.revision, &sent.answer(&ack)), shown));
    }
    let transacted = call.db(app)?.transact(&transaction, level);
    drop((transaction, body));
    let ack = transacted.await?;
    Ok(done(ack.durability, ack.outcome.revision, &sent.answer(&ack)))
}

/// Answers a transaction that only reads, without the log.
async fn read(
    app: &Arc<App>,
    account: &Arc<Account>,
    transaction: &TransactionBuilder,
) -> Result<TransactionAck, ApiError> {
    let mut bytes = Vec::new();
    transaction.encode(&mut bytes)?;
    let read = |app: &App, bytes: &[u8], budget| match Command::decode(bytes) {
        Ok(Command::Transaction(transaction)) => app.db.blocking().read_transaction(&transaction, budget),
        _ => Err(Spent::Steps),
    };
    let ack = match read(app, &bytes, Budget::RESIDENT) {
        Ok(ack) => ack,
        Err(_) => {
            let shared = Arc::clone(app);
            let long = move || read(&shared, &bytes, Budget::waiting(MAX_COMMAND_STEPS));
            let ack = reading::on_reader(app, account, MAX_TRANSACTION_RESULT_BYTES, long).await?;
            ack.map_err(|_| app.db.blocking().transaction_too_expensive())?
        }
    };
    Ok(ack??)
}

fn done(durability: Durability, revision: Revision, object: &Value) -> http::Response<axum_core::body::Body> {
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
            let last = reply::last(at.first, at.count);
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

/// Handles `POST /v1/kv/{keyspace}/{key}?add=5`: adds to a counter.
#[utoipa::path(
    post, path = "/v1/kv/{keyspace}/{key}", params(KeyPath, AddQuery, Level),
    responses((status = 200, description = "The new value, with revision and durability.", body = Added))
)]
pub(crate) async fn add_to(app: &Arc<App>, call: &mut Call) -> Answer {
    let AddQuery { add: Required(delta) } = AddQuery::parse(call.head.uri.query())?;
    let level = call.level(app)?;
    let (name, key) = kv_path(call.path_after("/v1/kv/"))?;
    let keyspace = call.keyspace(app, &name).await?;
    let transacted = {
        let mut builder = TransactionBuilder::new();
        builder.then().add(keyspace.id(), &key.unwrap_or_default(), delta)?;
        call.db(app)?.transact(&builder, level)
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

/// Handles `DELETE /v1/kv/{keyspace}?prefix=`: removes all keys with a prefix.
#[utoipa::path(
    delete, path = "/v1/kv/{keyspace}", params(KeyspacePath, PrefixQuery, Level),
    responses((status = 200,
            description = "The number of removed keys, or null if they are too many to count.",
            body = PrefixDeleted))
)]
pub(crate) async fn delete_prefix(app: &Arc<App>, call: &mut Call) -> Answer {
    let PrefixQuery { prefix: Required(prefix) } = PrefixQuery::parse(call.head.uri.query())?;
    let level = call.level(app)?;
    let (name, _) = kv_path(call.path_after("/v1/kv/"))?;
    let found = read_gate::look_up(app, call, || app.find_keyspace(&name)).await;
    let transacted = {
        let mut builder = TransactionBuilder::new();
        match found {
            Ok(keyspace) => _ = builder.then().delete_prefix(keyspace.id(), &prefix)?,
            // A keyspace that does not exist has no keys, and a delete does not create it.
            Err(error) if error.status == StatusCode::NOT_FOUND => {}
            Err(error) => return Err(error),
        }
        call.db(app)?.transact(&builder, level)
    };
    let ack = transacted.await?;
    let keys = match ack.outcome.results[..] {
        [OperationResult::PrefixDeleted { keys }] => keys,
        [] => Some(0),
        _ => None,
    };
    let revision = ack.outcome.revision;
    let object = json!({ "keys": keys, "revision": revision.0, "durability": ack.durability.name() });
    Ok(done(ack.durability, revision, &object))
}
