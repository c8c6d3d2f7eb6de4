//! Tests of the machine, one behaviour each.

use std::{ops::ControlFlow, sync::atomic::Ordering, time::Duration};

use thalweg_state::{
    keyspaces::{Fetch, ScanRange, StoredRef, StoredValue},
    machine::{Entry, LocalOutcome, Machine, MachineError, MachineOptions, StreamReadError},
};
use thalweg_store::{Backend, Direction};
use thalweg_types::{
    Generation, Index, KeyspaceId, LogPosition, Lsn, Offset, Revision, SpaceTime, StreamId, Term,
    command::{self, AppendedAt, CommitBuilder, Expect, KeyspaceConfig, MoveTarget, Outcome, StreamConfig},
    limits,
    record::RecordBatch,
};

use crate::support::{Bench, MapBackend, apply, command, frame};

const KS: KeyspaceId = KeyspaceId(1);
const STREAM: StreamId = StreamId(1);
/// Number of index entries that are deleted together with their stream.
const EAGER: usize = 64;

fn bench() -> Bench {
    let mut bench = Bench::new(MachineOptions { inline_value_bytes: 16 });
    let outcomes = bench.run(
        1,
        &[
            command(|out| command::encode_create_keyspace(out, "users", &KeyspaceConfig::default()).unwrap()),
            command(|out| command::encode_create_stream(out, "events", &StreamConfig::default()).unwrap()),
        ],
    );
    let created = [Outcome::Keyspace { id: KS, created: true }, Outcome::Stream { id: STREAM, created: true }];
    assert_eq!(outcomes, created);
    bench
}

fn put(key: &[u8], value: &[u8]) -> Vec<u8> {
    command(|out| command::encode_put(out, KS, key, value).unwrap())
}

fn commit(build: impl FnOnce(&mut CommitBuilder)) -> Vec<u8> {
    let mut builder = CommitBuilder::new();
    build(&mut builder);
    command(|out| builder.encode(out))
}

fn batch(payloads: &[&[u8]]) -> RecordBatch {
    let mut batch = RecordBatch::new();
    payloads.iter().for_each(|payload| batch.push_payload(payload).unwrap());
    batch
}

fn append(records: usize) -> Vec<u8> {
    command(|out| command::encode_append(out, STREAM, None, &batch(&vec![b"0123456789".as_slice(); records])))
}

fn trim(before: u64) -> Vec<u8> {
    command(|out| command::encode_trim_stream(out, STREAM, Offset(before)))
}

fn reclaim(bench: &mut Bench, max: u32) -> LocalOutcome {
    bench.local(&MoveTarget::Reclaimed { stream: STREAM, max })
}

fn forgot(rows: u32, more: bool) -> LocalOutcome {
    LocalOutcome::SegmentForgotten { rows, more }
}

fn committed(revision: u64) -> Outcome {
    Outcome::Committed { revision: Revision(revision), appends: vec![] }
}

fn keys(machine: &Machine, range: &ScanRange<'_>) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let visit = &mut |item: thalweg_state::keyspaces::Item<'_>| {
        assert_eq!(item.value.is_none(), range.fetch == Fetch::KeysOnly);
        keys.push(item.key.to_vec());
        ControlFlow::Continue(())
    };
    machine.read_view().scan(KS, range, visit).unwrap();
    keys
}

#[test]
fn each_commit_has_its_own_revision() {
    let mut bench = bench();
    let outcomes = bench.run(2, &[put(b"a", b"1"), put(b"b", b""), put(b"", b"empty key")]);
    assert_eq!(outcomes, [committed(1), committed(2), committed(3)]);
    let stored = bench.machine.get(KS, b"").unwrap().unwrap();
    assert_eq!((stored.revision, stored.value), (Revision(3), StoredValue::Inline("empty key".into())));
    let empty = bench.machine.get(KS, b"b").unwrap().unwrap();
    assert_eq!(empty.value, StoredValue::Inline("".into()));
    assert_eq!(bench.machine.applied().revision, Revision(3));
}

#[test]
fn blind_writes_read_nothing() {
    let mut bench = bench();
    bench.backend.reads.store(0, Ordering::Relaxed);
    let delete = command(|out| command::encode_delete(out, KS, b"a").unwrap());
    bench.run(2, &[put(b"a", b"1"), put(b"a", &[7; 100]), delete, append(3), append(1)]);
    assert_eq!(bench.backend.reads.load(Ordering::Relaxed), 0);
}

#[test]
fn the_last_write_of_a_key_in_an_entry_wins() {
    let mut bench = bench();
    bench.run(2, &[put(b"a", b"1"), put(b"a", b"2"), put(b"b", b"1"), commit(|c| _ = c.delete(KS, b"b").unwrap())]);
    assert_eq!(bench.machine.get(KS, b"a").unwrap().unwrap().revision, Revision(2));
    assert_eq!(bench.machine.get(KS, b"b").unwrap(), None);
}

