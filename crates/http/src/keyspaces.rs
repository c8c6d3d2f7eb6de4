//! Handlers of `/v1/keyspaces`: listing, creating, configuring and dropping keyspaces.

use std::sync::Arc;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use thalweg_engine::{DEFAULT_STATS_KEYS, KeyspaceCounts, KeyspaceInfo, WriteError};
use thalweg_serving::{
    admission::Resource,
    app::App,
    deleting::DeleteShare,
    error::{ApiError, no_such_keyspace},
    finishing::Finishing,
};
use thalweg_types::command::{Deadline, KeyspaceConfig, KeyspaceHistory};
use utoipa::ToSchema;

use crate::{
    call::{Answer, Call},
    describe::{Committed, KeyspacePath, Level},
    json::{present_field, span_of_seconds},
    json_body,
    parse::name_segment,
    read_gate, reading, reply,
};

/// A keyspace's configuration in JSON. Missing fields keep their values.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = KeyspaceConfig)]
struct JsonConfig {
    /// True to count keys and bytes exactly. Costs a read for each write. Only for a new keyspace.
    exact_counts: Option<bool>,
    /// Default lifetime of values, for puts that state none; null: no end. Costs a read for each put.
    #[serde(default, deserialize_with = "present_field")]
    #[schema(value_type = Option<f64>)]
    default_ttl_seconds: Option<Option<f64>>,
    /// Overwritten and deleted values to keep, so that clients can read at past revisions; null: none. Costs a read for
    /// each write.
    #[serde(default, deserialize_with = "present_field")]
    #[schema(value_type = Option<JsonHistory>)]
    history: Option<Option<JsonHistory>>,
}

/// Bounds of a keyspace's history. A missing field means no bound.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = History)]
struct JsonHistory {
    /// Number of revisions to keep of each key, including the newest: 2 to 256.
    revisions: Option<u32>,
    /// Age in seconds up to which overwritten and deleted values are kept.
    age_seconds: Option<f64>,
}

impl JsonHistory {
    fn bounds(self) -> Result<KeyspaceHistory, ApiError> {
        let age = self.age_seconds.map(|seconds| span_of_seconds("age_seconds", seconds)).transpose()?;
        let history = KeyspaceHistory { revisions: self.revisions, age };
        if !history.is_kept() {
            let message = "history needs revisions, age_seconds or both; null keeps no history";
            return Err(ApiError::bad_request("bad_json", message));
        }
        Ok(history.check().map(|()| history)?)
    }
}

impl JsonConfig {
    fn apply_to(&self, mut config: KeyspaceConfig) -> Result<KeyspaceConfig, ApiError> {
        config.exact_counts = self.exact_counts.unwrap_or(config.exact_counts);
        if let Some(ttl) = self.default_ttl_seconds {
            config.default_ttl = ttl.map(|seconds| span_of_seconds("default_ttl_seconds", seconds)).transpose()?;
            config.default_ttl.map_or(Ok(Deadline::Never), |ttl| Deadline::After(ttl).check())?;
        }
        if let Some(history) = self.history {
            config.history = history.map(JsonHistory::bounds).transpose()?.unwrap_or_default();
        }
        Ok(config)
    }
}

fn config_json(config: &KeyspaceConfig) -> Value {
    json!({
        "exact_counts": config.exact_counts,
        "default_ttl_seconds": config.default_ttl.map(|ttl| ttl.as_secs_f64()),
        "history": config.history.is_kept().then(|| json!({
            "revisions": config.history.revisions,
            "age_seconds": config.history.age.map(|age| age.as_secs_f64()),
        })),
    })
}

/// Returns a keyspace as JSON, without statistics.
fn info_json(info: &KeyspaceInfo) -> Value {
    json!({
        "name": info.name, "id": info.id.0, "created_micros": info.created.0, "config": config_json(&info.config),
    })
}

/// Returns the statistics of a keyspace as JSON.
fn stats_json(stats: &KeyspaceCounts) -> Value {
    json!({ "keys": stats.keys, "bytes": stats.bytes, "exact": stats.exact, "sweeping": stats.sweeping })
}

async fn sent_config(app: &Arc<App>, call: &mut Call) -> Result<JsonConfig, ApiError> {
    call.no_query()?;
    json_body::or_default(app, call).await
}

fn name(call: &Call) -> Result<String, ApiError> {
    Ok(name_segment(call.path_after("/v1/keyspaces/"))?.into_owned())
}

