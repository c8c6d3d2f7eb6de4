//! A disk whose syncs or reads wait as long as a test requires: for tests of the time between a write and its ack, and
//! of reads that take long.

use std::{
    io,
    path::Path,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use thalweg_disk::{Disk, File, LockGuard, Mapping, SimDisk};
use thalweg_engine::Database;
use thalweg_server::Config;
use thalweg_types::{
    Offset, SpaceTime, SystemClock,
    command::{Compaction, StreamConfig},
    record::{Record, RecordBatch},
};

use super::{Node, PATIENCE, pause};

/// Starts a server over a simulated disk, and returns the gate of its syncs and reads.
pub async fn node() -> (Node, Arc<Gate>) {
    node_with_segments(1 << 20).await
}

/// Starts a server like [`node`], whose log segments have this size in bytes.
pub async fn node_with_segments(segment_bytes: u32) -> (Node, Arc<Gate>) {
    node_with(segment_bytes, |_| ()).await
}

/// Starts a server like [`node`], with this size of log segments in bytes and changes of its configuration.
pub async fn node_with(segment_bytes: u32, change: impl FnOnce(&mut Config)) -> (Node, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let disk = Gated { inner: SimDisk::new(1), gate: Arc::clone(&gate) };
    let mut config = super::config();
    change(&mut config);
    let options = thalweg_engine::Options { segment_bytes, ..super::small_options(&config) };
    let db = Database::open_on(Arc::new(disk), Arc::new(SystemClock::default()), 1, options).unwrap();
    (Node::over(config, db).await, gate)
}

/// Fills the stream `s` with records of few keys and compacts it, so that a search for most of its times reads the log.
/// Returns such a time, and the offset that the search for it finds.
pub fn compacted_stream(db: &Database) -> (SpaceTime, Offset) {
    let compaction = Some(Compaction { tombstone_grace: Duration::from_secs(60) });
    let (stream, _) = db.create_stream("s", &StreamConfig { compaction, ..StreamConfig::default() }).unwrap();
    let mut times = Vec::new();
    for number in 0..20 {
        let (key, mut batch) = (format!("k{}", number % 5), RecordBatch::new());
        batch.push(&Record { key: Some(key.as_bytes()), payload: b"record", ..Record::default() }).unwrap();
        stream.append(&batch).unwrap();
        times.push(stream.info().unwrap().last_time);
    }
    // Only sealed segments are compacted.
    let (filler, mut batch) = (db.stream("filler").unwrap(), RecordBatch::new());
    batch.push_payload(&[7; 64 << 10]).unwrap();
    for _ in 0..48 {
        filler.append(&batch).unwrap();
    }
    let mut dropped = 0;
    for _ in 0..6 {
        db.flush().unwrap();
        dropped += db.maintain().unwrap().compacted_records;
    }
    assert_eq!(dropped, 15);
    let offset = stream.offset_at(times[17]).unwrap();
    assert!(times[0] < times[17] && offset >= Offset(15));
    (times[17], offset)
}

/// Gate of a disk. Syncs and reads wait while it is closed for them.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    holds_syncs: bool,
    holds_reads: bool,
    waiting_reads: usize,
}

impl Gate {
    /// Closes or opens the gate for syncs.
    pub fn set(&self, closed: bool) {
        self.state.lock().unwrap().holds_syncs = closed;
        self.changed.notify_all();
    }

    /// Closes or opens the gate for reads.
    pub fn hold_reads(&self, closed: bool) {
        self.state.lock().unwrap().holds_reads = closed;
        self.changed.notify_all();
    }

    /// Returns the number of reads that wait at the gate.
    pub fn waiting_reads(&self) -> usize {
        self.state.lock().unwrap().waiting_reads
    }

    /// Waits until so many reads wait at the gate.
    pub async fn until_reads_wait(&self, wanted: usize) {
        let wait = async {
            while self.waiting_reads() != wanted {
                pause().await;
            }
        };
        let reached = tokio::time::timeout(PATIENCE, wait).await;
        reached.unwrap_or_else(|_| panic!("{} reads wait at the gate, not {wanted}", self.waiting_reads()));
    }

    fn holds_reads(&self) -> bool {
        self.state.lock().unwrap().holds_reads
    }

    fn pass_sync(&self) {
        drop(self.changed.wait_while(self.state.lock().unwrap(), |state| state.holds_syncs).unwrap());
    }

    fn pass_read(&self) {
        let mut state = self.state.lock().unwrap();
        state.waiting_reads += 1;
        state = self.changed.wait_while(state, |state| state.holds_reads).unwrap();
        state.waiting_reads -= 1;
    }
}

/// A disk whose syncs and reads wait at a gate.
#[derive(Debug)]
struct Gated<T> {
    inner: T,
    gate: Arc<Gate>,
}

impl Gated<SimDisk> {
    fn file(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(Gated { inner: file, gate: Arc::clone(&self.gate) })
    }
}

impl Disk for Gated<SimDisk> {
    fn open(&self, path: &str) -> io::Result<Arc<dyn File>> {
        self.inner.open(path).map(|file| self.file(file))
    }
    fn create(&self, path: &str) -> io::Result<Arc<dyn File>> {
        self.inner.create(path).map(|file| self.file(file))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        self.inner.remove(path)
    }
    fn create_dir(&self, path: &str) -> io::Result<()> {
        self.inner.create_dir(path)
    }
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.inner.list(dir)
    }
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.inner.free_bytes()
    }
    fn lock(&self, path: &str) -> io::Result<Box<dyn LockGuard>> {
        self.inner.lock(path)
    }
    fn os_path(&self) -> Option<&Path> {
        self.inner.os_path()
    }
}

impl File for Gated<Arc<dyn File>> {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.gate.pass_read();
        self.inner.read_exact_at(buf, offset)
    }
    /// While reads wait, nothing is in memory.
    fn read_resident_at(&self, len: usize, offset: u64) -> io::Result<Option<Vec<u8>>> {
        if self.gate.holds_reads() { Ok(None) } else { self.inner.read_resident_at(len, offset) }
    }
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.inner.write_all_at(data, offset)
    }
    fn write_all_vectored_at(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.inner.write_all_vectored_at(parts, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.gate.pass_sync();
        self.inner.sync_data()
    }
    fn sync_all(&self) -> io::Result<()> {
        self.inner.sync_all()
    }
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
    fn map(&self, len: u64) -> io::Result<Box<dyn Mapping>> {
        self.inner.map(len)
    }
}
