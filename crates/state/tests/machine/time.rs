//! Tests of deadlines and leases, one behaviour each.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use thalweg_state::{
    expiry::{Expiry, ReadTime, StaleCursor},
    keyspaces::{ReadView, ScanRange, StoredValue},
    machine::{LocalOutcome, MachineOptions},
};
use thalweg_types::{
    KeyspaceId, LeaseId, Revision, SpaceTime,
    command::{
        self, CommitBuilder, Deadline, Expect, KeyspaceConfig, MoveTarget, OperationResult, Outcome, TransactionBuilder,
    },
    limits::{MAX_EXPIRED_ROWS, MAX_KEY_BYTES, MIN_LEASE_TTL},
};

use crate::support::{Bench, apply, command};

const KS: KeyspaceId = KeyspaceId(1);
/// A keyspace whose puts have a default TTL of 100.
const ENDING: KeyspaceId = KeyspaceId(2);
/// TTL of the tests' leases.
const TTL: u64 = MIN_LEASE_TTL.as_micros() as u64;

/// A clock that a test sets.
#[derive(Debug, Default)]
pub struct TestTime(pub AtomicU64);

impl ReadTime for TestTime {
    fn now(&self) -> SpaceTime {
        SpaceTime(self.0.load(Ordering::Relaxed))
    }

    fn read_time(&self) -> SpaceTime {
        self.now()
    }
}

pub fn bench() -> (Bench, Arc<TestTime>) {
    let mut bench = Bench::new(MachineOptions { inline_value_bytes: 16 });
    let ending = KeyspaceConfig { default_ttl: Some(Duration::from_micros(100)), ..KeyspaceConfig::default() };
    bench.run(
        1,
        &[
            command(|out| command::encode_create_keyspace(out, "plain", &KeyspaceConfig::default()).unwrap()),
            command(|out| command::encode_create_keyspace(out, "ending", &ending).unwrap()),
        ],
    );
    let time = Arc::new(TestTime::default());
    bench.machine.set_read_clock(time.clone());
    (bench, time)
}

pub fn commit(build: impl FnOnce(&mut CommitBuilder)) -> Vec<u8> {
    let mut builder = CommitBuilder::new();
    build(&mut builder);
    command(|out| builder.encode(out))
}

pub fn put(key: &[u8], value: &[u8]) -> Vec<u8> {
    command(|out| command::encode_put(out, KS, key, value).unwrap())
}

pub fn put_until(key: &[u8], value: &[u8], deadline: Deadline, lease: Option<u64>) -> Vec<u8> {
    command(|out| command::encode_put_until(out, KS, key, value, deadline, lease.map(LeaseId)).unwrap())
}

pub fn after(micros: u64) -> Deadline {
    Deadline::After(Duration::from_micros(micros))
}

fn touch(key: &[u8], deadline: Deadline) -> Vec<u8> {
    commit(|commit| _ = commit.touch(KS, key, deadline).unwrap())
}

pub fn present(key: &[u8]) -> Vec<u8> {
    commit(|commit| _ = commit.expect(KS, key, Expect::Present).unwrap())
}

pub fn grant(id: u64) -> Vec<u8> {
    command(|out| command::encode_grant_lease(out, Some(LeaseId(id)), MIN_LEASE_TTL).unwrap())
}

fn keep(id: u64) -> Vec<u8> {
    command(|out| command::encode_keep_lease(out, LeaseId(id)))
}

fn revoke(id: u64) -> Vec<u8> {
    command(|out| command::encode_revoke_lease(out, LeaseId(id)))
}

pub fn expire(max: u32) -> Vec<u8> {
    command(|out| command::encode_expire(out, max))
}

fn granted(id: u64, deadline: u64) -> Outcome {
    Outcome::Lease { id: LeaseId(id), ttl: MIN_LEASE_TTL, deadline: SpaceTime(deadline) }
}

pub fn committed(revision: u64) -> Outcome {
    Outcome::Committed { revision: Revision(revision), appends: vec![] }
}

