//! Keys, scans, conditions, commits, streams: the base of all other behaviour.

use std::{ops::Bound, ops::ControlFlow, time::Duration};

use thalweg_engine::{
    Database, Order, ReadError, ScanRange, Values, WriteError,
    types::{
        Clock, Durability, Offset, Revision, SpaceTime,
        command::{CommitBuilder, Expect, StreamConfig},
        limits,
        record::RecordBatch,
    },
};

use crate::{
    common::{LEVELS, batch, read_all},
    support::{Node, Restart},
};

fn value(db: &Database, key: &[u8]) -> Option<Vec<u8>> {
    db.keyspace("k").unwrap().get(key).unwrap().map(|entry| entry.value.to_vec())
}

fn records(texts: &[&str]) -> RecordBatch {
    batch(&texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>())
}

fn keys(db: &Database, range: &ScanRange) -> Vec<String> {
    let mut keys = Vec::new();
    let visit = &mut |item: thalweg_engine::ScanItem<'_>| {
        keys.push(String::from_utf8_lossy(item.key).into_owned());
        ControlFlow::Continue(())
    };
    db.keyspace("k").unwrap().scan(range, visit).unwrap();
    keys
}

fn a_key_holds_its_last_value(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    let first = keyspace.put(b"a", b"1").unwrap().revision.unwrap();
    let second = keyspace.put(b"a", b"2").unwrap().revision.unwrap();
    assert!(second > first);
    keyspace.put(b"gone", b"x").unwrap();
    keyspace.delete(b"gone").unwrap();
    keyspace.delete(b"never there").unwrap();
    drop(keyspace);
    node.through_restarts(|db| {
        let entry = db.keyspace("k").unwrap().get(b"a").unwrap().unwrap();
        assert_eq!((&entry.value[..], entry.revision), (&b"2"[..], second));
        assert_eq!(value(db, b"gone"), None);
        assert_eq!(value(db, b"never there"), None);
    });
}

/// Empty keys and values, the longest key, and values of every form.
fn keys_and_values_are_any_bytes(node: &mut Node) {
    let longest = vec![0xff; limits::MAX_KEY_BYTES];
    let pairs: Vec<(Vec<u8>, Vec<u8>)> = vec![
        (Vec::new(), b"of the empty key".to_vec()),
        (vec![0], Vec::new()),
        (vec![0, 0], vec![0; 256]),
        (vec![0xff; 3], vec![0xff; 257]),
        (longest, vec![7; 20_000]),
    ];
    let keyspace = node.db().keyspace("k").unwrap();
    for (key, value) in &pairs {
        keyspace.put(key, value).unwrap();
    }
    drop(keyspace);
    node.through_restarts(|db| {
        let keyspace = db.keyspace("k").unwrap();
        for (key, value) in &pairs {
            assert_eq!(keyspace.get(key).unwrap().unwrap().value, value[..]);
            assert_eq!(keyspace.head(key).unwrap().unwrap().value_bytes, value.len() as u64);
        }
        let found: Vec<_> = keyspace.iter(ScanRange::default()).map(|pair| pair.unwrap().0.to_vec()).collect();
        assert_eq!(found, pairs.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>(), "in byte order");
    });
}

fn keyspaces_do_not_see_each_other(node: &mut Node) {
    for (name, content) in [("k", "one"), ("l", "two")] {
        node.db().keyspace(name).unwrap().put(b"same", content.as_bytes()).unwrap();
    }
    node.db().keyspace("l").unwrap().delete(b"other").unwrap();
    node.through_restarts(|db| {
        assert_eq!(value(db, b"same").unwrap(), b"one");
        assert_eq!(db.keyspace("l").unwrap().get(b"same").unwrap().unwrap().value, b"two"[..]);
        assert_eq!(db.keyspaces().iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), ["k", "l"]);
        assert!(db.find_keyspace("m").is_none());
    });
}

/// A killed process loses no acknowledged write, whatever its level. Only a power loss makes a difference.
fn every_level_survives_a_kill(node: &mut Node) {
    for (number, level) in LEVELS.into_iter().enumerate() {
        let ack = node.db().with_durability(level).keyspace("k").unwrap().put(&[number as u8], b"v").unwrap();
        assert!(ack.durability >= level);
    }
    node.kill();
    assert!((0..LEVELS.len()).all(|number| value(node.db(), &[number as u8]).is_some()));
    assert_eq!(node.db().visible_durability(), Durability::Disk, "opening syncs what it found");
}

