//! Digests and versions of the state over HTTP.

use serde_json::json;

use crate::support::{Node, gated};

#[tokio::test]
async fn a_digest_is_computed_on_request_and_kept() {
    let node = Node::start().await;
    let none = node.get("/v1/state/digest").await.is(404).json();
    assert_eq!(none["code"], json!("no_digest"));
    node.call("PUT", "/v1/kv/k/a", &[], b"value").await.is(204);
    let first = node.call("POST", "/v1/state/digest", &[], b"").await.is(200).json();
    assert_eq!(first["digest"].as_str().map(str::len), Some(32), "{first}");
    assert_eq!(first["running_hash"].as_str().map(str::len), Some(16), "{first}");
    let values = first["kinds"].as_array().unwrap().iter().find(|kind| kind["tag"] == json!("10")).unwrap();
    assert_eq!((&values["name"], &values["rows"]), (&json!("values"), &json!(1)));
    assert_eq!(node.get("/v1/state/digest").await.is(200).json(), first);
    let status = node.get("/v1/status").await.is(200).json();
    assert_eq!((&status["running_hash"], &status["applied_index"]), (&first["running_hash"], &first["index"]));
    let second = node.call("POST", "/v1/state/digest", &[], b"").await.is(200).json();
    assert_eq!(second["digest"], first["digest"], "asking changes nothing that replicas compare");
    assert_ne!(second["running_hash"], first["running_hash"], "but it is an entry");
    node.call("PUT", "/v1/kv/k/a", &[], b"other").await.is(204);
    let third = node.call("POST", "/v1/state/digest", &[], b"").await.is(200).json();
    assert_ne!(third["digest"], first["digest"]);
    node.call("POST", "/v1/state/digest?x=1", &[], b"").await.is(400);
}

#[tokio::test]
async fn the_version_in_force_is_told_and_not_raised_beyond_what_is_known() {
    let node = Node::start().await;
    let versions = node.get("/v1/state/version").await.is(200).json();
    assert_eq!(versions["in_force"], json!(1));
    let known = versions["known"].as_u64().unwrap();
    let status = node.get("/v1/status").await.is(200).json();
    assert_eq!(status["state_machine"], json!({"version_in_force": 1, "known_version": known}));
    let raise = |to: u64| json!({"to": to}).to_string();
    let head = [("content-type", "application/json")];
    let error = node.call("POST", "/v1/state/version", &head, raise(known + 1).as_bytes()).await.is(409).json();
    assert_eq!(error["code"], json!("version_unknown"));
    assert_eq!(node.call("POST", "/v1/state/version", &head, raise(1).as_bytes()).await.is(200).json(), versions);
    node.call("POST", "/v1/state/version", &head, raise(65_536).as_bytes()).await.is(400);
    node.call("POST", "/v1/state/version", &head, b"{\"to\": 1, \"x\": 2}").await.is(400);
    assert_eq!(node.get("/v1/state/version").await.is(200).json(), versions);
}

#[tokio::test]
async fn one_digest_at_a_time_is_computed() {
    let (node, gate) = gated::node().await;
    gate.set(true);
    let (mut one, mut other) = (node.connect().await, node.connect().await);
    for client in [&mut one, &mut other] {
        client.send("POST", "/v1/state/digest", &[], b"").await;
    }
    // The disk does not answer, so the first request is still waiting for its entry.
    let (refused, waiting) = tokio::select! {
        reply = one.reply("POST") => (reply, &mut other),
        reply = other.reply("POST") => (reply, &mut one),
    };
    gate.set(false);
    let error = refused.is(503).json();
    assert_eq!((&error["code"], &error["retry"]), (&json!("digest_busy"), &json!("retry")), "{error}");
    let computed = waiting.reply("POST").await.is(200).json();
    assert_eq!(node.get("/v1/state/digest").await.is(200).json(), computed);
    node.call("POST", "/v1/state/digest", &[], b"").await.is(200);
    node.stop().await;
}
