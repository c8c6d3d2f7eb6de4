//! The handler of `POST /v1/txn`: conditions that choose between two lists of operations. Also the handlers of counters
//! and of deletes by prefix, which are transactions of one operation.
//!
//! Owns: these handlers, the JSON of a transaction and of its results, and the memory reserved for its reply. Does not
//! own: the JSON of conditions and operations (`operations`), commits (`commit`), or the evaluation (the state
//! machine).
//!
//! Invariant: if a transaction that may write was carried out, the client always learns this. If there is no room for
//! its results, they are `null`.

use std::sync::Arc;

use axum_core::body::Body;
use bytes::Bytes;
use http::{Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use thalweg_engine::{RowsOf, TransactionAck};
use thalweg_serving::{admission::Account, app::App, deleting::DeleteShare, error::ApiError, fetched::fetch_rows};
use thalweg_types::{
    Durability, Revision,
    budget::{self, Budget, BudgetSpent},
    command::{Command, OperationResult, ScanPage, ScannedItem, TransactionBuilder},
    limits::{MAX_COMMAND_STEPS, MAX_TRANSACTION_RESULT_BYTES},
    steps::SHORT_READ,
};
use utoipa::ToSchema;

use crate::{
    body,
    call::{Answer, Call},
    describe::{Durable, KeyPath, KeyspacePath, Level},
    json::{self, push_number},
    long_json::LongJson,
    names::Names,
    operations::{JsonCondition, JsonOperation, level_of, targets},
    parse::{AddQuery, Media, PrefixQuery, Required, kv_path},
    read_gate, reading, reply,
    reply_memory::ReplyMemory,
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

    /// Returns true if neither of the transaction's two lists of operations contains a write.
    fn only_reads(&self) -> bool {
        self.operations().all(JsonOperation::reads)
    }

    /// Builds the transaction. `names` has the ids of all names in it.
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

    /// Returns the gets in a list of operations, and the number of scans in the list.
    fn reads(operations: &[JsonOperation]) -> (Vec<&JsonOperation>, usize) {
        let (scans, gets): (Vec<_>, Vec<_>) =
            operations.iter().filter(|operation| operation.reads()).partition(|operation| operation.scans());
        (gets, scans.len())
    }

    /// Estimates the number of bytes of the results, from the current sizes of the values that the transaction gets.
    fn estimated_result_bytes(&self, app: &App, names: &Names) -> u64 {
        const MOST: u64 = MAX_TRANSACTION_RESULT_BYTES as u64;
        let of_list = |operations: &[JsonOperation]| {
            let (gets, scans) = Self::reads(operations);
            if scans > 0 || gets.len() > MAX_ESTIMATED_GETS {
                return MOST;
            }
            let bytes = || gets.iter().map(|get| get.value_bytes(app, names)).sum::<u64>();
            budget::within(SHORT_READ, bytes).unwrap_or(MOST)
        };
        of_list(&self.then).max(of_list(&self.otherwise)).min(MOST)
    }

    /// Returns an error if the transaction reads, and the limit on unsent bytes of replies has no room for the reply.
    /// This check comes before the transaction is carried out, because a later check could not reject it any more.
    fn check_reply_room(&self, app: &App, call: &Call, names: &Names) -> Result<(), ApiError> {
        if !self.operations().any(JsonOperation::reads) {
            return Ok(());
        }
        let bytes = || Ok::<_, ApiError>(Some(self.estimated_result_bytes(app, names)));
        if call.account.has_reply_room(bytes)? { Ok(()) } else { Err(reply::no_room()) }
    }

    /// Returns the parts of the request that the reply repeats, such as the names of streams.
    fn into_requested(self) -> Requested {
        let names = |operations: Vec<JsonOperation>| operations.into_iter().map(RequestedOperation::of).collect();
        Requested { conditions: self.conditions, then: names(self.then), otherwise: names(self.otherwise) }
    }
}

/// Maximum number of gets in a list of operations for which the server looks up the sizes of the values, to estimate
/// the reply. For a longer list, it assumes the maximum size of a reply.
const MAX_ESTIMATED_GETS: usize = 16;

/// The parts of a proposed transaction that its reply repeats, such as the names of streams.
struct Requested {
    conditions: Vec<JsonCondition>,
    then: Vec<RequestedOperation>,
    otherwise: Vec<RequestedOperation>,
}

/// An operation of the request, reduced to what is needed to write its result into the reply.
enum RequestedOperation {
    /// An append to the stream with this name.
    Append(String),
    Ack,
    /// Any other operation.
    Other,
}

impl RequestedOperation {
    fn of(operation: JsonOperation) -> Self {
        match operation {
            JsonOperation::Append { stream, .. } => Self::Append(stream),
            JsonOperation::Ack { .. } => Self::Ack,
            _ => Self::Other,
        }
    }
}

impl Requested {
    /// Encodes the reply up to its results.
    fn outline(&self, ack: &TransactionAck) -> Vec<u8> {
        let failed = ack.outcome.failed.map(|failed| {
            let condition = self.conditions.get(failed.condition as usize);
            let mut object = condition.map(JsonCondition::named).unwrap_or_default();
            object.insert("condition".to_owned(), failed.condition.into());
            object.insert("revision".to_owned(), json!(failed.actual.map(Revision::get)));
            object
        });
        let (succeeded, wrote, revision) = (ack.succeeded(), ack.outcome.wrote, ack.outcome.revision.0);
        let (failed, level) = (json!(failed), ack.durability.name());
        format!(
            "{{\"succeeded\":{succeeded},\"failed\":{failed},\"wrote\":{wrote},\"revision\":{revision},\
             \"durability\":\"{level}\",\"results\":"
        )
        .into()
    }

    /// Creates the reply from the outline (the JSON before the results) and the results.
    fn answer(&self, outline: &[u8], succeeded: bool, results: &[OperationResult]) -> LongJson {
        let operations = if succeeded { &self.then } else { &self.otherwise };
        let mut out = LongJson::new(outline);
        for (at, (operation, result)) in operations.iter().zip(results).enumerate() {
            out.json().push(if at == 0 { b'[' } else { b',' });
            push_result(&mut out, operation, result);
        }
        out.json().extend_from_slice(if results.is_empty() { b"[]}\n" } else { b"]}\n" });
        out
    }
}

/// Estimates the length in bytes of the JSON of these results: their keys and values, and [`ITEM_BYTES`] for each
/// result and each scanned pair.
fn read_bytes(results: &[OperationResult]) -> usize {
    let of_item = |item: &ScannedItem| item.key.len() + item.value.as_ref().map_or(0, Bytes::len) + ITEM_BYTES;
    let of_result = |result: &OperationResult| match result {
        OperationResult::Got(Some(got)) => got.value.len(),
        OperationResult::Scanned(page) => page.items.iter().map(of_item).sum(),
        _ => 0,
    };
    results.iter().map(|result| of_result(result) + ITEM_BYTES).sum()
}

/// Approximate length in bytes of the JSON of one result, without its values.
const ITEM_BYTES: usize = 64;

/// Creates the reply to a transaction. If the limit on unsent bytes of replies has no room for it, a transaction that
/// only reads gets an error. A transaction that may have written gets a reply without results, because the client must
/// learn that it was carried out.
async fn answer(app: &App, call: &mut Call, requested: Requested, ack: TransactionAck, only_reads: bool) -> Answer {
    let (durability, revision, succeeded) = (ack.durability, ack.outcome.revision, ack.succeeded());
    let (outline, results) = (requested.outline(&ack), ack.outcome.results);
    let mut brief = LongJson::new(&outline);
    brief.json().extend_from_slice(b"null}\n");
    let bytes = read_bytes(&results);
    let make = move || requested.answer(&outline, succeeded, &results);
    let made = body::work(app, &call.account, bytes, make).await;
    let body = match made.and_then(|answer| answer.into_body(app, call)) {
        Ok(body) => body,
        Err(error) if only_reads => return Err(error),
        Err(_) => {
            call.reply_memory = ReplyMemory::Exceed;
            Body::from(brief.into_bytes())
        }
    };
    Ok(done(durability, revision, body))
}

/// Handles `POST /v1/txn`: executes conditions that choose between two lists of operations.
#[utoipa::path(
    post, path = "/v1/txn", params(Level), request_body = JsonTransaction,
    responses((status = 200,
            description = "succeeded, failed, wrote, revision, durability, and `results`, one per executed operation. \
                           `results` is null if the transaction was carried out and no memory is free to send them: \
                           read the keys.",
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
    sent.check_reply_room(app, call, &names)?;
    let build = move || Ok::<_, ApiError>((sent.build(&names)?, sent.into_requested()));
    let (transaction, requested) = body::work(app, &call.account, body.len(), build).await??;
    if only_reads {
        let ack = read(app, &call.account, &transaction).await?;
        return Ok(read_gate::showing(answer(app, call, requested, ack, only_reads).await?, shown));
    }
    let db = call.db(app)?;
    let share = app.may_delete(&call.account, transaction.deleted_prefixes())?;
    fetch_rows(app, &call.account, &db, RowsOf::Transaction(&transaction)).await;
    let transacted = DeleteShare::until(share, db.transact(&transaction, level), deleted_at);
    drop(transaction);
    // The conditions stay in memory, to name a failed one. The body stays counted as long as they do.
    let _kept = (!requested.conditions.is_empty()).then_some(body);
    let ack = transacted.await?;
    answer(app, call, requested, ack, only_reads).await
}

/// Returns the revision at which a transaction may have deleted prefixes; `None` if it deleted none.
fn deleted_at(ack: &TransactionAck) -> Option<Revision> {
    ack.outcome.wrote.then_some(ack.outcome.revision)
}

/// Answers a transaction that only reads, without writing to the log.
async fn read(
    app: &Arc<App>,
    account: &Arc<Account>,
    transaction: &TransactionBuilder,
) -> Result<TransactionAck, ApiError> {
    let mut bytes = Vec::new();
    transaction.encode(&mut bytes)?;
    let read = |app: &App, bytes: &[u8], budget| match Command::decode(bytes) {
        Ok(Command::Transaction(transaction)) => app.db.blocking().read_transaction(&transaction, budget),
        _ => Err(BudgetSpent::Steps),
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

fn done(durability: Durability, revision: Revision, body: Body) -> Response<Body> {
    let mut response = reply::shown(Media::Json, body, durability);
    reply::put_revision(response.headers_mut(), revision);
    response
}

fn push_result(out: &mut LongJson, operation: &RequestedOperation, result: &OperationResult) {
    let short = |fields: Value| {
        let mut object = fields;
        object["op"] = name_of(operation, result).into();
        object
    };
    let fields = match result {
        OperationResult::Got(Some(got)) => {
            out.json().extend_from_slice(b"{\"op\":\"get\",\"found\":true,");
            out.push_shared("value", &got.value);
            out.json().push(b',');
            push_number(out.json(), "revision", got.revision.0);
            return out.json().push(b'}');
        }
        OperationResult::Scanned(page) => return push_page(out, page),
        OperationResult::Got(None) => json!({ "found": false }),
        OperationResult::Put => json!({}),
        OperationResult::Deleted { existed } | OperationResult::Touched { existed } => json!({ "existed": existed }),
        OperationResult::Appended(at) => {
            let stream = if let RequestedOperation::Append(stream) = operation { stream } else { "" };
            let last = reply::last(at.first, at.count);
            json!({ "stream": stream, "first": at.first.0, "last": last, "count": at.count })
        }
        OperationResult::Added { value } => json!({ "value": value }),
        OperationResult::PrefixDeleted { keys } => json!({ "keys": keys }),
        OperationResult::Settled { records } => json!({ "settled": records }),
    };
    serde_json::to_writer(out.json(), &short(fields)).expect("writing to memory");
}

fn name_of(operation: &RequestedOperation, result: &OperationResult) -> &'static str {
    match result {
        OperationResult::Put => "put",
        OperationResult::Deleted { .. } => "delete",
        OperationResult::Touched { .. } => "touch",
        OperationResult::Appended(_) => "append",
        OperationResult::Added { .. } => "add",
        OperationResult::PrefixDeleted { .. } => "delete_prefix",
        OperationResult::Settled { .. } if matches!(operation, RequestedOperation::Ack) => "ack",
        OperationResult::Settled { .. } => "nack",
        OperationResult::Got(_) => "get",
        OperationResult::Scanned(_) => "scan",
    }
}

fn push_page(out: &mut LongJson, page: &ScanPage) {
    out.json().extend_from_slice(b"{\"op\":\"scan\",\"items\":[");
    for (at, item) in page.items.iter().enumerate() {
        out.json().extend_from_slice(if at == 0 { b"{" } else { b",{" });
        out.push_shared("key", &item.key);
        out.json().push(b',');
        if let Some(value) = &item.value {
            out.push_shared("value", value);
            out.json().push(b',');
        }
        push_number(out.json(), "revision", item.revision.0);
        out.json().push(b'}');
    }
    out.json().push(b']');
    if let Some(after) = &page.after {
        out.json().push(b',');
        out.push_shared("after", after);
    }
    out.json().push(b'}');
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
        let (db, mut builder) = (call.db(app)?, TransactionBuilder::new());
        builder.then().add(keyspace.id(), &key.unwrap_or_default(), delta)?;
        fetch_rows(app, &call.account, &db, RowsOf::Transaction(&builder)).await;
        db.transact(&builder, level)
    };
    let ack = transacted.await?;
    let value = match ack.outcome.results[..] {
        [OperationResult::Added { value }] => Some(value),
        _ => None,
    };
    let revision = ack.outcome.revision;
    let object = json!({ "value": value, "revision": revision.0, "durability": ack.durability.name() });
    Ok(done(ack.durability, revision, Body::from(format!("{object}\n"))))
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
            // A keyspace that does not exist has no keys. A delete does not create the keyspace.
            Err(error) if error.status == StatusCode::NOT_FOUND => {}
            Err(error) => return Err(error),
        }
        let share = app.may_delete(&call.account, builder.deleted_prefixes())?;
        DeleteShare::until(share, call.db(app)?.transact(&builder, level), deleted_at)
    };
    let ack = transacted.await?;
    let keys = match ack.outcome.results[..] {
        [OperationResult::PrefixDeleted { keys }] => keys,
        [] => Some(0),
        _ => None,
    };
    let revision = ack.outcome.revision;
    let object = json!({ "keys": keys, "revision": revision.0, "durability": ack.durability.name() });
    Ok(done(ack.durability, revision, Body::from(format!("{object}\n"))))
}
