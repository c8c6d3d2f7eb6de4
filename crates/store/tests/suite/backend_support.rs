//! Shared parts of the backend tests: an observable log barrier, and harnesses that reopen each backend.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use thalweg_disk::{Disk, RealDisk, SimDisk};
use thalweg_store::{
    Backend, BarrierFailed, BufferOptions, LogBarrier, SyncMode,
    journal::{JournalOptions, Journaled},
    lsm::{LsmBackend, LsmOptions},
    memory::{MemoryBackend, MemoryOptions},
    redb::{RedbBackend, RedbOptions},
    sqlite::{SqliteBackend, SqliteOptions},
};
use thalweg_types::Lsn;

/// A small deterministic generator, so that a failure is repeatable from its printed seed.
pub struct Random(pub u64);

impl Random {
    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A log barrier that records how far the log was synced, and fails on request.
#[derive(Debug, Default)]
pub struct Barrier {
    synced: AtomicU64,
    failed: AtomicBool,
}

impl LogBarrier for Barrier {
    fn sync_through(&self, lsn: Lsn) -> Result<(), BarrierFailed> {
        if self.failed.load(Ordering::SeqCst) {
            return Err(BarrierFailed("told to".to_owned()));
        }
        self.synced.fetch_max(lsn.0, Ordering::SeqCst);
        Ok(())
    }
}

impl Barrier {
    /// Returns the exclusive LSN up to which the log was synced.
    pub fn synced_through(&self) -> u64 {
        self.synced.load(Ordering::SeqCst)
    }

    /// Makes all later syncs fail.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::SeqCst);
    }
}

/// A harness that opens a backend over the same bytes repeatedly.
pub trait Harness {
    /// Returns the name of the backend under test.
    fn name(&self) -> &'static str;
    /// Returns the sync mode of the backend.
    fn sync(&self) -> SyncMode {
        SyncMode::BehindLog
    }
    /// Opens the backend. The previous instance has been dropped.
    fn open(&mut self) -> Box<dyn Backend>;
    /// Returns the LSN up to which the backend had the log synced.
    fn synced_through(&self) -> u64;
    /// Makes the barrier fail until the backend is reopened.
    fn fail_barrier(&self);
}

/// The memory backend on a simulated disk; each reopening follows a power loss.
pub struct MemoryHarness {
    disk: SimDisk,
    barrier: Arc<Barrier>,
    opened: u64,
}

impl MemoryHarness {
    /// Creates a harness on an empty disk.
    pub fn new() -> Self {
        Self { disk: SimDisk::new(1), barrier: Arc::default(), opened: 0 }
    }
}

impl Harness for MemoryHarness {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn open(&mut self) -> Box<dyn Backend> {
        self.opened += 1;
        self.disk = self.disk.power_loss(self.opened);
        self.barrier = Arc::default();
        let options = MemoryOptions { checkpoint_bytes: 20_000, ..MemoryOptions::default() };
        let backend = MemoryBackend::open(Arc::new(self.disk.clone()), options, self.barrier.clone()).unwrap();
        self.barrier.sync_through(backend.persisted().map_or(Lsn(0), |applied| applied.lsn)).unwrap();
        Box::new(backend)
    }

    fn synced_through(&self) -> u64 {
        self.barrier.synced_through()
    }

    fn fail_barrier(&self) {
        self.barrier.fail();
    }
}

/// The LSM backend in a temporary directory, with tiny memtables and tables.
pub struct LsmHarness {
    dir: tempfile::TempDir,
    barrier: Arc<Barrier>,
}

impl LsmHarness {
    /// Creates a harness in an empty directory.
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), barrier: Arc::default() }
    }

    /// Returns the options with which the harness opens the backend.
    pub fn options(&self) -> LsmOptions {
        LsmOptions {
            cache_bytes: 200_000,
            memtable_bytes: 32 * 1024,
            table_bytes: 64 * 1024,
            max_unflushed_records: 20,
            ..LsmOptions::new(self.dir.path().join("lsm"))
        }
    }
}

impl Harness for LsmHarness {
    fn name(&self) -> &'static str {
        "lsm"
    }

    fn open(&mut self) -> Box<dyn Backend> {
        self.barrier = Arc::default();
        let backend = LsmBackend::open(self.options(), self.barrier.clone()).unwrap();
        self.barrier.sync_through(backend.persisted().map_or(Lsn(0), |applied| applied.lsn)).unwrap();
        Box::new(backend)
    }

    fn synced_through(&self) -> u64 {
        self.barrier.synced_through()
    }

    fn fail_barrier(&self) {
        self.barrier.fail();
    }
}

/// Returns options with tiny memtables.
pub fn small_buffer(sync: SyncMode) -> BufferOptions {
    BufferOptions { sync, memtable_bytes: 32 * 1024, max_unflushed_records: 20, ..BufferOptions::default() }
}

/// The redb backend on a simulated disk; each reopening follows a power loss.
pub struct RedbHarness {
    disk: SimDisk,
    barrier: Arc<Barrier>,
    opened: u64,
    sync: SyncMode,
}

