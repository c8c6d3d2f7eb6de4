//! Tests that readers do not wait for the flushes and compactions that stall the applying thread.

use std::{
    sync::{Arc, Condvar, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use thalweg_state::machine::MachineOptions;
use thalweg_store::{
    Backend, BarrierFailed, LogBarrier,
    lsm::{LsmBackend, LsmOptions},
};
use thalweg_types::{
    Lsn, Offset, SpaceTime,
    command::{self, StreamConfig, groups},
};

use crate::{
    groups::{GROUP, STREAM, append, config, fetch_command},
    support::{Log, apply, command, frame},
};

/// Longest wait for an event that should come immediately.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time without progress after which the applying thread counts as stalled. If it is only slow, the test proves less.
const STALLED: Duration = Duration::from_millis(500);

/// A log that does not become durable, so that no flush ends, until it is opened.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }
}

/// Opens the gate when dropped, so that a failed assertion does not leave the flush waiting.
struct Opens(Arc<Gate>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open();
    }
}

impl LogBarrier for Gate {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        drop(self.1.wait_while(self.0.lock().unwrap(), |open| !*open).unwrap());
        Ok(())
    }
}

#[test]
fn reads_of_groups_do_not_wait_for_a_flush_that_stalls_the_applying_thread() {
    let dir = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    let max_stall = Duration::from_secs(600);
    let options = LsmOptions { memtable_bytes: 64 << 10, max_sealed: 1, max_stall, ..LsmOptions::new(dir.path()) };
    let backend = Arc::new(LsmBackend::open(options, gate.clone()).unwrap());
    let _opens = Opens(gate.clone());
    let mut log = Log::new(1 << 20);
    let machine = Arc::new(log.machine(backend.clone(), MachineOptions::default()));
    let mut entry = |command: Vec<u8>, time| log.entry(&frame(&[command]), SpaceTime(time));
    let create = command(|out| command::encode_create_stream(out, "jobs", &StreamConfig::default()).unwrap());
    let group = command(|out| groups::encode_create_group(out, STREAM, "g", Some(Offset(0)), &config()).unwrap());
    let mut records = vec![entry(create, 1), entry(group, 1), entry(append(STREAM, 2000), 1)];
    // Only entries about the group follow, so that it is one of them that stalls.
    records.extend((0..2000).map(|number| entry(fetch_command(1, "worker"), 2 + number)));
    let last = records.len() as u64;
    let applying = {
        let machine = machine.clone();
        thread::spawn(move || records.iter().for_each(|record| drop(apply(&machine, record))))
    };
    let (mut before, mut since) = (machine.applied().lsn, Instant::now());
    while since.elapsed() < STALLED || backend.stats().sealed_memtables == 0 {
        thread::sleep(Duration::from_millis(1));
        let now = machine.applied().lsn;
        if now != before {
            (before, since) = (now, Instant::now());
        }
    }
    assert!(before.0 < last, "nothing stalled the applying thread");
    let (send, read) = mpsc::channel();
    let reader = {
        let machine = machine.clone();
        thread::spawn(move || drop(send.send(machine.group(GROUP, SpaceTime(10_000)).unwrap().unwrap())))
    };
    let seen = read.recv_timeout(PATIENCE);
    gate.open();
    reader.join().unwrap();
    applying.join().unwrap();
    let seen = seen.expect("the read waited for the flush");
    assert!(seen.delivered < 2000, "{seen:?}");
    assert_eq!(machine.group(GROUP, SpaceTime(10_000)).unwrap().unwrap().delivered, 2000);
}
