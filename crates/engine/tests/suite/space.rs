//! Freeing space: retention, reclaiming, moving, freeing, and the history floor.

use std::{collections::HashMap, ops::ControlFlow, sync::Arc, time::Duration};

use thalweg_disk::SimDisk;
use thalweg_engine::{
    BackendKind, Database, Maintenance, Options, ReadError,
    types::{
        Durability, Offset,
        command::{Compaction, StreamConfig},
        limits::{MAX_COMPACTION_KEY_BYTES, MAX_KEY_BYTES},
        record::{Record, RecordBatch},
    },
};

use crate::common::{Rng, batch, check, clock, read_all, seed, small};

fn settle(db: &Database) -> Maintenance {
    let mut total = Maintenance::default();
    // A segment is walked in one round and freed in the next, once the state has persisted past the walk.
    let mut idle = 0;
    while idle < 3 {
        db.flush().unwrap();
        let done = db.maintain().unwrap();
        idle = if done == Maintenance::default() { idle + 1 } else { 0 };
        total.trimmed_streams += done.trimmed_streams;
        total.reclaimed_entries += done.reclaimed_entries;
        total.moved_bytes += done.moved_bytes;
        total.freed_segments += done.freed_segments;
    }
    total
}

fn open(disk: &SimDisk, options: Options) -> Database {
    Database::open_on(Arc::new(disk.clone()), clock(), 5, options).unwrap()
}

#[test]
fn small_values_leave_nothing_in_the_log_to_keep() {
    let disk = SimDisk::new(1);
    let db = open(&disk, small(BackendKind::Memory)).with_durability(Durability::Os);
    let keyspace = db.keyspace("k").unwrap();
    for number in 0..5000_u32 {
        keyspace.put(&(number % 100).to_be_bytes(), &[7; 100]).unwrap();
    }
    assert!(db.stats().log.segments > 5);
    let done = settle(&db);
    assert!(done.freed_segments > 5, "{done:?}");
    assert_eq!(done.moved_bytes, 0);
    assert!(db.stats().log.segments <= 2);
    drop(db);
    let db = open(&disk.kill_process(), small(BackendKind::Memory));
    assert_eq!(db.find_keyspace("k").unwrap().get(&7_u32.to_be_bytes()).unwrap().unwrap().value, vec![7; 100]);
}

/// The payloads of small records are less than half of their size in the log, also after they have been copied.
#[test]
fn small_records_that_all_live_are_not_copied_for_ever() {
    let disk = SimDisk::new(1);
    let db = open(&disk, small(BackendKind::Memory)).with_durability(Durability::Os);
    let streams: Vec<_> = (0..100).map(|number| db.stream(&format!("s{number}")).unwrap()).collect();
    for number in 0..3000 {
        streams[number % 100].append(&batch(&[vec![7; 10]])).unwrap();
    }
    let before = db.stats().log.segments;
    assert!(before > 5);
    let done = settle(&db);
    assert_eq!((done.moved_bytes, done.freed_segments), (0, 0), "{done:?}");
    // Once most records are gone, copying the others is worthwhile, once.
    streams.iter().take(90).for_each(|stream| drop(stream.delete().unwrap()));
    let done = settle(&db);
    assert!(done.moved_bytes > 0 && done.freed_segments > 0, "{done:?}");
    assert!(db.stats().log.segments < before / 2, "{before} segments, then {}", db.stats().log.segments);
    let done = settle(&db);
    assert_eq!(done.moved_bytes, 0, "{done:?}");
    assert_eq!(read_all(&db, "s95").unwrap().1.len(), 30);
}

#[test]
fn live_values_are_moved_and_survive() {
    let seed = seed(3);
    let mut rng = Rng(seed);
    let disk = SimDisk::new(seed);
    let mut options = small(BackendKind::Memory);
    options.durability = Durability::Os;
    let db = open(&disk, options.clone());
    let keyspace = db.keyspace("k").unwrap();
    let mut model = crate::common::Model::default();
    // A few long values that stay, among many that are overwritten.
    for number in 0..1500_u64 {
        let key = if number % 50 == 0 { format!("keep{number}") } else { format!("hot{}", number % 7) };
        let value = rng.bytes(600);
        keyspace.put(key.as_bytes(), &value).unwrap();
        model.keys.insert(("k".to_owned(), key.into_bytes()), value);
    }
    let before = db.stats().log.segments;
    let snapshot = keyspace.iter(thalweg_engine::ScanRange::default());
    let done = settle(&db);
    assert!(done.freed_segments > 0 && done.moved_bytes > 0, "{done:?}");
    assert!(db.stats().log.segments < before / 2, "{before} segments, then {}", db.stats().log.segments);
    check(&db, &model);
    assert_eq!(snapshot.count(), model.keys.len(), "a view from before the move still reads moved values");
    drop((keyspace, db));
    let crashed = disk.power_loss(seed);
    check(&open(&crashed, options), &model);
}

