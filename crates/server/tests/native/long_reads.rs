//! Reads that take longer than a serving thread may spend on one client.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use thalweg_engine::GroupStart;
use thalweg_types::{KeyspaceId, Offset, Revision, command::CommitBuilder, limits::MAX_VALUE_BYTES};
use thalweg_wire::{
    Cancel, CancelMode, Credit, Kind, Level, List, MultiGet, Order, Permit, Position, Push, Read, Release, Scan,
    ServerFrame, Tail, Values,
};

use crate::{
    expect,
    groups::offsets,
    support::{
        Node, gated,
        native::{UNLIMITED, get},
    },
};

/// Number of hidden keys at the beginning of the keyspace, which a scan examines before it finds the first pair.
const HIDDEN: usize = 40_000;

/// Bytes of a value that stays in the log, because a row does not hold so many.
const COLD_BYTES: usize = 5_000;

/// Starts a node with one thread for native clients, and with a keyspace of many hidden keys, followed by a few others.
async fn node() -> (Node, KeyspaceId) {
    let node = Node::with_large_segments(|config| config.native_threads = 1).await;
    let keyspace = node.db.keyspace("k").unwrap();
    for from in (0..HIDDEN).step_by(1000) {
        let mut commit = CommitBuilder::new();
        for key in from..from + 1000 {
            commit.put(keyspace.id(), format!("hidden:{key:06}").as_bytes(), b"v").unwrap();
        }
        node.db.commit(&commit).unwrap();
    }
    keyspace.delete_prefix(b"hidden:").unwrap();
    for key in ["seen:1", "seen:2", "seen:3"] {
        keyspace.put(key.as_bytes(), b"value").unwrap();
    }
    (node, keyspace.id())
}

