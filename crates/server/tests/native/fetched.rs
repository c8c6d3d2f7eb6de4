//! Rows that writes read are fetched from the disk before the writes are proposed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use thalweg_types::{
    Action, Durability, KeyspaceId,
    command::{CommitBuilder, Expect, encode_put},
};
use thalweg_wire::{
    Batch, BatchWriter, Checksum, Kind, Level, List, Policy, Reason, RemainingBytes, ServerFrame, ShortBytes,
    Subscribe, WriteAndPublish, handshake::goodbye,
};

use crate::{
    expect,
    support::{
        Node, PATIENCE,
        cold::{self, APPLY_READS, COLD_READS, apart, is_cold},
        gated::{self, Gate},
        native::{Raw, UNLIMITED},
    },
};

/// Bytes of a value that stays in the log, because a row does not hold so many.
const LONG: [u8; 5_000] = [b'x'; 5_000];
/// Number of writes of a channel whose rows are read at a time.
const MAX_FETCHES: u32 = 32;
const REQUESTS: &str = "http_in_use{bound=\"requests\"}";
const BODY_BYTES: &str = "http_in_use{bound=\"body_bytes\"}";

/// Queues a put of a key with a short value.
fn put(raw: &mut Raw, id: u32, keyspace: KeyspaceId, key: &[u8], value: &[u8]) {
    raw.put_command(id, Durability::Os, |out| encode_put(out, keyspace, key, value).unwrap());
}

/// Encodes a commit that replaces the value [`LONG`] of a key, and must read it before.
fn replacement(keyspace: KeyspaceId, key: &[u8]) -> Vec<u8> {
    let (mut commit, mut command) = (CommitBuilder::new(), Vec::new());
    commit.expect(keyspace, key, Expect::Value(&LONG)).unwrap().put(keyspace, key, b"y").unwrap();
    commit.encode(&mut command);
    command
}

/// Queues a [`replacement`].
fn replace(raw: &mut Raw, id: u32, keyspace: KeyspaceId, key: &[u8]) {
    raw.put_command(id, Durability::Os, |out| out.extend_from_slice(&replacement(keyspace, key)));
}

/// Queues a [`replacement`], after which a message with this payload is published to the subject `s`.
fn replace_and_publish(raw: &mut Raw, id: u32, keyspace: KeyspaceId, key: &[u8], payload: &[u8]) {
    let (mut batch, command) = (BatchWriter::new(b"s", b"").unwrap(), replacement(keyspace, key));
    batch.push_payload(payload).unwrap();
    let batch = batch.into_shared(Checksum::Without).unwrap().bytes;
    let (level, batches) = (Level(Some(Durability::Os)), [&*batch]);
    raw.put(id, &WriteAndPublish { level, batches: List::Items(&batches), command: RemainingBytes(&command) });
}

