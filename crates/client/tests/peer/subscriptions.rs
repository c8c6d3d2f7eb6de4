//! Tails, watches, pushes and subjects against a scripted server, over lost connections.

use std::time::Duration;

use thalweg_client::{Delivered, Error, Lost, ProtocolError, SubscribeOptions, Watched, Window};
use thalweg_types::{
    Action, Attempt, Classified, Durability, GroupId, KeyspaceId, Offset, Revision, SpaceTime, StreamId,
    command::{KeyspaceConfig, StreamConfig, groups::GroupConfig},
    record::RecordBatch,
};
use thalweg_wire::{
    BatchWriter, Change, ChangeKind, Changes, Checksum, ClientFrame, Deliver, DeliveryPart, Dropped, Ended, Group,
    GroupFound, Keyspace, KeyspaceFound, Kind, List, Position, Pushed, Pushing, RecordRun, RemainingBytes, Stream,
    StreamFound, Subscribed, Tailed, Tailing, Watching, batch::SharedBatch,
};

use crate::peer::{Peer, connected};

const TIME: SpaceTime = SpaceTime(5);

fn stream_found() -> StreamFound {
    let config = StreamConfig::default();
    let (start, next) = (Offset(0), Offset(0));
    StreamFound { stream: Stream { id: StreamId(3), start, next, bytes: 0, last_time: TIME, config, name: "s".into() } }
}

fn batch(payloads: std::ops::Range<u64>) -> RecordBatch {
    let mut batch = RecordBatch::new();
    payloads.for_each(|payload| batch.push_payload(payload.to_string().as_bytes()).unwrap());
    batch
}

async fn send_records(peer: &mut Peer, id: u32, offsets: std::ops::Range<u64>) {
    let batch = batch(offsets.clone());
    let run = RecordRun { first: Offset(offsets.start), time: TIME, count: batch.count(), records: batch.bytes() };
    let tailed = Tailed {
        durability: Durability::Disk,
        next: Offset(offsets.end),
        high_watermark: Offset(99),
        runs: List::Items(&[run]),
    };
    peer.send(id, &tailed).await;
}

/// Returns the id and the position of the next tail request.
async fn tail_request(peer: &mut Peer) -> (u32, Position) {
    peer.request(|envelope| match &envelope.frame {
        ClientFrame::Tail(tail) => tail.from.clone(),
        other => panic!("{other:?}"),
    })
    .await
}

#[tokio::test]
async fn a_tail_goes_on_where_it_was() {
    let (server, client, mut peer) = connected().await;
    let stream = client.stream("s");
    let begun = tokio::spawn(async move { stream.tail(Position::Start {}).await });
    peer.answer(&stream_found()).await;
    let (id, from) = tail_request(&mut peer).await;
    assert_eq!(from, Position::Start {});
    peer.send(id, &Tailing { next: Offset(10), high_watermark: Offset(99) }).await;
    let mut tail = begun.await.unwrap().unwrap();
    send_records(&mut peer, id, 10..13).await;
    send_records(&mut peer, id, 13..14).await;
    for offset in 10..12_u64 {
        let record = tail.next().await.unwrap().unwrap();
        assert_eq!((record.offset, &record.payload[..]), (Offset(offset), offset.to_string().as_bytes()));
    }
    // The tail first returns the records that arrived before the loss, then it resumes behind them.
    drop(peer);
    let reading = tokio::spawn(async move {
        let mut offsets = Vec::new();
        while offsets.len() < 5 {
            offsets.push(tail.next().await.unwrap().unwrap().offset.0);
        }
        (tail, offsets)
    });
    let mut peer = server.accept().await;
    let (id, from) = tail_request(&mut peer).await;
    assert_eq!(from, Position::Offset { offset: Offset(14) });
    peer.send(id, &Tailing { next: Offset(14), high_watermark: Offset(99) }).await;
    send_records(&mut peer, id, 14..17).await;
    let (mut tail, offsets) = reading.await.unwrap();
    assert_eq!(offsets, [12, 13, 14, 15, 16]);
    assert_eq!(tail.position(), Position::Offset { offset: Offset(17) });

    // An end of class *retry* is like a lost connection. Other ends are reported.
    let ended = Ended { class: Action::Retry, code: "stopping", message: "stops", details: List::default() };
    peer.send(id, &ended).await;
    let reading = tokio::spawn(async move { (tail.next().await, tail) });
    let (id, from) = tail_request(&mut peer).await;
    assert_eq!(from, Position::Offset { offset: Offset(17) });
    peer.send(id, &Tailing { next: Offset(17), high_watermark: Offset(99) }).await;
    let ended = Ended { class: Action::Fix, code: "trimmed", message: "gone", details: List::default() };
    peer.send(id, &ended).await;
    let (error, tail) = reading.await.unwrap();
    assert!(error.unwrap_err().is("trimmed"));

    // Dropping a tail cancels it.
    drop(tail);
    let stream = client.stream("s");
    let begun = tokio::spawn(async move { stream.tail(Position::End {}).await });
    let (id, _) = tail_request(&mut peer).await;
    peer.send(id, &Tailing { next: Offset(17), high_watermark: Offset(99) }).await;
    drop(begun.await.unwrap().unwrap());
    let (cancelled, kind) = peer.request(|envelope| envelope.frame.kind()).await;
    assert_eq!((cancelled, kind), (id, Kind::Cancel));
}

