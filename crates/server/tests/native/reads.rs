//! Every read of keys, keyspaces, streams, leases and the node over the native protocol.

use std::time::Duration;

use thalweg_types::{
    Durability, KeyspaceId, LeaseId, Offset, Revision, SpaceTime, StreamId,
    command::{KeyspaceConfig, KeyspaceHistory, encode_append, encode_create_keyspace, encode_grant_lease, encode_put},
};
use thalweg_wire::{
    Count, FindKeyspace, FindLease, FindOffset, FindStream, Get, Health, List, ListKeyspaces, ListLeases,
    ListProducers, ListStreams, MultiGet, Order, ReadStatus, RemainingBytes, Scan, ServerFrame, Values, VersionState,
    Versions,
};

use crate::{
    expect,
    support::{
        Node,
        native::{Raw, batch},
    },
};

fn scan(keyspace: KeyspaceId) -> Scan<'static> {
    Scan {
        keyspace,
        revision: Revision(0),
        limit: 0,
        max_bytes: 0,
        order: Order::Ascending,
        values: Values::Include,
        prefix: b"",
        start: None,
        end: None,
        cursor: b"",
    }
}

/// Returns all pages of a scan: the keys with the lengths of their values, and the number of pages.
async fn pages(raw: &mut Raw, wanted: Scan<'_>) -> (Vec<(Vec<u8>, usize)>, usize) {
    let (mut pairs, mut cursor, mut pages) = (Vec::new(), Vec::new(), 0);
    loop {
        raw.send(9, &Scan { cursor: &cursor, ..wanted.clone() }).await;
        let next = expect!(raw, 9, ServerFrame::Pairs(page) => {
            pairs.extend(page.pairs.iter().map(|pair| (pair.key.to_vec(), pair.value.len())));
            page.cursor.to_vec()
        });
        pages += 1;
        cursor = next;
        if cursor.is_empty() {
            return (pairs, pages);
        }
    }
}

#[tokio::test]
async fn keys_are_read_one_by_one_and_together() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let keyspace = raw.keyspace("k").await;
    raw.set(keyspace, b"a", b"value").await;
    let get = |values| Get { keyspace, revision: Revision(0), values, key: RemainingBytes(b"a") };
    raw.send(1, &get(Values::Omit)).await;
    let omitted = expect!(raw, 1, ServerFrame::Value(v) => (v.value.0.len(), v.value_bytes, v.remaining, v.lease));
    assert_eq!(omitted, (0, 5, u64::MAX, LeaseId(0)));
    raw.send(2, &Get { revision: Revision(1), ..get(Values::Include) }).await;
    assert_eq!(raw.fails(2).await, "no_history");
    let ask = |keys: &[&[u8]]| -> Vec<Vec<u8>> { keys.iter().map(|key| key.to_vec()).collect() };
    for count in [3, 500] {
        let mut keys = ask(&[b"a", b"none", b"a"]);
        keys.resize(count, b"none".to_vec());
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let multi = MultiGet { keyspace, revision: Revision(0), values: Values::Include, keys: List::Items(&keys) };
        raw.send(3, &multi).await;
        let entries = expect!(raw, 3, ServerFrame::Entries(found) => {
            found.entries.iter().map(|entry| (entry.revision != Revision(0), entry.value.to_vec())).collect::<Vec<_>>()
        });
        assert_eq!(entries.len(), count);
        assert_eq!(entries[0], (true, b"value".to_vec()));
        assert_eq!((&entries[1], &entries[2]), (&(false, Vec::new()), &entries[0]));
    }
    node.stop().await;
}

#[tokio::test]
async fn scans_go_on_with_cursors_within_what_the_client_takes() {
    let node = Node::start().await;
    let mut raw = node.raw_taking(65_536).await;
    let keyspace = raw.keyspace("k").await;
    let keys: Vec<_> = (0..300_u32).map(|n| format!("key-{n:04}").into_bytes()).collect();
    for key in &keys {
        raw.set(keyspace, key, &[7; 1000]).await;
    }
    let (all, count) = pages(&mut raw, scan(keyspace)).await;
    assert!(all.iter().map(|(key, len)| (key, *len)).eq(keys.iter().map(|key| (key, 1000))));
    assert!(count >= 5, "300 KB in pages of 64: {count}");
    let some = Scan { limit: 7, values: Values::Omit, prefix: b"key-00", start: Some(b"key-0010"), ..scan(keyspace) };
    let (ascending, count) = pages(&mut raw, some.clone()).await;
    assert!(ascending.iter().map(|(key, _)| key).eq(&keys[10..100]));
    assert_eq!((count, ascending[0].1), (13, 0));
    let some = Scan { order: Order::Descending, end: Some(b"key-0050"), ..some };
    let (mut descending, _) = pages(&mut raw, some.clone()).await;
    descending.reverse();
    assert!(descending.iter().map(|(key, _)| key).eq(&keys[10..50]));
    raw.send(1, &Scan { cursor: b"nonsense", ..some }).await;
    assert_eq!(raw.fails(1).await, "bad_cursor");
    raw.set(keyspace, b"large", &[7; 100_000]).await;
    raw.send(2, &Scan { prefix: b"large", ..scan(keyspace) }).await;
    assert_eq!(raw.fails(2).await, "result_too_large");
    raw.send(3, &Get { keyspace, revision: Revision(0), values: Values::Include, key: RemainingBytes(b"large") }).await;
    assert_eq!(raw.fails(3).await, "result_too_large");
    let many = [&b"key-0000"[..]; 100];
    let multi = MultiGet { keyspace, revision: Revision(0), values: Values::Include, keys: List::Items(&many) };
    raw.send(4, &multi).await;
    assert_eq!(raw.fails(4).await, "result_too_large");
    node.stop().await;
}

