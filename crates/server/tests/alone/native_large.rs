//! The memory that a server holds for native clients that request a lot and do not read. Once they read, they must get
//! the correct replies.

use std::time::{Duration, Instant};

use thalweg_server::config::{ByteSize, Span};
use thalweg_types::{KeyspaceId, Offset, Revision, StreamId};
use thalweg_wire::{Get, List, MultiGet, Order, Position, Read, RemainingBytes, Scan, ServerFrame, Values};

use crate::{
    ALONE,
    clients::resident_bytes,
    support::{HELD, Node, native::Raw},
};

const MIB: usize = 1 << 20;
/// Size in bytes of a value, and of a record.
const LARGE: usize = 8 * MIB;
/// Smallest valid bound on reply bytes.
const BOUND: usize = 64 * MIB;
const CLIENTS: usize = 40;

/// Starts a node with three large values in keyspace `k` and three large records in stream `s`.
async fn node() -> (Node, KeyspaceId, StreamId) {
    let node = Node::with_segments(64 << 20, |config| {
        config.max_reply_bytes_in_flight = ByteSize(BOUND as u64);
        // The server must not cut the clients while the test observes them.
        config.write_timeout = Span(Duration::from_secs(300));
    })
    .await;
    let mut raw = node.raw().await;
    let (keyspace, stream) = (raw.keyspace("k").await, raw.stream("s").await);
    for n in 0..3_u8 {
        raw.set(keyspace, &[n], &vec![n; LARGE]).await;
        raw.append(stream, &[&vec![n; LARGE - 64]]).await;
    }
    (node, keyspace, stream)
}

/// Sends a request that depends on the id, with a reply of 8 or 24 MiB.
async fn ask(raw: &mut Raw, id: u32, keyspace: KeyspaceId, stream: StreamId) {
    let (revision, values) = (Revision(0), Values::Include);
    // Missing keys make the read long enough for another thread.
    let keys: Vec<&[u8]> = [&[0_u8][..], &[1], &[2]].into_iter().chain([&b"none"[..]; 200]).collect();
    let (prefix, start, end, cursor) = (&b""[..], None, None, &b""[..]);
    let (order, max_bytes) = (Order::Ascending, 30 << 20);
    match id % 4 {
        0 => raw.put(id, &Get { keyspace, revision, values, key: RemainingBytes(&[1]) }),
        1 => raw.put(id, &MultiGet { keyspace, revision, values, keys: List::Items(&keys) }),
        2 => raw.put(id, &Scan { keyspace, revision, limit: 0, max_bytes, order, values, prefix, start, end, cursor }),
        _ => raw.put(id, &Read { stream, from: Position::Offset { offset: Offset(0) }, max_records: 0, max_bytes }),
    }
    raw.flush().await;
}

/// Reads this number of replies. Returns the number of rejected requests.
async fn take(raw: &mut Raw, replies: usize) -> usize {
    let is = |bytes: &[u8], n: usize| bytes.len() == LARGE && bytes.iter().all(|byte| usize::from(*byte) == n);
    let mut refused = 0;
    for _ in 0..replies {
        let frame = raw.next().await;
        let envelope = ServerFrame::decode(frame.raw()).unwrap();
        match envelope.frame {
            ServerFrame::Failed(failed) => {
                assert_eq!(failed.code, "overloaded", "{}", failed.message);
                refused += 1;
            }
            ServerFrame::Value(value) => assert!(is(value.value.0, 1)),
            ServerFrame::Entries(found) => {
                assert_eq!(found.entries.len(), 203);
                found.entries.iter().take(3).enumerate().for_each(|(n, entry)| assert!(is(entry.value, n)));
            }
            ServerFrame::Pairs(page) => {
                assert_eq!(page.pairs.len(), 3);
                page.pairs.iter().enumerate().for_each(|(n, pair)| assert!(is(pair.value, n)));
            }
            ServerFrame::Records(page) => {
                // A page ends early at the bound of large reads.
                assert!((2..=3).contains(&page.runs.len()), "{}", page.runs.len());
                assert_eq!(page.next, Offset(page.runs.len() as u64));
                page.runs.iter().for_each(|run| assert!(run.records.len() > LARGE - 64));
            }
            other => panic!("{other:?}"),
        }
    }
    refused
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_replies_that_nobody_takes_are_bounded_together() {
    let _alone = ALONE.lock().await;
    let (node, keyspace, stream) = node().await;
    // Memory that the allocator keeps after one reply of each kind counts as memory before the test.
    let mut warm = node.raw().await;
    for id in 0..4 {
        ask(&mut warm, 4 + id, keyspace, stream).await;
        assert_eq!(take(&mut warm, 1).await, 0);
    }
    let before = resident_bytes();

    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut raw = node.raw().await;
        for id in 0..8 {
            ask(&mut raw, 4 + id, keyspace, stream).await;
        }
        clients.push(raw);
    }
    // Wait until the server stands still: the bytes held and the number of shed requests stay the same.
    let (begun, mut last, mut since) = (Instant::now(), (0.0, 0.0), Instant::now());
    let mut most = 0;
    while since.elapsed() < Duration::from_secs(1) {
        assert!(begun.elapsed() < Duration::from_secs(60));
        let now = (node.metric(HELD).await, node.metric("http_shed_total{bound=\"reply_bytes\"}").await);
        assert!(now.0 <= BOUND as f64, "{} bytes are held", now.0);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        most = most.max(resident_bytes().saturating_sub(before));
        // Looking again and again without a pause would keep the server from its work.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    eprintln!("{CLIENTS} clients that take nothing: {} MiB more at most, {last:?} held and shed", most / MIB);
    // In addition to the counted bytes, the server holds reads in progress, twice 64 MiB as `--explain` states, and the
    // allocator keeps memory, 40 to 103 MiB in measurements. Without a bound on reads in progress, it was 768 MiB.
    assert!(most < BOUND + 2 * 64 * MIB + 192 * MIB, "{} MiB", most / MIB);

    // Each request gets its reply, or an error that asks for a retry.
    let (mut refused, mut served) = (0, 0);
    for mut raw in clients {
        let none = take(&mut raw, 8).await;
        (refused, served) = (refused + none, served + 8 - none);
    }
    assert!(refused > 0 && served > 0, "{refused} refused, {served} served");
    node.until(HELD, 0.0).await;
    // Once there is room, requests succeed.
    for id in 0..4 {
        ask(&mut warm, 4 + id, keyspace, stream).await;
        assert_eq!(take(&mut warm, 1).await, 0);
    }
    node.until(HELD, 0.0).await;
    node.stop().await;
}
