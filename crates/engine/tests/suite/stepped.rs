//! Databases without threads of their own, whose caller does the background work.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use thalweg_disk::{Disk, SimDisk};
use thalweg_engine::{
    BackendKind, Database, MemberIdentity, Options, SteppedOptions, WatchKeys,
    types::{Clock, Durability, Index, ManualClock, Revision},
};

use crate::{
    cluster::{Group, keeping},
    common::{clock, small},
};

fn open(disk: &SimDisk, clock: &Arc<ManualClock>, os_dir: Option<&Path>, options: &Options) -> Database {
    let clock: Arc<dyn Clock> = clock.clone();
    let stepped = SteppedOptions { disk: Arc::new(disk.clone()), clock, seed: 5, os_dir };
    Database::open_stepped(&stepped, options.clone(), None).unwrap()
}

/// Number of threads of this process whose name begins like those of a database.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names
        .filter(|name| ["thalweg-flush", "thalweg-compact", "thalweg-maintai", "thalweg-watch"].contains(&name.trim()))
        .count()
}

/// Writes more than the memtables hold, with steps in between, then loses the power. Returns what the state had
/// persisted at that time.
fn fill_and_lose_power(disk: &SimDisk, clock: &Arc<ManualClock>, os_dir: Option<&Path>, options: &Options) -> Index {
    let db = open(disk, clock, os_dir, options);
    let keyspace = db.keyspace("k").unwrap();
    for number in 0..2000_u32 {
        keyspace.with_durability(Durability::Os).put(&number.to_be_bytes(), &[number as u8; 200]).unwrap();
        if number.is_multiple_of(50) {
            while db.step() {}
        }
    }
    db.sync().unwrap();
    let state = db.stats().state;
    assert!(state.flushes > 0, "{state:?}");
    db.compact().unwrap();
    keyspace.put(b"last", b"1").unwrap();
    assert_eq!(db.stats().log.pacer, Default::default(), "no work of a simulation pauses");
    db.stats().applied_index
}

fn everything_is_there(db: &Database, applied: Index) {
    assert_eq!(db.stats().applied_index, applied);
    let keyspace = db.find_keyspace("k").unwrap();
    for number in [0_u32, 7, 1999] {
        assert_eq!(keyspace.get(&number.to_be_bytes()).unwrap().unwrap().value, vec![number as u8; 200]);
    }
    assert_eq!(keyspace.get(b"last").unwrap().unwrap().value, b"1"[..]);
}

#[test]
fn backends_persist_when_they_are_stepped_and_survive_a_power_loss() {
    let dir = tempfile::tempdir().unwrap();
    for backend in [BackendKind::Redb, BackendKind::Lsm] {
        let (disk, clock) = (SimDisk::new(3), clock());
        let os_dir = (backend == BackendKind::Lsm).then_some(dir.path());
        let options = Options { cache_bytes: 1 << 20, memtable_bytes: 64 << 10, ..small(backend) };
        let applied = fill_and_lose_power(&disk, &clock, os_dir, &options);
        let db = open(&disk.power_loss(9), &clock, os_dir, &options);
        everything_is_there(&db, applied);
        assert!(db.report().replayed_records < 100, "the state was persisted: {:?}", db.report());
    }
}

/// Set in the process that runs one test alone.
const ALONE: &str = "THALWEG_STEPPED_ALONE";

/// Tests beside this one have databases with threads, so it runs in a process of its own.
#[test]
fn a_stepped_database_starts_no_thread() {
    if std::env::var_os(ALONE).is_none() {
        let mut test = std::process::Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", "stepped::a_stepped_database_starts_no_thread", "--nocapture"]);
        let output = test.env(ALONE, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for backend in [BackendKind::Memory, BackendKind::Redb, BackendKind::Lsm] {
        let os_dir = (backend == BackendKind::Lsm).then_some(dir.path());
        let options = Options { cache_bytes: 1 << 20, memtable_bytes: 64 << 10, ..small(backend) };
        let db = open(&SimDisk::new(4), &clock(), os_dir, &options);
        db.keyspace("k").unwrap().with_durability(Durability::Os).put(b"a", b"1").unwrap();
        db.compact().unwrap();
        assert_eq!(threads(), 0);
    }
    let database = Database::open(dir.path().join("threads"), small(BackendKind::Lsm)).unwrap();
    // Each thread sets its name when it runs for the first time.
    let began = Instant::now();
    while threads() == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "a database that is not stepped has threads");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(database);
}

#[test]
fn a_watch_gets_changes_when_the_caller_steps() {
    let db = open(&SimDisk::new(1), &clock(), None, &small(BackendKind::Memory));
    let keyspace = db.keyspace("k").unwrap();
    let mut watch = keyspace.watch(&WatchKeys::Prefix(Vec::new()), None).unwrap();
    keyspace.put(b"a", b"1").unwrap();
    assert_eq!(watch.try_next().unwrap(), None, "nobody has dispatched it");
    assert!(db.step());
    let batch = watch.try_next().unwrap().expect("dispatched");
    assert_eq!((batch.events.len(), batch.next), (1, Revision(2)));
    while db.step() {}
    assert!(!db.step());
}

/// Two runs with the same seeds leave the same bytes.
#[test]
fn a_group_on_one_thread_does_the_same_twice() {
    let run = || {
        let options = Options { memtable_bytes: 64 << 10, backend: Some(BackendKind::Redb), ..keeping() };
        let group = Group::founded(3, &options);
        let db = group.leader().db.to_async();
        let keyspace = group.run(db.keyspace("k")).unwrap().id();
        for number in 0..600_u32 {
            group.run(db.put(keyspace, &(number % 97).to_be_bytes(), &[number as u8; 300], Durability::Os)).unwrap();
            if number.is_multiple_of(60) {
                for node in &group.nodes {
                    while node.db.step() {}
                    group.run(node.db.maintain_async()).unwrap();
                }
            }
        }
        group.nodes.iter().map(|node| (contents(&node.disk), node.db.stats().running_hash)).collect::<Vec<_>>()
    };
    let (first, second) = (run(), run());
    assert!(first == second, "a difference");
    assert_eq!(first[0].1, first[2].1);
}

fn contents(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for dir in ["", "log", "state/default/redb"] {
        for name in disk.list(dir).unwrap() {
            let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            let file = Disk::open(disk, &path).unwrap();
            let mut bytes = vec![0; file.len().unwrap() as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            files.push((path, bytes));
        }
    }
    files
}

#[test]
fn a_member_that_lost_power_continues_from_what_it_persisted() {
    let options = Options { memtable_bytes: 64 << 10, backend: Some(BackendKind::Redb), ..keeping() };
    let group = Group::founded(2, &options);
    let db = group.leader().db.to_async();
    let keyspace = group.run(db.keyspace("k")).unwrap().id();
    for number in 0..600_u32 {
        group.run(db.put(keyspace, &number.to_be_bytes(), &[number as u8; 300], Durability::Os)).unwrap();
        group.nodes.iter().for_each(|node| _ = node.db.step());
    }
    let (applied, hash) = (group.leader().applied(), group.leader().db.stats().running_hash);
    let lost = group.nodes[1].disk.power_loss(4);
    let node = crate::cluster::Node::open(&lost, &group.clock, 2, &options, MemberIdentity::Existing);
    assert!(node.applied() > Index(100) && node.applied() < applied, "{}", node.applied());
    node.apply_all();
    assert_eq!((node.applied(), node.db.stats().running_hash), (applied, hash));
}
