//! Reads of redb and SQLite on threads that must not wait for the disk, and reads that the LSM backend requests ahead.
//! Reads of its tables are tested beside them.

use std::{
    fmt::Debug,
    fs::File,
    ops::{Bound, ControlFlow},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::fs::{Advice, fadvise};
use thalweg_disk::{Disk, RealDisk, read_resident};
use thalweg_store::{
    Applied, Backend, BackendHealth, Direction, WriteBatch,
    lsm::{LsmBackend, LsmOptions},
    redb::{RedbBackend, RedbOptions},
    sqlite::{SqliteBackend, SqliteOptions},
};
use thalweg_types::{
    Index, Lsn,
    budget::{self, Budget, BudgetSpent},
};

use crate::backend_support::Barrier;

const PAIRS: u32 = 20_000;

fn open_redb(root: &Path) -> (Box<dyn Backend>, PathBuf) {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(root).unwrap());
    // With the default cache, no read of this small database reaches the file.
    let options = RedbOptions { dir: "state".to_owned(), cache_bytes: 100_000, ..RedbOptions::default() };
    let backend = RedbBackend::open(&disk, options, Arc::new(Barrier::default())).unwrap();
    (Box::new(backend), root.join("state/state.redb"))
}

fn open_sqlite(root: &Path) -> (Box<dyn Backend>, PathBuf) {
    let options = SqliteOptions::new(root.join("state"));
    let backend = SqliteBackend::open(options, Arc::new(Barrier::default())).unwrap();
    (Box::new(backend), root.join("state/state.sqlite"))
}

fn key(number: u32) -> Vec<u8> {
    [b"k", &number.to_be_bytes()[..]].concat()
}

/// Puts pairs and flushes them.
fn fill(backend: &dyn Backend, round: u64) {
    let mut batch = WriteBatch::new();
    (0..PAIRS).for_each(|number| batch.put(&[&key(number)], &[&[round as u8; 200]]));
    backend.apply(&batch, Applied { lsn: Lsn(round), index: Index(round), ..Applied::default() }).unwrap();
    backend.flush().unwrap();
}

/// Attempts to drop a file, and to read what was just read. The kernel may keep a page that it works on, and may free
/// one that was just read.
const ATTEMPTS: u32 = 100;

/// Drops a file from the memory of the kernel. Returns false if the file system keeps it, or cannot tell.
fn dropped(path: &Path) -> bool {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let is_there = || read_resident(&file, 1, 64 << 10).unwrap().is_some();
    (0..ATTEMPTS).any(|attempt| {
        std::thread::sleep(Duration::from_millis(attempt.into()));
        file.sync_all().unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 64 << 10).unwrap();
        let tells = is_there();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        tells && !is_there()
    })
}

/// Reads with a thread that may wait, until a thread that must not wait finds everything in memory.
fn read_into_memory<T: PartialEq + Debug>(read: impl Fn() -> T, expected: &T) {
    let in_memory = (0..ATTEMPTS).any(|_| {
        assert_eq!(&Budget::COLD.perform(&read).expect("this thread may wait"), expected);
        match Budget::RESIDENT.perform(&read) {
            Ok(found) => {
                assert_eq!(&found, expected);
                true
            }
            Err(spent) => {
                assert_eq!(spent, BudgetSpent::Disk);
                false
            }
        }
    });
    assert!(in_memory, "the pages do not stay in memory");
}

fn get(backend: &dyn Backend, number: u32, round: u8) {
    assert_eq!(backend.get(&key(number)).unwrap().as_deref(), Some(&[round; 200][..]));
}

/// Reads a page of a scan from a key on.
fn scan(backend: &dyn Backend, from: u32) -> usize {
    let (mut pairs, lower) = (0, key(from));
    let scanned = backend.view().scan(Bound::Included(&lower), Bound::Unbounded, Direction::Forward, &mut |_, _| {
        pairs += 1;
        if pairs == 50 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    scanned.map_or(0, |()| pairs)
}

#[test]
fn a_read_of_redb_ends_at_a_page_on_disk_and_the_database_goes_on() {
    let root = tempfile::tempdir().unwrap();
    fill(&*open_redb(root.path()).0, 1);
    let (backend, file) = open_redb(root.path());
    if !dropped(&file) {
        return;
    }
    let mut ended = 0;
    for number in (0..PAIRS).step_by(2000) {
        // redb may have a page already.
        assert!(dropped(&file));
        for read in [
            Budget::RESIDENT.perform(|| backend.get(&key(number)).map_or(0, |_| 50)),
            Budget::RESIDENT.perform(|| scan(&*backend, number + 1000)),
        ] {
            assert!(matches!(read, Ok(50) | Err(BudgetSpent::Disk)), "key {number}: {read:?}");
            ended += u64::from(read.is_err());
        }
        read_into_memory(|| backend.get(&key(number)).unwrap_or_default().as_deref() == Some(&[1; 200]), &true);
        read_into_memory(|| scan(&*backend, number + 1000), &50);
    }
    assert!(ended >= 10, "{ended} of 20 reads ended at a page on disk");
    // Several threads end reads while others wait and a transaction writes.
    assert!(dropped(&file));
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let backend = &backend;
            scope.spawn(move || {
                for number in (thread..PAIRS).step_by(97) {
                    let begun = Budget::RESIDENT.perform(|| backend.get(&key(number)).map(drop));
                    if begun.is_err() {
                        let found = backend.get(&key(number)).unwrap();
                        assert!(found.is_some_and(|value| value.len() == 200), "key {number}");
                    }
                }
            });
        }
        scope.spawn(|| fill(&*backend, 2));
    });
    assert_eq!(backend.health(), BackendHealth::Good);
    get(&*backend, 7, 2);
    drop(backend);
    let (reopened, _) = open_redb(root.path());
    get(&*reopened, PAIRS - 1, 2);
    assert_eq!(reopened.verify(&mut |_| ControlFlow::Continue(())).unwrap().rows, u64::from(PAIRS));
}

