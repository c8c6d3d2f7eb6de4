//! Handlers of `/keys`: values as JSON, over the keyspace `default`.
//!
//! Owns: the handlers of single keys, ranges and batches under these paths, and their JSON. Does not own: conditions,
//! lifetimes and revisions, which only `/v1/kv` offers (`kv`), or the pages of a range (`scan`).
//!
//! The key is in the path or in `?key=`. A `PUT` with neither takes `{"key", "value"}` as its body.

use std::{borrow::Cow, sync::Arc};

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use thalweg_engine::RowsOf;
use thalweg_serving::{
    app::App,
    error::{ApiError, no_such_key},
    fetched::fetch_rows,
    limits::DEFAULT_RANGE_ITEMS,
};
use thalweg_types::command::CommitBuilder;
use utoipa::ToSchema;

use crate::{
    body,
    call::{Answer, Call},
    describe::{Accepted, BINARY, Binary, KeysPath, Level},
    entity::KEYSPACE,
    json::{self, push_bytes, push_number, required_bytes},
    kv,
    parse::{Key, Media, PairRange, ParseError, ScanQuery, decode, pair_range},
    reply,
    scan::{self, Shape},
    shapes::{KeyValue, KeyValues},
};

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Pair)]
struct JsonPair {
    key: Option<String>,
    key_base64: Option<String>,
    value: Option<String>,
    value_base64: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Pairs)]
struct JsonPairs {
    items: Vec<JsonPair>,
}

/// Returns the key in the path or the query of a request; `None` if neither has one.
fn named_key(call: &Call) -> Result<Option<Vec<u8>>, ApiError> {
    let in_path = call.path_after("/keys/");
    if in_path.is_empty() {
        return Ok(Key::parse(call.head.uri.query(), "key")?.0.filter(|key| !key.is_empty()));
    }
    call.no_query()?;
    Ok(Some(decode(in_path.as_bytes())?.into_owned()))
}

fn required_key(call: &Call) -> Result<Vec<u8>, ApiError> {
    named_key(call)?.ok_or_else(|| ParseError::Missing { name: "key" }.into())
}

/// Returns the JSON object `{"key": ...}`.
fn key_object(key: &[u8]) -> Value {
    let mut out = vec![b'{'];
    push_bytes(&mut out, "key", key);
    out.push(b'}');
    serde_json::from_slice(&out).unwrap_or_default()
}

/// Handles `PUT /keys/{key}` and `PUT /keys?key=` with a raw value, and `PUT /keys` with a JSON pair.
#[utoipa::path(
    put, path = "/keys/{key}", params(KeysPath, Level),
    request_body(content((Binary = BINARY), (JsonPair = "application/json"))),
    responses((status = 200, description = "The value is stored.", body = Object), Accepted)
)]
pub(crate) async fn put(app: &Arc<App>, call: &mut Call) -> Answer {
    let (key, level) = (named_key(call)?, call.level(app)?);
    if key.is_none() {
        call.require_json()?;
    }
    let body = body::read(app, &call.account, call.body.get_mut()).await?;
    if let Some(key) = key {
        let ack = kv::store_by_name(app, call, KEYSPACE, &key, body, None, level).await?;
        return Ok(reply::acked_json(&ack, StatusCode::OK, key_object(&key)));
    }
    let keyspace = call.keyspace(app, KEYSPACE).await?;
    let parse = |body: &[u8]| {
        let pair: JsonPair = json::parse(body)?;
        let key = required_bytes("key", pair.key.as_ref(), pair.key_base64.as_ref())?;
        let value = required_bytes("value", pair.value.as_ref(), pair.value_base64.as_ref())?;
        Ok::<_, ApiError>((key.into_owned(), value.into_owned()))
    };
    let ((key, value), body) = body::parse(app, &call.account, body, parse).await?;
    let db = call.db(app)?;
    fetch_rows(app, &call.account, &db, RowsOf::Write(keyspace.id(), &key)).await;
    let stored = db.put(keyspace.id(), &key, &value, level);
    drop((value, body));
    let ack = stored.await?;
    Ok(reply::acked_json(&ack, StatusCode::OK, key_object(&key)))
}

