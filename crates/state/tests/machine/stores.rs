//! Every backend, each on a disk that outlives its machines.

use std::sync::Arc;

use thalweg_disk::{Disk, SimDisk};
use thalweg_store::{
    BarrierFailed, BufferOptions, LogBarrier,
    lsm::{LsmBackend, LsmOptions},
    memory::{MemoryBackend, MemoryOptions},
    redb::{RedbBackend, RedbOptions},
    sqlite::{SqliteBackend, SqliteOptions},
};
use thalweg_types::Lsn;

use crate::random::node::Open;

/// A barrier of a log that is always durable.
struct Durable;

impl LogBarrier for Durable {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        Ok(())
    }
}

/// A backend's name, and a function that creates a disk for it.
type Store = (&'static str, fn() -> Open);

/// The backends with a file format, by name.
pub const STORES: [Store; 4] = [("memory", on_memory), ("lsm", on_lsm), ("redb", on_redb), ("sqlite", on_sqlite)];

fn small_buffer() -> BufferOptions {
    BufferOptions { memtable_bytes: 1 << 20, ..BufferOptions::default() }
}

fn on_memory() -> Open {
    let disk = Arc::new(SimDisk::new(1));
    let open = move || MemoryBackend::open(disk.clone(), MemoryOptions::default(), Arc::new(Durable)).unwrap();
    Box::new(move || Arc::new(open()))
}

fn on_lsm() -> Open {
    let dir = tempfile::tempdir().unwrap();
    Box::new(move || {
        let options = LsmOptions { memtable_bytes: 1 << 20, cache_bytes: 1 << 20, ..LsmOptions::new(dir.path()) };
        Arc::new(LsmBackend::open(options, Arc::new(Durable)).unwrap())
    })
}

fn on_redb() -> Open {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    Box::new(move || {
        let options = RedbOptions { cache_bytes: 1 << 20, buffer: small_buffer(), ..RedbOptions::default() };
        Arc::new(RedbBackend::open(&disk, options, Arc::new(Durable)).unwrap())
    })
}

fn on_sqlite() -> Open {
    let dir = tempfile::tempdir().unwrap();
    Box::new(move || {
        let options = SqliteOptions { cache_bytes: 1 << 20, buffer: small_buffer(), ..SqliteOptions::new(dir.path()) };
        Arc::new(SqliteBackend::open(options, Arc::new(Durable)).unwrap())
    })
}
