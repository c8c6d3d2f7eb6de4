//! Tests of deadlines and leases within transactions.

use std::sync::atomic::Ordering;

use thalweg_state::expiry::{Expiry, StaleCursor};
use thalweg_types::{
    KeyspaceId, LeaseId, Revision, SpaceTime,
    command::{self, Deadline, OperationResult, Operations, Outcome, TransactionBuilder},
};

use crate::{
    support::{Bench, Map, command},
    time::{after, bench, committed, expire, grant, pairs, present, put, put_until, rows},
};

const KS: KeyspaceId = KeyspaceId(1);

fn transaction(build: impl FnOnce(&mut Operations)) -> Vec<u8> {
    let mut transaction = TransactionBuilder::new();
    build(transaction.then());
    command(|out| transaction.encode(out).unwrap())
}

#[test]
fn a_transaction_puts_and_touches_in_order() {
    let (mut bench, time) = bench();
    bench.run(1000, &[grant(7), put_until(b"old", b"1", after(50), None), put(b"gone", b"1")]);
    let done = bench.run(
        1001,
        &[transaction(|then| {
            then.put_until(KS, b"a", b"1", after(10), Some(LeaseId(7))).unwrap();
            then.touch(KS, b"a", after(20)).unwrap();
            then.touch(KS, b"old", Deadline::Never).unwrap();
            then.touch(KS, b"none", after(20)).unwrap();
            then.touch(KS, b"gone", Deadline::At(SpaceTime(1001))).unwrap();
            then.get(KS, b"gone").unwrap();
            then.put(KS, b"b", b"1").unwrap().touch(KS, b"b", after(30)).unwrap().put(KS, b"b", b"2").unwrap();
            then.touch(KS, b"b", Deadline::Keep).unwrap();
        })],
    );
    let Outcome::Transacted(done) = &done[0] else { panic!("{done:?}") };
    let touched = |existed| OperationResult::Touched { existed };
    let put = OperationResult::Put;
    let expected =
        [put.clone(), touched(true), touched(true), touched(false), touched(true), OperationResult::Got(None)];
    assert_eq!(done.results[..6], expected);
    assert_eq!(done.results[6..], [put.clone(), touched(true), put, touched(true)]);
    let expiry = |bench: &Bench, key: &[u8]| bench.machine.get(KS, key).unwrap().map(|stored| stored.expiry);
    let of_a = Expiry { deadline: Some(SpaceTime(1021)), lease: Some(LeaseId(7)) };
    assert_eq!(expiry(&bench, b"a"), Some(of_a));
    assert_eq!((expiry(&bench, b"old"), expiry(&bench, b"b")), (Some(Expiry::NEVER), Some(Expiry::NEVER)));
    assert_eq!(bench.machine.get(KS, b"old").unwrap().unwrap().revision, Revision(1), "the value is unchanged");
    assert_eq!(expiry(&bench, b"gone"), None);
    time.0.store(1021, Ordering::Relaxed);
    assert_eq!(pairs(&bench.machine.read_view(), KS), ["b", "old"]);
    bench.reopen();
    while let [Outcome::Expired { more: true, .. }] = bench.run(2000, &[expire(100)])[..] {}
    let stale = bench.machine.stale_rows(&mut StaleCursor::default(), 100).unwrap();
    bench.run(2000, &[command(|out| command::encode_forget_rows(out, stale.iter().map(Vec::as_slice)))]);
    assert_eq!(rows(&bench), [1, 1, 0], "only the rows of the lease are left");
}

#[test]
fn a_transaction_that_fails_leaves_no_deadline_behind() {
    let (mut bench, _) = bench();
    bench.run(1000, &[put(b"text", b"x"), put_until(b"a", b"1", after(500), None)]);
    let before = bench.backend.dump();
    let outcomes = bench.run(
        1001,
        &[
            transaction(|then| {
                then.touch(KS, b"a", after(20)).unwrap().put_until(KS, b"b", b"1", after(20), None).unwrap();
                then.add(KS, b"text", 1).unwrap();
            }),
            transaction(|then| {
                then.put_until(KS, b"b", b"1", after(20), Some(LeaseId(9))).unwrap();
            }),
            present(b"a"),
        ],
    );
    assert!(matches!(outcomes[0], Outcome::OperationFailed { operation: 2, .. }), "{outcomes:?}");
    assert_eq!(outcomes[1..], [Outcome::NoSuchLease(LeaseId(9)), committed(3)]);
    let data = |map: &Map| {
        map.iter()
            .filter(|(key, _)| [8, 9, 10, 0x10].contains(&key[0]))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(data(&bench.backend.dump()), data(&before));
}
