//! Consumer groups as members see them, over restarts.

use std::{collections::BTreeMap, ops::ControlFlow, thread, time::Duration};

use thalweg_engine::{
    Database, Delivery, FetchRequest, Group, GroupError, GroupStart, Ready, Stream, WriteError,
    types::{
        Attempt, Classified, Durability, Offset, SpaceTime,
        command::{
            CommitBuilder,
            groups::{GroupConfig, GroupOrder, OffsetRun, Redelivery, Settlement},
        },
        record::{Record, RecordBatch},
    },
};

use crate::{common::batch, support::Node};

const DEADLINE: Duration = Duration::from_secs(30);

fn stream(node: &Node, records: u64) -> Stream {
    let stream = node.db().stream("jobs").unwrap();
    let payloads: Vec<_> = (0..records).map(|number| number.to_string().into_bytes()).collect();
    stream.append(&batch(&payloads)).unwrap();
    stream
}

fn create(stream: &Stream, config: &GroupConfig) -> Group {
    stream.create_group("workers", GroupStart::Beginning, config).unwrap().0
}

fn group(db: &Database) -> Group {
    db.find_stream("jobs").unwrap().find_group("workers").unwrap().unwrap()
}

fn request(max_records: u32) -> FetchRequest {
    FetchRequest { member: "m".to_owned(), max_records, ..FetchRequest::default() }
}