#[test]
fn conditions_see_earlier_commands_of_their_entry() {
    let mut bench = bench();
    let if_absent = |key: &[u8]| commit(|c| _ = c.expect(KS, key, Expect::Absent).unwrap().put(KS, key, b"v").unwrap());
    let if_present = |key: &[u8]| commit(|c| _ = c.expect(KS, key, Expect::Present).unwrap().delete(KS, key).unwrap());
    let swap = |key: &[u8], revision| {
        commit(|c| _ = c.expect(KS, key, Expect::Revision(Revision(revision))).unwrap().put(KS, key, b"w").unwrap())
    };
    let failed = |actual: Option<u64>| Outcome::ConditionFailed { condition: 0, actual: actual.map(Revision) };
    let outcomes = bench.run(
        2,
        &[
            if_absent(b"k"),
            if_absent(b"k"),
            swap(b"k", 1),
            swap(b"k", 1),
            if_present(b"k"),
            if_present(b"k"),
            if_absent(b"k"),
        ],
    );
    let expected =
        [committed(1), failed(Some(1)), committed(2), failed(Some(2)), committed(3), failed(None), committed(4)];
    assert_eq!(outcomes, expected);
    assert_eq!(bench.run(3, &[swap(b"k", 4)]), [committed(5)], "and the writes of earlier entries");
}

#[test]
fn conditions_compare_values_wherever_they_are() {
    let mut bench = bench();
    let long = vec![7; 10_000];
    let mut other = long.clone();
    other[5000] = 8;
    let swap = |from: &[u8], to: &[u8]| {
        commit(|c| _ = c.expect(KS, b"k", Expect::Value(from)).unwrap().put(KS, b"k", to).unwrap())
    };
    let failed = |actual: Option<u64>| Outcome::ConditionFailed { condition: 0, actual: actual.map(Revision) };
    assert_eq!(bench.run(2, &[swap(b"", b"")]), [failed(None)], "an absent key has no value, not an empty one");
    let in_one_entry = [put(b"k", b""), swap(b"x", b""), swap(b"", &long), swap(&other, b""), swap(&long, &long)];
    let expected = [committed(1), failed(Some(1)), committed(2), failed(Some(2)), committed(3)];
    assert_eq!(bench.run(3, &in_one_entry), expected);
    let StoredValue::Blob(_) = bench.machine.get(KS, b"k").unwrap().unwrap().value else { panic!("inline") };
    assert_eq!(bench.run(4, &[swap(&other, b"")]), [failed(Some(3))], "another value of the same length");
    assert_eq!(bench.run(5, &[swap(&long, b"short")]), [committed(4)], "read from the log");
    assert_eq!(bench.run(6, &[swap(b"long", b"")]), [failed(Some(4))]);
    assert_eq!(bench.run(7, &[swap(b"short", b"")]), [committed(5)]);
}

#[test]
fn conditions_compare_revisions() {
    let mut bench = bench();
    bench.run(2, &[put(b"k", b"1"), put(b"k", b"2")]);
    let holds = |bench: &mut Bench, key: &[u8], expect| {
        let outcome = bench.run(3, &[commit(|c| _ = c.expect(KS, key, expect).unwrap())]).remove(0);
        matches!(outcome, Outcome::Committed { .. })
    };
    let (before, after) = (|n| Expect::Before(Revision(n)), |n| Expect::After(Revision(n)));
    for (expect, wanted) in [(before(2), false), (before(3), true), (after(1), true), (after(2), false)] {
        assert_eq!(holds(&mut bench, b"k", expect), wanted, "{expect:?}");
    }
    for (expect, wanted) in [(before(0), false), (before(1), true), (after(0), false)] {
        assert_eq!(holds(&mut bench, b"absent", expect), wanted, "{expect:?}");
    }
}

#[test]
fn without_its_log_a_machine_stops_rather_than_guess() {
    let mut bench = bench();
    let long = vec![7; 10_000];
    bench.run(2, &[put(b"k", &long)]);
    let machine = Machine::open(bench.backend.copy(), bench.options).unwrap();
    let record =
        bench.log.entry(&frame(&[commit(|c| _ = c.expect(KS, b"k", Expect::Value(&long)).unwrap())]), SpaceTime(3));
    let (payload, at, next_lsn) = (&record.payload[..], record.at, record.next_lsn);
    let entry = Entry { term: Term(1), index: Index(9), time: SpaceTime(3), payload, at, next_lsn };
    assert!(matches!(machine.apply(&entry, &mut Vec::new()), Err(MachineError::Blob(_))));
    assert!(matches!(machine.apply(&entry, &mut Vec::new()), Err(MachineError::Stopped)));
}

