//! A full disk, with each backend: deleting brings it back, and restarts do not make it worse.
//!
//! The memory and redb backends run on a simulated disk. The LSM and SQLite backends do their own I/O, so they need a
//! small file system, which only root can mount; elsewhere these tests report that they were skipped.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use thalweg_disk::{Disk, RealDisk, SimDisk};
use thalweg_engine::{
    BackendKind, Database, Health, Options, WriteError,
    types::{Durability, command::CommitBuilder},
};

use crate::{
    common::{clock, pause, small},
    skip::skip,
};

/// Longest wait for space to return.
const PATIENCE: Duration = Duration::from_secs(60);
const CAPACITY: u64 = 12 << 20;
const KEYS_PER_COMMIT: u32 = 50;

/// A file system in memory of a limited size, unmounted when dropped.
struct SmallMount {
    at: PathBuf,
    _dir: tempfile::TempDir,
}

impl SmallMount {
    fn create() -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let at = dir.path().join("mount");
        std::fs::create_dir(&at).map_err(|error| error.to_string())?;
        let size = format!("size={CAPACITY}");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&at))?;
        Ok(Self { at, _dir: dir })
    }

    fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for SmallMount {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg("--lazy").arg(&self.at));
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{:?}: {error}", command.get_program()))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
}

fn open(disk: &Arc<dyn Disk>, backend: BackendKind) -> Database {
    // SQLite writes each page that a transaction changes to its WAL: in the worst case, the whole database.
    let reserve_bytes = if backend == BackendKind::Sqlite { 8 << 20 } else { 2 << 20 };
    let options = Options { reserve_bytes, ..small(backend) };
    Database::open_on(disk.clone(), clock(), 7, options).unwrap().with_durability(Durability::Os)
}

/// Returns the key with this number. The numbers are spread, so that all flushes overlap.
fn key(number: u32) -> [u8; 4] {
    number.wrapping_mul(0x9e37_79b9).to_be_bytes()
}

/// Returns true if the key is not deleted: those at the beginning of the key space. A B-tree frees whole pages of the
/// others.
fn is_kept(number: u32) -> bool {
    key(number)[0] < 26
}

fn put(db: &Database, from: u32) -> Result<(), WriteError> {
    let keyspace = db.keyspace("k")?;
    let mut commit = CommitBuilder::new();
    for number in from..from + KEYS_PER_COMMIT {
        commit.put(keyspace.id(), &key(number), &[number as u8; 200]).unwrap();
    }
    db.commit(&commit).map(drop)
}

/// Puts keys from number `from` on, until the disk is full. Returns the number of the next key.
fn fill(db: &Database, from: u32) -> u32 {
    let (mut keys, mut refusals) = (from, 0);
    // Maintenance frees the log, so that the state is what fills the disk.
    while refusals < 5 {
        match put(db, keys) {
            Ok(()) => {
                keys += KEYS_PER_COMMIT;
                refusals = 0;
            }
            Err(WriteError::NoSegment { .. }) => pause(),
            Err(WriteError::DiskFull { .. }) => {
                refusals += 1;
                let _ = db.maintain();
            }
            Err(error) => panic!("{error}"),
        }
        if keys % 1000 == 0 {
            let _ = db.maintain();
        }
    }
    keys
}

fn delete(db: &Database, keys: impl Iterator<Item = u32>) {
    let keyspace = db.keyspace("k").unwrap();
    let until = Instant::now() + PATIENCE;
    for (count, number) in keys.enumerate() {
        while let Err(error) = keyspace.delete(&key(number)) {
            assert!(matches!(error, WriteError::DiskFull { .. } | WriteError::NoSegment { .. }), "{error}");
            assert!(Instant::now() < until, "a delete finds no room: {error}\n{:#?}", db.stats());
            let _ = db.maintain();
            pause();
        }
        if count % 500 == 0 {
            let _ = db.maintain();
        }
    }
}

/// Runs maintenance until new data is accepted, and further commits after it.
fn comes_back(db: &Database, from: u32) {
    let until = Instant::now() + PATIENCE;
    for round in 0..10 {
        while let Err(error) = put(db, from + round * KEYS_PER_COMMIT) {
            assert!(Instant::now() < until, "no room for round {round}: {error}, {:?}", db.stats().state);
            let _ = db.maintain();
            pause();
        }
    }
    db.flush().unwrap();
    assert!(!matches!(db.health(), Health::Failed { .. }), "{:?}", db.health());
}

fn deleting_brings_it_back(disk: &Arc<dyn Disk>, backend: BackendKind) {
    let db = open(disk, backend);
    let mut keys = fill(&db, 0);
    assert!(keys > 1000, "only {keys} keys");
    // A compaction in the background can find room again.
    let until = Instant::now() + PATIENCE;
    while !matches!(db.health(), Health::DiskFull { .. }) {
        assert!(Instant::now() < until, "never full: {:?}", db.stats().state);
        keys = fill(&db, keys);
    }
    let (mut db, mut least) = (db, u64::MAX);
    for restart in 0..5 {
        drop(db);
        db = open(disk, backend);
        for _ in 0..3 {
            let _ = db.maintain();
        }
        // A restart may prepare a log segment, and flush what was in memory. Compactions take space for a moment.
        let until = Instant::now() + PATIENCE;
        while restart > 0 && disk.free_bytes().unwrap() + (512 << 10) < least {
            assert!(Instant::now() < until, "restart {restart} left {} bytes", disk.free_bytes().unwrap());
            let _ = db.maintain();
            pause();
        }
        least = least.min(disk.free_bytes().unwrap());
        assert!(!matches!(db.health(), Health::Failed { .. }), "{:?}", db.health());
        assert!(db.keyspace("k").unwrap().get(&key(keys - 1)).unwrap().is_some());
    }
    delete(&db, (0..keys).filter(|number| !is_kept(*number)));
    comes_back(&db, keys);
    let keyspace = db.keyspace("k").unwrap();
    for number in 0..keys {
        let found = keyspace.get(&key(number)).unwrap().map(|entry| entry.value);
        assert_eq!(found.as_deref(), is_kept(number).then_some(&[number as u8; 200][..]), "key {number}");
    }
    db.close().unwrap();
}

fn on_a_simulated_disk(backend: BackendKind) {
    let disk = SimDisk::new(7);
    disk.set_capacity(CAPACITY);
    deleting_brings_it_back(&(Arc::new(disk) as _), backend);
}

fn on_a_small_mount(backend: BackendKind) {
    let mount = match SmallMount::create() {
        Ok(mount) => mount,
        Err(reason) => {
            return skip(
                &format!("a full disk with {backend:?}"),
                &format!("no small file system can be mounted: {reason}"),
            );
        }
    };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(mount.path()).unwrap());
    deleting_brings_it_back(&disk, backend);
}

#[test]
fn deleting_brings_the_memory_backend_back() {
    on_a_simulated_disk(BackendKind::Memory);
}

#[test]
fn deleting_brings_the_redb_backend_back() {
    on_a_simulated_disk(BackendKind::Redb);
}

#[test]
fn deleting_brings_the_lsm_backend_back() {
    on_a_small_mount(BackendKind::Lsm);
}

#[test]
fn deleting_brings_the_sqlite_backend_back() {
    on_a_small_mount(BackendKind::Sqlite);
}