fn gone(condition: u32) -> Outcome {
    Outcome::ConditionFailed { condition, actual: None }
}

fn expired(keys: u32, rows: u32, more: bool) -> Outcome {
    Outcome::Expired { keys, rows, more }
}

/// Returns the keys that a view shows, with their values if they are short.
pub fn pairs(snapshot: &ReadView, keyspace: KeyspaceId) -> Vec<String> {
    let mut pairs = Vec::new();
    let visit = &mut |item: thalweg_state::keyspaces::Item<'_>| {
        pairs.push(String::from_utf8_lossy(item.key).into_owned());
        ControlFlow::Continue(())
    };
    snapshot.scan(keyspace, &ScanRange::default(), visit).unwrap();
    pairs
}

/// Returns the numbers of rows of deadlines, leases and attachments.
pub fn rows(bench: &Bench) -> [usize; 3] {
    let map = bench.backend.dump();
    [8, 9, 10].map(|tag| map.keys().filter(|key| key[0] == tag).count())
}

#[test]
fn a_key_is_hidden_from_its_deadline_on_though_nobody_removed_it() {
    let (mut bench, time) = bench();
    bench.run(1000, &[put_until(b"a", b"1", after(50), None), put(b"b", b"2")]);
    for (now, expected) in [(1049, vec!["a", "b"]), (1050, vec!["b"]), (9999, vec!["b"])] {
        time.0.store(now, Ordering::Relaxed);
        assert_eq!(pairs(&bench.machine.read_view(), KS), expected, "at {now}");
        assert_eq!(bench.machine.get(KS, b"a").unwrap().is_some(), now < 1050);
        assert!(bench.machine.stored(KS, b"a").unwrap().is_some());
    }
    assert_eq!(bench.run(1049, &[present(b"a")]), [committed(3)]);
    assert_eq!(bench.run(1050, &[present(b"a")]), [gone(0)]);
    let absent = commit(|commit| _ = commit.expect(KS, b"a", Expect::Absent).unwrap());
    assert_eq!(bench.run(1050, &[absent]), [committed(4)]);
    let same = commit(|commit| _ = commit.expect(KS, b"a", Expect::Revision(Revision(1))).unwrap());
    assert_eq!(bench.run(1050, &[same]), [gone(0)]);
}

#[test]
fn a_delete_by_prefix_does_not_count_keys_that_have_ended() {
    let (mut bench, _) = bench();
    bench.run(
        1000,
        &[
            grant(7),
            put(b"p/stays", b"1"),
            put_until(b"p/ends", b"2", after(50), None),
            put_until(b"p/leased", b"3", Deadline::Never, Some(7)),
        ],
    );
    let mut transaction = TransactionBuilder::new();
    transaction.then().delete_prefix(KS, b"p/").unwrap();
    let outcomes = bench.run(1000 + TTL, &[command(|out| transaction.encode(out).unwrap())]);
    let Outcome::Transacted(done) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert_eq!(done.results, [OperationResult::PrefixDeleted { keys: Some(1) }]);
    assert!(pairs(&bench.machine.read_view(), KS).is_empty());
    assert!(bench.machine.stored(KS, b"p/ends").unwrap().is_none(), "the rows of the others are removed, too");
}

#[test]
fn an_entry_of_an_earlier_time_does_not_bring_a_key_back() {
    let (mut bench, _) = bench();
    bench.run(1000, &[put_until(b"a", b"1", after(50), None)]);
    assert_eq!(bench.run(1050, &[present(b"a")]), [gone(0)]);
    assert_eq!(bench.run(900, &[present(b"a")]), [gone(0)], "a lower time counts as that of the previous entry");
}

