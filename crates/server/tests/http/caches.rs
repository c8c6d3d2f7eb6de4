//! Caches over HTTP.

use std::time::Duration;

use serde_json::{Value, json};
use thalweg_server::config::ByteSize;

use crate::support::{Node, eventually, holds};

async fn metrics(node: &Node) -> String {
    String::from_utf8(node.get("/metrics").await.is(200).body).unwrap()
}

#[tokio::test]
async fn entries_are_put_read_and_removed() {
    let node = Node::start().await;
    node.get("/v1/caches/c/keys/a").await.refused(404, "no_such_cache", "fix");
    node.delete("/v1/caches/c/keys/a").await.refused(404, "no_such_cache", "fix");
    let put = node.put("/v1/caches/c/keys/a", b"one").await.is(204);
    let first: u64 = put.header("thalweg-version").parse().unwrap();
    assert_eq!(put.header("etag"), format!("\"{first}\""));
    let got = node.get("/v1/caches/c/keys/a").await.is(200);
    assert_eq!((&*got.body, got.header("thalweg-version")), (&b"one"[..], &*first.to_string()));
    assert_eq!(got.header("content-type"), "application/octet-stream");
    assert!(!got.headers.contains_key("thalweg-ttl"));
    let head = node.call("HEAD", "/v1/caches/c/keys/a", &[], b"").await.is(200);
    assert_eq!((head.header("content-length"), head.body.len()), ("3", 0));
    // An empty key and an empty value are valid. A slash in a key may be literal.
    node.put("/v1/caches/c/keys/", b"").await.is(204);
    assert_eq!(node.get("/v1/caches/c/keys/").await.is(200).body, b"");
    node.put("/v1/caches/c/keys/x/%FF", b"2").await.is(204);
    assert_eq!(node.get("/v1/caches/c/keys/x%2F%FF").await.is(200).body, b"2");
    node.delete("/v1/caches/c/keys/a").await.is(204);
    node.delete("/v1/caches/c/keys/a").await.is(204);
    node.get("/v1/caches/c/keys/a").await.refused(404, "not_found", "fix");
    node.stop().await;
}

#[tokio::test]
async fn conditions_hold_or_change_nothing() {
    let node = Node::start().await;
    let put = |headers: Vec<(&'static str, String)>, body: &'static str| {
        let node = &node;
        async move {
            let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
            node.call("PUT", "/v1/caches/c/keys/k", &headers, body.as_bytes()).await
        }
    };
    put(vec![("if-match", "*".into())], "x").await.refused(412, "condition_failed", "fix");
    let first = put(vec![("if-none-match", "*".into())], "1").await.is(204).header("etag").to_owned();
    let error = put(vec![("if-none-match", "*".into())], "2").await.refused(412, "condition_failed", "fix");
    assert_eq!(format!("\"{}\"", error["version"]), first);
    let second = put(vec![("if-match", first.clone())], "2").await.is(204).header("etag").to_owned();
    put(vec![("if-match", first.clone())], "3").await.refused(412, "condition_failed", "fix");
    let get = |name: &'static str, value: String| {
        let node = &node;
        async move { node.call("GET", "/v1/caches/c/keys/k", &[(name, &value)], b"").await }
    };
    get("if-none-match", second.clone()).await.is(304);
    assert_eq!(get("if-none-match", first.clone()).await.is(200).body, b"2");
    get("if-match", first.clone()).await.refused(412, "condition_failed", "fix");
    let delete = |value: String| {
        let node = &node;
        async move { node.call("DELETE", "/v1/caches/c/keys/k", &[("if-match", &value)], b"").await }
    };
    delete(first).await.refused(412, "condition_failed", "fix");
    delete(second.clone()).await.is(204);
    delete(second).await.refused(412, "condition_failed", "fix");
    node.stop().await;
}