#[test]
fn a_refused_commit_changes_nothing_and_uses_no_revision() {
    let mut bench = bench();
    bench.run(2, &[put(b"there", b"1"), append(2)]);
    let before = bench.machine.streams();
    let records = batch(&[b"x"]);
    let both = |c: &mut CommitBuilder| _ = c.put(KS, b"new", b"1").unwrap().append(STREAM, None, &records).unwrap();
    let refused = [
        commit(|c| {
            both(c);
            c.expect(KS, b"there", Expect::Present).unwrap().expect(KS, b"there", Expect::Absent).unwrap();
        }),
        commit(|c| {
            both(c);
            c.append(STREAM, Some(Offset(2)), &records).unwrap();
        }),
        commit(|c| {
            both(c);
            c.append(StreamId(9), None, &records).unwrap();
        }),
        commit(|c| {
            both(c);
            c.put(KeyspaceId(2), b"", b"").unwrap();
        }),
        commit(|c| {
            both(c);
            c.delete(KeyspaceId(0), b"").unwrap();
        }),
    ];
    let outcomes = bench.run(3, &refused);
    let expected = [
        Outcome::ConditionFailed { condition: 1, actual: Some(Revision(1)) },
        Outcome::OffsetConflict { stream: STREAM, next: Offset(3) },
        Outcome::NoSuchStream(StreamId(9)),
        Outcome::NoSuchKeyspace(KeyspaceId(2)),
        Outcome::NoSuchKeyspace(KeyspaceId(0)),
    ];
    assert_eq!(outcomes, expected);
    assert_eq!(bench.machine.get(KS, b"new").unwrap(), None);
    assert_eq!(bench.machine.streams(), before);
    assert_eq!(bench.run(4, &[put(b"new", b"1")]), [committed(3)]);
}

#[test]
fn a_commit_spans_keyspaces_and_streams() {
    let mut bench = bench();
    let records = batch(&[b"x", b"y"]);
    let outcomes = bench.run(
        2,
        &[commit(|c| {
            c.append(STREAM, Some(Offset(0)), &records).unwrap().put(KS, b"k", b"v").unwrap();
            c.append(STREAM, Some(Offset(2)), &records).unwrap();
        })],
    );
    let appended = |first| AppendedAt { stream: STREAM, first: Offset(first), count: 2 };
    assert_eq!(outcomes, [Outcome::Committed { revision: Revision(1), appends: vec![appended(0), appended(2)] }]);
}

#[test]
fn a_batch_that_lies_about_its_count_is_malformed() {
    let mut bench = bench();
    let honest = append(2);
    let count_at = honest.len() - batch(&[b"0123456789", b"0123456789"]).bytes().len() - 8;
    for lie in [0_u8, 1, 3, 255] {
        let mut lying = honest.clone();
        lying[count_at] = lie;
        let outcomes = bench.run(2, &[lying]);
        assert!(matches!(outcomes[..], [Outcome::Malformed(_)]), "{lie}: {outcomes:?}");
    }
    assert_eq!(bench.machine.stream(STREAM).unwrap().next, Offset(0));
    let empty = command(|out| command::encode_append(out, STREAM, None, &RecordBatch::new()));
    let nothing = AppendedAt { stream: STREAM, first: Offset(0), count: 0 };
    assert_eq!(bench.run(3, &[empty]), [Outcome::Committed { revision: Revision(1), appends: vec![nothing] }]);
    assert_eq!(bench.machine.batches_from(STREAM, Offset(0), 10, 100).unwrap().batches, vec![]);
}

#[test]
fn large_values_stay_in_the_log() {
    let mut bench = bench();
    let value = vec![0x5A; 17];
    bench.run(2, &[put(b"first", b"1"), put(b"large", &value), put(b"small", &value[..16])]);
    let StoredValue::Blob(blob) = bench.machine.get(KS, b"large").unwrap().unwrap().value else { panic!("inline") };
    assert_eq!(bench.log.read(&blob), value);
    assert!(bench.machine.is_value_live(KS, b"large", &blob).unwrap());
    let small = bench.machine.get(KS, b"small").unwrap().unwrap();
    assert_eq!(small.value, StoredValue::Inline(value[..16].to_vec().into()));
    let live = bench.machine.liveness();
    assert_eq!((live.len(), live[0].1.value_bytes, live[0].1.values), (1, 17, 1));
    let mut seen = Vec::new();
    let visit = &mut |item: thalweg_state::keyspaces::Item<'_>| {
        seen.push((item.revision, item.value == Some(StoredRef::Blob(blob))));
        ControlFlow::Continue(())
    };
    bench.machine.read_view().scan(KS, &ScanRange::default(), visit).unwrap();
    assert_eq!(seen, [(Revision(1), false), (Revision(2), true), (Revision(3), false)]);
}

