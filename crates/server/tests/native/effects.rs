//! Failures of requests that had, or may have had, an effect: publishes and fetches that do not wait to the end, and
//! replies that are larger than the client accepts.

use std::time::Duration;

use thalweg_types::{
    GroupId, Revision,
    command::{TransactionBuilder, groups::GroupConfig},
};
use thalweg_wire::{
    BatchWriter, Cancel, CancelMode, Checksum, Credit, Effect, Fetch, Fields, Get, Kind, Level, List, Permit, Policy,
    Publish, RemainingBytes, ServerFrame, ShortBytes, Subscribe, Values, Write,
};

use crate::{
    expect,
    groups::offsets,
    support::{Node, PATIENCE, gated, native::Raw},
};

/// Smallest limit on frames that a client may have.
const SMALL_FRAME: u32 = 65_536;
/// Size of a value or a record that does not fit into such a frame.
const LARGE: usize = 100_000;

/// Returns code and effect of the failure of a request.
async fn failure(raw: &mut Raw, id: u32) -> (String, Effect) {
    expect!(raw, id, ServerFrame::Failed(failed) => (failed.code.to_owned(), failed.effect))
}

/// Creates a stream with one record, and a group over it whose ack deadline is longer than a test takes.
fn group(node: &Node, record: &[u8]) -> GroupId {
    let stream = node.db.stream("jobs").unwrap();
    let mut batch = thalweg_types::record::RecordBatch::new();
    batch.push_payload(record).unwrap();
    stream.append(&batch).unwrap();
    let config = GroupConfig { ack_deadline: Duration::from_secs(3600), ..GroupConfig::default() };
    stream.create_group("workers", thalweg_engine::GroupStart::Beginning, &config).unwrap().0.info().unwrap().id
}

fn fetch(group: GroupId, wait: Duration) -> Fetch<'static> {
    let wait = wait.as_micros() as u64;
    Fetch { group, max_records: 10, max_bytes: 0, wait, level: Level(None), member: "m" }
}

/// Fetches the first record, and asserts that this is its first delivery.
async fn fetches_undelivered(raw: &mut Raw, group: GroupId) {
    raw.send(99, &fetch(group, PATIENCE)).await;
    assert_eq!(expect!(raw, 99, ServerFrame::Delivery(d) => offsets(&d.parts)), (vec![0], 1));
}

fn batch(payload: &[u8]) -> Vec<u8> {
    let mut writer = BatchWriter::new(b"a", b"").unwrap();
    writer.push_payload(payload).unwrap();
    writer.into_shared(Checksum::Without).unwrap().bytes.to_vec()
}

#[tokio::test]
async fn a_publish_whose_time_passes_while_it_waits_has_an_unknown_effect() {
    let node = Node::start().await;
    let (mut publisher, mut slow) = (node.raw().await, node.raw().await);
    let subscribe = Subscribe {
        policy: Policy::Block,
        queue_messages: 1,
        queue_bytes: 0,
        permit: Permit { messages: 0, bytes: u64::MAX },
        pattern: ShortBytes(b"a"),
        queue: ShortBytes(b""),
    };
    slow.ask(1, &subscribe, Kind::Subscribed).await;
    let (first, second) = (batch(b"first"), batch(b"second"));
    publisher.ask(1, &Publish { batches: List::Items(&[&first[..]]) }, Kind::Published).await;
    let soon = Fields { timeout_micros: Some(20_000), ..Fields::default() };
    publisher.send_with(2, &soon, &Publish { batches: List::Items(&[&second[..]]) }).await;
    assert_eq!(failure(&mut publisher, 2).await, ("timeout".to_owned(), Effect::Unknown));
    // It is published all the same.
    slow.send(1, &Credit { messages: 2, bytes: u64::MAX }).await;
    for wanted in [first, second] {
        assert_eq!(expect!(slow, 0, ServerFrame::Deliver(deliver) => deliver.batch.0.to_vec()), wanted);
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_that_is_cancelled_while_it_delivers_gives_its_records_back() {
    let (node, gate) = gated::node().await;
    let group = group(&node, b"job");
    let mut raw = node.raw().await;
    gate.hold_reads(true);
    raw.send(1, &fetch(group, Duration::ZERO)).await;
    // The record is delivered, and it is being read for the reply.
    gate.until_reads_wait(1).await;
    raw.send(1, &Cancel { mode: CancelMode::Now }).await;
    assert_eq!(failure(&mut raw, 1).await, ("cancelled".to_owned(), Effect::Unknown));
    gate.hold_reads(false);
    fetches_undelivered(&mut raw, group).await;
    node.stop().await;
}

#[tokio::test]
async fn a_fetch_that_is_cancelled_while_it_waits_has_no_effect() {
    let node = Node::start().await;
    let group = group(&node, b"job");
    let mut raw = node.raw().await;
    fetches_undelivered(&mut raw, group).await;
    raw.send(1, &fetch(group, PATIENCE)).await;
    raw.send(1, &Cancel { mode: CancelMode::Now }).await;
    assert_eq!(failure(&mut raw, 1).await, ("cancelled".to_owned(), Effect::Nothing));
    node.stop().await;
}

#[tokio::test]
async fn a_record_larger_than_the_frames_of_its_member_goes_back_to_the_group() {
    let node = Node::start().await;
    let group = group(&node, &[b'x'; LARGE]);
    let (mut small, mut large) = (node.raw_taking(SMALL_FRAME).await, node.raw().await);
    small.send(1, &fetch(group, Duration::ZERO)).await;
    assert_eq!(failure(&mut small, 1).await.0, "result_too_large");
    fetches_undelivered(&mut large, group).await;
    node.stop().await;
}

#[tokio::test]
async fn a_transaction_whose_reply_is_too_large_is_not_reported_as_without_effect() {
    let node = Node::start().await;
    let keyspace = node.db.keyspace("k").unwrap();
    keyspace.put(b"large", &[b'x'; LARGE]).unwrap();
    let mut transaction = TransactionBuilder::new();
    transaction.then().put(keyspace.id(), b"key", b"written").unwrap().get(keyspace.id(), b"large").unwrap();
    let mut command = Vec::new();
    transaction.encode(&mut command).unwrap();
    let mut raw = node.raw_taking(SMALL_FRAME).await;
    raw.send(1, &Write { level: Level(None), command: RemainingBytes(&command) }).await;
    let (code, effect, message) = expect!(raw, 1, ServerFrame::Failed(failed) => {
        (failed.code.to_owned(), failed.effect, failed.message.to_owned())
    });
    assert_eq!((code.as_str(), effect), ("result_too_large", Effect::Unknown), "{message}");
    assert!(message.contains("was carried out"), "{message}");
    let (revision, values, key) = (Revision(0), Values::Include, RemainingBytes(b"key"));
    raw.send(2, &Get { keyspace: keyspace.id(), revision, values, key }).await;
    expect!(raw, 2, ServerFrame::Value(found) => assert_eq!(found.value.0, b"written"));
    node.stop().await;
}