#[tokio::test]
async fn entries_end_and_their_memory_comes_back() {
    let node = Node::start().await;
    node.put("/v1/caches/c/keys/short?ttl=0.05", b"1").await.is(204);
    node.call("PUT", "/v1/caches/c/keys/long", &[("thalweg-ttl", "100")], b"1").await.is(204);
    let left: f64 = node.get("/v1/caches/c/keys/long").await.is(200).header("thalweg-ttl").parse().unwrap();
    assert!(left > 90.0 && left <= 100.0);
    // The timer frees the entry without a read.
    let is_gone = async || node.get("/v1/caches/c").await.is(200).json()["expirations"] == 1;
    eventually("the timer comes by", is_gone).await;
    node.get("/v1/caches/c/keys/short").await.refused(404, "not_found", "fix");
    let patch = |target: &'static str| node.call("PATCH", target, &[], b"");
    patch("/v1/caches/c/keys/long?ttl=never").await.is(204);
    assert!(!node.get("/v1/caches/c/keys/long").await.is(200).headers.contains_key("thalweg-ttl"));
    patch("/v1/caches/c/keys/long?ttl=50").await.is(204);
    node.put("/v1/caches/c/keys/long?ttl=keep", b"2").await.is(204);
    assert!(node.get("/v1/caches/c/keys/long").await.is(200).headers.contains_key("thalweg-ttl"));
    patch("/v1/caches/c/keys/none?ttl=5").await.refused(404, "not_found", "fix");
    patch("/v1/caches/c/keys/long").await.refused(400, "bad_parameter", "fix");
    patch("/v1/caches/c/keys/long?ttl=keep").await.refused(400, "bad_parameter", "fix");
    node.put("/v1/caches/c/keys/long?ttl=soon", b"").await.refused(400, "bad_parameter", "fix");
    node.put("/v1/caches/c/keys/long?lease=1", b"").await.refused(400, "unknown_parameter", "fix");
    node.stop().await;
}

#[tokio::test]
async fn counters() {
    let node = Node::start().await;
    let add = |target: &'static str| node.call("POST", target, &[], b"");
    assert_eq!(add("/v1/caches/c/keys/n?add=5&ttl=100").await.is(200).json(), json!({"value": 5}));
    assert_eq!(add("/v1/caches/c/keys/n?add=-7").await.is(200).json(), json!({"value": -2}));
    let got = node.get("/v1/caches/c/keys/n").await.is(200);
    assert_eq!(got.body, b"-2");
    assert!(got.headers.contains_key("thalweg-ttl"), "adding keeps the deadline");
    node.put("/v1/caches/c/keys/t", b"x").await.is(204);
    add("/v1/caches/c/keys/t?add=1").await.refused(409, "not_a_number", "fix");
    add("/v1/caches/c/keys/n?add=-9223372036854775808").await.refused(409, "overflow", "fix");
    add("/v1/caches/c/keys/n").await.refused(400, "missing_parameter", "fix");
    add("/v1/caches/c/keys/n?add=1.5").await.refused(400, "bad_parameter", "fix");
    node.stop().await;
}

#[tokio::test]
async fn several_entries_at_once() {
    let node = Node::start().await;
    let items = json!({"items": [{"key": "a", "value": "1"}, {"key_base64": "/w==", "value_base64": "/g=="}],
        "ttl_seconds": 100});
    assert_eq!(node.post_json("/v1/caches/c/put", &items).await.is(200).json(), json!({"put": 2}));
    let keys = json!({"keys": ["a", "none", {"key_base64": "/w=="}]});
    let got = node.post_json("/v1/caches/c/get", &keys).await.is(200).json();
    let entries = got["entries"].as_array().unwrap();
    assert_eq!((&entries[0]["key"], &entries[0]["value"]), (&json!("a"), &json!("1")));
    assert!(entries[0]["ttl_seconds"].as_f64().unwrap() > 90.0 && entries[0]["version"].as_u64().unwrap() > 0);
    assert_eq!(entries[1], json!({"key": "none", "found": false}));
    assert_eq!((&entries[2]["key_base64"], &entries[2]["value_base64"]), (&json!("/w=="), &json!("/g==")));
    node.post_json("/v1/caches/d/get", &keys).await.refused(404, "no_such_cache", "fix");
    node.post_json("/v1/caches/c/get", &json!({"keys": [1]})).await.refused(400, "bad_json", "fix");
    let many = json!({"keys": vec!["k"; 65_537]});
    node.post_json("/v1/caches/c/get", &many).await.refused(413, "too_many_entries", "fix");

    for number in 0..25 {
        node.put(&format!("/v1/caches/s/keys/{number}"), b"").await.is(204);
    }
    let (mut seen, mut target) = (Vec::new(), "/v1/caches/s/keys?limit=10".to_owned());
    loop {
        let page = node.get(&target).await.is(200).json();
        let keys = page["keys"].as_array().unwrap();
        assert!(keys.len() <= 10);
        seen.extend(keys.iter().map(|key| key["key"].as_str().unwrap().parse::<u32>().unwrap()));
        let Some(cursor) = page["cursor"].as_str() else { break };
        target = format!("/v1/caches/s/keys?limit=10&cursor={cursor}");
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..25));
    node.call("POST", "/v1/caches/s/clear", &[], b"").await.is(204);
    assert_eq!(node.get("/v1/caches/s/keys").await.is(200).json(), json!({"keys": []}));
    node.stop().await;
}