#[test]
fn scans_honour_prefix_bounds_limit_and_direction() {
    use std::ops::Bound::{Excluded, Included};
    let mut bench = bench();
    let all: [&[u8]; 6] = [b"", b"a", b"ab", b"ac", b"b", b"\xff\xff"];
    bench.run(2, &all.map(|key| put(key, b"v")));
    let range = ScanRange::default();
    assert_eq!(keys(&bench.machine, &range), all);
    assert_eq!(keys(&bench.machine, &ScanRange { prefix: b"a", ..range }), all[1..4]);
    assert_eq!(keys(&bench.machine, &ScanRange { prefix: b"\xff", ..range }), all[5..]);
    assert_eq!(keys(&bench.machine, &ScanRange { prefix: b"a", start: Excluded(b"a"), ..range }), all[2..4]);
    assert_eq!(keys(&bench.machine, &ScanRange { start: Included(b"ab"), end: Included(b"b"), ..range }), all[2..5]);
    assert_eq!(keys(&bench.machine, &ScanRange { start: Included(b"b"), end: Excluded(b"a"), ..range }), all[..0]);
    assert_eq!(keys(&bench.machine, &ScanRange { limit: 2, fetch: Fetch::KeysOnly, ..range }), all[..2]);
    assert_eq!(keys(&bench.machine, &ScanRange { limit: 0, ..range }), all[..0]);
    let reverse = ScanRange { direction: Direction::Reverse, limit: 2, end: Excluded(b"b"), ..range };
    assert_eq!(keys(&bench.machine, &reverse), [all[3], all[2]]);
}

#[test]
fn a_snapshot_does_not_change() {
    let mut bench = bench();
    bench.run(2, &[put(b"a", b"1")]);
    let snapshot = bench.machine.read_view();
    bench.run(3, &[put(b"a", b"2")]);
    assert_eq!(snapshot.get(KS, b"a").unwrap().unwrap().revision, Revision(1));
    assert_eq!(snapshot.applied().revision, Revision(1));
    assert_eq!(bench.machine.get(KS, b"a").unwrap().unwrap().revision, Revision(2));
}

#[test]
fn reads_begin_with_the_batch_that_holds_the_offset() {
    let mut bench = bench();
    bench.run(2, &[append(3), append(1)]);
    bench.run(3, &[append(2)]);
    let firsts = |from, max_batches, max_bytes| {
        let found = bench.machine.batches_from(STREAM, Offset(from), max_batches, max_bytes).unwrap();
        assert_eq!((found.start, found.next), (Offset(0), Offset(6)));
        found.batches.iter().map(|batch| batch.first.0).collect::<Vec<_>>()
    };
    assert_eq!(firsts(0, 9, u64::MAX), [0, 3, 4]);
    assert_eq!(firsts(2, 9, u64::MAX), [0, 3, 4]);
    assert_eq!(firsts(3, 9, u64::MAX), [3, 4]);
    assert_eq!(firsts(5, 9, u64::MAX), [4]);
    assert_eq!(firsts(6, 9, u64::MAX), []);
    assert_eq!(firsts(0, 2, u64::MAX), [0, 3]);
    assert_eq!(firsts(0, 0, u64::MAX), []);
    assert_eq!(firsts(0, 9, 0), [0], "at least one batch");
    assert_eq!(firsts(0, 9, 60), [0, 3], "a record has 15 bytes");
    let beyond = bench.machine.batches_from(STREAM, Offset(7), 1, 1);
    assert!(matches!(beyond, Err(StreamReadError::BeyondEnd { next: Offset(6) })));
    let unknown = bench.machine.batches_from(StreamId(2), Offset(0), 1, 1);
    assert!(matches!(unknown, Err(StreamReadError::NoSuchStream(StreamId(2)))));
}

#[test]
fn a_trim_may_end_inside_a_batch_which_stays_until_it_is_wholly_below() {
    let mut bench = bench();
    bench.run(2, &[append(3), append(3), append(3)]);
    assert_eq!(bench.run(3, &[trim(4)]), [Outcome::Done]);
    assert_eq!(reclaim(&mut bench, 10), forgot(1, false));
    let info = bench.machine.stream(STREAM).unwrap();
    assert_eq!((info.start, info.records(), info.bytes), (Offset(4), 5, 6 * 15));
    let trimmed = bench.machine.batches_from(STREAM, Offset(3), 1, 1);
    assert!(matches!(trimmed, Err(StreamReadError::Trimmed { start: Offset(4) })));
    let found = bench.machine.batches_from(STREAM, Offset(4), 1, 1).unwrap();
    assert_eq!(found.batches[0].first, Offset(3));
    assert_eq!(bench.run(4, &[trim(2)]), [Outcome::Done], "the start never moves back");
    assert_eq!(bench.machine.stream(STREAM).unwrap().start, Offset(4));
    bench.run(5, &[trim(100)]);
    let info = bench.machine.stream(STREAM).unwrap();
    assert_eq!((info.start, info.next, info.bytes), (Offset(9), Offset(9), 0), "a trim stops at the end");
    assert_eq!(bench.machine.reclaim_due(), [STREAM]);
    assert_eq!(reclaim(&mut bench, 1), forgot(1, true));
    assert_eq!(reclaim(&mut bench, 1), forgot(1, false));
    assert_eq!(bench.machine.reclaim_due(), []);
    assert_eq!(bench.machine.liveness()[0].1.bytes(), 0);
    bench.reopen();
    bench.run(8, &[append(1)]);
    assert_eq!(bench.machine.batches_from(STREAM, Offset(9), 9, 99).unwrap().batches.len(), 1);
}

