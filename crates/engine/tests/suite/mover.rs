//! Freeing and copying segments while one of them has a problem: the others are freed nevertheless.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use thalweg_disk::{Disk as _, SimDisk};
use thalweg_engine::{
    BackendKind, Database, FetchRequest, GroupStart, Health, Options, Purpose, Stream,
    types::{
        Clock, Durability, Offset,
        command::{
            Compaction, RedisBuilder, StreamConfig,
            groups::{GroupConfig, Redelivery, Settlement},
        },
        record::{Record, RecordBatch},
    },
};
use thalweg_log::{Log, LogOptions, RecordKind};

use crate::common::{PATIENCE, batch, clock, pause, small};

fn open(disk: &SimDisk, options: Options) -> Database {
    Database::open_on(Arc::new(disk.clone()), clock(), 5, options).unwrap().with_durability(Durability::Os)
}

/// Options with segments that hold records too large for those of [`small`].
fn large() -> Options {
    Options { segment_bytes: 256 * 1024, ..small(BackendKind::Memory) }
}

/// Overwrites one value until the log has `segments` segments.
fn overwrite(db: &Database, segments: u64) {
    let hot = db.keyspace("hot").unwrap();
    while db.stats().log.segments < segments {
        hot.put(b"hot", &[2; 10_000]).unwrap();
    }
}

/// Runs rounds of maintenance, each with a persisted state. Returns the number of freed segments.
fn rounds(db: &Database, rounds: u32) -> u64 {
    let round = |_| {
        db.flush().unwrap();
        db.maintain().unwrap().freed_segments
    };
    (0..rounds).map(round).sum()
}

fn get(db: &Database, key: &[u8]) -> Vec<u8> {
    db.find_keyspace("k").unwrap().get(key).expect("readable").expect("the key is there").value.to_vec()
}

/// A round walks only few segments that may be live. The dead segments behind them get their turn too.
#[test]
fn live_segments_do_not_hold_up_dead_ones_behind_them() {
    let db = open(&SimDisk::new(1), small(BackendKind::Memory));
    let keyspace = db.keyspace("k").unwrap();
    for number in 0..48_u32 {
        keyspace.put(&number.to_be_bytes(), &[1; 10_000]).unwrap();
    }
    let live = db.stats().log.segments;
    assert!(live > 6);
    for _ in 0..40 {
        // Write more bytes than a live segment holds: the segment might be dead by then.
        overwrite(&db, db.stats().log.segments + 2);
        rounds(&db, 1);
        let segments = db.stats().log.segments;
        assert!(segments < live + 16, "{segments} segments, of which {live} are live");
    }
}

#[test]
fn bytes_too_large_for_a_record_keep_only_their_segment() {
    let disk = SimDisk::new(1);
    let db = open(&disk, large());
    db.keyspace("k").unwrap().put(b"large", &[1; 100_000]).unwrap();
    overwrite(&db, 3);
    drop(db);
    let db = open(&disk.kill_process(), small(BackendKind::Memory));
    overwrite(&db, 6);
    assert!(rounds(&db, 3) > 2);
    assert_eq!(db.stats().maintenance.moved_bytes, 0, "no copy is made in vain");
    assert_eq!(get(&db, b"large"), [1; 100_000]);
    let segments = db.stats().log.segments;
    db.keyspace("k").unwrap().put(b"large", b"no longer").unwrap();
    overwrite(&db, segments + 8);
    rounds(&db, 5);
    assert!(db.stats().log.segments < segments, "the segment has no live data any more");
}

fn flip(disk: &SimDisk, marker: &[u8]) {
    for path in disk.paths().into_iter().filter(|path| path.starts_with("log/")) {
        let bytes = disk.cached_bytes(&path).unwrap();
        if let Some(at) = bytes.windows(marker.len()).position(|window| window == marker) {
            disk.flip_bit(&path, at as u64, 3).unwrap();
            return;
        }
    }
    panic!("the marker is not in the log");
}

#[test]
fn a_damaged_segment_is_kept_and_told_once_and_the_others_go() {
    let disk = SimDisk::new(1);
    let db = open(&disk, small(BackendKind::Memory));
    let keyspace = db.keyspace("k").unwrap();
    keyspace.put(b"first", b"a marker that is found").unwrap();
    overwrite(&db, 6);
    flip(&disk, b"a marker that is found");
    assert!(rounds(&db, 3) >= 3);
    let kept = db.stats().log.segments;
    for _ in 0..10 {
        overwrite(&db, db.stats().log.segments + 2);
        assert!(rounds(&db, 2) > 0);
    }
    assert!(db.stats().log.segments <= kept + 1);
    assert_eq!(db.stats().maintenance.unreadable_segments, 1);
}