#[tokio::test]
async fn keyspaces_with_history_show_what_was() {
    let node = Node::start().await;
    let mut raw = node.raw_taking(65_536).await;
    let history = KeyspaceHistory { revisions: Some(100), age: None };
    let config = KeyspaceConfig { history, ..KeyspaceConfig::default() };
    raw.send_command(1, Durability::Os, |out| encode_create_keyspace(out, "h", &config).unwrap()).await;
    let keyspace = KeyspaceId(expect!(raw, 1, ServerFrame::Created(created) => created.id));
    let mut revisions = Vec::new();
    for n in 1..=20_u8 {
        raw.send_command(2, Durability::Os, |out| encode_put(out, keyspace, b"k", &[n; 10_000]).unwrap()).await;
        revisions.push(expect!(raw, 2, ServerFrame::Committed(done) => done.revision));
    }
    raw.send(3, &Get { keyspace, revision: revisions[4], values: Values::Include, key: RemainingBytes(b"k") }).await;
    assert_eq!(expect!(raw, 3, ServerFrame::Value(value) => value.value.0[0]), 5);
    // Each page is as large as the client permits, and continues after the previous one.
    let (mut seen, mut before) = (Vec::new(), Revision(0));
    loop {
        raw.send(4, &Versions { keyspace, before, limit: 20, key: RemainingBytes(b"k") }).await;
        before = expect!(raw, 4, ServerFrame::VersionList(list) => {
            seen.extend(list.versions.iter().map(|version| (version.state, version.revision, version.value[0])));
            list.next
        });
        if before == Revision(0) {
            break;
        }
    }
    assert!(seen.iter().map(|(_, revision, n)| (*revision, *n)).eq(revisions.into_iter().zip(1..=20).rev()));
    assert_eq!((seen[0].0, seen[1].0), (VersionState::Current, VersionState::Overwritten));
    node.stop().await;
}

#[tokio::test]
async fn what_there_is_is_found_and_listed() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let (mut keyspaces, mut streams) = (Vec::new(), Vec::new());
    for n in 0..5 {
        keyspaces.push(raw.keyspace(&format!("k{n}")).await);
        streams.push(raw.stream(&format!("s{n}")).await);
    }
    raw.set(keyspaces[2], b"key", b"value").await;
    raw.send(1, &FindKeyspace { count: Count::Skip, name: "k2" }).await;
    let found = expect!(raw, 1, ServerFrame::KeyspaceFound(found) => (found.keyspace.id, found.counts));
    assert_eq!(found, (keyspaces[2], None));
    raw.send(2, &FindKeyspace { count: Count::Estimate, name: "k2" }).await;
    let counts = expect!(raw, 2, ServerFrame::KeyspaceFound(found) => found.counts.unwrap());
    assert_eq!((counts.keys, counts.bytes, counts.exact), (1, 8, true));
    raw.send(3, &FindKeyspace { count: Count::Skip, name: "nothing" }).await;
    assert_eq!(raw.fails(3).await, "no_such_keyspace");

    let (mut listed, mut after) = (Vec::new(), KeyspaceId(0));
    loop {
        raw.send(4, &ListKeyspaces { after, limit: 2 }).await;
        let more = expect!(raw, 4, ServerFrame::KeyspaceList(list) => {
            listed.extend(list.keyspaces.iter().map(|keyspace| keyspace.id));
            list.more
        });
        after = *listed.last().unwrap();
        if !more {
            break;
        }
    }
    assert_eq!(listed, keyspaces);
    let (mut listed, mut after) = (Vec::new(), StreamId(0));
    loop {
        raw.send(5, &ListStreams { after, limit: 2 }).await;
        let more = expect!(raw, 5, ServerFrame::StreamList(list) => {
            listed.extend(list.streams.iter().map(|stream| (stream.id, stream.name.to_owned())));
            list.more
        });
        after = listed.last().unwrap().0;
        if !more {
            break;
        }
    }
    assert!(listed.iter().map(|(id, _)| id).eq(&streams));
    assert_eq!(listed[3].1, "s3");
    // A list with the maximum limit is read on another thread.
    raw.send(6, &ListStreams { after: StreamId(0), limit: u32::MAX }).await;
    assert_eq!(expect!(raw, 6, ServerFrame::StreamList(list) => (list.streams.len(), list.more)), (5, false));

    raw.append(streams[0], &[b"one", b"two"]).await;
    raw.send(7, &FindStream { name: "s0" }).await;
    let (id, next, last_time) = expect!(raw, 7, ServerFrame::StreamFound(found) => {
        (found.stream.id, found.stream.next, found.stream.last_time)
    });
    assert_eq!((id, next), (streams[0], Offset(2)));
    raw.send(8, &FindStream { name: "nothing" }).await;
    assert_eq!(raw.fails(8).await, "no_such_stream");
    for (time, offset) in [(SpaceTime(0), Offset(0)), (SpaceTime(last_time.0 + 1), Offset(2))] {
        raw.send(9, &FindOffset { stream: streams[0], time }).await;
        assert_eq!(expect!(raw, 9, ServerFrame::OffsetFound(found) => found.offset), offset);
    }
    raw.send(10, &FindOffset { stream: StreamId(999), time: SpaceTime(0) }).await;
    assert_eq!(raw.fails(10).await, "no_such_stream");
    node.stop().await;
}

