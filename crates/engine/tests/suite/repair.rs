//! A repair that cuts the log below the applied position of the state keeps the state.

use std::{sync::Arc, time::Duration};

use thalweg_disk::{Disk, SimDisk};
use thalweg_engine::{
    BackendKind, Database, OpenError, Options, ReadError, Repair, ScanRange, WatchError, WatchKeys,
    types::{Classified, Offset, Revision, record::RecordBatch},
};

use crate::common::{batch, clock, read_all, small};

const KEYS: u32 = 3000;

fn open(disk: &SimDisk, backend: BackendKind, repair: Repair) -> Result<Database, OpenError> {
    let options = Options { repair, history_bytes: 1 << 30, ..small(backend) };
    Database::open_on(Arc::new(disk.clone()), clock(), 1, options)
}

fn one(payload: &[u8]) -> RecordBatch {
    batch(&[payload.to_vec()])
}

/// Writes small values, which the state holds, and some long values and records, which only the log holds.
fn closed_cleanly(backend: BackendKind) -> SimDisk {
    let disk = SimDisk::new(1);
    let db = open(&disk, backend, Repair::Refuse).unwrap();
    let db = db.with_durability(thalweg_engine::types::Durability::Os);
    let (keyspace, stream) = (db.keyspace("k").unwrap(), db.stream("s").unwrap());
    for number in 0..KEYS {
        keyspace.put(&number.to_be_bytes(), &number.to_le_bytes()).unwrap();
        if number % 100 == 0 {
            keyspace.put(format!("long {number}").as_bytes(), &vec![number as u8; 900]).unwrap();
            stream.append(&one(&number.to_le_bytes())).unwrap();
        }
    }
    db.close().unwrap();
    disk
}

/// Flips a bit of a record in the middle of the log.
fn damage(disk: &SimDisk) {
    let mut segments: Vec<String> = disk
        .list("log")
        .unwrap()
        .into_iter()
        .filter(|name| name.ends_with(".seg") || name.contains("segment"))
        .collect();
    segments.sort();
    assert!(segments.len() > 3, "{segments:?} of {:?}", disk.list("log").unwrap());
    // Keys are spread over the segments in order: find the segment with the middle key.
    let needle = (KEYS / 2).to_be_bytes();
    for name in segments {
        let path = format!("log/{name}");
        let file = disk.open(&path).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        if let Some(at) = bytes.windows(8).position(|window| window[..4] == needle && window[4..] != [0; 4]) {
            return disk.flip_bit(&path, at as u64, 0).unwrap();
        }
    }
    panic!("the middle key is not in the log");
}

fn repair_keeps_the_state(backend: BackendKind) {
    let disk = closed_cleanly(backend);
    damage(&disk);
    let db = open(&disk, backend, Repair::CutAtCorruption).unwrap_or_else(|error| panic!("{error}"));
    let said = db.report().repaired.clone().expect("something was given up");
    assert!(said.contains("the state is kept"), "{said}");
    let check = |db: &Database| {
        let keyspace = db.find_keyspace("k").unwrap();
        for number in 0..KEYS {
            let value =
                keyspace.get(&number.to_be_bytes()).unwrap().unwrap_or_else(|| panic!("{number} is gone")).value;
            assert_eq!(value, number.to_le_bytes()[..]);
        }
        assert_eq!(keyspace.get(b"long 100").unwrap().unwrap().value, vec![100; 900][..]);
        let lost = keyspace.get(b"long 2900").unwrap_err();
        assert!(matches!(lost, ReadError::Corrupt(_)), "{lost}");
        let stream = db.find_stream("s").unwrap();
        assert_eq!(stream.info().unwrap().next.0, u64::from(KEYS / 100));
        assert_eq!(stream.read(Offset(0), 10, 10_000).unwrap().record_count(), 10);
        assert!(stream.read(Offset(28), 1, 10_000).is_err(), "a record that was only in the log is lost");
    };
    check(&db);
    drop(db);
    // Neither a kill nor a clean close makes another repair necessary.
    for round in 0..3 {
        let disk = disk.kill_process();
        let db = open(&disk, backend, Repair::Refuse).unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(db.report().repaired, None);
        check(&db);
        db.keyspace("k").unwrap().put(b"after", b"1").unwrap();
        db.maintain().unwrap();
        if round == 1 {
            db.close().unwrap();
        }
        drop(db);
        let db = open(&disk, backend, Repair::Refuse).unwrap();
        assert_eq!(db.keyspace("k").unwrap().get(b"after").unwrap().unwrap().value, b"1"[..]);
        // Behind the lost records the stream continues; once trimmed, it is complete again.
        let stream = db.stream("s").unwrap();
        stream.append(&one(b"new")).unwrap();
        stream.trim(Offset(u64::from(KEYS / 100))).unwrap();
        assert_eq!(read_all(&db, "s").unwrap(), (u64::from(KEYS / 100), vec![b"new".to_vec()]));
        db.keyspace("k").unwrap().put(b"long 2900", b"short").unwrap();
        assert_eq!(db.keyspace("k").unwrap().iter(ScanRange::with_prefix(b"long 29".to_vec())).count(), 1);
    }
}