fn scans_keep_to_their_range_in_both_orders(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    for key in ["a", "b/1", "b/2", "b/3", "c"] {
        keyspace.put(key.as_bytes(), key.as_bytes()).unwrap();
    }
    node.db().keyspace("j").unwrap().put(b"b/0", b"").unwrap();
    node.db().keyspace("l").unwrap().put(b"b/4", b"").unwrap();
    drop(keyspace);
    node.through_restarts(|db| {
        assert_eq!(keys(db, &ScanRange::default()), ["a", "b/1", "b/2", "b/3", "c"]);
        let prefix = ScanRange::with_prefix(b"b/".to_vec());
        assert_eq!(keys(db, &prefix), ["b/1", "b/2", "b/3"]);
        let descending = ScanRange { order: Order::Descending, ..prefix.clone() };
        assert_eq!(keys(db, &descending), ["b/3", "b/2", "b/1"]);
        let page = ScanRange { start: Bound::Excluded(b"b/1".to_vec()), limit: Some(1), ..prefix.clone() };
        assert_eq!(keys(db, &page), ["b/2"]);
        let end = ScanRange { end: Bound::Included(b"b/2".to_vec()), ..descending };
        assert_eq!(keys(db, &end), ["b/2", "b/1"]);
        let outside = ScanRange { start: Bound::Included(b"c".to_vec()), ..prefix };
        assert_eq!(keys(db, &outside), Vec::<String>::new());
        let without = ScanRange { values: Values::Omit, ..ScanRange::default() };
        assert!(db.keyspace("k").unwrap().iter(without).all(|pair| pair.unwrap().1.value.is_empty()));
    });
}

fn an_iterator_shows_one_moment(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    for number in 0..600u32 {
        keyspace.put(&number.to_be_bytes(), b"before").unwrap();
    }
    let mut iterator = keyspace.iter(ScanRange::default());
    assert_eq!(iterator.next().unwrap().unwrap().1.value, b"before"[..]);
    for number in 0..600u32 {
        if number % 3 == 0 {
            keyspace.delete(&number.to_be_bytes()).unwrap();
        } else {
            keyspace.put(&number.to_be_bytes(), b"after").unwrap();
        }
    }
    node.db().flush().unwrap();
    let rest: Vec<_> = iterator.map(|pair| pair.unwrap()).collect();
    assert_eq!(rest.len(), 599);
    assert!(rest.iter().all(|(_, entry)| entry.value == b"before"[..]));
    assert_eq!(keyspace.iter(ScanRange::default()).count(), 400);
}

fn conditions_decide_a_write(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    let first = keyspace.put_if(b"a", b"1", Expect::Absent).unwrap().revision.unwrap();
    let refused = keyspace.put_if(b"a", b"x", Expect::Absent).unwrap_err();
    assert_eq!(refused, WriteError::ConditionFailed { condition: 0, actual: Some(first) });
    let second = keyspace.put_if(b"a", b"2", Expect::Revision(first)).unwrap().revision.unwrap();
    assert!(keyspace.put_if(b"a", b"x", Expect::Revision(first)).is_err());
    assert!(keyspace.put_if(b"b", b"x", Expect::Present).is_err());
    assert!(keyspace.delete_if(b"a", Expect::Revision(first)).is_err());
    let unknown = keyspace.with_durability(Durability::None).put_if(b"a", b"x", Expect::Present).unwrap_err();
    assert_eq!(unknown, WriteError::LevelTooLow);
    drop(keyspace);
    for how in Restart::ALL {
        node.restart(how);
        let keyspace = node.db().keyspace("k").unwrap();
        let refused = keyspace.delete_if(b"a", Expect::Absent).unwrap_err();
        assert_eq!(refused, WriteError::ConditionFailed { condition: 0, actual: Some(second) });
        assert_eq!(value(node.db(), b"b"), None);
    }
    node.db().keyspace("k").unwrap().delete_if(b"a", Expect::Revision(second)).unwrap();
    node.through_restarts(|db| assert_eq!(value(db, b"a"), None));
}

