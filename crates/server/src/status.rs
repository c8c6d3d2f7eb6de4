//! What operators ask: health, readiness, metrics, status, the API's description.

use std::sync::Arc;

use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode, header},
};
use serde_json::{Value, json};
use thalweg_engine::{Database, Health};
use thalweg_types::Action;

use crate::{
    app::{Answer, App},
    error::ApiError,
    metrics, reply,
};

/// The document served at `/openapi.json`.
pub const OPENAPI: &str = include_str!("openapi.json");

fn unavailable(code: &'static str, action: Action, message: String) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, action, message)
}

/// `GET /health`: red (503) once the node must be restarted or repaired.
pub fn health(app: &Arc<App>) -> Answer {
    match app.db.blocking().health() {
        Health::Good => Ok(reply::json(StatusCode::OK, &json!({ "status": "good" }))),
        Health::DiskFull { free_bytes } => {
            Ok(reply::json(StatusCode::OK, &json!({ "status": "disk_full", "free_bytes": free_bytes })))
        }
        Health::Failed { reason } => Err(unavailable("log_failed", Action::Stop, reason)),
        Health::Closed => Err(unavailable("closed", Action::Retry, "the database is closed".into())),
    }
}

/// `GET /ready`: 503 also while the server stops, so that balancers send nothing more.
pub fn ready(app: &Arc<App>) -> Answer {
    if *app.stopping.borrow() {
        return Err(unavailable("stopping", Action::Retry, "the server is stopping".into()));
    }
    health(app)
}

/// `GET /metrics`
pub fn metrics(app: &Arc<App>) -> Response<Body> {
    let mut response = Response::new(Body::from(metrics::render(app)));
    let media = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, media);
    response
}

/// `GET /v1/status`
pub fn status(app: &Arc<App>) -> Response<Body> {
    reply::json(StatusCode::OK, &server_status(app))
}

/// What it says.
#[must_use]
pub fn server_status(app: &App) -> Value {
    let mut object = node_status(app.db.blocking());
    object["uptime_seconds"] = json!(app.started.elapsed().as_secs());
    object["durability"] = json!(app.config.durability.name());
    object["http"] = json!({
        "connections": app.admission.connections.used(),
        "requests_in_flight": app.admission.requests.used(),
        "tails": app.admission.tails.used(),
        "shed": app.admission.requests.shed() + app.admission.body_bytes.shed() + app.admission.reply_bytes.shed() + app.admission.scans.shed()
            + app.admission.tails.shed() + app.admission.connections.shed(),
    });
    let subjects = app.views.broker.stats();
    object["subjects"] = json!({
        "links": subjects.links,
        "subscriptions": subjects.subscriptions,
        "queued_messages": subjects.queued_messages,
        "published": subjects.messages,
    });
    let caches = app.views.caches.list();
    object["caches"] = json!({
        "count": caches.len(),
        "max_bytes": caches.iter().map(|named| named.max_bytes).sum::<u64>(),
    });
    object["native"] = json!({ "connections": app.native_metrics.connections() });
    object
}

/// What `/v1/status` says of the database alone: the same for one that no server has open.
#[must_use]
pub fn node_status(db: &Database) -> Value {
    let (report, stats) = (db.report(), db.stats());
    let health = match db.health() {
        Health::Good => json!({ "status": "good" }),
        Health::DiskFull { free_bytes } => json!({ "status": "disk_full", "free_bytes": free_bytes }),
        Health::Failed { reason } => json!({ "status": "failed", "reason": reason }),
        Health::Closed => json!({ "status": "closed" }),
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "node": format!("{:016x}", report.node.0),
        "health": health,
        "durability": db.durability().name(),
        "backend": report.backend.name(),
        "opened": {
            "created": report.created,
            "clean": report.clean,
            "cut_bytes": report.cut_bytes,
            "replayed_records": report.replayed_records,
            "replayed_bytes": report.replayed_bytes,
            "seconds": report.took.as_secs_f64(),
            "repaired": report.repaired,
        },
        "space_time_micros": stats.space_time.0,
        "keyspaces": stats.keyspaces,
        "streams": stats.streams,
        "applied_index": stats.applied_index.0,
        "applied_revision": stats.applied_revision.0,
        "running_hash": format!("{:016x}", stats.running_hash),
        "state_machine": { "version_in_force": db.version_in_force(), "known_version": db.known_version() },
        "queue": { "commands": stats.queue_commands, "bytes": stats.queue_bytes },
        "log": {
            "segments": stats.log.segments,
            "spare_segments": stats.log.spare_segments,
            "bytes": stats.log.bytes,
            "syncs": stats.log.syncs,
            "mean_sync_micros": stats.log.sync_micros.checked_div(stats.log.syncs),
            "replay_bytes": stats.replay_bytes,
            "free_disk_bytes": stats.log.free_disk_bytes,
        },
        "state": {
            "memory_bytes": stats.state.memory_bytes,
            "disk_bytes": stats.state.disk_bytes,
            "tables_per_level": stats.state.tables_per_level,
            "estimated_keys": stats.state.estimated_keys,
            "stalls": stats.state.stalls,
        },
    })
}

/// `GET /openapi.json`
#[must_use]
pub fn openapi() -> Response<Body> {
    let mut response = Response::new(Body::from(OPENAPI));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
