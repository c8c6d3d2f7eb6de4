//! The simple APIs: `/v0/entity`, `/v0/entities`, `/keys`.

use serde_json::json;

use crate::support::Node;

#[tokio::test]
async fn entities_have_the_statuses_that_their_clients_expect() {
    let node = Node::start().await;
    node.get("/v0/entity?id=k").await.refused(404, "not_found", "fix");
    node.put("/v0/entity?id=k", b"\0value").await.is(201);
    assert_eq!(node.get("/v0/entity?id=k").await.is(200).body, b"\0value");
    node.put("/v0/entity?id=empty", b"").await.is(201);
    assert_eq!(node.get("/v0/entity?id=empty").await.is(200).body, b"");
    assert_eq!(node.delete("/v0/entity?id=k").await.is(202).body, b"");
    node.get("/v0/entity?id=k").await.is(404);
    node.delete("/v0/entity?id=k").await.is(202);
    for target in ["/v0/entity", "/v0/entity?id=", "/v0/entity?id", "/v0/entity?key=k"] {
        for method in ["GET", "PUT", "DELETE"] {
            node.call(method, target, &[], b"").await.is(400);
        }
    }
    for target in ["/v0", "/v0/", "/v0/unknown", "/v0/entity/k"] {
        node.get(target).await.refused(400, "unknown_route", "fix");
    }
    let refused = node.call("POST", "/v0/entity?id=k", &[], b"").await.is(405);
    assert!(refused.header("allow").contains("PUT"));
    node.stop().await;
}

#[tokio::test]
async fn a_range_of_entities_is_one_chunk_a_pair() {
    let node = Node::start().await;
    assert_eq!(node.get("/v0/entities?start=a").await.is(200).body, b"");
    for (key, value) in [("a", "1"), ("b", ""), ("c", "3\n3"), ("d", "4")] {
        node.put(&format!("/v0/entity?id={key}"), value.as_bytes()).await.is(201);
    }
    let range = node.get("/v0/entities?start=b&end=d").await.is(200);
    assert_eq!(range.header("transfer-encoding"), "chunked");
    assert_eq!(range.chunks, [b"b\n".to_vec(), b"c\n3\n3".to_vec()]);
    assert_eq!(node.get("/v0/entities?start=c").await.is(200).chunks.len(), 2);
    node.get("/v0/entities").await.is(400);
    node.get("/v0/entities?start=").await.is(400);
    node.get("/v0/entities?start=a&end=").await.is(400);
    node.stop().await;
}

#[tokio::test]
async fn a_long_range_of_entities_keeps_its_chunks() {
    let node = Node::start().await;
    let keyspace = node.db.with_durability(thalweg_types::Durability::Os).keyspace("default").unwrap();
    for at in 0..3000_u32 {
        keyspace.put(format!("{at:05}").as_bytes(), &[b'v'; 500]).unwrap();
    }
    let range = node.get("/v0/entities?start=0").await.is(200);
    assert_eq!(range.chunks.len(), 3000);
    assert!(range.chunks.iter().all(|chunk| chunk.len() == 5 + 1 + 500));
    node.stop().await;
}

#[tokio::test]
async fn keys_are_stored_read_and_removed_by_path_query_or_json() {
    let node = Node::start().await;
    node.get("/keys/a").await.refused(404, "not_found", "fix");
    let stored = node.put("/keys/a", b"1").await.is(200).json();
    assert_eq!((&stored["key"], &stored["durability"]), (&json!("a"), &json!("disk")));
    node.put("/keys?key=b%2Fc", b"2").await.is(200);
    let pair = [("content-type", "application/json")];
    node.call("PUT", "/keys", &pair, b"{\"key\":\"d\",\"value\":\"\"}").await.is(200);
    let got = node.get("/keys/b/c").await.is(200).json();
    assert_eq!((&got["key"], &got["value"]), (&json!("b/c"), &json!("2")));
    assert_eq!(node.get("/keys?key=d").await.is(200).json()["value"], json!(""));
    node.delete("/keys/a").await.is(200);
    node.get("/keys/a").await.refused(404, "not_found", "fix");
    node.get("/keys").await.refused(400, "missing_parameter", "fix");
    node.call("PUT", "/keys", &pair, b"{\"key\":\"d\"}").await.refused(400, "bad_json", "fix");
    node.call("PUT", "/keys", &[("content-type", "text/plain")], b"x").await.is(415);
    node.stop().await;
}

#[tokio::test]
async fn a_batch_is_stored_whole_and_a_range_skips_what_was_deleted() {
    let node = Node::start().await;
    assert_eq!(node.get("/keys/range").await.is(200).json()["items"], json!([]));
    let items = json!({ "items": [
        { "key": "a", "value": "1" }, { "key": "b", "value": "2" }, { "key_base64": "/w==", "value_base64": "/g==" },
    ] });
    assert_eq!(node.post_json("/keys/batch", &items).await.is(200).json()["count"], json!(3));
    node.post_json("/keys/batch", &json!([{ "key": "c", "value": "3" }])).await.is(200);
    node.delete("/keys/b").await.is(200);
    let range = node.get("/keys/range?start=a").await.is(200).json();
    let keys: Vec<_> = range["items"].as_array().unwrap().iter().map(|pair| pair["key"].clone()).collect();
    assert_eq!(keys, [json!("a"), json!("c"), json!(null)]);
    assert_eq!(range["items"][2]["value_base64"], json!("/g=="));
    let some = node.get("/keys/range?start=a&end=z&limit=1").await.is(200).json();
    assert_eq!((some["count"].as_u64(), some["cursor"].is_string()), (Some(1), true));
    for bad in [json!({ "items": [] }), json!([{ "key": "x" }]), json!({ "things": [] })] {
        node.post_json("/keys/batch", &bad).await.refused(400, "bad_json", "fix");
    }
    let (good, bad) = (json!({ "key": "new", "value": "1" }), json!({ "key": "x", "value_base64": "*" }));
    node.post_json("/keys/batch", &json!([good, bad])).await.refused(400, "bad_base64", "fix");
    node.get("/keys/new").await.is(404);
    node.stop().await;
}