fn a_commit_is_all_or_nothing(node: &mut Node) {
    let (keyspace, other, stream) =
        (node.db().keyspace("k").unwrap(), node.db().keyspace("l").unwrap(), node.db().stream("s").unwrap());
    let mut commit = CommitBuilder::new();
    commit.expect(keyspace.id(), b"a", Expect::Absent).unwrap();
    commit.put(keyspace.id(), b"a", b"1").unwrap().put(other.id(), b"b", b"2").unwrap();
    commit.append(stream.id(), Some(Offset(0)), &records(&["first", "second"])).unwrap();
    let ack = node.db().commit(&commit).unwrap();
    assert_eq!(ack.appends[0].first, Offset(0));
    let refused = node.db().commit(&commit).unwrap_err();
    assert!(matches!(refused, WriteError::ConditionFailed { condition: 0, .. }), "{refused}");
    let mut commit = CommitBuilder::new();
    commit.put(keyspace.id(), b"a", b"not shown").unwrap().delete(other.id(), b"b").unwrap();
    commit.append(stream.id(), Some(Offset(7)), &records(&["not appended"])).unwrap();
    let refused = node.db().commit(&commit).unwrap_err();
    assert_eq!(refused, WriteError::OffsetConflict { stream: stream.id(), next: Offset(2) });
    drop((keyspace, other, stream));
    node.through_restarts(|db| {
        for (name, key, content) in [("k", b"a", b"1"), ("l", b"b", b"2")] {
            let entry = db.keyspace(name).unwrap().get(key).unwrap().unwrap();
            assert_eq!((&entry.value[..], entry.revision), (&content[..], ack.revision.unwrap()));
        }
        assert_eq!(read_all(db, "s").unwrap().1, [b"first".to_vec(), b"second".to_vec()]);
    });
}

fn revisions_rise_over_restarts(node: &mut Node) {
    let mut last = Revision::default();
    for round in 0..6 {
        let revision = node.db().keyspace("k").unwrap().put(b"a", b"").unwrap().revision.unwrap();
        assert!(revision > last, "{revision} after {last}");
        last = revision;
        node.restart(Restart::ALL[round % 2]);
    }
}

fn a_stream_keeps_what_was_appended_until_trimmed(node: &mut Node) {
    let stream = node.db().stream("s").unwrap();
    for number in 0..40 {
        let ack = stream.append(&records(&[&format!("{number} a"), &format!("{number} b")])).unwrap();
        assert_eq!(ack.appends[0].first, Offset(number * 2));
    }
    stream.trim(Offset(33)).unwrap();
    assert!(matches!(stream.read(Offset(32), 1, 1000).unwrap_err(), ReadError::Trimmed { start: Offset(33), .. }));
    assert!(matches!(stream.read(Offset(81), 1, 1000).unwrap_err(), ReadError::BeyondEnd { next: Offset(80), .. }));
    drop(stream);
    node.db().maintain().unwrap();
    node.through_restarts(|db| {
        let (start, payloads) = read_all(db, "s").unwrap();
        assert_eq!((start, payloads.len()), (33, 47));
        assert_eq!(payloads[0], b"16 b");
        let page = db.stream("s").unwrap().read(Offset(50), 3, 1_000_000).unwrap();
        assert_eq!((page.record_count(), page.next), (3, Offset(53)));
    });
    let stream = node.db().stream("s").unwrap();
    assert_eq!(stream.append_expecting(&records(&["next"]), Offset(80)).unwrap().appends[0].first, Offset(80));
    assert!(stream.append_expecting(&records(&["late"]), Offset(80)).is_err());
}

fn a_stream_is_found_by_time(node: &mut Node) {
    let start = node.clock().wall().micros();
    let stream = node.db().stream("s").unwrap();
    for _ in 0..10 {
        node.pass(Duration::from_secs(1));
        stream.append(&records(&["a", "b"])).unwrap();
    }
    drop(stream);
    node.through_restarts(|db| {
        let stream = db.stream("s").unwrap();
        let at = |seconds: u64| stream.offset_at(SpaceTime(start + seconds * 1_000_000)).unwrap();
        assert_eq!((at(0), at(1), at(2), at(10)), (Offset(0), Offset(0), Offset(2), Offset(18)));
        assert_eq!(stream.offset_at(SpaceTime(start + 10_000_001)).unwrap(), Offset(20));
    });
}

