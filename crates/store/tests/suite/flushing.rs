//! Writes beside a flush that waits.

use std::{
    sync::{Arc, Condvar, Mutex, mpsc},
    thread,
    time::Duration,
};

use thalweg_store::{
    Applied, Backend, BarrierFailed, LogBarrier, WriteBatch,
    lsm::{LsmBackend, LsmOptions},
};
use thalweg_types::{Index, Lsn};

/// A log whose syncs wait until the test opens it.
#[derive(Debug, Default)]
struct SlowLog {
    is_open: Mutex<bool>,
    changed: Condvar,
}

impl SlowLog {
    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl LogBarrier for SlowLog {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        drop(self.changed.wait_while(self.is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
        Ok(())
    }
}

fn put(backend: &LsmBackend, round: u64) {
    let mut batch = WriteBatch::new();
    batch.put(&[b"key"], &[&round.to_be_bytes()]);
    let number = round + 1;
    backend.apply(&batch, Applied { lsn: Lsn(number), index: Index(number), ..Applied::default() }).unwrap();
}

#[test]
fn writes_go_on_while_a_flush_waits_for_room_to_seal_what_they_have_written() {
    const ROUNDS: u64 = 1000;
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(SlowLog::default());
    let options = LsmOptions { memtable_bytes: 1 << 20, max_sealed: 1, ..LsmOptions::new(dir.path().join("state")) };
    let backend = LsmBackend::open(options, log.clone()).unwrap();
    thread::scope(|scope| {
        put(&backend, 0);
        // One flush seals the first write and waits for the log; the other one then finds no room to seal anything.
        scope.spawn(|| backend.flush().unwrap());
        while backend.stats().sealed_memtables == 0 {
            thread::yield_now();
        }
        put(&backend, 1);
        scope.spawn(|| backend.flush().unwrap());
        let (done, written) = mpsc::channel();
        let backend = &backend;
        scope.spawn(move || {
            for round in 2..ROUNDS {
                put(backend, round);
                thread::yield_now();
            }
            done.send(()).unwrap();
        });
        let result = written.recv_timeout(Duration::from_secs(60));
        log.open();
        result.expect("the writes wait for the flush");
    });
    assert_eq!(backend.get(b"key").unwrap().as_deref(), Some(&(ROUNDS - 1).to_be_bytes()[..]));
}