#[test]
fn a_view_is_of_one_moment() {
    let (mut bench, time) = bench();
    bench.run(
        1000,
        &[grant(7), put_until(b"a", b"1", after(50), None), put_until(b"b", b"2", Deadline::Never, Some(7))],
    );
    time.0.store(1010, Ordering::Relaxed);
    let held = bench.machine.read_view();
    time.0.store(5_000_000, Ordering::Relaxed);
    bench.run(1020, &[revoke(7)]);
    bench.run(5_000_000, &[expire(100)]);
    assert_eq!(pairs(&held, KS), ["a", "b"]);
    assert!(held.get(KS, b"a").unwrap().is_some() && held.get(KS, b"b").unwrap().is_some());
    assert!(held.lease(LeaseId(7)).unwrap().is_some());
    assert_eq!(held.time(), SpaceTime(1010));
    let now = bench.machine.read_view();
    assert_eq!((pairs(&now, KS), now.lease(LeaseId(7)).unwrap()), (vec![], None));
    assert_eq!(now.get(KS, b"a").unwrap(), None);
}

/// A reader whose clock is behind the last applied entry uses the time of that entry.
#[test]
fn a_view_is_never_of_a_time_before_its_last_entry() {
    let (mut bench, time) = bench();
    bench.run(1000, &[put_until(b"a", b"1", after(50), None)]);
    bench.run(2000, &[put(b"b", b"2")]);
    time.0.store(1001, Ordering::Relaxed);
    assert_eq!(bench.machine.read_view().time(), SpaceTime(2000));
    assert_eq!(pairs(&bench.machine.read_view(), KS), ["b"]);
}

#[test]
fn without_deadlines_no_row_is_added_and_a_put_reads_nothing() {
    let (mut bench, _) = bench();
    bench.run(1000, &[put(b"a", b"1")]);
    assert!(!bench.machine.has_deadlines());
    bench.run(1001, &[put_until(b"t", b"1", after(50), None)]);
    assert!(bench.machine.has_deadlines());
    let before = bench.backend.reads.load(Ordering::Relaxed);
    bench.run(1002, &[put(b"a", b"2"), put(b"t", b"plain"), commit(|commit| _ = commit.delete(KS, b"a").unwrap())]);
    assert_eq!(bench.backend.reads.load(Ordering::Relaxed), before, "puts are blind although some keys have deadlines");
    let stored = bench.machine.get(KS, b"t").unwrap().unwrap();
    assert_eq!((stored.expiry, rows(&bench)), (Expiry::NEVER, [1, 0, 0]), "the row of the previous value is left");
}

#[test]
fn expiry_removes_the_key_and_its_rows_once() {
    let (mut bench, _) = bench();
    let long = [b'x'; 40];
    bench.run(1000, &[put_until(b"a", &long, after(50), None), put_until(b"b", b"2", after(60), None)]);
    let live = |bench: &Bench| bench.machine.liveness().iter().map(|(_, row)| row.value_bytes).sum::<u64>();
    assert_eq!(live(&bench), 40);
    assert!(!bench.machine.expiry_due(SpaceTime(1049)).unwrap() && bench.machine.expiry_due(SpaceTime(1050)).unwrap());
    assert_eq!(bench.run(1049, &[expire(10)]), [expired(0, 0, false)]);
    assert_eq!(bench.run(1050, &[expire(10)]), [expired(1, 1, false)]);
    assert_eq!((bench.machine.applied().revision, live(&bench)), (Revision(3), 0));
    assert!(bench.machine.stored(KS, b"a").unwrap().is_none());
    assert_eq!((bench.machine.stored(KS, b"b").unwrap().is_some(), rows(&bench)), (true, [1, 0, 0]));
    assert_eq!(bench.run(1050, &[expire(10)]), [expired(0, 0, false)]);
    assert_eq!(bench.machine.applied().revision, Revision(3), "a command that removes no key uses no revision");
}

#[test]
fn expiry_is_done_in_bounded_steps() {
    let (mut bench, _) = bench();
    let puts: Vec<_> = (0..10u8).map(|key| put_until(&[key], b"1", after(50), None)).collect();
    bench.run(1000, &puts);
    assert_eq!(bench.run(2000, &[expire(4)]), [expired(4, 4, true)]);
    assert_eq!(bench.run(2000, &[expire(4), expire(4)]), [expired(4, 4, true), expired(2, 2, false)]);
    assert_eq!(bench.run(2000, &[expire(4)]), [expired(0, 0, false)]);
    assert_eq!(rows(&bench), [0, 0, 0]);
}

