//! Tests of conditions that ranges are unchanged since they were read.

use thalweg_state::machine::MachineOptions;
use thalweg_types::{
    KeyspaceId, Revision,
    command::{self, CommitBuilder, Deadline, Expect, KeyspaceConfig, Outcome, TransactionBuilder, UnchangedRange},
    limits::{MAX_CONDITION_ROWS, MAX_EAGER_PREFIX_ROWS, MAX_KEY_BYTES},
};

use crate::support::{Bench, command};

const KS: KeyspaceId = KeyspaceId(1);
const OTHER: KeyspaceId = KeyspaceId(2);

fn bench() -> Bench {
    let mut bench = Bench::new(MachineOptions::default());
    let create =
        |name: &str| command(|out| command::encode_create_keyspace(out, name, &KeyspaceConfig::default()).unwrap());
    bench.run(1, &[create("k"), create("other")]);
    bench
}

fn put(keyspace: KeyspaceId, key: &[u8]) -> Vec<u8> {
    command(|out| command::encode_put(out, keyspace, key, b"v").unwrap())
}

fn delete(key: &[u8]) -> Vec<u8> {
    command(|out| command::encode_delete(out, KS, key).unwrap())
}

/// Encodes a commit that depends on `start..end` and puts into another keyspace.
fn depending(start: &[u8], end: Option<&[u8]>, since: Revision, count: u32) -> Vec<u8> {
    let mut commit = CommitBuilder::new();
    let read = UnchangedRange { end, since, count };
    commit.expect(KS, start, Expect::Unchanged(read)).unwrap().put(OTHER, b"done", b"").unwrap();
    command(|out| commit.encode(out))
}

fn revision(bench: &Bench) -> Revision {
    bench.machine.applied().revision
}

fn failed(actual: Option<Revision>) -> Outcome {
    Outcome::ConditionFailed { condition: 0, actual }
}

#[test]
fn what_nobody_has_changed_holds() {
    let mut bench = bench();
    bench.run(2, &[put(KS, b"a"), put(KS, b"b"), put(KS, b"c")]);
    let since = revision(&bench);
    for (start, end, count) in [
        (b"".as_slice(), None, 3),
        (b"a", Some(b"c".as_slice()), 2),
        (b"aa", Some(b"b"), 0),
        (b"c", None, 1),
        // The range is empty.
        (b"c", Some(b"a"), 0),
    ] {
        let outcome = bench.run(3, &[depending(start, end, since, count)]).remove(0);
        assert!(matches!(outcome, Outcome::Committed { .. }), "{start:?} {outcome:?}");
        let outcome = bench.run(3, &[depending(start, end, since, count + 1)]).remove(0);
        assert_eq!(outcome, failed(None), "{start:?}");
    }
    // Outside the range, and in another keyspace.
    bench.run(4, &[put(KS, b"0"), put(KS, b"c"), put(OTHER, b"aa")]);
    let outcome = bench.run(5, &[depending(b"a", Some(b"c"), since, 2)]).remove(0);
    assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
}

#[test]
fn an_insert_a_replacement_and_a_removal_are_changes() {
    let mut bench = bench();
    bench.run(2, &[put(KS, b"a"), put(KS, b"b")]);
    let since = revision(&bench);
    let depends = || depending(b"a", Some(b"c"), since, 2);
    let inserted = bench.run(3, &[put(KS, b"aa")]).remove(0);
    let Outcome::Committed { revision, .. } = inserted else { panic!("{inserted:?}") };
    assert_eq!(bench.run(4, &[depends()]), vec![failed(Some(revision))]);
    bench.run(5, &[delete(b"aa")]);
    assert!(matches!(bench.run(6, &[depends()])[..], [Outcome::Committed { .. }]), "the range is unchanged");
    bench.run(7, &[delete(b"b")]);
    assert_eq!(bench.run(8, &[depends()]), vec![failed(None)]);
    // The same number of keys, but not the same keys.
    bench.run(9, &[put(KS, b"b")]);
    assert_eq!(bench.run(10, &[depends()]), vec![failed(Some(self::revision(&bench)))]);
}

#[test]
fn changes_of_the_same_entry_count() {
    let mut bench = bench();
    bench.run(2, &[put(KS, b"a")]);
    let since = revision(&bench);
    let outcomes =
        bench.run(3, &[put(KS, b"b"), depending(b"", None, since, 1), delete(b"b"), depending(b"", None, since, 1)]);
    assert_eq!(outcomes[1], failed(Some(Revision(since.0 + 1))));
    assert!(matches!(outcomes[3], Outcome::Committed { .. }), "{outcomes:?}");
    // Of two commits that read the same range and write into it, the second one fails.
    let inserting = |key: &[u8]| {
        let mut commit = CommitBuilder::new();
        let read = UnchangedRange { end: None, since, count: 1 };
        commit.expect(KS, b"", Expect::Unchanged(read)).unwrap().put(KS, key, b"").unwrap();
        command(|out| commit.encode(out))
    };
    let outcomes = bench.run(4, &[inserting(b"x"), inserting(b"y")]);
    let Outcome::Committed { revision, .. } = outcomes[0] else { panic!("{outcomes:?}") };
    assert_eq!(outcomes[1], failed(Some(revision)));
}