fn retention_trims_by_count_and_age(node: &mut Node) {
    let by_count = StreamConfig { max_records: Some(5), ..StreamConfig::default() };
    let by_age = StreamConfig { max_age: Some(Duration::from_secs(60)), ..StreamConfig::default() };
    let counted = node.db().create_stream("counted", &by_count).unwrap().0;
    let aged = node.db().create_stream("aged", &by_age).unwrap().0;
    for _ in 0..20 {
        counted.append(&records(&["x"])).unwrap();
        aged.append(&records(&["x"])).unwrap();
        node.pass(Duration::from_secs(5));
    }
    drop((counted, aged));
    assert!(node.db().maintain().unwrap().trimmed_streams > 0);
    node.through_restarts(|db| {
        assert_eq!(read_all(db, "counted").unwrap().1.len(), 5);
        let kept = read_all(db, "aged").unwrap().1.len();
        assert!((11..=13).contains(&kept), "{kept} of 20, one each 5 s, are younger than 60 s");
    });
}

fn a_deleted_stream_is_gone_and_its_name_is_free(node: &mut Node) {
    let stream = node.db().stream("s").unwrap();
    stream.append(&records(&["old"])).unwrap();
    stream.delete().unwrap();
    assert_eq!(stream.append(&records(&["late"])).unwrap_err(), WriteError::NoSuchStream(stream.id()));
    drop(stream);
    node.restart(Restart::Kill);
    assert!(node.db().find_stream("s").is_none());
    let stream = node.db().stream("s").unwrap();
    assert_eq!(stream.append(&records(&["new"])).unwrap().appends[0].first, Offset(0));
    drop(stream);
    node.db().maintain().unwrap();
    node.through_restarts(|db| assert_eq!(read_all(db, "s").unwrap(), (0, vec![b"new".to_vec()])));
}

fn a_tail_is_woken_by_an_append(node: &mut Node) {
    let stream = node.db().stream("s").unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| stream.wait_for(Offset(1), Duration::from_secs(60)));
        stream.append(&records(&["one"])).unwrap();
        stream.append(&records(&["two"])).unwrap();
        assert!(waiting.join().unwrap());
    });
    assert!(!stream.wait_for(Offset(9), Duration::ZERO));
}

/// Overwritten and moved values, freed segments and a flushed state do not change what reads return.
fn maintenance_changes_nothing_that_is_read(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    for round in 0..12u8 {
        for number in 0..20u8 {
            let bytes = if number % 4 == 0 { 3000 } else { 30 };
            // A fifth of the values is written once and has to be moved. The others are overwritten.
            if number % 5 != 0 || round == 0 {
                keyspace.put(&[number], &vec![round ^ number; bytes]).unwrap();
            }
        }
    }
    drop(keyspace);
    let moved = (0..4).map(|_| {
        node.db().flush().unwrap();
        node.db().maintain().unwrap()
    });
    assert!(moved.map(|round| round.freed_segments).sum::<u64>() > 0, "something is freed");
    node.through_restarts(|db| {
        for number in 0..20u8 {
            let round = if number % 5 == 0 { 0 } else { 11 };
            let bytes = if number % 4 == 0 { 3000 } else { 30 };
            assert_eq!(value(db, &[number]).unwrap(), vec![round ^ number; bytes]);
        }
    });
}

fn a_kill_replays_only_what_was_not_persisted(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    for number in 0..50u32 {
        keyspace.put(&number.to_be_bytes(), b"flushed").unwrap();
    }
    drop(keyspace);
    assert_eq!(node.reopen().replayed_records, 0, "a clean close persists all");
    for number in 50..60u32 {
        node.db().keyspace("k").unwrap().put(&number.to_be_bytes(), b"replayed").unwrap();
    }
    let report = node.kill();
    assert!((10..=12).contains(&report.replayed_records), "{report:?}");
    assert_eq!(node.db().keyspace("k").unwrap().iter(ScanRange::default()).count(), 60);
}

on_every_backend!(
    a_key_holds_its_last_value,
    keys_and_values_are_any_bytes,
    keyspaces_do_not_see_each_other,
    every_level_survives_a_kill,
    scans_keep_to_their_range_in_both_orders,
    an_iterator_shows_one_moment,
    conditions_decide_a_write,
    a_commit_is_all_or_nothing,
    revisions_rise_over_restarts,
    a_stream_keeps_what_was_appended_until_trimmed,
    a_stream_is_found_by_time,
    retention_trims_by_count_and_age,
    a_deleted_stream_is_gone_and_its_name_is_free,
    a_tail_is_woken_by_an_append,
    maintenance_changes_nothing_that_is_read,
    a_kill_replays_only_what_was_not_persisted,
);
