//! Transactions that only read: a view answers them as the log would.

use std::time::Duration;

use thalweg_engine::{
    Database, TransactionAck, WriteError,
    types::{
        KeyspaceId, Revision,
        budget::{Budget, BudgetSpent},
        command::{
            Command, CommitBuilder, Deadline, Expect, RedisBuilder, ScanOperation, TransactionBuilder, UnchangedRange,
        },
    },
};

use crate::{
    common::block_on,
    support::{Node, Restart},
};

/// Answers a transaction without the log, in at most `steps` steps.
fn read(
    db: &Database,
    transaction: &TransactionBuilder,
    steps: u64,
) -> Result<Result<TransactionAck, WriteError>, BudgetSpent> {
    assert!(transaction.only_reads());
    let mut bytes = Vec::new();
    transaction.encode(&mut bytes).unwrap();
    let Ok(Command::Transaction(decoded)) = Command::decode(&bytes) else { panic!("it does not decode") };
    assert_eq!(decoded.only_reads(), Ok(true));
    db.read_transaction(&decoded, Budget::waiting(steps)).map(Result::unwrap)
}

/// Carries out a transaction through the log, also one that only reads.
fn through_log(db: &Database, transaction: &TransactionBuilder) -> Result<TransactionAck, WriteError> {
    block_on(db.to_async().transact(transaction, db.durability()))
}