#[test]
fn a_read_of_sqlite_ends_unless_its_file_is_in_memory() {
    let root = tempfile::tempdir().unwrap();
    fill(&*open_sqlite(root.path()).0, 1);
    let (backend, file) = open_sqlite(root.path());
    if !dropped(&file) {
        return;
    }
    for number in (0..PAIRS).step_by(2000) {
        // The kernel reads ahead of the reads below, as far as it likes.
        assert!(dropped(&file));
        let first = Budget::RESIDENT.perform(|| backend.get(&key(number)).map(drop));
        assert_eq!(first.unwrap_err(), BudgetSpent::Disk, "key {number}");
        assert_eq!(Budget::RESIDENT.perform(|| scan(&*backend, number)), Err(BudgetSpent::Disk));
        assert_eq!(Budget::COLD.perform(|| get(&*backend, number, 1)), Ok(()), "this thread may wait");
        assert_eq!(Budget::COLD.perform(|| scan(&*backend, number)), Ok(50));
    }
    let read = |number: u32| Budget::RESIDENT.perform(|| backend.get(&key(number)).map(drop)).is_ok();
    // The kernel may need the memory of a page that was just read, so there are several attempts.
    let is_inline = (0..ATTEMPTS).any(|_| {
        assert!(std::fs::read(&file).unwrap().len() > 4 << 20);
        (0..100).any(read)
    });
    assert!(is_inline, "the file is in memory");
    fill(&*backend, 2);
    assert_eq!(backend.health(), BackendHealth::Good);
    get(&*backend, 7, 2);
}

#[test]
fn reads_of_an_empty_database_do_not_wait() {
    for open in [open_redb, open_sqlite] {
        let root = tempfile::tempdir().unwrap();
        let (backend, file) = open(root.path());
        if read_resident(&File::open(&file).unwrap(), 1, 0).unwrap().is_some() {
            assert!(Budget::RESIDENT.perform(|| backend.get(b"none").unwrap()).is_ok_and(|found| found.is_none()));
        }
    }
}

#[test]
fn a_large_value_in_a_memtable_is_copied_only_within_the_budget() {
    for open in [open_redb, open_sqlite] {
        let root = tempfile::tempdir().unwrap();
        let (backend, _) = open(root.path());
        let mut batch = WriteBatch::new();
        batch.put(&[b"large"], &[&vec![1; 8 << 20]]);
        batch.put(&[b"small"], &[&[1; 100]]);
        backend.apply(&batch, Applied { lsn: Lsn(1), index: Index(1), ..Applied::default() }).unwrap();
        let briefly = |key: &[u8]| Budget::RESIDENT.perform(|| backend.get(key).unwrap().map(|value| value.len()));
        assert_eq!((briefly(b"large"), briefly(b"small")), (Err(BudgetSpent::Steps), Ok(Some(100))));
        assert_eq!(backend.get(b"large").unwrap().map(|value| value.len()), Some(8 << 20));
    }
}

#[test]
fn blocks_that_are_not_in_memory_are_requested_ahead_without_waiting_for_them() {
    let root = tempfile::tempdir().unwrap();
    let open = || {
        let options = LsmOptions::new(root.path().join("state"));
        LsmBackend::open(options, Arc::new(Barrier::default())).unwrap()
    };
    fill(&open(), 1);
    // Blocks of tables that an open finds are not in memory.
    let backend = open();
    let view = backend.view();
    let numbers = (0..PAIRS).step_by(2000);
    let request = || {
        let before = (budget::reads_ahead(), budget::file_reads());
        numbers.clone().for_each(|number| view.read_ahead(&key(number)));
        view.read_ahead(b"z, which is behind all keys");
        assert_eq!(budget::file_reads(), before.1, "nothing is waited for");
        budget::reads_ahead() - before.0
    };
    assert_eq!(request(), numbers.len() as u64);
    numbers.clone().for_each(|number| get(&backend, number, 1));
    assert_eq!(request(), 0, "the blocks are in memory");

    let mut batch = WriteBatch::new();
    batch.put(&[&key(PAIRS)], &[b"v"]);
    backend.apply(&batch, Applied { lsn: Lsn(2), index: Index(2), ..Applied::default() }).unwrap();
    let (view, before) = (backend.view(), budget::reads_ahead());
    view.read_ahead(&key(PAIRS));
    assert_eq!(budget::reads_ahead(), before, "the key is in a memtable");
}
