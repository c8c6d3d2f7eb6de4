//! Handlers for operators: health, readiness, metrics, status, and the API's description.

use std::sync::Arc;

use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode, header},
};
use prometheus_client::{encoding::text, registry::Registry};
use serde_json::json;
use thalweg_engine::Health;
use thalweg_serving::{app::App, error::ApiError, status::server_status};
use thalweg_types::Action;

use crate::{call::Answer, reply};

fn unavailable(code: &'static str, action: Action, message: String) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, action, message)
}

/// Handles `GET /health`. Returns 503 if the node must be restarted or repaired.
#[utoipa::path(
    get, path = "/health",
    responses((status = 200, description = "The node is healthy, or its disk is full.", body = Object))
)]
pub(crate) fn health(app: &Arc<App>) -> Answer {
    match app.db.blocking().health() {
        Health::Good => Ok(reply::json(StatusCode::OK, &json!({ "status": "good" }))),
        Health::DiskFull { free_bytes } => {
            Ok(reply::json(StatusCode::OK, &json!({ "status": "disk_full", "free_bytes": free_bytes })))
        }
        Health::Failed { reason } => Err(unavailable("log_failed", Action::Stop, reason)),
        Health::Closed => Err(unavailable("closed", Action::Retry, "the database is closed".into())),
    }
}

/// Handles `GET /ready`. Also returns 503 while the server stops, so that load balancers send no more requests.
#[utoipa::path(
    get, path = "/ready", responses((status = 200, description = "The node accepts requests.", body = Object))
)]
pub(crate) fn ready(app: &Arc<App>) -> Answer {
    if *app.stopping.borrow() {
        return Err(unavailable("stopping", Action::Retry, "the server is stopping".into()));
    }
    health(app)
}

/// Handles `GET /metrics`: returns metrics for Prometheus.
#[utoipa::path(
    get, path = "/metrics",
    responses((status = 200, description = "OpenMetrics text.", body = String,
            content_type = "application/openmetrics-text"))
)]
pub(crate) fn metrics(registry: &Registry) -> Answer {
    let mut out = String::with_capacity(16 * 1024);
    if text::encode(&mut out, registry).is_err() {
        tracing::warn!("metrics could not be encoded");
    }
    let mut response = Response::new(Body::from(out));
    let media = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, media);
    Ok(response)
}

/// Handles `GET /v1/status`: returns the server's figures for operators.
#[utoipa::path(
    get, path = "/v1/status", responses((status = 200, description = "Figures of the node.", body = Object))
)]
pub(crate) fn status(app: &Arc<App>) -> Answer {
    Ok(reply::json(StatusCode::OK, &server_status(app)))
}

/// Handles `GET /openapi.json`: returns the OpenAPI document.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, description = "OpenAPI 3.1.", body = Object)))]
pub(crate) fn openapi(document: &'static str) -> Answer {
    let mut response = Response::new(Body::from(document));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
