//! Rows that commands read are fetched from the disk before the commands are proposed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::support::{
    Node,
    cold::{self, APPLY_READS, COLD_READS, KEYS, apart, is_cold, key},
    gated::{self, Gate},
    resp::{Resp, encode, serving},
};

/// Bytes of a value that stays in the log, because a row does not hold so many.
const LONG_BYTES: usize = 5_000;
const REQUESTS: &str = "http_in_use{bound=\"requests\"}";

/// Starts a node with one thread for Redis clients, whose keyspace is cold.
async fn cold_node(cache_bytes: u64) -> (Node, TempDir) {
    cold::node(cache_bytes, |config| {
        serving(config);
        config.resp_threads = 1;
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_writer_reads_no_file_for_a_pipeline_that_sets_cold_keys() {
    let (node, dir) = cold_node(64 << 20).await;
    let (mut good, mut client) = (Resp::connect(&node).await, Resp::connect(&node).await);
    assert_eq!(good.call("GET none").await, "$-1");
    let was_cold = is_cold(&dir.path().join("state"));
    let before = node.metric(APPLY_READS).await;
    let sets: Vec<String> = apart(100).map(|key| format!("SET {key} new")).collect();
    client.send(&sets.iter().flat_map(|set| encode(set)).collect::<Vec<_>>()).await;
    for number in 0..sets.len() {
        let begun = Instant::now();
        assert_eq!(good.call("GET none").await, "$-1");
        assert!(begun.elapsed() < Duration::from_secs(5), "a client of the thread waits");
        assert_eq!(client.reply().await, "+OK", "{number}");
    }
    assert_eq!(node.metric(APPLY_READS).await, before, "the writer has read a file");
    if was_cold {
        assert!(node.metric(COLD_READS).await >= 1.0);
    }
    assert_eq!(client.call("DBSIZE").await, format!(":{KEYS}"), "the counts are exact");
    for key in apart(100) {
        assert_eq!(client.call(&format!("GET {key}")).await, "$3 new");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn info_waits_for_cold_counts_elsewhere_and_in_the_order_of_commands() {
    let (node, dir) = cold_node(0).await;
    let (mut good, mut client) = (Resp::connect(&node).await, Resp::connect(&node).await);
    assert_eq!(good.call("GET none").await, "$-1");
    let was_cold = is_cold(&dir.path().join("state"));
    client.send(&["INFO keyspace", "INFO server", "PING"].map(encode).concat()).await;
    let counted = client.reply().await;
    assert!(counted.contains("# Keyspace db0:keys=20000,expires=0,avg_ttl=0"), "{counted}");
    assert!(client.reply().await.contains("redis_version"));
    assert_eq!(client.reply().await, "+PONG");
    if was_cold {
        assert!(node.metric(COLD_READS).await >= 1.0);
    }
    client.send(&["MULTI", "INFO keyspace", "EXEC"].map(encode).concat()).await;
    assert_eq!((client.reply().await, client.reply().await), ("+OK".to_owned(), "+QUEUED".to_owned()));
    assert!(client.reply().await.contains("# Keyspace"), "without a count that is not in memory");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_takes_effect_in_order_whether_its_rows_are_cold_or_leave_memory_again() {
    for cache_bytes in [0, 64 << 20] {
        let (node, _dir) = cold_node(cache_bytes).await;
        let (mut other, mut client) = (Resp::connect(&node).await, Resp::connect(&node).await);
        assert_eq!(other.call("PING").await, "+PONG");
        let [a, b, c, d] = [1, 5_001, 10_001, 15_001].map(key);
        let value = format!("$200 {}", "v".repeat(200));
        let steps = [
            (format!("SET {a} 1"), "+OK"),
            (format!("GET {a}"), "$1 1"),
            (format!("INCR {a}"), ":2"),
            (format!("SET {b} x NX"), "$-1"),
            (format!("GET {b}"), &*value),
            (format!("INCR {b}"), "-ERR value is not an integer or out of range"),
            (format!("HSET {c} f v"), "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            (format!("DEL {c} none"), ":1"),
            (format!("HSET {c} f v g w"), ":2"),
            (format!("HGET {c} g"), "$1 w"),
            (format!("APPEND {d} w"), ":201"),
        ];
        let sent: Vec<&str> = steps.iter().map(|(command, _)| &**command).collect();
        let expected: Vec<&str> = steps.iter().map(|(_, reply)| *reply).collect();
        assert_eq!(client.pipeline(&sent).await, expected, "cache of {cache_bytes} bytes");
        assert_eq!(client.call("DBSIZE").await, format!(":{KEYS}"));
        // A watched key that another client changes ends the transaction.
        let [watched, free] = [key(7_000), key(7_500)];
        for (is_changed, reply) in [(true, "*-1"), (false, "*1 +OK")] {
            assert_eq!(client.call(&format!("WATCH {watched}")).await, "+OK");
            if is_changed {
                assert_eq!(other.call(&format!("SET {watched} other")).await, "+OK");
            }
            let replies = client.pipeline(&["MULTI", &format!("SET {free} mine"), "EXEC"]).await;
            assert_eq!(replies, ["+OK", "+QUEUED", reply]);
        }
        assert_eq!(client.call(&format!("GET {free}")).await, "$4 mine");
        node.stop().await;
    }
}

/// Starts a node with one thread for Redis clients, on a disk that holds reads up. Rows are looked up before commands
/// are proposed, because the writer has read a value from the log.
async fn gated_node() -> (Node, Arc<Gate>) {
    let (node, gate) = gated::node_with(1 << 20, |config| {
        serving(config);
        config.resp_threads = 1;
    })
    .await;
    let keyspace = node.db.redis_keyspace("redis").unwrap();
    for key in [&b"cold"[..], b"opens"] {
        keyspace.put(key, &[b'x'; LONG_BYTES]).unwrap();
    }
    keyspace.put(b"small", b"v").unwrap();
    let mut client = Resp::connect(&node).await;
    let before = node.metric(APPLY_READS).await;
    assert_eq!(client.call("APPEND opens y").await, format!(":{}", LONG_BYTES + 1));
    assert!(node.metric(APPLY_READS).await > before, "the writer has read the value");
    gate.hold_reads(true);
    (node, gate)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_read_and_write_while_the_value_that_a_command_changes_is_read() {
    let (node, gate) = gated_node().await;
    let (mut good, mut client) = (Resp::connect(&node).await, Resp::connect(&node).await);
    assert_eq!(good.call("GET small").await, "$1 v");
    client.send(&["APPEND cold y", "GET small", "SET new 1", "GET new"].map(encode).concat()).await;
    gate.until_reads_wait(1).await;
    for number in 0..100 {
        assert_eq!(good.call("GET small").await, "$1 v");
        assert_eq!(good.call(&format!("SET small-{number} w")).await, "+OK", "nobody holds the writer up");
    }
    assert_eq!(good.call("EXISTS new").await, ":0", "a part of the burst has run before the rest");
    assert_eq!(good.call("SET small 2").await, "+OK");
    gate.hold_reads(false);
    let appended = format!(":{}", LONG_BYTES + 1);
    for reply in [&*appended, "$1 2", "+OK", "$1 1"] {
        assert_eq!(client.reply().await, reply);
    }
    assert_eq!(node.metric(COLD_READS).await, 1.0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_while_its_rows_are_read_changes_nothing_and_holds_nothing() {
    let (node, gate) = gated_node().await;
    let (mut good, mut client) = (Resp::connect(&node).await, Resp::connect(&node).await);
    assert_eq!(good.call("GET small").await, "$1 v");
    client.send(&["APPEND cold y", "SET new 1"].map(encode).concat()).await;
    gate.until_reads_wait(1).await;
    assert_eq!(node.metric(REQUESTS).await, 1.0);
    client.reset();
    node.until(REQUESTS, 0.0).await;
    gate.hold_reads(false);
    gate.until_reads_wait(0).await;
    assert_eq!(good.call("EXISTS new").await, ":0");
    assert_eq!(good.call("STRLEN cold").await, format!(":{LONG_BYTES}"));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_executes_the_commands_whose_rows_are_read() {
    let (mut node, gate) = gated_node().await;
    let (mut idle, mut client) = (Resp::connect(&node).await, Resp::connect(&node).await);
    assert_eq!(idle.call("PING").await, "+PONG");
    client.send(&encode("APPEND cold y")).await;
    gate.until_reads_wait(1).await;
    node.signal_stop();
    assert_eq!(idle.rest().await, "", "the server is stopping");
    gate.hold_reads(false);
    assert_eq!(client.rest().await, format!(":{}", LONG_BYTES + 1));
    node.stopped().await.unwrap();
}
