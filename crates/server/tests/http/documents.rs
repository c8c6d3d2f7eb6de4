//! Documents about the server: OpenAPI, metrics, status, health.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use thalweg_server::{OPENAPI, ROUTES, config::Setting};

use crate::support::{Node, holds};

/// Converts a route's path to the form in the document: `{*key}` becomes `{key}`.
fn documented(path: &str) -> String {
    path.replace("{*", "{")
}

#[test]
fn the_document_and_the_routes_are_the_same_set() {
    let document: Value = serde_json::from_str(&OPENAPI).unwrap();
    let mut in_document = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            // Routes of an operation without a key in their path have ids of their own.
            let id = operation["operationId"].as_str().unwrap();
            let name = id.strip_suffix("_empty_key").or_else(|| id.strip_suffix("_by_query")).unwrap_or(id);
            in_document.insert((path.clone(), method.to_uppercase(), name.to_owned()));
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
    let document: Value = serde_json::from_str(&OPENAPI).unwrap();
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

#[test]
fn every_part_of_the_document_has_a_description() {
    let document: Value = serde_json::from_str(&OPENAPI).unwrap();
    let described = |part: &Value, what: &str| {
        let text = part["description"].as_str().unwrap_or_default();
        assert!(text.len() > 5 && !text.contains("Handles `"), "{what}: {text:?}");
    };
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let summary = operation["summary"].as_str().unwrap();
            assert!(summary.split(' ').count() > 1, "{method} {path}: {summary:?}");
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                described(parameter, &format!("{method} {path} {}", parameter["name"]));
                let inserted = path.contains(&format!("{{{}}}", parameter["name"].as_str().unwrap()));
                assert_eq!(parameter["in"] == "path", inserted, "{method} {path} {parameter}");
            }
            assert_eq!(operation["responses"]["default"]["$ref"], "#/components/responses/Error", "{method} {path}");
            for (status, reply) in operation["responses"].as_object().unwrap() {
                if reply.get("$ref").is_none() {
                    described(reply, &format!("{method} {path} {status}"));
                }
            }
        }
    }
}

