//! `/v1/kv` over real sockets.

use serde_json::json;
use thalweg_server::parse;

use crate::support::Node;

#[tokio::test]
async fn a_value_comes_back_with_its_revision_and_level() {
    let node = Node::start().await;
    let put = node.put("/v1/kv/a/key", b"value").await.is(204);
    let revision = put.header("thalweg-revision").to_owned();
    assert_eq!(put.header("etag"), format!("\"{revision}\""));
    assert_eq!(put.header("thalweg-durability"), "disk");
    let got = node.get("/v1/kv/a/key").await.is(200);
    assert_eq!(got.body, b"value");
    assert_eq!(got.header("thalweg-revision"), revision);
    assert_eq!(got.header("thalweg-durability"), "disk");
    assert_eq!(got.header("content-type"), "application/octet-stream");
    let head = node.call("HEAD", "/v1/kv/a/key", &[], b"").await.is(200);
    assert_eq!((head.header("content-length"), head.header("thalweg-revision")), ("5", revision.as_str()));
    node.delete("/v1/kv/a/key").await.is(204);
    node.get("/v1/kv/a/key").await.refused(404, "not_found", "fix");
    node.call("HEAD", "/v1/kv/a/key", &[], b"").await.is(404);
    node.delete("/v1/kv/a/key").await.is(204);
    node.stop().await;
}

#[tokio::test]
async fn a_value_that_ends_says_how_long_it_has_left() {
    let node = Node::start().await;
    node.call("PUT", "/v1/kv/a/key", &[("thalweg-ttl", "1000.5")], b"value").await.is(204);
    for method in ["GET", "HEAD"] {
        let left: f64 =
            node.call(method, "/v1/kv/a/key", &[], b"").await.is(200).header("thalweg-ttl").parse().unwrap();
        assert!(left > 900.0 && left <= 1000.5, "{left}");
    }
    node.call("PUT", "/v1/kv/a/gone", &[("thalweg-ttl", "0.000001")], b"value").await.is(204);
    node.get("/v1/kv/a/gone").await.refused(404, "not_found", "fix");
    for bad in ["soon", "-1", "nan", ""] {
        node.call("PUT", "/v1/kv/a/key", &[("thalweg-ttl", bad)], b"x").await.refused(400, "bad_header", "fix");
    }
    node.call("PUT", "/v1/kv/a/key", &[("thalweg-ttl", "0")], b"x").await.refused(400, "bad_ttl", "fix");
    node.stop().await;
}

#[tokio::test]
async fn an_empty_value_is_a_value_and_an_empty_key_a_key() {
    let node = Node::start().await;
    node.put("/v1/kv/a/empty", b"").await.is(204);
    assert_eq!(node.get("/v1/kv/a/empty").await.is(200).body, b"");
    node.put("/v1/kv/a/", b"at the empty key").await.is(204);
    assert_eq!(node.get("/v1/kv/a/").await.is(200).body, b"at the empty key");
    node.stop().await;
}

#[tokio::test]
async fn keys_are_any_bytes() {
    let node = Node::start().await;
    let keys: [&[u8]; 6] = [b"\0", b"\xff\xfe", b"a/b", b"%2F", b"a b+c?d#e", "\u{e9}\u{1f30a}".as_bytes()];
    for key in keys {
        let target = format!("/v1/kv/bin/{}", parse::encode(key));
        node.put(&target, key).await.is(204);
        assert_eq!(node.get(&target).await.is(200).body, key);
    }
    assert_eq!(node.get("/v1/kv/bin/a/b").await.is(200).body, b"a/b", "a plain slash is the same as %2F");
    node.get("/v1/kv/bin/%2").await.refused(400, "bad_encoding", "fix");
    node.get("/v1/kv/%ff/k").await.refused(400, "bad_encoding", "fix");
    node.put("/v1/kv/..%2Fetc/k", b"").await.refused(400, "bad_name", "fix");
    node.stop().await;
}

