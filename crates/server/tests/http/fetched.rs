//! Rows that transactions read are fetched from the disk before the transactions are proposed.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::{
    Client, Node,
    cold::{self, APPLY_READS, COLD_READS, apart, is_cold},
    gated::{self, Gate},
};

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];
/// Length of a value that stays in the log, because a row does not hold so many bytes.
const LONG_BYTES: usize = 5_000;
const REQUESTS: &str = "http_in_use{bound=\"requests\"}";

async fn send(client: &mut Client, body: &Value) {
    client.send("POST", "/v1/txn", JSON, body.to_string().as_bytes()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_writer_reads_no_file_for_a_transaction_over_cold_keys() {
    let (node, dir) = cold::node(64 << 20, |_| ()).await;
    let was_cold = is_cold(&dir.path().join("state"));
    let before = node.metric(APPLY_READS).await;
    let keys: Vec<String> = apart(60).collect();
    let (checked, written) = keys.split_at(30);
    let condition = |key: &String| json!({"keyspace": "redis", "key": key, "expect": "present"});
    let put = |key: &String| json!({"op": "put", "keyspace": "redis", "key": key, "value": "new"});
    let body = json!({
        "conditions": checked.iter().map(condition).collect::<Vec<_>>(),
        "then": written.iter().map(put).collect::<Vec<_>>(),
    });
    assert_eq!(node.post_json("/v1/txn", &body).await.is(200).json()["succeeded"], json!(true));
    assert_eq!(node.metric(APPLY_READS).await, before, "the writer has read a file");
    if was_cold {
        assert!(node.metric(COLD_READS).await >= 1.0);
    }
    for key in written {
        assert_eq!(node.get(&format!("/v1/kv/redis/{key}")).await.is(200).body, b"new");
    }
    node.stop().await;
}

/// Starts a node on a disk that holds reads up. Rows are looked up before commands are proposed, because the writer has
/// read a value from the log.
async fn gated_node() -> (Node, Arc<Gate>) {
    let (node, gate) = gated::node().await;
    let keyspace = node.db.keyspace("default").unwrap();
    for key in [&b"cold"[..], b"opens"] {
        keyspace.put(key, &[b'x'; LONG_BYTES]).unwrap();
    }
    let before = node.metric(APPLY_READS).await;
    let opened = node.post_json("/v1/txn", &replace("opens")).await.is(200).json();
    assert_eq!(opened["succeeded"], json!(true));
    assert!(node.metric(APPLY_READS).await > before, "the writer has read the value");
    gate.hold_reads(true);
    (node, gate)
}

/// A transaction that replaces the long value of a key, and must read it before.
fn replace(key: &str) -> Value {
    let expect = json!({"value": "x".repeat(LONG_BYTES)});
    json!({
        "conditions": [{"keyspace": "default", "key": key, "expect": expect}],
        "then": [{"op": "put", "keyspace": "default", "key": key, "value": "y"}],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_write_while_the_rows_of_a_transaction_are_read() {
    let (node, gate) = gated_node().await;
    let mut client = node.connect().await;
    send(&mut client, &replace("cold")).await;
    gate.until_reads_wait(1).await;
    for number in 0..20 {
        node.put(&format!("/v1/kv/default/small-{number}"), b"w").await.is(204);
    }
    gate.hold_reads(false);
    assert_eq!(client.reply("POST").await.is(200).json()["succeeded"], json!(true));
    assert_eq!(node.get("/v1/kv/default/cold").await.is(200).body, b"y");
    assert_eq!(node.metric(COLD_READS).await, 1.0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_whose_client_goes_away_while_its_rows_are_read_changes_nothing() {
    let (node, gate) = gated_node().await;
    let mut client = node.connect().await;
    send(&mut client, &replace("cold")).await;
    gate.until_reads_wait(1).await;
    assert_eq!(node.metric(REQUESTS).await, 1.0);
    client.stream.set_zero_linger().unwrap();
    drop(client);
    node.until(REQUESTS, 0.0).await;
    gate.hold_reads(false);
    gate.until_reads_wait(0).await;
    node.put("/v1/kv/default/after", b"1").await.is(204);
    assert_eq!(node.get("/v1/kv/default/cold").await.is(200).body, [b'x'; LONG_BYTES]);
    node.stop().await;
}