#[test]
fn expiry_does_not_touch_what_the_same_entry_has_written() {
    let (mut bench, _) = bench();
    bench.run(1000, &[put_until(b"a", b"old", after(50), None), put_until(b"b", b"old", after(50), None)]);
    let delete = commit(|commit| _ = commit.delete(KS, b"b").unwrap());
    let outcomes = bench.run(2000, &[put(b"a", b"new"), delete, expire(10), present(b"a"), present(b"b")]);
    assert_eq!(outcomes[2..], [expired(0, 2, false), committed(5), gone(0)], "only stale rows are deleted");
    assert!(bench.machine.get(KS, b"a").unwrap().is_some());
    assert!(bench.machine.get(KS, b"b").unwrap().is_none());
    assert_eq!(rows(&bench), [0, 0, 0]);
}

#[test]
fn a_later_deadline_replaces_an_earlier_one() {
    let (mut bench, _) = bench();
    bench.run(1000, &[put_until(b"a", b"1", after(50), None)]);
    bench.run(1010, &[put_until(b"a", b"2", after(50), None)]);
    assert_eq!(rows(&bench), [1, 0, 0], "a put with a deadline removes the row of the previous value");
    assert_eq!(bench.run(1055, &[expire(10), present(b"a")])[1], committed(3));
    assert_eq!(bench.run(1060, &[present(b"a")]), [gone(0)]);
}

#[test]
fn a_touch_changes_the_deadline_and_nothing_else() {
    let (mut bench, _) = bench();
    let long = [b'x'; 40];
    bench.run(1000, &[grant(3), put(b"a", b"1"), put_until(b"b", &long, after(50), Some(3))]);
    let before = bench.machine.get(KS, b"b").unwrap().unwrap();
    assert_eq!(bench.run(1001, &[touch(b"a", after(10)), touch(b"b", Deadline::Never)]), [committed(3), committed(4)]);
    let touched = bench.machine.get(KS, b"a").unwrap().unwrap();
    assert_eq!((touched.revision, touched.expiry.deadline), (Revision(1), Some(SpaceTime(1011))));
    let persisted = bench.machine.get(KS, b"b").unwrap().unwrap();
    assert_eq!((&persisted.value, persisted.revision), (&before.value, before.revision));
    assert_eq!(persisted.expiry, Expiry { deadline: None, lease: Some(LeaseId(3)) });
    assert_eq!(rows(&bench), [2, 1, 1], "the deadlines of a and of the lease");
    bench.run(1002, &[touch(b"a", Deadline::At(SpaceTime(5000)))]);
    assert_eq!(bench.run(4999, &[present(b"a")]), [committed(6)]);
    assert_eq!(bench.run(5000, &[present(b"a"), touch(b"a", Deadline::Never), present(b"a")])[2], gone(0), "too late");
}

#[test]
fn a_touch_sees_what_its_entry_and_its_commit_wrote_before() {
    let (mut bench, _) = bench();
    let long = [b'x'; 40];
    bench.run(1000, &[put(b"a", &long), touch(b"a", after(10))]);
    let both = commit(|commit| {
        commit.put(KS, b"b", b"2").unwrap().touch(KS, b"b", after(10)).unwrap();
        commit.delete(KS, b"c").unwrap().touch(KS, b"c", after(10)).unwrap();
    });
    bench.run(1000, &[put(b"c", b"3"), both]);
    for key in [b"a", b"b"] {
        let stored = bench.machine.get(KS, key).unwrap().unwrap();
        assert_eq!(stored.expiry.deadline, Some(SpaceTime(1010)));
    }
    let StoredValue::Blob(blob) = bench.machine.get(KS, b"a").unwrap().unwrap().value else { panic!("not in the log") };
    assert_eq!(bench.log.read(&blob), long[..]);
    assert!(bench.machine.stored(KS, b"c").unwrap().is_none());
}

