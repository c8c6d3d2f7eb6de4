//! Consumer groups and watches over the native protocol.

use std::time::Duration;

use thalweg_engine::Database;
use thalweg_server::config::{ByteSize, Span};
use thalweg_types::{
    Attempt, Durability, GroupId, KeyspaceId, Offset, Revision, StreamId,
    command::{
        CommitBuilder, encode_delete, encode_drop_keyspace, encode_put,
        groups::{Settlement, encode_ack, encode_create_group, encode_delete_group, encode_seek},
    },
    record::Records,
};
use thalweg_wire::{
    Cancel, CancelMode, ChangeKind, Credit, DeliveryPart, Fetch, Fields, FindGroup, Kind, Level, List, ListGroups,
    Permit, Push, Release, ServerFrame, Watch, WatchKeys,
};

use crate::{
    expect,
    support::{
        HELD, HELD_BY_ONE_ADDRESS, Node, PATIENCE, config,
        native::{Raw, UNLIMITED},
        pause, small_options,
    },
};

pub(crate) async fn group(raw: &mut Raw, stream: StreamId, name: &str) -> GroupId {
    raw.send_command(u32::MAX, Durability::Os, |out| {
        encode_create_group(out, stream, name, Some(Offset(0)), &Default::default()).unwrap();
    })
    .await;
    GroupId(expect!(raw, u32::MAX, ServerFrame::Created(created) => created.id))
}

fn fetch(group: GroupId, max_records: u32, wait: Duration) -> Fetch<'static> {
    let level = Level(None);
    Fetch { group, max_records, max_bytes: 0, wait: wait.as_micros() as u64, level, member: "m" }
}

/// Returns the delivered offsets, and the highest delivery count.
pub(crate) fn offsets(parts: &List<'_, DeliveryPart<'_>>) -> (Vec<u64>, u32) {
    let mut found = Vec::new();
    for part in parts.iter() {
        for run in part.runs.iter() {
            assert_eq!(Records::new(run.records).filter(Result::is_ok).count(), run.count as usize);
            found.extend(run.first.0..run.first.0 + u64::from(run.count));
        }
    }
    (found, parts.iter().map(|part| part.deliveries).max().unwrap_or(0))
}

pub(crate) async fn ack(raw: &mut Raw, group: GroupId, attempt: Attempt) -> u32 {
    raw.send_command(u32::MAX, Durability::Os, |out| encode_ack(out, group, &[Settlement::all(attempt)]).unwrap())
        .await;
    expect!(raw, u32::MAX, ServerFrame::Settled(settled) => settled.settled)
}

#[tokio::test]
async fn an_error_names_the_group_and_not_its_id() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let stream = raw.stream("orders").await;
    let group = group(&mut raw, stream, "billing").await;
    let mut commit = CommitBuilder::new();
    commit.ack(group, &[Settlement::all(Attempt(77))]).unwrap();
    raw.send_command(1, Durability::Os, |out| commit.encode(out)).await;
    let message = expect!(raw, 1, ServerFrame::Failed(failed) => failed.message.to_owned());
    assert!(message.contains("attempt 77 of consumer group \"billing\""), "{message}");
    node.stop().await;
}

