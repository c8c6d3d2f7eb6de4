//! Transactions, counters, deletes by prefix and keyspaces, over HTTP.

use serde_json::{Value, json};

use crate::support::{Node, Reply};

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

async fn txn(node: &Node, body: &Value) -> Reply {
    node.call("POST", "/v1/txn", JSON, body.to_string().as_bytes()).await
}

#[tokio::test]
async fn a_transaction_answers_for_the_list_it_carried_out() {
    let node = Node::start().await;
    let body = json!({
        "conditions": [{"keyspace": "a", "key": "lock", "expect": "absent"}],
        "then": [
            {"op": "put", "keyspace": "a", "key": "lock", "value": "me"},
            {"op": "add", "keyspace": "a", "key": "n", "delta": -3},
            {"op": "append", "stream": "s", "expected": 0, "records": [{"payload": "r"}]},
            {"op": "delete", "keyspace": "a", "key": "none"},
            {"op": "delete_prefix", "keyspace": "a", "prefix": "no"},
        ],
        "else": [
            {"op": "get", "keyspace": "a", "key": "lock"},
            {"op": "get", "keyspace": "a", "key_base64": "/w=="},
            {"op": "scan", "keyspace": "a", "limit": 1},
        ],
    });
    let first = txn(&node, &body).await.is(200);
    assert_eq!((first.header("thalweg-revision"), first.header("thalweg-durability")), ("1", "disk"));
    let expected = json!({
        "succeeded": true, "failed": null, "wrote": true, "revision": 1, "durability": "disk",
        "results": [
            {"op": "put"}, {"op": "add", "value": -3}, {"op": "append", "stream": "s", "first": 0, "last": 0, "count": 1},
            {"op": "delete", "existed": false}, {"op": "delete_prefix", "keys": 0},
        ],
    });
    assert_eq!(first.json(), expected);
    let second = txn(&node, &body).await.is(200).json();
    let expected = json!({
        "succeeded": false, "failed": {"condition": 0, "keyspace": "a", "key": "lock", "revision": 1}, "wrote": false, "revision": 1,
        "durability": "disk",
        "results": [
            {"op": "get", "found": true, "value": "me", "revision": 1}, {"op": "get", "found": false},
            {"op": "scan", "items": [{"key": "lock", "value": "me", "revision": 1}], "after": "lock"},
        ],
    });
    assert_eq!(second, expected);
    node.stop().await;
}

#[tokio::test]
async fn a_condition_can_be_that_a_range_is_as_it_was_scanned() {
    let node = Node::start().await;
    node.put("/v1/kv/a/k1", b"one").await.is(204);
    let scan = json!({"then": [{"op": "scan", "keyspace": "a", "prefix": "k"}]});
    let seen = txn(&node, &scan).await.is(200).json();
    let revision = seen["revision"].clone();
    let if_unchanged = |count: u32| {
        let range = json!({ "unchanged": { "end": "l", "since": revision, "count": count } });
        json!({
            "conditions": [{"keyspace": "a", "key": "k", "expect": range}],
            "then": [{"op": "put", "keyspace": "a", "key": "sum", "value": "1"}],
        })
    };
    assert_eq!(txn(&node, &if_unchanged(1)).await.is(200).json()["succeeded"], json!(true));
    assert_eq!(
        txn(&node, &if_unchanged(2)).await.is(200).json()["failed"],
        json!({"condition": 0, "keyspace": "a", "key": "k", "revision": null})
    );
    node.put("/v1/kv/a/k2", b"two").await.is(204);
    let failed = txn(&node, &if_unchanged(1)).await.is(200).json()["failed"].clone();
    assert_eq!(failed, json!({"condition": 0, "keyspace": "a", "key": "k", "revision": 3}));
    let commit = json!({
        "conditions": [{"keyspace": "a", "key": "k", "expect": {"unchanged": {"since": 9, "count": 0, "no": 1}}}],
        "writes": [],
    });
    node.post_json("/v1/commit", &commit).await.refused(400, "bad_json", "fix");
    node.stop().await;
}

#[tokio::test]
async fn what_cannot_be_carried_out_is_refused_and_changes_nothing() {
    let node = Node::start().await;
    node.put("/v1/kv/a/text", b"one").await.is(204);
    let add = json!({"then": [
        {"op": "put", "keyspace": "a", "key": "new", "value": "1"},
        {"op": "add", "keyspace": "a", "key": "text", "delta": 1},
    ]});
    txn(&node, &add).await.refused(409, "not_a_number", "fix");
    node.get("/v1/kv/a/new").await.is(404);
    let level = json!({"then": [], "durability": "none"});
    txn(&node, &level).await.refused(400, "level_too_low", "fix");
    for bad in
        [json!({"than": []}), json!({"then": [{"op": "push"}]}), json!({"then": [{"op": "get", "keyspace": "a"}]})]
    {
        txn(&node, &bad).await.refused(400, "bad_json", "fix");
    }
    node.stop().await;
}

