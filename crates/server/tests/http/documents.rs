//! Documents about the server: OpenAPI, metrics, status, health.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use thalweg_server::{OPENAPI, ROUTES};

use crate::support::{Node, holds};

/// Converts a route's path to the form in the document: `{*key}` becomes `{key}`.
fn documented(path: &str) -> String {
    path.replace("{*", "{")
}

#[test]
fn the_document_and_the_routes_are_the_same_set() {
    let document: Value = serde_json::from_str(OPENAPI).unwrap();
    let mut in_document = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap().to_owned();
            in_document.insert((path.clone(), method.to_uppercase(), id));
        }
    }
    let in_router: BTreeSet<_> = ROUTES
        .iter()
        .map(|route| (documented(route.path), route.method.to_owned(), route.operation.name().to_owned()))
        .collect();
    assert_eq!(in_router, in_document);
}

#[test]
fn every_reference_in_the_document_leads_somewhere() {
    let document: Value = serde_json::from_str(OPENAPI).unwrap();
    fn walk<'a>(value: &'a Value, references: &mut Vec<&'a str>) {
        match value {
            Value::Object(object) => {
                if let Some(Value::String(reference)) = object.get("$ref") {
                    references.push(reference);
                }
                object.values().for_each(|value| walk(value, references));
            }
            Value::Array(array) => array.iter().for_each(|value| walk(value, references)),
            _ => {}
        }
    }
    let mut references = Vec::new();
    walk(&document, &mut references);
    assert!(references.len() > 50);
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

#[tokio::test]
async fn every_route_is_served_and_refuses_other_methods_with_allow() {
    let node = Node::start().await;
    for route in ROUTES {
        // A watch of an existing keyspace never ends.
        let keyspace = if route.path.starts_with("/v1/watch/") { "none" } else { "a" };
        // A subscription never ends, either.
        let endless = route.method == "GET" && route.path.starts_with("/v1/subjects/");
        let target = route.path.replace("{keyspace}", keyspace).replace("{*key}", "k").replace("{stream}", "s");
        let target = if endless { format!("{target}?limit=0") } else { target };
        let status = node.call(route.method, &target, &[], b"").await.status;
        assert_ne!(status, 405, "{} {target}", route.method);
        let refused = node.call("OPTIONS", &target, &[], b"").await;
        let allow = refused.header("allow").to_owned();
        refused.refused(405, "wrong_method", "fix");
        assert!(allow.split(',').any(|method| method.trim() == route.method), "{target}: {allow}");
    }
    node.get("/nowhere").await.refused(404, "unknown_route", "fix");
    node.stop().await;
}

#[tokio::test]
async fn metrics_count_requests_by_operation_and_level() {
    let node = Node::start().await;
    for _ in 0..3 {
        node.put("/v1/kv/a/k", b"v").await.is(204);
    }
    node.call("PUT", "/v1/kv/a/k", &[("thalweg-durability", "os")], b"v").await.is(204);
    node.get("/v1/kv/a/none").await.is(404);
    let reply = node.get("/metrics").await.is(200);
    assert!(reply.header("content-type").starts_with("application/openmetrics-text"));
    let text = String::from_utf8(reply.body).unwrap();
    holds(&text, "thalweg_http_requests_total{operation=\"kv_put\",status=\"2xx\"} 4");
    holds(&text, "thalweg_http_requests_total{operation=\"kv_get\",status=\"4xx\"} 1");
    let count = |level: &str| {
        format!("thalweg_http_request_duration_seconds_count{{operation=\"kv_put\",durability=\"{level}\"}}")
    };
    holds(&text, &format!("{} 3", count("disk")));
    holds(&text, &format!("{} 1", count("os")));
    for name in [
        "thalweg_log_syncs_total",
        "thalweg_log_sync_seconds_total",
        "thalweg_log_sync_duration_seconds_bucket{le=\"+Inf\"}",
        "thalweg_log_sync_batches_count",
        "thalweg_entry_commands_sum",
        "thalweg_log_segments",
        "thalweg_commands_total",
        "thalweg_entries_total",
        "thalweg_queue_bytes",
        "thalweg_state_memory_bytes",
        "thalweg_state_stalls_total",
        "thalweg_http_shed_total{bound=\"requests\"}",
        "thalweg_http_in_use{bound=\"connections\"} 1",
        "thalweg_healthy 1",
    ] {
        holds(&text, &format!("\n{name}"));
    }
    assert!(text.ends_with("# EOF\n"));
    let line_is_sound = |line: &str| {
        line.starts_with('#') || line.rsplit_once(' ').is_some_and(|(_, value)| value.parse::<f64>().is_ok())
    };
    assert!(text.lines().all(line_is_sound), "{text}");
    node.stop().await;
}

#[tokio::test]
async fn health_readiness_and_status_say_how_it_is() {
    let node = Node::start().await;
    node.put("/v1/kv/a/k", b"v").await.is(204);
    assert_eq!(node.get("/health").await.is(200).json(), json!({ "status": "good" }));
    node.get("/ready").await.is(200);
    let status = node.get("/v1/status").await.is(200).json();
    assert_eq!(status["backend"], json!("memory"));
    assert_eq!(status["durability"], json!("disk"));
    assert_eq!(status["keyspaces"], json!(1));
    assert_eq!(status["opened"]["created"], json!(true));
    assert_eq!(status["http"]["connections"], json!(1));
    let document = node.get("/openapi.json").await.is(200);
    assert_eq!(document.json()["openapi"], json!("3.1.0"));
    node.stop().await;
}

#[tokio::test]
async fn request_ids_are_taken_over_or_made() {
    let node = Node::start().await;
    let given = node.call("GET", "/health", &[("x-request-id", "mine-1")], b"").await;
    assert_eq!(given.header("x-request-id"), "mine-1");
    let (first, second) = (node.get("/health").await, node.get("/health").await);
    assert_eq!(first.header("x-request-id").len(), 16);
    assert_ne!(first.header("x-request-id"), second.header("x-request-id"));
    let long = "x".repeat(65);
    let replaced = node.call("GET", "/health", &[("x-request-id", &long)], b"").await;
    assert_eq!(replaced.header("x-request-id").len(), 16);
    let error = node.call("GET", "/nowhere", &[("x-request-id", "mine-2")], b"").await;
    assert_eq!(error.refused(404, "unknown_route", "fix")["request_id"], json!("mine-2"));
    node.stop().await;
}

#[test]
fn the_guide_names_every_route() {
    let guide = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/http.md")).unwrap();
    for route in ROUTES {
        // The guide lists a route's methods once for all its paths, with one form of path parameters.
        let stem = documented(route.path).split("/{key}").next().unwrap().trim_end_matches('/').to_owned();
        assert!(guide.contains(&stem), "{stem} is not in docs/http.md");
    }
}
