//! Handlers of `/v1/kv`: raw values under binary keys.
//!
//! Owns: the handlers of one key, the headers of conditional reads and writes, and the functions that store and remove
//! a value. The simple APIs (`keys`, `entity`) call these functions too. Does not own: scans (`scan`), counters and
//! deletes by prefix (`transaction`), lifetimes (`ttl`), or reads at a revision (`key_history`).

use std::sync::Arc;

use axum_core::body::Body;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;
use thalweg_engine::{Ack, Entry, Keyspace, PutOptions, RowsOf, WriteError};
use thalweg_serving::{
    app::App,
    error::{ApiError, no_such_key},
    fetched::fetch_rows,
};
use thalweg_types::{
    Action, Durability, Revision,
    command::{CommitBuilder, Expect, TransactionBuilder},
};

use crate::{
    body,
    call::{Answer, Call},
    describe::{
        Acked, BINARY, Binary, KeyPath, Level, Lifetime, ReadConditions, ValueHead, ValueReply, WriteConditions,
    },
    key_history::{self, WithValue},
    named_writes,
    parse::{Freshness, Media, RevisionQuery, kv_path, read_freshness, write_condition},
    read_gate, reply,
    ttl::{PutLifetime, put_remaining},
};

const PREFIX: &str = "/v1/kv/";

/// Handles `GET /v1/kv/{keyspace}/{key}`: returns a key's value.
#[utoipa::path(
    get,
    path = "/v1/kv/{keyspace}/{key}",
    params(KeyPath, ReadConditions, RevisionQuery),
    responses(ValueReply)
)]
pub(crate) fn get(app: &Arc<App>, call: &Call) -> Answer {
    let asked = RevisionQuery::parse(call.head.uri.query())?;
    let (name, key) = kv_path(call.path_after(PREFIX))?;
    let keyspace = app.find_keyspace(&name)?;
    if let Some(revision) = asked.revision {
        return key_history::get(app, &keyspace, &key.unwrap_or_default(), Revision(revision), WithValue::Yes);
    }
    let key = key.unwrap_or_default();
    let mut head = None;
    let has_room = call.account.has_reply_room(|| {
        head = keyspace.head(&key)?;
        Ok::<_, ApiError>(head.as_ref().map(|head| head.value_bytes))
    })?;
    if let Some(head) = head.filter(|_| !has_room) {
        // A conditional read that sends no value needs no room in the limit on reply bytes.
        let level = app.db.blocking().visible_durability();
        return stale(call, head.revision, level)?.ok_or_else(reply::no_room);
    }
    let entry = keyspace.get(&key)?;
    let level = app.db.blocking().visible_durability();
    let entry = entry.ok_or_else(|| missing(level))?;
    if let Some(other) = stale(call, entry.revision, level)? {
        return Ok(other);
    }
    let mut response = reply::shown(Media::Binary, Body::from(entry.value), level);
    reply::put_revision(response.headers_mut(), entry.revision);
    put_remaining(app, &mut response, &entry.expiry)?;
    Ok(response)
}

/// Returns a key's value; `None` if the key has none. Returns error 503, without reading the value, if the limit on
/// unsent bytes of replies has no room for it.
pub(crate) fn value(call: &Call, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Entry>, ApiError> {
    let len = || Ok::<_, ApiError>(keyspace.head(key)?.map(|head| head.value_bytes));
    if !call.account.has_reply_room(len)? {
        return Err(reply::no_room());
    }
    Ok(keyspace.get(key)?)
}

/// Handles `HEAD /v1/kv/{keyspace}/{key}`: returns a key's revision and the size of its value. Does not read a long
/// value, which only the log contains.
#[utoipa::path(
    head,
    path = "/v1/kv/{keyspace}/{key}",
    params(KeyPath, ReadConditions, RevisionQuery),
    responses(ValueHead)
)]
pub(crate) fn head(app: &Arc<App>, call: &Call) -> Answer {
    let asked = RevisionQuery::parse(call.head.uri.query())?;
    let (name, key) = kv_path(call.path_after(PREFIX))?;
    let keyspace = app.find_keyspace(&name)?;
    if let Some(revision) = asked.revision {
        return key_history::get(app, &keyspace, &key.unwrap_or_default(), Revision(revision), WithValue::No);
    }
    let head = keyspace.head(&key.unwrap_or_default())?;
    let level = app.db.blocking().visible_durability();
    let head = head.ok_or_else(|| missing(level))?;
    if let Some(other) = stale(call, head.revision, level)? {
        return Ok(other);
    }
    let mut response = reply::shown(Media::Binary, Body::empty(), level);
    let headers = response.headers_mut();
    reply::put_revision(headers, head.revision);
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(head.value_bytes));
    put_remaining(app, &mut response, &head.expiry)?;
    Ok(response)
}

