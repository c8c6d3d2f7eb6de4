//! Deadlines, leases, space time.

use std::time::Duration;

use thalweg_engine::{
    Database, PutOptions, ScanRange, WriteError,
    types::{
        Clock, LeaseId, SpaceTime,
        command::{Deadline, Expect},
    },
};

use crate::support::Node;

const SECOND: Duration = Duration::from_secs(1);

fn is_there(db: &Database, key: &[u8]) -> bool {
    let keyspace = db.keyspace("k").unwrap();
    let got = keyspace.get(key).unwrap().is_some();
    let scanned = keyspace.iter(ScanRange::default()).any(|pair| pair.unwrap().0 == key);
    assert_eq!((got, got), (scanned, keyspace.head(key).unwrap().is_some()), "all reads agree");
    got
}

fn a_key_is_gone_from_its_deadline_on_over_restarts(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    keyspace.put_for(b"short", b"1", 10 * SECOND).unwrap();
    keyspace.put_for(b"long", &[7; 5000], 1000 * SECOND).unwrap();
    drop(keyspace);
    node.through_restarts(|db| assert!(is_there(db, b"short") && is_there(db, b"long")));
    node.pass(10 * SECOND);
    assert!(!is_there(node.db(), b"short"), "hidden before it is removed");
    node.kill();
    assert!(!is_there(node.db(), b"short") && is_there(node.db(), b"long"));
    assert_eq!(node.db().maintain().unwrap().expired_keys, 1);
    assert_eq!(node.db().maintain().unwrap().expired_keys, 0);
    node.through_restarts(|db| assert!(!is_there(db, b"short") && is_there(db, b"long")));
}

fn a_stepped_wall_clock_changes_nothing_while_the_node_is_open(node: &mut Node) {
    let start = node.clock().wall();
    let keyspace = node.db().keyspace("k").unwrap();
    keyspace.put_for(b"a", b"1", 10 * SECOND).unwrap();
    node.clock().step_wall(start.plus(1_000_000 * SECOND));
    assert!(is_there(node.db(), b"a"));
    node.clock().step_wall(SpaceTime(1));
    node.pass(9 * SECOND);
    assert!(is_there(node.db(), b"a"));
    let left = keyspace.lifetime(b"a").unwrap().unwrap().remaining;
    assert_eq!(left, Some(SECOND));
    node.pass(SECOND);
    assert!(!is_there(node.db(), b"a"));
    drop(keyspace);
    // The wall clock is far behind. Time continues from the last entry, which is later than the deadline once the key
    // has been removed.
    node.db().maintain().unwrap();
    node.through_restarts(|db| assert!(!is_there(db, b"a")));
}

fn what_was_shown_as_gone_stays_gone_though_the_wall_clock_is_set_back_in_between(node: &mut Node) {
    let start = node.clock().wall();
    let keyspace = node.db().keyspace("k").unwrap();
    keyspace.put_for(b"a", b"1", 10 * SECOND).unwrap();
    keyspace.put_for(b"later", b"1", 100 * SECOND).unwrap();
    drop(keyspace);
    node.pass(10 * SECOND);
    assert!(!is_there(node.db(), b"a"), "hidden before it is removed");
    node.clock().step_wall(start);
    node.reopen();
    assert!(!is_there(node.db(), b"a"), "closing has written an entry after the deadline");
    node.pass(90 * SECOND);
    assert!(!is_there(node.db(), b"later"));
    // A kill leaves no time for such an entry. A round of maintenance, which runs every second, writes it as well.
    node.db().maintain().unwrap();
    node.clock().step_wall(start);
    node.kill();
    assert!(!is_there(node.db(), b"later"));
}

fn a_touch_moves_a_deadline_and_keeps_the_rest(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    let written = keyspace.put_for(b"a", b"1", 10 * SECOND).unwrap().revision;
    assert!(keyspace.touch(b"a", Deadline::After(20 * SECOND)).unwrap().is_some());
    assert!(keyspace.touch(b"none", Deadline::Never).unwrap().is_none());
    node.pass(15 * SECOND);
    let lifetime = keyspace.lifetime(b"a").unwrap().unwrap();
    assert_eq!((Some(lifetime.revision), lifetime.remaining), (written, Some(5 * SECOND)));
    keyspace.touch(b"a", Deadline::Never).unwrap().unwrap();
    drop(keyspace);
    node.pass(1000 * SECOND);
    node.through_restarts(|db| assert!(is_there(db, b"a")));
}