#[test]
fn a_view_whose_values_are_gone_says_so() {
    let disk = SimDisk::new(1);
    let mut options = small(BackendKind::Memory);
    options.durability = Durability::Os;
    let db = open(&disk, options);
    let keyspace = db.keyspace("k").unwrap();
    keyspace.put(b"long", &[1; 1000]).unwrap();
    let mut old = keyspace.iter(thalweg_engine::ScanRange::default());
    for _ in 0..200 {
        keyspace.put(b"long", &[2; 1000]).unwrap();
    }
    settle(&db);
    assert_eq!(old.next().unwrap().unwrap_err(), ReadError::ViewExpired);
    assert!(old.next().is_none());
    assert_eq!(keyspace.get(b"long").unwrap().unwrap().value, vec![2; 1000]);
}

#[test]
fn live_batches_are_moved_and_read_on() {
    let seed = seed(4);
    let mut rng = Rng(seed);
    let disk = SimDisk::new(seed);
    let mut options = small(BackendKind::Memory);
    options.durability = Durability::Os;
    let db = open(&disk, options.clone());
    let (keep, drop_) = (db.stream("keep").unwrap(), db.stream("drop").unwrap());
    let mut kept = Vec::new();
    for number in 0..800_u64 {
        let payload = rng.bytes(400);
        if number % 20 == 0 {
            keep.append(&batch(std::slice::from_ref(&payload))).unwrap();
            kept.push(payload);
        } else {
            drop_.append(&batch(&[payload])).unwrap();
        }
    }
    drop_.trim(drop_.info().unwrap().next).unwrap();
    let done = settle(&db);
    assert!(done.freed_segments > 0 && done.moved_bytes > 0 && done.reclaimed_entries > 0, "{done:?}");
    assert_eq!(read_all(&db, "keep").unwrap(), (0, kept.clone()));
    drop((keep, drop_, db));
    let db = open(&disk.power_loss(seed), options);
    assert_eq!(read_all(&db, "keep").unwrap(), (0, kept));
}

#[test]
fn retention_by_count_bytes_and_age() {
    let disk = SimDisk::new(1);
    let clock = clock();
    let db = Database::open_on(Arc::new(disk), clock.clone(), 5, small(BackendKind::Memory)).unwrap();
    let count = StreamConfig { max_records: Some(3), ..StreamConfig::default() };
    let bytes = StreamConfig { max_bytes: Some(500), ..StreamConfig::default() };
    let age = StreamConfig { max_age: Some(Duration::from_secs(10)), ..StreamConfig::default() };
    for (name, config) in [("count", count), ("bytes", bytes), ("age", age)] {
        let (stream, created) = db.create_stream(name, &config).unwrap();
        assert!(created);
        for number in 0..10_u8 {
            stream.append(&batch(&[vec![number; 100]])).unwrap();
            clock.advance(Duration::from_millis(100));
        }
    }
    assert_eq!(db.maintain().unwrap().trimmed_streams, 2);
    assert_eq!(db.find_stream("count").unwrap().info().unwrap().start, Offset(7));
    assert_eq!(db.find_stream("bytes").unwrap().info().unwrap().start, Offset(6));
    assert_eq!(db.find_stream("age").unwrap().info().unwrap().start, Offset(0));
    clock.advance(Duration::from_millis(9_550));
    db.maintain().unwrap();
    assert_eq!(db.find_stream("age").unwrap().info().unwrap().start, Offset(6));
    let stream = db.find_stream("count").unwrap();
    assert_eq!(
        stream.read(Offset(0), 10, 1000).unwrap_err(),
        ReadError::Trimmed { requested: Offset(0), start: Offset(7) }
    );
    assert_eq!(
        stream.read(Offset(11), 10, 1000).unwrap_err(),
        ReadError::BeyondEnd { requested: Offset(11), next: Offset(10) }
    );
    assert!(stream.read(Offset(10), 10, 1000).unwrap().batches.is_empty());
}