#[test]
fn a_touch_without_a_condition_is_malformed() {
    let (mut bench, _) = bench();
    let honest = touch(b"a", after(10));
    let foreign = [&honest[..1], &[0; 4], &honest[5..9], &honest[18..]].concat();
    assert!(matches!(bench.run(1000, &[foreign])[0], Outcome::Malformed(_)));
}

#[test]
fn what_has_passed_is_as_if_deleted() {
    let (mut bench, _) = bench();
    let past = Deadline::At(SpaceTime(999));
    bench.run(999, &[put_until(b"a", b"1", after(10), None), put_until(b"b", b"1", after(10), None), put(b"c", b"1")]);
    bench.run(1000, &[put_until(b"a", b"2", past, None), touch(b"b", past), touch(b"c", past), present(b"a")]);
    assert_eq!(bench.backend.dump().keys().filter(|key| key[0] == 0x10).count(), 0);
    assert_eq!(rows(&bench), [0, 0, 0]);
}

#[test]
fn keeping_the_deadline_takes_it_and_the_lease_from_the_value_before() {
    let (mut bench, _) = bench();
    let keep = |key: &[u8]| put_until(key, b"2", Deadline::Keep, None);
    bench.run(1000, &[grant(3), put_until(b"a", b"1", after(50), Some(3)), put(b"b", b"1")]);
    bench.run(1010, &[keep(b"a"), keep(b"b"), keep(b"new")]);
    let expiry = |key: &[u8]| bench.machine.get(KS, key).unwrap().unwrap().expiry;
    assert_eq!(expiry(b"a"), Expiry { deadline: Some(SpaceTime(1050)), lease: Some(LeaseId(3)) });
    assert_eq!((expiry(b"b"), expiry(b"new")), (Expiry::NEVER, Expiry::NEVER));
    assert_eq!(rows(&bench), [2, 1, 1]);
}

#[test]
fn a_keyspace_gives_its_puts_a_deadline_unless_they_say_otherwise() {
    let (mut bench, _) = bench();
    let puts = commit(|commit| {
        commit.put(ENDING, b"a", b"1").unwrap();
        commit.put_until(ENDING, b"b", b"1", Deadline::Never, None).unwrap();
        commit.put_until(ENDING, b"c", b"1", after(7), None).unwrap();
    });
    bench.run(1000, &[puts]);
    let deadline = |bench: &Bench, key: &[u8]| bench.machine.get(ENDING, key).unwrap().unwrap().expiry.deadline;
    assert_eq!(
        [b"a", b"b", b"c"].map(|key| deadline(&bench, key)),
        [Some(1100), None, Some(1007)].map(|at| at.map(SpaceTime))
    );
    for time in [1001, 1002, 1003] {
        bench.run(time, &[command(|out| command::encode_put(out, ENDING, b"a", b"2").unwrap())]);
    }
    assert_eq!((deadline(&bench, b"a"), rows(&bench)[0]), (Some(SpaceTime(1103)), 2), "no stale row is left");
    let other = KeyspaceConfig { default_ttl: None, ..KeyspaceConfig::default() };
    bench.run(1004, &[command(|out| command::encode_configure_keyspace(out, ENDING, &other).unwrap())]);
    bench.run(1005, &[command(|out| command::encode_put(out, ENDING, b"d", b"2").unwrap())]);
    assert_eq!((deadline(&bench, b"d"), deadline(&bench, b"a")), (None, Some(SpaceTime(1103))));
}

#[test]
fn a_value_in_the_log_keeps_its_end_when_it_is_moved() {
    let (mut bench, _) = bench();
    let long = [b'x'; 40];
    bench.run(1000, &[grant(3), put_until(b"a", &long, after(50), Some(3))]);
    let before = bench.machine.get(KS, b"a").unwrap().unwrap();
    let StoredValue::Blob(blob) = before.value else { panic!("not in the log") };
    let record = bench.log.moved(&blob, &MoveTarget::Value { keyspace: KS, key: b"a" }, &long);
    assert_eq!(apply(&bench.machine, &record).1, Some(LocalOutcome::Applied));
    let after = bench.machine.get(KS, b"a").unwrap().unwrap();
    assert_eq!((after.expiry, after.revision), (before.expiry, before.revision));
    assert_ne!(after.value, StoredValue::Blob(blob));
}