#[tokio::test]
async fn caches_are_bounded_and_say_how_they_do() {
    let node = Node::with(|config| {
        config.max_caches_bytes = ByteSize(1 << 20);
        config.new_cache_bytes = ByteSize(512 << 10);
    })
    .await;
    node.put_json("/v1/caches/c", &json!({"max_bytes": 1000})).await.refused(400, "cache_too_small", "fix");
    node.put_json("/v1/caches/c", &json!({"size": 1})).await.refused(400, "bad_json", "fix");
    let made = node.put_json("/v1/caches/c", &json!({"max_bytes": 131_072})).await.is(201).json();
    assert_eq!((&made["max_bytes"], &made["entries"], &made["hit_ratio"]), (&json!(131_072), &json!(0), &Value::Null));
    node.put("/v1/caches/c", b"").await.is(200);
    node.put("/v1/caches/d/keys/a", b"1").await.is(204);
    let error = node.put("/v1/caches/e/keys/a", b"1").await.refused(409, "caches_full", "fix");
    holds(error["message"].as_str().unwrap(), "drop one");
    node.delete("/v1/caches/d").await.is(204);
    node.delete("/v1/caches/d").await.refused(404, "no_such_cache", "fix");
    node.put("/v1/caches/e/keys/a", b"1").await.is(204);

    let error = node.put("/v1/caches/c/keys/a", &[0; 130_000]).await.refused(413, "cache_entry_too_large", "fix");
    assert!(error["limit"].as_u64().unwrap() < 131_072);
    for number in 0..400 {
        node.put(&format!("/v1/caches/c/keys/{number}"), &[b'v'; 700]).await.is(204);
        node.get(&format!("/v1/caches/c/keys/{number}")).await.is(200);
    }
    node.get("/v1/caches/c/keys/none").await.is(404);
    let stats = node.get("/v1/caches/c").await.is(200).json();
    assert!(stats["bytes"].as_u64().unwrap() <= 131_072 && stats["evictions"].as_u64().unwrap() > 200, "{stats}");
    assert_eq!((&stats["puts"], &stats["hits"], &stats["misses"]), (&json!(400), &json!(400), &json!(1)));
    let all = node.get("/v1/caches").await.is(200).json();
    let names: Vec<_> = all["caches"].as_array().unwrap().iter().map(|cache| cache["name"].clone()).collect();
    assert_eq!(names, ["c", "e"]);
    let text = metrics(&node).await;
    holds(&text, "thalweg_cache_hits_total{cache=\"c\"} 400");
    holds(&text, "thalweg_cache_misses_total{cache=\"c\"} 1");
    holds(&text, "thalweg_cache_max_bytes{cache=\"e\"} 524288");
    holds(&text, "thalweg_caches 2");
    let status = node.get("/v1/status").await.is(200).json();
    assert_eq!(status["caches"], json!({"count": 2, "max_bytes": 131_072 + 524_288}));
    tokio::time::timeout(Duration::from_secs(5), node.stop()).await.expect("the timer holds up no stop");
}