#[test]
fn one_record_reclaims_a_bounded_number() {
    let mut bench = bench();
    let appends: Vec<_> = (0..4000).map(|_| append(1)).collect();
    (2..5).for_each(|time| drop(bench.run(time, &appends)));
    bench.run(6, &[trim(12_000)]);
    let reclaimed = [1000, u32::MAX, 0, 5000].map(|max| reclaim(&mut bench, max));
    assert_eq!(reclaimed, [forgot(1000, true), forgot(10_000, true), forgot(0, true), forgot(1000, false)]);
}

#[test]
fn trims_see_what_their_own_entry_appended() {
    let mut bench = bench();
    bench.run(2, &[append(2)]);
    assert_eq!(bench.run(3, &[append(2), append(2), trim(5)])[2], Outcome::Done);
    let info = bench.machine.stream(STREAM).unwrap();
    assert_eq!((info.start, info.bytes), (Offset(5), 2 * 15));
    assert_eq!(reclaim(&mut bench, 9), forgot(2, false));
    assert_eq!(bench.machine.batches_from(STREAM, Offset(5), 9, 99).unwrap().batches.len(), 1);
}

#[test]
fn a_deleted_stream_leaves_a_marker_until_its_entries_are_reclaimed() {
    let mut bench = bench();
    bench.run(2, &vec![append(1); EAGER + 2]);
    let delete = command(|out| command::encode_delete_stream(out, STREAM));
    let create = command(|out| command::encode_create_stream(out, "events", &StreamConfig::default()).unwrap());
    let outcomes = bench.run(3, &[delete.clone(), delete.clone(), append(1), create.clone(), create]);
    let created = |created| Outcome::Stream { id: StreamId(2), created };
    let gone = Outcome::NoSuchStream(STREAM);
    assert_eq!(outcomes, [Outcome::Done, gone.clone(), gone.clone(), created(true), created(false)]);
    assert_eq!(bench.machine.stream(STREAM), None);
    assert_eq!(bench.machine.stream_id("events"), Some(StreamId(2)));
    bench.reopen();
    assert_eq!(bench.machine.stream_id("events"), Some(StreamId(2)));
    assert_eq!((bench.machine.streams().len(), bench.machine.stream_count()), (1, 1));
    assert_eq!(bench.machine.reclaim_due(), [STREAM]);
    let reclaimed = [(); 3].map(|()| reclaim(&mut bench, 1));
    assert_eq!(reclaimed, [forgot(1, true), forgot(1, false), LocalOutcome::Void]);
    assert_eq!(bench.machine.reclaim_due(), []);
    assert!(!bench.backend.dump().keys().any(|key| key.starts_with(&[0x03, 0, 0, 0, 1]) || key[0] == 0x11));
}

#[test]
fn a_deleted_stream_with_few_entries_is_gone_at_once() {
    for appends in [0, 1, EAGER] {
        let mut bench = bench();
        let before = vec![append(1); appends / 2];
        bench.run(2, &before);
        let mut commands = vec![append(1); appends - before.len()];
        commands.push(command(|out| command::encode_delete_stream(out, STREAM)));
        bench.run(3, &commands);
        assert_eq!(bench.machine.reclaim_due(), []);
        assert!(!bench.backend.dump().keys().any(|key| [0x03, 0x11].contains(&key[0])));
        assert!(bench.machine.liveness().iter().all(|(_, live)| live.bytes() == 0));
        assert_eq!(reclaim(&mut bench, 1), LocalOutcome::Void);
    }
}

#[test]
fn a_time_finds_the_first_record_that_is_not_older() {
    let mut bench = bench();
    for time in [10, 20, 20, 30] {
        bench.run(time, &[append(2)]);
    }
    let at = |time| bench.machine.offset_at_or_after(STREAM, SpaceTime(time)).unwrap().0;
    assert_eq!([0, 10, 11, 20, 21, 30, 31].map(at), [0, 0, 2, 2, 6, 6, 8]);
    bench.run(40, &[trim(3)]);
    assert_eq!(bench.machine.offset_at_or_after(STREAM, SpaceTime(0)).unwrap(), Offset(3), "not below the start");
}