#[test]
fn a_lease_ends_unless_it_is_kept_alive_and_its_keys_with_it() {
    let (mut bench, time) = bench();
    assert_eq!(bench.run(1000, &[grant(7)]), [granted(7, 1000 + TTL)]);
    bench.run(1001, &[put_until(b"a", b"1", Deadline::Default, Some(7)), put_until(b"b", b"1", after(5), Some(7))]);
    assert_eq!(bench.run(1000 + TTL - 1, &[keep(7)]), [granted(7, 1000 + 2 * TTL - 1)]);
    let end = 1000 + 2 * TTL - 1;
    assert_eq!(bench.run(end - 1, &[present(b"a"), present(b"b")]), [committed(3), gone(0)]);
    time.0.store(end, Ordering::Relaxed);
    assert_eq!(pairs(&bench.machine.read_view(), KS), Vec::<String>::new());
    assert!(bench.machine.get(KS, b"a").unwrap().is_none());
    let refused = Outcome::NoSuchLease(LeaseId(7));
    let attach = put_until(b"c", b"1", Deadline::Never, Some(7));
    assert_eq!(bench.run(end, &[keep(7), revoke(7), attach]), [refused.clone(), refused.clone(), refused]);
    assert_eq!(bench.run(end, &[grant(7)]), [Outcome::LeaseExists(LeaseId(7))], "its keys are not removed yet");
    assert_eq!(bench.run(end, &[expire(100)]), [expired(2, 3, false)], "b's second row is deleted as well");
    assert_eq!(rows(&bench), [0, 0, 0]);
    assert_eq!(bench.run(end, &[grant(7)]), [granted(7, end + TTL)]);
    assert_eq!(pairs(&bench.machine.read_view(), KS), Vec::<String>::new(), "the new lease does not restore the keys");
}

#[test]
fn an_ended_lease_without_keys_makes_room_for_one_of_its_id() {
    let (mut bench, _) = bench();
    assert_eq!(bench.run(1000, &[grant(7), grant(7)]), [granted(7, 1000 + TTL), Outcome::LeaseExists(LeaseId(7))]);
    let end = 1000 + TTL;
    assert_eq!(bench.run(end - 1, &[grant(7)]), [Outcome::LeaseExists(LeaseId(7))], "it lives");
    assert_eq!(bench.run(end, &[grant(7)]), [granted(7, end + TTL)]);
    assert_eq!(rows(&bench), [1, 1, 0], "only the rows of the new lease");
    let again = granted(7, end + TTL);
    assert_eq!(bench.run(end, &[revoke(7), grant(7)])[1], again, "within one entry, too");
    bench.reopen();
    assert_eq!(bench.run(end + TTL, &[expire(10)]), [expired(0, 1, false)]);
    assert_eq!(rows(&bench), [0, 0, 0]);
}

#[test]
fn a_revoked_lease_takes_its_keys_with_it_at_once() {
    let (mut bench, _) = bench();
    bench.run(1000, &[grant(7), grant(8)]);
    bench
        .run(1001, &[put_until(b"a", b"1", Deadline::Never, Some(7)), put_until(b"b", b"1", Deadline::Never, Some(8))]);
    assert_eq!(bench.run(1002, &[revoke(7), present(b"a"), present(b"b")]), [committed(3), gone(0), committed(4)]);
    assert_eq!(rows(&bench), [1, 1, 1]);
    assert!(bench.machine.stored(KS, b"a").unwrap().is_none());
}

