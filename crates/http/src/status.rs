//! Handlers for operators: health, readiness, metrics, status, and the API's description.

use std::sync::Arc;

use axum_core::body::Body;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use thalweg_engine::Health;
use thalweg_serving::{app::App, cluster::ClusterError, error::ApiError, status::server_status};
use thalweg_types::Action;

use crate::{
    call::{Answer, Call},
    metrics_page::MetricsPage,
    parse::ReadyQuery,
    reply,
    reply_memory::ReplyMemory,
};

fn unavailable(code: &'static str, action: Action, message: String) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, action, message)
}

/// Handles `GET /health`. Returns 503 if the node must be restarted or repaired.
#[utoipa::path(
    get, path = "/health",
    responses((status = 200, description = "The node is healthy, or its disk is full.", body = Object))
)]
pub(crate) fn health(app: &Arc<App>) -> Answer {
    Ok(reply::json(StatusCode::OK, &status_of(app)?))
}

/// Returns the status of the node as JSON. If the node has failed or stopped serving, returns the error for the reply.
fn status_of(app: &App) -> Result<Value, ApiError> {
    match app.db.blocking().health() {
        Health::Good => Ok(json!({ "status": "good" })),
        Health::DiskFull { free_bytes } => Ok(json!({ "status": "disk_full", "free_bytes": free_bytes })),
        Health::StoppedServing { reason } => Err(unavailable("stopped_serving", Action::Stop, reason)),
        Health::Failed { reason } => Err(unavailable("log_failed", Action::Stop, reason)),
        Health::Closed => Err(unavailable("closed", Action::Retry, "the database is closed".into())),
    }
}

/// Handles `GET /ready`. Like `/health`, but also returns 503 while the server stops or its cluster has no leader. Load
/// balancers then send no more requests. With `verbose`, the reply has the warnings about the server's configuration.
#[utoipa::path(
    get, path = "/ready", params(ReadyQuery),
    responses((status = 200, description = "The node accepts requests.", body = Object))
)]
pub(crate) fn ready(app: &Arc<App>, call: &Call) -> Answer {
    let ReadyQuery { verbose } = ReadyQuery::parse(call.head.uri.query())?;
    if *app.stopping.borrow() {
        return Err(unavailable("stopping", Action::Retry, "the server is stopping".into()));
    }
    let mut status = status_of(app)?;
    if let Some(cluster) = &app.cluster
        && !cluster.handle.report().has_leader()
    {
        return Err(ClusterError::NoLeader.into());
    }
    if verbose {
        status["warnings"] = app.config.warnings().into();
    }
    Ok(reply::json(StatusCode::OK, &status))
}

/// Handles `GET /metrics`: returns metrics for Prometheus.
#[utoipa::path(
    get, path = "/metrics",
    responses((status = 200, description = "OpenMetrics text.", body = String,
            content_type = "application/openmetrics-text"))
)]
pub(crate) fn metrics(app: &App, page: &MetricsPage, call: &mut Call) -> Answer {
    app.refresh_object_count();
    call.reply_memory = ReplyMemory::Counted;
    let mut response = Response::new(Body::from(page.text(&call.account, call.head.version)));
    let media = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, media);
    Ok(response)
}

/// Handles `GET /v1/status`: returns the server's statistics for operators.
#[utoipa::path(
    get, path = "/v1/status", responses((status = 200, description = "Figures of the node.", body = Object))
)]
pub(crate) fn status(app: &Arc<App>) -> Answer {
    Ok(reply::json(StatusCode::OK, &server_status(app)))
}

/// Handles `GET /openapi.json`: returns the OpenAPI document.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, description = "OpenAPI 3.1.", body = Object)))]
pub(crate) fn openapi(document: &'static str, call: &mut Call) -> Answer {
    // All replies share the document, so its memory does not count for each.
    call.reply_memory = ReplyMemory::Counted;
    let mut response = Response::new(Body::from(document));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
