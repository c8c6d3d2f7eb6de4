//! Transactions, counters, delete by prefix, administration of keyspaces.

use std::{collections::BTreeSet, thread};

use thalweg_engine::{
    Database, KeyspaceCounts, ScanRange, TransactionError, WriteError,
    types::{
        Durability, Revision,
        command::{Expect, KeyspaceConfig, OperationError, OperationResult, ScanOperation, TransactionBuilder},
    },
};

use crate::support::{Node, Restart};

fn value(db: &Database, key: &[u8]) -> Option<Vec<u8>> {
    db.keyspace("k").unwrap().get(key).unwrap().map(|entry| entry.value.to_vec())
}

fn count(db: &Database) -> usize {
    db.keyspace("k").unwrap().iter(ScanRange::default()).count()
}

fn a_value_is_swapped_only_for_the_one_expected(node: &mut Node) {
    let long = vec![7; 20_000];
    let keyspace = node.db().keyspace("k").unwrap();
    keyspace.put(b"a", &long).unwrap();
    let mut other = long.clone();
    other[9] = 0;
    assert!(matches!(keyspace.put_if(b"a", b"x", Expect::Value(&other)), Err(WriteError::ConditionFailed { .. })));
    drop(keyspace);
    node.restart(Restart::Kill);
    let keyspace = node.db().keyspace("k").unwrap();
    keyspace.put_if(b"a", b"1", Expect::Value(&long)).unwrap();
    assert!(keyspace.delete_if(b"a", Expect::Value(b"2")).is_err());
    drop(keyspace);
    node.through_restarts(|db| assert_eq!(value(db, b"a").unwrap(), b"1"));
    node.db().keyspace("k").unwrap().delete_if(b"a", Expect::Value(b"1")).unwrap();
    node.through_restarts(|db| assert_eq!(value(db, b"a"), None));
}

fn a_transaction_takes_one_of_two_branches(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap().id();
    let mut transaction = TransactionBuilder::new();
    transaction.expect(keyspace, b"lock", Expect::Absent).unwrap();
    transaction.then().put(keyspace, b"lock", b"me").unwrap().add(keyspace, b"taken", 1).unwrap();
    transaction.otherwise().get(keyspace, b"lock").unwrap();
    let all = ScanOperation { limit: 10, ..ScanOperation::default() };
    transaction.otherwise().scan(keyspace, &all).unwrap();
    let first = node.db().transact(&transaction).unwrap();
    assert!(first.succeeded() && first.outcome.wrote);
    assert_eq!(first.outcome.results, [OperationResult::Put, OperationResult::Added { value: 1 }]);
    for how in Restart::ALL {
        node.restart(how);
        let second = node.db().transact(&transaction).unwrap();
        assert!(!second.succeeded() && !second.outcome.wrote);
        let OperationResult::Got(Some(got)) = &second.outcome.results[0] else { panic!("{second:?}") };
        assert_eq!((&got.value[..], got.revision), (&b"me"[..], first.outcome.revision));
        let OperationResult::Scanned(page) = &second.outcome.results[1] else { panic!("{second:?}") };
        assert_eq!(page.items.len(), 2);
    }
    let unknown = node.db().with_durability(Durability::None).transact(&transaction).unwrap_err();
    assert_eq!(unknown, WriteError::LevelTooLow);
}

fn counters_add_up_and_refuse_what_is_no_number(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    assert_eq!(keyspace.add(b"n", 5).unwrap().value, 5);
    assert_eq!(keyspace.add(b"n", -7).unwrap().value, -2);
    keyspace.put(b"max", i64::MAX.to_string().as_bytes()).unwrap();
    let overflow = OperationError::Overflow { value: i64::MAX, delta: 1 };
    let error = keyspace.add(b"max", 1).unwrap_err();
    assert_eq!(error, WriteError::OperationFailed { operation: 0, error: overflow });
    keyspace.put(b"text", b"one").unwrap();
    let error = keyspace.add(b"text", 1).unwrap_err();
    assert_eq!(error, WriteError::OperationFailed { operation: 0, error: OperationError::NotANumber });
    drop(keyspace);
    node.through_restarts(|db| {
        assert_eq!((value(db, b"n").unwrap(), value(db, b"text").unwrap()), (b"-2".to_vec(), b"one".to_vec()));
    });
}

