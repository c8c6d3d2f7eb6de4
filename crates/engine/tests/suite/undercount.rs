//! A segment whose live bytes the state counts too low: no live data is lost with it.

use std::sync::Arc;

use thalweg_disk::{Disk, SimDisk};
use thalweg_engine::{BackendKind, Database, Maintenance, Options, PutOptions};
use thalweg_log::Purpose;
use thalweg_replica::Wake;
use thalweg_store::{
    Applied, Backend, BarrierFailed, LogBarrier, WriteBatch,
    memory::{MemoryBackend, MemoryOptions},
};
use thalweg_types::{
    Durability, Generation, Lsn, Offset,
    command::{TransactionBuilder, encode_revoke_lease},
};

use crate::common::{batch, block_on, clock, read_all, small};

const LARGE: usize = 5000;

fn open(disk: &SimDisk) -> Database {
    Database::open_on(Arc::new(disk.clone()), clock(), 5, small(BackendKind::Memory)).unwrap()
}

/// Fills the active segment and some more with data that is not needed in the log.
fn fill(db: &Database) {
    let filler = db.keyspace("filler").unwrap();
    let before = db.stats().log.segments;
    while db.stats().log.segments < before + 3 {
        filler.put(b"key", &[7; 100]).unwrap();
    }
}

/// Runs rounds of maintenance, each with a persisted state, until they do nothing more.
fn settle(db: &Database) -> Maintenance {
    let (mut total, mut idle) = (Maintenance::default(), 0);
    while idle < 3 {
        db.flush().unwrap();
        let done = db.maintain().unwrap();
        idle = if done == Maintenance::default() { idle + 1 } else { 0 };
        total.freed_segments += done.freed_segments;
        total.moved_bytes += done.moved_bytes;
        total.undercounted_segments += done.undercounted_segments;
    }
    total
}

fn get(db: &Database, key: &[u8]) -> Vec<u8> {
    let entry = db.find_keyspace("k").unwrap().get(key).expect("readable").expect("the key is there");
    entry.value.to_vec()
}

/// A revoked lease and a deleted prefix remove the same keys, in entries that are committed together. Neither command
/// shares an entry with another, because each may take all steps of one.
#[test]
fn keys_that_two_commands_remove_together_take_no_other_value_with_them() {
    let disk = SimDisk::new(1);
    let db = open(&disk);
    let keyspace = db.keyspace("k").unwrap();
    let lease = db.leases().grant(std::time::Duration::from_secs(60)).unwrap().id;
    for number in 0..4_u8 {
        keyspace.put_with(&[b'p', b'/', number], &[number; LARGE], &PutOptions::with_lease(lease)).unwrap();
    }
    keyspace.put(b"other", &[9; LARGE]).unwrap();
    fill(&db);
    let mut revoke = Vec::new();
    encode_revoke_lease(&mut revoke, lease);
    let (mut delete, mut transaction) = (Vec::new(), TransactionBuilder::new());
    transaction.then().delete_prefix(keyspace.id(), b"p/").unwrap();
    transaction.encode(&mut delete).unwrap();
    let entries = db.stats().entries;
    let later = db.to_async();
    let under_way =
        [revoke, delete].map(|command| later.propose_command(&command, Purpose::Data, Durability::Disk, Wake::Later));
    later.commit_queued();
    for command in under_way {
        block_on(command).unwrap();
    }
    assert_eq!(db.stats().entries, entries + 2, "each is an entry of its own");
    assert!(keyspace.get(&[b'p', b'/', 1]).unwrap().is_none());
    let done = settle(&db);
    assert!(done.freed_segments > 0, "{done:?}");
    assert_eq!(get(&db, b"other"), [9; LARGE]);
    drop((later, keyspace, db));
    let db = open(&disk.kill_process());
    assert_eq!(get(&db, b"other"), [9; LARGE]);
    settle(&db);
    assert_eq!(get(&db, b"other"), [9; LARGE]);
}

struct NoLog;

impl LogBarrier for NoLog {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        Ok(())
    }
}