#[test]
fn a_lease_can_be_granted_used_and_revoked_in_one_entry() {
    let (mut bench, _) = bench();
    let attach = |key: &[u8]| put_until(key, b"1", Deadline::Never, Some(7));
    let outcomes = bench.run(1000, &[grant(7), attach(b"a"), present(b"a"), revoke(7), present(b"a"), attach(b"b")]);
    let refused = Outcome::NoSuchLease(LeaseId(7));
    assert_eq!(outcomes[1..], [committed(1), committed(2), committed(3), gone(0), refused]);
    assert!(bench.machine.get(KS, b"a").unwrap().is_none());
    assert!(bench.machine.stored(KS, b"a").unwrap().is_none());
    assert_eq!(rows(&bench), [0, 0, 0], "all keys of the entry are removed with the lease");
    assert_eq!(bench.run(1000, &[grant(7), present(b"a"), attach(b"b")])[1..], [gone(0), committed(4)]);
    assert_eq!(rows(&bench), [1, 1, 1]);
}

#[test]
fn a_lease_of_many_keys_ends_in_bounded_steps_and_all_are_hidden_at_once() {
    let (mut bench, _) = bench();
    bench.run(1000, &[grant(7)]);
    let keys = MAX_EXPIRED_ROWS + 500;
    for some in (0..keys).collect::<Vec<_>>().chunks(2_000) {
        let puts = commit(|commit| {
            for key in some {
                commit.put_until(KS, &key.to_be_bytes(), b"1", Deadline::Never, Some(LeaseId(7))).unwrap();
            }
        });
        bench.run(1001, &[puts]);
    }
    assert_eq!(bench.machine.read_view().lease(LeaseId(7)).unwrap().unwrap().keys, keys);
    bench.run(1002, &[revoke(7)]);
    assert_eq!(pairs(&bench.machine.read_view(), KS), Vec::<String>::new());
    assert_eq!(rows(&bench), [1, 1, 500]);
    bench.reopen();
    assert_eq!(bench.run(1003, &[expire(100)]), [expired(99, 100, true)]);
    assert_eq!(bench.run(1003, &[expire(1000)]), [expired(401, 402, false)]);
    assert_eq!((rows(&bench), bench.backend.dump().keys().filter(|key| key[0] == 0x10).count()), ([0, 0, 0], 0));
}

#[test]
fn ids_that_the_machine_chooses_are_new() {
    let (mut bench, _) = bench();
    let any = command(|out| command::encode_grant_lease(out, None, MIN_LEASE_TTL).unwrap());
    for time in 0..4 {
        let expected = [1, 2].map(|nth| granted(2 * time + nth, 1000 + time + TTL));
        assert_eq!(bench.run(1000 + time, &[any.clone(), any.clone()]), expected, "counted over all entries");
        bench.reopen();
    }
    let end = 1005 + TTL;
    let outcomes = bench.run(1005, &[grant(9), grant(11), any.clone(), any.clone(), revoke(12), any.clone()]);
    assert_eq!(outcomes[2..4], [granted(10, end), granted(12, end)], "ids chosen by clients are skipped");
    assert_eq!(outcomes[5], granted(13, end), "no id is assigned twice");
    assert_eq!(bench.run(1006, &[revoke(13), any]), [committed(2), granted(14, end + 1)]);
}