#[tokio::test]
async fn conditions_hold_or_answer_412_and_change_nothing() {
    let node = Node::start().await;
    let put = |headers: Vec<(&'static str, String)>, body: &'static [u8]| {
        let node = &node;
        async move {
            let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            node.call("PUT", "/v1/kv/a/k", &headers, body).await
        }
    };
    put(vec![("if-match", "*".into())], b"0").await.refused(412, "condition_failed", "fix");
    let first = put(vec![("if-none-match", "*".into())], b"1").await.is(204);
    let error = put(vec![("if-none-match", "*".into())], b"2").await.refused(412, "condition_failed", "fix");
    assert_eq!(error["revision"].to_string(), first.header("thalweg-revision"));
    let second = put(vec![("if-match", first.header("etag").into())], b"3").await.is(204);
    put(vec![("if-match", first.header("etag").into())], b"4").await.refused(412, "condition_failed", "fix");
    put(vec![("if-match", "3".into())], b"5").await.refused(400, "bad_header", "fix");
    assert_eq!(node.get("/v1/kv/a/k").await.body, b"3");
    let stale = [("if-match", first.header("etag"))];
    node.call("DELETE", "/v1/kv/a/k", &stale, b"").await.refused(412, "condition_failed", "fix");
    node.call("GET", "/v1/kv/a/k", &stale, b"").await.refused(412, "condition_failed", "fix");
    let fresh = [("if-none-match", second.header("etag"))];
    assert_eq!(node.call("GET", "/v1/kv/a/k", &fresh, b"").await.is(304).body, b"");
    node.call("DELETE", "/v1/kv/a/k", &[("if-match", second.header("etag"))], b"").await.is(204);
    node.get("/v1/kv/a/k").await.is(404);
    node.stop().await;
}

#[tokio::test]
async fn a_request_names_its_level_and_the_ack_says_it() {
    let node = Node::start().await;
    for level in ["os", "interval", "disk", "quorum"] {
        let ack = node.call("PUT", "/v1/kv/a/k", &[("thalweg-durability", level)], b"v").await.is(204);
        assert_eq!(ack.header("thalweg-durability"), level);
    }
    let ack = node.call("PUT", "/v1/kv/a/k", &[("thalweg-durability", "none")], b"v").await.is(202);
    assert_eq!(ack.header("thalweg-durability"), "none");
    assert!(!ack.headers.contains_key("thalweg-revision"), "the outcome is not known yet");
    let none = [("thalweg-durability", "none"), ("if-none-match", "*")];
    node.call("PUT", "/v1/kv/a/k", &none, b"v").await.refused(400, "level_too_low", "fix");
    let bad = [("thalweg-durability", "paper")];
    node.call("PUT", "/v1/kv/a/k", &bad, b"v").await.refused(400, "bad_header", "fix");
    node.stop().await;
}

#[tokio::test]
async fn a_read_says_when_what_it_shows_is_not_yet_on_disk() {
    let node = Node::start().await;
    node.call("PUT", "/v1/kv/a/k", &[("thalweg-durability", "os")], b"v").await.is(204);
    assert_eq!(node.get("/v1/kv/a/k").await.header("thalweg-durability"), "os");
    assert_eq!(node.get("/v1/kv/a").await.header("thalweg-durability"), "os");
    assert_eq!(node.get("/v1/kv/a/other").await.is(404).header("thalweg-durability"), "os");
    node.db.sync().unwrap();
    assert_eq!(node.get("/v1/kv/a/k").await.header("thalweg-durability"), "disk");
    node.stop().await;
}

#[tokio::test]
async fn a_scan_covers_what_was_asked_for() {
    let node = Node::start().await;
    for key in ["a1", "a2", "b1", "b2", "c"] {
        node.put(&format!("/v1/kv/s/{key}"), key.as_bytes()).await.is(204);
    }
    node.delete("/v1/kv/s/b2").await.is(204);
    let keys = |query: &'static str| {
        let node = &node;
        async move {
            let reply = node.get(&format!("/v1/kv/s{query}")).await.is(200);
            let mut lines = reply.lines();
            let end = lines.pop().unwrap();
            assert_eq!(end["count"], json!(lines.len()));
            lines.iter().map(|line| line["key"].as_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
        }
    };
    assert_eq!(keys("").await, "a1 a2 b1 c");
    assert_eq!(keys("?prefix=a").await, "a1 a2");
    assert_eq!(keys("?start=a2&end=c").await, "a2 b1");
    assert_eq!(keys("?reverse").await, "c b1 a2 a1");
    assert_eq!(keys("?reverse=true&prefix=a&limit=1").await, "a2");
    assert_eq!(keys("?prefix=zz").await, "");
    let with_values = node.get("/v1/kv/s?limit=1").await.lines();
    assert_eq!(with_values[0]["value"], json!("a1"));
    assert!(with_values[0]["revision"].is_u64());
    let without = node.get("/v1/kv/s?limit=1&keys_only").await.lines();
    assert!(without[0].get("value").is_none());
    node.get("/v1/kv/s?limt=1").await.refused(400, "unknown_parameter", "fix");
    node.get("/v1/kv/s?limit=0").await.refused(400, "bad_parameter", "fix");
    node.get("/v1/kv/nowhere").await.refused(404, "no_such_keyspace", "fix");
    node.stop().await;
}

#[tokio::test]
async fn cursors_lead_through_everything_once_both_ways() {
    let node = Node::start().await;
    let mut expected: Vec<Vec<u8>> = (0..37_u8).map(|at| vec![at.wrapping_mul(7), 0xff, at]).collect();
    for key in &expected {
        node.put(&format!("/v1/kv/s/{}", parse::encode(key)), b"v").await.is(204);
    }
    expected.sort();
    for reverse in ["", "&reverse"] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let mut lines = node.get(&format!("/v1/kv/s?limit=5{reverse}{cursor}")).await.is(200).lines();
            let end = lines.pop().unwrap();
            seen.extend(lines.iter().map(|line| line["key_base64"].as_str().unwrap().to_owned()));
            match end["cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        use base64::Engine as _;
        let seen: Vec<Vec<u8>> =
            seen.iter().map(|key| base64::engine::general_purpose::STANDARD.decode(key).unwrap()).collect();
        let wanted: Vec<_> =
            if reverse.is_empty() { expected.clone() } else { expected.iter().rev().cloned().collect() };
        assert_eq!(seen, wanted);
    }
    node.stop().await;
}

#[tokio::test]
async fn a_long_scan_streams_in_chunks_and_shows_one_view() {
    let node = Node::start().await;
    let keyspace = node.db.with_durability(thalweg_types::Durability::Os).keyspace("big").unwrap();
    let value = vec![b'x'; 1000];
    for at in 0..5000_u32 {
        keyspace.put(format!("{at:06}").as_bytes(), &value).unwrap();
    }
    let mut client = node.open("/v1/kv/big", &[]).await;
    let mut body = client.chunk().await.unwrap();
    assert!(body.len() < 1 << 20, "a first page of {} bytes", body.len());
    for at in 0..5000_u32 {
        keyspace.delete(format!("{at:06}").as_bytes()).unwrap();
    }
    while let Some(chunk) = client.chunk().await {
        body.extend_from_slice(&chunk);
    }
    let lines = body.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).count();
    assert_eq!(lines, 5001, "the deletes came after the view");
    node.stop().await;
}

