//! Tests of transactions, counters, deletes by prefix, and dropped keyspaces.

use std::ops::ControlFlow;

use thalweg_state::{
    keyspaces::{Counts, ReadView, ScanRange},
    machine::MachineOptions,
};
use thalweg_types::{
    KeyspaceId, Offset, Revision, StreamId,
    command::{
        self, AppendedAt, CommitBuilder, Expect, FailedCondition, KeyspaceConfig, KeyspaceHistory, OperationError,
        OperationResult, Operations, Outcome, ReadValue, ScanOperation, ScanPage, ScannedItem, StreamConfig,
        Transacted, TransactionBuilder,
    },
    limits::{
        CLEAR_UNIT_BYTES, MAX_EAGER_PREFIX_ROWS, MAX_KEY_BYTES, MAX_NESTED_CLEARS, MAX_PENDING_CLEARS,
        MAX_TRANSACTION_PREFIX_DELETES, MAX_TRANSACTION_SCAN_ITEMS, MAX_VALUE_BYTES,
    },
    record::RecordBatch,
};

use crate::support::{Bench, command};

const KS: KeyspaceId = KeyspaceId(1);
/// A keyspace with exact counts.
const EXACT: KeyspaceId = KeyspaceId(2);
const STREAM: StreamId = StreamId(1);
const MANY: usize = MAX_EAGER_PREFIX_ROWS + 10;

fn bench() -> Bench {
    let mut bench = Bench::new(MachineOptions::default());
    let create = |name: &str, exact_counts| {
        command(|out| {
            command::encode_create_keyspace(out, name, &KeyspaceConfig { exact_counts, ..KeyspaceConfig::default() })
                .unwrap();
        })
    };
    let stream = command(|out| command::encode_create_stream(out, "s", &StreamConfig::default()).unwrap());
    bench.run(1, &[create("plain", false), create("exact", true), stream]);
    bench
}

fn transaction(build: impl FnOnce(&mut TransactionBuilder)) -> Vec<u8> {
    let mut builder = TransactionBuilder::new();
    build(&mut builder);
    command(|out| builder.encode(out).unwrap())
}

fn then(build: impl FnOnce(&mut Operations)) -> Vec<u8> {
    transaction(|transaction| build(transaction.then()))
}

/// Runs one command, which must not be rejected.
fn run(bench: &mut Bench, command: Vec<u8>) -> Transacted {
    match bench.run(2, &[command]).remove(0) {
        Outcome::Transacted(done) => *done,
        other => panic!("{other:?}"),
    }
}

fn refused(bench: &mut Bench, command: Vec<u8>) -> Outcome {
    let (before, revision) = (bench.backend.dump(), bench.machine.applied().revision);
    let outcome = bench.run(2, &[command]).remove(0);
    let data = |map: &crate::support::Map| map.iter().filter(|(key, _)| key[0] == 0x10).count();
    assert_eq!((data(&bench.backend.dump()), bench.machine.applied().revision), (data(&before), revision));
    outcome
}

fn fill(bench: &mut Bench, keyspace: KeyspaceId, prefix: &str, count: usize) {
    let mut commit = CommitBuilder::new();
    for number in 0..count {
        commit.put(keyspace, format!("{prefix}{number:03}").as_bytes(), b"value").unwrap();
    }
    bench.run(2, &[command(|out| commit.encode(out))]);
}

fn keys_of(snapshot: &ReadView, keyspace: KeyspaceId) -> Vec<String> {
    let mut keys = Vec::new();
    let visit = &mut |item: thalweg_state::keyspaces::Item<'_>| {
        keys.push(String::from_utf8_lossy(item.key).into_owned());
        ControlFlow::Continue(())
    };
    snapshot.scan(keyspace, &ScanRange::default(), visit).unwrap();
    keys
}

fn rows(bench: &Bench, tag: u8) -> usize {
    bench.backend.dump().keys().filter(|key| key[0] == tag).count()
}