/// Handles `GET /v1/keyspaces`: lists the keyspaces with their configurations.
#[utoipa::path(
    get, path = "/v1/keyspaces",
    responses((status = 200, description = "`keyspaces`: name, id, created_micros and config of each.", body = Object))
)]
pub(crate) fn list(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    let all: Vec<_> = app.db.blocking().keyspaces().iter().map(info_json).collect();
    Ok(reply::json(StatusCode::OK, &json!({ "keyspaces": all })))
}

/// Handles `GET /v1/keyspaces/{keyspace}`. The reply has statistics.
#[utoipa::path(
    get, path = "/v1/keyspaces/{keyspace}", params(KeyspacePath),
    responses((status = 200,
            description = "name, id, created_micros, config, and `stats`: keys, bytes, exact, sweeping.",
            body = Object))
)]
pub(crate) async fn get(app: &Arc<App>, call: &Call) -> Answer {
    call.no_query()?;
    let name = name(call)?;
    let keyspace = app.find_keyspace(&name)?;
    let info = keyspace.info().ok_or_else(|| no_such_keyspace(&name))?;
    // Counting is bounded, and costs as much as a scan, so it counts as a scan.
    let held = call.account.take(Resource::Scans, 1);
    let _held = held.ok_or_else(|| ApiError::overloaded("too many scans: retry later"))?;
    let count = move || keyspace.stats(DEFAULT_STATS_KEYS);
    let stats = reading::on_reader(app, &call.account, 0, count).await??;
    let mut object = info_json(&info);
    object["stats"] = stats_json(&stats);
    Ok(reply::json(StatusCode::OK, &object))
}

/// Handles `PUT /v1/keyspaces/{keyspace}`: creates a keyspace.
#[utoipa::path(
    put, path = "/v1/keyspaces/{keyspace}", params(KeyspacePath, Level), request_body = Option<JsonConfig>,
    responses((status = 201, description = "The keyspace is created.", body = Object),
        (status = 200, description = "The keyspace exists and is unchanged.", body = Object))
)]
pub(crate) async fn create(app: &Arc<App>, call: &mut Call) -> Answer {
    let sent = sent_config(app, call).await?;
    let (name, config) = (name(call)?, sent.apply_to(KeyspaceConfig::default())?);
    let held = match app.db.blocking().find_keyspace(&name) {
        Some(_) => None,
        None => Some(app.may_create_keyspace(&call.account)?),
    };
    let (creating, app) = (call.db_at_level(app)?.create_keyspace(&name, &config), Arc::clone(app));
    let settled = Finishing::new(async move {
        let (keyspace, created) = creating.await?;
        if let Some(held) = held.filter(|_| created) {
            app.created_keyspace(&name, held);
        }
        Ok::<_, WriteError>((keyspace, created))
    });
    let (keyspace, created) = settled.await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(reply::json(status, &keyspace.info().as_ref().map_or(Value::Null, info_json)))
}

/// Handles `PATCH /v1/keyspaces/{keyspace}`: changes a keyspace's configuration.
#[utoipa::path(
    patch, path = "/v1/keyspaces/{keyspace}", params(KeyspacePath, Level), request_body = JsonConfig,
    responses((status = 200, description = "The configuration is changed. Missing fields keep their values.",
            body = Object))
)]
pub(crate) async fn patch(app: &Arc<App>, call: &mut Call) -> Answer {
    let sent = sent_config(app, call).await?;
    let name = name(call)?;
    let keyspace = read_gate::look_up(app, call, || app.find_keyspace(&name)).await?;
    let info = keyspace.info().ok_or_else(|| no_such_keyspace(&name))?;
    let config = sent.apply_to(info.config)?;
    let ack = call.db_at_level(app)?.configure_keyspace(keyspace.id(), &config).await?;
    Ok(reply::acked_json(&ack, StatusCode::OK, json!({ "config": config_json(&config) })))
}

/// Handles `DELETE /v1/keyspaces/{keyspace}`: drops a keyspace.
#[utoipa::path(delete, path = "/v1/keyspaces/{keyspace}", params(KeyspacePath, Level), responses(Committed))]
pub(crate) async fn delete(app: &Arc<App>, call: &mut Call) -> Answer {
    call.no_query()?;
    let name = name(call)?;
    let keyspace = read_gate::look_up(app, call, || app.find_keyspace(&name)).await?;
    let share = app.may_delete(&call.account, [(keyspace.id(), 0)])?;
    let dropped = call.db_at_level(app)?.drop_keyspace(keyspace.id());
    let ack = DeleteShare::until(share, dropped, |ack| ack.revision).await?;
    app.dropped_keyspace(&name);
    Ok(reply::acked(&ack, StatusCode::NO_CONTENT))
}