#[tokio::test]
async fn keyspaces_are_listed() {
    let node = Node::start().await;
    node.put("/v1/kv/one/k", b"").await.is(204);
    node.put("/v1/kv/two/k", b"").await.is(204);
    let listed = node.get("/v1/kv").await.is(200).json();
    let names: Vec<_> =
        listed["keyspaces"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"one") && names.contains(&"two"), "{names:?}");
    node.stop().await;
}

#[tokio::test]
async fn a_commit_spans_keyspaces_and_streams_or_does_nothing() {
    let node = Node::start().await;
    let commit = json!({
        "conditions": [{ "keyspace": "a", "key": "k", "expect": "absent" }],
        "writes": [
            { "op": "put", "keyspace": "a", "key": "k", "value": "v" },
            { "op": "put", "keyspace": "b", "key_base64": "/w==", "value_base64": "AAE=" },
            { "op": "append", "stream": "s", "expected": 0, "records": [{ "payload": "x" }, { "payload": "y", "key": "q" }] },
        ],
    });
    let done = node.post_json("/v1/commit", &commit).await.is(200).json();
    assert_eq!(done["appends"], json!([{ "stream": "s", "first": 0, "last": 1, "count": 2 }]));
    assert_eq!(done["durability"], json!("disk"));
    assert_eq!(node.get("/v1/kv/b/%FF").await.is(200).body, b"\0\x01");
    assert_eq!(node.get("/v1/kv/a/k").await.header("thalweg-revision"), done["revision"].to_string());
    let again = node.post_json("/v1/commit", &commit).await.refused(412, "condition_failed", "fix");
    assert_eq!(again["revision"], done["revision"]);
    let named = (again["condition"].as_u64(), again["keyspace"].as_str(), again["key"].as_str());
    assert_eq!(named, (Some(0), Some("a"), Some("k")), "the key in conflict is named");
    let read = json!({ "writes": [{ "op": "get", "keyspace": "a", "key": "k" }] });
    node.post_json("/v1/commit", &read).await.refused(400, "bad_json", "fix");
    let conflict = json!({ "writes": [
        { "op": "delete", "keyspace": "a", "key": "k" },
        { "op": "append", "stream": "s", "expected": 7, "records": [{ "payload": "z" }] },
    ] });
    let error = node.post_json("/v1/commit", &conflict).await.refused(409, "offset_conflict", "fix");
    assert_eq!(error["next"], json!(2));
    node.get("/v1/kv/a/k").await.is(200);
    let weak = json!({ "durability": "os", "writes": [{ "op": "delete", "keyspace": "a", "key": "k" }] });
    assert_eq!(node.post_json("/v1/commit", &weak).await.is(200).json()["durability"], json!("os"));
    for bad in [
        json!({ "writes": [] }),
        json!({ "writes": [{ "op": "put", "keyspace": "a", "key": "k" }] }),
        json!({ "writes": [{ "op": "erase", "keyspace": "a", "key": "k" }] }),
        json!({ "writes": [{ "op": "delete", "keyspace": "a", "key": "k", "key_base64": "aw==" }] }),
        json!({ "writes": [{ "op": "delete", "keyspace": "a", "key": "k" }], "durabilty": "os" }),
    ] {
        node.post_json("/v1/commit", &bad).await.refused(400, "bad_json", "fix");
    }
    let bad = json!({ "writes": [{ "op": "delete", "keyspace": "a", "key_base64": "?" }] });
    node.post_json("/v1/commit", &bad).await.refused(400, "bad_base64", "fix");
    node.stop().await;
}