fn scan(keyspace: KeyspaceId, limit: u32, cursor: &[u8]) -> Scan<'_> {
    let (order, values) = (Order::Ascending, Values::Include);
    Scan {
        keyspace,
        revision: Revision(0),
        limit,
        max_bytes: 0,
        order,
        values,
        prefix: b"",
        start: None,
        end: None,
        cursor,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_scans_do_not_keep_other_clients_of_the_thread_waiting() {
    const CLIENTS: usize = 8;
    const SCANS: u32 = 12;
    let (node, keyspace) = node().await;
    let mut good = node.raw().await;
    let answered = Arc::new(AtomicUsize::new(0));
    let mut greedy = Vec::new();
    for _ in 0..CLIENTS {
        let (mut raw, answered) = (node.raw_from(2).await, Arc::clone(&answered));
        // A scan that is refused while too many are in progress counts as answered.
        for id in 1..=SCANS {
            raw.put(id, &scan(keyspace, 1, b""));
        }
        raw.flush().await;
        greedy.push(tokio::spawn(async move {
            for _ in 1..=SCANS {
                raw.next().await;
                answered.fetch_add(1, SeqCst);
            }
        }));
    }
    for _ in 0..100 {
        assert_eq!(good.get(keyspace, b"seen:1").await.len(), 5);
    }
    let meanwhile = answered.load(SeqCst);
    assert!(meanwhile < CLIENTS * SCANS as usize, "all long scans came first");
    for client in greedy {
        client.await.unwrap();
    }
    node.stop().await;
}

/// Clients pipeline hundreds of scans, each too short for the threads for long reads. Another client of their thread
/// gets an answer after each slice of them, not after all that they have sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelined_scans_are_handled_in_slices() {
    const CLIENTS: usize = 8;
    const SCANS: u32 = 500;
    let (node, keyspace) = node().await;
    let mut good = node.raw().await;
    let answered = Arc::new(AtomicUsize::new(0));
    let mut greedy = Vec::new();
    for _ in 0..CLIENTS {
        let (mut raw, answered) = (node.raw_from(2).await, Arc::clone(&answered));
        let of_hidden_keys = Scan { prefix: b"hidden:001", ..scan(keyspace, 1, b"") };
        for id in 1..=SCANS {
            raw.put(id, &of_hidden_keys);
        }
        raw.flush().await;
        greedy.push(tokio::spawn(async move {
            for _ in 1..=SCANS {
                let frame = raw.next().await;
                let decoded = ServerFrame::decode(frame.raw()).unwrap().frame;
                assert!(matches!(decoded, ServerFrame::Pairs(page) if page.pairs.iter().count() == 0));
                answered.fetch_add(1, SeqCst);
            }
        }));
    }
    let mut gets = 0_usize;
    while answered.load(SeqCst) < CLIENTS * SCANS as usize {
        assert_eq!(good.get(keyspace, b"seen:1").await.len(), 5);
        gets += 1;
    }
    for client in greedy {
        client.await.unwrap();
    }
    assert!(gets >= 5 * CLIENTS, "{gets} requests while {} scans were handled", CLIENTS * SCANS as usize);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_reads_return_what_short_ones_do() {
    let (node, keyspace) = node().await;
    let mut raw = node.raw().await;
    raw.send(1, &scan(keyspace, 2, b"")).await;
    let cursor = expect!(raw, 1, ServerFrame::Pairs(page) => {
        let keys: Vec<_> = page.pairs.iter().map(|pair| pair.key.to_vec()).collect();
        assert_eq!(keys, [b"seen:1", b"seen:2"]);
        page.cursor.to_vec()
    });
    raw.send(1, &scan(keyspace, 2, &cursor)).await;
    let (keys, cursor) = expect!(raw, 1, ServerFrame::Pairs(page) => (page.pairs.iter().count(), page.cursor.to_vec()));
    assert_eq!((keys, cursor.len()), (1, 0));
    // Values that take long to copy, and that stay in the log.
    let large = vec![b'x'; MAX_VALUE_BYTES];
    node.db.keyspace("k").unwrap().put(b"large", &large).unwrap();
    assert_eq!(raw.get(keyspace, b"large").await.len(), MAX_VALUE_BYTES);
    let keys: [&[u8]; 2] = [b"large", b"seen:1"];
    raw.send(2, &MultiGet { keyspace, revision: Revision(0), values: Values::Include, keys: List::Items(&keys) }).await;
    let found = expect!(raw, 2, ServerFrame::Entries(found) => {
        found.entries.iter().map(|entry| entry.value.len()).collect::<Vec<_>>()
    });
    assert_eq!(found, [MAX_VALUE_BYTES, 5]);
    // A record at the end of a large append.
    let stream = raw.stream("s").await;
    let payloads = vec![&large[..1000]; 4000];
    raw.append(stream, &payloads).await;
    raw.send(3, &Read { stream, from: Position::Offset { offset: Offset(3999) }, max_records: 1, max_bytes: 1 }).await;
    let frame = raw.next().await;
    let frame = ServerFrame::decode(frame.raw()).unwrap();
    assert!(matches!(frame.frame, ServerFrame::Records(_)), "{:?}", Kind::Records);
    node.stop().await;
}

/// A client reads a value from the disk, and then one that is in memory. Both it and another client of the thread get
/// the second one meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_from_disk_do_not_keep_other_requests_waiting() {
    let (node, gate) = gated::node_with(1 << 20, |config| config.native_threads = 1).await;
    let keyspace = node.db.keyspace("k").unwrap();
    keyspace.put(b"cold", &[b'x'; COLD_BYTES]).unwrap();
    keyspace.put(b"small", b"value").unwrap();
    let keyspace = keyspace.id();
    gate.hold_reads(true);
    let (mut good, mut waiting) = (node.raw().await, node.raw().await);
    // The other client was active just now, so this one is not the only one.
    assert_eq!(good.get(keyspace, b"small").await.len(), 5);
    let keys: [&[u8]; 2] = [b"small", b"cold"];
    waiting.put(1, &get(keyspace, b"cold"));
    let many = MultiGet { keyspace, revision: Revision(0), values: Values::Include, keys: List::Items(&keys) };
    waiting.put(2, &many);
    waiting.send(3, &get(keyspace, b"small")).await;
    expect!(waiting, 3, ServerFrame::Value(found) => assert_eq!(found.value.0, b"value"));
    gate.until_reads_wait(2).await;
    for _ in 0..100 {
        assert_eq!(good.get(keyspace, b"small").await.len(), 5);
    }
    gate.hold_reads(false);
    let mut ids = Vec::new();
    for _ in 0..2 {
        let frame = waiting.next().await;
        ids.push(ServerFrame::decode(frame.raw()).unwrap().id);
    }
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    assert_eq!(waiting.get(keyspace, b"cold").await.len(), COLD_BYTES);
    assert_eq!(node.metric("reads_handed_over_total{kind=\"cold\"}").await, 2.0);
    node.stop().await;
}