#[test]
fn time_never_falls() {
    let mut bench = bench();
    bench.run(50, &[append(1)]);
    bench.run(40, &[append(1)]);
    assert_eq!(bench.machine.applied().time, SpaceTime(50));
    assert_eq!(bench.machine.batches_from(STREAM, Offset(1), 1, 1).unwrap().batches[0].time, SpaceTime(50));
}

#[test]
fn retention_is_due_by_age_bytes_and_count() {
    let mut bench = bench();
    for time in [10, 20, 30] {
        bench.run(time, &[append(2)]);
    }
    let mut due = |config: StreamConfig, now| {
        bench.run(31, &[command(|out| command::encode_configure_stream(out, STREAM, &config))]);
        bench.machine.retention_due(SpaceTime(now)).unwrap().iter().map(|due| due.1.0).collect::<Vec<_>>()
    };
    let age = |micros| StreamConfig { max_age: Some(Duration::from_micros(micros)), ..StreamConfig::default() };
    let bytes = |max| StreamConfig { max_bytes: Some(max), ..StreamConfig::default() };
    let records = |max| StreamConfig { max_records: Some(max), ..StreamConfig::default() };
    assert_eq!(due(StreamConfig::default(), u64::MAX), []);
    assert_eq!(due(age(10), 20), []);
    assert_eq!(due(age(10), 21), [2]);
    assert_eq!(due(age(10), 1000), [6]);
    assert_eq!(due(bytes(90), 31), []);
    assert_eq!(due(bytes(89), 31), [2]);
    assert_eq!(due(bytes(30), 31), [4]);
    assert_eq!(due(bytes(29), 31), [6]);
    assert_eq!(due(records(6), 31), []);
    assert_eq!(due(records(5), 31), [1]);
    assert_eq!(due(StreamConfig { max_bytes: Some(60), max_records: Some(3), ..age(1000) }, 31), [3]);
}

#[test]
fn a_trim_for_retention_needs_the_configuration_that_it_was_computed_from() {
    let mut bench = bench();
    bench.run(10, &[append(2), append(2), append(2)]);
    let records = |max| StreamConfig { max_records: Some(max), ..StreamConfig::default() };
    let configure = |max| command(|out| command::encode_configure_stream(out, STREAM, &records(max)));
    bench.run(11, &[configure(2)]);
    let (due, _) = bench.machine.retention_due_after(None, 9, SpaceTime(12)).unwrap();
    let [trim] = due[..] else { panic!("{due:?}") };
    assert_eq!((trim.stream, trim.before, trim.config), (STREAM, Offset(4), records(2)));
    let enforce = |stream| command(|out| command::encode_enforce_retention(out, stream, trim.before, &trim.config));
    // The limit is raised between the proposal of the trim and its application.
    let outcomes = bench.run(12, &[configure(5), enforce(STREAM), enforce(StreamId(9))]);
    assert_eq!(outcomes, [Outcome::Done, Outcome::Done, Outcome::NoSuchStream(StreamId(9))]);
    let start = |bench: &Bench| bench.machine.stream(STREAM).unwrap().start;
    assert_eq!(start(&bench), Offset(0));
    bench.run(13, &[configure(2), enforce(STREAM)]);
    assert_eq!(start(&bench), Offset(4));
}

#[test]
fn a_move_replaces_the_pointer_only_if_it_is_still_the_same() {
    let mut bench = bench();
    let value = vec![1; 100];
    bench.run(2, &[put(b"k", &value), append(10)]);
    let StoredValue::Blob(value_blob) = bench.machine.get(KS, b"k").unwrap().unwrap().value else { panic!("inline") };
    let batch_blob = bench.machine.batches_from(STREAM, Offset(0), 1, 1).unwrap().batches[0].blob;
    bench.log.segment_bytes = 0;
    let value_of = MoveTarget::Value { keyspace: KS, key: b"k" };
    let batch_of = MoveTarget::Batch { stream: STREAM, first: Offset(0) };
    let batch_bytes = bench.log.read(&batch_blob).to_vec();
    let before = bench.machine.applied();
    for (from, target, bytes) in [(&value_blob, &value_of, &value), (&batch_blob, &batch_of, &batch_bytes)] {
        let record = bench.log.moved(from, target, &bytes[1..]);
        assert_eq!(apply(&bench.machine, &record).1, Some(LocalOutcome::Void), "the copy has other bytes");
        let record = bench.log.moved(from, target, bytes);
        assert_eq!(apply(&bench.machine, &record).1, Some(LocalOutcome::Applied));
        let record = bench.log.moved(from, target, bytes);
        assert_eq!(
            apply(&bench.machine, &record).1,
            Some(LocalOutcome::Void),
            "the original is not referenced any more"
        );
    }
    let after = bench.machine.applied();
    assert_eq!((after.index, after.time, after.revision), (before.index, before.time, before.revision));
    assert_eq!(after.lsn.0, before.lsn.0 + 6);
    let moved = bench.machine.get(KS, b"k").unwrap().unwrap();
    let StoredValue::Blob(to) = moved.value else { panic!("inline") };
    assert_eq!((moved.revision, &bench.log.read(&to)[..]), (Revision(1), &value[..]));
    let to = bench.machine.batches_from(STREAM, Offset(0), 1, 1).unwrap().batches[0].blob;
    assert_eq!(bench.log.read(&to), batch_bytes);
    assert!(bench.machine.is_batch_live(STREAM, Offset(0), &to).unwrap());
    assert!(!bench.machine.is_batch_live(STREAM, Offset(0), &batch_blob).unwrap());
    assert!(!bench.machine.is_value_live(KS, b"k", &value_blob).unwrap());
    let rows = bench.machine.liveness();
    assert_eq!(rows[0].1.bytes(), 0);
    assert_eq!(rows.iter().map(|(_, row)| row.stream_bytes).sum::<u64>(), batch_bytes.len() as u64);
    assert_eq!(rows.iter().map(|(_, row)| row.value_bytes).sum::<u64>(), 100);
}