#[tokio::test]
async fn records_are_fetched_acked_and_described() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let stream = raw.stream("s").await;
    let group = group(&mut raw, stream, "g").await;
    raw.append(stream, &[b"a", b"b", b"c", b"d"]).await;
    raw.send(1, &fetch(group, 3, Duration::ZERO)).await;
    let (attempt, found) = expect!(raw, 1, ServerFrame::Delivery(d) => (d.attempt, offsets(&d.parts)));
    assert_eq!(found, (vec![0, 1, 2], 1));
    assert_eq!(ack(&mut raw, group, attempt).await, 3);
    raw.send(2, &FindGroup { stream, name: "g" }).await;
    let figures = expect!(raw, 2, ServerFrame::GroupFound(found) => {
        let group = found.group;
        (group.id, group.lag, group.acked, group.floor, group.stream_name.to_owned(), group.members.len())
    });
    assert_eq!(figures, (group, 1, 3, Offset(3), "s".to_owned(), 1));
    raw.send(3, &FindGroup { stream, name: "nothing" }).await;
    assert_eq!(raw.fails(3).await, "no_such_group");
    raw.send(4, &fetch(GroupId(999), 1, Duration::ZERO)).await;
    assert_eq!(raw.fails(4).await, "no_such_group");
    raw.send_command(5, Durability::Os, |out| encode_seek(out, group, Some(Offset(1)))).await;
    assert_eq!(expect!(raw, 5, ServerFrame::Sought(sought) => sought.cursor), Offset(1));
    // Lists all groups, and those of a stream, in pages.
    let other = raw.stream("other").await;
    let second = self::group(&mut raw, other, "g").await;
    let mut all = Vec::new();
    for (stream, wanted) in [(StreamId(0), vec![group, second]), (other, vec![second])] {
        let mut after = GroupId(0);
        loop {
            raw.send(6, &ListGroups { stream, after, limit: 1 }).await;
            let more = expect!(raw, 6, ServerFrame::GroupList(list) => {
                all.extend(list.groups.iter().map(|group| group.id));
                list.more
            });
            after = *all.last().unwrap();
            if !more {
                break;
            }
        }
        assert_eq!(std::mem::take(&mut all), wanted);
    }
    node.stop().await;
}

#[tokio::test]
async fn a_fetch_waits_is_cancelled_and_has_its_time() {
    let node = Node::start().await;
    let (mut raw, mut writer) = (node.raw().await, node.raw().await);
    let stream = raw.stream("s").await;
    let group = group(&mut raw, stream, "g").await;
    raw.send(1, &fetch(group, 10, Duration::ZERO)).await;
    assert_eq!(expect!(raw, 1, ServerFrame::Delivery(d) => (d.attempt, d.parts.len())), (Attempt(0), 0));
    // Other requests are answered while a fetch waits.
    raw.send(2, &fetch(group, 10, PATIENCE)).await;
    raw.ask(3, &fetch(group, 10, Duration::ZERO), Kind::Delivery).await;
    writer.append(stream, &[b"a"]).await;
    assert_eq!(expect!(raw, 2, ServerFrame::Delivery(d) => offsets(&d.parts).0), [0]);
    raw.send(4, &fetch(group, 10, PATIENCE)).await;
    raw.send(4, &Cancel { mode: CancelMode::Now }).await;
    assert_eq!(raw.fails(4).await, "cancelled");
    let soon = Fields { timeout_micros: Some(20_000), ..Fields::default() };
    raw.send_with(4, &soon, &fetch(group, 10, PATIENCE)).await;
    assert_eq!(raw.fails(4).await, "timeout");
    raw.send(5, &Cancel { mode: CancelMode::Now }).await;
    raw.send(5, &fetch(group, 10, Duration::from_millis(20))).await;
    assert_eq!(expect!(raw, 5, ServerFrame::Delivery(d) => d.attempt), Attempt(0), "nothing came within the wait");
    node.stop().await;
}

