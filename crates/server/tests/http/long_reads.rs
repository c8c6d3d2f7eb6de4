//! Reads that take longer than a connection's thread may spend on one client.

use thalweg_types::{command::CommitBuilder, limits::MAX_VALUE_BYTES};

use crate::support::Node;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_reads_return_what_short_ones_do() {
    let node = Node::with_large_segments(|_| ()).await;
    let keyspace = node.db.keyspace("default").unwrap();
    // Keys that a scan examines before it finds the first pair.
    for from in (0..20_000).step_by(1000) {
        let mut commit = CommitBuilder::new();
        for key in from..from + 1000 {
            commit.put(keyspace.id(), format!("hidden:{key:06}").as_bytes(), b"v").unwrap();
        }
        node.db.commit(&commit).unwrap();
    }
    keyspace.delete_prefix(b"hidden:").unwrap();
    for key in ["seen:1", "seen:2", "seen:3"] {
        keyspace.put(key.as_bytes(), key.as_bytes()).unwrap();
    }
    let page = node.get("/v1/kv/default?limit=2").await.is(200).lines();
    assert_eq!(page.iter().filter_map(|line| line["key"].as_str()).collect::<Vec<_>>(), ["seen:1", "seen:2"]);
    assert_eq!(page[2]["count"], 2);
    let cursor = page[2]["cursor"].as_str().unwrap();
    let rest = node.get(&format!("/v1/kv/default?limit=2&cursor={cursor}")).await.is(200).lines();
    assert_eq!((rest.len(), &rest[0]["key"], &rest[1]["count"]), (2, &"seen:3".into(), &1.into()));
    let range = node.get("/keys/range?limit=1").await.is(200).json();
    assert_eq!((&range["items"][0]["key"], &range["count"]), (&"seen:1".into(), &1.into()));
    // Values that take long to copy, and that stay in the log.
    keyspace.put(b"large", &vec![b'x'; MAX_VALUE_BYTES]).unwrap();
    for target in ["/v1/kv/default/large", "/v0/entity?id=large"] {
        let reply = node.get(target).await.is(200);
        assert_eq!((reply.body.len(), reply.header("thalweg-durability")), (MAX_VALUE_BYTES, "disk"));
    }
    assert_eq!(node.get("/keys/large").await.is(200).json()["value"].as_str().unwrap().len(), MAX_VALUE_BYTES);
    // A record of an append that takes long to read.
    let record = vec![b'y'; MAX_VALUE_BYTES - 16];
    node.call("POST", "/v1/streams/s/records", &[], &record).await.is(200);
    let records = node.get("/v1/streams/s/records?limit=1&max_bytes=100").await.is(200).lines();
    assert_eq!(records[0]["payload"].as_str().unwrap().len(), record.len());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_are_made_on_threads_for_long_reads() {
    let node = Node::start().await;
    node.put("/v1/kv/one/k", b"v").await.is(204);
    node.call("POST", "/v1/streams/s/records", &[], b"x").await.is(200);
    let names = node.get("/v1/keyspaces").await.is(200).json();
    assert!(names["keyspaces"].as_array().unwrap().iter().any(|keyspace| keyspace["name"] == "one"));
    assert_eq!(node.get("/v1/keyspaces/one").await.is(200).json()["stats"]["keys"], 1);
    node.get("/v1/streams/s/producers").await.is(200);
    node.get("/v1/keyspaces?none=1").await.refused(400, "unknown_parameter", "fix");
    node.stop().await;
}
