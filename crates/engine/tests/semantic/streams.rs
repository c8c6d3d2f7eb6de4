//! Producers, expectations, compaction by key, limits of streams.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use thalweg_engine::{
    Database, Producer, WriteError,
    types::{
        Action, Classified, Durability, Offset,
        command::{AppendTerms, CommitBuilder, Expect, ExpectedOffset, ProducerRefusal, ProducerStamp},
        limits::{PRODUCER_MEMORY, PRODUCER_RESULTS},
        record::RecordBatch,
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

fn stamp(id: &str, epoch: u32, sequence: u64) -> AppendTerms<'_> {
    AppendTerms { expected: ExpectedOffset::Any, producer: Some(ProducerStamp { id, epoch, sequence }) }
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
    assert_eq!(none.unwrap_err(), WriteError::OutcomeUnknown, "an answer that says nothing is no answer");
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
    assert!(!stream.append_with(&records(&["a"]), &stamp("p", 0, 0)).unwrap().duplicate, "it begins anew");
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
    assert_eq!((new.id(), new.next_sequence()), ("p", 2), "what was refused used no number");
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

/// Consume, transform, produce: the commit is one however often it is sent.
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

/// Several producers send everything again and again, from several threads, while the node is killed under
/// them: each of their records is there once, in order.
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
                // Two threads are the same producer: one of them is the retry of the other.
                for twin in 0..2 {
                    let (stream, duplicates) = (db.stream("s").unwrap(), duplicates.clone());
                    let mut rng = Rng(seed ^ (round << 8) ^ (number << 4) ^ twin);
                    scope.spawn(move || {
                        let id = format!("p{number}");
                        // Begins in what the last round did: after the kill nobody knows what was acknowledged.
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
        assert!(duplicates.load(Ordering::Relaxed) >= PRODUCERS * PER_ROUND, "each was sent twice at least");
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

on_every_backend!(
    an_expectation_is_met_or_answered_with_the_next_offset,
    a_repeated_append_happens_once_and_gets_its_first_answer,
    numbers_out_of_order_are_typed_refusals,
    a_producer_is_forgotten_by_the_time_of_entries,
    a_session_numbers_its_appends_and_fences_the_one_before,
    a_repeated_commit_happens_once,
    concurrent_retries_with_kills_append_once,
);