fn a_view_is_of_the_moment_when_it_was_taken(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    for number in 0..600u32 {
        keyspace.put_for(&number.to_be_bytes(), b"1", 10 * SECOND).unwrap();
    }
    let mut held = keyspace.iter(ScanRange::default());
    held.next().unwrap().unwrap();
    node.pass(20 * SECOND);
    node.db().maintain().unwrap();
    assert_eq!(held.count(), 599);
    assert_eq!(keyspace.iter(ScanRange::default()).count(), 0);
}

fn a_lease_takes_its_keys_with_it(node: &mut Node) {
    let leases = node.db().leases();
    let kept = leases.grant(10 * SECOND).unwrap().id;
    let lost = leases.grant_as(LeaseId(7), 10 * SECOND).unwrap().id;
    assert_eq!(leases.grant_as(LeaseId(7), SECOND).unwrap_err(), WriteError::LeaseExists(LeaseId(7)));
    let keyspace = node.db().keyspace("k").unwrap();
    keyspace.put_with(b"kept", b"1", &PutOptions::with_lease(kept)).unwrap();
    keyspace.put_with(b"lost", b"1", &PutOptions::with_lease(lost)).unwrap();
    node.pass(6 * SECOND);
    leases.keep_alive(kept).unwrap();
    drop((leases, keyspace));
    node.through_restarts(|db| {
        assert!(is_there(db, b"kept") && is_there(db, b"lost"));
        assert_eq!(db.leases().list(None, 10).unwrap().len(), 2);
    });
    node.pass(5 * SECOND);
    node.through_restarts(|db| {
        assert!(is_there(db, b"kept") && !is_there(db, b"lost"));
        assert_eq!(db.leases().keys(kept, 10).unwrap().unwrap().len(), 1);
        assert_eq!(db.leases().keys(lost, 10).unwrap(), None);
    });
    let leases = node.db().leases();
    assert_eq!(leases.keep_alive(lost).unwrap_err(), WriteError::NoSuchLease(lost));
    let keyspace = node.db().keyspace("k").unwrap();
    let refused = keyspace.put_with(b"late", b"1", &PutOptions::with_lease(lost)).unwrap_err();
    assert_eq!(refused, WriteError::NoSuchLease(lost));
    leases.revoke(kept).unwrap();
    assert!(!is_there(node.db(), b"kept"));
    keyspace.put_if(b"kept", b"anew", Expect::Absent).unwrap();
    drop((leases, keyspace));
    node.db().maintain().unwrap();
    node.through_restarts(|db| {
        assert!(is_there(db, b"kept") && db.leases().list(None, 10).unwrap().is_empty());
    });
}

fn an_optimistic_transaction_puts_what_ends(node: &mut Node) {
    let db = node.db();
    let keyspace = db.keyspace("k").unwrap();
    let lease = db.leases().grant(20 * SECOND).unwrap().id;
    let mut transaction = db.begin();
    transaction.put_until(&keyspace, b"short", "1", Deadline::After(10 * SECOND), None);
    transaction.put_until(&keyspace, b"leased", "1", Deadline::Default, Some(lease));
    transaction.put_until(&keyspace, b"long", "1", Deadline::After(10 * SECOND), None);
    transaction.put(&keyspace, b"long", "2");
    assert_eq!(transaction.get(&keyspace, b"short").unwrap().unwrap(), "1");
    transaction.commit().unwrap();
    node.pass(10 * SECOND);
    assert!(!is_there(db, b"short") && is_there(db, b"leased") && is_there(db, b"long"));
    node.pass(10 * SECOND);
    assert!(!is_there(db, b"leased") && is_there(db, b"long"));
    let mut late = db.begin();
    late.put_until(&keyspace, b"late", "1", Deadline::Default, Some(lease));
    assert_eq!(late.commit().unwrap_err(), WriteError::NoSuchLease(lease).into());
    assert!(!is_there(db, b"late"));
}

on_every_backend!(
    an_optimistic_transaction_puts_what_ends,
    a_key_is_gone_from_its_deadline_on_over_restarts,
    a_stepped_wall_clock_changes_nothing_while_the_node_is_open,
    what_was_shown_as_gone_stays_gone_though_the_wall_clock_is_set_back_in_between,
    a_touch_moves_a_deadline_and_keeps_the_rest,
    a_view_is_of_the_moment_when_it_was_taken,
    a_lease_takes_its_keys_with_it,
);
