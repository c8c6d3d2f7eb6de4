//! A disk whose syncs wait as long as a test requires, for tests of the time between a write and its ack.

use std::{
    io,
    path::Path,
    sync::{Arc, Condvar, Mutex},
};

use thalweg_disk::{Disk, File, LockGuard, Mapping, SimDisk};
use thalweg_engine::Database;
use thalweg_types::SystemClock;

use super::Node;

/// Starts a server over a simulated disk, and returns the gate of its syncs.
pub async fn node() -> (Node, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let disk = Gated { inner: SimDisk::new(1), gate: Arc::clone(&gate) };
    let config = super::config();
    let options = super::small_options(&config);
    let db = Database::open_on(Arc::new(disk), Arc::new(SystemClock::default()), 1, options).unwrap();
    (Node::over(config, db).await, gate)
}

/// Gate of a disk. Syncs wait while it is closed.
#[derive(Debug, Default)]
pub struct Gate {
    closed: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    pub fn set(&self, closed: bool) {
        *self.closed.lock().unwrap() = closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        drop(self.changed.wait_while(self.closed.lock().unwrap(), |closed| *closed).unwrap());
    }
}

/// A disk whose syncs wait at a gate.
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
        self.inner.read_exact_at(buf, offset)
    }
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.inner.write_all_at(data, offset)
    }
    fn write_all_vectored_at(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.inner.write_all_vectored_at(parts, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.gate.pass();
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