fn a_deleted_prefix_is_gone_at_once_and_swept_by_maintenance(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    let long = vec![9; 5000];
    for number in 0..300u32 {
        keyspace.put(format!("a/{number}").as_bytes(), &long).unwrap();
        keyspace.put(format!("b/{number}").as_bytes(), b"v").unwrap();
    }
    let iterator = keyspace.iter(ScanRange::with_prefix(b"a/".to_vec()));
    let (mut lending, mut owned) = (keyspace.iter(ScanRange::default()), keyspace.iter(ScanRange::default()));
    while let Some(pair) = lending.next_pair() {
        let (pair, (key, entry)) = (pair.unwrap(), owned.next().unwrap().unwrap());
        assert_eq!((pair.key, pair.value, pair.revision), (&key[..], &entry.value[..], entry.revision));
    }
    assert!(owned.next().is_none(), "both ways return all pairs");
    drop((lending, owned));
    let deleted = keyspace.delete_prefix(b"a/").unwrap();
    assert_eq!(deleted.keys, None, "too many keys to count within the command");
    assert_eq!(iterator.count(), 300, "an earlier view shows the keys");
    keyspace.put(b"a/again", b"1").unwrap();
    assert!(keyspace.put_if(b"a/7", b"x", Expect::Present).is_err());
    assert_eq!(keyspace.get(b"a/7").unwrap(), None);
    drop(keyspace);
    node.through_restarts(|db| {
        assert_eq!((value(db, b"a/0"), value(db, b"a/again").unwrap()), (None, b"1".to_vec()));
        assert_eq!(count(db), 301);
    });
    let swept: u64 = (0..3).map(|_| node.db().maintain().unwrap().swept_rows).sum();
    assert!(swept >= 300, "{swept}");
    assert_eq!(node.db().maintain().unwrap().swept_rows, 0);
    node.through_restarts(|db| assert_eq!(count(db), 301));
    let few = node.db().keyspace("k").unwrap().delete_prefix(b"b/29").unwrap();
    assert_eq!(few.keys, Some(11));
    node.through_restarts(|db| assert_eq!(count(db), 290));
    node.db().keyspace("k").unwrap().delete_prefix(b"").unwrap();
    node.through_restarts(|db| assert_eq!(count(db), 0));
}

fn a_dropped_keyspace_frees_its_name(node: &mut Node) {
    let config = KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() };
    let (keyspace, created) = node.db().create_keyspace("k", &config).unwrap();
    assert!(created && keyspace.info().unwrap().config.exact_counts);
    assert!(!node.db().create_keyspace("k", &KeyspaceConfig::default()).unwrap().1);
    for number in 0..200u32 {
        keyspace.put(&number.to_be_bytes(), b"1234").unwrap();
    }
    let exact = KeyspaceCounts { keys: 200, bytes: 1600, exact: true, sweeping: false };
    assert_eq!(keyspace.stats(1).unwrap(), exact);
    let id = keyspace.id();
    keyspace.drop_all().unwrap();
    assert_eq!(keyspace.put(b"late", b"").unwrap_err(), WriteError::NoSuchKeyspace(id));
    assert_eq!((keyspace.info(), keyspace.get(&0u32.to_be_bytes()).unwrap()), (None, None));
    drop(keyspace);
    node.through_restarts(|db| assert!(db.find_keyspace("k").is_none() && db.keyspaces().is_empty()));
    let again = node.db().keyspace("k").unwrap();
    assert_ne!(again.id(), id);
    assert_eq!(again.stats(1).unwrap().keys, 0);
    again.put(b"new", b"1").unwrap();
    drop(again);
    node.db().maintain().unwrap();
    node.through_restarts(|db| assert_eq!(count(db), 1));
}

