//! Keyspaces with history over real sockets: values at a revision, versions, cursors.

use serde_json::{Value, json};

use crate::support::{Node, Reply};

fn revision(reply: &Reply) -> u64 {
    reply.header("thalweg-revision").parse().unwrap()
}

/// Returns the pairs of a scan, and its last line.
async fn scan(node: &Node, query: &str) -> (Vec<(String, String)>, Value) {
    let mut lines = node.get(&format!("/v1/kv/a?{query}")).await.is(200).lines();
    let end = lines.pop().unwrap();
    let text = |line: &Value, name: &str| line[name].as_str().unwrap().to_owned();
    (lines.iter().map(|line| (text(line, "key"), text(line, "value"))).collect(), end)
}

async fn with_history(node: &Node, history: Value) {
    let body = json!({ "history": history }).to_string();
    let headers = [("content-type", "application/json")];
    node.call("PUT", "/v1/keyspaces/a", &headers, body.as_bytes()).await.is(201);
}

#[tokio::test]
async fn a_key_is_read_at_a_revision_and_its_versions_are_listed() {
    let node = Node::start().await;
    with_history(&node, json!({ "revisions": 3 })).await;
    let first = revision(&node.put("/v1/kv/a/k", b"one").await.is(204));
    let second = revision(&node.put("/v1/kv/a/k", b"\xff").await.is(204));
    let gone = revision(&node.call("DELETE", "/v1/kv/a/k", &[], b"").await.is(204));
    let at = |revision: u64| format!("/v1/kv/a/k?revision={revision}");
    let one = node.get(&at(first)).await.is(200);
    assert_eq!((&one.body[..], revision(&one)), (b"one".as_slice(), first));
    let head = node.call("HEAD", &at(first), &[], b"").await.is(200);
    assert_eq!((head.header("content-length"), revision(&head)), ("3", first));
    node.get(&at(gone)).await.refused(404, "not_found", "fix");
    let future = node.get(&at(gone + 1)).await.refused(416, "future_revision", "fix");
    assert_eq!(future["newest"], json!(gone));
    node.put("/v1/kv/a/k", b"three").await.is(204);
    let last = revision(&node.put("/v1/kv/a/k", b"four").await.is(204));
    let past = node.get(&at(first)).await.refused(410, "compacted", "fix");
    assert_eq!(past["oldest"], json!(second));

    let versions = node.get("/v1/versions/a/k").await.is(200).json();
    assert_eq!((&versions["key"], &versions["oldest"], &versions["next"]), (&json!("k"), &json!(second), &Value::Null));
    let found = versions["versions"].as_array().unwrap();
    assert_eq!(found[0], json!({ "revision": last, "value": "four", "state": "current" }));
    assert_eq!((&found[1]["value"], &found[1]["state"]), (&json!("three"), &json!("overwritten")));
    assert_eq!((&found[2]["value_base64"], &found[2]["state"]), (&json!("/w=="), &json!("deleted")));
    assert_eq!((found[2]["until"].as_u64(), found[2]["until_micros"].is_u64(), found.len()), (Some(gone), true, 3));
    let page = node.get("/v1/versions/a/k?limit=1").await.is(200).json();
    assert_eq!(page["next"], json!(last));
    let rest = node.get(&format!("/v1/versions/a/k?before={last}")).await.is(200).json();
    assert_eq!(rest["versions"], json!([found[1], found[2]]));
    node.get("/v1/versions/a/k?limit=0").await.refused(400, "bad_parameter", "fix");
    node.get("/v1/versions/none/k").await.refused(404, "no_such_keyspace", "fix");
    node.put("/v1/kv/plain/k", b"").await.is(204);
    node.get("/v1/kv/plain/k?revision=1").await.refused(409, "no_history", "fix");
    node.get("/v1/versions/plain/k").await.refused(409, "no_history", "fix");
    node.get("/v1/versions/a/").await.is(200);
    node.stop().await;
}

#[tokio::test]
async fn pages_of_a_scan_are_one_view_where_there_is_history() {
    let node = Node::start().await;
    with_history(&node, json!({ "age_seconds": 3600.0 })).await;
    for key in ["a", "b", "c", "d"] {
        node.put(&format!("/v1/kv/a/{key}"), b"old").await.is(204);
    }
    for reverse in ["", "&reverse"] {
        let (first, end) = scan(&node, &format!("limit=2{reverse}")).await;
        let (cursor, at) = (end["cursor"].as_str().unwrap().to_owned(), end["revision"].as_u64().unwrap());
        node.put("/v1/kv/a/b", b"new").await.is(204);
        node.put("/v1/kv/a/bb", b"new").await.is(204);
        node.call("DELETE", "/v1/kv/a/c", &[], b"").await.is(204);
        let (rest, end) = scan(&node, &format!("limit=2{reverse}&cursor={cursor}")).await;
        assert_eq!((end["cursor"].as_str(), end["revision"].as_u64()), (None, Some(at)));
        let mut all: Vec<_> = first.into_iter().chain(rest).collect();
        let (whole, end) = scan(&node, &format!("revision={at}{reverse}")).await;
        assert_eq!((&all, end["revision"].as_u64()), (&whole, Some(at)));
        all.sort();
        let old = |key: &str| (key.to_owned(), "old".to_owned());
        assert_eq!(all, [old("a"), old("b"), old("c"), old("d")]);
        let other = format!("/v1/kv/a?prefix=b&limit=2{reverse}&cursor={cursor}");
        node.get(&other).await.refused(400, "bad_cursor", "fix");
        node.get(&format!("/v1/kv/a?revision=1&cursor={cursor}")).await.refused(400, "bad_parameter", "fix");
        node.call("DELETE", "/v1/kv/a?prefix=", &[], b"").await.is(200);
        for key in ["a", "b", "c", "d"] {
            node.put(&format!("/v1/kv/a/{key}"), b"old").await.is(204);
        }
    }
    node.get("/v1/kv/a?cursor=AAAA").await.refused(400, "bad_cursor", "fix");
    node.get("/v1/kv/a?cursor=!").await.refused(400, "bad_parameter", "fix");
    node.stop().await;
}

#[tokio::test]
async fn bounds_of_a_history_are_shown_changed_and_checked() {
    let node = Node::start().await;
    with_history(&node, json!({ "revisions": 5, "age_seconds": 60.0 })).await;
    let shown = |reply: Value| reply["config"]["history"].clone();
    let both = json!({ "revisions": 5, "age_seconds": 60.0 });
    assert_eq!(shown(node.get("/v1/keyspaces/a").await.is(200).json()), both);
    let headers = [("content-type", "application/json")];
    let patch = |body: Value| {
        let body = body.to_string();
        let node = &node;
        async move { node.call("PATCH", "/v1/keyspaces/a", &headers, body.as_bytes()).await }
    };
    assert_eq!(shown(patch(json!({})).await.is(200).json()), both, "what is left out stays");
    assert_eq!(shown(patch(json!({ "history": { "revisions": 7 } })).await.is(200).json())["age_seconds"], Value::Null);
    for bad in [json!({ "revisions": 1 }), json!({ "revisions": 257 }), json!({ "age_seconds": 0.0 })] {
        patch(json!({ "history": bad })).await.refused(400, "bad_history", "fix");
    }
    patch(json!({ "history": {} })).await.refused(400, "bad_json", "fix");
    assert_eq!(shown(patch(json!({ "history": null })).await.is(200).json()), Value::Null);
    node.get("/v1/kv/a/k?revision=0").await.refused(409, "no_history", "fix");
    node.stop().await;
}
