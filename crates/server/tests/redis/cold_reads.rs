//! Reads that wait for the disk, while other clients of the thread are answered.

use std::sync::Arc;

use crate::support::{
    Node,
    gated::{self, Gate},
    resp::{Resp, encode, serving},
};

/// Bytes of a cold value. A row does not hold so many, so the value stays in the log.
const COLD_BYTES: usize = 5_000;
/// Number of reads that one address has in progress at most: one thread is left to others.
const OF_ADDRESS: usize = 31;

/// Starts a node with one thread for Redis clients, on a disk that holds reads up.
async fn node() -> (Node, Arc<Gate>) {
    let (node, gate) = gated::node_with(1 << 20, |config| {
        serving(config);
        config.resp_threads = 1;
    })
    .await;
    let keyspace = node.db.keyspace("redis").unwrap();
    keyspace.put(b"cold", &[b'x'; COLD_BYTES]).unwrap();
    keyspace.put(b"small", b"v").unwrap();
    gate.hold_reads(true);
    (node, gate)
}

fn cold() -> String {
    format!("${COLD_BYTES} {}", "x".repeat(COLD_BYTES))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_read_what_is_in_memory_do_not_wait_for_one_that_reads_from_disk() {
    let (node, gate) = node().await;
    let mut good = Resp::connect(&node).await;
    assert_eq!(good.call("GET small").await, "$1 v");
    let mut waiting = Resp::connect(&node).await;
    let sent = ["GET cold", "GET small", "SET new 1", "GET new", "MGET small cold none", "PING"];
    waiting.send(&sent.iter().flat_map(|command| encode(command)).collect::<Vec<_>>()).await;
    gate.until_reads_wait(1).await;
    for _ in 0..100 {
        assert_eq!(good.call("GET small").await, "$1 v");
    }
    assert_eq!(good.call("EXISTS new").await, ":0", "a later command of the connection has run before the read");
    gate.hold_reads(false);
    let all = format!("*3 $1 v {} $-1", cold());
    for reply in [&*cold(), "$1 v", "+OK", "$1 1", &*all, "+PONG"] {
        assert_eq!(waiting.reply().await, reply);
    }
    assert_eq!(node.metric("reads_handed_over_total{kind=\"cold\"}").await, 1.0);
    assert!(node.metric("reads_handed_over_seconds_total{kind=\"cold\"}").await > 0.0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_and_watches_wait_for_the_disk_elsewhere() {
    let (node, gate) = node().await;
    let mut good = Resp::connect(&node).await;
    let mut waiting = Resp::connect(&node).await;
    waiting.send(&["MULTI", "GET small", "GET cold", "EXEC", "PING"].map(encode).concat()).await;
    for expected in ["+OK", "+QUEUED", "+QUEUED"] {
        assert_eq!(waiting.reply().await, expected);
    }
    gate.until_reads_wait(1).await;
    assert_eq!(good.call("GET small").await, "$1 v");
    gate.hold_reads(false);
    assert_eq!(waiting.reply().await, format!("*2 $1 v {}", cold()));
    assert_eq!(waiting.reply().await, "+PONG");
    node.stop().await;
}

/// A blocking read first looks up the newest entry of each stream whose id is `$`. A key with a string is rejected
/// without its value, whatever its length.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_of_another_type_does_not_wait_for_a_value_in_the_log() {
    let (node, gate) = node().await;
    let mut client = Resp::connect(&node).await;
    let commands = ["XREAD BLOCK 0 STREAMS cold $", "XADD cold * field value", "HSET cold field value", "PING"];
    client.send(&commands.map(encode).concat()).await;
    for _ in 0..3 {
        assert_eq!(client.reply().await, "-WRONGTYPE Operation against a key holding the wrong kind of value");
    }
    assert_eq!(client.reply().await, "+PONG");
    gate.hold_reads(false);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_client_of_a_thread_waits_on_the_thread() {
    let (node, gate) = node().await;
    let mut only = Resp::connect(&node).await;
    only.send(&encode("GET cold")).await;
    gate.until_reads_wait(1).await;
    gate.hold_reads(false);
    assert_eq!(only.reply().await, cold());
    assert_eq!(node.metric("reads_handed_over_total{kind=\"cold\"}").await, 0.0);
    node.stop().await;
}

/// A client that pipelines reads waits for the disk about as long as for one of them, also if it is the only client of
/// its thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_a_pipeline_wait_for_the_disk_together_and_are_answered_in_order() {
    const READS: usize = 6;
    for others in [0, 1] {
        let (node, gate) = node().await;
        gate.hold_reads(false);
        let keyspace = node.db.keyspace("redis").unwrap();
        for number in 0..READS {
            keyspace.put(format!("cold-{number}").as_bytes(), &[b'0' + number as u8; COLD_BYTES]).unwrap();
        }
        gate.hold_reads(true);
        let mut idle = Vec::new();
        for _ in 0..others {
            let mut other = Resp::connect(&node).await;
            assert_eq!(other.call("GET small").await, "$1 v");
            idle.push(other);
        }
        let mut client = Resp::connect(&node).await;
        let mut sent: Vec<String> = (0..READS).map(|number| format!("GET cold-{number}")).collect();
        sent.extend(["SET cold-1 new", "GET cold-1", "GET cold"].map(str::to_owned));
        client.send(&sent.iter().flat_map(|command| encode(command)).collect::<Vec<_>>()).await;
        gate.until_reads_wait(READS).await;
        gate.hold_reads(false);
        for number in 0..READS {
            assert_eq!(client.reply().await, format!("${COLD_BYTES} {}", number.to_string().repeat(COLD_BYTES)));
        }
        for reply in ["+OK", "$3 new", &*cold()] {
            assert_eq!(client.reply().await, reply);
        }
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_beyond_the_threads_wait_and_another_address_has_one_of_them() {
    const QUEUED: usize = 9;
    let (node, gate) = node().await;
    let mut good = Resp::connect_from(&node, 1).await;
    let mut greedy = Vec::new();
    for number in 1..=OF_ADDRESS + QUEUED {
        let mut client = Resp::connect_from(&node, 2).await;
        client.send(&encode("GET cold")).await;
        greedy.push(client);
        // The first ones have a thread before the others come.
        gate.until_reads_wait(number.min(OF_ADDRESS)).await;
    }
    node.until("reads_queued{kind=\"cold\"}", QUEUED as f64).await;
    let mut other = Resp::connect_from(&node, 3).await;
    other.send(&encode("GET cold")).await;
    gate.until_reads_wait(OF_ADDRESS + 1).await;
    // What needs no thread is answered, also to the address that has filled them.
    assert_eq!(good.call("GET small").await, "$1 v");
    assert_eq!(Resp::connect_from(&node, 2).await.call("GET small").await, "$1 v");
    // The last reads are in the queue. A client that goes away takes its read with it.
    greedy.drain(OF_ADDRESS + 2..).for_each(Resp::reset);
    node.until("reads_queued{kind=\"cold\"}", 2.0).await;
    gate.hold_reads(false);
    for client in greedy.iter_mut().chain([&mut other]) {
        assert_eq!(client.reply().await, cold());
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_answers_reads_that_wait_for_the_disk() {
    let (mut node, gate) = node().await;
    let (mut idle, mut waiting) = (Resp::connect(&node).await, Resp::connect(&node).await);
    assert_eq!(idle.call("PING").await, "+PONG");
    waiting.send(&encode("GET cold")).await;
    gate.until_reads_wait(1).await;
    node.signal_stop();
    assert_eq!(idle.rest().await, "", "the server is stopping");
    gate.hold_reads(false);
    assert_eq!(waiting.rest().await, cold());
    node.stopped().await.unwrap();
}
