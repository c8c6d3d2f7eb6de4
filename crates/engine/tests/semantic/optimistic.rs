//! Optimistic transactions with scans: there are no phantoms, and the transactions of many clients are serializable.

use std::{collections::BTreeMap, ops::Bound, thread};

use thalweg_engine::{
    Database, Order, ScanRange, Transaction, TransactionError, WriteError,
    types::{Durability, Revision, limits::MAX_CONDITION_ROWS},
};

use crate::{
    common::{Rng, block_on},
    support::{Node, Restart},
};

fn keys(pairs: &[(bytes::Bytes, bytes::Bytes)]) -> Vec<String> {
    pairs.iter().map(|(key, value)| format!("{}={}", key.escape_ascii(), value.escape_ascii())).collect()
}

fn a_key_put_into_a_scanned_range_is_a_conflict_by_its_name(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    for key in [b"a1", b"a3", b"b1"] {
        keyspace.put(key, b"v").unwrap();
    }
    let scan = |transaction: &mut Transaction| {
        transaction.scan(&keyspace, &ScanRange::with_prefix(b"a")).unwrap();
        transaction.put(&keyspace, b"sum", &b"2"[..]);
    };
    let begun = || {
        let mut transaction = node.db().begin();
        scan(&mut transaction);
        transaction
    };
    let (undisturbed, phantom) = (begun(), begun());
    keyspace.put(b"b2", b"beside it").unwrap();
    undisturbed.commit().unwrap();
    let inserted = keyspace.put(b"a2", b"new").unwrap().revision;
    let expected = |key: &[u8], read, actual| TransactionError::Conflict {
        keyspace: keyspace.id(),
        key: key.to_vec(),
        read,
        actual,
    };
    assert_eq!(phantom.commit().unwrap_err(), expected(b"a2", None, inserted));
    let (gone, back) = (begun(), begun());
    let before = keyspace.get(b"a3").unwrap().unwrap().revision;
    keyspace.delete(b"a3").unwrap();
    assert_eq!(gone.commit().unwrap_err(), expected(b"a3", Some(before), None));
    let again = keyspace.put(b"a3", b"v").unwrap().revision;
    assert_eq!(back.commit().unwrap_err(), expected(b"a3", Some(before), again));
}

fn a_transaction_commits_without_blocking_and_names_what_it_lost_by(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    let db = node.db().to_async();
    let before = keyspace.put(b"a", b"1").unwrap().revision.unwrap();
    let begun = || {
        let mut transaction = db.blocking().begin();
        transaction.get(&keyspace, b"a").unwrap();
        transaction.put(&keyspace, b"b", &b"2"[..]);
        transaction
    };
    let (first, second) = (begun(), begun());
    let ack = block_on(db.commit_transaction(first, Durability::Disk)).unwrap();
    assert_eq!(ack.durability, Durability::Disk);
    assert_eq!(keyspace.get(b"b").unwrap().unwrap().revision, ack.revision.unwrap());
    let actual = keyspace.put(b"a", b"3").unwrap().revision;
    let conflict =
        TransactionError::Conflict { keyspace: keyspace.id(), key: b"a".to_vec(), read: Some(before), actual };
    assert_eq!(block_on(db.commit_transaction(second, Durability::Os)).unwrap_err(), conflict);
    assert!(block_on(db.commit_transaction(begun(), Durability::None)).is_err(), "its outcome would be unknown");
}

fn a_scan_sees_its_own_writes_and_reads_no_further_than_it_gave(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    for key in [b"b", b"d", b"f", b"h"] {
        keyspace.put(key, b"old").unwrap();
    }
    let mut transaction = node.db().begin();
    transaction.put(&keyspace, b"a", &b"new"[..]);
    transaction.put(&keyspace, b"d", &b"new"[..]);
    transaction.put(&keyspace, b"z", &b"new"[..]);
    transaction.delete(&keyspace, b"f");
    let mut scan = |range: &ScanRange| keys(&transaction.scan(&keyspace, range).unwrap());
    assert_eq!(scan(&ScanRange::default()), ["a=new", "b=old", "d=new", "h=old", "z=new"]);
    let reverse = ScanRange { order: Order::Descending, limit: Some(3), ..ScanRange::default() };
    assert_eq!(scan(&reverse), ["z=new", "h=old", "d=new"]);
    let bounded = ScanRange {
        start: Bound::Excluded(b"a".to_vec()),
        end: Bound::Included(b"d".to_vec()),
        ..ScanRange::default()
    };
    assert_eq!(scan(&bounded), ["b=old", "d=new"]);
    assert_eq!(scan(&ScanRange { limit: Some(0), ..bounded.clone() }), [""; 0]);
    transaction.commit().unwrap();
    assert_eq!(keyspace.iter(ScanRange::default()).count(), 5);

    // With a limit the scan has read up to the last returned pair, from either end.
    for (order, read, beyond) in [(Order::Ascending, b"aa", b"bb"), (Order::Descending, b"zz", b"gg")] {
        let limited = ScanRange { order, limit: Some(2), ..ScanRange::default() };
        let begun = || {
            let mut transaction = node.db().begin();
            assert_eq!(transaction.scan(&keyspace, &limited).unwrap().len(), 2);
            transaction.put(&keyspace, b"m", &b""[..]);
            transaction.delete(&keyspace, b"m");
            transaction
        };
        let transaction = begun();
        keyspace.put(beyond, b"").unwrap();
        transaction.commit().unwrap();
        let transaction = begun();
        keyspace.put(read, b"").unwrap();
        let conflict = transaction.commit().unwrap_err();
        assert!(matches!(&conflict, TransactionError::Conflict { key, .. } if key == read), "{conflict}");
    }
}