#[tokio::test]
async fn producers_and_leases_are_shown() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let (keyspace, stream) = (raw.keyspace("k").await, raw.stream("s").await);
    raw.send_command(1, Durability::Os, |out| {
        thalweg_types::command::encode_open_producer(out, stream, "writer").unwrap();
    })
    .await;
    let epoch = expect!(raw, 1, ServerFrame::ProducerOpened(opened) => opened.epoch);
    for (name, count) in [("", 1), ("writer", 1), ("other", 0)] {
        raw.send(2, &ListProducers { stream, producer: name }).await;
        let found = expect!(raw, 2, ServerFrame::ProducerList(list) => {
            list.producers.iter().map(|producer| (producer.id.to_owned(), producer.epoch)).collect::<Vec<_>>()
        });
        assert_eq!(found, vec![("writer".to_owned(), epoch); count]);
    }
    raw.send_command(3, Durability::Os, |out| encode_grant_lease(out, None, Duration::from_secs(60)).unwrap()).await;
    let lease = expect!(raw, 3, ServerFrame::Granted(granted) => granted.lease);
    let mut commit = thalweg_types::command::CommitBuilder::new();
    commit.put_until(keyspace, b"key", b"v", thalweg_types::command::Deadline::Default, Some(lease)).unwrap();
    raw.send_command(4, Durability::Os, |out| commit.encode(out)).await;
    expect!(raw, 4, ServerFrame::Committed(_) => ());
    raw.send(5, &Get { keyspace, revision: Revision(0), values: Values::Include, key: RemainingBytes(b"key") }).await;
    let (of, remaining) = expect!(raw, 5, ServerFrame::Value(value) => (value.lease, value.remaining));
    assert_eq!(of, lease);
    assert!((1..=60_000_000).contains(&remaining), "{remaining}");
    raw.send(6, &FindLease { lease, limit: 0 }).await;
    let keys = expect!(raw, 6, ServerFrame::LeaseFound(found) => {
        assert_eq!((found.lease.id, found.lease.ttl, found.more), (lease, 60_000_000, false));
        found.keys.iter().map(|key| (key.keyspace.to_owned(), key.key.to_vec())).collect::<Vec<_>>()
    });
    assert_eq!(keys, [("k".to_owned(), b"key".to_vec())]);
    raw.send(7, &ListLeases { after: LeaseId(0), limit: 0 }).await;
    assert_eq!(expect!(raw, 7, ServerFrame::LeaseList(list) => (list.leases.len(), list.more)), (1, false));
    raw.send(8, &FindLease { lease: LeaseId(12345), limit: 0 }).await;
    assert_eq!(raw.fails(8).await, "no_such_lease");
    node.stop().await;
}

#[tokio::test]
async fn the_node_says_how_it_is() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let stream = raw.stream("s").await;
    raw.send_command(1, Durability::Disk, |out| encode_append(out, stream, None, &batch(&[b"x"]))).await;
    expect!(raw, 1, ServerFrame::Committed(_) => ());
    raw.send(2, &ReadStatus {}).await;
    let (health, figures) = expect!(raw, 2, ServerFrame::Status(status) => {
        assert_eq!((status.backend, status.reason), ("memory", ""));
        let figures = status.figures.iter().map(|figure| (figure.name.to_owned(), figure.value));
        (status.health, figures.collect::<std::collections::BTreeMap<_, _>>())
    });
    assert_eq!((health, figures["streams"], figures["native.connections"]), (Health::Good, 1, 1));
    assert!(figures["log.syncs"] >= 1, "{figures:?}");
    node.stop().await;
}
