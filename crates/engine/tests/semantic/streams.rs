//! Producers, expectations, compaction by key, limits of streams.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use thalweg_engine::{
    Database, Producer, Stream, WriteError,
    types::{
        Action, Classified, Durability, Offset,
        command::{
            AppendConditions, CommitBuilder, Compaction, Expect, ExpectedOffset, ProducerRefusal, ProducerStamp,
            StreamConfig, StreamLimit,
        },
        limits::{PRODUCER_MEMORY, PRODUCER_RESULTS},
        record::{Record, RecordBatch},
    },
};

use crate::{
    common::{Rng, batch, read_all, seed},
    support::{Node, Restart},
};

fn records(texts: &[&str]) -> RecordBatch {
    batch(&texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>())
}

fn texts(db: &Database, stream: &str) -> Vec<String> {
    let (_, all) = read_all(db, stream).unwrap();
    all.into_iter().map(|payload| String::from_utf8(payload).unwrap()).collect()
}

fn stamp(id: &str, epoch: u32, sequence: u64) -> AppendConditions<'_> {
    AppendConditions { expected: ExpectedOffset::Any, producer: Some(ProducerStamp { id, epoch, sequence }) }
}

fn refusal(error: &WriteError) -> ProducerRefusal {
    match error {
        WriteError::ProducerRefused { refusal, .. } => *refusal,
        other => panic!("{other}"),
    }
}

fn an_expectation_is_met_or_answered_with_the_next_offset(node: &mut Node) {
    let stream = node.db().stream("s").unwrap();
    let conflict = |next| WriteError::OffsetConflict { stream: stream.id(), next: Offset(next) };
    stream.append_expecting(&records(&["a", "b"]), ExpectedOffset::NoRecords).unwrap();
    assert_eq!(stream.append_expecting(&records(&["x"]), ExpectedOffset::NoRecords).unwrap_err(), conflict(2));
    assert_eq!(stream.append_expecting(&records(&["x"]), Offset(1)).unwrap_err(), conflict(2));
    stream.append_expecting(&records(&["c"]), Offset(2)).unwrap();
    stream.append_expecting(&records(&["d"]), ExpectedOffset::Any).unwrap();
    stream.trim(Offset(4)).unwrap();
    let error = stream.append_expecting(&records(&["x"]), ExpectedOffset::NoRecords).unwrap_err();
    assert_eq!(error, conflict(4), "a stream that was trimmed to its end held records");
    assert_eq!((error.code(), error.action()), ("offset_conflict", Action::Fix));
    let mut commit = CommitBuilder::new();
    commit.put(node.db().keyspace("k").unwrap().id(), b"a", b"1").unwrap();
    commit.append(stream.id(), ExpectedOffset::NoRecords, &records(&["x"])).unwrap();
    assert_eq!(node.db().commit(&commit).unwrap_err(), conflict(4));
    assert_eq!(node.db().keyspace("k").unwrap().get(b"a").unwrap(), None);
    stream.delete().unwrap();
    let again = node.db().stream("s").unwrap();
    again.append_expecting(&records(&["new"]), ExpectedOffset::NoRecords).unwrap();
}

fn a_repeated_append_happens_once_and_gets_its_first_answer(node: &mut Node) {
    let stream = node.db().stream("s").unwrap();
    let first = stream.append_with(&records(&["a", "b"]), &stamp("p", 0, 0)).unwrap();
    stream.append(&records(&["other"])).unwrap();
    assert!(!first.duplicate);
    drop(stream);
    node.through_restarts(|db| {
        let again = db.stream("s").unwrap().append_with(&records(&["a", "b"]), &stamp("p", 0, 0)).unwrap();
        assert!(again.duplicate);
        assert_eq!((again.revision, &again.appends), (first.revision, &first.appends));
        assert_eq!(texts(db, "s"), ["a", "b", "other"]);
    });
}

