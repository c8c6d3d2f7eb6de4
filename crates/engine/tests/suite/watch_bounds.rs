//! Bounds of watches: their number, the size of a batch, and the log that they keep.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use thalweg_disk::{Disk, SimDisk};
use thalweg_engine::{
    BackendKind, Database, Options, Watch, WatchError, WatchEvent, WatchKeys, WatchLimits,
    types::{
        Durability, ManualClock, Revision,
        command::CommitBuilder,
        limits::{MAX_WATCH_QUEUE_BYTES, MAX_WATCHES},
    },
};

use crate::common::{PATIENCE, clock, pause, small};

#[test]
fn one_watch_too_many_is_a_typed_error_and_one_that_ends_makes_room() {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::open(dir.path(), small(BackendKind::Memory)).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let watch = |number: usize| keyspace.watch(&WatchKeys::Key(number.to_be_bytes().to_vec()), None);
    let mut watches: Vec<_> = (0..MAX_WATCHES).map(|number| watch(number).unwrap()).collect();
    let refused = watch(MAX_WATCHES).unwrap_err();
    assert!(matches!(refused, WatchError::TooMany), "{refused}");
    drop(watches.pop());
    let _in_its_place = watch(MAX_WATCHES).unwrap();
    assert!(matches!(watch(0), Err(WatchError::TooMany)));
    keyspace.put(&7_usize.to_be_bytes(), b"seven").unwrap();
    let told = watches[7].next_batch(PATIENCE).unwrap();
    assert_eq!(told.events.len(), 1);
    db.close().unwrap();
}

fn all() -> WatchKeys {
    WatchKeys::Prefix(Vec::new())
}

/// Opens a database that keeps its log as history for a minute.
fn with_history(disk: &SimDisk, clock: &Arc<ManualClock>) -> Database {
    let options = Options {
        durability: Durability::Os,
        history_bytes: u64::MAX,
        history_age: Duration::from_secs(60),
        ..small(BackendKind::Memory)
    };
    Database::open_on(Arc::new(disk.clone()), clock.clone(), 5, options).unwrap()
}

/// A watch that stopped after one page keeps no segment: neither the one it reads nor those up to the end of the log.
#[test]
fn a_watch_that_stops_reading_lets_the_log_go() {
    let (disk, clock) = (SimDisk::new(1), clock());
    let db = with_history(&disk, &clock);
    let keyspace = db.keyspace("k").unwrap();
    // The values are short, so that the state holds them and needs no segment.
    (0..5000_u32).for_each(|number| drop(keyspace.put(&number.to_be_bytes(), &[7; 200]).unwrap()));
    let mut stopped = keyspace.watch(&all(), Some(Revision(1))).unwrap();
    let first = stopped.try_next().unwrap().unwrap();
    assert!((1..5000).contains(&first.events.len()), "{} changes are a page", first.events.len());
    let segments = db.stats().log.segments;
    clock.advance(Duration::from_secs(61));
    let begun = Instant::now();
    loop {
        db.flush().unwrap();
        db.maintain().unwrap();
        let (log, files) = (db.stats().log, disk.list("log").unwrap().len() as u64);
        // All other files belong to freed segments that a reader keeps.
        if log.segments < segments / 2 && files <= log.segments + log.spare_segments + 1 {
            break;
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "{} segments, {} spare ones, {files} files",
            log.segments,
            log.spare_segments
        );
        pause();
    }
    let error = stopped.try_next().unwrap_err();
    assert!(matches!(error, WatchError::Compacted { requested, .. } if requested == first.next), "{error}");
}

/// Returns the events of commits of 1 to 40 changes, and what is read by a watch whose caller often has no room.
fn deliver(limits: WatchLimits, every_nth_has_room: usize) -> (Vec<WatchEvent>, Vec<WatchEvent>) {
    let (disk, clock) = (SimDisk::new(1), clock());
    let db = with_history(&disk, &clock);
    let keyspace = db.keyspace("k").unwrap();
    for commit in 0..60_u32 {
        let mut changes = CommitBuilder::new();
        for change in 0..1 + commit % 40 {
            changes.put(keyspace.id(), &change.to_be_bytes(), &[commit as u8; 100]).unwrap();
        }
        db.commit(&changes).unwrap();
    }
    let read = |mut watch: Watch, limits: &WatchLimits, every_nth_has_room: usize| {
        let mut events = Vec::new();
        for attempt in 0.. {
            let Some(batch) = watch.try_next_within(limits).unwrap() else { break };
            if watch.is_behind() && attempt % every_nth_has_room != 0 {
                watch.unread();
                assert!(batch.events.first().is_none_or(|first| watch.position() <= first.revision));
                continue;
            }
            let commits = batch.events.iter().map(|event| event.revision).collect::<HashSet<_>>();
            assert!(batch.events.len() <= limits.events || commits.len() == 1);
            assert_eq!(watch.position(), batch.next);
            events.extend(batch.events);
        }
        events
    };
    let watch = || keyspace.watch(&all(), Some(Revision(1))).unwrap();
    let whole = read(watch(), &WatchLimits::default(), 1);
    (whole, read(watch(), &limits, every_nth_has_room))
}

#[test]
fn limits_cut_batches_and_change_nothing_else() {
    let each = 300;
    for (events, bytes, part_bytes) in
        [(1, usize::MAX, usize::MAX), (7, usize::MAX, usize::MAX), (1000, 5 * each, 10 * each), (1, 1, 1)]
    {
        for every_nth_has_room in [1, 3] {
            let limits = WatchLimits { events, bytes, part_bytes };
            let (whole, limited) = deliver(limits, every_nth_has_room);
            assert_eq!(whole.len(), (0..60).map(|commit| 1 + commit % 40).sum::<usize>());
            assert!(whole == limited, "{limits:?} delivers each change once, in order");
        }
    }
}

/// The commit that a live watch loses is in the log, which a thread that serves other clients must not read.
#[test]
fn a_watch_that_loses_a_commit_is_behind_before_it_reads_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        durability: Durability::Os,
        segment_bytes: 4 << 20,
        history_bytes: u64::MAX,
        history_age: Duration::from_secs(3600),
        ..small(BackendKind::Memory)
    };
    let db = Database::open(dir.path(), options).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let mut watch = keyspace.watch(&all(), None).unwrap();
    for number in 0..2_u8 {
        keyspace.put(b"small", &[number]).unwrap();
        let begun = Instant::now();
        while watch.next_batch(PATIENCE).unwrap().events.is_empty() {
            assert!(begun.elapsed() < PATIENCE);
        }
    }
    assert_eq!(watch.try_next().unwrap(), None);
    assert!(!watch.is_behind());
    // No queue takes it.
    keyspace.put(b"large", &vec![7; MAX_WATCH_QUEUE_BYTES + 1]).unwrap();
    let begun = Instant::now();
    while !watch.is_behind() {
        assert!(begun.elapsed() < PATIENCE, "the watch would read the log without saying so");
        pause();
    }
    let batch = watch.try_next().unwrap().unwrap();
    assert_eq!((batch.events.len(), &batch.events[0].key[..]), (1, &b"large"[..]));
    db.close().unwrap();
}
