//! Handlers of `/v0/entity` and `/v0/entities`, the simple entity API over the keyspace `default`.

use std::sync::Arc;

use http::StatusCode;
use thalweg_serving::{
    app::App,
    error::{ApiError, no_such_key},
};

use crate::{
    body,
    call::{Answer, Call},
    describe::{BINARY, Binary, Durable, EntityDeleted, EntityId, EntityPut, EntityRange, EntityReply, Level},
    kv,
    parse::{Key, Media, ParseError, ScanQuery, pair_range},
    reply,
    scan::{self, Shape},
};

/// Name of the keyspace that the entity API and the `/keys` API use.
pub(crate) const KEYSPACE: &str = "default";

fn id(call: &Call) -> Result<Vec<u8>, ParseError> {
    Key::parse(call.head.uri.query(), "id")?.required("id")
}

/// Handles `GET /v0/entity?id=`: returns the value of the key `id` in the keyspace `default`.
#[utoipa::path(get, path = "/v0/entity", params(EntityId), responses(EntityReply))]
pub(crate) fn get(app: &Arc<App>, call: &Call) -> Answer {
    let id = id(call)?;
    let entry = match app.db.blocking().find_keyspace(KEYSPACE) {
        Some(keyspace) => kv::value(call, &keyspace, &id)?,
        None => None,
    };
    let level = app.db.blocking().visible_durability();
    let entry = entry.ok_or_else(|| ApiError { shown: Some(level), ..no_such_key() })?;
    let mut response = reply::shown(Media::Binary, entry.value.into(), level);
    reply::put_revision(response.headers_mut(), entry.revision);
    Ok(response)
}

/// Handles `PUT /v0/entity?id=`: stores the body as the value of the key `id`.
#[utoipa::path(
    put, path = "/v0/entity", params(EntityId, Level), request_body(content = Binary, content_type = BINARY),
    responses(EntityPut)
)]
pub(crate) async fn put(app: &Arc<App>, call: &mut Call) -> Answer {
    let (id, level) = (id(call)?, call.level(app)?);
    let value = body::read(app, &call.account, call.body.get_mut()).await?;
    let ack = kv::store_by_name(app, call, KEYSPACE, &id, value, None, level).await?;
    let mut response = reply::empty(StatusCode::CREATED);
    reply::put_ack(response.headers_mut(), &ack);
    Ok(response)
}

/// Handles `DELETE /v0/entity?id=`: deletes the key `id`.
#[utoipa::path(delete, path = "/v0/entity", params(EntityId, Level), responses(EntityDeleted))]
pub(crate) async fn delete(app: &Arc<App>, call: &mut Call) -> Answer {
    let (id, level) = (id(call)?, call.level(app)?);
    let keyspace = call.keyspace(app, KEYSPACE).await?;
    let ack = kv::remove(app, call, &keyspace, &id, None, level).await?;
    let mut response = reply::empty(StatusCode::ACCEPTED);
    reply::put_ack(response.headers_mut(), &ack);
    Ok(response)
}

/// Handles `GET /v0/entities?start=&end=`. Each pair is a chunk `key\nvalue`; `end` is exclusive.
#[utoipa::path(
    get, path = "/v0/entities", params(EntityRange),
    responses((status = 200, description = "One chunk per pair: key, line feed, value.", body = Binary,
            content_type = BINARY,
        headers(("Thalweg-Durability" = Durable, description = "Level of the pairs."))))
)]
pub(crate) async fn range(app: &Arc<App>, call: &Call) -> Answer {
    let range = pair_range(call.head.uri.query())?;
    let start = range.start.filter(|start| !start.is_empty()).ok_or(ParseError::Missing { name: "start" })?;
    if range.end.as_ref().is_some_and(Vec::is_empty) {
        return Err(ParseError::Missing { name: "end" }.into());
    }
    let query = ScanQuery { start: Some(start), end: range.end, limit: range.limit, ..ScanQuery::default() };
    let keyspace = app.db.blocking().find_keyspace(KEYSPACE);
    let (body, level) = scan::body(app, &call.account, keyspace.as_ref(), query, Shape::Chunks).await?;
    Ok(reply::shown(Media::Binary, body, level))
}