#[test]
fn a_trimmed_batch_is_not_live() {
    let mut bench = bench();
    bench.run(2, &[append(2), append(1)]);
    let blob = bench.machine.batches_from(STREAM, Offset(0), 1, 1).unwrap().batches[0].blob;
    bench.run(3, &[trim(1)]);
    assert!(bench.machine.is_batch_live(STREAM, Offset(0), &blob).unwrap());
    bench.run(4, &[trim(2)]);
    assert!(!bench.machine.is_batch_live(STREAM, Offset(0), &blob).unwrap());
}

#[test]
fn a_freed_segment_is_forgotten_with_the_next_record() {
    let mut bench = bench();
    bench.run(2, &[append(2), trim(2)]);
    bench.machine.forget_segment(Generation(1));
    assert_eq!(bench.machine.liveness().len(), 1);
    let record = bench.log.skip(SpaceTime(3));
    apply(&bench.machine, &record);
    assert_eq!(bench.machine.liveness(), []);
    assert_eq!(reclaim(&mut bench, 9), forgot(1, false));
    assert_eq!(bench.machine.liveness(), [], "later reclaiming does not restore the row");
    bench.reopen();
    assert_eq!(bench.machine.liveness(), []);
}

#[test]
fn skipped_records_move_on_what_is_applied() {
    let mut bench = Bench::new(MachineOptions::default());
    bench.machine.skip(Lsn(7), None).unwrap();
    assert_eq!((bench.machine.applied().lsn, bench.machine.applied().index), (Lsn(7), Index(0)));
    bench.machine.skip(Lsn(9), Some((Term(2), Index(5), SpaceTime(6)))).unwrap();
    let applied = bench.machine.applied();
    assert_eq!((applied.lsn, applied.term, applied.index, applied.time), (Lsn(9), Term(2), Index(5), SpaceTime(6)));
    bench.reopen();
    assert_eq!(bench.machine.applied(), applied);
    let again = bench.machine.skip(Lsn(9), None);
    assert!(matches!(again, Err(MachineError::AlreadyApplied { next_lsn: Lsn(9), applied: Lsn(9) })));
    bench.machine.skip(Lsn(10), None).unwrap();
}

#[test]
fn a_failed_backend_stops_the_machine_and_shows_nothing_of_the_entry() {
    let mut bench = bench();
    let before = (bench.machine.applied(), bench.machine.streams());
    bench.backend.failures.store(1, Ordering::Relaxed);
    let record = bench.log.entry(&frame(&[append(1)]), SpaceTime(2));
    let mut outcomes = vec![Outcome::Done];
    let mut again = || {
        let (payload, at, next_lsn) = (&record.payload[..], record.at, record.next_lsn);
        let entry = Entry { term: Term(1), index: Index(9), time: SpaceTime(2), payload, at, next_lsn };
        bench.machine.apply(&entry, &mut outcomes)
    };
    assert!(matches!(again(), Err(MachineError::Backend(_))));
    bench.backend.failures.store(0, Ordering::Relaxed);
    assert!(matches!(again(), Err(MachineError::Stopped)));
    assert_eq!(outcomes, [Outcome::Done]);
    assert_eq!((bench.machine.applied(), bench.machine.streams()), before);
}

#[test]
fn a_payload_past_what_a_pointer_can_say_is_refused_without_harm() {
    let bench = bench();
    let at = LogPosition { generation: Generation(1), offset: u32::MAX - 10 };
    let entry = |at| Entry {
        term: Term(1),
        index: Index(2),
        time: SpaceTime(2),
        payload: &[0; 11],
        at,
        next_lsn: Lsn(bench.machine.applied().lsn.0 + 1),
    };
    let refused = bench.machine.apply(&entry(at), &mut Vec::new());
    assert!(matches!(refused, Err(MachineError::Unaddressable { len: 11, .. })));
    bench.machine.apply(&entry(LogPosition { offset: 0, ..at }), &mut Vec::new()).unwrap();
}