/// A pseudo-random number below `below`.
fn below(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

fn key(state: &mut u64) -> Vec<u8> {
    format!("k{:02}", below(state, 24)).into_bytes()
}

fn value(state: &mut u64) -> Vec<u8> {
    // Some values stay in the log.
    let len = [3, 3, 3, 40, 5000][below(state, 5) as usize];
    vec![b'a' + below(state, 2) as u8; len]
}

fn change(node: &mut Node, keyspaces: [KeyspaceId; 2], state: &mut u64) {
    let keyspace = keyspaces[below(state, 2) as usize];
    let mut builder = TransactionBuilder::new();
    match below(state, 8) {
        0 => drop(builder.then().delete(keyspace, &key(state)).unwrap()),
        1 => drop(builder.then().delete_prefix(keyspace, &key(state)[..2]).unwrap()),
        2 => {
            let after = Deadline::After(Duration::from_millis(1 + below(state, 50)));
            builder.then().put_until(keyspace, &key(state), &value(state), after, None).unwrap();
        }
        3 => node.clock().advance(Duration::from_millis(below(state, 20))),
        4 => {
            let mut redis = RedisBuilder::new(keyspaces[1]);
            redis.push(&[&b"HSET"[..], &key(state), b"f", b"v"]).unwrap();
            node.db().propose_command(&redis.finish(), thalweg_engine::Purpose::Data, node.db().durability()).unwrap();
        }
        _ => drop(builder.then().put(keyspace, &key(state), &value(state)).unwrap()),
    }
    node.db().transact(&builder).unwrap();
}

fn transaction(keyspaces: [KeyspaceId; 2], newest: u64, state: &mut u64) -> TransactionBuilder {
    let mut builder = TransactionBuilder::new();
    let pick = |state: &mut u64| match below(state, 20) {
        0 => KeyspaceId(999),
        other => keyspaces[other as usize % 2],
    };
    for _ in 0..below(state, 3) {
        let (keyspace, at, bytes) = (pick(state), key(state), value(state));
        let (revision, end) = (Revision(below(state, newest + 2)), key(state));
        let expect = match below(state, 8) {
            0 => Expect::Absent,
            1 => Expect::Revision(revision),
            2 => Expect::Before(revision),
            3 => Expect::After(revision),
            4 => Expect::Value(&bytes),
            5 => Expect::Any,
            6 => {
                let count = below(state, 4) as u32;
                Expect::Unchanged(UnchangedRange { end: Some(&end), since: revision, count })
            }
            _ => Expect::Present,
        };
        builder.expect(keyspace, &at, expect).unwrap();
    }
    for is_then in [true, false] {
        for _ in 0..below(state, 4) {
            let (keyspace, at, end) = (pick(state), key(state), key(state));
            let list = if is_then { builder.then() } else { builder.otherwise() };
            if below(state, 2) == 0 {
                list.get(keyspace, &at).unwrap();
                continue;
            }
            let scan = ScanOperation {
                prefix: if below(state, 2) == 0 { b"k" } else { b"k1" },
                start: (below(state, 2) == 0).then_some(&at[..]),
                end: (below(state, 2) == 0).then_some(&end[..]),
                reverse: below(state, 2) == 0,
                keys_only: below(state, 2) == 0,
                limit: below(state, 12) as u32,
            };
            list.scan(keyspace, &scan).unwrap();
        }
    }
    builder
}

fn a_view_answers_a_transaction_as_the_log_does(node: &mut Node) {
    let (mut succeeded, mut failed, mut refused) = (0, 0, 0);
    for seed in 0..40 {
        let mut state = seed;
        let names = [format!("plain-{seed}"), format!("redis-{seed}")];
        let keyspaces =
            [node.db().keyspace(&names[0]).unwrap().id(), node.db().redis_keyspace(&names[1]).unwrap().id()];
        for _ in 0..40 {
            change(node, keyspaces, &mut state);
            let newest = node.db().transact(&TransactionBuilder::new()).unwrap().outcome.revision;
            let transaction = transaction(keyspaces, newest.0, &mut state);
            // The log answers first: a deadline that passes with its entry has passed for the view, too.
            let (by_log, by_view) =
                (through_log(node.db(), &transaction), read(node.db(), &transaction, u64::MAX).unwrap());
            match (&by_log, &by_view) {
                (Ok(by_log), Ok(by_view)) => assert_eq!(by_view.outcome, by_log.outcome, "seed {seed}"),
                _ => assert_eq!(format!("{by_view:?}"), format!("{by_log:?}"), "seed {seed}"),
            }
            match by_log {
                Ok(ack) if ack.succeeded() => succeeded += 1,
                Ok(_) => failed += 1,
                Err(_) => refused += 1,
            }
        }
    }
    assert!(succeeded > 100 && failed > 100 && refused > 100, "{succeeded} {failed} {refused}");
    node.restart(Restart::Clean);
}

fn a_transaction_that_only_reads_writes_no_entry_and_has_bounded_work(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    let mut commit = CommitBuilder::new();
    for key in 0..2000 {
        commit.put(keyspace.id(), format!("hidden:{key:04}").as_bytes(), b"v").unwrap();
    }
    node.db().commit(&commit).unwrap();
    keyspace.delete_prefix(b"hidden:").unwrap();
    keyspace.put(b"seen", b"v").unwrap();
    let mut transaction = TransactionBuilder::new();
    transaction.then().get(keyspace.id(), b"seen").unwrap();
    transaction.then().scan(keyspace.id(), &ScanOperation { limit: 1, ..ScanOperation::default() }).unwrap();
    let before = node.db().stats().entries;
    let ack = read(node.db(), &transaction, u64::MAX).unwrap().unwrap();
    assert_eq!((ack.succeeded(), ack.outcome.wrote, ack.outcome.results.len()), (true, false, 2));
    assert_eq!(node.db().transact(&transaction).unwrap().outcome, ack.outcome);
    assert_eq!(node.db().stats().entries, before);
    assert_eq!(read(node.db(), &transaction, 1000).map(drop), Err(BudgetSpent::Steps), "hidden rows cost steps");
    let expensive = node.db().transaction_too_expensive();
    assert_eq!(thalweg_engine::types::Classified::code(&expensive), "too_expensive");
    let mut writing = TransactionBuilder::new();
    writing.then().get(keyspace.id(), b"seen").unwrap().put(keyspace.id(), b"a", b"v").unwrap();
    assert!(!writing.only_reads());
    writing = TransactionBuilder::new();
    writing.otherwise().add(keyspace.id(), b"n", 1).unwrap();
    assert!(!writing.only_reads(), "a list that is not chosen counts as well");
}

on_every_backend!(
    a_view_answers_a_transaction_as_the_log_does,
    a_transaction_that_only_reads_writes_no_entry_and_has_bounded_work,
);