#[tokio::test]
async fn credit_is_given_back_when_records_are_done_with() {
    let (_server, client, mut peer) = connected().await;
    let stream = client.stream("s");
    let window = Window { messages: 4, bytes: 1 << 20 };
    let begun = tokio::spawn(async move { stream.tail_with(Position::Start {}, window).await });
    peer.answer(&stream_found()).await;
    let (id, permit) = peer
        .request(|envelope| match &envelope.frame {
            ClientFrame::Tail(tail) => tail.permit.messages,
            other => panic!("{other:?}"),
        })
        .await;
    assert_eq!(permit, 4);
    peer.send(id, &Tailing { next: Offset(0), high_watermark: Offset(9) }).await;
    let mut tail = begun.await.unwrap().unwrap();
    send_records(&mut peer, id, 0..3).await;
    assert_eq!(tail.next_batch().await.unwrap().unwrap().len(), 3);
    // The application has not finished with these records before it requests more.
    assert!(tokio::time::timeout(Duration::from_millis(20), peer.next()).await.is_err());
    let more = tokio::spawn(async move { (tail.next_batch().await.unwrap().unwrap().len(), tail) });
    let (of, credit) = peer
        .request(|envelope| match &envelope.frame {
            ClientFrame::Credit(credit) => credit.messages,
            other => panic!("{other:?}"),
        })
        .await;
    assert_eq!((of, credit), (id, 7));
    send_records(&mut peer, id, 3..7).await;
    let (len, mut tail) = more.await.unwrap();
    assert_eq!(len, 4);

    // A server that exceeds its credit violates the protocol.
    send_records(&mut peer, id, 7..8).await;
    let (_, kind) = peer.request(|envelope| envelope.frame.kind()).await;
    assert_eq!(kind, Kind::Goodbye);
    let error = tail.next_batch().await.unwrap_err();
    assert!(matches!(error, Error::Lost { why: Lost::Protocol(ProtocolError::Route(_)), .. }), "{error}");
}

#[tokio::test]
async fn records_that_are_not_as_many_as_they_say_are_an_error() {
    let (_server, client, mut peer) = connected().await;
    let stream = client.stream("s");
    let begun = tokio::spawn(async move { stream.tail(Position::Start {}).await });
    peer.answer(&stream_found()).await;
    let (id, _) = tail_request(&mut peer).await;
    peer.send(id, &Tailing { next: Offset(0), high_watermark: Offset(9) }).await;
    let mut tail = begun.await.unwrap().unwrap();
    let batch = batch(0..2);
    let run = RecordRun { first: Offset(0), time: TIME, count: 3, records: batch.bytes() };
    let (durability, next) = (Durability::Disk, Offset(3));
    peer.send(id, &Tailed { durability, next, high_watermark: next, runs: List::Items(&[run]) }).await;
    let error = tail.next().await.unwrap_err();
    assert!(matches!(error, Error::Protocol(ProtocolError::Records { first: 0 })), "{error}");
}

