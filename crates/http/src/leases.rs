//! Handlers of `/v1/leases`. A key that is attached to a lease lives only while clients keep the lease alive.
//!
//! Does not own: attaching keys, which is part of a put (`Thalweg-Lease`, see [`crate::ttl`]). Owns: granting, keeping
//! alive, revoking, listing and describing leases.

use std::{sync::Arc, time::Duration};

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use thalweg_engine::{LeaseGrant, LeaseInfo, LeaseKey};
use thalweg_serving::{
    app::App,
    error::ApiError,
    limits::{DEFAULT_LEASE_KEYS, DEFAULT_LISTED, MAX_LEASE_KEYS_SHOWN, MAX_LISTED},
};
use thalweg_types::LeaseId;

use crate::{
    body,
    call::{Answer, Call},
    json::{self, insert_bytes, span_of_seconds},
    parse::{Params, ParseError, decode},
    reply,
    ttl::lease_of,
};

/// Returns a granted or renewed lease as JSON.
fn grant_json(grant: &LeaseGrant) -> Value {
    json!({
        "id": grant.id.0,
        "ttl_seconds": grant.ttl.as_secs_f64(),
        "deadline_micros": grant.deadline.0,
        "durability": grant.durability.name(),
    })
}

/// Returns a lease's current state as JSON, without its keys.
fn lease_json(info: &LeaseInfo) -> Value {
    json!({
        "id": info.id.0,
        "ttl_seconds": info.ttl.as_secs_f64(),
        "remaining_seconds": info.remaining.as_secs_f64(),
        "deadline_micros": info.deadline.0,
        "about_keys": info.keys,
    })
}

/// Returns a lease with at most `limit` of its keys as JSON. The field `more` reports if it has further keys.
fn lease_json_with_keys(info: &LeaseInfo, mut keys: Vec<LeaseKey>, limit: usize) -> Value {
    let more = keys.len() > limit;
    keys.truncate(limit);
    let key = |key: &LeaseKey| {
        let mut object = Map::from_iter([("keyspace".to_owned(), Value::from(key.keyspace.as_str()))]);
        insert_bytes(&mut object, "key", &key.key);
        Value::Object(object)
    };
    let mut object = lease_json(info);
    object["keys"] = keys.iter().map(key).collect();
    object["more"] = json!(more);
    object
}

/// Parses the id in a path `/v1/leases/{lease}` or below it.
fn id_of(call: &Call) -> Result<LeaseId, ApiError> {
    let rest = call.path_after("/v1/leases/");
    let segment = rest.split_once('/').map_or(rest, |(id, _)| id);
    let expected = "a lease's id in the path is a number, as it was granted";
    lease_of(&decode(segment.as_bytes())?).ok_or_else(|| ApiError::bad_request("bad_lease_id", expected))
}

/// Parses `?limit=`, which is `default` if missing and `max` at most, and `?cursor=` if `takes_cursor` is true.
fn page_of(
    call: &Call,
    (default, max): (usize, usize),
    takes_cursor: bool,
) -> Result<(usize, Option<LeaseId>), ParseError> {
    let (mut limit, mut cursor) = (None, None);
    for parameter in Params::new(call.head.uri.query()) {
        let (name, value) = parameter?;
        let number = || std::str::from_utf8(&value).ok().and_then(|text| text.parse::<u64>().ok());
        let (slot, name, expected) = match &*name {
            "limit" => (&mut limit, "limit", "a whole number"),
            "cursor" if takes_cursor => (&mut cursor, "cursor", "a cursor as an earlier reply gave it"),
            other => return Err(ParseError::UnknownParameter { name: other.chars().take(64).collect() }),
        };
        let number = number().ok_or(ParseError::BadParameter { name, expected })?;
        if slot.replace(number).is_some() {
            return Err(ParseError::Repeated { name });
        }
    }
    let limit = limit.map_or(default, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    Ok((limit.clamp(1, max), cursor.map(LeaseId)))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonGrant {
    ttl_seconds: f64,
    id: Option<u64>,
}

impl JsonGrant {
    fn terms(&self) -> Result<(Option<LeaseId>, Duration), ApiError> {
        Ok((self.id.map(LeaseId), span_of_seconds("ttl_seconds", self.ttl_seconds)?))
    }
}

/// Handles `POST /v1/leases`: grants a lease.
pub(crate) async fn grant(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    let level = call.level(app)?;
    let body = body::read(app, call.body.get_mut()).await?;
    let (id, ttl) = json::parse::<JsonGrant>(&body)?.terms()?;
    drop(body);
    let granted = app.db.grant_lease(id, ttl, level).await?;
    Ok(answer(StatusCode::CREATED, &granted))
}

/// Handles `POST /v1/leases/{lease}/keep-alive`: renews a lease for its TTL.
pub(crate) async fn keep_alive(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    let (id, level) = (id_of(call)?, call.level(app)?);
    let kept = app.db.keep_lease(id, level).await?;
    Ok(answer(StatusCode::OK, &kept))
}

fn answer(status: StatusCode, grant: &LeaseGrant) -> axum::http::Response<axum::body::Body> {
    let mut response = reply::json(status, &grant_json(grant));
    response.headers_mut().insert(reply::DURABILITY, reply::level_value(grant.durability));
    response
}

/// Handles `DELETE /v1/leases/{lease}`: revokes a lease, which removes its keys.
pub(crate) async fn revoke(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    let (id, level) = (id_of(call)?, call.level(app)?);
    let ack = app.db.revoke_lease(id, level).await?;
    Ok(reply::acked(&ack, StatusCode::NO_CONTENT))
}

/// Handles `GET /v1/leases`: lists leases.
pub(crate) fn list(app: &Arc<App>, call: &Call) -> Answer {
    let (limit, after) = page_of(call, (DEFAULT_LISTED as usize, MAX_LISTED as usize), true)?;
    let db = app.db.blocking();
    let leases = db.leases().list(after, limit)?;
    let mut object = json!({ "leases": leases.iter().map(lease_json).collect::<Vec<_>>() });
    if let Some(last) = leases.last().filter(|_| leases.len() == limit) {
        object["cursor"] = json!(last.id.0);
    }
    Ok(shown(app, &object))
}

/// Handles `GET /v1/leases/{lease}`: returns a lease and its keys.
pub(crate) fn get(app: &Arc<App>, call: &Call) -> Answer {
    let (limit, _) = page_of(call, (DEFAULT_LEASE_KEYS, MAX_LEASE_KEYS_SHOWN), false)?;
    let id = id_of(call)?;
    let leases = app.db.blocking().leases();
    // The lease may end between the two reads.
    let found = leases.get(id)?.zip(leases.keys(id, limit + 1)?);
    let (info, keys) = found.ok_or_else(|| no_such_lease(id))?;
    Ok(shown(app, &lease_json_with_keys(&info, keys, limit)))
}

fn no_such_lease(id: LeaseId) -> ApiError {
    ApiError::from(thalweg_engine::WriteError::NoSuchLease(id))
}

fn shown(app: &App, object: &Value) -> axum::http::Response<axum::body::Body> {
    let level = app.db.blocking().visible_durability();
    let mut response = reply::json(StatusCode::OK, object);
    response.headers_mut().insert(reply::DURABILITY, reply::level_value(level));
    response
}
