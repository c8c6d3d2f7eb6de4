//! Push with credit, groups over compacted or trimmed streams, and the bound on waiting fetches.

use std::{
    future::{self, Future},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use thalweg_engine::{
    Credit, Database, Delivery, FetchRequest, Group, GroupError, GroupStart, PreparedFetch, Push, PushRequest,
    PushWaits, Stream,
    types::{
        Durability, Offset,
        command::{
            Compaction, StreamConfig,
            groups::{GroupConfig, GroupOrder, Redelivery, Settlement},
        },
        limits::MAX_WAITING_FETCHES,
        record::{Record, RecordBatch},
    },
};

use crate::{
    common::{PATIENCE, batch, block_on},
    streams::roll_segment,
    support::Node,
};

/// Polls once with a waker that does nothing.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A timer that never fires: the future must be woken by another event.
fn never(_: Duration) -> future::Pending<()> {
    future::pending()
}

fn stream(db: &Database, records: u64) -> Stream {
    let stream = db.stream("jobs").unwrap();
    append(&stream, 0..records);
    stream
}

fn append(stream: &Stream, numbers: std::ops::Range<u64>) {
    let payloads: Vec<_> = numbers.map(|number| number.to_string().into_bytes()).collect();
    stream.append(&batch(&payloads)).unwrap();
}

fn create(stream: &Stream, config: &GroupConfig) -> Group {
    stream.create_group("workers", GroupStart::Beginning, config).unwrap().0
}

fn push(db: &Database, group: &Group, records: u32) -> Push {
    let credit = Credit { records, ..Credit::default() };
    let request = PushRequest { member: "p".to_owned(), credit, max_delivery_bytes: 1 << 20 };
    db.to_async().push(group, request, Durability::Disk).unwrap()
}

fn offsets(delivery: &Delivery) -> Vec<u64> {
    let mut all = Vec::new();
    delivery
        .for_each(&mut |message| {
            all.push(message.offset.0);
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    all
}

fn next(push: &mut Push) -> Delivery {
    block_on(push.next(never)).unwrap().expect("open")
}

fn credit_bounds_what_is_unsettled_and_comes_back_with_it(node: &mut Node) {
    let stream = stream(node.db(), 5);
    let group = create(&stream, &GroupConfig::default());
    let mut pushed = push(node.db(), &group, 3);
    let first = next(&mut pushed);
    assert_eq!(offsets(&first), [0, 1, 2]);
    assert_eq!(pushed.waits().unwrap(), Some(PushWaits::ForCredit));
    assert!(poll_once(pin!(pushed.next(never))).is_pending());
    assert_eq!(group.info().unwrap().lag, 2);
    // An ack wakes a push that waits for credit.
    let acks = {
        let (group, attempt) = (group.clone(), first.attempt);
        thread::spawn(move || group.ack(&[Settlement::one(attempt, Offset(1))]).unwrap())
    };
    assert_eq!(offsets(&next(&mut pushed)), [3]);
    assert_eq!(acks.join().unwrap().settled, 1);
    group.nack(&[Settlement::all(first.attempt)], Redelivery::After(Duration::ZERO), "").unwrap();
    let back = next(&mut pushed);
    assert_eq!(offsets(&back), [0, 2]);
    group.ack(&[Settlement::all(back.attempt)]).unwrap();
    assert_eq!(offsets(&next(&mut pushed)), [4]);
    assert_eq!(pushed.waits().unwrap(), Some(PushWaits::ForRecords));
    let appends = {
        let stream = stream.clone();
        thread::spawn(move || append(&stream, 5..6))
    };
    assert_eq!(offsets(&next(&mut pushed)), [5]);
    appends.join().unwrap();
    assert_eq!(group.info().unwrap().redelivered, 2);
}

fn a_push_that_is_cancelled_loses_nothing(node: &mut Node) {
    let group = create(&stream(node.db(), 6), &GroupConfig::default());
    let mut pushed = push(node.db(), &group, 2);
    let mut seen = Vec::new();
    while seen.len() < 6 {
        // The future is dropped at any point, mostly with its fetch in progress.
        if let Poll::Ready(delivery) = poll_once(pin!(pushed.next(never))) {
            let delivery = delivery.unwrap().expect("open");
            seen.extend(offsets(&delivery));
            group.ack(&[Settlement::all(delivery.attempt)]).unwrap();
        }
        thread::yield_now();
    }
    assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
    assert_eq!((group.info().unwrap().acked, group.info().unwrap().redelivered), (6, 0));
}

fn what_lapses_gives_credit_back_and_comes_again(node: &mut Node) {
    let group = create(&stream(node.db(), 1), &GroupConfig::default());
    let mut pushed = push(node.db(), &group, 1);
    let first = next(&mut pushed);
    assert_eq!(pushed.waits().unwrap(), Some(PushWaits::ForCredit));
    let mut slept = Vec::new();
    let second = block_on(pushed.next(|span| {
        slept.push(span);
        node.pass(span);
        future::ready(())
    }));
    let second = second.unwrap().expect("open");
    assert_eq!((offsets(&second), slept), (vec![0], vec![Duration::from_secs(30)]));
    assert!(second.attempt > first.attempt);
    // A shortened deadline wakes a member that waits for the old one.
    let other = {
        let (db, group) = (node.db().clone(), group.clone());
        thread::spawn(move || next(&mut push(&db, &group, 1)))
    };
    group.extend(&[second.attempt], Duration::ZERO).unwrap();
    assert_eq!(offsets(&other.join().unwrap()), [0]);
    drop(pushed);
}

fn a_receiver_that_goes_away_may_give_back(node: &mut Node) {
    let group = create(&stream(node.db(), 3), &GroupConfig::default());
    let mut pushed = push(node.db(), &group, 3);
    let delivery = next(&mut pushed);
    group.ack(&[Settlement::one(delivery.attempt, Offset(0))]).unwrap();
    pushed.return_records("gone").unwrap();
    drop(pushed);
    let again = next(&mut push(node.db(), &group, 3));
    assert_eq!(offsets(&again), [1, 2]);
    assert_eq!(group.info().unwrap().redelivered, 2, "the delivery counted");
}

fn a_push_ends_with_its_group(node: &mut Node) {
    let stream = node.db().stream("jobs").unwrap();
    let group = create(&stream, &GroupConfig::default());
    let waits = |group: &Group| {
        let (db, group) = (node.db().clone(), group.clone());
        thread::spawn(move || block_on(push(&db, &group, 1).next(never)).map(|delivery| delivery.is_some()))
    };
    let waiting = waits(&group);
    group.delete().unwrap();
    assert!(matches!(waiting.join().unwrap(), Err(GroupError::NoSuchGroup(_))));
    let refused = node.db().to_async().push(
        &group,
        PushRequest { member: String::new(), credit: Credit::default(), max_delivery_bytes: 1 },
        Durability::None,
    );
    assert!(refused.is_err(), "the delivered records would be unknown");
}

fn compact(db: &Database) -> u64 {
    roll_segment(db);
    roll_segment(db);
    let round = || {
        db.flush().unwrap();
        db.maintain().unwrap().compacted_records
    };
    (0..6).map(|_| round()).sum()
}

fn a_group_over_a_compacted_stream_passes_over_what_is_gone(node: &mut Node) {
    let compaction = Some(Compaction { tombstone_grace: Duration::from_secs(60) });
    let config = StreamConfig { compaction, ..StreamConfig::default() };
    let (stream, _) = node.db().create_stream("jobs", &config).unwrap();
    for number in 0..400_u64 {
        let mut one = RecordBatch::new();
        let key = format!("k{}", number % 20);
        one.push(&Record { key: Some(key.as_bytes()), payload: &[b'v'; 60], ..Record::default() }).unwrap();
        stream.append(&one).unwrap();
    }
    let ordered = GroupConfig { order: GroupOrder::PerKey, ..GroupConfig::default() };
    let groups = [
        create(&stream, &GroupConfig::default()),
        stream.create_group("o", GroupStart::Beginning, &ordered).unwrap().0,
    ];
    // Some records are delivered before compaction and redelivered after it. In order per key, many are parked.
    let request = FetchRequest { max_records: 50, ..FetchRequest::default() };
    let before: Vec<_> = groups.iter().map(|group| group.fetch(&request).unwrap()).collect();
    assert_eq!((before[0].record_count(), before[1].record_count()), (50, 20));
    assert!(compact(node.db()) > 300);
    let mut kept = Vec::new();
    let page = stream.read(Offset(0), 1000, 1 << 20).unwrap();
    page.for_each(&mut |offset, _, _| {
        kept.push(offset.0);
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    assert!(kept.len() < 100);
    for (group, before) in groups.iter().zip(&before) {
        group.nack(&[Settlement::all(before.attempt)], Redelivery::After(Duration::ZERO), "").unwrap();
        let mut seen = Vec::new();
        loop {
            let delivery = group.fetch(&request).unwrap();
            if delivery.is_empty() {
                break;
            }
            seen.extend(offsets(&delivery));
            group.ack(&[Settlement::all(delivery.attempt)]).unwrap();
        }
        seen.sort_unstable();
        assert_eq!(seen, kept, "each remaining record once");
        let info = group.info().unwrap();
        assert_eq!((info.lag, info.pending, info.parked, info.floor), (0, 0, 0, Offset(400)));
    }
}

fn a_group_over_a_trimmed_stream_waits_for_no_ack_of_what_is_gone(node: &mut Node) {
    let ordered = GroupConfig { order: GroupOrder::PerKey, ..GroupConfig::default() };
    let (attempt, group_name) = {
        let stream = node.db().stream("jobs").unwrap();
        for key in [b"a", b"a", b"b", b"a", b"b", b"a"] {
            let mut one = RecordBatch::new();
            one.push(&Record { key: Some(key), ..Record::default() }).unwrap();
            stream.append(&one).unwrap();
        }
        let group = create(&stream, &ordered);
        let delivery = group.fetch(&FetchRequest::default()).unwrap();
        assert_eq!(offsets(&delivery), [0, 2]);
        assert_eq!(group.info().unwrap().parked, 4);
        stream.trim(Offset(3)).unwrap();
        (delivery.attempt, "workers")
    };
    node.through_restarts(|db| {
        let group = db.find_stream("jobs").unwrap().find_group(group_name).unwrap().unwrap();
        let info = group.info().unwrap();
        assert_eq!((info.pending, info.parked, info.in_flight, info.floor), (3, 3, 0, Offset(3)));
    });
    let group = node.db().find_stream("jobs").unwrap().find_group(group_name).unwrap().unwrap();
    let late = group.ack(&[Settlement::all(attempt)]).unwrap();
    assert_eq!((late.settled, late.lapsed.len()), (0, 1));
    let next = group.fetch(&FetchRequest::default()).unwrap();
    assert_eq!(offsets(&next), [3, 4], "the next of each key may go");
    group.ack(&[Settlement::all(next.attempt)]).unwrap();
    assert_eq!(offsets(&group.fetch(&FetchRequest::default()).unwrap()), [5]);
}

fn so_many_fetches_may_wait_and_no_more(node: &mut Node) {
    let stream = node.db().stream("jobs").unwrap();
    let group = create(&stream, &GroupConfig::default());
    let asynchronous = node.db().to_async();
    let mut waiting: Vec<_> = (0..MAX_WAITING_FETCHES).map(|_| Box::pin(asynchronous.group_ready(&group))).collect();
    assert!(waiting.iter_mut().all(|future| poll_once(future.as_mut()).is_pending()));
    let refused = poll_once(pin!(asynchronous.group_ready(&group)));
    assert_eq!(refused, Poll::Ready(Err(GroupError::TooManyWaiting)));
    let waits = FetchRequest { wait: PATIENCE, ..FetchRequest::default() };
    assert_eq!(group.fetch(&waits).unwrap_err(), GroupError::TooManyWaiting);
    assert!(group.fetch(&FetchRequest::default()).unwrap().is_empty(), "a fetch that does not wait is not counted");
    append(&stream, 0..1);
    let delivery = group.fetch(&waits).unwrap();
    assert_eq!(offsets(&delivery), [0], "nor is a fetch that finds records");
    group.ack(&[Settlement::all(delivery.attempt)]).unwrap();
    waiting.pop();
    let mut next = Box::pin(asynchronous.group_ready(&group));
    assert!(poll_once(next.as_mut()).is_pending(), "a fetch that ends makes room");
}

fn a_fetch_without_new_records_delivers_those_that_were_returned(node: &mut Node) {
    let stream = stream(node.db(), 10);
    for (name, order) in [("competing", GroupOrder::Competing), ("keyed", GroupOrder::PerKey)] {
        let config = GroupConfig { order, ..GroupConfig::default() };
        let group = stream.create_group(name, GroupStart::Beginning, &config).unwrap().0;
        let request =
            |member: &str| FetchRequest { member: member.to_owned(), max_records: 4, ..FetchRequest::default() };
        let first = group.fetch(&request("a")).unwrap();
        let prepared = |member: &str| PreparedFetch::new(&group, &request(member)).unwrap();
        assert!(!prepared("a").exclude_new(4).unwrap(), "the records are held");
        group.nack(&[Settlement::all(first.attempt)], Redelivery::After(Duration::ZERO), "").unwrap();
        assert!(!prepared("b").exclude_new(1).unwrap(), "a member that the group does not know");
        assert!(prepared("b").exclude_new(2).unwrap());
        let mut again = prepared("a");
        assert!(again.new_records() > 0 && again.exclude_new(1).unwrap());
        assert_eq!(again.new_records(), 0);
        let unread = block_on(node.db().to_async().fetch_prepared(again, Durability::Disk)).unwrap();
        assert_eq!(offsets(&unread.read().unwrap()), [0, 1, 2, 3]);
        assert_eq!(group.info().unwrap().pending, 4);
    }
}

on_every_backend!(
    credit_bounds_what_is_unsettled_and_comes_back_with_it,
    a_push_that_is_cancelled_loses_nothing,
    what_lapses_gives_credit_back_and_comes_again,
    a_receiver_that_goes_away_may_give_back,
    a_push_ends_with_its_group,
    a_group_over_a_compacted_stream_passes_over_what_is_gone,
    a_group_over_a_trimmed_stream_waits_for_no_ack_of_what_is_gone,
    so_many_fetches_may_wait_and_no_more,
    a_fetch_without_new_records_delivers_those_that_were_returned,
);