#[tokio::test]
async fn a_push_delivers_as_far_as_its_receiver_holds_and_permits() {
    let node = Node::start().await;
    let (mut raw, mut writer) = (node.raw().await, node.raw().await);
    let stream = raw.stream("s").await;
    let group = group(&mut raw, stream, "g").await;
    let payloads: Vec<_> = (0..20_u8).map(|n| vec![n]).collect();
    writer.append(stream, &payloads.iter().map(Vec::as_slice).collect::<Vec<_>>()).await;
    let push = Push {
        group,
        held_records: 4,
        held_bytes: 0,
        level: Level(None),
        release: Release::AtOnce,
        permit: Permit { messages: 10, bytes: u64::MAX },
        member: "m",
    };
    raw.send(1, &push).await;
    let bounds = expect!(raw, 1, ServerFrame::Pushing(pushing) => (pushing.held_records, pushing.held_bytes));
    assert_eq!(bounds, (4, 4 << 20));
    let mut seen = Vec::new();
    // At first, the number of unsettled records is the bound: acks, from any connection, bring more records.
    while seen.len() < 8 {
        let (attempt, found) = expect!(raw, 1, ServerFrame::Pushed(d) => (d.attempt, offsets(&d.parts).0));
        assert!(found.len() <= 4);
        seen.extend(found);
        ack(&mut writer, group, attempt).await;
    }
    // Then the permit is the bound: two more records, and acks bring no more.
    let (attempt, found) = expect!(raw, 1, ServerFrame::Pushed(d) => (d.attempt, offsets(&d.parts).0));
    assert_eq!(found.len(), 2);
    seen.extend(found);
    ack(&mut writer, group, attempt).await;
    raw.send(2, &FindGroup { stream, name: "g" }).await;
    assert_eq!(expect!(raw, 2, ServerFrame::GroupFound(found) => found.group.pending), 0, "nothing was delivered");
    raw.send(1, &Credit { messages: 13, bytes: u64::MAX }).await;
    let (_, found) = expect!(raw, 1, ServerFrame::Pushed(d) => (d.attempt, offsets(&d.parts).0));
    seen.extend(&found);
    assert_eq!(seen, (0..13).collect::<Vec<_>>());
    // After the end of the push, its unsettled records are delivered again immediately.
    raw.send(1, &Cancel { mode: CancelMode::Now }).await;
    assert_eq!(expect!(raw, 1, ServerFrame::Ended(end) => end.code.to_owned()), "cancelled");
    raw.send(3, &fetch(group, 3, PATIENCE)).await;
    assert_eq!(expect!(raw, 3, ServerFrame::Delivery(d) => offsets(&d.parts)), (found, 2));
    // The push ends at its limit, and at the end of the group.
    let fields = Fields { limit: Some(2), ..Fields::default() };
    raw.send_with(4, &fields, &Push { permit: UNLIMITED, ..push.clone() }).await;
    expect!(raw, 4, ServerFrame::Pushing(_) => ());
    assert_eq!(expect!(raw, 4, ServerFrame::Pushed(d) => offsets(&d.parts).0.len()), 2);
    assert_eq!(expect!(raw, 4, ServerFrame::Ended(end) => end.code.to_owned()), "limit_reached");
    let later = Push { permit: Permit { messages: 0, bytes: 0 }, ..push };
    raw.ask(5, &later, Kind::Pushing).await;
    writer.send_command(1, Durability::Os, |out| encode_delete_group(out, group)).await;
    expect!(writer, 1, ServerFrame::Done(_) => ());
    raw.send(5, &Credit { messages: 5, bytes: 5 }).await;
    assert_eq!(expect!(raw, 5, ServerFrame::Ended(end) => end.code.to_owned()), "no_such_group");
    node.stop().await;
}

#[tokio::test]
async fn a_push_that_is_drained_or_stopped_delivers_no_more_and_gives_back_what_it_holds() {
    let mut node = Node::start().await;
    let (mut raw, mut writer) = (node.raw().await, node.raw().await);
    let stream = raw.stream("s").await;
    let group = group(&mut raw, stream, "g").await;
    writer.append(stream, &[b"a", b"b"]).await;
    let push = Push {
        group,
        held_records: 1,
        held_bytes: 0,
        level: Level(None),
        release: Release::AtOnce,
        permit: UNLIMITED,
        member: "m",
    };
    raw.ask(1, &push, Kind::Pushing).await;
    assert_eq!(expect!(raw, 1, ServerFrame::Pushed(d) => offsets(&d.parts)), (vec![0], 1));
    // The receiver holds as many records as it may. The other record belongs to the group, and is not drained.
    raw.send(1, &Cancel { mode: CancelMode::Drain }).await;
    assert_eq!(expect!(raw, 1, ServerFrame::Ended(end) => end.code.to_owned()), "cancelled");
    raw.ask(2, &push, Kind::Pushing).await;
    assert_eq!(expect!(raw, 2, ServerFrame::Pushed(d) => offsets(&d.parts)), (vec![0], 2), "given back, and again");
    let db = node.db.clone();
    node.signal_stop();
    assert_eq!(expect!(raw, 2, ServerFrame::Ended(end) => end.code.to_owned()), "stopping");
    assert_eq!(raw.says_goodbye().await.0, thalweg_wire::Reason::Stopping);
    drop((raw, writer));
    node.stopped().await.unwrap();
    let info = db.stream_by_id(stream).find_group("g").unwrap().unwrap().info().unwrap();
    assert_eq!((info.in_flight, info.delivered), (0, 2), "{info:?}");
}

type Seen = (ChangeKind, Revision, Vec<u8>, Vec<u8>);