/// Returns error 404 for a key without a value. The error states the durability level of the state that was read,
/// because the delete of the key may not be durable yet.
fn missing(level: Durability) -> ApiError {
    ApiError { shown: Some(level), ..no_such_key() }
}

/// Returns the reply to a conditional read whose conditions forbid sending the value; `None` if they permit it.
fn stale(call: &Call, revision: Revision, level: Durability) -> Result<Option<Response<Body>>, ApiError> {
    let (if_match, if_none_match) = (call.header(&header::IF_MATCH), call.header(&header::IF_NONE_MATCH));
    match read_freshness(if_match, if_none_match, revision) {
        Freshness::Send => Ok(None),
        Freshness::NotModified => {
            let mut response = reply::empty(StatusCode::NOT_MODIFIED);
            reply::put_revision(response.headers_mut(), revision);
            response.headers_mut().insert(reply::DURABILITY, reply::level_value(level));
            Ok(Some(response))
        }
        Freshness::Failed => Err(ApiError {
            detail: Some(("revision", revision.0)),
            shown: Some(level),
            ..ApiError::new(
                StatusCode::PRECONDITION_FAILED,
                "condition_failed",
                Action::Fix,
                "the key has another revision than If-Match: read the key and retry",
            )
        }),
    }
}

fn condition(call: &Call) -> Result<Option<Expect<'static>>, ApiError> {
    Ok(write_condition(call.header(&header::IF_MATCH), call.header(&header::IF_NONE_MATCH))?)
}

/// Handles `PUT /v1/kv/{keyspace}/{key}`: stores a value.
#[utoipa::path(
    put, path = "/v1/kv/{keyspace}/{key}", params(KeyPath, Level, Lifetime, WriteConditions),
    request_body(content = Binary, content_type = BINARY), responses(Acked)
)]
pub(crate) async fn put(app: &Arc<App>, call: &mut Call) -> Answer {
    let (level, expect, terms) = (call.level(app)?, condition(call)?, PutLifetime::of(call)?);
    let value = body::read(app, &call.account, call.body.get_mut()).await?;
    let (name, key) = kv_path(call.path_after(PREFIX))?;
    let key = key.unwrap_or_default();
    if !terms.is_plain() {
        let (keyspace, options) = (call.keyspace(app, &name).await?, terms.options(expect));
        let spare = named_writes::may_lag(app).then(|| value.clone());
        let mut stored = store_with(app, call, &keyspace, &key, value, &options, level).await;
        if let Some(value) = spare.filter(|_| named_writes::lacks_keyspace(&stored)) {
            let keyspace = named_writes::keyspace_again(app, call, &name).await?;
            stored = Box::pin(store_with(app, call, &keyspace, &key, value, &options, level)).await;
        }
        return Ok(reply::acked(&stored?, StatusCode::NO_CONTENT));
    }
    let ack = store_by_name(app, call, &name, &key, value, expect, level).await?;
    Ok(reply::acked(&ack, StatusCode::NO_CONTENT))
}

/// Stores a value with a lifetime. Frees the memory of the request's body before the wait for the disk.
async fn store_with(
    app: &App,
    call: &Call,
    keyspace: &Keyspace,
    key: &[u8],
    value: body::HeldBody,
    options: &PutOptions<'_>,
    level: Durability,
) -> Result<Ack, ApiError> {
    let db = call.db(app)?;
    fetch_rows(app, &call.account, &db, RowsOf::Key(keyspace.id(), key)).await;
    let committed = db.put_with(keyspace, key, &value, options, level);
    drop(value);
    Ok(committed.await?)
}

/// Stores a value like [`store`]. Creates the keyspace with this name if it does not exist.
pub(crate) async fn store_by_name(
    app: &App,
    call: &Call,
    name: &str,
    key: &[u8],
    value: body::HeldBody,
    expect: Option<Expect<'_>>,
    level: Durability,
) -> Result<Ack, ApiError> {
    let keyspace = call.keyspace(app, name).await?;
    let spare = named_writes::may_lag(app).then(|| value.clone());
    let stored = store(app, call, &keyspace, key, value, expect, level).await;
    let Some(value) = spare.filter(|_| named_writes::lacks_keyspace(&stored)) else { return stored };
    let keyspace = named_writes::keyspace_again(app, call, name).await?;
    Box::pin(store(app, call, &keyspace, key, value, expect, level)).await
}