/// Fills the disk until there is room only for checkpoints of the state and one spare segment.
fn fill_up(db: &Database, disk: &SimDisk) {
    let deadline = Instant::now() + PATIENCE;
    while db.stats().log.spare_segments < 2 {
        assert!(Instant::now() < deadline, "no spare segments");
        pause();
    }
    let most = 1 << 30;
    disk.set_capacity(most);
    disk.set_capacity(most - disk.free_bytes().unwrap() + 48 * 1024);
    while db.health() == Health::Good {
        db.keyspace("k").unwrap().delete(b"nothing").unwrap();
    }
}

#[test]
fn a_copy_that_has_no_room_holds_up_no_free_segment() {
    let disk = SimDisk::new(1);
    let db = open(&disk, small(BackendKind::Memory));
    let keyspace = db.keyspace("k").unwrap();
    keyspace.put(b"live", &[1; 25_000]).unwrap();
    overwrite(&db, 6);
    db.flush().unwrap();
    fill_up(&db, &disk);
    // Deletes use up the spare segments, and so much of the active one that the copy has no room.
    let (mut segments, mut begin) = (0, 0);
    loop {
        let log = db.stats().log;
        if log.segments != segments {
            (segments, begin) = (log.segments, log.bytes);
        }
        if log.spare_segments == 0 && log.bytes - begin > 45_000 {
            break;
        }
        keyspace.delete(b"nothing").unwrap();
    }
    db.maintain().unwrap_err();
    let done = db.stats().maintenance;
    assert!(done.freed_segments >= 3 && done.moved_bytes == 0, "{done:?}");
    disk.set_capacity(u64::MAX);
    rounds(&db, 5);
    assert!(db.stats().maintenance.moved_bytes >= 25_000, "now there is room");
    assert_eq!(get(&db, b"live"), [1; 25_000]);
}

/// Each delete on a full disk makes all segments due for another check, because it may have freed one of them. The
/// checks still reach every segment, because the segments take turns.
#[test]
fn on_a_full_disk_segments_take_turns() {
    segments_take_turns(small(BackendKind::Memory));
}

#[test]
fn the_history_that_a_full_disk_gives_up_takes_turns() {
    let hour = Duration::from_secs(3600);
    segments_take_turns(Options { history_bytes: 1 << 30, history_age: hour, ..small(BackendKind::Memory) });
}

fn segments_take_turns(options: Options) {
    let disk = SimDisk::new(1);
    let db = open(&disk, options);
    let keyspace = db.keyspace("k").unwrap();
    for number in 0..48_u32 {
        keyspace.put(&number.to_be_bytes(), &[1; 10_000]).unwrap();
    }
    let live = db.stats().log.segments;
    overwrite(&db, live + 5);
    db.flush().unwrap();
    fill_up(&db, &disk);
    for _ in 0..10 {
        keyspace.delete(b"nothing").unwrap();
        db.maintain().unwrap();
        if db.stats().maintenance.freed_segments > 0 {
            return;
        }
    }
    panic!("the dead segments have had no turn");
}

/// Entries that can no longer be read in order are noted as purged, whichever segment was freed.
#[test]
fn a_segment_freed_from_the_middle_is_noted_as_purged() {
    let disk = SimDisk::new(1);
    let db = open(&disk, small(BackendKind::Memory));
    let keyspace = db.keyspace("k").unwrap();
    for number in 0..5_u8 {
        keyspace.put(&[number], &[1; 10_000]).unwrap();
    }
    overwrite(&db, 4);
    assert!(rounds(&db, 2) > 0);
    assert_eq!(get(&db, &[0]), [1; 10_000], "the first segment is kept");
    db.close().unwrap();
    drop((keyspace, db));
    let options = LogOptions { segment_bytes: 64 * 1024, reserve_bytes: 0, ..LogOptions::default() };
    let log = Log::open(Arc::new(disk), "log", options, clock(), 5).unwrap().0;
    let records: Vec<_> = log.records_from(log.start()).unwrap().map(Result::unwrap).collect();
    let begin = log.segments().last().unwrap().first;
    let entry = records.iter().find(|record| record.kind == RecordKind::Entry && record.lsn >= begin).unwrap();
    let purged = records.iter().rfind(|record| record.kind == RecordKind::Purged).expect("something is purged");
    assert_eq!(purged.index.next(), entry.index, "everything before the active segment");
}

#[test]
fn a_value_that_a_command_names_twice_is_copied_once() {
    let db = open(&SimDisk::new(1), small(BackendKind::Memory));
    let mut set = RedisBuilder::new(db.redis_keyspace("k").unwrap().id());
    set.push(&[b"MSET", b"a", &[1; 12_000], b"a", &[2; 12_000]]).unwrap();
    db.propose_command(&set.finish(), Purpose::Data, Durability::Os).unwrap();
    overwrite(&db, 2);
    db.flush().unwrap();
    let before = db.stats().log.payload_bytes;
    assert_eq!(db.maintain().unwrap().moved_bytes, 12_000);
    let written = db.stats().log.payload_bytes - before;
    assert!(written < 24_000, "{written} bytes");
    assert_eq!(get(&db, b"a"), [2; 12_000]);
}