#[test]
fn a_repair_keeps_a_memory_state_that_is_ahead() {
    repair_keeps_the_state(BackendKind::Memory);
}

#[test]
#[cfg(feature = "redb")]
fn a_repair_keeps_a_redb_state_that_is_ahead() {
    repair_keeps_the_state(BackendKind::Redb);
}

#[test]
fn without_a_repair_a_state_that_is_ahead_is_refused() {
    let disk = closed_cleanly(BackendKind::Memory);
    damage(&disk);
    // Only the log is repaired: it ends below the state.
    let options = thalweg_log::LogOptions {
        repair: thalweg_log::Repair::CutAtCorruption,
        segment_bytes: 64 * 1024,
        reserve_bytes: 0,
        ..thalweg_log::LogOptions::default()
    };
    let (log, recovery) = thalweg_log::Log::open(Arc::new(disk.clone()), "log", options, clock(), 1).unwrap();
    assert!(recovery.repaired.is_some());
    log.close().unwrap();
    drop(log);
    let error = open(&disk, BackendKind::Memory, Repair::Refuse).unwrap_err();
    assert_eq!(error.code(), "state_ahead_of_log", "{error}");
    assert!(error.to_string().contains("--repair"), "{error}");
    let db = open(&disk, BackendKind::Memory, Repair::CutAtCorruption).unwrap();
    assert_eq!(db.keyspace("k").unwrap().get(&7u32.to_be_bytes()).unwrap().unwrap().value, 7u32.to_le_bytes()[..]);
}

/// A watch from before the cut gets an error instead of missing changes silently.
#[test]
fn a_watch_from_before_a_repair_is_told_that_it_is_too_old() {
    let disk = closed_cleanly(BackendKind::Memory);
    let all = WatchKeys::Prefix(Vec::new());
    let look = |db: &Database, from: Revision| {
        let mut watch = db.find_keyspace("k").unwrap().watch(&all, Some(from))?;
        watch.try_next()
    };
    {
        let db = open(&disk, BackendKind::Memory, Repair::Refuse).unwrap();
        assert!(look(&db, Revision(1)).unwrap().is_some(), "an undamaged log has all changes");
        db.close().unwrap();
    }
    damage(&disk);
    let db = open(&disk, BackendKind::Memory, Repair::CutAtCorruption).unwrap();
    let last = db.stats().applied_revision;
    for from in [Revision(1), Revision(u64::from(KEYS) / 2), Revision(u64::from(KEYS))] {
        let error = look(&db, from).unwrap_err();
        assert!(matches!(error, WatchError::Compacted { .. }), "{from}: {error}");
    }
    let mut watch = db.find_keyspace("k").unwrap().watch(&all, None).unwrap();
    let revision = db.keyspace("k").unwrap().put(b"after", b"1").unwrap().revision.unwrap();
    assert!(revision > last);
    let batch = watch.next_batch(Duration::from_secs(60)).unwrap();
    assert_eq!(batch.events.len(), 1, "later changes are reported");
}

/// The power is lost at every operation of a repair. Repeating the repair completes it, and the state is present.
#[test]
fn a_repair_may_be_interrupted() {
    let disk = closed_cleanly(BackendKind::Memory);
    damage(&disk);
    let counted = disk.kill_process();
    let before = counted.operations();
    drop(open(&counted, BackendKind::Memory, Repair::CutAtCorruption).unwrap());
    let operations = counted.operations() - before;
    let step = (operations / 60).max(1);
    for after in (0..operations).step_by(step as usize) {
        let crashed = disk.kill_process();
        crashed.power_off_after(after);
        drop(open(&crashed, BackendKind::Memory, Repair::CutAtCorruption));
        let crashed = crashed.power_loss(after);
        let db = open(&crashed, BackendKind::Memory, Repair::CutAtCorruption)
            .unwrap_or_else(|error| panic!("after {after} of {operations}: {error}"));
        let keyspace = db.find_keyspace("k").unwrap();
        assert_eq!(
            keyspace.iter(ScanRange { limit: Some(u64::from(KEYS)), ..ScanRange::default() }).count() as u32,
            KEYS
        );
        keyspace.put(b"after", b"1").unwrap();
        drop((keyspace, db));
        open(&crashed, BackendKind::Memory, Repair::Refuse).unwrap_or_else(|error| panic!("after {after}: {error}"));
    }
}
