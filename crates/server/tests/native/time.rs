//! A write that waits for a disk without a response, over the native protocol.

use std::time::{Duration, Instant};

use thalweg_types::{Durability, KeyspaceId, Revision, command::encode_put};
use thalweg_wire::{Effect, Fields, Get, Kind, Level, Ping, RemainingBytes, ServerFrame, Values, Write};

use crate::{
    expect,
    support::{gated, native::Raw},
};

fn put(raw: &mut Raw, id: u32, timeout_micros: Option<u64>, keyspace: KeyspaceId, key: &[u8]) {
    let mut command = Vec::new();
    encode_put(&mut command, keyspace, key, b"v").unwrap();
    let fields = Fields { timeout_micros, ..Fields::default() };
    raw.put_with(id, &fields, &Write { level: Level(Some(Durability::Disk)), command: RemainingBytes(&command) });
}

#[tokio::test]
async fn a_durable_write_whose_time_is_up_may_have_happened() {
    let (node, gate) = gated::node().await;
    let (mut raw, mut other) = (node.raw().await, node.raw().await);
    let keyspace = raw.keyspace("k").await;
    // A channel that is alone would commit on the server's only thread, which the gate would stop.
    other.ask(0, &Ping { token: 1 }, Kind::Pong).await;
    gate.set(true);
    put(&mut raw, 1, Some(30_000), keyspace, b"a");
    raw.flush().await;
    let (code, effect) = expect!(raw, 1, ServerFrame::Failed(failed) => (failed.code.to_owned(), failed.effect));
    assert_eq!((code.as_str(), effect), ("timeout", Effect::Unknown));
    // The id is free again, the channel stays open, and the server shows only durable data.
    let get = Get { keyspace, revision: Revision(0), values: Values::Include, key: RemainingBytes(b"a") };
    raw.send(1, &get).await;
    assert_eq!(expect!(raw, 1, ServerFrame::Value(value) => value.revision), Revision(0));
    gate.set(false);
    put(&mut raw, 2, None, keyspace, b"b");
    raw.flush().await;
    expect!(raw, 2, ServerFrame::Committed(_) => ());
    raw.send(1, &get).await;
    assert_eq!(expect!(raw, 1, ServerFrame::Value(value) => value.value.0.to_vec()), b"v", "it did happen");
    node.stop().await;
}

#[tokio::test]
async fn a_channel_that_is_alone_hears_that_its_time_is_up() {
    let (node, gate) = gated::node().await;
    let mut raw = node.raw().await;
    let keyspace = raw.keyspace("k").await;
    // Wait until the channel has had the server to itself long enough to commit on its own thread.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        raw.ask(0, &Ping { token: 1 }, Kind::Pong).await;
    }
    gate.set(true);
    put(&mut raw, 1, Some(30_000), keyspace, b"a");
    raw.flush().await;
    let code = expect!(raw, 1, ServerFrame::Failed(failed) => failed.code.to_owned());
    assert_eq!(code, "timeout");
    gate.set(false);
    node.stop().await;
}
