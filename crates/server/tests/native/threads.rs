//! Native connections share threads. The work of one must delay the others as little as possible.

use std::time::Duration;

use thalweg_server::config::Span;
use thalweg_types::{Durability, KeyspaceId, Revision, command::encode_put};
use thalweg_wire::{Get, Header, Kind, Reason, RemainingBytes, ServerFrame, Values};
use tokio::io::AsyncReadExt as _;

use crate::{
    expect,
    support::{Node, PATIENCE, native::Raw},
};

fn get(keyspace: KeyspaceId) -> Get<'static> {
    Get { keyspace, revision: Revision(0), values: Values::Include, key: RemainingBytes(b"k") }
}

/// Keeps one of the server's threads as busy as possible, until the task is aborted.
async fn flood(mut raw: Raw, keyspace: KeyspaceId) {
    loop {
        (1..=1000).for_each(|id| raw.put(id, &get(keyspace)));
        raw.flush().await;
        for id in 1..=1000 {
            expect!(raw, id, ServerFrame::Value(_) => ());
        }
    }
}

/// Waits until the server has closed the connection, and ignores its last frames.
async fn is_closed(raw: &mut Raw) {
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(PATIENCE, raw.stream.read_to_end(&mut rest)).await;
    // The connection may have ended with an error.
    let _ = closed.expect("closed in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_go_on_beside_whoever_keeps_the_thread_busy() {
    let node = Node::with(|config| {
        config.native_threads = 1;
        config.header_timeout = Span::seconds(1);
        config.body_timeout = Span::seconds(1);
        (config.idle_timeout, config.tail_keep_alive) = (Span::seconds(3), Span::seconds(1));
    })
    .await;
    let mut first = node.raw().await;
    let keyspace = first.keyspace("k").await;
    let (busy, mut half, mut silent) = (node.raw().await, node.raw().await, node.raw().await);
    let busy = tokio::spawn(flood(busy, keyspace));
    let mut nobody = node.dial().await;
    is_closed(&mut nobody).await;
    half.bytes(&Header { len: 1000, kind: Kind::Write as u16, fields: 0, id: 9 }.encode()).await;
    assert_eq!(half.says_goodbye().await.0, Reason::Protocol);
    assert_eq!(silent.says_goodbye().await.0, Reason::Silent);
    assert!(!busy.is_finished(), "it was served all the time");
    busy.abort();
    node.stop().await;
}

#[tokio::test]
async fn a_stop_is_heard_on_every_thread() {
    const CONNECTIONS: usize = 7;
    let mut node = Node::with(|config| config.native_threads = 3).await;
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(node.raw().await);
    }
    let keyspace = clients[0].keyspace("k").await;
    for raw in &mut clients {
        raw.send_command(1, Durability::Disk, |out| encode_put(out, keyspace, b"k", b"v").unwrap()).await;
        expect!(raw, 1, ServerFrame::Committed(_) => ());
        raw.send(2, &get(keyspace)).await;
        assert_eq!(expect!(raw, 2, ServerFrame::Value(value) => value.value.0.to_vec()), b"v");
    }
    node.signal_stop();
    for raw in &mut clients {
        assert_eq!(raw.says_goodbye().await.0, Reason::Stopping);
        raw.ends().await;
    }
    drop(clients);
    node.stopped().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_end_is_cut_when_the_drain_is_over() {
    let mut node = Node::with(|config| {
        config.native_threads = 2;
        config.drain_timeout = Span(Duration::from_millis(200));
        config.write_timeout = Span::seconds(60);
    })
    .await;
    let mut stuck = node.raw().await;
    let keyspace = stuck.keyspace("k").await;
    let value = vec![7; 64 * 1024];
    stuck.set(keyspace, b"k", &value).await;
    // The client requests more replies than sockets and outbox hold, and does not read them.
    (2..1000).for_each(|id| stuck.put(id, &get(keyspace)));
    stuck.flush().await;
    node.signal_stop();
    node.stopped().await.unwrap();
    is_closed(&mut stuck).await;
}