fn numbers_out_of_order_are_typed_refusals(node: &mut Node) {
    let stream = node.db().stream("s").unwrap();
    let append = |terms| stream.append_with(&records(&["x"]), &terms);
    let unknown = append(stamp("p", 0, 3)).unwrap_err();
    assert_eq!((refusal(&unknown), unknown.code()), (ProducerRefusal::Unknown, "unknown_producer"));
    for sequence in 0..=PRODUCER_RESULTS {
        append(stamp("p", 1, sequence)).unwrap();
    }
    let gap = append(stamp("p", 1, PRODUCER_RESULTS + 5)).unwrap_err();
    let expected = PRODUCER_RESULTS + 1;
    assert_eq!((refusal(&gap), gap.code()), (ProducerRefusal::SequenceGap { expected }, "sequence_gap"));
    let old = append(stamp("p", 1, 0)).unwrap_err();
    assert_eq!((refusal(&old), old.code()), (ProducerRefusal::DuplicateTooOld { oldest: 1 }, "duplicate_too_old"));
    assert!(append(stamp("p", 1, 1)).unwrap().duplicate);
    let fenced = append(stamp("p", 0, expected)).unwrap_err();
    assert_eq!((refusal(&fenced), fenced.code()), (ProducerRefusal::Fenced { epoch: 1 }, "producer_fenced"));
    assert_eq!(node.db().stream("s").unwrap().info().unwrap().next, Offset(expected));
    let none = stream.with_durability(Durability::None).append_with(&records(&["x"]), &stamp("p", 1, expected));
    assert_eq!(none.unwrap_err(), WriteError::LevelTooLow, "level none has no answer to deduplicate");
    let bad = append(stamp("a b", 0, 0)).unwrap_err();
    assert_eq!((bad.code(), bad.action()), ("bad_producer_id", Action::Fix));
}

fn a_producer_is_forgotten_by_the_time_of_entries(node: &mut Node) {
    node.db().stream("s").unwrap().append_with(&records(&["a"]), &stamp("p", 0, 0)).unwrap();
    node.clock().step_wall(node.db().stream("s").unwrap().info().unwrap().last_time.plus(2 * PRODUCER_MEMORY));
    assert!(node.db().stream("s").unwrap().append_with(&records(&["a"]), &stamp("p", 0, 0)).unwrap().duplicate);
    node.pass(PRODUCER_MEMORY + Duration::from_secs(1));
    let stream = node.db().stream("s").unwrap();
    let late = stream.append_with(&records(&["b"]), &stamp("p", 0, 1)).unwrap_err();
    assert_eq!(refusal(&late), ProducerRefusal::Unknown);
    assert!(!stream.append_with(&records(&["a"]), &stamp("p", 0, 0)).unwrap().duplicate, "it begins again");
}

fn a_session_numbers_its_appends_and_fences_the_one_before(node: &mut Node) {
    let stream = node.db().stream("s").unwrap();
    let mut old = stream.producer("p").unwrap();
    old.append(&records(&["1"])).unwrap();
    let mut new = stream.producer("p").unwrap();
    assert_eq!((old.epoch(), new.epoch(), new.next_sequence()), (1, 2, 0));
    assert_eq!(refusal(&old.append(&records(&["2"])).unwrap_err()), ProducerRefusal::Fenced { epoch: 2 });
    new.append(&records(&["3"])).unwrap();
    let conflict = new.append_expecting(&records(&["x"]), Offset(7)).unwrap_err();
    assert!(matches!(conflict, WriteError::OffsetConflict { next: Offset(2), .. }));
    new.append_expecting(&records(&["4"]), Offset(2)).unwrap();
    assert_eq!((new.id(), new.next_sequence()), ("p", 2), "a rejected append uses no sequence");
    let (epoch, next) = (new.epoch(), new.next_sequence());
    drop((old, new, stream));
    node.kill();
    let stream = node.db().stream("s").unwrap();
    let info = stream.producer_info("p").unwrap().unwrap();
    assert_eq!((info.epoch, info.next_sequence), (epoch, next));
    assert_eq!(stream.producers().unwrap(), [info]);
    stream.producer_at("p", epoch, next).append(&records(&["5"])).unwrap();
    assert_eq!(texts(node.db(), "s"), ["1", "3", "4", "5"]);
}

/// Consume, transform, produce: the commit happens once, however often it is sent.
fn a_repeated_commit_happens_once(node: &mut Node) {
    let build = |db: &Database, producer: &Producer| {
        let mut commit = CommitBuilder::new();
        let keyspace = db.keyspace("k").unwrap().id();
        commit.expect(keyspace, b"cursor", Expect::Absent).unwrap().put(keyspace, b"cursor", b"7").unwrap();
        producer.append_to(&mut commit, &records(&["out"]), ExpectedOffset::Any).unwrap();
        commit
    };
    let producer = node.db().stream("s").unwrap().producer("p").unwrap();
    let first = node.db().commit(&build(node.db(), &producer)).unwrap();
    let epoch = producer.epoch();
    drop(producer);
    node.through_restarts(|db| {
        let mut producer = db.stream("s").unwrap().producer_at("p", epoch, 0);
        let again = db.commit(&build(db, &producer)).unwrap();
        assert_eq!((again.duplicate, again.revision, again.appends), (true, first.revision, first.appends.clone()));
        producer.committed();
        assert!(matches!(db.commit(&build(db, &producer)).unwrap_err(), WriteError::ConditionFailed { .. }));
        assert_eq!(texts(db, "s"), ["out"]);
    });
}