/// Reads changes until it has `count` of them. Returns them with the last `next`.
async fn changes(raw: &mut Raw, id: u32, count: usize) -> (Vec<Seen>, Revision) {
    let (mut seen, mut next) = (Vec::new(), Revision(0));
    while seen.len() < count {
        next = expect!(raw, id, ServerFrame::Changes(page) => {
            for change in page.changes.iter() {
                seen.push((change.kind, change.revision, change.key.to_vec(), change.value.to_vec()));
            }
            page.next
        });
    }
    (seen, next)
}

fn watch(keyspace: KeyspaceId, from: Revision, keys: WatchKeys<'_>) -> Watch<'_> {
    Watch { keyspace, from, permit: UNLIMITED, keys }
}

#[tokio::test]
async fn a_watch_tells_of_changes_past_and_to_come() {
    let node = Node::with(|config| config.tail_keep_alive = Span(Duration::from_millis(50))).await;
    let (mut raw, mut writer) = (node.raw().await, node.raw().await);
    let keyspace = raw.keyspace("k").await;
    let all = || WatchKeys::Prefix { prefix: b"" };
    raw.send(1, &watch(keyspace, Revision(0), all())).await;
    let begin = expect!(raw, 1, ServerFrame::Watching(watching) => watching.next);
    writer.set(keyspace, b"a", b"1").await;
    writer.send_command(1, Durability::Os, |out| encode_delete(out, keyspace, b"a").unwrap()).await;
    expect!(writer, 1, ServerFrame::Committed(_) => ());
    let (seen, next) = changes(&mut raw, 1, 2).await;
    assert_eq!(seen[0], (ChangeKind::Put, begin, b"a".to_vec(), b"1".to_vec()));
    assert_eq!((seen[1].0, next), (ChangeKind::Delete, Revision(begin.0 + 2)));
    // Watches past changes, of one key or a range, on a connection of its own.
    writer.set(keyspace, b"b", b"2").await;
    writer.set(keyspace, b"c", b"3").await;
    let mut other = node.raw().await;
    for (id, keys, wanted) in [
        (1, WatchKeys::Key { key: b"a" }, vec!["a", "a"]),
        (2, WatchKeys::Range { start: Some(b"b"), end: None }, vec!["b", "c"]),
        (3, WatchKeys::Range { start: None, end: Some(b"c") }, vec!["a", "a", "b"]),
    ] {
        other.send(id, &watch(keyspace, begin, keys)).await;
        assert_eq!(expect!(other, id, ServerFrame::Watching(watching) => watching.next), begin);
        let (seen, _) = changes(&mut other, id, wanted.len()).await;
        assert!(seen.iter().map(|(_, _, key, _)| &key[..]).eq(wanted.iter().map(|key| key.as_bytes())));
        other.send(id, &Cancel { mode: CancelMode::Now }).await;
        loop {
            let frame = other.next().await;
            match ServerFrame::decode(frame.raw()).unwrap().frame {
                // A frame without changes, which only reports progress, may arrive at any time.
                ServerFrame::Changes(page) => assert!(page.changes.is_empty()),
                ServerFrame::Ended(end) => break assert_eq!(end.code, "cancelled"),
                other => panic!("{other:?}"),
            }
        }
    }
    // Changes of another keyspace are not delivered, but progress is.
    let elsewhere = writer.keyspace("elsewhere").await;
    writer.set(elsewhere, b"x", b"y").await;
    let last = node.db.stats().applied_revision;
    let mut next = Revision(0);
    let mut told = 0;
    while next <= last {
        next = expect!(raw, 1, ServerFrame::Changes(page) => {
            told += page.changes.len();
            page.next
        });
    }
    assert_eq!(told, 2, "b and c");
    raw.send(2, &watch(keyspace, Revision(last.0 + 100), all())).await;
    assert_eq!(raw.fails(2).await, "beyond_end");
    raw.send(2, &watch(KeyspaceId(99), Revision(0), all())).await;
    assert_eq!(raw.fails(2).await, "no_such_keyspace");
    writer.send_command(2, Durability::Os, |out| encode_drop_keyspace(out, keyspace)).await;
    expect!(writer, 2, ServerFrame::Done(_) => ());
    loop {
        let frame = raw.next().await;
        match ServerFrame::decode(frame.raw()).unwrap().frame {
            ServerFrame::Changes(_) => {}
            ServerFrame::Ended(end) => break assert_eq!(end.code, "no_such_keyspace"),
            other => panic!("{other:?}"),
        }
    }
    node.stop().await;
}

#[tokio::test]
async fn a_watch_keeps_to_credit_limit_and_frame() {
    let node = Node::start().await;
    let mut writer = node.raw().await;
    let keyspace = writer.keyspace("k").await;
    let mut raw = node.raw_taking(65_536).await;
    let from = Revision(node.db.stats().applied_revision.0 + 1);
    // One commit that is larger than the client's maximum frame.
    let mut commit = CommitBuilder::new();
    for n in 0..20_u32 {
        commit.put(keyspace, format!("big-{n:02}").as_bytes(), &[7; 10_000]).unwrap();
    }
    writer.send_command(1, Durability::Os, |out| commit.encode(out)).await;
    expect!(writer, 1, ServerFrame::Committed(_) => ());
    let all = WatchKeys::Prefix { prefix: b"" };
    raw.ask(1, &watch(keyspace, from, all.clone()), Kind::Watching).await;
    let (mut seen, mut nexts) = (0, Vec::new());
    while seen < 20 {
        seen += expect!(raw, 1, ServerFrame::Changes(page) => {
            nexts.push(page.next);
            page.changes.len()
        });
    }
    assert!(nexts.len() >= 4, "{nexts:?}");
    assert!(nexts[..nexts.len() - 1].iter().all(|next| *next == from), "half a commit is not done with");
    assert!(nexts[nexts.len() - 1] > from);
    // The credit permits one change. Further changes need more credit.
    let permit = Permit { messages: 1, bytes: u64::MAX };
    raw.ask(2, &Watch { permit, ..watch(keyspace, Revision(0), all.clone()) }, Kind::Watching).await;
    for n in 0..3_u8 {
        writer.set(keyspace, b"one", &[n]).await;
        if n == 0 {
            // Both watches receive the change, in any order.
            let mut told = [0; 2];
            while told != [1, 1] {
                let frame = raw.next().await;
                let envelope = ServerFrame::decode(frame.raw()).unwrap();
                match envelope.frame {
                    ServerFrame::Changes(page) => told[envelope.id as usize - 1] += page.changes.len(),
                    other => panic!("{other:?}"),
                }
            }
        } else {
            // The other watch receives the change, and this one does not.
            assert_eq!(changes(&mut raw, 1, 1).await.0[0].3, [n]);
        }
    }
    raw.send(2, &Credit { messages: 100, bytes: u64::MAX }).await;
    let (seen, _) = changes(&mut raw, 2, 2).await;
    assert!(seen.iter().map(|(_, _, _, value)| value[0]).eq(1..3));
    // A limit ends a watch, also in the middle of a commit. A later watch then begins with the whole commit.
    let fields = Fields { limit: Some(5), ..Fields::default() };
    raw.send_with(3, &fields, &watch(keyspace, from, all)).await;
    expect!(raw, 3, ServerFrame::Watching(_) => ());
    assert_eq!(changes(&mut raw, 3, 5).await.0.len(), 5);
    let (code, next) = expect!(raw, 3, ServerFrame::Ended(end) => {
        (end.code.to_owned(), end.details.iter().next().map(|detail| detail.value))
    });
    assert_eq!((code.as_str(), next), ("limit_reached", Some(from.0)));
    node.stop().await;
}

/// A client that permits one change and then stops gets this one. Its watch keeps no segment of the log.
#[tokio::test]
async fn a_watch_without_credit_lets_the_log_go() {
    let mut config = config();
    (config.history_bytes, config.segment_bytes) = (ByteSize(4 << 20), ByteSize(1 << 20));
    let dir = tempfile::tempdir().unwrap();
    let node = Node::over(config.clone(), Database::open(dir.path(), small_options(&config)).unwrap()).await;
    let mut raw = node.raw().await;
    let keyspace = raw.keyspace("k").await;
    let begin = Revision(node.db.stats().applied_revision.0 + 1);
    let writer = node.db.find_keyspace("k").unwrap().with_durability(Durability::Os);
    let write = || (0..120).for_each(|_| _ = writer.put(b"x", &vec![b'x'; 100_000]).unwrap());
    // All of it is in the log before the watch begins, and the watch reads from there.
    write();
    let permit = Permit { messages: 1, bytes: u64::MAX };
    let all = WatchKeys::Prefix { prefix: b"" };
    raw.ask(1, &Watch { permit, ..watch(keyspace, begin, all) }, Kind::Watching).await;
    let (seen, next) = changes(&mut raw, 1, 1).await;
    assert_eq!((seen.len(), next), (1, Revision(begin.0 + 1)), "the credit permits one change");
    // The history floor rises above the segments that the watch has not read.
    write();
    let files_of_the_log_only = async {
        loop {
            node.db.flush().unwrap();
            node.db.maintain().unwrap();
            let log = node.db.stats().log;
            let files = std::fs::read_dir(dir.path().join("log")).unwrap().count() as u64;
            if log.segments <= 8 && files <= log.segments + log.spare_segments + 1 {
                break;
            }
            pause().await;
        }
    };
    tokio::time::timeout(PATIENCE, files_of_the_log_only).await.expect("no file belongs to a freed segment");
    raw.send(1, &Credit { messages: 2, bytes: u64::MAX }).await;
    loop {
        let frame = raw.next().await;
        match ServerFrame::decode(frame.raw()).unwrap().frame {
            ServerFrame::Changes(page) => assert!(page.changes.is_empty()),
            ServerFrame::Ended(end) => break assert_eq!(end.code, "compacted"),
            other => panic!("{other:?}"),
        }
    }
    node.stop().await;
}

#[tokio::test]
async fn a_client_that_ends_its_half_gets_what_is_under_way_and_waits_for_nothing() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let (keyspace, stream) = (raw.keyspace("k").await, raw.stream("s").await);
    let group = group(&mut raw, stream, "g").await;
    raw.put(1, &fetch(group, 10, Duration::from_secs(3600)));
    raw.send_command(2, Durability::Disk, |out| encode_put(out, keyspace, b"k", b"v").unwrap()).await;
    tokio::io::AsyncWriteExt::shutdown(&mut raw.stream).await.unwrap();
    let mut seen = [raw.next().await.header, raw.next().await.header].map(|header| (header.id, header.kind));
    seen.sort_unstable();
    assert_eq!(seen, [(1, thalweg_wire::Kind::Failed as u16), (2, thalweg_wire::Kind::Committed as u16)]);
    raw.ends().await;
    node.stop().await;
}

