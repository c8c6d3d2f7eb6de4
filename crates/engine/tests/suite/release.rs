//! A directory can be opened again as soon as the last handle of its database, and of its snapshots, is dropped.

use std::{
    io::{self, IoSlice},
    path::Path,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use thalweg_disk::{Disk, File, LockGuard, Mapping, SimDisk};
use thalweg_engine::{
    BackendKind, Database,
    snapshot::{Compression, SnapshotOptions},
};

use crate::common::{clock, small};

/// Longest wait for another thread. Reaching it is a failure.
const BOUND: Duration = Duration::from_secs(120);
/// Length of the value whose reads wait.
const HELD_BYTES: usize = 5000;

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    is_open: bool,
    waiting: usize,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.is_open).unwrap());
    }

    fn open(&self) {
        self.state.lock().unwrap().is_open = true;
        self.changed.notify_all();
    }

    fn wait_for_a_read(&self) {
        let state = self.state.lock().unwrap();
        let (state, _) = self.changed.wait_timeout_while(state, BOUND, |state| state.waiting == 0).unwrap();
        assert!(state.waiting > 0, "nothing reads the value");
    }
}

/// Opens the gate when the test fails, so that the threads of the snapshot end.
struct OpenAtEnd(Arc<Gate>);

impl Drop for OpenAtEnd {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// A disk on which reads of [`HELD_BYTES`] bytes wait, until somebody wants the lock of the log although it is held.
#[derive(Clone, Debug)]
struct Gated {
    disk: SimDisk,
    gate: Arc<Gate>,
}

impl Gated {
    fn file(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(GatedFile { file, gate: Arc::clone(&self.gate) })
    }
}

impl Disk for Gated {
    fn open(&self, path: &str) -> io::Result<Arc<dyn File>> {
        self.disk.open(path).map(|file| self.file(file))
    }
    fn create(&self, path: &str) -> io::Result<Arc<dyn File>> {
        self.disk.create(path).map(|file| self.file(file))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn create_dir(&self, path: &str) -> io::Result<()> {
        self.disk.create_dir(path)
    }
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }
    fn lock(&self, path: &str) -> io::Result<Box<dyn LockGuard>> {
        self.disk.lock(path)
    }
    fn lock_within(&self, path: &str, patience: Duration) -> io::Result<Box<dyn LockGuard>> {
        match self.disk.lock(path) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && path == "log/LOCK" => {
                assert!(patience >= Duration::from_secs(1), "the open waits");
                self.gate.open();
                // On a busy machine the threads of a snapshot may get processor time late.
                self.disk.lock_within(path, BOUND)
            }
            taken => taken,
        }
    }
    fn os_path(&self) -> Option<&Path> {
        None
    }
}

#[derive(Debug)]
struct GatedFile {
    file: Arc<dyn File>,
    gate: Arc<Gate>,
}

impl File for GatedFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }
    fn read_new_at(&self, len: usize, offset: u64) -> io::Result<Vec<u8>> {
        if len == HELD_BYTES {
            self.gate.pass();
        }
        self.file.read_new_at(len, offset)
    }
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }
    fn write_all_vectored_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.file.write_all_vectored_at(parts, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn map(&self, len: u64) -> io::Result<Box<dyn Mapping>> {
        self.file.map(len)
    }
}

/// Writes values that stay in the log. Reads of the third one wait at a gate.
fn fill(db: &Database) {
    let keyspace = db.keyspace("k").unwrap();
    for number in 0..20_u8 {
        keyspace.put(&[number], &vec![number; if number == 2 { HELD_BYTES } else { 3000 }]).unwrap();
    }
}

/// A row to a chunk, in the order of the rows.
fn tiny_chunks() -> SnapshotOptions {
    SnapshotOptions { chunk_bytes: 1, compression: Compression::None, ..SnapshotOptions::default() }
}

#[test]
fn an_open_waits_for_a_snapshot_that_was_dropped_while_it_read() {
    let gated = Gated { disk: SimDisk::new(1), gate: Arc::default() };
    let _open_at_end = OpenAtEnd(Arc::clone(&gated.gate));
    let open = || Database::open_on(Arc::new(gated.clone()), clock(), 5, small(BackendKind::Memory));
    let db = open().unwrap();
    fill(&db);
    let mut snapshot = db.snapshot(&tiny_chunks()).unwrap();
    while snapshot.next_chunk().unwrap().unwrap().len() < 3000 {}
    gated.gate.wait_for_a_read();
    drop(snapshot);
    drop(db);
    assert_eq!(gated.disk.lock("log/LOCK").unwrap_err().kind(), io::ErrorKind::WouldBlock, "the thread still reads");
    let db = open().unwrap();
    assert_eq!(db.find_keyspace("k").unwrap().get(&[2]).unwrap().unwrap().value.len(), HELD_BYTES);
}

#[test]
fn a_snapshot_that_was_read_to_its_end_holds_nothing() {
    let disk = SimDisk::new(1);
    for _ in 0..100 {
        let db = Database::open_on(Arc::new(disk.clone()), clock(), 5, small(BackendKind::Memory)).unwrap();
        db.keyspace("k").unwrap().put(b"key", &[1; 3000]).unwrap();
        let since = db.stats().applied_lsn;
        db.keyspace("k").unwrap().put(b"key", &[2; 3000]).unwrap();
        for since in [None, Some(since)] {
            db.snapshot(&SnapshotOptions { since, ..tiny_chunks() }).unwrap().into_bytes().unwrap();
        }
        drop(db);
        // Without waiting.
        drop((disk.lock("LOCK").unwrap(), disk.lock("log/LOCK").unwrap()));
    }
}
