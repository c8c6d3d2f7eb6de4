//! A write that waits for a disk that does not answer, over the native protocol.

use std::{
    io,
    path::Path,
    sync::{Arc, Condvar, Mutex},
};

use thalweg_disk::{Disk, File, LockGuard, Mapping, SimDisk};
use thalweg_engine::Database;
use thalweg_types::{Durability, KeyspaceId, Revision, SystemClock, command::encode_put};
use thalweg_wire::{Effect, Fields, Get, Level, Ping, Rest, ServerFrame, Values, Write};

use crate::{
    expect,
    support::{Node, config, native::Raw, small_options},
};

/// Whether syncs wait.
#[derive(Debug, Default)]
struct Gate {
    closed: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, closed: bool) {
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

fn put(raw: &mut Raw, id: u32, timeout_micros: Option<u64>, keyspace: KeyspaceId, key: &[u8]) {
    let mut command = Vec::new();
    encode_put(&mut command, keyspace, key, b"v").unwrap();
    let fields = Fields { timeout_micros, ..Fields::default() };
    raw.put_with(id, &fields, &Write { level: Level(Some(Durability::Disk)), command: Rest(&command) });
}

#[tokio::test]
async fn a_durable_write_whose_time_is_up_may_have_happened() {
    let gate = Arc::new(Gate::default());
    let disk = Gated { inner: SimDisk::new(1), gate: Arc::clone(&gate) };
    let config = config();
    let options = small_options(&config);
    let db = Database::open_on(Arc::new(disk), Arc::new(SystemClock::default()), 1, options).unwrap();
    let node = Node::over(config, db).await;
    let (mut raw, mut other) = (node.raw().await, node.raw().await);
    let keyspace = raw.keyspace("k").await;
    // A channel that is alone would commit on the server's only thread, which the gate would stop.
    other.send(0, &Ping { token: 1 }).await;
    expect!(other, 0, ServerFrame::Pong(_) => ());
    gate.set(true);
    put(&mut raw, 1, Some(30_000), keyspace, b"a");
    raw.flush().await;
    let (code, effect) = expect!(raw, 1, ServerFrame::Failed(failed) => (failed.code.to_owned(), failed.effect));
    assert_eq!((code.as_str(), effect), ("timeout", Effect::Unknown));
    // Its id is free again, the channel goes on, and nothing that is not durable is shown.
    let get = Get { keyspace, revision: Revision(0), values: Values::Include, key: Rest(b"a") };
    raw.send(1, &get).await;
    assert_eq!(expect!(raw, 1, ServerFrame::Value(value) => value.revision), Revision(0));
    gate.set(false);
    put(&mut raw, 2, None, keyspace, b"b");
    raw.flush().await;
    expect!(raw, 2, ServerFrame::Committed(_) => ());
    raw.send(1, &get).await;
    assert_eq!(expect!(raw, 1, ServerFrame::Value(value) => value.value.0.to_vec()), b"v", "it did happen");
    node.stop().await;
}