/// Stores a value. Frees the memory of the request's body before the wait for the disk.
async fn store(
    app: &App,
    call: &Call,
    keyspace: &Keyspace,
    key: &[u8],
    value: body::HeldBody,
    expect: Option<Expect<'_>>,
    level: Durability,
) -> Result<Ack, ApiError> {
    let db = call.db(app)?;
    let Some(expect) = expect else {
        fetch_rows(app, &call.account, &db, RowsOf::Write(keyspace.id(), key)).await;
        let stored = db.put(keyspace.id(), key, &value, level);
        drop(value);
        return Ok(stored.await?);
    };
    let committed = {
        let mut commit = CommitBuilder::new();
        commit.expect(keyspace.id(), key, expect)?.put(keyspace.id(), key, &value)?;
        fetch_rows(app, &call.account, &db, RowsOf::Commit(&commit)).await;
        db.commit(&commit, level)
    };
    drop(value);
    Ok(committed.await?)
}

/// Handles `DELETE /v1/kv/{keyspace}/{key}`: removes a key.
#[utoipa::path(delete, path = "/v1/kv/{keyspace}/{key}", params(KeyPath, Level, WriteConditions), responses(Acked))]
pub(crate) async fn delete(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    let (level, expect) = (call.level(app)?, condition(call)?);
    let (name, key) = kv_path(call.path_after(PREFIX))?;
    let keyspace = match read_gate::look_up(app, call, || app.find_keyspace(&name)).await {
        Ok(found) => found,
        Err(error) if error.status == StatusCode::NOT_FOUND => {
            return Box::pin(delete_nothing(app, call, expect, level)).await;
        }
        Err(error) => return Err(error),
    };
    let key = key.unwrap_or_default();
    let mut removed = remove(app, call, &keyspace, &key, expect, level).await;
    if named_writes::lacks_keyspace(&removed) && named_writes::may_lag(app) {
        Box::pin(read_gate::catch_up(app, call)).await?;
        match app.find_keyspace(&name) {
            Ok(keyspace) => removed = Box::pin(remove(app, call, &keyspace, &key, expect, level)).await,
            Err(_) => return Box::pin(delete_nothing(app, call, expect, level)).await,
        }
    }
    Ok(reply::acked(&removed?, StatusCode::NO_CONTENT))
}

/// Answers the delete of a key in a keyspace that does not exist. Creates nothing, and the reply has no revision. The
/// reply reveals state, so an empty transaction first waits until this state has reached the durability level.
async fn delete_nothing(app: &Arc<App>, call: &Call, expect: Option<Expect<'_>>, level: Durability) -> Answer {
    if expect.is_some_and(|expect| !matches!(expect, Expect::Absent)) {
        return Err(WriteError::ConditionFailed { condition: 0, actual: None }.into());
    }
    let (status, reached) = match level {
        Durability::None => (StatusCode::ACCEPTED, level),
        level => (StatusCode::NO_CONTENT, call.db(app)?.transact(&TransactionBuilder::new(), level).await?.durability),
    };
    let mut response = reply::empty(status);
    response.headers_mut().insert(reply::DURABILITY, reply::level_value(reached));
    Ok(response)
}

/// Removes a key from a keyspace.
pub(crate) async fn remove(
    app: &App,
    call: &Call,
    keyspace: &Keyspace,
    key: &[u8],
    expect: Option<Expect<'_>>,
    level: Durability,
) -> Result<Ack, ApiError> {
    let db = call.db(app)?;
    let Some(expect) = expect else {
        fetch_rows(app, &call.account, &db, RowsOf::Write(keyspace.id(), key)).await;
        return Ok(db.delete(keyspace.id(), key, level).await?);
    };
    let committed = {
        let mut commit = CommitBuilder::new();
        commit.expect(keyspace.id(), key, expect)?.delete(keyspace.id(), key)?;
        fetch_rows(app, &call.account, &db, RowsOf::Commit(&commit)).await;
        db.commit(&commit, level)
    };
    Ok(committed.await?)
}

/// Handles `GET /v1/kv`: lists the names of the keyspaces.
#[utoipa::path(
    get, path = "/v1/kv", responses((status = 200, description = "Names and ids of the keyspaces.", body = Object))
)]
pub(crate) fn list(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    let names: Vec<_> =
        app.db.blocking().keyspaces().into_iter().map(|info| json!({"name": info.name, "id": info.id.0})).collect();
    Ok(reply::json(StatusCode::OK, &json!({ "keyspaces": names })))
}