/// Handles `GET /keys/{key}`: returns a key's value as JSON.
#[utoipa::path(
    get, path = "/keys/{key}", params(KeysPath),
    responses((status = 200, description = "The pair.", body = KeyValue))
)]
pub(crate) fn get(app: &Arc<App>, call: &Call) -> Answer {
    let key = required_key(call)?;
    let entry = match app.db.blocking().find_keyspace(KEYSPACE) {
        Some(keyspace) => kv::value(call, &keyspace, &key)?,
        None => None,
    };
    let level = app.db.blocking().visible_durability();
    let entry = entry.ok_or_else(|| ApiError { shown: Some(level), ..no_such_key() })?;
    let mut out = vec![b'{'];
    push_bytes(&mut out, "key", &key);
    out.push(b',');
    push_bytes(&mut out, "value", &entry.value);
    out.push(b',');
    push_number(&mut out, "revision", entry.revision.0);
    out.extend_from_slice(b"}\n");
    let mut response = reply::shown(Media::Json, out.into(), level);
    reply::put_revision(response.headers_mut(), entry.revision);
    Ok(response)
}

/// Handles `DELETE /keys/{key}`: removes a key.
#[utoipa::path(
    delete, path = "/keys/{key}", params(KeysPath, Level),
    responses((status = 200, description = "The key has no value any more.", body = Object), Accepted)
)]
pub(crate) async fn delete(app: &Arc<App>, call: &mut Call) -> Answer {
    let (key, level) = (required_key(call)?, call.level(app)?);
    let keyspace = call.keyspace(app, KEYSPACE).await?;
    let ack = kv::remove(app, call, &keyspace, &key, None, level).await?;
    Ok(reply::acked_json(&ack, StatusCode::OK, key_object(&key)))
}

/// Handles `GET /keys/range?start=&end=&limit=`: lists pairs in a range as JSON.
#[utoipa::path(
    get, path = "/keys/range", params(PairRange),
    responses((status = 200, description = "The pairs.", body = KeyValues))
)]
pub(crate) async fn range(app: &Arc<App>, call: &Call) -> Answer {
    let range = pair_range(call.head.uri.query())?;
    let query = ScanQuery {
        start: range.start,
        end: range.end,
        limit: Some(range.limit.unwrap_or(DEFAULT_RANGE_ITEMS)),
        ..ScanQuery::default()
    };
    let keyspace = app.db.blocking().find_keyspace(KEYSPACE);
    let (body, level) = scan::body(app, &call.account, keyspace.as_ref(), query, Shape::Object).await?;
    Ok(reply::shown(Media::Json, body, level))
}

/// Parses the pairs of a batch: `{"items": [...]}`, or the array alone.
fn parse_pairs(body: &[u8]) -> Result<Vec<JsonPair>, ApiError> {
    if body.trim_ascii_start().first() == Some(&b'[') {
        json::parse(body)
    } else {
        Ok(json::parse::<JsonPairs>(body)?.items)
    }
}

/// Handles `POST /keys/batch`. The body is `{"items": [{"key", "value"}, ...]}` or the array alone. All pairs are
/// stored, or none.
#[utoipa::path(
    post, path = "/keys/batch", params(Level), request_body = JsonPairs,
    responses((status = 200, description = "The pairs are stored.", body = Object), Accepted)
)]
pub(crate) async fn batch(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    call.require_json()?;
    let level = call.level(app)?;
    let body = body::read(app, &call.account, call.body.get_mut()).await?;
    let (items, body) = body::parse(app, &call.account, body, parse_pairs).await?;
    if items.is_empty() {
        return Err(ApiError::bad_request("bad_json", "a batch has at least one item"));
    }
    let keyspace = call.keyspace(app, KEYSPACE).await?.id();
    let count = items.len();
    let build = move || {
        let mut builder = CommitBuilder::new();
        for item in &items {
            let key: Cow<'_, [u8]> = required_bytes("key", item.key.as_ref(), item.key_base64.as_ref())?;
            let value = required_bytes("value", item.value.as_ref(), item.value_base64.as_ref())?;
            builder.put(keyspace, &key, &value)?;
        }
        Ok::<_, ApiError>(builder)
    };
    let builder = body::work(app, &call.account, body.len(), build).await??;
    let db = call.db(app)?;
    fetch_rows(app, &call.account, &db, RowsOf::Commit(&builder)).await;
    let committed = db.commit(&builder, level);
    drop((builder, body));
    let ack = committed.await?;
    Ok(reply::acked_json(&ack, StatusCode::OK, json!({ "count": count })))
}