/// Several producers resend everything repeatedly, from several threads, while the node is killed. Each of their
/// records is present once, in order.
fn concurrent_retries_with_kills_append_once(node: &mut Node) {
    const PRODUCERS: u64 = 4;
    const ROUNDS: u64 = 6;
    const PER_ROUND: u64 = 12;
    let seed = seed(77);
    for round in 0..ROUNDS {
        let db = node.db().clone();
        let duplicates = Arc::new(AtomicU64::new(0));
        std::thread::scope(|scope| {
            for number in 0..PRODUCERS {
                // Two threads act as the same producer: one is the retry of the other.
                for twin in 0..2 {
                    let (stream, duplicates) = (db.stream("s").unwrap(), duplicates.clone());
                    let mut rng = Rng(seed ^ (round << 8) ^ (number << 4) ^ twin);
                    scope.spawn(move || {
                        let id = format!("p{number}");
                        // Begin within the last round: after a kill a client does not know what was acknowledged.
                        let begin = (round * PER_ROUND).saturating_sub(rng.below(PER_ROUND));
                        for sequence in begin..(round + 1) * PER_ROUND {
                            let record = records(&[&format!("{number}:{sequence}")]);
                            let ack = stream.append_with(&record, &stamp(&id, 0, sequence)).unwrap();
                            duplicates.fetch_add(u64::from(ack.duplicate), Ordering::Relaxed);
                        }
                    });
                }
            }
        });
        assert!(duplicates.load(Ordering::Relaxed) >= PRODUCERS * PER_ROUND, "each append was sent at least twice");
        drop(db);
        node.restart(if round % 2 == 0 { Restart::Kill } else { Restart::Clean });
        let all = texts(node.db(), "s");
        for number in 0..PRODUCERS {
            let own: Vec<_> = all.iter().filter(|text| text.starts_with(&format!("{number}:"))).cloned().collect();
            let expected: Vec<_> =
                (0..(round + 1) * PER_ROUND).map(|sequence| format!("{number}:{sequence}")).collect();
            assert_eq!(own, expected, "round {round}");
        }
    }
}

fn keyed(key: &str, payload: &[u8]) -> RecordBatch {
    let mut batch = RecordBatch::new();
    batch.push(&Record { key: Some(key.as_bytes()), payload, ..Record::default() }).unwrap();
    batch
}

fn tombstone(key: &str) -> RecordBatch {
    let mut batch = RecordBatch::new();
    batch.push(&Record { key: Some(key.as_bytes()), is_tombstone: true, ..Record::default() }).unwrap();
    batch
}

/// Returns offset, key, payload length and the tombstone flag of all records, read in pages of a few records.
fn keyed_records(stream: &Stream) -> Vec<(u64, String, usize, bool)> {
    let (mut all, mut from) = (Vec::new(), stream.info().unwrap().start);
    loop {
        let page = stream.read(from, 7, 4096).unwrap();
        page.for_each(&mut |offset, _, record| {
            let key = String::from_utf8(record.key.unwrap_or(b"-").to_vec()).unwrap();
            all.push((offset.0, key, record.payload.len(), record.is_tombstone));
            ControlFlow::Continue(())
        })
        .unwrap();
        if page.record_count() == 0 {
            assert_eq!(page.next, page.high_watermark, "a page without records is the end");
            return all;
        }
        assert!(page.next > from);
        from = page.next;
    }
}

fn compacted(grace_seconds: u64) -> StreamConfig {
    let compaction = Some(Compaction { tombstone_grace: Duration::from_secs(grace_seconds) });
    StreamConfig { compaction, ..StreamConfig::default() }
}

/// Appends to another stream until the log begins another segment.
pub fn roll_segment(db: &Database) {
    let filler = db.stream("filler").unwrap();
    let before = db.stats().log.segments;
    let batch = batch(&[vec![7; 8 * 1024]]);
    for _ in 0..1000 {
        filler.append(&batch).unwrap();
        filler.trim(filler.info().unwrap().next).unwrap();
        if db.stats().log.segments > before {
            return;
        }
        // Freed segments reduce the count, so two new segments in a row may show as none.
    }
}

fn settle(db: &Database) -> u64 {
    let mut dropped = 0;
    for _ in 0..6 {
        db.flush().unwrap();
        dropped += db.maintain().unwrap().compacted_records;
    }
    dropped
}