/// Offset, deliveries and payload of each record.
fn contents(delivery: &Delivery) -> Vec<(u64, u32, String)> {
    let mut all = Vec::new();
    delivery
        .for_each(&mut |message| {
            let payload = String::from_utf8(message.record.payload.to_vec()).unwrap();
            all.push((message.offset.0, message.deliveries, payload));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(all.len() as u64, delivery.record_count());
    all
}

fn offsets(delivery: &Delivery) -> Vec<u64> {
    contents(delivery).into_iter().map(|(offset, ..)| offset).collect()
}

fn fetch(group: &Group, max: u32) -> Delivery {
    group.fetch(&request(max)).unwrap()
}

fn all(attempt: Attempt) -> [Settlement; 1] {
    [Settlement::all(attempt)]
}

fn records_are_fetched_acked_and_kept_over_restarts(node: &mut Node) {
    let first = {
        let group = create(&stream(node, 10), &GroupConfig::default());
        let first = fetch(&group, 4);
        assert_eq!(contents(&first)[1], (1, 1, "1".to_owned()));
        assert_eq!(first.durability, node.db().durability());
        let second = fetch(&group, 3);
        assert_eq!(offsets(&second), [4, 5, 6]);
        assert_eq!(group.ack(&all(second.attempt)).unwrap().settled, 3);
        first.attempt
    };
    node.through_restarts(|db| {
        let info = group(db).info().unwrap();
        assert_eq!((info.cursor, info.floor, info.lag, info.pending), (Offset(7), Offset(0), 3, 4));
        assert_eq!((info.delivered, info.acked, info.members.len()), (7, 3, 1));
    });
    let group = group(node.db());
    let settled = group.ack(&all(first)).unwrap();
    assert_eq!((settled.settled, settled.lapsed), (4, vec![]), "an attempt outlives a kill");
    assert_eq!(offsets(&fetch(&group, 9)), [7, 8, 9]);
    assert!(fetch(&group, 9).is_empty());
}

fn a_deadline_is_in_space_time(node: &mut Node) {
    let attempt = {
        let group = create(&stream(node, 2), &GroupConfig::default());
        let delivery = fetch(&group, 2);
        assert_eq!(group.ready().unwrap(), Ready::In(Some(DEADLINE)));
        node.clock().step_wall(SpaceTime(u64::MAX / 4));
        assert!(fetch(&group, 2).is_empty(), "a stepped wall clock frees nothing");
        node.clock().step_wall(SpaceTime(1));
        node.pass(DEADLINE - Duration::from_micros(1));
        assert!(fetch(&group, 2).is_empty());
        group.extend(&[delivery.attempt], DEADLINE).unwrap();
        node.pass(Duration::from_micros(1));
        assert!(fetch(&group, 2).is_empty(), "extended");
        delivery.attempt
    };
    node.kill();
    node.pass(DEADLINE);
    let group = group(node.db());
    let again = fetch(&group, 2);
    assert_eq!(contents(&again), [(0, 2, "0".to_owned()), (1, 2, "1".to_owned())]);
    assert!(again.attempt > attempt);
    let settled = group.ack(&all(attempt)).unwrap();
    assert_eq!((settled.settled, settled.lapsed.len()), (0, 1));
}

fn dead_letters_say_where_they_come_from(node: &mut Node) {
    let config =
        GroupConfig { max_deliveries: Some(2), dead_letters: Some("jobs.dead".to_owned()), ..GroupConfig::default() };
    {
        let stream = node.db().stream("jobs").unwrap();
        let mut records = RecordBatch::new();
        records
            .push(&Record { key: Some(b"k"), headers: vec![("own", b"kept")], payload: b"poison", is_tombstone: false })
            .unwrap();
        records.push_payload(b"good").unwrap();
        stream.append(&records).unwrap();
        let group = create(&stream, &config);
        for _ in 0..2 {
            let delivery = fetch(&group, 1);
            assert_eq!(offsets(&delivery), [0]);
            group.nack(&all(delivery.attempt), Redelivery::After(Duration::ZERO), "can't parse").unwrap();
        }
        assert_eq!(offsets(&fetch(&group, 9)), [1], "poison does not block");
        assert_eq!(group.info().unwrap().dying, 1);
    }
    node.kill();
    node.db().maintain().unwrap();
    node.db().maintain().unwrap();
    node.through_restarts(|db| {
        assert_eq!((group(db).info().unwrap().dying, group(db).info().unwrap().dead), (0, 1));
        let page = db.find_stream("jobs.dead").unwrap().read(Offset(0), 10, 1 << 20).unwrap();
        assert_eq!(page.record_count(), 1, "exactly once");
        page.for_each(&mut |_, _, record| {
            assert_eq!((record.key, record.payload), (Some(b"k".as_slice()), b"poison".as_slice()));
            let headers: BTreeMap<_, _> = record.headers.iter().copied().collect();
            let text = |name| std::str::from_utf8(headers[name]).unwrap();
            assert_eq!(
                [text("thalweg-stream"), text("thalweg-group"), text("thalweg-offset")],
                ["jobs", "workers", "0"]
            );
            assert_eq!([text("thalweg-deliveries"), text("thalweg-reason"), text("own")], ["2", "can't parse", "kept"]);
            ControlFlow::Continue(())
        })
        .unwrap();
    });
}

fn many_dead_letters_arrive_in_order_and_once(node: &mut Node) {
    let config =
        GroupConfig { max_deliveries: Some(1), dead_letters: Some("dead".to_owned()), ..GroupConfig::default() };
    let stream = node.db().stream("jobs").unwrap();
    let payloads: Vec<_> = (0..30_u8).map(|number| vec![number; 4000]).collect();
    payloads.chunks(7).for_each(|chunk| _ = stream.append(&batch(chunk)).unwrap());
    let group = create(&stream, &config);
    let delivery = group.fetch(&FetchRequest { max_bytes: u64::MAX, ..request(100) }).unwrap();
    assert_eq!(delivery.record_count(), 30);
    group.nack(&all(delivery.attempt), Redelivery::Never, "no").unwrap();
    assert_eq!(node.db().maintain().unwrap().dead_letters, 30);
    let dead = node.db().find_stream("dead").unwrap();
    let mut copies = Vec::new();
    let page = dead.read(Offset(0), 100, u64::MAX).unwrap();
    page.for_each(&mut |_, _, record| {
        copies.push(record.payload.to_vec());
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(copies, payloads);
    let largest = |len: usize| stream.append(&batch(&[vec![7; len]])).ok();
    let at = (1..65_000).rev().step_by(50).find_map(largest).unwrap().appends[0].first;
    let delivery = fetch(&group, 1);
    assert_eq!(offsets(&delivery), [at.0]);
    group.nack(&all(delivery.attempt), Redelivery::Never, "no").unwrap();
    assert_eq!(node.db().maintain().unwrap().dead_letters, 1);
    let last = dead.read(Offset(30), 1, u64::MAX).unwrap();
    last.for_each(&mut |_, _, record| {
        assert!(record.payload.is_empty() && record.headers.contains(&("thalweg-payload", b"too large")));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(last.record_count(), 1, "a record without room for headers loses its payload");
    assert!(page.batches.len() > 1, "more than fits into one commit");
}

fn a_commit_acks_or_does_nothing(node: &mut Node) {
    let stream = stream(node, 4);
    let group = create(&stream, &GroupConfig::default());
    let out = node.db().stream("out").unwrap();
    let sums = node.db().keyspace("sums").unwrap();
    let step = |settlements: &[Settlement], payload: &[u8]| {
        let mut commit = CommitBuilder::new();
        commit.put(sums.id(), b"sum", payload).unwrap();
        commit.append(out.id(), None, &batch(&[payload.to_vec()])).unwrap();
        commit.ack(group.id(), settlements).unwrap();
        node.db().commit(&commit)
    };
    let delivery = fetch(&group, 4);
    let first = Settlement { attempt: delivery.attempt, runs: vec![OffsetRun { first: Offset(0), count: 2 }] };
    step(std::slice::from_ref(&first), b"one").unwrap();
    let again = step(&[first], b"again").unwrap_err();
    assert_eq!(again, WriteError::AttemptLapsed { group: group.id(), attempt: delivery.attempt });
    assert_eq!(again.code(), "attempt_lapsed");
    node.pass(DEADLINE);
    assert!(step(&all(delivery.attempt), b"late").is_err());
    let second = fetch(&group, 4);
    step(&all(second.attempt), b"two").unwrap();
    assert_eq!(out.info().unwrap().next, Offset(2));
    assert_eq!(sums.get(b"sum").unwrap().unwrap().value, &b"two"[..]);
    assert_eq!(group.info().unwrap().floor, Offset(4));
    let unseen = {
        let mut commit = CommitBuilder::new();
        commit.ack(group.id(), &all(second.attempt)).unwrap();
        node.db().with_durability(Durability::None).commit(&commit)
    };
    assert_eq!(unseen, Err(WriteError::LevelTooLow));
}

fn seeking_goes_to_an_offset_a_time_and_both_ends(node: &mut Node) {
    let stream = stream(node, 3);
    node.pass(Duration::from_secs(10));
    let later = node.db().stats().space_time;
    stream.append(&batch(&[b"3".to_vec()])).unwrap();
    let group = create(&stream, &GroupConfig::default());
    let old = fetch(&group, 9);
    assert_eq!(group.seek(GroupStart::Offset(Offset(1))).unwrap(), Offset(1));
    assert_eq!(group.ack(&all(old.attempt)).unwrap().settled, 0);
    assert_eq!(contents(&fetch(&group, 1)), [(1, 1, "1".to_owned())]);
    assert_eq!(group.seek(GroupStart::Time(later)).unwrap(), Offset(3));
    assert_eq!(offsets(&fetch(&group, 9)), [3]);
    assert_eq!(group.seek(GroupStart::End).unwrap(), Offset(4));
    assert_eq!(group.seek(GroupStart::Beginning).unwrap(), Offset(0));
    assert_eq!(offsets(&fetch(&group, 9)), [0, 1, 2, 3]);
}

fn trimmed_records_are_not_delivered(node: &mut Node) {
    let stream = stream(node, 6);
    let group = create(&stream, &GroupConfig::default());
    let delivery = fetch(&group, 2);
    stream.trim(Offset(4)).unwrap();
    assert_eq!(group.info().unwrap().pending, 0);
    assert_eq!(group.ack(&all(delivery.attempt)).unwrap().settled, 0);
    assert_eq!(offsets(&fetch(&group, 9)), [4, 5]);
    stream.delete().unwrap();
    assert!(matches!(group.fetch(&request(1)), Err(GroupError::NoSuchGroup(_))));
    assert_eq!(group.info().unwrap_err().code(), "no_such_group");
}

fn in_order_per_key_one_record_of_a_key_at_a_time(node: &mut Node) {
    let stream = node.db().stream("jobs").unwrap();
    let keys = ["a", "a", "b", "", "a", "b"];
    for key in keys {
        let mut records = RecordBatch::new();
        let key = (!key.is_empty()).then_some(key.as_bytes());
        records.push(&Record { key, ..Record::default() }).unwrap();
        stream.append(&records).unwrap();
    }
    let group = create(&stream, &GroupConfig { order: GroupOrder::PerKey, ..GroupConfig::default() });
    let first = fetch(&group, 9);
    assert_eq!(offsets(&first), [0, 2, 3]);
    assert!(fetch(&group, 9).is_empty());
    let settle = |offset| [Settlement::one(first.attempt, Offset(offset))];
    group.ack(&settle(2)).unwrap();
    assert_eq!(offsets(&fetch(&group, 9)), [5]);
    group.nack(&settle(0), Redelivery::After(Duration::from_secs(1)), "").unwrap();
    assert!(fetch(&group, 9).is_empty());
    node.pass(Duration::from_secs(1));
    let back = fetch(&group, 9);
    assert_eq!(offsets(&back), [0]);
    group.ack(&all(back.attempt)).unwrap();
    assert_eq!(offsets(&fetch(&group, 1)), [1]);
}

fn more_bytes_than_asked_for_are_given_back_uncounted(node: &mut Node) {
    let stream = node.db().stream("jobs").unwrap();
    let payloads: Vec<_> = (0..10).map(|number| vec![number; 1000]).collect();
    payloads.iter().for_each(|payload| _ = stream.append(&batch(std::slice::from_ref(payload))).unwrap());
    let once = GroupConfig { max_deliveries: Some(2), ..GroupConfig::default() };
    let group = create(&stream, &once);
    let all_of_them = fetch(&group, 10);
    group.nack(&all(all_of_them.attempt), Redelivery::After(Duration::ZERO), "").unwrap();
    let small = FetchRequest { max_bytes: 2500, ..request(10) };
    let mut seen = Vec::new();
    while let Ok(delivery) = group.fetch(&small) {
        if delivery.is_empty() {
            break;
        }
        assert!(delivery.record_count() <= 3, "{}", delivery.record_count());
        delivery
            .for_each(&mut |message| {
                assert_eq!(message.deliveries, 2);
                seen.push(message.offset.0);
                ControlFlow::Continue(())
            })
            .unwrap();
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..10).collect::<Vec<_>>(), "each record once, no dead letters");
}

fn a_fetch_that_waits_is_woken_by_what_comes(node: &mut Node) {
    let stream = node.db().stream("jobs").unwrap();
    let group = create(&stream, &GroupConfig::default());
    let waits = FetchRequest { wait: Duration::from_secs(60), ..request(1) };
    let wait = || {
        let (group, waits) = (group.clone(), waits.clone());
        thread::spawn(move || group.fetch(&waits).unwrap())
    };
    let waiting = wait();
    stream.append(&batch(&[b"0".to_vec()])).unwrap();
    let delivery = waiting.join().unwrap();
    assert_eq!(offsets(&delivery), [0]);
    let waiting = wait();
    group.nack(&all(delivery.attempt), Redelivery::After(Duration::ZERO), "").unwrap();
    let delivery = waiting.join().unwrap();
    assert_eq!(contents(&delivery)[0].1, 2, "woken by returned records");
    let waiting = wait();
    group.seek(GroupStart::Beginning).unwrap();
    assert_eq!(contents(&waiting.join().unwrap())[0].1, 1, "woken by a seek");
    let waiting = {
        let (group, waits) = (group.clone(), waits.clone());
        thread::spawn(move || group.fetch(&waits))
    };
    group.delete().unwrap();
    assert!(matches!(waiting.join().unwrap(), Err(GroupError::NoSuchGroup(_))), "woken by the group's deletion");
}

fn groups_are_listed_configured_and_deleted(node: &mut Node) {
    let config = GroupConfig { max_deliveries: Some(7), ..GroupConfig::default() };
    {
        let stream = stream(node, 1);
        create(&stream, &GroupConfig::default());
        let (other, created) = stream.create_group("audit", GroupStart::End, &config).unwrap();
        assert!(created && !stream.create_group("audit", GroupStart::End, &config).unwrap().1);
        assert_eq!(other.info().unwrap().cursor, Offset(1));
        group(node.db()).configure(&config).unwrap();
        let ordered = GroupConfig { order: GroupOrder::PerKey, ..config.clone() };
        assert_eq!(group(node.db()).configure(&ordered).unwrap_err().code(), "bad_group");
        let itself = GroupConfig { dead_letters: Some("jobs".to_owned()), ..config.clone() };
        assert_eq!(stream.create_group("x", GroupStart::End, &itself).unwrap_err().code(), "bad_group");
    }
    node.through_restarts(|db| {
        let groups = db.find_stream("jobs").unwrap().groups().unwrap();
        let names: Vec<_> = groups.iter().map(|info| (info.name.as_str(), info.config.max_deliveries)).collect();
        assert_eq!(names, [("audit", Some(7)), ("workers", Some(7))]);
    });
    group(node.db()).delete().unwrap();
    node.through_restarts(|db| assert!(db.find_stream("jobs").unwrap().find_group("workers").unwrap().is_none()));
}

on_every_backend!(
    records_are_fetched_acked_and_kept_over_restarts,
    a_deadline_is_in_space_time,
    dead_letters_say_where_they_come_from,
    many_dead_letters_arrive_in_order_and_once,
    a_commit_acks_or_does_nothing,
    seeking_goes_to_an_offset_a_time_and_both_ends,
    trimmed_records_are_not_delivered,
    in_order_per_key_one_record_of_a_key_at_a_time,
    more_bytes_than_asked_for_are_given_back_uncounted,
    a_fetch_that_waits_is_woken_by_what_comes,
    groups_are_listed_configured_and_deleted,
);
