//! What the backend tests share: a log barrier to watch, and a way to open each backend again.

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

/// A small generator, so that a failure can be repeated from its printed seed.
pub struct Random(pub u64);

impl Random {
    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A log that remembers how far it was synced, and fails when told to.
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
    /// How far the log was synced.
    pub fn synced_through(&self) -> u64 {
        self.synced.load(Ordering::SeqCst)
    }

    /// From now on it fails.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::SeqCst);
    }
}

/// Opens a backend over the same bytes again and again.
pub trait Harness {
    /// Its name.
    fn name(&self) -> &'static str;
    /// When it makes batches durable.
    fn sync(&self) -> SyncMode {
        SyncMode::BehindLog
    }
    /// Opens it. The one before was dropped.
    fn open(&mut self) -> Box<dyn Backend>;
    /// How far it had the log synced.
    fn synced_through(&self) -> u64;
    /// Makes the barrier fail until it is opened again.
    fn fail_barrier(&self);
}

/// The memory backend on a simulated disk; opening it again follows a power loss.
pub struct MemoryHarness {
    disk: SimDisk,
    barrier: Arc<Barrier>,
    opened: u64,
}

impl MemoryHarness {
    /// On an empty disk.
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

/// The LSM backend in a directory of its own, with tiny memtables and tables.
pub struct LsmHarness {
    dir: tempfile::TempDir,
    barrier: Arc<Barrier>,
}

impl LsmHarness {
    /// In an empty directory.
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), barrier: Arc::default() }
    }

    /// The options it opens with.
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

/// Tiny memtables.
pub fn small_buffer(sync: SyncMode) -> BufferOptions {
    BufferOptions { sync, memtable_bytes: 32 * 1024, max_unflushed_records: 20, ..BufferOptions::default() }
}

/// The redb backend on a simulated disk; opening it again follows a power loss.
pub struct RedbHarness {
    disk: SimDisk,
    barrier: Arc<Barrier>,
    opened: u64,
    sync: SyncMode,
}

impl RedbHarness {
    /// On an empty disk.
    pub fn new(sync: SyncMode) -> Self {
        Self { disk: SimDisk::new(1), barrier: Arc::default(), opened: 0, sync }
    }
}

/// The options that redb is opened with.
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

/// The SQLite backend in a directory of its own.
pub struct SqliteHarness {
    dir: tempfile::TempDir,
    barrier: Arc<Barrier>,
    sync: SyncMode,
}

impl SqliteHarness {
    /// In an empty directory.
    pub fn new(sync: SyncMode) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), barrier: Arc::default(), sync }
    }

    /// The options it opens with.
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

/// The memory backend with a journal, on a simulated disk; opening it again follows a power loss.
pub struct JournaledMemoryHarness(MemoryHarness);

impl JournaledMemoryHarness {
    /// On an empty disk.
    pub fn new() -> Self {
        Self(MemoryHarness::new())
    }
}

/// A journal that starts anew now and then.
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

/// The LSM backend with a journal, in a directory of its own.
pub struct JournaledLsmHarness(LsmHarness);

impl JournaledLsmHarness {
    /// In an empty directory.
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
