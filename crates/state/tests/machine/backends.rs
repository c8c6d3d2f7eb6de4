//! Tests that every backend under the machine has the same map and returns the same results, across flushes and
//! restarts that lose unpersisted changes.

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use thalweg_disk::{Disk, SimDisk};
use thalweg_state::machine::MachineOptions;
use thalweg_store::{
    Backend, BarrierFailed, BufferOptions, Direction, LogBarrier,
    lsm::{LsmBackend, LsmOptions},
    memory::{MemoryBackend, MemoryOptions},
    redb::{RedbBackend, RedbOptions},
    sqlite::{SqliteBackend, SqliteOptions},
};
use thalweg_types::Lsn;

use crate::{
    model::{check_everything, step},
    support::{Bench, Map, apply},
    workload::{Model, Rng, for_seeds},
};

/// A barrier of a log that is always durable.
struct Durable;

impl LogBarrier for Durable {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        Ok(())
    }
}

/// Returns the machine's part of a backend's map.
fn dump(backend: &dyn Backend) -> Map {
    let mut map = Map::new();
    let visit = &mut |key: &[u8], value: &[u8]| {
        map.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    };
    backend.view().scan(Bound::Included(&[0x01]), Bound::Excluded(&[0xf0]), Direction::Forward, visit).unwrap();
    map
}

/// Applies a workload to the backend that `open` returns, reopens it occasionally, and compares the maps.
fn same_as_a_map(seed: u64, open: &dyn Fn() -> Arc<dyn Backend>) {
    let options = MachineOptions { inline_value_bytes: 24 };
    let mut rng = Rng(seed);
    let (mut bench, mut model) = (Bench::new(options), Model::default());
    (0..300).for_each(|_| step(&mut bench, &mut model, &mut rng));
    let open_machine = || {
        let backend = open();
        (bench.log.machine(backend.clone(), options), backend)
    };
    let (mut machine, mut backend) = open_machine();
    let mut restarts = 0;
    while let Some(record) = bench.log.records.get(machine.applied().lsn.0 as usize) {
        apply(&machine, record);
        match rng.below(60) {
            0..2 => drop(backend.flush().unwrap()),
            2 if restarts < 10 => {
                restarts += 1;
                drop(machine);
                drop(backend);
                (machine, backend) = open_machine();
            }
            _ => {}
        }
    }
    assert_eq!(dump(&*backend), bench.backend.dump());
    bench.machine = machine;
    check_everything(&bench, &model, &mut rng);
    backend.flush().unwrap();
    drop((bench.machine, backend));
    (bench.machine, _) = open_machine();
    assert_eq!(bench.machine.applied(), bench.backend.applied().unwrap());
    (0..5).for_each(|_| check_everything(&bench, &model, &mut rng));
}

#[test]
fn the_memory_backend_holds_the_same() {
    for_seeds(6, |seed| {
        let disk = Arc::new(SimDisk::new(seed));
        let open = || MemoryBackend::open(disk.clone(), MemoryOptions::default(), Arc::new(Durable)).unwrap();
        same_as_a_map(seed, &|| Arc::new(open()));
    });
}

#[test]
fn the_lsm_backend_holds_the_same() {
    for_seeds(6, |seed| {
        let dir = tempfile::tempdir().unwrap();
        let options = || LsmOptions { memtable_bytes: 1 << 20, cache_bytes: 1 << 20, ..LsmOptions::new(dir.path()) };
        same_as_a_map(seed, &|| Arc::new(LsmBackend::open(options(), Arc::new(Durable)).unwrap()));
    });
}

fn small_buffer() -> BufferOptions {
    BufferOptions { memtable_bytes: 1 << 20, ..BufferOptions::default() }
}

#[test]
fn the_redb_backend_holds_the_same() {
    for_seeds(6, |seed| {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(seed));
        let options = || RedbOptions { cache_bytes: 1 << 20, buffer: small_buffer(), ..RedbOptions::default() };
        same_as_a_map(seed, &|| Arc::new(RedbBackend::open(&disk, options(), Arc::new(Durable)).unwrap()));
    });
}

#[test]
fn the_sqlite_backend_holds_the_same() {
    for_seeds(6, |seed| {
        let dir = tempfile::tempdir().unwrap();
        let options =
            || SqliteOptions { cache_bytes: 1 << 20, buffer: small_buffer(), ..SqliteOptions::new(dir.path()) };
        same_as_a_map(seed, &|| Arc::new(SqliteBackend::open(options(), Arc::new(Durable)).unwrap()));
    });
}