/// A read and a tail that start at a time search the log for it, on the disk. Neither holds up another client of the
/// thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_by_time_on_disk_do_not_keep_other_requests_waiting() {
    let (node, gate) = gated::node_with(1 << 20, |config| config.native_threads = 1).await;
    let keyspace = node.db.keyspace("k").unwrap();
    keyspace.put(b"small", b"value").unwrap();
    let (keyspace, (time, start)) = (keyspace.id(), gated::compacted_stream(&node.db));
    let (mut good, mut waiting) = (node.raw().await, node.raw().await);
    let stream = waiting.stream("s").await;
    // The other client was active just now, so this one is not the only one.
    assert_eq!(good.get(keyspace, b"small").await.len(), 5);
    gate.hold_reads(true);
    let (from, no_credit) = (Position::Time { time }, Permit { messages: 0, bytes: 0 });
    waiting.put(1, &Read { stream, from: from.clone(), max_records: 1, max_bytes: 1000 });
    waiting.put(2, &Tail { stream, from: from.clone(), permit: no_credit });
    waiting.put(3, &Tail { stream, from: from.clone(), permit: UNLIMITED });
    waiting.send(4, &get(keyspace, b"small")).await;
    expect!(waiting, 4, ServerFrame::Value(found) => assert_eq!(found.value.0, b"value"));
    gate.until_reads_wait(3).await;
    assert_eq!(good.get(keyspace, b"small").await.len(), 5);
    // A tail that is cancelled before it has started is a refused request.
    waiting.send(3, &Cancel { mode: CancelMode::Drain }).await;
    assert_eq!(waiting.fails(3).await, "cancelled");
    gate.hold_reads(false);
    let mut seen = Vec::new();
    for _ in 0..2 {
        let frame = waiting.next().await;
        let envelope = ServerFrame::decode(frame.raw()).unwrap();
        match envelope.frame {
            ServerFrame::Records(page) => assert_eq!(page.runs.iter().next().unwrap().first, start),
            ServerFrame::Tailing(reply) => assert_eq!((reply.next, reply.high_watermark), (start, Offset(20))),
            other => panic!("{other:?} came"),
        }
        seen.push(envelope.id);
    }
    seen.sort_unstable();
    assert_eq!(seen, [1, 2]);
    waiting.send(2, &Credit { messages: 1, bytes: 1000 }).await;
    expect!(waiting, 2, ServerFrame::Tailed(page) => assert_eq!(page.runs.iter().next().unwrap().first, start));
    node.stop().await;
}

/// The record of a push is on the disk. Another client of the thread is answered meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_from_disk_do_not_keep_other_requests_waiting() {
    let (node, gate) = gated::node_with(1 << 20, |config| config.native_threads = 1).await;
    let keyspace = node.db.keyspace("k").unwrap();
    keyspace.put(b"small", b"value").unwrap();
    let (keyspace, stream) = (keyspace.id(), node.db.stream("s").unwrap());
    let mut batch = thalweg_types::record::RecordBatch::new();
    batch.push_payload(b"job").unwrap();
    stream.append(&batch).unwrap();
    let (group, _) = stream.create_group("g", GroupStart::Beginning, &Default::default()).unwrap();
    let (mut good, mut receiver) = (node.raw().await, node.raw().await);
    gate.hold_reads(true);
    let push = Push {
        group: group.info().unwrap().id,
        held_records: 1,
        held_bytes: 0,
        level: Level(None),
        release: Release::AtDeadline,
        permit: UNLIMITED,
        member: "m",
    };
    receiver.ask(1, &push, Kind::Pushing).await;
    gate.until_reads_wait(1).await;
    for _ in 0..10 {
        assert_eq!(good.get(keyspace, b"small").await.len(), 5);
    }
    gate.hold_reads(false);
    assert_eq!(expect!(receiver, 1, ServerFrame::Pushed(d) => offsets(&d.parts)), (vec![0], 1));
    node.stop().await;
}