#[tokio::test]
async fn a_large_delivery_without_room_goes_back_to_its_group() {
    const LARGE: usize = 8 << 20;
    let node = Node::with_large_segments(|config| config.max_reply_bytes_in_flight = HELD_BY_ONE_ADDRESS).await;
    let mut raw = node.raw().await;
    let stream = raw.stream("s").await;
    let keyspace = raw.keyspace("k").await;
    raw.set(keyspace, b"large", &vec![b'x'; LARGE]).await;
    let group = group(&mut raw, stream, "g").await;
    raw.append(stream, &[b"small"]).await;
    raw.append(stream, &[&vec![b'x'; LARGE - 64]]).await;
    // Replies that their clients do not read take all the room.
    let greedy = node.fill_reply_room("/v1/kv/k/large").await;
    // A fetch delivers what is small. The large record alone is refused, and nothing is lost.
    let all = Fetch { max_bytes: 16 << 20, ..fetch(group, 10, Duration::ZERO) };
    raw.send(1, &all).await;
    let (first, found) = expect!(raw, 1, ServerFrame::Delivery(d) => (d.attempt, offsets(&d.parts)));
    assert_eq!(found, (vec![0], 1));
    for id in 2..=3 {
        raw.send(id, &all).await;
        assert_eq!(raw.fails(id).await, "overloaded");
    }
    assert!(node.metric(HELD).await <= f64::from(64 << 20));
    drop(greedy);
    node.until(HELD, 0.0).await;
    // The refused deliveries do not count.
    raw.send(4, &Fetch { wait: PATIENCE.as_micros() as u64, ..all }).await;
    let (second, found) = expect!(raw, 4, ServerFrame::Delivery(d) => (d.attempt, offsets(&d.parts)));
    assert_eq!(found, (vec![1], 1));
    assert_eq!((ack(&mut raw, group, first).await, ack(&mut raw, group, second).await), (1, 1));
    node.until(HELD, 0.0).await;
    node.stop().await;
}
