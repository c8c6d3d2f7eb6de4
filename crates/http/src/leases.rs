//! Handlers of `/v1/leases`. A key that is attached to a lease lives only while clients keep the lease alive.
//!
//! Does not own: attaching keys, which is part of a put (`Thalweg-Lease`, see [`crate::ttl`]). Owns: granting, keeping
//! alive, revoking, listing and describing leases.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use thalweg_engine::{LeaseGrant, LeaseInfo, LeaseKey, WriteError};
use thalweg_serving::{
    app::App,
    error::ApiError,
    finishing::Finishing,
    limits::{DEFAULT_LEASE_KEYS, DEFAULT_LISTED, MAX_LEASE_KEYS_SHOWN, MAX_LISTED},
};
use thalweg_types::LeaseId;
use utoipa::ToSchema;

use crate::{
    call::{Answer, Call},
    describe::{Committed, Durable, LeasePath, Level},
    json::{insert_bytes, span_of_seconds},
    json_body,
    parse::{LeaseQuery, LeasesQuery, decode},
    reply,
    shapes::LeaseKeyName,
    ttl::lease_of,
};

/// A granted or renewed lease in JSON.
#[derive(Serialize, ToSchema)]
#[schema(as = LeaseGrant)]
struct GrantShown {
    id: u64,
    ttl_seconds: f64,
    /// Time at which the lease ends unless it is renewed, in microseconds since 1970.
    deadline_micros: u64,
    #[schema(value_type = Durable)]
    durability: &'static str,
}

/// A lease in JSON.
#[derive(Serialize, ToSchema)]
#[schema(as = Lease)]
struct LeaseShown {
    id: u64,
    ttl_seconds: f64,
    remaining_seconds: f64,
    deadline_micros: u64,
    /// Number of attached keys. May still count keys that were overwritten a short time ago.
    about_keys: u32,
    /// Keys attached to the lease. Missing in a list of leases.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<LeaseKeyName>>)]
    keys: Option<Value>,
    /// True if the lease has more keys than `limit` permits in the reply. Missing in a list of leases.
    #[serde(skip_serializing_if = "Option::is_none")]
    more: Option<bool>,
}

/// A page of leases in JSON.
#[derive(Serialize, ToSchema)]
struct LeaseList {
    leases: Vec<LeaseShown>,
    /// Cursor for the next page, present if there may be more leases.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<u64>,
}

impl LeaseShown {
    fn of(info: &LeaseInfo) -> Self {
        Self {
            id: info.id.0,
            ttl_seconds: info.ttl.as_secs_f64(),
            remaining_seconds: info.remaining.as_secs_f64(),
            deadline_micros: info.deadline.0,
            about_keys: info.keys,
            keys: None,
            more: None,
        }
    }
}

/// Returns a lease with at most `limit` of its keys as JSON. The field `more` is true if the lease has further keys.
fn lease_json_with_keys(info: &LeaseInfo, mut keys: Vec<LeaseKey>, limit: usize) -> Value {
    let more = keys.len() > limit;
    keys.truncate(limit);
    let key = |key: &LeaseKey| {
        let mut object = Map::from_iter([("keyspace".to_owned(), Value::from(key.keyspace.as_str()))]);
        insert_bytes(&mut object, "key", &key.key);
        Value::Object(object)
    };
    let keys = Some(keys.iter().map(key).collect());
    json!(LeaseShown { keys, more: Some(more), ..LeaseShown::of(info) })
}

/// Parses the id of the lease in a path `/v1/leases/{lease}` or below it.
fn id_of(call: &Call) -> Result<LeaseId, ApiError> {
    let rest = call.path_after("/v1/leases/");
    let segment = rest.split_once('/').map_or(rest, |(id, _)| id);
    let expected = "the lease id in the path must be the number that the grant returned";
    lease_of(&decode(segment.as_bytes())?).ok_or_else(|| ApiError::bad_request("bad_lease_id", expected))
}

/// Returns the maximum number of items of a page: the number `sent` in the request or `default`, and at most `max`.
fn limit_of(sent: Option<u64>, default: usize, max: usize) -> usize {
    sent.map_or(default, |limit| usize::try_from(limit).unwrap_or(usize::MAX)).clamp(1, max)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LeaseRequest)]
struct JsonGrant {
    ttl_seconds: f64,
    /// Id of the lease; the server chooses one if it is missing.
    id: Option<u64>,
}

impl JsonGrant {
    fn terms(&self) -> Result<(Option<LeaseId>, Duration), ApiError> {
        Ok((self.id.map(LeaseId), span_of_seconds("ttl_seconds", self.ttl_seconds)?))
    }
}