fn change(revision: u64, key: &'static str) -> Change<'static> {
    let (revision, key) = (Revision(revision), key.as_bytes());
    Change { kind: ChangeKind::Put, revision, time: TIME, key, value: b"v" }
}

async fn send_changes(peer: &mut Peer, id: u32, next: u64, changes: &[Change<'_>]) {
    let (durability, next) = (Durability::Disk, Revision(next));
    peer.send(id, &Changes { durability, next, changes: List::Items(changes) }).await;
}

#[tokio::test]
async fn a_watch_goes_on_within_a_large_commit() {
    let (server, client, mut peer) = connected().await;
    let users = client.keyspace("users");
    let begun = tokio::spawn(async move { users.watch(Watched::Prefix(Vec::new()), Revision(0)).await });
    let id = peer.any().await;
    let (config, created) = (KeyspaceConfig::default(), TIME);
    let keyspace = Keyspace { id: KeyspaceId(5), created, config, name: "users".into() };
    peer.send(id, &KeyspaceFound { keyspace, counts: None }).await;
    let from = |envelope: &thalweg_wire::Envelope<'_, ClientFrame<'_>>| match &envelope.frame {
        ClientFrame::Watch(watch) => watch.from,
        other => panic!("{other:?}"),
    };
    let (id, asked) = peer.request(from).await;
    assert_eq!(asked, Revision(0));
    peer.send(id, &Watching { next: Revision(20) }).await;
    let mut watch = begun.await.unwrap().unwrap();
    assert_eq!(watch.position(), Revision(20));
    // One commit, and the first two frames of a large one.
    send_changes(&mut peer, id, 22, &[change(21, "a")]).await;
    send_changes(&mut peer, id, 25, &[change(25, "b"), change(25, "c")]).await;
    send_changes(&mut peer, id, 25, &[change(25, "d")]).await;
    let mut keys = Vec::new();
    for _ in 0..3 {
        let changes = watch.next().await.unwrap().unwrap().changes;
        keys.extend(changes.iter().map(|change| (change.revision.0, change.key.clone())));
    }
    drop(peer);
    let reading = tokio::spawn(async move {
        let mut keys = Vec::new();
        while keys.len() < 3 {
            let changes = watch.next().await.unwrap().unwrap().changes;
            keys.extend(changes.iter().map(|change| (change.revision.0, change.key.clone())));
        }
        (keys, watch)
    });
    let mut peer = server.accept().await;
    let (id, asked) = peer.request(from).await;
    assert_eq!(asked, Revision(25));
    peer.send(id, &Watching { next: Revision(25) }).await;
    // The commit again from its start, split into other frames than before.
    send_changes(&mut peer, id, 25, &[change(25, "b")]).await;
    send_changes(&mut peer, id, 26, &["c", "d", "e", "f"].map(|key| change(25, key))).await;
    send_changes(&mut peer, id, 27, &[change(26, "g")]).await;
    let (more, watch) = reading.await.unwrap();
    keys.extend(more);
    let keys: Vec<_> = keys.iter().map(|(revision, key)| (*revision, std::str::from_utf8(key).unwrap())).collect();
    assert_eq!(keys, [(21, "a"), (25, "b"), (25, "c"), (25, "d"), (25, "e"), (25, "f"), (26, "g")]);
    assert_eq!(watch.position(), Revision(27));
}

fn group_found() -> GroupFound {
    GroupFound {
        group: Group {
            id: GroupId(8),
            stream: StreamId(3),
            cursor: Offset(0),
            floor: Offset(0),
            lag: 0,
            pending: 0,
            in_flight: 0,
            parked: 0,
            dying: 0,
            delivered: 0,
            redelivered: 0,
            acked: 0,
            dead: 0,
            dropped: 0,
            config: GroupConfig::default(),
            name: "g".into(),
            stream_name: "s".into(),
            members: Vec::new(),
        },
    }
}

async fn send_pushed(peer: &mut Peer, id: u32, attempt: u64, offsets: std::ops::Range<u64>, deliveries: u32) {
    let batch = batch(offsets.clone());
    let run = RecordRun { first: Offset(offsets.start), time: TIME, count: batch.count(), records: batch.bytes() };
    let runs = [run];
    let part = DeliveryPart { deliveries, runs: List::Items(&runs) };
    let (durability, attempt) = (Durability::Disk, Attempt(attempt));
    peer.send(id, &Pushed { durability, attempt, deadline: TIME, parts: List::Items(&[part]) }).await;
}

#[tokio::test]
async fn pushes_go_on_and_what_was_delivered_is_settled_by_its_attempt() {
    let (server, client, mut peer) = connected().await;
    let begun = tokio::spawn(async move {
        let group = client.stream("s").group("g").await.unwrap();
        group.push(thalweg_client::PushOptions::member("m")).await
    });
    peer.answer(&stream_found()).await;
    peer.answer(&group_found()).await;
    let member = |envelope: &thalweg_wire::Envelope<'_, ClientFrame<'_>>| match &envelope.frame {
        ClientFrame::Push(push) => (push.group, push.member.to_owned()),
        other => panic!("{other:?}"),
    };
    let (id, asked) = peer.request(member).await;
    assert_eq!(asked, (GroupId(8), "m".to_owned()));
    peer.send(id, &Pushing { held_records: 9, held_bytes: 99 }).await;
    let mut pushes = begun.await.unwrap().unwrap();
    send_pushed(&mut peer, id, 41, 0..2, 1).await;
    let delivery = pushes.next().await.unwrap().unwrap();
    assert_eq!((delivery.attempt, delivery.records.len()), (Attempt(41), 2));
    drop(peer);
    let mut peer = server.accept().await;
    let again = tokio::spawn(async move { pushes.next().await.unwrap().unwrap() });
    let (id, _) = peer.request(member).await;
    peer.send(id, &Pushing { held_records: 9, held_bytes: 99 }).await;
    send_pushed(&mut peer, id, 42, 1..2, 2).await;
    let second = again.await.unwrap();
    let deliveries: Vec<_> = second.records.iter().map(|at| (at.offset, at.deliveries)).collect();
    assert_eq!((second.attempt, deliveries), (Attempt(42), vec![(Offset(1), 2)]));
    let acking = tokio::spawn(async move { delivery.ack().await });
    // The push was dropped with its task: its cancel and the ack come in either order.
    for _ in 0..2 {
        let (id, kind) = peer.request(|envelope| envelope.frame.kind()).await;
        if kind == Kind::Write {
            let lapsed = thalweg_wire::Lapsed { attempt: Attempt(41), first: Offset(1), count: 1 };
            let settled =
                thalweg_wire::Settled { durability: Durability::Disk, settled: 1, lapsed: List::Items(&[lapsed]) };
            peer.send(id, &settled).await;
        } else {
            assert_eq!(kind, Kind::Cancel);
        }
    }
    let settled = acking.await.unwrap().unwrap();
    assert_eq!((settled.settled, settled.lapsed.len()), (1, 1));
}

/// Another group may have the id there, and the push would lease its records.
#[tokio::test]
async fn a_push_asks_for_nothing_at_a_server_with_other_data() {
    let (mut server, client, mut peer) = connected().await;
    let begun = tokio::spawn({
        let client = client.clone();
        async move {
            let group = client.stream("s").group("g").await.unwrap();
            group.push(thalweg_client::PushOptions::member("m")).await
        }
    });
    peer.answer(&stream_found()).await;
    peer.answer(&group_found()).await;
    peer.answer(&Pushing { held_records: 9, held_bytes: 99 }).await;
    let mut pushes = begun.await.unwrap().unwrap();
    drop(peer);
    server.node = 2;
    let reading = tokio::spawn(async move { pushes.next().await.map(drop) });
    let mut peer = server.accept().await;
    let error = reading.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::OtherData), "{error}");
    let pinging = tokio::spawn(async move { client.ping().await });
    let (_, kind) = peer.request(|envelope| envelope.frame.kind()).await;
    assert_eq!(kind, Kind::Ping, "the first frame of the client here");
    pinging.abort();
}