#[test]
fn names_are_found_and_listed_and_tables_have_limits() {
    let mut bench = bench();
    let create =
        |name: &str| command(|out| command::encode_create_keyspace(out, name, &KeyspaceConfig::default()).unwrap());
    let two = |created| Outcome::Keyspace { id: KeyspaceId(2), created };
    assert_eq!(bench.run(2, &[create("b"), create("b"), put(b"", b"")])[..2], [two(true), two(false)]);
    assert_eq!(bench.run(3, &[create("b")]), [two(false)]);
    let many: Vec<_> = (0..limits::MAX_KEYSPACES).map(|number| create(&format!("n{number}"))).collect();
    let outcomes: Vec<_> = many.chunks(500).flat_map(|some| bench.run(4, some)).collect();
    let full = Outcome::TooMany { what: "keyspaces", limit: limits::MAX_KEYSPACES };
    assert_eq!(outcomes.iter().filter(|&outcome| *outcome == full).count(), 2);
    bench.reopen();
    assert_eq!(bench.machine.keyspaces().len(), limits::MAX_KEYSPACES);
    assert_eq!(bench.machine.keyspace_id("b"), Some(KeyspaceId(2)));
    assert_eq!(bench.machine.keyspace_name(KeyspaceId(2)).as_deref(), Some("b"));
    assert_eq!(bench.machine.keyspace_name(KeyspaceId(0)), None);
    assert_eq!((bench.machine.keyspaces()[0].0, bench.machine.keyspace_name(KS)), (KS, Some("users".into())));
}

#[test]
fn a_state_of_another_format_is_refused() {
    let bench = bench();
    let mut map = bench.backend.dump();
    map.get_mut([1].as_slice()).unwrap()[0] = 1;
    let opened = Machine::open(MapBackend::of(map, bench.backend.applied()), MachineOptions::default());
    assert!(matches!(opened, Err(MachineError::Format { found: 1, supported: 2 })));
    let opened = Machine::open(MapBackend::of(Default::default(), bench.backend.applied()), MachineOptions::default());
    assert!(matches!(opened, Err(MachineError::Corrupt { .. })), "a state without its meta row");
}

#[test]
fn streams_have_a_limit_that_counts_deleted_ones_with_producers_and_no_other_markers() {
    let mut bench = bench();
    let create = |name: u64| {
        command(|out| command::encode_create_stream(out, &format!("n{name}"), &StreamConfig::default()).unwrap())
    };
    let delete = |id| command(|out| command::encode_delete_stream(out, StreamId(id)));
    let all: Vec<_> = (2..=limits::MAX_STREAMS as u64).map(create).collect();
    for some in all.chunks(4096) {
        let outcomes = bench.run(2, some);
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Stream { created: true, .. })));
    }
    let full = Outcome::TooMany { what: "streams", limit: limits::MAX_STREAMS };
    let open = command(|out| command::encode_open_producer(out, STREAM, "p").unwrap());
    assert_eq!(bench.run(3, &[open, append(1), delete(1), create(1)])[3], full, "its producer counts");
    bench.reopen();
    assert_eq!(bench.machine.streams().len(), limits::MAX_STREAMS - 1);
    let last = StreamId(limits::MAX_STREAMS as u32);
    assert_eq!(bench.machine.streams().last().unwrap().id, last);
    assert_eq!(reclaim(&mut bench, 9), forgot(0, false), "index entries do not count");
    let forget = command(|out| command::encode_forget_producers(out, STREAM, 9));
    let outcomes = bench.run(4, &[create(1), forget, create(1), create(0)]);
    assert_eq!((&outcomes[0], &outcomes[3]), (&full, &full));
    assert_eq!(outcomes[2], Outcome::Stream { id: last.next(), created: true });
    let many = command(|out| {
        let mut commit = CommitBuilder::new();
        (0..=EAGER).for_each(|_| _ = commit.append(StreamId(2), None, &batch(&[b""])).unwrap());
        commit.encode(out);
    });
    let another = || create(limits::MAX_STREAMS as u64 + 1);
    let outcomes = bench.run(5, &[many, delete(2), create(0), another()]);
    assert_eq!(bench.machine.reclaim_due(), [StreamId(2)]);
    assert_eq!(outcomes[2], Outcome::Stream { id: last.next().next(), created: true }, "a marker alone does not count");
    assert_eq!(outcomes[3], full);
    bench.reopen();
    assert_eq!(bench.run(6, &[another()]), [full], "counted anew");
}
