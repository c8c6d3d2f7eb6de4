//! Tests that reads of several keys request all blocks from the disk before they wait for the first one.

use thalweg_engine::{BackendKind, Database, Keyspace, Options};
use thalweg_redis::{Reply, find, run_read};
use thalweg_types::{
    Durability, Revision,
    budget::{self, Budget},
    command::{Command, TransactionBuilder},
};

/// Number of keys that are read, each from another block of the tables.
const KEYS: u64 = 20;
/// Number of keys from one that is read to the next.
const STEP: u64 = 40;

fn key(number: u64) -> Vec<u8> {
    format!("{:06}", number * STEP).into_bytes()
}

fn keys() -> Vec<Vec<u8>> {
    (0..KEYS).map(key).collect()
}

/// Opens a directory. If the test's keys are missing, puts them, with values of `bytes` bytes, into tables.
fn open(dir: &tempfile::TempDir, bytes: usize) -> (Database, Keyspace) {
    let options = Options { backend: Some(BackendKind::Lsm), inline_value_bytes: 1_000, ..Options::default() };
    let db = Database::open(dir.path(), options).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    if keyspace.get(&key(0)).unwrap().is_none() {
        let keyspace = keyspace.with_durability(Durability::Os);
        for number in 0..KEYS * STEP {
            let bytes = if number.is_multiple_of(STEP) { bytes } else { 900 };
            keyspace.put(format!("{number:06}").as_bytes(), &vec![b'v'; bytes]).unwrap();
        }
        db.flush().unwrap();
    }
    (db, keyspace)
}

/// Opens a directory again, so that no block of its tables is in memory, and returns the number of reads that `read`
/// requests ahead.
fn requested(dir: &tempfile::TempDir, read: impl FnOnce(&Database, &Keyspace)) -> u64 {
    let (db, keyspace) = open(dir, 0);
    let before = budget::reads_ahead();
    read(&db, &keyspace);
    let requested = budget::reads_ahead() - before;
    db.close().unwrap();
    requested
}

fn filled(bytes: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    open(&dir, bytes).0.close().unwrap();
    dir
}

fn mget(db: &Database, keyspace: &Keyspace) {
    let keys = keys();
    let args: Vec<&[u8]> = std::iter::once(&b"mget"[..]).chain(keys.iter().map(Vec::as_slice)).collect();
    let command = find(args[0]).unwrap();
    let reply = db.redis_read(keyspace.id(), |view| run_read(view, command, &args)).unwrap();
    let Reply::Array(values) = reply else { panic!("{reply:?}") };
    assert!(values.len() as u64 == KEYS && values.iter().all(|value| matches!(value, Reply::Bulk(_))));
}

#[test]
fn the_blocks_of_all_keys_are_requested_before_the_first_one_is_read() {
    let dir = filled(900);
    // A block that was read before is in memory, and would not be requested. The open may have read a block.
    assert!(requested(&dir, mget) >= KEYS - 2);
    let transaction = |db: &Database, keyspace: &Keyspace| {
        let mut gets = TransactionBuilder::new();
        keys().iter().for_each(|key| _ = gets.then().get(keyspace.id(), key).unwrap());
        let mut bytes = Vec::new();
        gets.encode(&mut bytes).unwrap();
        let Ok(Command::Transaction(decoded)) = Command::decode(&bytes) else { panic!("a transaction") };
        let ack = db.read_transaction(&decoded, Budget::waiting(1_000_000)).unwrap().unwrap().unwrap();
        assert_eq!(ack.outcome.results.len() as u64, KEYS);
    };
    assert!(requested(&dir, transaction) >= KEYS - 2);
    assert!(requested(&dir, |_, keyspace| keyspace.read_ahead(keys().iter().map(Vec::as_slice))) >= KEYS - 2);
}

#[test]
fn values_in_the_log_are_requested_behind_their_rows() {
    let dir = filled(5_000);
    assert!(requested(&dir, mget) >= 2 * KEYS - 2);
}

#[test]
fn nothing_is_requested_for_one_key_or_on_a_thread_that_must_not_wait() {
    let dir = filled(900);
    let one = |_: &Database, keyspace: &Keyspace| {
        keyspace.read_ahead(std::iter::once(&key(3)[..]));
        assert!(keyspace.get(&key(3)).unwrap().is_some_and(|entry| entry.revision > Revision::ZERO));
    };
    assert_eq!(requested(&dir, one), 0);
    let resident = |_: &Database, keyspace: &Keyspace| {
        let keys = keys();
        let _ = Budget::RESIDENT.perform(|| keyspace.read_ahead(keys.iter().map(Vec::as_slice)));
    };
    assert_eq!(requested(&dir, resident), 0);
}