#[test]
fn leases_and_their_keys_are_listed_as_they_are() {
    let (mut bench, time) = bench();
    bench.run(1000, &[grant(1), grant(2), grant(3)]);
    let attach = |key: &[u8]| put_until(key, b"1", Deadline::Never, Some(2));
    bench.run(1001, &[attach(b"a"), attach(b"b"), attach(b"c"), attach(b"d"), attach(b"d")]);
    bench.run(1002, &[put(b"b", b"plain"), put_until(b"c", b"1", Deadline::Never, Some(3)), revoke(1)]);
    let view = bench.machine.read_view();
    let ids = |after, limit| view.leases(after, limit).unwrap().iter().map(|info| info.id.0).collect::<Vec<_>>();
    assert_eq!((ids(None, 10), ids(None, 1), ids(Some(LeaseId(2)), 10)), (vec![2, 3], vec![2], vec![3]));
    assert_eq!(view.lease(LeaseId(2)).unwrap().unwrap().keys, 3, "b's stale row is not detected yet");
    let keys = |after: Option<&_>, limit| view.lease_keys(LeaseId(2), after, limit).unwrap();
    let names =
        |keys: &[thalweg_state::expiry::AttachedKey]| keys.iter().map(|key| key.key.clone()).collect::<Vec<_>>();
    let all = keys(None, 10);
    assert_eq!(names(&all), [b"a", b"d"]);
    assert_eq!((names(&keys(None, 1)), names(&keys(Some(&all[0]), 10))), (vec![b"a".to_vec()], vec![b"d".to_vec()]));
    let mut cursor = StaleCursor::default();
    let stale = bench.machine.stale_rows(&mut cursor, 100).unwrap();
    let forget = command(|out| command::encode_forget_rows(out, stale.iter().map(Vec::as_slice)));
    assert_eq!(bench.run(1003, &[forget]), [expired(0, 1, false)]);
    assert_eq!(bench.machine.read_view().lease(LeaseId(2)).unwrap().unwrap().keys, 2);
    time.0.store(1000 + TTL, Ordering::Relaxed);
    assert!(bench.machine.read_view().leases(None, 10).unwrap().is_empty());
    assert!(bench.machine.read_view().lease_keys(LeaseId(2), None, 10).unwrap().is_empty());
}

#[test]
fn stale_rows_are_found_in_pages_and_forgotten_only_if_they_still_are() {
    let (mut bench, _) = bench();
    let puts: Vec<_> = (0..9u8).map(|key| put_until(&[key], b"1", after(1_000_000), None)).collect();
    bench.run(1000, &puts);
    bench.run(1001, &(0..9u8).filter(|key| key % 3 == 0).map(|key| put(&[key], b"2")).collect::<Vec<_>>());
    let mut cursor = StaleCursor::default();
    let found: Vec<_> = (0..3).map(|_| bench.machine.stale_rows(&mut cursor, 4).unwrap()).collect();
    assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 0]);
    assert_eq!(cursor, StaleCursor::default(), "the cursor restarts");
    let stale: Vec<&[u8]> = found.iter().flatten().map(Vec::as_slice).collect();
    let forget = command(|out| command::encode_forget_rows(out, stale.iter().copied()));
    // One of the rows is valid again by now, and another one is about to be.
    bench.run(1000, &[put_until(&[0], b"1", Deadline::At(SpaceTime(1_001_000)), None)]);
    let again = put_until(&[3], b"1", Deadline::At(SpaceTime(1_001_000)), None);
    assert_eq!(bench.run(1002, &[again, forget.clone()])[1], expired(0, 1, false));
    assert_eq!(rows(&bench), [8, 0, 0]);
    let garbage = command(|out| {
        let rows = [b"\x10\0\0\0\x01\0".as_slice(), b"\x09\0\0\0\0\0\0\0\x01", b"", b"\x08"];
        command::encode_forget_rows(out, rows.into_iter());
    });
    assert_eq!(bench.run(1003, &[garbage]), [expired(0, 0, false)]);
    assert!(bench.machine.get(KS, &[0]).unwrap().is_some());
}

#[test]
fn a_row_that_no_key_can_have_is_not_forgotten() {
    let (mut bench, _) = bench();
    let forget = |key_len: usize| {
        let row = [b"\x08\0\0\0\0\0\0\x03\xe8\0\0\0\x01".as_slice(), &vec![b'k'; key_len]].concat();
        command(|out| command::encode_forget_rows(out, [row.as_slice()].into_iter()))
    };
    assert_eq!(bench.run(2, &[forget(MAX_KEY_BYTES)]), [expired(0, 1, false)]);
    for key_len in [MAX_KEY_BYTES + 1, 65_535, 1 << 20] {
        let outcomes = bench.run(2, &[forget(key_len)]);
        assert!(matches!(outcomes[..], [Outcome::Malformed(_)]), "{outcomes:?}");
    }
}
