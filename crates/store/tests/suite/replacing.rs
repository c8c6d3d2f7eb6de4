//! A backend that continues with the state of another one, while readers run.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use thalweg_disk::{Disk, RealDisk};
use thalweg_store::{
    Applied, Backend, BackendError, BufferOptions, SyncMode, WriteBatch,
    lsm::{LsmBackend, LsmOptions},
    memory::{MemoryBackend, MemoryOptions},
    redb::{RedbBackend, RedbOptions},
    sqlite::{SqliteBackend, SqliteOptions},
};
use thalweg_types::{Index, Lsn};

use crate::backend_support::Barrier;

const KINDS: [&str; 4] = ["memory", "lsm", "redb", "sqlite"];
/// Number of pairs in each state; enough for several flushes.
const PAIRS: u32 = 4000;

fn open(kind: &str, root: &Path, dir: &str) -> Box<dyn Backend> {
    let barrier = Arc::new(Barrier::default());
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(root).unwrap());
    let buffer = BufferOptions { sync: SyncMode::BehindLog, memtable_bytes: 32 * 1024, ..BufferOptions::default() };
    match kind {
        "memory" => {
            let options = MemoryOptions { dir: dir.to_owned(), ..MemoryOptions::default() };
            Box::new(MemoryBackend::open(disk, options, barrier).unwrap())
        }
        "lsm" => {
            let options = LsmOptions { memtable_bytes: 32 * 1024, ..LsmOptions::new(root.join(dir)) };
            Box::new(LsmBackend::open(options, barrier).unwrap())
        }
        "redb" => {
            let options = RedbOptions { dir: dir.to_owned(), buffer, ..RedbOptions::default() };
            Box::new(RedbBackend::open(&disk, options, barrier).unwrap())
        }
        _ => {
            let options = SqliteOptions { buffer, ..SqliteOptions::new(root.join(dir)) };
            Box::new(SqliteBackend::open(options, barrier).unwrap())
        }
    }
}

/// Number of pairs in a batch.
const BATCH: u32 = 100;

/// Position after all batches with the value `number`.
fn position(number: u64) -> Applied {
    position_after(number, PAIRS - BATCH)
}

fn position_after(number: u64, first: u32) -> Applied {
    let position = number * u64::from(PAIRS) + u64::from(first);
    Applied { lsn: Lsn(position), index: Index(position), ..Applied::default() }
}

/// Fills a backend with pairs whose value is `number`.
fn fill(backend: &dyn Backend, number: u64) {
    for first in (0..PAIRS).step_by(BATCH as usize) {
        let mut batch = WriteBatch::new();
        for key in first..first + BATCH {
            batch.put(&[&key.to_be_bytes()], &[&number.to_le_bytes()]);
        }
        backend.apply(&batch, position_after(number, first)).unwrap();
    }
}

fn value(bytes: Option<bytes::Bytes>) -> u64 {
    u64::from_le_bytes(bytes.unwrap()[..].try_into().unwrap())
}

/// Returns the values of all pairs in a view, without repetitions that follow each other.
fn values(view: &dyn thalweg_store::View) -> (u32, Vec<u64>) {
    let (mut count, mut values) = (0, Vec::new());
    view.scan_once(std::ops::Bound::Unbounded, &mut |_, bytes| {
        count += 1;
        values.push(u64::from_le_bytes(bytes.try_into().unwrap()));
        values.dedup();
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    (count, values)
}

#[test]
fn readers_see_the_former_state_or_the_new_one_and_never_go_back() {
    for kind in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let backend: Arc<dyn Backend> = open(kind, dir.path(), "old").into();
        fill(&*backend, 1);
        backend.flush().unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let read = || {
                let (mut seen, mut rounds) = (1, 0_u64);
                let mut key = 0_u32;
                while !stop.load(Ordering::Relaxed) || seen < 9 {
                    key = (key + 7) % PAIRS;
                    let view = backend.view();
                    let in_view = value(view.get(&key.to_be_bytes()).unwrap());
                    assert_eq!(view.applied(), position(in_view), "{kind}");
                    let got = value(backend.get(&key.to_be_bytes()).unwrap());
                    let applied = backend.applied().unwrap().index.0 / u64::from(PAIRS);
                    assert!(seen <= in_view && in_view <= got && got <= applied, "{kind}: {seen} {in_view} {got}");
                    seen = applied;
                    rounds += 1;
                }
                rounds
            };
            let readers = [scope.spawn(read), scope.spawn(read)];
            for number in 2..10 {
                let other = open(kind, dir.path(), &format!("new-{number}"));
                fill(&*other, number);
                drop(backend.replace_with(&*other).unwrap());
            }
            stop.store(true, Ordering::Relaxed);
            for reader in readers {
                assert!(reader.join().unwrap() > 0);
            }
        });
        assert_eq!(values(&*backend.view()), (PAIRS, vec![9]), "{kind}");
    }
}

#[test]
fn a_view_stays_valid_after_the_files_of_its_state_are_removed_and_the_new_state_is_persisted() {
    for kind in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let backend = open(kind, dir.path(), "old");
        fill(&*backend, 1);
        backend.flush().unwrap();
        let views = [backend.view(), backend.view()];
        let other = open(kind, dir.path(), "new");
        fill(&*other, 2);
        other.flush().unwrap();
        drop(backend.replace_with(&*other).unwrap());
        drop(other);
        fs::remove_dir_all(dir.path().join("old")).unwrap();
        assert_eq!((backend.applied(), backend.persisted()), (Some(position(2)), Some(position(2))), "{kind}");
        thread::scope(|scope| {
            for view in &views {
                scope.spawn(|| assert_eq!(values(&**view), (PAIRS, vec![1]), "{kind}"));
            }
        });
        drop(views);
        fill(&*backend, 3);
        assert_eq!(backend.flush().unwrap(), Some(position(3)), "{kind}");
        assert!(backend.verify(&mut |_| std::ops::ControlFlow::Continue(())).unwrap().is_complete, "{kind}");
        assert!(!dir.path().join("old").exists(), "{kind}: nothing is written to the former directory");
        drop(backend);
        let again = open(kind, dir.path(), "new");
        assert_eq!(again.persisted(), Some(position(3)), "{kind}");
        assert_eq!(values(&*again.view()), (PAIRS, vec![3]), "{kind}");
    }
}

#[test]
fn a_backend_of_another_kind_and_itself_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let all: Vec<_> = KINDS.iter().map(|kind| open(kind, dir.path(), kind)).collect();
    for (number, backend) in all.iter().enumerate() {
        fill(&**backend, number as u64);
        for other in &all {
            let error = backend.replace_with(&**other).unwrap_err();
            assert!(matches!(error, BackendError::OtherKind { kind } if kind == backend.name()), "{error}");
        }
        assert_eq!(values(&*backend.view()), (PAIRS, vec![number as u64]));
    }
}
