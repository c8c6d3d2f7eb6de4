//! Safety of maintenance: it must not free data that a power loss would make live again, keep the directory after the
//! last handle is dropped, or leave a full disk full.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use thalweg_disk::{Disk as _, SimDisk, sim::PowerLoss};
use thalweg_engine::{
    BackendKind, Database, Health, Options, Purpose, PutOptions,
    types::{Durability, Offset, command::RedisBuilder, limits::MAX_KEY_BYTES},
};

use crate::common::{Rng, batch, clock, pause, read_all, seed, small};

fn open(disk: &SimDisk, options: Options) -> Database {
    Database::open_on(Arc::new(disk.clone()), clock(), 5, options).unwrap()
}

#[test]
fn a_trim_that_a_power_loss_takes_back_has_freed_nothing() {
    let disk = SimDisk::new(1);
    let db = open(&disk, small(BackendKind::Memory)).with_durability(Durability::Disk);
    let stream = db.stream("s").unwrap();
    let payloads: Vec<Vec<u8>> = (0..400_u32).map(|number| number.to_le_bytes().repeat(150)).collect();
    for payload in &payloads {
        stream.append(&batch(std::slice::from_ref(payload))).unwrap();
    }
    db.flush().unwrap();
    let weak = db.with_durability(Durability::Os).find_stream("s").unwrap();
    weak.trim(Offset(399)).unwrap();
    let freed = db.maintain().unwrap().freed_segments;
    assert!(freed > 0, "the trimmed segments are freed");
    for loss in [PowerLoss::LoseUnsynced, PowerLoss::KeepUnsynced, PowerLoss::AnySubset(3)] {
        let db = open(&disk.after_power_loss_with(loss), small(BackendKind::Memory));
        let (start, found) = read_all(&db, "s").unwrap();
        assert_eq!(found, payloads[start as usize..], "{loss:?}: records that are not trimmed are readable");
    }
}

/// A value that a command in the log reads while it is applied survives the power loss after which it is applied
/// again.
#[test]
fn a_value_that_a_replay_reads_is_not_freed() {
    let disk = SimDisk::new(1);
    let db = open(&disk, small(BackendKind::Memory)).with_durability(Durability::Disk);
    let (redis, filler) = (db.redis_keyspace("redis").unwrap(), db.keyspace("filler").unwrap());
    let fill = || (0..700).for_each(|_| _ = filler.put(b"key", &[7; 100]).unwrap());
    redis.put(b"k", &[1; 5000]).unwrap();
    fill();
    // From here on the state points at the value, and a replay begins here.
    db.flush().unwrap();
    let mut append = RedisBuilder::new(redis.id());
    append.push(&[b"APPEND", b"k", b"more"]).unwrap();
    db.propose_command(&append.finish(), Purpose::Data, Durability::Disk).unwrap();
    redis.put(b"k", b"other").unwrap();
    fill();
    let freed: u64 = (0..3).map(|_| db.maintain().unwrap().freed_segments).sum();
    // A freed segment reappears after a power loss until its file is reused.
    while db.stats().log.recycled < freed {
        fill();
    }
    let db = open(&disk.after_power_loss_with(PowerLoss::LoseUnsynced), small(BackendKind::Memory));
    assert!(db.report().replayed_records > 700, "the command is applied again");
    assert_eq!(db.find_keyspace("redis").unwrap().get(b"k").unwrap().unwrap().value, b"other"[..]);
    db.flush().unwrap();
    let freed: u64 = (0..3).map(|_| db.maintain().unwrap().freed_segments).sum();
    assert!(freed > 0, "once the state is past the command, the value is freed");
}

#[test]
fn many_stale_rows_of_long_keys_are_forgotten_by_more_than_one_command() {
    let disk = SimDisk::new(1);
    let options = Options { segment_bytes: 1 << 20, ..small(BackendKind::Memory) };
    let db = open(&disk, options).with_durability(Durability::Os);
    let keyspace = db.keyspace("k").unwrap();
    let mut key = vec![7; MAX_KEY_BYTES];
    for number in 0..600_u32 {
        key[..4].copy_from_slice(&number.to_le_bytes());
        keyspace.put_with(&key, b"1", &PutOptions::lasting(Duration::from_secs(60))).unwrap();
        // A blind put leaves the row of the deadline behind.
        keyspace.put(&key, b"2").unwrap();
    }
    let before = db.stats().entries;
    assert_eq!(db.maintain().unwrap().stale_rows, 600);
    assert!(db.stats().entries > before + 600 * MAX_KEY_BYTES as u64 / (1 << 20));
    assert_eq!(db.maintain().unwrap().stale_rows, 0);
}