fn messages(payloads: &[&str], checksum: Checksum) -> SharedBatch {
    let mut writer = BatchWriter::new(b"a.b", b"").unwrap();
    payloads.iter().for_each(|payload| writer.push_payload(payload.as_bytes()).unwrap());
    writer.into_shared(checksum).unwrap()
}

#[tokio::test]
async fn subscribers_share_a_frame_and_are_told_of_what_is_missing() {
    let (server, client, mut peer) = connected().await;
    let mut subscribers = Vec::new();
    let mut ids = Vec::new();
    for pattern in ["a.*", "a.>"] {
        let client = client.clone();
        let begun = tokio::spawn(async move { client.subscribe_with(pattern, SubscribeOptions::default()).await });
        let (id, asked) = peer
            .request(|envelope| match &envelope.frame {
                ClientFrame::Subscribe(subscribe) => subscribe.pattern.0.to_vec(),
                other => panic!("{other:?}"),
            })
            .await;
        assert_eq!(asked, pattern.as_bytes());
        peer.send(id, &Subscribed { queue_messages: 10, queue_bytes: 100 }).await;
        subscribers.push(begun.await.unwrap().unwrap());
        ids.push(id);
    }
    let batch = messages(&["one", "two"], Checksum::Crc32c);
    peer.send(0, &Deliver { subscriptions: List::Items(&ids), batch: RemainingBytes(&batch.bytes) }).await;
    for subscriber in &mut subscribers {
        assert_eq!(subscriber.bounds(), (10, 100));
        let one = subscriber.next().await.unwrap().unwrap();
        assert_eq!((&one.subject[..], &one.payload[..]), (&b"a.b"[..], &b"one"[..]));
        assert_eq!(&subscriber.next().await.unwrap().unwrap().payload[..], b"two");
    }
    let mut subscriber = subscribers.remove(0);
    peer.send(ids[0], &Dropped { messages: 3 }).await;
    let batch = messages(&["six"], Checksum::Without);
    peer.send(0, &Deliver { subscriptions: List::Items(&ids[..1]), batch: RemainingBytes(&batch.bytes) }).await;
    assert_eq!(subscriber.next_batch().await.unwrap(), Some(Delivered::Dropped(3)));
    assert!(matches!(subscriber.next_batch().await.unwrap(), Some(Delivered::Messages(batch)) if batch.len() == 1));

    // The bytes of a batch have changed on the way.
    let mut wrong = messages(&["eight"], Checksum::Crc32c).bytes.to_vec();
    *wrong.last_mut().unwrap() ^= 1;
    peer.send(0, &Deliver { subscriptions: List::Items(&ids[..1]), batch: RemainingBytes(&wrong) }).await;
    let error = subscriber.next_batch().await.unwrap_err();
    assert!(matches!(error, Error::Protocol(ProtocolError::Batch(_))), "{error}");

    // After a lost connection the subscriber reports a gap and subscribes again.
    drop(peer);
    drop(subscribers);
    let next = tokio::spawn(async move { (subscriber.next_batch().await.unwrap(), subscriber) });
    let mut peer = server.accept().await;
    let id = peer.any().await;
    peer.send(id, &Subscribed { queue_messages: 10, queue_bytes: 100 }).await;
    let (gap, mut subscriber) = next.await.unwrap();
    assert_eq!((gap, subscriber.gaps(), subscriber.dropped()), (Some(Delivered::Gap), 1, 3));

    // A slow subscriber gets an error, and the next call subscribes again.
    let ended = Ended { class: Action::Retry, code: "slow_consumer", message: "slow", details: List::default() };
    peer.send(id, &ended).await;
    let error = subscriber.next_batch().await.unwrap_err();
    assert!(error.is("slow_consumer") && error.action() == Action::Retry);
    let next = tokio::spawn(async move { subscriber.next_batch().await.unwrap() });
    peer.answer(&Subscribed { queue_messages: 10, queue_bytes: 100 }).await;
    assert_eq!(next.await.unwrap(), Some(Delivered::Gap));
}