fn compaction_keeps_the_newest_of_each_key(node: &mut Node) {
    let (stream, _) = node.db().create_stream("s", &compacted(60)).unwrap();
    let mut newest = BTreeMap::new();
    let mut rng = Rng(seed(5));
    for number in 0..400_u64 {
        let key = format!("k{}", rng.below(20));
        let payload = vec![b'v'; 50 + number as usize];
        let at = stream.append(&keyed(&key, &payload)).unwrap().appends[0].first;
        newest.insert(key.clone(), (at.0, key, payload.len(), false));
    }
    // A record without a key can have no newer one.
    let plain = stream.append(&records(&["plain"])).unwrap().appends[0].first;
    roll_segment(node.db());
    roll_segment(node.db());
    let before = stream.info().unwrap();
    assert!(settle(node.db()) > 300);
    let after = stream.info().unwrap();
    assert_eq!((after.start, after.next), (before.start, before.next), "offsets stay");
    assert!(after.bytes * 4 < before.bytes, "{} of {} bytes", after.bytes, before.bytes);
    let mut expected: Vec<_> = newest.into_values().chain([(plain.0, "-".to_owned(), 5, false)]).collect();
    expected.sort();
    assert_eq!(keyed_records(&stream), expected);
    let (offset, ..) = expected[3];
    let page = stream.read(Offset(offset), 1, 1).unwrap();
    assert_eq!(
        (page.batches[0].first, page.next),
        (Offset(offset), Offset(offset + 1)),
        "from an offset that is there"
    );
    let page = stream.read(Offset(1), 1, 1).unwrap();
    assert_eq!(page.batches[0].first.0, expected[0].0.max(1), "and from one that is not");
    drop(stream);
    node.through_restarts(|db| assert_eq!(keyed_records(&db.stream("s").unwrap()), expected));
}

fn tombstones_go_after_their_grace_and_nothing_comes_back(node: &mut Node) {
    let (stream, _) = node.db().create_stream("s", &compacted(3600)).unwrap();
    for key in ["a", "b", "a", "b"] {
        stream.append(&keyed(key, &[1; 300])).unwrap();
    }
    let gone = stream.append(&tombstone("a")).unwrap().appends[0].first;
    roll_segment(node.db());
    roll_segment(node.db());
    settle(node.db());
    let kept = [(3, "b".to_owned(), 300, false), (gone.0, "a".to_owned(), 0, true)];
    assert_eq!(keyed_records(&stream), kept, "readers must see the tombstone");
    node.pass(Duration::from_secs(3601));
    // The next pass runs when there are enough new records.
    for _ in 0..4 {
        stream.append(&keyed("c", &[1; 300])).unwrap();
    }
    roll_segment(node.db());
    roll_segment(node.db());
    settle(node.db());
    drop(stream);
    node.through_restarts(|db| {
        let found: Vec<_> =
            keyed_records(&db.stream("s").unwrap()).into_iter().map(|(at, key, ..)| (at, key)).collect();
        assert_eq!(found, [(3, "b".to_owned()), (8, "c".to_owned())]);
    });
}

/// Newest record per key, compared with a map, during appends, trims, tombstones and restarts.
fn compaction_follows_a_map(node: &mut Node) {
    let mut rng = Rng(seed(6));
    node.db().create_stream("s", &compacted(1)).unwrap();
    let mut last: BTreeMap<String, (u64, Option<Vec<u8>>)> = BTreeMap::new();
    let mut start = 0;
    for round in 0..12 {
        let stream = node.db().stream("s").unwrap();
        for _ in 0..60 {
            let key = format!("k{}", rng.below(15));
            let value = (rng.below(5) > 0).then(|| rng.bytes(100));
            let record = value.as_ref().map_or_else(|| tombstone(&key), |value| keyed(&key, value));
            let at = stream.append(&record).unwrap().appends[0].first.0;
            last.insert(key, (at, value));
        }
        if rng.below(3) == 0 {
            let info = stream.info().unwrap();
            start = info.start.0 + rng.below((info.next.0 - info.start.0) / 3);
            stream.trim(Offset(start)).unwrap();
        }
        node.pass(Duration::from_secs(2));
        roll_segment(node.db());
        node.db().maintain().unwrap();
        settle(node.db());
        // A reader from the start must arrive at the map, whatever older records still exist.
        let mut view: BTreeMap<String, (u64, bool)> = BTreeMap::new();
        let mut offsets = Vec::new();
        for (offset, key, _, is_tombstone) in keyed_records(&stream) {
            offsets.push(offset);
            view.insert(key, (offset, is_tombstone));
        }
        assert!(offsets.is_sorted() && offsets.iter().all(|offset| *offset >= start));
        view.retain(|_, (_, is_tombstone)| !*is_tombstone);
        let alive = last.iter().filter(|(_, (at, value))| *at >= start && value.is_some());
        let expected: BTreeMap<_, _> = alive.map(|(key, (at, _))| (key.clone(), (*at, false))).collect();
        assert_eq!(view, expected, "round {round}");
        drop(stream);
        node.restart([Restart::Clean, Restart::Kill][rng.below(2) as usize]);
    }
    let stream = node.db().stream("s").unwrap();
    assert!(stream.info().unwrap().bytes < 12 * 60 * 60, "most of it is gone");
}