#[test]
fn the_history_floor_keeps_what_the_state_no_longer_needs() {
    let disk = SimDisk::new(1);
    let clock = clock();
    let mut options = small(BackendKind::Memory);
    options.durability = Durability::Os;
    options.history_bytes = u64::MAX;
    options.history_age = Duration::from_secs(60);
    let db = Database::open_on(Arc::new(disk), clock.clone(), 5, options).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    for number in 0..3000_u32 {
        keyspace.put(&number.to_be_bytes(), &[7; 100]).unwrap();
    }
    assert_eq!(settle(&db).freed_segments, 0);
    clock.advance(Duration::from_secs(61));
    assert!(settle(&db).freed_segments > 3);
}

#[test]
fn a_deleted_stream_gives_its_space_back_and_its_name() {
    let disk = SimDisk::new(1);
    let mut options = small(BackendKind::Memory);
    options.durability = Durability::Os;
    let db = open(&disk, options);
    let stream = db.stream("s").unwrap();
    for _ in 0..500 {
        stream.append(&batch(&[vec![1; 500]])).unwrap();
    }
    stream.delete().unwrap();
    assert!(db.find_stream("s").is_none());
    assert_eq!(stream.read(Offset(0), 1, 1).unwrap_err(), ReadError::NoSuchStream(stream.id()));
    assert!(settle(&db).freed_segments > 2);
    let again = db.stream("s").unwrap();
    assert_ne!(again.id(), stream.id());
    assert_eq!(again.append(&batch(&[vec![2]])).unwrap().appends[0].first, Offset(0));
}

/// One pass of compaction holds as many keys as fit into its memory. More keys need more passes.
#[test]
fn a_stream_of_more_keys_than_a_compaction_holds_is_compacted_in_passes() {
    let keys = (MAX_COMPACTION_KEY_BYTES / MAX_KEY_BYTES + 100) as u32;
    let disk = SimDisk::new(1);
    let options = Options { segment_bytes: 4 << 20, ..small(BackendKind::Memory) };
    let db = open(&disk, options).with_durability(Durability::Os);
    let config =
        StreamConfig { compaction: Some(Compaction { tombstone_grace: Duration::ZERO }), ..Default::default() };
    let stream = db.create_stream("s", &config).unwrap().0;
    let mut key = vec![7; MAX_KEY_BYTES];
    for round in 0..2_u8 {
        for number in 0..keys {
            key[..4].copy_from_slice(&number.to_le_bytes());
            let record = Record { key: Some(&key), headers: vec![], payload: &[round], is_tombstone: false };
            let mut batch = RecordBatch::new();
            batch.push(&record).unwrap();
            stream.append(&batch).unwrap();
        }
    }
    let filler = db.stream("filler").unwrap();
    let mut dropped = 0;
    for _ in 0..20 {
        (0..40).for_each(|_| drop(filler.append(&batch(&[vec![7; 110_000]])).unwrap()));
        filler.trim(filler.info().unwrap().next).unwrap();
        db.flush().unwrap();
        dropped += db.maintain().unwrap().compacted_records;
    }
    // The first pass sees each key once and drops nothing. The last pass is not due while the dirty stretch is smaller
    // than the clean one.
    assert!(dropped > u64::from(keys) / 2, "{dropped} older records of {keys} are gone");
    let (mut left, mut count, mut from) = (HashMap::new(), 0, Offset(0));
    while from < stream.info().unwrap().next {
        let page = stream.read(from, 100, 8 << 20).unwrap();
        page.for_each(&mut |_, _, record| {
            let number = u32::from_le_bytes(record.key.unwrap()[..4].try_into().unwrap());
            left.insert(number, record.payload.to_vec());
            count += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
        from = page.next;
    }
    assert_eq!((left.len(), count), (keys as usize, 2 * u64::from(keys) - dropped));
    assert!(left.values().all(|payload| payload == &[1]), "the newer records are left");
}