#[test]
fn the_last_handle_releases_the_directory() {
    let disk = SimDisk::new(1);
    let options = Options { maintenance_interval: Duration::from_micros(1), ..small(BackendKind::Memory) };
    for round in 0..100_u32 {
        let db = open(&disk, options.clone());
        let keyspace = db.keyspace("k").unwrap();
        keyspace.put(&round.to_le_bytes(), &[1; 300]).unwrap();
        // Either of the two drops may be the last one.
        let other = thread::spawn(move || drop(keyspace));
        drop(db);
        other.join().unwrap();
    }
}

#[test]
fn deleting_brings_a_full_disk_back() {
    let seed = seed(5);
    let disk = SimDisk::new(seed);
    let options = Options { reserve_bytes: 256 * 1024, ..small(BackendKind::Memory) };
    let db = open(&disk, options).with_durability(Durability::Os);
    let stream = db.stream("s").unwrap();
    let capacity = 2 * 1024 * 1024;
    disk.set_capacity(capacity);
    let mut rng = Rng(seed);
    let refused = (0..100_000).find_map(|_| stream.append(&batch(&[rng.bytes(500)])).err());
    assert!(refused.is_some(), "the disk is full");
    let end = stream.info().unwrap().next;
    stream.trim(end).unwrap();
    // There is no explicit flush: the state has persisted nothing yet, and no write will trigger it.
    let freed: u64 = (0..20).map(|_| db.maintain().unwrap().freed_segments).sum();
    assert!(freed > 0, "segments are freed");
    // The log's background thread returns the bytes of the segments to the disk.
    let deadline = Instant::now() + Duration::from_secs(30);
    while let Err(error) = stream.append(&batch(&[rng.bytes(500)])) {
        assert!(Instant::now() < deadline, "there is no room: {error}");
        pause();
    }
}

#[test]
fn a_full_disk_gives_up_as_much_history_as_it_must() {
    let seed = seed(6);
    let disk = SimDisk::new(seed);
    let options = Options {
        reserve_bytes: 256 * 1024,
        history_bytes: 1 << 30,
        history_age: Duration::from_secs(3600),
        ..small(BackendKind::Memory)
    };
    let db = open(&disk, options).with_durability(Durability::Os);
    let stream = db.stream("s").unwrap();
    disk.set_capacity(4 * 1024 * 1024);
    let mut rng = Rng(seed);
    let mut appended = 0;
    while disk.free_bytes().unwrap() > 1024 * 1024 {
        stream.append(&batch(&[rng.bytes(500)])).unwrap();
        appended += 1;
    }
    stream.trim(Offset(appended)).unwrap();
    db.flush().unwrap();
    let freed: u64 = (0..20).map(|_| db.maintain().unwrap().freed_segments).sum();
    assert_eq!(freed, 0, "history keeps segments that nothing else needs");
    // A round may first find other room, such as that of a journal that the state no longer needs.
    let freed = (0..50).find_map(|_| {
        while stream.append(&batch(&[rng.bytes(500)])).is_ok() {}
        assert!(matches!(db.health(), Health::DiskFull { .. }), "the rejection is reported");
        Some(db.maintain().unwrap().freed_segments).filter(|freed| *freed > 0)
    });
    let mut freed = freed.expect("history is freed");
    // The log's background thread turns the freed segments into room. Writes of the freeing itself may use some of it;
    // the next round, a second later, then gives up more.
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut pauses = 0;
    while let Err(error) = stream.append(&batch(&[rng.bytes(500)])) {
        assert!(Instant::now() < deadline, "there is no room: {error}");
        // The pauses are counted: after a time in which the machine stood still, the thread has done nothing yet.
        if pauses == 1000 {
            freed += db.maintain().unwrap().freed_segments;
            pauses = 0;
        }
        pause();
        pauses += 1;
    }
    let segments = db.stats().log.segments;
    assert!(freed < segments / 2, "{freed} segments were given up, and {segments} are left");
}
