//! Behaviour of the backends when the disk, the log or the power fails.

use std::{
    ops::{Bound, ControlFlow},
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use thalweg_disk::{
    Disk, SimDisk,
    sim::{Errno, Fault, Operation, PowerLoss},
};
use thalweg_store::{
    Applied, Backend, BackendError, BarrierFailed, Direction, LogBarrier, WriteBatch,
    lsm::{LsmBackend, LsmOptions},
    memory::{MemoryBackend, MemoryOptions},
};
use thalweg_types::{Classified, Index, Lsn};

use crate::backend_support::{Barrier, Harness, LsmHarness, Random};

const CHECKPOINT: &str = "state/default/checkpoint";

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn applied(number: u64) -> Applied {
    Applied { lsn: Lsn(number), index: Index(number), ..Applied::default() }
}

fn open_memory(disk: &SimDisk) -> Result<MemoryBackend, BackendError> {
    MemoryBackend::open(Arc::new(disk.clone()), MemoryOptions::default(), Arc::new(Barrier::default()))
}

/// Applies one batch that puts the same value under several keys. The value identifies the batch.
fn put_round(backend: &dyn Backend, number: u64, keys: u64, value_bytes: usize) -> Result<(), BackendError> {
    let mut batch = WriteBatch::new();
    for key in 0..keys {
        batch.put(&[&key.to_be_bytes()], &[&number.to_le_bytes(), &vec![number as u8; value_bytes]]);
    }
    backend.apply(&batch, applied(number))
}

fn scan(backend: &dyn Backend) -> Result<Pairs, BackendError> {
    let mut pairs = Vec::new();
    backend.view().scan(Bound::Unbounded, Bound::Unbounded, Direction::Forward, &mut |key, value| {
        pairs.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })?;
    Ok(pairs)
}

/// Asserts that the state is exactly the result of round `number`.
fn assert_round(backend: &dyn Backend, number: u64, keys: u64, what: &str) {
    let pairs = scan(backend).unwrap();
    assert_eq!(pairs.len() as u64, keys, "{what}");
    assert!(pairs.iter().all(|(_, value)| value[..8] == number.to_le_bytes()), "{what}");
}

#[test]
fn power_loss_at_any_operation_leaves_the_old_or_the_new_checkpoint() {
    for keys in [3, 900] {
        let prepare = || {
            let disk = SimDisk::new(7);
            let backend = open_memory(&disk).unwrap();
            put_round(&backend, 1, keys, 100).unwrap();
            backend.flush().unwrap();
            put_round(&backend, 2, keys, 100).unwrap();
            (disk, backend)
        };
        let (disk, backend) = prepare();
        let before = disk.operations();
        backend.flush().unwrap();
        let operations = disk.operations() - before;
        assert!(operations >= 6, "create, writes, sync, rename, sync of the directory");
        for after in 0..=operations {
            let (disk, backend) = prepare();
            disk.power_off_after(after);
            let flushed = backend.flush().is_ok();
            for seed in 0..12 {
                let what = format!("{keys} keys, power off after {after} of {operations}, seed {seed}");
                let disk = disk.power_loss(seed);
                let backend = open_memory(&disk).unwrap_or_else(|error| panic!("{what}: {error}"));
                let number = backend.persisted().expect("one of the two checkpoints").index.0;
                assert!(number == 2 || (number == 1 && !flushed), "{what}: found {number}");
                assert_round(&backend, number, keys, &what);
                assert_eq!(disk.list("state/default").unwrap(), ["checkpoint"], "{what}");
            }
        }
    }
}

/// The log is freed up to the checkpoint that an open reports. A process that was killed after the rename of that
/// checkpoint has not synced its name.
#[test]
fn the_checkpoint_that_an_open_finds_after_a_kill_survives_a_power_loss() {
    let mut found = Vec::new();
    for after in 0..12 {
        let disk = SimDisk::new(7);
        let backend = open_memory(&disk).unwrap();
        put_round(&backend, 1, 3, 100).unwrap();
        backend.flush().unwrap();
        put_round(&backend, 2, 3, 100).unwrap();
        disk.power_off_after(after);
        drop(backend.flush());
        let killed = disk.kill_process();
        let persisted = open_memory(&killed).unwrap().persisted();
        let lost = killed.after_power_loss_with(PowerLoss::LoseUnsynced);
        assert_eq!(open_memory(&lost).unwrap().persisted(), persisted, "killed after {after} operations");
        found.push(persisted);
    }
    assert_eq!((found.first(), found.last()), (Some(&Some(applied(1))), Some(&Some(applied(2)))));
}

#[test]
fn a_damaged_checkpoint_is_an_error_and_never_other_data() {
    for (keys, value_bytes) in [(4, 10), (2, 90_000)] {
        let disk = SimDisk::new(1);
        let backend = open_memory(&disk).unwrap();
        put_round(&backend, 1, keys, value_bytes).unwrap();
        backend.flush().unwrap();
        drop(backend);
        let len = disk.open(CHECKPOINT).unwrap().len().unwrap();
        let step = (len / 500).max(1);
        for offset in (0..len).filter(|offset| offset % step == 0 || len - offset < 40) {
            let bit = (offset % 8) as u8;
            disk.flip_bit(CHECKPOINT, offset, bit).unwrap();
            let error = open_memory(&disk).expect_err("a flipped bit is detected");
            assert_eq!(error.code(), "state_corrupt", "byte {offset}: {error}");
            disk.flip_bit(CHECKPOINT, offset, bit).unwrap();
            let shorter = disk.kill_process();
            shorter.open(CHECKPOINT).unwrap().set_len(offset).unwrap();
            assert_eq!(open_memory(&shorter).expect_err("a cut is noticed").code(), "state_corrupt", "cut at {offset}");
        }
        disk.open(CHECKPOINT).unwrap().write_all_at(&[0], len).unwrap();
        assert_eq!(open_memory(&disk).expect_err("bytes after the end are detected").code(), "state_corrupt");
    }
}

#[test]
fn a_checkpoint_that_fails_leaves_the_old_one_and_can_be_tried_again() {
    for operation in [Operation::Write, Operation::Sync] {
        let disk = SimDisk::new(3);
        let backend = open_memory(&disk).unwrap();
        put_round(&backend, 1, 5, 10).unwrap();
        backend.flush().unwrap();
        put_round(&backend, 2, 5, 10).unwrap();
        disk.fail(Fault::new(operation, 1, Errno::Io));
        assert_eq!(backend.flush().unwrap_err().code(), "state_io");
        assert_eq!(backend.persisted(), Some(applied(1)));
        assert_round(&open_memory(&disk.power_loss(9)).unwrap(), 1, 5, "the old checkpoint is complete");
        assert_eq!(backend.flush().unwrap(), Some(applied(2)), "a new file is written from the start");
        assert_round(&open_memory(&disk.power_loss(9)).unwrap(), 2, 5, "the new checkpoint is complete");
    }
}

#[test]
fn memory_maintain_writes_a_checkpoint_when_enough_has_gathered() {
    let disk = SimDisk::new(1);
    let options = MemoryOptions { checkpoint_bytes: 5_000, ..MemoryOptions::default() };
    let backend = MemoryBackend::open(Arc::new(disk), options, Arc::new(Barrier::default())).unwrap();
    put_round(&backend, 1, 10, 100).unwrap();
    backend.maintain().unwrap();
    assert_eq!(backend.persisted(), None);
    for number in 2..6 {
        put_round(&backend, number, 10, 100).unwrap();
    }
    backend.maintain().unwrap();
    assert_eq!(backend.persisted(), Some(applied(5)));
}

#[test]
fn lsm_maintain_flushes_when_replay_would_take_long() {
    let mut harness = LsmHarness::new();
    let backend = harness.open();
    for number in 1..=20 {
        put_round(&*backend, number, 1, 1).unwrap();
        backend.maintain().unwrap();
        assert_eq!(backend.persisted(), None);
    }
    put_round(&*backend, 21, 1, 1).unwrap();
    backend.maintain().unwrap();
    assert_eq!(backend.persisted(), Some(applied(21)));
}

#[test]
fn after_a_failed_flush_writes_go_on_up_to_the_bound_and_reads_beyond() {
    let harness = LsmHarness::new();
    let barrier = Arc::new(Barrier::default());
    barrier.fail();
    let backend = LsmBackend::open(harness.options(), barrier).unwrap();
    let mut number = 0;
    let error = loop {
        number += 1;
        if let Err(error) = put_round(&backend, number, 20, 100) {
            break error;
        }
        assert!(number < 1_000, "the bound was never reached");
    };
    assert_eq!(error.code(), "state_failed", "{error}");
    let stats = backend.stats();
    assert_eq!(stats.sealed_memtables as usize, harness.options().max_sealed);
    assert!(stats.memory_bytes < 6 * 32 * 1024 + 100_000, "{stats:?}");
    assert_eq!(backend.flush().unwrap_err().code(), "log_failed");
    assert_eq!(backend.persisted(), None);
    assert_round(&backend, number - 1, 20, "reads continue, over whole batches");
}

/// A log whose sync blocks until the test opens it.
#[derive(Default)]
struct SlowLog {
    open: Mutex<bool>,
    changed: Condvar,
}

impl SlowLog {
    fn let_go(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl LogBarrier for SlowLog {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        let open = self.open.lock().unwrap();
        drop(self.changed.wait_while(open, |open| !*open).unwrap());
        Ok(())
    }
}

#[test]
fn a_write_that_outruns_flushes_waits_and_is_counted() {
    let harness = LsmHarness::new();
    let log = Arc::new(SlowLog::default());
    let backend = LsmBackend::open(harness.options(), log.clone()).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 1..=200 {
                put_round(&backend, number, 20, 100).unwrap();
            }
        });
        while backend.stats().sealed_memtables < harness.options().max_sealed as u64 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let view = backend.view();
        log.let_go();
        writer.join().unwrap();
        assert!(view.applied().index.0 < 200);
    });
    backend.flush().unwrap();
    assert_round(&backend, 200, 20, "all batches were applied");
    let stats = backend.stats();
    assert!(stats.flushes > 3 && stats.sealed_memtables == 0, "{stats:?}");
}