#[tokio::test]
async fn a_counter_is_added_to_and_read_as_a_value() {
    let node = Node::start().await;
    let added = node.call("POST", "/v1/kv/a/n?add=41", &[], b"").await.is(200);
    assert_eq!(added.json(), json!({"value": 41, "revision": 1, "durability": "disk"}));
    assert_eq!(node.call("POST", "/v1/kv/a/n?add=1", &[], b"").await.is(200).json()["value"], json!(42));
    assert_eq!(node.get("/v1/kv/a/n").await.is(200).body, b"42");
    node.call("POST", "/v1/kv/a/n?add=9223372036854775807", &[], b"").await.refused(409, "overflow", "fix");
    node.call("POST", "/v1/kv/a/n?add=one", &[], b"").await.refused(400, "bad_parameter", "fix");
    node.call("POST", "/v1/kv/a/n", &[], b"").await.refused(400, "missing_parameter", "fix");
    node.call("POST", "/v1/kv/a/n?add=1&sub=1", &[], b"").await.refused(400, "unknown_parameter", "fix");
    node.stop().await;
}

#[tokio::test]
async fn a_prefix_is_deleted_only_when_it_is_named() {
    let node = Node::start().await;
    for key in ["x/1", "x/2", "y"] {
        node.put(&format!("/v1/kv/a/{key}"), b"v").await.is(204);
    }
    node.call("DELETE", "/v1/kv/a", &[], b"").await.refused(400, "missing_parameter", "fix");
    let deleted = node.call("DELETE", "/v1/kv/a?prefix=x%2F", &[], b"").await.is(200).json();
    assert_eq!(deleted, json!({"keys": 2, "revision": 4, "durability": "disk"}));
    node.get("/v1/kv/a/x/1").await.is(404);
    node.get("/v1/kv/a/y").await.is(200);
    assert_eq!(node.call("DELETE", "/v1/kv/a?prefix=", &[], b"").await.is(200).json()["keys"], json!(1));
    node.stop().await;
}

#[tokio::test]
async fn keyspaces_are_created_described_and_dropped() {
    let node = Node::start().await;
    let put = |body: &'static str| node.call("PUT", "/v1/keyspaces/a", JSON, body.as_bytes());
    let config = json!({"exact_counts": true, "default_ttl_seconds": null, "history": null});
    assert_eq!(put(r#"{"exact_counts": true}"#).await.is(201).json()["config"], config);
    put("").await.is(200);
    node.put("/v1/kv/a/key", b"value").await.is(204);
    node.put("/v1/kv/b/key", b"value").await.is(204);
    let found = node.get("/v1/keyspaces/a").await.is(200).json();
    assert_eq!(found["stats"], json!({"keys": 1, "bytes": 8, "exact": true, "sweeping": false}));
    let list = node.get("/v1/keyspaces").await.is(200).json();
    assert_eq!(list["keyspaces"].as_array().unwrap().len(), 2);
    let patch = |name: &str, body: &'static str| {
        let target = format!("/v1/keyspaces/{name}");
        let node = &node;
        async move { node.call("PATCH", &target, JSON, body.as_bytes()).await }
    };
    patch("b", r#"{"exact_counts": true}"#).await.refused(409, "cannot_configure", "fix");
    assert_eq!(patch("a", r#"{"exact_counts": false}"#).await.is(200).json()["config"]["exact_counts"], json!(false));
    patch("a", r#"{"exact": true}"#).await.refused(400, "bad_json", "fix");
    node.call("DELETE", "/v1/keyspaces/a", &[], b"").await.is(204);
    node.call("DELETE", "/v1/keyspaces/a", &[], b"").await.refused(404, "no_such_keyspace", "fix");
    node.get("/v1/keyspaces/a").await.refused(404, "no_such_keyspace", "fix");
    node.get("/v1/kv/a/key").await.is(404);
    node.stop().await;
}

#[tokio::test]
async fn a_transaction_that_only_reads_writes_no_entry() {
    let node = Node::start().await;
    node.put("/v1/kv/a/k", b"one").await.is(204);
    let body = json!({
        "conditions": [{"keyspace": "a", "key": "k", "expect": "present"}],
        "then": [{"op": "get", "keyspace": "a", "key": "k"}, {"op": "scan", "keyspace": "a"}],
        "else": [{"op": "get", "keyspace": "a", "key": "none"}],
    });
    let before = node.db.stats().entries;
    let read = txn(&node, &body).await.is(200);
    assert_eq!((read.header("thalweg-revision"), read.header("thalweg-durability")), ("1", "disk"));
    let read = read.json();
    assert_eq!((&read["results"][0]["value"], &read["wrote"]), (&"one".into(), &false.into()));
    assert_eq!(node.db.stats().entries, before);
    let missing = json!({"then": [{"op": "get", "keyspace": "a", "key": "k"}], "durability": "none"});
    txn(&node, &missing).await.refused(400, "level_too_low", "fix");
    node.stop().await;
}
