//! Tests of acks and nacks within transactions, and of waking waiting consumers.

use thalweg_types::{
    Attempt, GroupId, Offset,
    command::{
        AppendedAt, Expect, OperationResult, Outcome, Transacted, TransactionBuilder,
        groups::{self, GroupOutcome, Redelivery, Settlement},
    },
    record::RecordBatch,
};

use crate::{
    groups::{GROUP, KS, OUT, STREAM, append, bench, fetch, fetch_command, info, later, of, some},
    support::command,
};

/// Encodes a transaction that puts, appends and acks if a key is absent, and nacks otherwise.
fn transaction(acks: &[Settlement], nacks: &[Settlement]) -> Vec<u8> {
    let mut batch = RecordBatch::new();
    batch.push_payload(b"out").unwrap();
    let mut transaction = TransactionBuilder::new();
    transaction.expect(KS, b"k", Expect::Absent).unwrap();
    transaction.then().put(KS, b"k", b"v").unwrap().append(OUT, None, &batch).unwrap();
    transaction.then().ack(GROUP, acks).unwrap().get(KS, b"k").unwrap();
    transaction.otherwise().nack(GROUP, later(0), "later", nacks).unwrap();
    command(|out| transaction.encode(out).unwrap())
}

fn transacted(outcome: &Outcome) -> &Transacted {
    match outcome {
        Outcome::Transacted(done) => done,
        other => panic!("no transaction: {other:?}"),
    }
}

#[test]
fn a_transaction_settles_in_the_list_that_is_carried_out() {
    let mut bench = bench(4);
    let attempt = fetch(&mut bench, 10, 4).attempt;
    let step = transaction(&[some(attempt, &[(0, 2)])], &[some(attempt, &[(3, 1)])]);
    let outcomes = bench.run(11, &[step.clone(), step.clone(), step]);
    let first = transacted(&outcomes[0]);
    assert_eq!(
        first.results[1..3],
        [
            OperationResult::Appended(AppendedAt { stream: OUT, first: Offset(0), count: 1 }),
            OperationResult::Settled { records: 2 }
        ]
    );
    let second = transacted(&outcomes[1]);
    assert_eq!((second.failed.is_some(), &second.results[..]), (true, &[OperationResult::Settled { records: 1 }][..]));
    assert!(second.wrote && second.revision > first.revision);
    let lapsed = Outcome::Group(GroupOutcome::AttemptLapsed { group: GROUP, attempt });
    assert_eq!(outcomes[2], lapsed, "the attempt was nacked");
    assert_eq!((info(&bench).acked, info(&bench).pending), (2, 2));
    let before = (bench.backend.dump(), info(&bench));
    bench.reopen();
    assert_eq!((bench.backend.dump(), info(&bench)), before);
    assert_eq!(of(&fetch(&mut bench, 12, 4)), [(3, 1, 2)]);
}

#[test]
fn a_transaction_that_can_not_settle_all_does_nothing() {
    let mut bench = bench(3);
    let attempt = fetch(&mut bench, 10, 3).attempt;
    let lapsed = |attempt| Outcome::Group(GroupOutcome::AttemptLapsed { group: GROUP, attempt });
    let twice = [some(attempt, &[(0, 2)]), some(attempt, &[(1, 1)])];
    let other = Attempt(attempt.0 + 9);
    let revision = bench.machine.applied().revision;
    let outcomes = bench.run(
        11,
        &[
            transaction(&twice, &[]),
            transaction(&[some(attempt, &[(0, 1)]), Settlement::all(other)], &[]),
            transaction(&[some(attempt, &[(2, 2)])], &[]),
        ],
    );
    assert_eq!(outcomes, [lapsed(attempt), lapsed(other), lapsed(attempt)]);
    let unknown = {
        let mut transaction = TransactionBuilder::new();
        transaction.then().put(KS, b"k", b"v").unwrap().ack(GroupId(7), &[Settlement::all(attempt)]).unwrap();
        command(|out| transaction.encode(out).unwrap())
    };
    let outcome = bench.run(12, &[unknown]).remove(0);
    assert_eq!(outcome, Outcome::Group(GroupOutcome::NoSuchGroup(GroupId(7))));
    assert_eq!(bench.machine.applied().revision, revision, "a rejected commit uses no revision");
    assert_eq!(bench.machine.get(KS, b"k").unwrap(), None);
    assert_eq!((info(&bench).pending, info(&bench).acked), (3, 0));
}

#[test]
fn two_settlements_of_one_transaction_settle_different_records() {
    let mut bench = bench(4);
    let attempt = fetch(&mut bench, 10, 4).attempt;
    let mut transaction = TransactionBuilder::new();
    transaction.then().ack(GROUP, &[some(attempt, &[(0, 1), (2, 1)])]).unwrap();
    transaction.then().nack(GROUP, Redelivery::Uncounted, "", &[some(attempt, &[(1, 1)])]).unwrap();
    let outcome = bench.run(11, &[command(|out| transaction.encode(out).unwrap())]).remove(0);
    let results = [OperationResult::Settled { records: 2 }, OperationResult::Settled { records: 1 }];
    assert_eq!(transacted(&outcome).results, results);
    assert_eq!(of(&fetch(&mut bench, 12, 4)), [(1, 1, 1)]);
    assert_eq!(info(&bench).redelivered, 0, "an uncounted delivery is no redelivery");
}

#[test]
fn who_waits_is_woken_by_what_comes_free_sooner_than_he_knew() {
    let mut bench = bench(2);
    let woken = |bench: &crate::support::Bench| bench.machine.take_woken_groups().into_iter().collect::<Vec<_>>();
    woken(&bench);
    let attempt = fetch(&mut bench, 10, 1).attempt;
    assert_eq!(woken(&bench), [STREAM], "there was no earlier deadline");
    fetch(&mut bench, 11, 1);
    assert_eq!(woken(&bench), [], "a later deadline wakes no consumer");
    let extend = |micros| {
        let by = std::time::Duration::from_micros(micros);
        command(|out| groups::encode_extend(out, GROUP, by, &[attempt]).unwrap())
    };
    bench.run(12, &[extend(90_000_000)]);
    assert_eq!(woken(&bench), [], "longer");
    bench.run(13, &[extend(5)]);
    assert_eq!(woken(&bench), [STREAM], "shorter");
    let ack = command(|out| groups::encode_ack(out, GROUP, &[Settlement::all(attempt)]).unwrap());
    bench.run(14, std::slice::from_ref(&ack));
    assert_eq!(woken(&bench), [], "most acks wake no consumer");
    let machine = std::sync::Arc::new(bench.log.machine(bench.backend.copy(), bench.options));
    let waiter = machine.wake_at_settlements();
    let apply = |commands: &[Vec<u8>], log: &mut crate::support::Log, time| {
        let record = log.entry(&crate::support::frame(commands), thalweg_types::SpaceTime(time));
        crate::support::apply(&machine, &record);
    };
    apply(&[append(STREAM, 1), fetch_command(1, "m")], &mut bench.log, 20);
    let _ = machine.take_woken_groups();
    apply(std::slice::from_ref(&ack), &mut bench.log, 21);
    assert_eq!(machine.take_woken_groups().len(), 1, "a waiter for settlements is registered");
    drop(waiter);
    apply(&[ack], &mut bench.log, 22);
    assert_eq!(machine.take_woken_groups().len(), 0);
}