fn sweep(bench: &mut Bench, max: u32) -> (u32, bool) {
    match bench.run(2, &[command(|out| command::encode_sweep(out, max))])[..] {
        [Outcome::Reclaimed { entries, more }] => (entries, more),
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn conditions_choose_the_branch_and_name_the_first_that_failed() {
    let mut bench = bench();
    let swap = |from: &[u8], to: &[u8]| {
        transaction(|transaction| {
            transaction.expect(KS, b"k", Expect::Present).unwrap().expect(KS, b"k", Expect::Value(from)).unwrap();
            transaction.then().put(KS, b"k", to).unwrap();
            transaction.otherwise().get(KS, b"k").unwrap();
        })
    };
    let done = run(&mut bench, swap(b"1", b"2"));
    assert_eq!(done.failed, Some(FailedCondition { condition: 0, actual: None }));
    assert_eq!((done.wrote, done.revision, &done.results[..]), (false, Revision(0), &[OperationResult::Got(None)][..]));
    run(&mut bench, then(|list| _ = list.put(KS, b"k", b"1").unwrap()));
    let done = run(&mut bench, swap(b"1", b"2"));
    assert_eq!((done.failed, done.wrote, done.revision), (None, true, Revision(2)));
    assert_eq!(done.results, [OperationResult::Put]);
    let done = run(&mut bench, swap(b"1", b"3"));
    assert_eq!(done.failed, Some(FailedCondition { condition: 1, actual: Some(Revision(2)) }));
    let got = ReadValue { revision: Revision(2), value: "2".into() };
    assert_eq!((done.wrote, &done.results[..]), (false, &[OperationResult::Got(Some(got))][..]));
    assert_eq!(bench.machine.applied().revision, Revision(2), "a transaction that only reads uses no revision");
}

#[test]
fn operations_see_those_before_them() {
    let mut bench = bench();
    let long = vec![7; 10_000];
    run(&mut bench, then(|list| _ = list.put(KS, b"old", &long).unwrap().put(KS, b"x", b"1").unwrap()));
    let mut batch = RecordBatch::new();
    batch.push_payload(b"record").unwrap();
    let done = run(
        &mut bench,
        then(|list| {
            list.get(KS, b"a").unwrap().put(KS, b"a", b"new").unwrap().get(KS, b"a").unwrap();
            list.get(KS, b"old").unwrap().delete(KS, b"old").unwrap().delete(KS, b"old").unwrap();
            list.append(STREAM, None, &batch).unwrap().append(STREAM, Offset(1), &batch).unwrap();
            list.scan(KS, &ScanOperation { limit: 9, ..ScanOperation::default() }).unwrap();
            list.get(KS, b"old").unwrap().add(KS, b"n", 5).unwrap().add(KS, b"n", -7).unwrap();
        }),
    );
    let got = |revision, value: &[u8]| {
        OperationResult::Got(Some(ReadValue { revision: Revision(revision), value: value.to_vec().into() }))
    };
    let appended = |first| OperationResult::Appended(AppendedAt { stream: STREAM, first: Offset(first), count: 1 });
    let item = |key: &'static str, revision, value: &'static str| ScannedItem {
        key: key.into(),
        revision: Revision(revision),
        value: Some(value.into()),
    };
    let page = ScanPage { items: vec![item("a", 2, "new"), item("x", 1, "1")], after: None };
    let expected = [
        OperationResult::Got(None),
        OperationResult::Put,
        got(2, b"new"),
        got(1, &long),
        OperationResult::Deleted { existed: true },
        OperationResult::Deleted { existed: false },
        appended(0),
        appended(1),
        OperationResult::Scanned(page),
        OperationResult::Got(None),
        OperationResult::Added { value: 5 },
        OperationResult::Added { value: -2 },
    ];
    assert_eq!(done.results, expected);
    assert_eq!(run(&mut bench, then(|list| _ = list.get(KS, b"n").unwrap())).results, [got(2, b"-2")]);
}

#[test]
fn a_transaction_happens_whole_or_not_at_all() {
    let mut bench = bench();
    run(&mut bench, then(|list| _ = list.put(KS, b"text", b"one").unwrap().put(KS, b"n", b"9").unwrap()));
    let long = vec![0; MAX_VALUE_BYTES];
    for key in [b"l1", b"l2", b"l3"] {
        run(&mut bench, then(|list| _ = list.put(KS, key, &long).unwrap()));
    }
    let mut batch = RecordBatch::new();
    batch.push_payload(b"record").unwrap();
    let first = |list: &mut Operations| {
        list.put(KS, b"new", b"1").unwrap().delete_prefix(KS, b"t").unwrap().append(STREAM, None, &batch).unwrap();
        list.add(KS, b"n", 1).unwrap();
    };
    let mut after = |last: &dyn Fn(&mut Operations)| {
        let outcome = refused(
            &mut bench,
            then(|list| {
                first(list);
                last(list);
            }),
        );
        assert_eq!(bench.machine.stream(STREAM).unwrap().next, Offset(0));
        outcome
    };
    let failed = |operation, error| Outcome::OperationFailed { operation, error };
    let overflow = OperationError::Overflow { value: 10, delta: i64::MAX };
    assert_eq!(after(&|list| _ = list.add(KS, b"n", i64::MAX).unwrap()), failed(4, overflow));
    assert_eq!(after(&|list| _ = list.add(KS, b"l1", 1).unwrap()), failed(4, OperationError::NotANumber));
    let too_large = OperationError::ResultTooLarge { limit: 16 * 1024 * 1024 };
    let large =
        |list: &mut Operations| _ = list.get(KS, b"l1").unwrap().get(KS, b"l2").unwrap().get(KS, b"l3").unwrap();
    assert_eq!(after(&large), failed(6, too_large));
    let missing = after(&|list| _ = list.get(KeyspaceId(9), b"").unwrap());
    assert_eq!(missing, Outcome::NoSuchKeyspace(KeyspaceId(9)));
    let conflict = after(&|list| _ = list.append(STREAM, Offset(0), &batch).unwrap());
    assert_eq!(conflict, Outcome::OffsetConflict { stream: STREAM, next: Offset(1) });
    let limit = MAX_TRANSACTION_PREFIX_DELETES;
    let many = after(&|list| (0..limit).for_each(|_| _ = list.delete_prefix(KS, b"z").unwrap()));
    assert_eq!(many, Outcome::TooMany { what: "deletes by prefix in a transaction", limit });
    let done = run(&mut bench, then(|list| _ = list.get(KS, b"new").unwrap().get(KS, b"text").unwrap()));
    assert_eq!(done.results[0], OperationResult::Got(None), "rejected operations are rolled back");
    assert!(matches!(&done.results[1], OperationResult::Got(Some(got)) if got.value == "one"));
}

#[test]
fn what_a_refused_transaction_tried_is_not_seen_by_the_next_command() {
    let mut bench = bench();
    let fails = then(|list| _ = list.put(KS, b"k", b"x").unwrap().add(KS, b"k", 1).unwrap());
    let get = then(|list| _ = list.get(KS, b"k").unwrap());
    let outcomes = bench.run(2, &[fails, get]);
    let Outcome::Transacted(done) = &outcomes[1] else { panic!("{outcomes:?}") };
    assert_eq!(done.results, [OperationResult::Got(None)]);
}

#[test]
fn an_operation_of_a_transaction_is_malformed_in_a_commit() {
    let mut bench = bench();
    let list = then(|list| _ = list.add(KS, b"n", 1).unwrap());
    let commit = [b"\x01\0\0\0\0\x01\0\0\0", &list[13..]].concat();
    assert!(matches!(refused(&mut bench, commit), Outcome::Malformed(_)));
}

#[test]
fn scans_come_in_pages_that_say_where_to_go_on() {
    let mut bench = bench();
    fill(&mut bench, KS, "k", MAX_TRANSACTION_SCAN_ITEMS + 1);
    let mut page = |scan: &ScanOperation<'_>| match run(&mut bench, then(|list| _ = list.scan(KS, scan).unwrap()))
        .results
        .remove(0)
    {
        OperationResult::Scanned(page) => page,
        other => panic!("{other:?}"),
    };
    let all = page(&ScanOperation { limit: u32::MAX, keys_only: true, ..ScanOperation::default() });
    assert_eq!((all.items.len(), all.after.as_deref()), (MAX_TRANSACTION_SCAN_ITEMS, Some(b"k998".as_slice())));
    let last = page(&ScanOperation { limit: 9, start: Some(b"k998\0"), ..ScanOperation::default() });
    assert_eq!((last.items.len(), last.after), (1, None));
    let reverse = page(&ScanOperation { limit: 2, reverse: true, end: Some(b"k005"), ..ScanOperation::default() });
    let keys: Vec<_> = reverse.items.iter().map(|item| item.key.clone()).collect();
    assert_eq!((keys, reverse.after.as_deref()), (vec!["k004".into(), "k003".into()], Some(b"k003".as_slice())));
    assert_eq!(
        page(&ScanOperation { limit: 9, start: Some(b"b"), end: Some(b"a"), ..ScanOperation::default() }).items,
        []
    );
}

#[test]
fn a_prefix_with_few_keys_is_gone_at_once() {
    let mut bench = bench();
    fill(&mut bench, KS, "a", MAX_EAGER_PREFIX_ROWS);
    fill(&mut bench, KS, "b", 3);
    let done = run(&mut bench, then(|list| _ = list.delete_prefix(KS, b"a").unwrap()));
    assert_eq!(done.results, [OperationResult::PrefixDeleted { keys: Some(MAX_EAGER_PREFIX_ROWS as u64) }]);
    assert_eq!((rows(&bench, 0x10), rows(&bench, 0x06)), (3, 0));
    assert!(!bench.machine.sweep_due());
}

#[test]
fn a_prefix_with_many_keys_is_hidden_at_once_and_swept_in_steps() {
    let mut bench = bench();
    fill(&mut bench, KS, "a", MANY);
    fill(&mut bench, KS, "b", 3);
    let before = bench.machine.read_view();
    let done =
        run(&mut bench, then(|list| _ = list.delete_prefix(KS, b"a").unwrap().put(KS, b"a001", b"new").unwrap()));
    assert_eq!(done.results[0], OperationResult::PrefixDeleted { keys: None });
    assert_eq!(rows(&bench, 0x10), MANY + 3, "no row is read or removed");
    assert_eq!(keys_of(&before, KS).len(), MANY + 3, "a snapshot does not change");
    let check = |bench: &mut Bench| {
        assert_eq!(keys_of(&bench.machine.read_view(), KS), ["a001", "b000", "b001", "b002"]);
        assert_eq!(bench.machine.get(KS, b"a000").unwrap(), None);
        assert_eq!(bench.machine.get(KS, b"a001").unwrap().unwrap().revision, Revision(3));
        let scan = ScanOperation { limit: 99, keys_only: true, ..ScanOperation::default() };
        let read = transaction(|transaction| {
            transaction.expect(KS, b"a000", Expect::Absent).unwrap().expect(KS, b"a001", Expect::Present).unwrap();
            transaction.then().scan(KS, &scan).unwrap();
        });
        let done = run(bench, read);
        let OperationResult::Scanned(page) = &done.results[0] else { panic!("{done:?}") };
        assert_eq!((page.items.len(), done.failed), (4, None));
    };
    check(&mut bench);
    bench.reopen();
    check(&mut bench);
    let mut swept = 0;
    while bench.machine.sweep_due() {
        let (entries, more) = sweep(&mut bench, 7);
        assert!(entries <= 7 && more == bench.machine.sweep_due());
        swept += entries;
        check(&mut bench);
        if swept % 3 == 0 {
            bench.reopen();
        }
    }
    assert_eq!((swept as usize, rows(&bench, 0x10), rows(&bench, 0x06)), (MANY, 4, 0));
    check(&mut bench);
    assert_eq!(sweep(&mut bench, 7), (0, false));
}

#[test]
fn deleting_a_prefix_sees_earlier_writes_of_its_entry_and_not_later_ones() {
    let mut bench = bench();
    fill(&mut bench, KS, "a", MANY);
    let put = |key: &[u8]| command(|out| command::encode_put(out, KS, key, b"x").unwrap());
    let clear = then(|list| {
        list.put(KS, b"a-mine", b"1").unwrap().delete_prefix(KS, b"a").unwrap().put(KS, b"a-later", b"1").unwrap();
    });
    let sweep = command(|out| command::encode_sweep(out, 1000));
    bench.run(2, &[put(b"a-before"), clear, put(b"a-after"), sweep.clone()]);
    assert_eq!(keys_of(&bench.machine.read_view(), KS), ["a-after", "a-later"]);
    bench.run(2, &[put(b"a000"), sweep]);
    assert_eq!(keys_of(&bench.machine.read_view(), KS), ["a-after", "a-later", "a000"]);
    assert_eq!(rows(&bench, 0x10), 3);
}

#[test]
fn deletes_of_a_prefix_that_a_history_tells_apart_all_count() {
    let history = KeyspaceHistory { revisions: Some(4), age: None };
    let (mut bench, kept) = (bench(), KeyspaceId(3));
    let config = KeyspaceConfig { history, ..KeyspaceConfig::default() };
    bench.run(1, &[command(|out| command::encode_create_keyspace(out, "kept", &config).unwrap())]);
    let mut clear = |keyspace, prefix: &str| {
        fill(&mut bench, keyspace, prefix, MAX_EAGER_PREFIX_ROWS + 1);
        bench.run(2, &[then(|list| _ = list.delete_prefix(keyspace, prefix.as_bytes()).unwrap())]).remove(0)
    };
    let full = Outcome::TooMany { what: "deleted prefixes wait to be swept", limit: MAX_PENDING_CLEARS };
    assert_ne!(clear(kept, "p"), full);
    assert_ne!(clear(kept, "p"), full, "it is another prefix");
    for number in 2..MAX_PENDING_CLEARS {
        assert_ne!(clear(KS, &format!("{number:04}/")), full);
    }
    assert_eq!(clear(kept, "p"), full);
    assert_eq!(clear(kept, ""), full, "it replaces no clear");
    assert_ne!(clear(KS, ""), full, "it replaces all other clears");
    assert_ne!(clear(KS, ""), full);
    let drop = command(|out| command::encode_drop_keyspace(out, kept));
    assert!(matches!(bench.run(2, &[drop])[..], [Outcome::Dropped { .. }]));
    assert_eq!(rows(&bench, 0x06), 2);
}

#[test]
fn a_keyspace_whose_deleted_prefixes_fill_the_table_can_be_dropped() {
    let history = KeyspaceHistory { revisions: Some(4), age: None };
    let (mut bench, kept) = (bench(), KeyspaceId(3));
    let config = KeyspaceConfig { history, ..KeyspaceConfig::default() };
    bench.run(1, &[command(|out| command::encode_create_keyspace(out, "kept", &config).unwrap())]);
    fill(&mut bench, kept, "p", MAX_EAGER_PREFIX_ROWS + 1);
    for _ in 0..MAX_PENDING_CLEARS {
        run(&mut bench, then(|list| _ = list.delete_prefix(kept, b"p").unwrap()));
    }
    let full = Outcome::TooMany { what: "deleted prefixes wait to be swept", limit: MAX_PENDING_CLEARS };
    assert_eq!(refused(&mut bench, then(|list| _ = list.delete_prefix(kept, b"p").unwrap())), full);
    let drop = command(|out| command::encode_drop_keyspace(out, kept));
    assert!(matches!(bench.run(2, &[drop])[..], [Outcome::Dropped { .. }]));
    while bench.machine.sweep_due() {
        sweep(&mut bench, 1000);
    }
    assert_eq!((rows(&bench, 0x06), rows(&bench, 0x10)), (0, 0));
}

#[test]
fn the_bounds_of_a_scan_are_keys() {
    let mut bench = bench();
    let mut long = ScanOperation { prefix: b"p", start: Some(b"p"), end: Some(b"q"), ..ScanOperation::default() };
    let too_long = vec![b'p'; MAX_KEY_BYTES + 1];
    for bound in 0..3 {
        // Encoded as by a foreign client, because our encoder rejects it.
        let mut encoded = then(|list| _ = list.scan(KS, &ScanOperation { limit: 7, ..long }).unwrap());
        let mut at = encoded.len() - 3 * 5;
        at += bound * 5;
        encoded.splice(at..at + 5, (too_long.len() as u32).to_le_bytes().into_iter().chain(too_long.iter().copied()));
        let outcome = refused(&mut bench, encoded);
        assert!(matches!(outcome, Outcome::Malformed(_)), "{bound}: {outcome:?}");
    }
    long.limit = 1;
    assert!(!run(&mut bench, then(|list| _ = list.scan(KS, &long).unwrap())).wrote);
}

#[test]
fn a_shorter_prefix_replaces_longer_ones_and_the_table_is_bounded() {
    let mut bench = bench();
    for round in 0..MAX_PENDING_CLEARS + 1 {
        fill(&mut bench, KS, &format!("{round:04}/"), MAX_EAGER_PREFIX_ROWS + 1);
        let clear = then(|list| _ = list.delete_prefix(KS, format!("{round:04}/").as_bytes()).unwrap());
        let outcome = bench.run(2, &[clear]).remove(0);
        let full = Outcome::TooMany { what: "deleted prefixes wait to be swept", limit: MAX_PENDING_CLEARS };
        assert_eq!(outcome == full, round == MAX_PENDING_CLEARS, "{round}");
    }
    assert_eq!(rows(&bench, 0x06), MAX_PENDING_CLEARS);
    // A prefix with few rows is emptied immediately, and a clear that replaces others makes room.
    run(
        &mut bench,
        then(|list| _ = list.delete_prefix(KS, format!("{MAX_PENDING_CLEARS:04}/000").as_bytes()).unwrap()),
    );
    assert_eq!(keys_of(&bench.machine.read_view(), KS).len(), MAX_EAGER_PREFIX_ROWS);
    run(&mut bench, then(|list| _ = list.delete_prefix(KS, b"00").unwrap()));
    assert_eq!(rows(&bench, 0x06), MAX_PENDING_CLEARS - 99);
    run(&mut bench, then(|list| _ = list.delete_prefix(KS, b"").unwrap()));
    assert_eq!((rows(&bench, 0x06), keys_of(&bench.machine.read_view(), KS).len()), (1, 0));
    while bench.machine.sweep_due() {
        sweep(&mut bench, 1000);
    }
    assert_eq!(rows(&bench, 0x10), 0);
}

/// Creates keyspace 3, which has a history.
fn keep_history(bench: &mut Bench) -> KeyspaceId {
    let config =
        KeyspaceConfig { history: KeyspaceHistory { revisions: Some(4), age: None }, ..KeyspaceConfig::default() };
    bench.run(1, &[command(|out| command::encode_create_keyspace(out, "kept", &config).unwrap())]);
    KeyspaceId(3)
}

fn deleted_prefix(keyspace: KeyspaceId, prefix: &str) -> Vec<u8> {
    then(|list| _ = list.delete_prefix(keyspace, prefix.as_bytes()).unwrap())
}

#[test]
fn few_deleted_prefixes_begin_with_one_another() {
    let mut bench = bench();
    let kept = keep_history(&mut bench);
    let deepest = "a".repeat(MAX_NESTED_CLEARS + 1);
    for keyspace in [KS, kept] {
        fill(&mut bench, keyspace, &deepest, MANY);
        for len in 1..=MAX_NESTED_CLEARS {
            assert!(run(&mut bench, deleted_prefix(keyspace, &deepest[..len])).wrote);
        }
    }
    let what = "deleted prefixes that begin with one another wait to be swept";
    let deep = Outcome::TooMany { what, limit: MAX_NESTED_CLEARS };
    for keyspace in [KS, kept] {
        assert_eq!(refused(&mut bench, deleted_prefix(keyspace, &deepest)), deep);
        // A prefix of which some bytes are equal is beside the others.
        fill(&mut bench, keyspace, "aaab", MANY);
        run(&mut bench, deleted_prefix(keyspace, "aaab"));
        fill(&mut bench, keyspace, &deepest, 1);
    }
    bench.reopen();
    assert_eq!(refused(&mut bench, deleted_prefix(kept, "")), deep, "it replaces no other");
    assert!(run(&mut bench, deleted_prefix(kept, &deepest[1..])).wrote, "it is there already");
    let shown = |bench: &Bench, keyspace| keys_of(&bench.machine.read_view(), keyspace);
    assert_eq!((shown(&bench, KS), shown(&bench, kept).len()), (vec![format!("{deepest}000")], 0));
    assert!(run(&mut bench, deleted_prefix(KS, "")).wrote, "it replaces the others");
    assert_eq!(rows(&bench, 0x06), 1 + MAX_NESTED_CLEARS + 1);
    while sweep(&mut bench, 1000).1 {}
    fill(&mut bench, kept, &deepest, MANY);
    assert!(run(&mut bench, deleted_prefix(kept, &deepest)).wrote, "the sweep has made room");
}

#[test]
fn long_prefixes_count_by_their_bytes() {
    let mut bench = bench();
    let prefix = |number: u64| format!("{number:0>width$}", width = 99 * CLEAR_UNIT_BYTES);
    let full = Outcome::TooMany { what: "deleted prefixes wait to be swept", limit: MAX_PENDING_CLEARS };
    for number in 0..10 {
        fill(&mut bench, KS, &prefix(number), MANY);
        assert!(run(&mut bench, deleted_prefix(KS, &prefix(number))).wrote);
        assert_eq!(bench.machine.clear_units(), 100 * (number as usize + 1));
    }
    fill(&mut bench, KS, &prefix(10), MANY);
    assert_eq!(refused(&mut bench, deleted_prefix(KS, &prefix(10))), full);
    assert!(run(&mut bench, deleted_prefix(KS, &prefix(3))).wrote, "it replaces itself");
    fill(&mut bench, KS, "short", MANY);
    let revision = run(&mut bench, deleted_prefix(KS, "short")).revision;
    assert!(bench.machine.has_clear_at(KS, revision) && !bench.machine.has_clear_at(EXACT, revision));
    assert_eq!((bench.machine.clear_units(), bench.machine.emptied_at(KS)), (1001, None));
    let revision = run(&mut bench, deleted_prefix(KS, "")).revision;
    assert_eq!((bench.machine.clear_units(), bench.machine.emptied_at(KS)), (1, Some(revision)));
    while sweep(&mut bench, 10_000).1 {}
    assert_eq!((bench.machine.clear_units(), bench.machine.emptied_at(KS)), (0, None));
    assert!(!bench.machine.has_clear_at(KS, revision));
}

#[test]
fn a_sweep_first_goes_on_with_the_prefix_that_was_begun() {
    let mut bench = bench();
    let swept = |bench: &Bench| {
        let rows = bench.backend.dump();
        let begun = rows.iter().filter(|(key, row)| key[0] == 0x06 && row[8] & 1 == 1);
        begun.map(|(key, _)| String::from_utf8_lossy(&key[5..]).into_owned()).collect::<Vec<_>>()
    };
    for prefix in ["d", "c", "b", "a"] {
        fill(&mut bench, KS, prefix, MANY);
        run(&mut bench, deleted_prefix(KS, prefix));
        sweep(&mut bench, 3);
        assert_eq!(swept(&bench), ["d"], "only one of them holds a key");
    }
    while swept(&bench) == ["d"] {
        sweep(&mut bench, 1);
        bench.reopen();
    }
    assert_eq!(swept(&bench), ["a"]);
    assert_eq!(rows(&bench, 0x10), 3 * MANY - 1);
}

#[test]
fn exact_counts_follow_every_write() {
    let mut bench = bench();
    let counts = |bench: &Bench| bench.machine.keyspace_counts(EXACT).unwrap();
    let put = |key: &[u8], value: &[u8]| command(|out| command::encode_put(out, EXACT, key, value).unwrap());
    bench.run(2, &[put(b"k", b"123"), put(b"k", b"1"), put(b"l", &[0; 10_000])]);
    assert_eq!(counts(&bench), Counts { keys: 2, bytes: 1 + 1 + 1 + 10_000, collections: 0 });
    let delete = command(|out| command::encode_delete(out, EXACT, b"l").unwrap());
    bench.run(2, &[delete.clone(), delete, put(b"", b"")]);
    assert_eq!(counts(&bench), Counts { keys: 2, bytes: 2, collections: 0 });
    run(
        &mut bench,
        then(|list| {
            _ = list.add(EXACT, b"n", 10).unwrap().delete(EXACT, b"k").unwrap().put(EXACT, b"k", b"12").unwrap();
        }),
    );
    assert_eq!(counts(&bench), Counts { keys: 3, bytes: 3 + 3, collections: 0 });
    fill(&mut bench, EXACT, "p", MANY);
    run(&mut bench, then(|list| _ = list.delete_prefix(EXACT, b"p").unwrap().put(EXACT, b"p000", b"").unwrap()));
    assert!(bench.machine.has_clears_of(EXACT) && counts(&bench).keys >= 4);
    bench.reopen();
    sweep(&mut bench, 1000);
    assert_eq!(counts(&bench), Counts { keys: 4, bytes: 6 + 4, collections: 0 });
    run(&mut bench, then(|list| _ = list.delete_prefix(EXACT, b"").unwrap()));
    assert_eq!(counts(&bench), Counts::default());
    assert_eq!(bench.machine.keyspace_counts(KS), None);
    let plain = KeyspaceConfig::default();
    let outcomes = bench.run(
        2,
        &[
            command(|out| command::encode_configure_keyspace(out, EXACT, &plain).unwrap()),
            command(|out| {
                command::encode_configure_keyspace(
                    out,
                    EXACT,
                    &KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() },
                )
                .unwrap();
            }),
        ],
    );
    assert!(matches!(outcomes[..], [Outcome::Done, Outcome::CannotConfigure { .. }]), "{outcomes:?}");
    assert_eq!((bench.machine.keyspace_counts(EXACT), rows(&bench, 0x07)), (None, 0));
}

#[test]
fn a_keyspace_counts_exactly_until_its_deleted_prefixes_are_swept() {
    let mut bench = bench();
    fill(&mut bench, EXACT, "p", MANY);
    let configure = |exact_counts, history| {
        let config = KeyspaceConfig { exact_counts, history, ..KeyspaceConfig::default() };
        command(|out| command::encode_configure_keyspace(out, EXACT, &config).unwrap())
    };
    let none = KeyspaceHistory::default();
    let history = KeyspaceHistory { revisions: Some(3), ..none };
    let clear = then(|list| _ = list.delete_prefix(EXACT, b"p").unwrap());
    let outcomes = bench.run(2, &[clear, configure(false, none), configure(true, history), configure(true, none)]);
    let refused = |outcome: &Outcome| matches!(outcome, Outcome::CannotConfigure { .. });
    assert!(refused(&outcomes[1]) && refused(&outcomes[2]), "unswept rows may hold collections: {outcomes:?}");
    assert_eq!(outcomes[3], Outcome::Done, "the configuration changes neither");
    bench.reopen();
    assert!(refused(&bench.run(3, &[configure(false, none)])[0]));
    let sweep = command(|out| command::encode_sweep(out, 1000));
    assert_eq!(bench.run(4, &[sweep, configure(true, history)])[1], Outcome::Done, "the same entry has swept them");
    assert_eq!(bench.run(5, &[configure(false, none)]), [Outcome::Done]);
    assert_eq!(bench.machine.keyspace_counts(EXACT), None);
}

#[test]
fn a_dropped_keyspace_is_gone_at_once_and_its_id_is_never_used_again() {
    for count in [3, MANY] {
        let mut bench = bench();
        fill(&mut bench, EXACT, "k", count);
        let drop = command(|out| command::encode_drop_keyspace(out, EXACT));
        let put = command(|out| command::encode_put(out, EXACT, b"k", b"v").unwrap());
        let outcomes = bench.run(2, &[put.clone(), drop.clone(), drop, put]);
        let missing = Outcome::NoSuchKeyspace(EXACT);
        assert_eq!(outcomes[1], Outcome::Dropped { revision: Revision(3) });
        assert_eq!(outcomes[2..], [missing.clone(), missing]);
        assert_eq!((bench.machine.keyspace_id("exact"), bench.machine.keyspaces().len()), (None, 1));
        assert_eq!(bench.machine.get(EXACT, b"k000").unwrap(), None);
        assert_eq!(keys_of(&bench.machine.read_view(), EXACT), Vec::<String>::new());
        bench.reopen();
        let again = KeyspaceConfig::default();
        let outcomes = bench.run(3, &[command(|out| command::encode_create_keyspace(out, "exact", &again).unwrap())]);
        assert_eq!(outcomes, [Outcome::Keyspace { id: KeyspaceId(3), created: true }]);
        while bench.machine.sweep_due() {
            sweep(&mut bench, 50);
        }
        assert_eq!((rows(&bench, 0x10), rows(&bench, 0x06), rows(&bench, 0x07), rows(&bench, 0x02)), (0, 0, 0, 2));
        bench.reopen();
        assert_eq!(bench.machine.keyspace_id("exact"), Some(KeyspaceId(3)));
    }
}