fn statistics_are_exact_or_say_that_they_are_not(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    for number in 0..2000u32 {
        keyspace.put(&(number * 1000).to_be_bytes(), b"123456").unwrap();
    }
    let exact = KeyspaceCounts { keys: 2000, bytes: 20_000, exact: true, sweeping: false };
    assert_eq!(keyspace.stats(2000).unwrap(), exact);
    let estimate = keyspace.stats(100).unwrap();
    assert!(!estimate.exact && (1800..2200).contains(&estimate.keys), "{estimate:?}");
    let refused = keyspace.configure(&KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() }).unwrap_err();
    assert!(matches!(refused, WriteError::CannotConfigure { .. }), "{refused}");
}

fn an_optimistic_transaction_fails_by_the_key_that_changed(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    let first = keyspace.put(b"a", b"1").unwrap().revision.unwrap();
    let mut transaction = node.db().begin();
    assert_eq!(transaction.get(&keyspace, b"a").unwrap().unwrap(), &b"1"[..]);
    assert_eq!(transaction.get(&keyspace, b"b").unwrap(), None);
    transaction.put(&keyspace, b"a", &b"2"[..]);
    assert_eq!(transaction.get(&keyspace, b"a").unwrap().unwrap(), &b"2"[..], "its own write");
    let mut late = node.db().begin();
    late.get(&keyspace, b"a").unwrap();
    late.get(&keyspace, b"b").unwrap();
    late.put(&keyspace, b"c", &b"3"[..]);
    let done = transaction.commit().unwrap();
    let conflict = late.commit().unwrap_err();
    let expected = TransactionError::Conflict {
        keyspace: keyspace.id(),
        key: b"a".to_vec(),
        read: Some(first),
        actual: done.revision,
    };
    assert_eq!(conflict, expected);
    let mut phantom = node.db().begin();
    assert_eq!(phantom.get(&keyspace, b"new").unwrap(), None);
    phantom.delete(&keyspace, b"a");
    keyspace.put(b"new", b"").unwrap();
    let conflict = phantom.commit().unwrap_err();
    assert!(matches!(conflict, TransactionError::Conflict { read: None, actual: Some(_), .. }), "{conflict}");
    drop(keyspace);
    node.through_restarts(|db| {
        assert_eq!((value(db, b"a").unwrap(), value(db, b"c")), (b"2".to_vec(), None));
    });
}

const CLIENTS: u64 = 4;
const ROUNDS: usize = 4;
const ATTEMPTS: u64 = 60;