#[test]
fn a_write_does_not_wait_for_ever() {
    let harness = LsmHarness::new();
    let log = Arc::new(SlowLog::default());
    let options = LsmOptions { max_stall: Duration::from_millis(20), ..harness.options() };
    let backend = LsmBackend::open(options, log.clone()).unwrap();
    let error = (1..1_000).find_map(|number| put_round(&backend, number, 20, 100).err()).expect("the bound");
    assert_eq!(error.code(), "state_failed", "{error}");
    assert!(error.to_string().contains("did not catch up"), "{error}");
    let stats = backend.stats();
    assert!(stats.stalls >= 1 && stats.stall_micros >= 20_000, "{stats:?}");
    assert!(backend.get(&1u64.to_be_bytes()).unwrap().is_some());
    log.let_go();
}

/// Pauses of flushes and compactions are skipped before any backlog exceeds its bound.
#[test]
fn memtables_and_level_0_stay_bounded_while_somebody_writes_without_pause() {
    /// Runs on level 0 at which writes wait; at that point at most as many memtables wait to become further runs.
    const MAX_RUNS: u64 = 24;
    let harness = LsmHarness::new();
    let bytes = 256 << 10;
    let options = LsmOptions { memtable_bytes: bytes, table_bytes: bytes as u64, ..harness.options() };
    let max_sealed = options.max_sealed as u64;
    let backend = LsmBackend::open(options, Arc::new(Barrier::default())).unwrap();
    let mut most_runs = 0;
    for number in 1..=600 {
        put_round(&backend, number, 40, 1_000).unwrap();
        let stats = backend.stats();
        assert!(stats.sealed_memtables <= max_sealed, "{stats:?}");
        most_runs = most_runs.max(stats.tables_per_level.first().copied().unwrap_or(0));
        assert!(most_runs <= MAX_RUNS + max_sealed, "{stats:?}");
    }
    backend.flush().unwrap();
    let stats = backend.stats();
    assert!(stats.flushes >= 600 * 40_000 / bytes as u64 && most_runs > 0, "{stats:?}");
    let start = std::time::Instant::now();
    while backend.stats().is_compacting || backend.stats().tables_per_level[0] >= 4 {
        assert!(start.elapsed() < Duration::from_secs(60), "still behind: {:?}", backend.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_round(&backend, 600, 40, "all batches were applied");
}

#[test]
fn compaction_catches_up_and_drops_what_is_hidden() {
    let mut harness = LsmHarness::new();
    let backend = harness.open();
    for number in 1..=400 {
        put_round(&*backend, number, 40, 60).unwrap();
    }
    backend.flush().unwrap();
    let start = std::time::Instant::now();
    let settled = loop {
        let stats = backend.stats();
        if stats.tables_per_level[0] < 4 {
            break stats;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "still behind: {stats:?}");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(settled.compactions > 0 && settled.compacted_bytes > 0, "{settled:?}");
    // The tables of level 0, and the one they were merged into, each have 40 keys and an applied position.
    assert!(settled.estimated_keys <= 41 * 4, "{settled:?}");
    assert!(settled.disk_bytes < settled.flushed_bytes / 4, "{settled:?}");
    assert_round(&*backend, 400, 40, "no current version is dropped");
}

/// Flips bits in every file of an LSM directory. Every read is correct or an error, and nothing panics.
#[test]
fn damaged_tables_are_errors_and_never_other_data() {
    let mut harness = LsmHarness::new();
    {
        let backend = harness.open();
        for number in 1..=60 {
            put_round(&*backend, number, 40, 60).unwrap();
        }
        backend.flush().unwrap();
    }
    let dir = harness.options().dir;
    let files = files_below(&dir);
    let mut noticed = 0;
    for seed in 0..60 {
        let mut random = Random(seed);
        let file = &files[random.below(files.len() as u64) as usize];
        let whole = std::fs::read(file).unwrap();
        if whole.is_empty() {
            continue;
        }
        let mut damaged = whole.clone();
        damaged[random.below(whole.len() as u64) as usize] ^= 1 << random.below(8);
        let copy = tempfile::tempdir().unwrap();
        copy_tree(&dir, copy.path());
        std::fs::write(copy.path().join(file.strip_prefix(&dir).unwrap()), &damaged).unwrap();
        let options = LsmOptions { dir: copy.path().to_owned(), ..harness.options() };
        let read = LsmBackend::open(options, Arc::new(Barrier::default())).and_then(|backend| {
            let pairs = scan(&backend)?;
            for (key, value) in &pairs {
                assert_eq!(backend.get(key)?.as_deref(), Some(&value[..]), "seed {seed}");
            }
            Ok((backend.persisted(), pairs))
        });
        match read {
            Err(error) => {
                assert!(matches!(error.code(), "state_corrupt" | "state_io"), "seed {seed}: {error}");
                noticed += 1;
            }
            Ok((persisted, pairs)) => {
                assert_eq!(persisted, Some(applied(60)), "seed {seed}");
                assert!(pairs.len() == 40 && pairs.iter().all(|(_, value)| value[..8] == 60u64.to_le_bytes()));
            }
        }
    }
    assert!(noticed > 20, "only {noticed} of 60 flips were detected");
}

#[test]
fn the_lsm_refuses_a_link_in_place_of_a_file_and_follows_links_to_its_directory() {
    let mut harness = LsmHarness::new();
    {
        let backend = harness.open();
        put_round(&*backend, 1, 40, 60).unwrap();
        backend.flush().unwrap();
    }
    let dir = harness.options().dir;
    let open = |dir: &std::path::Path| {
        let options = LsmOptions { dir: dir.to_owned(), ..harness.options() };
        LsmBackend::open(options, Arc::new(Barrier::default()))
    };
    let outside = tempfile::tempdir().unwrap();
    let files = files_below(&dir);
    assert!(files.len() >= 3, "a table, a list of tables, and the file that names the list: {files:?}");
    for file in files {
        let copy = tempfile::tempdir().unwrap();
        copy_tree(&dir, copy.path());
        let (linked, target) = (copy.path().join(file.strip_prefix(&dir).unwrap()), outside.path().join("file"));
        std::fs::copy(&linked, &target).unwrap();
        std::fs::remove_file(&linked).unwrap();
        std::os::unix::fs::symlink(&target, &linked).unwrap();
        let error = open(copy.path()).map(drop).expect_err("the link is refused");
        assert!(error.to_string().contains("symbolic link"), "{error}");
    }
    let link = outside.path().join("directory");
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    assert_round(&open(&link).unwrap(), 1, 40, "through a link");
}

fn files_below(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

fn copy_tree(from: &std::path::Path, to: &std::path::Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy_tree(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}
