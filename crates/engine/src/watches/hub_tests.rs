//! Tests of the dispatcher and its registry. Each test holds the lock of the registry in place of a dispatcher's round.

use std::ops::Bound;

use thalweg_disk::SimDisk;
use thalweg_types::{
    Durability, ManualClock, SpaceTime,
    limits::{MAX_WATCH_QUEUE_BYTES, MAX_WATCH_QUEUES_BYTES},
};

use super::*;
use crate::{BackendKind, Database, Keyspace, Options};

/// Creates a database in stepped mode (without background threads), one of its keyspaces, and its hub.
fn stepped() -> (Database, Keyspace, Arc<Hub>) {
    let options = Options { backend: Some(BackendKind::Memory), durability: Durability::Os, ..Options::default() };
    let clock = Arc::new(ManualClock::at(SpaceTime(1_700_000_000_000_000)));
    let db = Database::open_on(Arc::new(SimDisk::new(1)), clock, 1, options).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let source = db.inner.open.watches.source().clone();
    let hub = Hub::new(source, Mode::Stepped, MAX_WATCH_QUEUES_BYTES);
    (db, keyspace, hub)
}

fn all() -> KeyInterval {
    KeyInterval::of_bounds(Bound::Unbounded, Bound::Unbounded)
}

fn revisions(watch: &WatchRegistration) -> Vec<u64> {
    watch.queue.take(usize::MAX, usize::MAX).events.iter().map(|event| event.revision.0).collect()
}

#[test]
fn watches_join_and_leave_while_a_round_runs() {
    let (db, keyspace, hub) = stepped();
    let (first, second) = (hub.register(keyspace.id(), &all()).unwrap(), hub.register(keyspace.id(), &all()).unwrap());
    let round = hub.registry();
    let late = hub.register(keyspace.id(), &all()).unwrap();
    let short = hub.register(keyspace.id(), &all()).unwrap();
    drop((first, short));
    assert_eq!((late.joined(), late.queue.is_quiet(), hub.watching()), (None, true, 2));
    drop(round);
    keyspace.put(b"a", b"1").unwrap();
    assert!(hub.step());
    assert_eq!((late.joined(), hub.registry().watches.len()), (second.joined(), 2));
    keyspace.put(b"a", b"2").unwrap();
    assert!(hub.step());
    assert_eq!((revisions(&second), revisions(&late)), (vec![1, 2], vec![1, 2]));
    drop((second, late));
    assert_eq!(hub.watching(), 0);
    assert!(hub.registry().reader.is_none(), "nobody watches");
    drop(db);
}

#[test]
fn a_watch_that_was_lost_leaves_without_the_registry() {
    let (_db, keyspace, hub) = stepped();
    let slow = hub.register(keyspace.id(), &all()).unwrap();
    keyspace.put(b"a", &[7; MAX_WATCH_QUEUE_BYTES]).unwrap();
    assert!(hub.step());
    assert_eq!((slow.queue.has_ended(), hub.watching()), (true, 0));
    let round = hub.registry();
    drop(slow);
    assert!(hub.notes().leaves.is_empty());
    drop(round);
    assert_eq!(hub.watching(), 0);
}

#[test]
fn a_round_ends_after_a_number_of_deliveries() {
    const WATCHES: usize = 100;
    let (db, keyspace, hub) = stepped();
    let watches: Vec<_> = (0..WATCHES).map(|_| hub.register(keyspace.id(), &all()).unwrap()).collect();
    let before = hub.dispatched();
    (0..100).for_each(|_| drop(keyspace.put(b"a", b"1").unwrap()));
    assert!(hub.step());
    let of_a_round = ROUND_DELIVERIES.div_ceil(WATCHES) as u64;
    assert_eq!(hub.dispatched(), Revision(before.0 + of_a_round));
    while hub.step() {}
    assert_eq!(hub.dispatched(), db.stats().applied_revision);
    for watch in &watches {
        assert_eq!(revisions(watch), (1..=100).collect::<Vec<_>>());
    }
}

#[test]
fn a_hub_without_a_thread_refuses_watches_and_registers_none() {
    let (_db, keyspace, stepped) = stepped();
    let mut hub = Hub::new(stepped.source().clone(), Mode::Threaded, MAX_WATCH_QUEUES_BYTES);
    Arc::get_mut(&mut hub).unwrap().spawn = |_| Err(io::Error::from(io::ErrorKind::WouldBlock));
    let refused = hub.register(keyspace.id(), &all()).unwrap_err();
    assert!(matches!(refused, WatchError::NoThread), "{refused}");
    assert_eq!((hub.watching(), hub.registry().watches.len(), hub.notes().joins.len()), (0, 0, 0));
}