/// Returns the successful swaps of one client, each from one revision to another.
fn swaps(db: &Database, client: u64) -> Vec<(Revision, Revision)> {
    let keyspace = db.keyspace("k").unwrap();
    let mut done = Vec::new();
    for attempt in 0..ATTEMPTS {
        let before = keyspace.get(b"chain").unwrap();
        let (expect, from) =
            before.map_or((Expect::Absent, Revision(0)), |entry| (Expect::Revision(entry.revision), entry.revision));
        let value = format!("{client} {attempt} {from}");
        match keyspace.put_if(b"chain", value.as_bytes(), expect) {
            Ok(ack) => done.push((from, ack.revision.unwrap())),
            Err(WriteError::ConditionFailed { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    done
}

/// Each swap builds on exactly one other, of whichever client: clients run concurrently, with kills in between.
fn swaps_of_many_clients_make_one_chain(node: &mut Node) {
    let mut chain = BTreeSet::new();
    for round in 0..ROUNDS {
        let clients = (0..CLIENTS).map(|client| {
            let db = node.db().clone();
            thread::spawn(move || swaps(&db, client))
        });
        let clients: Vec<_> = clients.collect();
        for client in clients {
            for swap in client.join().unwrap() {
                assert!(chain.insert(swap), "two swaps from and to the same revision: {swap:?}");
            }
        }
        node.restart(Restart::ALL[round % 2]);
    }
    let mut last = Revision(0);
    for (from, to) in &chain {
        assert_eq!(*from, last, "a swap built on an outdated value");
        assert!(to > from);
        last = *to;
    }
    let entry = node.db().keyspace("k").unwrap().get(b"chain").unwrap().unwrap();
    assert_eq!(entry.revision, last);
    assert!(chain.len() as u64 >= ATTEMPTS, "{}", chain.len());
}

/// Transfers between accounts preserve the sum, and counters count each increment once.
fn transfers_keep_the_sum_and_counters_count_each_once(node: &mut Node) {
    const ACCOUNTS: u64 = 4;
    let keyspace = node.db().keyspace("k").unwrap();
    for account in 0..ACCOUNTS {
        keyspace.put(&[account as u8], b"100").unwrap();
    }
    drop(keyspace);
    let mut counted = BTreeSet::new();
    let mut transfers = 0;
    for round in 0..ROUNDS {
        let clients = (0..CLIENTS).map(|client| {
            let db = node.db().clone();
            thread::spawn(move || transfer(&db, client, ACCOUNTS))
        });
        let clients: Vec<_> = clients.collect();
        for client in clients {
            let (done, values) = client.join().unwrap();
            transfers += done;
            for value in values {
                assert!(counted.insert(value), "two clients were told {value}");
            }
        }
        node.restart(Restart::ALL[round % 2]);
    }
    let number = |key: &[u8]| String::from_utf8(value(node.db(), key).unwrap()).unwrap().parse::<i64>().unwrap();
    let sum: i64 = (0..ACCOUNTS).map(|account| number(&[account as u8])).sum();
    assert_eq!(sum, 100 * ACCOUNTS as i64);
    assert_eq!(number(b"count"), (CLIENTS * ROUNDS as u64 * ATTEMPTS) as i64);
    assert_eq!(counted.len() as i64, number(b"count"));
    assert!(transfers > 0);
}

fn transfer(db: &Database, client: u64, accounts: u64) -> (u64, Vec<i64>) {
    let keyspace = db.keyspace("k").unwrap();
    let (mut done, mut counted) = (0, Vec::new());
    for attempt in 0..ATTEMPTS {
        counted.push(keyspace.add(b"count", 1).unwrap().value);
        let (from, to) = ([((client + attempt) % accounts) as u8], [((attempt * 7 + 1) % accounts) as u8]);
        if from == to {
            continue;
        }
        let mut transaction = db.begin();
        let mut balance = |key: &[u8]| {
            let value = transaction.get(&keyspace, key).unwrap().unwrap();
            std::str::from_utf8(&value).unwrap().parse::<i64>().unwrap()
        };
        let (from_has, to_has) = (balance(&from), balance(&to));
        transaction.put(&keyspace, &from, (from_has - 1).to_string());
        transaction.put(&keyspace, &to, (to_has + 1).to_string());
        match transaction.commit() {
            Ok(_) => done += 1,
            Err(TransactionError::Conflict { key, .. }) => assert!(key == from || key == to),
            Err(other) => panic!("{other}"),
        }
    }
    (done, counted)
}

on_every_backend!(
    a_value_is_swapped_only_for_the_one_expected,
    a_transaction_takes_one_of_two_branches,
    counters_add_up_and_refuse_what_is_no_number,
    a_deleted_prefix_is_gone_at_once_and_swept_by_maintenance,
    a_dropped_keyspace_frees_its_name,
    statistics_are_exact_or_say_that_they_are_not,
    an_optimistic_transaction_fails_by_the_key_that_changed,
    swaps_of_many_clients_make_one_chain,
    transfers_keep_the_sum_and_counters_count_each_once,
);