/// Checks that a JSON value has the form that a schema of the document describes.
fn conforms(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    if let Some(reference) = schema["$ref"].as_str() {
        return conforms(document, document.pointer(reference.strip_prefix('#').unwrap()).unwrap(), value);
    }
    if let Some(parts) = schema["allOf"].as_array() {
        // The parts are objects; together they have all fields.
        let merged = parts
            .iter()
            .map(|part| part["$ref"].as_str().map_or(part, |reference| document.pointer(&reference[1..]).unwrap()));
        let (mut properties, mut required) = (serde_json::Map::new(), Vec::new());
        for part in merged {
            properties.extend(part["properties"].as_object().unwrap().clone());
            required.extend(part["required"].as_array().into_iter().flatten().cloned());
        }
        let merged = json!({ "type": "object", "properties": properties, "required": required });
        return conforms(document, &merged, value);
    }
    if let Some(options) = schema["oneOf"].as_array() {
        let errors: Vec<_> = options.iter().map_while(|option| conforms(document, option, value).err()).collect();
        return if errors.len() < options.len() { Ok(()) } else { Err(errors.join("; ")) };
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let allowed = |name: &str| name == kind || (name == "number" && kind == "integer");
    let fits = match &schema["type"] {
        Value::Array(names) => names.iter().any(|name| allowed(name.as_str().unwrap())),
        name => allowed(name.as_str().unwrap()),
    };
    let listed = schema["enum"].as_array().is_none_or(|words| words.contains(value));
    if !fits || !listed {
        return Err(format!("{value} is not {schema}"));
    }
    for item in value.as_array().into_iter().flatten() {
        conforms(document, &schema["items"], item)?;
    }
    let (Some(fields), Some(properties)) = (value.as_object(), schema["properties"].as_object()) else { return Ok(()) };
    if let Some(name) =
        schema["required"].as_array().into_iter().flatten().find(|name| value[name.as_str().unwrap()].is_null())
    {
        return Err(format!("{value} has no {name}"));
    }
    for (name, field) in fields {
        let property = properties.get(name).ok_or_else(|| format!("{name} is not in the document: {value}"))?;
        conforms(document, property, field).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn replies_have_the_form_that_the_document_describes() {
    let document: Value = serde_json::from_str(&OPENAPI).unwrap();
    let node = Node::start().await;
    let (fetch, ndjson) = (json!({ "member": "m" }).to_string(), "application/x-ndjson");
    let record =
        json!([{ "key": "k", "headers": [{ "name": "n", "value": "v" }], "payload_base64": "/w==" }]).to_string();
    for (method, path, target, body) in [
        ("put", "/v1/keyspaces/{keyspace}", "/v1/keyspaces/past", r#"{"history":{"revisions":4}}"#),
        ("put", "/v1/kv/{keyspace}/{key}", "/v1/kv/past/k", "one"),
        ("put", "/v1/kv/{keyspace}/{key}", "/v1/kv/past/k", "two"),
        ("get", "/v1/versions/{keyspace}/{key}", "/v1/versions/past/k", ""),
        ("post", "/v1/kv/{keyspace}/{key}", "/v1/kv/a/count?add=5", ""),
        ("delete", "/v1/kv/{keyspace}", "/v1/kv/a?prefix=", ""),
        ("put", "/keys/{key}", "/keys/a", "v"),
        ("get", "/keys/{key}", "/keys/a", ""),
        ("get", "/keys/range", "/keys/range?limit=1", ""),
        ("get", "/keys/range", "/keys/range", ""),
        ("post", "/v1/leases", "/v1/leases", r#"{"ttl_seconds":60,"id":7}"#),
        ("put", "/v1/kv/{keyspace}/{key}", "/v1/kv/a/leased?lease=7", "v"),
        ("get", "/v1/leases", "/v1/leases?limit=1", ""),
        ("get", "/v1/leases/{lease}", "/v1/leases/7", ""),
        ("post", "/v1/leases/{lease}/keep-alive", "/v1/leases/7/keep-alive", ""),
        ("put", "/v1/streams/{stream}", "/v1/streams/s", r#"{"max_records":9,"compaction":{}}"#),
        ("post", "/v1/streams/{stream}/records", "/v1/streams/s/records", &record),
        ("post", "/v1/streams/{stream}/records", "/v1/streams/s/records?producer=p&sequence=0", &record),
        ("post", "/v1/streams/{stream}/records", "/v1/streams/s/records?producer=p&sequence=0", &record),
        ("get", "/v1/streams", "/v1/streams?limit=1", ""),
        ("get", "/v1/streams/{stream}", "/v1/streams/s", ""),
        ("put", "/v1/streams/{stream}/groups/{group}", "/v1/streams/s/groups/g", ""),
        ("post", "/v1/streams/{stream}/groups/{group}/fetch", "/v1/streams/s/groups/g/fetch", &fetch),
        ("post", "/v1/streams/{stream}/groups/{group}/fetch", "/v1/streams/s/groups/g/fetch", &fetch),
        ("post", "/v1/subjects/{subject}", "/v1/subjects/a.b", "message"),
        ("put", "/v1/caches/{cache}/keys/{key}", "/v1/caches/c/keys/a?ttl=60", "v"),
        ("get", "/v1/caches", "/v1/caches", ""),
        ("get", "/v1/caches/{cache}", "/v1/caches/c", ""),
        ("post", "/v1/caches/{cache}/get", "/v1/caches/c/get", r#"{"keys":["a","b"]}"#),
        ("post", "/v1/caches/{cache}/put", "/v1/caches/c/put", r#"{"items":[{"key":"b","value":"v"}]}"#),
        ("get", "/v1/caches/{cache}/keys", "/v1/caches/c/keys?limit=1", ""),
        ("post", "/v1/caches/{cache}/keys/{key}", "/v1/caches/c/keys/n?add=1", ""),
        ("post", "/v1/state/digest", "/v1/state/digest", ""),
        ("get", "/v1/state/version", "/v1/state/version", ""),
        ("get", "/v1/caches/{cache}", "/v1/caches/none", ""),
        ("get", "/v1/watch/{keyspace}", "/v1/watch/past?from=0&limit=2", ""),
        ("put", "/v1/streams/{stream}/groups/{group}", "/v1/streams/s/groups/h", ""),
        ("get", "/v1/streams/{stream}/groups/{group}/push", "/v1/streams/s/groups/h/push?limit=1", ""),
    ] {
        let headers: &[_] = if body.starts_with(['{', '[']) { &[("content-type", "application/json")] } else { &[] };
        let endless = path.contains("/watch/") || path.ends_with("/push");
        let headers = if endless { &[("accept", ndjson)] } else { headers };
        let reply = node.call(&method.to_uppercase(), target, headers, body.as_bytes()).await;
        let replies = &document["paths"][path][method]["responses"];
        let described = replies.get(reply.status.to_string());
        assert!(described.is_some() || reply.status >= 400, "{method} {target}: status {}", reply.status);
        let described = described.unwrap_or(&document["components"]["responses"]["Error"]);
        let media = if endless { ndjson } else { "application/json" };
        let schema = &described["content"][media]["schema"];
        if schema.is_null() {
            assert!(reply.body.is_empty(), "{method} {target}");
            continue;
        }
        for line in reply.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let value: Value = serde_json::from_slice(line).unwrap();
            if value.get("progress").is_none() && value.get("waits_for").is_none() {
                conforms(&document, schema, &value).unwrap_or_else(|error| panic!("{method} {target}: {error}"));
            }
        }
    }
    node.stop().await;
}

/// The level `none` counts as `os` in changes of keyspaces and leases, and is refused in those of groups.
#[tokio::test]
async fn deletes_have_202_in_the_document_only_if_their_outcome_can_be_unknown() {
    let document: Value = serde_json::from_str(&OPENAPI).unwrap();
    let node = Node::start().await;
    for (method, target, body) in [
        ("PUT", "/v1/keyspaces/gone", ""),
        ("PUT", "/v1/streams/gone", ""),
        ("PUT", "/v1/streams/gone/groups/g", ""),
        ("POST", "/v1/leases", r#"{"ttl_seconds":60,"id":7}"#),
    ] {
        let headers: &[_] = if body.is_empty() { &[] } else { &[("content-type", "application/json")] };
        let created = node.call(method, target, headers, body.as_bytes()).await;
        assert!(created.status < 300, "{target}: {}", created.status);
    }
    for (path, target) in [
        ("/v1/kv/{keyspace}/{key}", "/v1/kv/gone/k"),
        ("/v1/keyspaces/{keyspace}", "/v1/keyspaces/gone"),
        ("/v1/leases/{lease}", "/v1/leases/7"),
        ("/v1/streams/{stream}/groups/{group}", "/v1/streams/gone/groups/g"),
        ("/v1/streams/{stream}", "/v1/streams/gone"),
    ] {
        let status = node.call("DELETE", target, &[("thalweg-durability", "none")], b"").await.status;
        let is_listed = document["paths"][path]["delete"]["responses"].get("202").is_some();
        assert_eq!(status == 202, is_listed, "{path}: {status}");
    }
    node.stop().await;
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
        "thalweg_http_request_duration_seconds_bucket{le=\"+Inf\",operation=",
        "thalweg_log_sync_batches_count",
        "thalweg_write_stage_duration_seconds_count{stage=\"sync\"}",
        "thalweg_write_stage_duration_seconds_bucket{le=\"+Inf\",stage=\"answer\"}",
        "thalweg_entry_commands_sum",
        "thalweg_log_segments",
        "thalweg_commands_total",
        "thalweg_entries_total",
        "thalweg_queue_bytes",
        "thalweg_state_memory_bytes",
        "thalweg_state_stalls_total",
        "thalweg_state_pauses_total",
        "thalweg_state_pause_seconds_total",
        "thalweg_state_slowdown_bytes_per_second",
        "thalweg_state_flush_rest_seconds_total",
        "thalweg_state_compaction_rest_seconds_total",
        "thalweg_log_segment_waits_total",
        "thalweg_log_segment_wait_seconds_total",
        "thalweg_pacer_rate_bytes",
        "thalweg_pacer_rest_seconds_total{work=\"segment\"}",
        "thalweg_pacer_late_total{work=\"flush\"} 0",
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

#[tokio::test]
async fn the_page_at_the_root_names_the_node_and_leads_to_the_api() {
    let node = Node::start().await;
    let page = node.get("/").await.is(200);
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    assert!(page.header("content-security-policy").contains("default-src 'none'"));
    let text = String::from_utf8(page.body).unwrap();
    let status = node.get("/v1/status").await.is(200).json();
    holds(&text, status["node"].as_str().unwrap());
    let mut links = 0;
    for link in text.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        node.get(link).await.is(200);
        links += 1;
    }
    assert!(links >= 5 && text.contains("href=\"/openapi.json\""), "{text}");
    node.call("POST", "/", &[], b"").await.refused(405, "wrong_method", "fix");
    node.stop().await;
}

#[tokio::test]
async fn readiness_warns_of_a_password_that_protects_one_port_only() {
    let node = Node::start().await;
    let calm = node.get("/ready?verbose").await.is(200).json();
    assert_eq!(calm, json!({ "status": "good", "warnings": [] }));
    node.get("/ready?verbos").await.refused(400, "unknown_parameter", "fix");
    node.stop().await;
    let half = Node::with(|config| config.resp_password = Setting::parse("hunter2").unwrap()).await;
    assert_eq!(half.get("/ready").await.is(200).json(), json!({ "status": "good" }));
    let warnings = half.get("/ready?verbose").await.is(200).json()["warnings"].to_string();
    assert!(warnings.contains("resp_password protects only") && !warnings.contains("hunter2"), "{warnings}");
    half.stop().await;
}

#[test]
fn the_document_is_valid_openapi() {
    use roas::validation::{Options, Validate};
    let validate = |text: &str| {
        let document: roas::v3_1::spec::Spec = serde_json::from_str(text).map_err(|error| error.to_string())?;
        // The library does not see references from arrays that may be null.
        let options = Options::IgnoreMissingTags | Options::IgnoreExternalReferences | Options::IgnoreUnusedSchemas;
        document.validate(options).map_err(|error| error.to_string())
    };
    validate(&OPENAPI).unwrap();
    for (right, wrong) in [
        ("\"kv_put_empty_key\"", "\"kv_put\""),
        ("#/components/schemas/Error", "#/components/schemas/Nowhere"),
        ("\"in\": \"path\"", "\"in\": \"nowhere\""),
    ] {
        assert!(OPENAPI.contains(right), "{right}");
        assert!(validate(&OPENAPI.replace(right, wrong)).is_err(), "{wrong} is found");
    }
}

#[test]
fn every_operation_of_the_document_has_an_id_of_its_own() {
    let document: Value = serde_json::from_str(&OPENAPI).unwrap();
    let mut ids = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "{id} twice, also of {method} {path}");
        }
    }
}
