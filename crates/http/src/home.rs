//! The page at `/`, for people who open the node's address in a browser.

use std::sync::Arc;

use axum_core::body::Body;
use http::{HeaderValue, Response, header};
use thalweg_serving::app::App;

use crate::call::Answer;

/// Links on the page, with their descriptions.
const LINKS: [(&str, &str); 5] = [
    ("/openapi.json", "all routes of the API, as an OpenAPI document"),
    ("/v1/status", "figures of the node"),
    ("/metrics", "metrics for Prometheus"),
    ("/health", "health of the node"),
    ("/ready", "readiness for requests"),
];

/// Handles `GET /`: returns a page that names the node and links to the API. The page has no scripts, and shows no data
/// that clients have sent or stored.
#[utoipa::path(
    get, path = "/", responses((status = 200, description = "The page.", body = String, content_type = "text/html"))
)]
pub(crate) fn page(app: &Arc<App>) -> Answer {
    let report = app.db.blocking().report();
    let links: String =
        LINKS.iter().map(|(path, what)| format!("<li><a href=\"{path}\">{path}</a>: {what}</li>\n")).collect();
    let page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>Thalweg node {node:016x}</title></head>\n\
         <body>\n<h1>Thalweg</h1>\n<p>Node <code>{node:016x}</code>, version {version}, with the backend {backend}.</p>\n\
         <ul>\n{links}</ul>\n</body>\n</html>\n",
        node = report.node.0,
        version = env!("CARGO_PKG_VERSION"),
        backend = report.backend.name(),
    );
    let mut response = Response::new(Body::from(page));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    let policy = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    Ok(response)
}
