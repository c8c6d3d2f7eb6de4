//! A directory can be opened again as soon as the last handle of its database, and of its snapshots, is dropped.

use std::{
    io,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use thalweg_disk::{Disk, SimDisk};
use thalweg_engine::{
    BackendKind, Database,
    snapshot::{Compression, SnapshotOptions},
};

use crate::common::{
    clock,
    hooked::{Hook, HookedDisk},
    small,
};

/// Longest wait for another thread. Reaching it is a failure.
const BOUND: Duration = Duration::from_secs(120);
/// Length of the value whose reads wait.
const HELD_BYTES: usize = 5000;

/// A gate at which reads of [`HELD_BYTES`] bytes wait, until somebody waits for the lock of the log.
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

impl Hook for Gate {
    fn reads(&self, bytes: usize) {
        if bytes != HELD_BYTES {
            return;
        }
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.is_open).unwrap());
    }

    fn waits_for(&self, lock: &str, patience: Duration) -> Duration {
        assert!(lock == "log/LOCK" && patience >= Duration::from_secs(1), "the open waits");
        self.open();
        // On a busy machine the threads of a snapshot may get processor time late.
        BOUND
    }
}

/// Opens the gate when the test fails, so that the threads of the snapshot end.
struct OpenAtEnd(Arc<Gate>);

impl Drop for OpenAtEnd {
    fn drop(&mut self) {
        self.0.open();
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
    let gate = Arc::<Gate>::default();
    let _open_at_end = OpenAtEnd(Arc::clone(&gate));
    let disk = SimDisk::new(1);
    let hooked = HookedDisk { disk: disk.clone(), hook: Arc::clone(&gate) as _ };
    let open = || Database::open_on(Arc::new(hooked.clone()), clock(), 5, small(BackendKind::Memory));
    let db = open().unwrap();
    fill(&db);
    let mut snapshot = db.snapshot(&tiny_chunks()).unwrap();
    while snapshot.next_chunk().unwrap().unwrap().len() < 3000 {}
    gate.wait_for_a_read();
    drop(snapshot);
    drop(db);
    assert_eq!(disk.lock("log/LOCK").unwrap_err().kind(), io::ErrorKind::WouldBlock, "the thread still reads");
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