#[test]
fn what_has_ended_or_was_deleted_by_prefix_is_gone() {
    let mut bench = bench();
    let mut commit = CommitBuilder::new();
    commit.put(KS, b"stays", b"").unwrap();
    commit.put_until(KS, b"ends", b"", Deadline::At(thalweg_types::SpaceTime(100)), None).unwrap();
    for number in 0..=MAX_EAGER_PREFIX_ROWS {
        commit.put(KS, format!("many{number}").as_bytes(), b"").unwrap();
    }
    bench.run(2, &[command(|out| commit.encode(out))]);
    let since = revision(&bench);
    let many = MAX_EAGER_PREFIX_ROWS as u32 + 1;
    assert!(matches!(bench.run(50, &[depending(b"", None, since, many + 2)])[..], [Outcome::Committed { .. }]));
    assert_eq!(bench.run(200, &[depending(b"", None, since, many + 2)]), vec![failed(None)]);
    let mut clear = TransactionBuilder::new();
    clear.then().delete_prefix(KS, b"many").unwrap();
    bench.run(201, &[command(|out| clear.encode(out).unwrap())]);
    assert_eq!(bench.run(202, &[depending(b"", None, since, many + 1)]), vec![failed(None)]);
    // Hidden rows are no change for a reader that has not seen them.
    assert!(matches!(bench.run(203, &[depending(b"", None, since, 1)])[..], [Outcome::Committed { .. }]));
}

#[test]
fn the_rows_of_all_ranges_of_a_command_are_bounded() {
    let mut bench = bench();
    let mut commit = CommitBuilder::new();
    for number in 0..MAX_CONDITION_ROWS as u32 {
        commit.put(KS, &number.to_be_bytes(), b"").unwrap();
    }
    bench.run(2, &[command(|out| commit.encode(out))]);
    let since = revision(&bench);
    let all = MAX_CONDITION_ROWS as u32;
    assert!(matches!(bench.run(3, &[depending(b"", None, since, all)])[..], [Outcome::Committed { .. }]));
    let mut twice = CommitBuilder::new();
    let read = |end, count| Expect::Unchanged(UnchangedRange { end, since, count });
    twice.expect(KS, b"", read(Some(&[0, 0, 0, 1]), 1)).unwrap().expect(KS, b"", read(None, all)).unwrap();
    twice.put(OTHER, b"k", b"").unwrap();
    let applied = revision(&bench);
    let outcome = bench.run(4, &[command(|out| twice.encode(out))]).remove(0);
    let expected = Outcome::TooMany { what: "rows in the ranges that a commit depends on", limit: MAX_CONDITION_ROWS };
    assert_eq!((outcome, revision(&bench)), (expected.clone(), applied));
    // A transaction does not take its other branch because of this either.
    let mut transaction = TransactionBuilder::new();
    transaction.expect(KS, b"", read(Some(&[0, 0, 0, 1]), 1)).unwrap().expect(KS, b"", read(None, all)).unwrap();
    transaction.otherwise().put(OTHER, b"k", b"").unwrap();
    assert_eq!(bench.run(5, &[command(|out| transaction.encode(out).unwrap())]), vec![expected]);
    // A changed range is detected before the bound is reached.
    bench.run(6, &[put(KS, &[0, 0, 0, 0, 1])]);
    assert_eq!(bench.run(7, &[depending(b"", None, since, all)]), vec![failed(Some(revision(&bench)))]);
}

#[test]
fn a_range_of_a_foreign_writer_is_refused() {
    let mut bench = bench();
    let long = vec![b'k'; MAX_KEY_BYTES + 1];
    let outcome = bench.run(2, &[depending(b"", Some(&long), Revision(9), 0)]).remove(0);
    assert!(matches!(outcome, Outcome::Malformed(_)), "{outcome:?}");
    let mut commit = CommitBuilder::new();
    let read = UnchangedRange { end: None, since: Revision(9), count: 0 };
    commit.expect(KeyspaceId(7), b"", Expect::Unchanged(read)).unwrap().put(KS, b"k", b"").unwrap();
    let outcome = bench.run(3, &[command(|out| commit.encode(out))]).remove(0);
    assert_eq!(outcome, Outcome::NoSuchKeyspace(KeyspaceId(7)));
}