#[tokio::test]
async fn a_delete_in_a_keyspace_that_does_not_exist_succeeds_and_creates_nothing() {
    let node = Node::start().await;
    node.put("/v1/kv/a/k", b"v").await.is(204);
    let deleted = node.delete("/v1/kv/none/k").await.is(204);
    assert_eq!((deleted.header("thalweg-durability"), deleted.headers.get("etag")), ("disk", None));
    let call = |headers: &'static [(&'static str, &'static str)]| node.call("DELETE", "/v1/kv/none/k", headers, b"");
    assert_eq!(call(&[("thalweg-durability", "none")]).await.is(202).header("thalweg-durability"), "none");
    call(&[("if-none-match", "*")]).await.is(204);
    call(&[("if-match", "*")]).await.refused(412, "condition_failed", "fix");
    call(&[("if-match", "\"1\"")]).await.refused(412, "condition_failed", "fix");
    let cleared = node.delete("/v1/kv/none?prefix=x").await.is(200).json();
    assert_eq!(cleared, serde_json::json!({"keys": 0, "revision": 1, "durability": "disk"}));
    let names = node.get("/v1/kv").await.is(200).json();
    assert_eq!(names["keyspaces"].as_array().unwrap().len(), 1, "{names}");
    // The same in a transaction.
    let operation = serde_json::json!({"op": "delete_prefix", "keyspace": "none", "prefix": "x"});
    let done = node.post_json("/v1/txn", &serde_json::json!({"then": [operation]})).await.is(200).json();
    assert_eq!(done["results"][0]["keys"], serde_json::json!(0));
    node.stop().await;
}