impl RedbHarness {
    /// Creates a harness on an empty disk.
    pub fn new(sync: SyncMode) -> Self {
        Self { disk: SimDisk::new(1), barrier: Arc::default(), opened: 0, sync }
    }
}

/// Returns the options with which the harness opens redb.
pub fn redb_options(sync: SyncMode) -> RedbOptions {
    RedbOptions { cache_bytes: 200_000, buffer: small_buffer(sync), ..RedbOptions::default() }
}

impl Harness for RedbHarness {
    fn name(&self) -> &'static str {
        "redb"
    }

    fn sync(&self) -> SyncMode {
        self.sync
    }

    fn open(&mut self) -> Box<dyn Backend> {
        self.opened += 1;
        self.disk = self.disk.power_loss(self.opened);
        self.barrier = Arc::default();
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let backend = RedbBackend::open(&disk, redb_options(self.sync), self.barrier.clone()).unwrap();
        self.barrier.sync_through(backend.persisted().map_or(Lsn(0), |applied| applied.lsn)).unwrap();
        Box::new(backend)
    }

    fn synced_through(&self) -> u64 {
        self.barrier.synced_through()
    }

    fn fail_barrier(&self) {
        self.barrier.fail();
    }
}

/// The SQLite backend in a temporary directory.
pub struct SqliteHarness {
    dir: tempfile::TempDir,
    barrier: Arc<Barrier>,
    sync: SyncMode,
}

impl SqliteHarness {
    /// Creates a harness in an empty directory.
    pub fn new(sync: SyncMode) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), barrier: Arc::default(), sync }
    }

    /// Returns the options with which the harness opens the backend.
    pub fn options(&self) -> SqliteOptions {
        let buffer = small_buffer(self.sync);
        SqliteOptions { cache_bytes: 400_000, buffer, ..SqliteOptions::new(self.dir.path().join("sqlite")) }
    }
}

impl Harness for SqliteHarness {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn sync(&self) -> SyncMode {
        self.sync
    }

    fn open(&mut self) -> Box<dyn Backend> {
        self.barrier = Arc::default();
        let backend = SqliteBackend::open(self.options(), self.barrier.clone()).unwrap();
        self.barrier.sync_through(backend.persisted().map_or(Lsn(0), |applied| applied.lsn)).unwrap();
        Box::new(backend)
    }

    fn synced_through(&self) -> u64 {
        self.barrier.synced_through()
    }

    fn fail_barrier(&self) {
        self.barrier.fail();
    }
}

/// The memory backend with a journal, on a simulated disk; each reopening follows a power loss.
pub struct JournaledMemoryHarness(MemoryHarness);

impl JournaledMemoryHarness {
    /// Creates a harness on an empty disk.
    pub fn new() -> Self {
        Self(MemoryHarness::new())
    }
}

/// Returns options with which the journal restarts often.
pub fn small_journal() -> JournalOptions {
    JournalOptions { max_bytes: 200_000, ..JournalOptions::new("journal") }
}

impl Harness for JournaledMemoryHarness {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn sync(&self) -> SyncMode {
        SyncMode::PerBatch
    }

    fn open(&mut self) -> Box<dyn Backend> {
        let own = &mut self.0;
        own.opened += 1;
        own.disk = own.disk.power_loss(own.opened);
        own.barrier = Arc::default();
        let disk = Arc::new(own.disk.clone());
        let open = |barrier| MemoryBackend::open(disk, MemoryOptions::default(), barrier);
        let backend = Journaled::open(&own.disk, &small_journal(), own.barrier.clone(), open).unwrap();
        own.barrier.sync_through(backend.persisted().map_or(Lsn(0), |applied| applied.lsn)).unwrap();
        Box::new(backend)
    }

    fn synced_through(&self) -> u64 {
        self.0.synced_through()
    }

    fn fail_barrier(&self) {
        self.0.fail_barrier();
    }
}

/// The LSM backend with a journal, in a temporary directory.
pub struct JournaledLsmHarness(LsmHarness);

impl JournaledLsmHarness {
    /// Creates a harness in an empty directory.
    pub fn new() -> Self {
        Self(LsmHarness::new())
    }
}

impl Harness for JournaledLsmHarness {
    fn name(&self) -> &'static str {
        "lsm"
    }

    fn sync(&self) -> SyncMode {
        SyncMode::PerBatch
    }

    fn open(&mut self) -> Box<dyn Backend> {
        let own = &mut self.0;
        own.barrier = Arc::default();
        let disk = RealDisk::open(own.dir.path()).unwrap();
        let open = |barrier| LsmBackend::open(own.options(), barrier);
        let backend = Journaled::open(&disk, &small_journal(), own.barrier.clone(), open).unwrap();
        own.barrier.sync_through(backend.persisted().map_or(Lsn(0), |applied| applied.lsn)).unwrap();
        Box::new(backend)
    }

    fn synced_through(&self) -> u64 {
        self.0.synced_through()
    }

    fn fail_barrier(&self) {
        self.0.fail_barrier();
    }
}