/// Changes the stored state of a closed directory so that it counts nothing in some segments. The change is stored at
/// the position of the first entry after those that the state has applied.
fn count_nothing(disk: &SimDisk, segments: &[Generation]) {
    let options = MemoryOptions { dir: "state/default/memory".to_owned(), ..MemoryOptions::default() };
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let backend = MemoryBackend::open(disk, options, Arc::new(NoLog)).unwrap();
    let before = backend.applied().expect("the state was flushed");
    let mut rows = WriteBatch::new();
    for segment in segments {
        rows.put(&[&[0x04], &segment.0.to_be_bytes()], &[&[0; 32]]);
    }
    let (index, revision) = (before.index.next(), before.revision.next());
    backend.apply(&rows, Applied { lsn: before.lsn.next(), index, revision, ..before }).unwrap();
    backend.flush().unwrap();
}

/// Fills a few segments of which little is live: a value, and every twentieth batch.
fn mixed(disk: &SimDisk) -> Vec<Vec<u8>> {
    let db = open(disk);
    let (keyspace, hot) = (db.keyspace("k").unwrap(), db.keyspace("hot").unwrap());
    let (kept, dropped) = (db.stream("kept").unwrap(), db.stream("dropped").unwrap());
    keyspace.put(b"other", &[9; LARGE]).unwrap();
    let mut payloads = Vec::new();
    for number in 0..800_u32 {
        hot.put(b"hot", &number.to_le_bytes().repeat(100)).unwrap();
        let payload = number.to_le_bytes().repeat(50);
        if number % 20 == 0 {
            kept.append(&batch(std::slice::from_ref(&payload))).unwrap();
            payloads.push(payload);
        } else {
            dropped.append(&batch(&[payload])).unwrap();
        }
    }
    // A trimmed stream with more batches than a walk reads in one step.
    dropped.trim(Offset(600)).unwrap();
    db.flush().unwrap();
    hot.put(b"hot", b"not in the flushed state").unwrap();
    payloads
}

fn check_mixed(db: &Database, kept: &[Vec<u8>]) {
    assert_eq!(get(db, b"other"), [9; LARGE]);
    assert_eq!(read_all(db, "kept").unwrap(), (0, kept.to_vec()));
    assert_eq!(read_all(db, "dropped").unwrap().1.len(), 160);
}

#[test]
fn a_count_that_is_too_low_frees_nothing_that_is_live() {
    let disk = SimDisk::new(1);
    let kept = mixed(&disk);
    let disk = disk.kill_process();
    let all: Vec<_> = (1..100).map(Generation).collect();
    count_nothing(&disk, &all);
    let db = open(&disk);
    let segments = db.stats().log.segments;
    let done = settle(&db);
    assert!(done.undercounted_segments > 5, "{done:?}");
    assert!(done.freed_segments > 0 && done.moved_bytes > 0, "live data is copied: {done:?}");
    assert!(db.stats().log.segments < segments, "{segments} segments before");
    assert_eq!(db.stats().maintenance.undercounted_segments, done.undercounted_segments);
    check_mixed(&db, &kept);
    drop(db);
    let db = open(&disk.power_loss(1));
    check_mixed(&db, &kept);
    assert_eq!(settle(&db).undercounted_segments, 0, "the copies are counted");
    check_mixed(&db, &kept);
}

#[test]
fn counts_that_are_right_are_not_reported() {
    let disk = SimDisk::new(1);
    let kept = mixed(&disk);
    let db = open(&disk.kill_process());
    let done = settle(&db);
    assert!(done.freed_segments > 0 && done.undercounted_segments == 0, "{done:?}");
    check_mixed(&db, &kept);
}

/// Values that an entry left in the log are needed there, even after the option has been raised above their length.
#[test]
fn values_shorter_than_a_raised_option_keep_their_segments() {
    let disk = SimDisk::new(1);
    let with = |inline_value_bytes| {
        let options = Options { inline_value_bytes, ..small(BackendKind::Memory) };
        Database::open_on(Arc::new(disk.clone()), clock(), 5, options).unwrap()
    };
    let db = with(256);
    let keyspace = db.keyspace("k").unwrap();
    keyspace.put(b"kept", &[3; 400]).unwrap();
    fill(&db);
    db.close().unwrap();
    drop((keyspace, db));
    let db = with(64 * 1024);
    fill(&db);
    let done = settle(&db);
    assert!(done.freed_segments > 0, "{done:?}");
    assert_eq!(done.moved_bytes, 400, "{done:?}");
    assert_eq!(get(&db, b"kept"), [3; 400]);
}