fn ranges_beyond_the_bound_are_refused_at_commit(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    for chunk in 0..=MAX_CONDITION_ROWS / 1000 {
        let mut commit = thalweg_engine::types::command::CommitBuilder::new();
        for number in 0..1000_u32 {
            commit.put(keyspace.id(), &(chunk as u32 * 1000 + number).to_be_bytes(), b"").unwrap();
        }
        node.db().commit(&commit).unwrap();
    }
    let mut transaction = node.db().begin();
    assert!(transaction.scan(&keyspace, &ScanRange::default()).unwrap().len() > MAX_CONDITION_ROWS);
    transaction.put(&keyspace, b"x", &b""[..]);
    let refused = transaction.commit().unwrap_err();
    assert!(matches!(refused, TransactionError::Write(WriteError::TooMany { .. })), "{refused}");
    assert_eq!(keyspace.get(b"x").unwrap(), None);
}

const CLIENTS: u64 = 4;
const ROUNDS: u64 = 3;
const ATTEMPTS: u64 = 80;
const MAX_ON_DUTY: usize = 5;

/// A committed transaction: its reads and its writes.
#[derive(Debug)]
struct Committed {
    revision: Revision,
    /// Keys and values of all persons on duty.
    saw: Vec<(Vec<u8>, Vec<u8>)>,
    put: Vec<(Vec<u8>, Vec<u8>)>,
    deleted: Vec<Vec<u8>>,
}

/// Adds a person to the people on duty if there are not too many, or removes one of them, but never the last one. The
/// whole range decides whether that is allowed: the classical write skew.
fn change_duty(db: &Database, random: &mut Rng, name: u64) -> Option<Committed> {
    let keyspace = db.keyspace("duty").unwrap();
    let mut transaction = db.begin();
    let pairs = transaction.scan(&keyspace, &ScanRange::with_prefix(b"on/")).unwrap();
    let saw: Vec<_> = pairs.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    let (mut put, mut deleted) = (Vec::new(), Vec::new());
    if saw.len() < MAX_ON_DUTY && random.below(2) == 0 {
        let pair = (format!("on/{:03}", random.below(20)).into_bytes(), name.to_string().into_bytes());
        transaction.put(&keyspace, &pair.0, pair.1.clone());
        put.push(pair);
    } else if saw.len() > 1 {
        let key = saw[random.below(saw.len() as u64) as usize].0.clone();
        transaction.delete(&keyspace, &key);
        deleted.push(key);
    }
    match transaction.commit() {
        Ok(ack) => Some(Committed { revision: ack.revision.unwrap(), saw, put, deleted }),
        Err(TransactionError::Conflict { .. } | TransactionError::RangeConflict { .. }) => None,
        Err(other) => panic!("{other}"),
    }
}

/// Every transaction saw the result of all transactions with lower revisions.
fn scans_of_many_clients_are_serializable(node: &mut Node) {
    let seed = crate::common::seed(7);
    println!("THALWEG_TEST_SEED={seed}");
    node.db().keyspace("duty").unwrap().put(b"on/000", b"first").unwrap();
    let mut history = Vec::new();
    for round in 0..ROUNDS {
        let clients = (0..CLIENTS).map(|client| {
            let db = node.db().clone();
            let number = round * CLIENTS + client;
            thread::spawn(move || {
                let mut random = Rng(seed ^ ((number + 1) * 0x9e37));
                let change = |attempt| change_duty(&db, &mut random, number * ATTEMPTS + attempt);
                (0..ATTEMPTS).filter_map(change).collect::<Vec<_>>()
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().for_each(|client| history.extend(client.join().unwrap()));
        node.restart(Restart::ALL[round as usize % 2]);
    }
    history.sort_by_key(|committed| committed.revision);
    assert!(history.len() as u64 >= ATTEMPTS, "{} committed", history.len());
    let mut model = BTreeMap::from([(b"on/000".to_vec(), b"first".to_vec())]);
    let mut last = Revision(0);
    for Committed { revision, saw, put, deleted } in history {
        assert!(revision > last, "two transactions of revision {revision}");
        last = revision;
        assert!(saw.iter().map(|(key, value)| (key, value)).eq(&model), "seed {seed}, revision {revision}: {saw:?}");
        model.extend(put);
        deleted.iter().for_each(|key| drop(model.remove(key)));
        assert!((1..=MAX_ON_DUTY).contains(&model.len()));
    }
    let now: BTreeMap<_, _> =
        node.db().keyspace("duty").unwrap().iter(ScanRange::default()).map(Result::unwrap).collect();
    assert!(
        now.iter().map(|(key, entry)| (&key[..], &entry.value[..])).eq(model.iter().map(|(k, v)| (&k[..], &v[..])))
    );
}

on_every_backend!(
    a_key_put_into_a_scanned_range_is_a_conflict_by_its_name,
    a_transaction_commits_without_blocking_and_names_what_it_lost_by,
    a_scan_sees_its_own_writes_and_reads_no_further_than_it_gave,
    ranges_beyond_the_bound_are_refused_at_commit,
    scans_of_many_clients_are_serializable,
);