fn offsets_of_times_reach_into_compacted_batches(node: &mut Node) {
    let (stream, _) = node.db().create_stream("s", &compacted(60)).unwrap();
    let mut times = Vec::new();
    for number in 0..20 {
        node.pass(Duration::from_secs(1));
        stream.append(&keyed(&format!("k{}", number % 5), &[1; 300])).unwrap();
        times.push(stream.info().unwrap().last_time);
    }
    roll_segment(node.db());
    roll_segment(node.db());
    assert_eq!(settle(node.db()), 15);
    let at = |time| stream.offset_at(time).unwrap().0;
    // All records of the first time are gone, but a read for it still begins there.
    assert_eq!((at(times[0]), at(times[3]), at(times[15]), at(times[17])), (0, 15, 15, 17));
    assert_eq!(at(times[19].plus(Duration::from_secs(1))), 20);
}

fn a_stream_takes_what_its_limits_allow(node: &mut Node) {
    let config = StreamConfig { max_record_bytes: Some(100), max_batch_bytes: Some(150), ..StreamConfig::default() };
    let (stream, _) = node.db().create_stream("s", &config).unwrap();
    drop(stream);
    node.through_restarts(|db| {
        let stream = db.stream("s").unwrap();
        assert_eq!(stream.info().unwrap().config, config);
        stream.append(&batch(&[vec![0; 99]])).unwrap();
        let error = stream.append(&batch(&[vec![0; 100]])).unwrap_err();
        assert!(matches!(
            error,
            WriteError::OverStreamLimit { limit: StreamLimit::RecordBytes, max: 100, got: 101, .. }
        ));
        assert_eq!((error.code(), error.action()), ("over_stream_limit", Action::Fix));
        let error = stream.append(&batch(&[vec![0; 80], vec![0; 80]])).unwrap_err();
        assert!(
            matches!(error, WriteError::OverStreamLimit { limit: StreamLimit::BatchBytes, max: 150, .. }),
            "{error}"
        );
    });
}

/// Retention follows the time of the entries: setting the clock trims nothing, elapsed time does.
fn retention_is_checked_by_the_entries_own_time(node: &mut Node) {
    let config = StreamConfig { max_age: Some(Duration::from_secs(60)), ..StreamConfig::default() };
    let (stream, _) = node.db().create_stream("s", &config).unwrap();
    stream.append(&records(&["old"])).unwrap();
    node.clock().step_wall(stream.info().unwrap().last_time.plus(Duration::from_secs(86_400)));
    node.db().maintain().unwrap();
    assert_eq!(stream.info().unwrap().start, Offset(0), "a stepped clock trims nothing");
    node.pass(Duration::from_secs(40));
    stream.append(&records(&["new"])).unwrap();
    node.pass(Duration::from_secs(40));
    node.db().maintain().unwrap();
    assert_eq!(stream.info().unwrap().start, Offset(1));
    drop(stream);
    node.through_restarts(|db| assert_eq!(texts(db, "s"), ["new"]));
}

on_every_backend!(
    compaction_keeps_the_newest_of_each_key,
    tombstones_go_after_their_grace_and_nothing_comes_back,
    compaction_follows_a_map,
    offsets_of_times_reach_into_compacted_batches,
    a_stream_takes_what_its_limits_allow,
    retention_is_checked_by_the_entries_own_time,
    an_expectation_is_met_or_answered_with_the_next_offset,
    a_repeated_append_happens_once_and_gets_its_first_answer,
    numbers_out_of_order_are_typed_refusals,
    a_producer_is_forgotten_by_the_time_of_entries,
    a_session_numbers_its_appends_and_fences_the_one_before,
    a_repeated_commit_happens_once,
    concurrent_retries_with_kills_append_once,
);