/// Reads a key. Fails if a reply to another request arrives first.
/// Receives the replies to writes that are carried out, in any order.
async fn committed(raw: &mut Raw, ids: impl Iterator<Item = u32>) {
    let expected: Vec<u32> = ids.collect();
    let mut seen = Vec::new();
    for _ in &expected {
        let frame = raw.next().await;
        let envelope = ServerFrame::decode(frame.raw()).unwrap();
        assert!(matches!(envelope.frame, ServerFrame::Committed(_)), "{:?}", envelope.frame);
        seen.push(envelope.id);
    }
    seen.sort_unstable();
    assert_eq!(seen, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_writer_reads_no_file_for_pipelined_puts_of_cold_keys() {
    for cache_bytes in [0, 64 << 20] {
        let (node, dir) = cold::node(cache_bytes, |config| config.native_threads = 1).await;
        let keyspace = node.db.redis_keyspace("redis").unwrap().id();
        let (mut good, mut client) = (node.raw().await, node.raw().await);
        assert_eq!(good.get(keyspace, b"none").await, b"");
        let was_cold = is_cold(&dir.path().join("state"));
        let before = node.metric(APPLY_READS).await;
        for (id, key) in (1..).zip(apart(100)) {
            put(&mut client, id, keyspace, key.as_bytes(), b"new");
        }
        client.flush().await;
        for _ in 0..100 {
            let begun = Instant::now();
            assert_eq!(good.get(keyspace, b"none").await, b"");
            assert!(begun.elapsed() < Duration::from_secs(5), "a client of the thread waits");
        }
        committed(&mut client, 1..=100).await;
        if cache_bytes > 0 {
            assert_eq!(node.metric(APPLY_READS).await, before, "the writer has read a file");
        }
        if was_cold {
            assert!(node.metric(COLD_READS).await >= 1.0);
        }
        for key in apart(100) {
            assert_eq!(client.get(keyspace, key.as_bytes()).await, b"new");
        }
        node.stop().await;
    }
}

/// Starts a node with one thread for native clients, on a disk that holds reads up. Rows are looked up before commands
/// are proposed, because the writer has read a value from the log. The keys `cold-0` to `cold-49` have the value
/// [`LONG`].
async fn gated_node() -> (Node, Arc<Gate>, KeyspaceId) {
    let (node, gate) = gated::node_with(1 << 20, |config| config.native_threads = 1).await;
    let keyspace = node.db.keyspace("k").unwrap();
    for number in 0..50 {
        keyspace.put(format!("cold-{number}").as_bytes(), &LONG).unwrap();
    }
    keyspace.put(b"opens", &LONG).unwrap();
    keyspace.put(b"small", b"v").unwrap();
    let mut client = node.raw().await;
    let before = node.metric(APPLY_READS).await;
    replace(&mut client, 1, keyspace.id(), b"opens");
    client.flush().await;
    committed(&mut client, 1..=1).await;
    assert!(node.metric(APPLY_READS).await > before, "the writer has read the value");
    gate.hold_reads(true);
    (node, gate, keyspace.id())
}

/// Connects two clients, of which the first one was active just now, so that the other is not the only one.
async fn two_clients(node: &Node, keyspace: KeyspaceId) -> (Raw, Raw) {
    let (mut good, client) = (node.raw_from(2).await, node.raw().await);
    assert_eq!(good.get(keyspace, b"small").await, b"v");
    (good, client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_take_effect_in_order_and_others_go_on_while_rows_are_read() {
    let (node, gate, keyspace) = gated_node().await;
    let (mut good, mut client) = two_clients(&node, keyspace).await;
    replace(&mut client, 1, keyspace, b"cold-0");
    put(&mut client, 2, keyspace, b"small", b"mine");
    put(&mut client, 3, keyspace, b"new", b"1");
    client.flush().await;
    gate.until_reads_wait(1).await;
    assert_eq!(client.get(keyspace, b"small").await, b"v", "reads do not wait for the writes before them");
    for number in 0..100 {
        let key = format!("small-{number}");
        good.set(keyspace, key.as_bytes(), b"w").await;
        assert_eq!(good.get(keyspace, key.as_bytes()).await, b"w", "nobody holds the writer up");
    }
    good.set(keyspace, b"small", b"other").await;
    assert_eq!(good.get(keyspace, b"new").await, b"", "a write was proposed before an earlier one");
    gate.hold_reads(false);
    committed(&mut client, 1..=3).await;
    let keys: [(&[u8], &[u8]); 3] = [(b"cold-0", b"y"), (b"small", b"mine"), (b"new", b"1")];
    for (key, value) in keys {
        assert_eq!(good.get(keyspace, key).await, value);
    }
    assert_eq!(node.metric(COLD_READS).await, 1.0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_reads_rows_for_a_bounded_number_of_writes_at_a_time() {
    const WRITES: u32 = 50;
    let (node, gate, keyspace) = gated_node().await;
    let (mut good, mut client) = two_clients(&node, keyspace).await;
    for number in 0..WRITES {
        replace(&mut client, number + 1, keyspace, format!("cold-{number}").as_bytes());
    }
    client.flush().await;
    let reached = async {
        // The other client stays active, so that the thread reads nothing itself.
        while node.metric(REQUESTS).await != f64::from(MAX_FETCHES) {
            assert_eq!(good.get(keyspace, b"small").await, b"v");
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.expect("as many writes wait as may");
    for _ in 0..100 {
        assert_eq!(good.get(keyspace, b"small").await, b"v");
    }
    assert_eq!(node.metric(REQUESTS).await, f64::from(MAX_FETCHES));
    assert!(node.metric(BODY_BYTES).await > f64::from(MAX_FETCHES) * LONG.len() as f64);
    gate.hold_reads(false);
    committed(&mut client, 1..=WRITES).await;
    node.until(BODY_BYTES, 0.0).await;
    for number in 0..WRITES {
        assert_eq!(good.get(keyspace, format!("cold-{number}").as_bytes()).await, b"y");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_while_its_rows_are_read_changes_nothing_and_holds_nothing() {
    let (node, gate, keyspace) = gated_node().await;
    let (mut good, mut client) = two_clients(&node, keyspace).await;
    for number in 0..3 {
        replace(&mut client, number, keyspace, format!("cold-{number}").as_bytes());
    }
    put(&mut client, 3, keyspace, b"small", b"mine");
    client.flush().await;
    gate.until_reads_wait(3).await;
    assert_eq!(node.metric(REQUESTS).await, 4.0);
    assert!(node.metric(BODY_BYTES).await > 0.0);
    client.stream.set_zero_linger().unwrap();
    drop(client);
    node.until(REQUESTS, 0.0).await;
    node.until(BODY_BYTES, 0.0).await;
    gate.hold_reads(false);
    gate.until_reads_wait(0).await;
    good.set(keyspace, b"after", b"1").await;
    assert_eq!(good.get(keyspace, b"small").await, b"v");
    assert_eq!(good.get(keyspace, b"cold-0").await, LONG);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_published_after_the_rows_of_their_write_are_read_unless_the_client_goes_away() {
    let (node, gate, keyspace) = gated_node().await;
    let (mut subscriber, mut lost) = two_clients(&node, keyspace).await;
    let (pattern, queue) = (ShortBytes(b"s"), ShortBytes(b""));
    let permit = UNLIMITED;
    let subscribe = Subscribe { policy: Policy::DropNew, queue_messages: 0, queue_bytes: 0, permit, pattern, queue };
    subscriber.ask(1, &subscribe, Kind::Subscribed).await;
    replace_and_publish(&mut lost, 1, keyspace, b"cold-0", b"lost");
    lost.flush().await;
    gate.until_reads_wait(1).await;
    let mut kept = node.raw().await;
    replace_and_publish(&mut kept, 1, keyspace, b"cold-1", b"kept");
    kept.flush().await;
    gate.until_reads_wait(2).await;
    lost.stream.set_zero_linger().unwrap();
    drop(lost);
    node.until(REQUESTS, 1.0).await;
    gate.hold_reads(false);
    committed(&mut kept, 1..=1).await;
    let payloads = expect!(subscriber, 0, ServerFrame::Deliver(deliver) => {
        let batch = Batch::decode(deliver.batch.0).unwrap();
        batch.messages().map(|message| message.unwrap().payload.to_vec()).collect::<Vec<_>>()
    });
    assert_eq!(payloads, [b"kept"]);
    assert_eq!(kept.get(keyspace, b"cold-0").await, LONG);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_before_a_goodbye_are_carried_out_although_their_rows_were_not_read() {
    let (node, gate, keyspace) = gated_node().await;
    let (mut good, mut client) = two_clients(&node, keyspace).await;
    replace(&mut client, 0, keyspace, b"cold-0");
    put(&mut client, 0, keyspace, b"small", b"mine");
    client.flush().await;
    gate.until_reads_wait(1).await;
    client.send(0, &goodbye(Reason::Done, Action::Retry, "")).await;
    // The writer reads the value too.
    gate.until_reads_wait(2).await;
    gate.hold_reads(false);
    client.ends().await;
    good.set(keyspace, b"after", b"1").await;
    assert_eq!(good.get(keyspace, b"cold-0").await, b"y");
    assert_eq!(good.get(keyspace, b"small").await, b"mine");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_carries_out_the_writes_whose_rows_are_read() {
    let (mut node, gate, keyspace) = gated_node().await;
    let (mut idle, mut client) = two_clients(&node, keyspace).await;
    replace(&mut client, 1, keyspace, b"cold-0");
    client.flush().await;
    gate.until_reads_wait(1).await;
    node.signal_stop();
    assert_eq!(idle.says_goodbye().await.0, Reason::Stopping);
    gate.hold_reads(false);
    committed(&mut client, 1..=1).await;
    assert_eq!(client.says_goodbye().await.0, Reason::Stopping);
    node.stopped().await.unwrap();
}
