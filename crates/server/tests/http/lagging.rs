//! Writes by name on a member whose state does not show yet that the object was deleted and created again.

use thalweg_types::command::{
    KeyspaceConfig, StreamConfig, encode_create_keyspace, encode_create_stream, encode_delete_stream,
    encode_drop_keyspace,
};

use crate::support::{Node, Reply, lagging::Lagging};

/// Drops the keyspace `k` on the other nodes, and creates it again if `is_created`.
fn drop_elsewhere(member: &Lagging, is_created: bool) {
    let old = member.node.db.find_keyspace("k").expect("the keyspace exists").id();
    member.elsewhere(|out| {
        encode_drop_keyspace(out, old);
        Ok(())
    });
    if is_created {
        member.elsewhere(|out| encode_create_keyspace(out, "k", &KeyspaceConfig::default()));
    }
}

async fn value(node: &Node) -> Reply {
    node.call("GET", "/v1/kv/k/a", &[("thalweg-read", "stale")], b"").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_is_stored_in_the_keyspace_that_has_the_name_now() {
    let member = Lagging::start(|_| ()).await;
    let node = &member.node;
    for is_created in [true, false] {
        for headers in [&[][..], &[("if-none-match", "*")], &[("thalweg-ttl", "60")]] {
            node.put("/v1/kv/k/a", b"old").await.is(204);
            drop_elsewhere(&member, is_created);
            let before = member.cluster.begun();
            node.call("PUT", "/v1/kv/k/a", headers, b"new").await.is(204);
            assert!(member.cluster.begun() > before, "the second lookup has a barrier");
            assert_eq!(value(node).await.is(200).body, b"new");
        }
    }
    // The entity API has a keyspace of its own.
    node.call("PUT", "/v0/entity?id=a", &[], b"old").await.is(201);
    let old = node.db.find_keyspace("default").unwrap().id();
    member.elsewhere(|out| {
        encode_drop_keyspace(out, old);
        Ok(())
    });
    node.call("PUT", "/v0/entity?id=a", &[], b"new").await.is(201);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_deleted_in_the_keyspace_that_has_the_name_now() {
    let member = Lagging::start(|_| ()).await;
    let node = &member.node;
    for is_created in [true, false] {
        node.put("/v1/kv/k/a", b"old").await.is(204);
        drop_elsewhere(&member, is_created);
        node.delete("/v1/kv/k/a").await.is(204);
        value(node).await.is(404);
    }
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_appended_to_the_stream_that_has_the_name_now() {
    let member = Lagging::start(|_| ()).await;
    let node = &member.node;
    for is_created in [true, false] {
        node.call("POST", "/v1/streams/s/records", &[], b"old").await.is(200);
        let old = node.db.find_stream("s").unwrap().id();
        member.elsewhere(|out| {
            encode_delete_stream(out, old);
            Ok(())
        });
        if is_created {
            member.elsewhere(|out| encode_create_stream(out, "s", &StreamConfig::default()));
        }
        let appended = node.call("POST", "/v1/streams/s/records", &[], b"new").await.is(200).json();
        assert_eq!((&appended["first"], &appended["count"]), (&0.into(), &1.into()));
    }
    member.stop().await;
}