fn append(stream: &Stream, records: &[(&[u8], Option<&[u8]>)]) {
    let mut batch = RecordBatch::new();
    for (key, value) in records {
        let (payload, is_tombstone) = (value.unwrap_or_default(), value.is_none());
        batch.push(&Record { key: Some(key), payload, is_tombstone, ..Record::default() }).unwrap();
    }
    stream.append(&batch).unwrap();
}

/// Returns the newest record of each key (`None` for a tombstone), and the number of records.
fn newest(stream: &Stream) -> (BTreeMap<Vec<u8>, Option<Vec<u8>>>, usize) {
    let (mut found, mut count) = (BTreeMap::new(), 0);
    let (mut from, next) = (Offset(0), stream.info().unwrap().next);
    while from < next {
        let page = stream.read(from, 1000, 1 << 20).unwrap();
        page.for_each(&mut |_, _, record| {
            let value = (!record.is_tombstone).then(|| record.payload.to_vec());
            found.insert(record.key.unwrap().to_vec(), value);
            count += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
        from = page.next;
    }
    (found, count)
}

/// The other batches of the stream are compacted, and records deleted by a tombstone do not reappear.
#[test]
fn a_batch_too_large_to_be_rewritten_is_skipped() {
    let disk = SimDisk::new(1);
    let (clock, second) = (clock(), Duration::from_secs(1));
    let open = |disk: &SimDisk, options| {
        let time: Arc<dyn Clock> = clock.clone();
        Database::open_on(Arc::new(disk.clone()), time, 5, options).unwrap().with_durability(Durability::Os)
    };
    let db = open(&disk, large());
    let compaction = Some(Compaction { tombstone_grace: Duration::ZERO });
    let stream = db.create_stream("s", &StreamConfig { compaction, ..StreamConfig::default() }).unwrap().0;
    let keys: Vec<_> = (0..100_u8).map(|number| [number]).collect();
    let all: Vec<(&[u8], Option<&[u8]>)> = keys.iter().map(|key| (&key[..], Some(&[1; 1000][..]))).collect();
    append(&stream, &all);
    append(&stream, &[(&[50], None)]);
    (0..10).for_each(|number| append(&stream, &[(b"often", Some(&[number]))]));
    clock.advance(second);
    drop((stream, db));
    let db = open(&disk.kill_process(), small(BackendKind::Memory));
    for _ in 0..3 {
        clock.advance(second);
        overwrite(&db, db.stats().log.segments + 1);
        db.flush().unwrap();
        db.maintain().unwrap();
    }
    let stream = db.find_stream("s").unwrap();
    assert_eq!(db.stats().maintenance.compacted_records, 9);
    let (found, count) = newest(&stream);
    assert_eq!(count, 100 + 1 + 1);
    assert_eq!(found[&[50][..]], None, "the tombstone still deletes the record in the batch");
    assert_eq!(found[&b"often"[..]].as_deref(), Some(&[9][..]));
    // Another pass, over more records than before.
    (0..100).for_each(|number| append(&stream, &[(b"often", Some(&[number; 1500]))]));
    for _ in 0..3 {
        clock.advance(second);
        overwrite(&db, db.stats().log.segments + 1);
        db.flush().unwrap();
        db.maintain().unwrap();
    }
    assert_eq!(db.stats().maintenance.compacted_records, 9 + 100);
    assert_eq!(newest(&stream).0[&[50][..]], None, "the tombstone is not dropped later either");
}

/// Dead letters that their stream rejects are retried in every round.
#[test]
fn another_step_that_always_fails_keeps_nothing_from_being_freed() {
    let db = open(&SimDisk::new(1), small(BackendKind::Memory));
    let refusing = StreamConfig { max_record_bytes: Some(1), ..StreamConfig::default() };
    db.create_stream("dead", &refusing).unwrap();
    let stream = db.stream("jobs").unwrap();
    stream.append(&batch(&[vec![7; 100]])).unwrap();
    let config =
        GroupConfig { max_deliveries: Some(1), dead_letters: Some("dead".to_owned()), ..GroupConfig::default() };
    let group = stream.create_group("workers", GroupStart::Beginning, &config).unwrap().0;
    let request = FetchRequest { member: "m".to_owned(), max_records: 1, ..FetchRequest::default() };
    let delivery = group.fetch(&request).unwrap();
    group.nack(&[Settlement::all(delivery.attempt)], Redelivery::Never, "no").unwrap();
    overwrite(&db, 6);
    for _ in 0..3 {
        db.flush().unwrap();
        db.maintain().unwrap_err();
    }
    assert!(db.stats().maintenance.freed_segments >= 3, "{:?}", db.stats().maintenance);
}