/// Handles `POST /v1/leases`: grants a lease.
#[utoipa::path(
    post, path = "/v1/leases", params(Level), request_body = JsonGrant,
    responses((status = 201, description = "The lease is granted.", body = GrantShown))
)]
pub(crate) async fn grant(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    let level = call.level(app)?;
    let (id, ttl) = json_body::required::<JsonGrant>(app, call).await?.terms()?;
    let held = app.may_grant_lease(&call.account)?;
    let (granting, app) = (call.db(app)?.grant_lease(id, ttl, level), Arc::clone(app));
    let settled = Finishing::new(async move {
        let granted = granting.await?;
        app.granted_lease(granted.id, granted.ttl, held);
        Ok::<_, WriteError>(granted)
    });
    let granted = settled.await?;
    Ok(answer(StatusCode::CREATED, &granted))
}

/// Handles `POST /v1/leases/{lease}/keep-alive`: renews a lease for its TTL.
#[utoipa::path(
    post, path = "/v1/leases/{lease}/keep-alive", params(LeasePath, Level),
    responses((status = 200, description = "The lease is renewed for its TTL.", body = GrantShown))
)]
pub(crate) async fn keep_alive(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    let (id, level) = (id_of(call)?, call.level(app)?);
    let kept = call.db(app)?.keep_lease(id, level).await?;
    Ok(answer(StatusCode::OK, &kept))
}

fn answer(status: StatusCode, grant: &LeaseGrant) -> http::Response<axum_core::body::Body> {
    let shown = GrantShown {
        id: grant.id.0,
        ttl_seconds: grant.ttl.as_secs_f64(),
        deadline_micros: grant.deadline.0,
        durability: grant.durability.name(),
    };
    let mut response = reply::json(status, &json!(shown));
    response.headers_mut().insert(reply::DURABILITY, reply::level_value(grant.durability));
    response
}

/// Handles `DELETE /v1/leases/{lease}`: revokes a lease, which removes its keys.
#[utoipa::path(delete, path = "/v1/leases/{lease}", params(LeasePath, Level), responses(Committed))]
pub(crate) async fn revoke(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    let (id, level) = (id_of(call)?, call.level(app)?);
    let ack = call.db(app)?.revoke_lease(id, level).await?;
    app.revoked_lease(id);
    Ok(reply::acked(&ack, StatusCode::NO_CONTENT))
}

/// Handles `GET /v1/leases`: lists leases.
#[utoipa::path(
    get, path = "/v1/leases", params(LeasesQuery),
    responses((status = 200, description = "Leases by id.", body = LeaseList))
)]
pub(crate) fn list(app: &Arc<App>, call: &Call) -> Answer {
    let query = LeasesQuery::parse(call.head.uri.query())?;
    let limit = limit_of(query.limit, DEFAULT_LISTED as usize, MAX_LISTED as usize);
    let db = app.db.blocking();
    let leases = db.leases().list(query.cursor.map(LeaseId), limit)?;
    let cursor = leases.last().filter(|_| leases.len() == limit).map(|last| last.id.0);
    Ok(shown(app, &json!(LeaseList { leases: leases.iter().map(LeaseShown::of).collect(), cursor })))
}

/// Handles `GET /v1/leases/{lease}`: returns a lease and its keys.
#[utoipa::path(
    get, path = "/v1/leases/{lease}", params(LeasePath, LeaseQuery),
    responses((status = 200, description = "The lease.", body = LeaseShown))
)]
pub(crate) fn get(app: &Arc<App>, call: &Call) -> Answer {
    let query = LeaseQuery::parse(call.head.uri.query())?;
    let limit = limit_of(query.limit, DEFAULT_LEASE_KEYS, MAX_LEASE_KEYS_SHOWN);
    let id = id_of(call)?;
    let leases = app.db.blocking().leases();
    // The lease may end between the two reads. Then the lease counts as missing.
    let found = leases.get(id)?.zip(leases.keys(id, limit + 1)?);
    let (info, keys) = found.ok_or_else(|| no_such_lease(id))?;
    Ok(shown(app, &lease_json_with_keys(&info, keys, limit)))
}

fn no_such_lease(id: LeaseId) -> ApiError {
    ApiError::from(thalweg_engine::WriteError::NoSuchLease(id))
}

fn shown(app: &App, object: &Value) -> http::Response<axum_core::body::Body> {
    let level = app.db.blocking().visible_durability();
    let mut response = reply::json(StatusCode::OK, object);
    response.headers_mut().insert(reply::DURABILITY, reply::level_value(level));
    response
}
