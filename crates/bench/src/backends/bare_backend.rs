//! Measures a state backend alone, without the engine and its log. The backend syncs each batch before it acknowledges
//! the batch.
//!
//! Owns: opening the backend without a log, and writing and syncing each batch. Does not own: the operations that are
//! measured (`groups`), or the stores behind the engine's log (`subjects`).

use std::{
    ops::{Bound, ControlFlow},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use thalweg_disk::{Disk, RealDisk};
use thalweg_engine::BackendKind;
use thalweg_store::{
    Applied, Backend, BackendError, BarrierFailed, Direction, LogBarrier, WriteBatch,
    journal::{JournalOptions, Journaled},
    lsm::{LsmBackend, LsmOptions},
    memory::{MemoryBackend, MemoryOptions},
};
#[cfg(any(feature = "redb", feature = "sqlite"))]
use thalweg_store::{BufferOptions, SyncMode};
use thalweg_types::{Index, Lsn};

use crate::{
    BenchError,
    engine::{Contender, KvSubject, LookupResult, Pair, StoreOptions, Visit},
};

/// First byte of every key. The engine's state machine begins the keys of keyspace entries with the same byte.
const TAG: &[u8] = &[0x10];
/// Exclusive end of a range over all keys: the byte after the first byte of every key.
const AFTER_TAG: &[u8] = &[0x11];

/// A storage backend of the engine's state, opened without the engine and its log.
#[derive(Clone, Copy, Debug)]
pub(super) struct BareBackend {
    /// Kind of the storage backend to open.
    pub backend: BackendKind,
}

/// Stand-in for the engine's log. The backend syncs its own writes, so there is no log to wait for.
struct NoLog;

impl LogBarrier for NoLog {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        Ok(())
    }
}

impl Contender for BareBackend {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn describe(&self) -> String {
        let how = match self.backend {
            BackendKind::Memory | BackendKind::Lsm => "a journal of its own, one fdatasync per batch",
            BackendKind::Redb => "a transaction with Durability::Immediate per batch",
            BackendKind::Sqlite => "a transaction per batch, WAL, synchronous = FULL",
        };
        format!("{}: {how}", self.backend.name())
    }

    fn open(&self, dir: &Path, options: &StoreOptions) -> Result<Box<dyn KvSubject>, BenchError> {
        let name = self.backend.name();
        let backend = open(self.backend, dir, options).map_err(BenchError::subject(name, "opening"))?;
        Ok(Box::new(Store {
            backend,
            dir: dir.to_owned(),
            name,
            written: Mutex::default(),
            batches: AtomicU64::new(0),
        }))
    }
}

fn open(kind: BackendKind, dir: &Path, options: &StoreOptions) -> Result<Box<dyn Backend>, BackendError> {
    let io = |error: std::io::Error| BackendError::Io { operation: "open", message: error.to_string() };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir).map_err(io)?);
    let journal = JournalOptions::new("journal");
    let log = Arc::new(NoLog);
    match kind {
        BackendKind::Memory => {
            let own = disk.clone();
            let open = |barrier| MemoryBackend::open(own, MemoryOptions::default(), barrier);
            Ok(Box::new(Journaled::open(&*disk, &journal, log, open)?))
        }
        BackendKind::Lsm => {
            let mut own = LsmOptions {
                cache_bytes: options.cache_bytes,
                compaction: options.compaction,
                ..LsmOptions::new(dir.join("lsm"))
            };
            own.memtable_bytes = options.memtable_bytes.map_or(own.memtable_bytes, |bytes| bytes as usize);
            Ok(Box::new(Journaled::open(&*disk, &journal, log, |barrier| LsmBackend::open(own, barrier))?))
        }
        #[cfg(feature = "redb")]
        BackendKind::Redb => {
            use thalweg_store::redb::{RedbBackend, RedbOptions};
            let buffer = BufferOptions { sync: SyncMode::PerBatch, ..BufferOptions::default() };
            let own = RedbOptions { dir: "redb".to_owned(), cache_bytes: options.cache_bytes, buffer };
            Ok(Box::new(RedbBackend::open(&disk, own, log)?))
        }
        #[cfg(feature = "sqlite")]
        BackendKind::Sqlite => {
            use thalweg_store::sqlite::{SqliteBackend, SqliteOptions};
            let buffer = BufferOptions { sync: SyncMode::PerBatch, ..BufferOptions::default() };
            let own =
                SqliteOptions { cache_bytes: options.cache_bytes, buffer, ..SqliteOptions::new(dir.join("sqlite")) };
            Ok(Box::new(SqliteBackend::open(own, log)?))
        }
        #[allow(unreachable_patterns, reason = "reachable in builds without all backends")]
        _ => Err(BackendError::Failed(format!("this build has no {} backend", kind.name()))),
    }
}

struct Store {
    backend: Box<dyn Backend>,
    dir: PathBuf,
    name: &'static str,
    /// Write batch that the caller of `apply` is building. The mutex only satisfies the type system: `apply` is never
    /// called from two threads concurrently.
    written: Mutex<WriteBatch>,
    batches: AtomicU64,
}

impl Store {
    fn write(&self, doing: &'static str, fill: impl FnOnce(&mut WriteBatch)) -> Result<(), BenchError> {
        let mut batch = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        batch.clear();
        fill(&mut batch);
        let number = self.batches.fetch_add(1, Ordering::Relaxed) + 1;
        let applied = Applied { lsn: Lsn(number), index: Index(number), ..Applied::default() };
        self.backend.apply(&batch, applied).map_err(BenchError::subject(self.name, doing))
    }
}

fn stored(key: &[u8]) -> Vec<u8> {
    [TAG, key].concat()
}

impl KvSubject for Store {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        self.write("putting", |batch| batch.put(&[TAG, key], &[value]))
    }

    fn put_batch(&self, pairs: &[Pair<'_>]) -> Result<(), BenchError> {
        self.write("committing a batch", |batch| {
            for (key, value) in pairs {
                batch.put(&[TAG, key], &[value]);
            }
        })
    }

    fn delete(&self, key: &[u8]) -> Result<(), BenchError> {
        self.write("deleting", |batch| batch.delete(&[TAG, key]))
    }

    fn get(&self, key: &[u8], expected: &[u8]) -> Result<LookupResult, BenchError> {
        let value = self.backend.get(&stored(key)).map_err(BenchError::subject(self.name, "getting"))?;
        Ok(match value {
            None => LookupResult::Missing,
            Some(value) if value == expected => LookupResult::Right,
            Some(_) => LookupResult::Wrong,
        })
    }

    fn range(&self, start: &[u8], end: &[u8], visit: &mut Visit<'_>) -> Result<(), BenchError> {
        let (lower, upper) = (stored(start), if end.is_empty() { AFTER_TAG.to_vec() } else { stored(end) });
        let each = &mut |key: &[u8], value: &[u8]| {
            visit(&key[1..], value);
            ControlFlow::Continue(())
        };
        self.backend
            .view()
            .scan(Bound::Included(&lower), Bound::Excluded(&upper), Direction::Forward, each)
            .map_err(BenchError::subject(self.name, "scanning"))
    }

    fn flush(&self) -> Result<(), BenchError> {
        self.backend.flush().map(drop).map_err(BenchError::subject(self.name, "flushing"))
    }

    fn settle(&self) -> Result<(), BenchError> {
        Ok(())
    }

    fn compact(&self) -> Result<(), BenchError> {
        self.backend.compact().map_err(BenchError::subject(self.name, "compacting"))
    }

    fn tables(&self) -> Option<u64> {
        Some(self.backend.stats().tables)
    }

    fn data_bytes(&self) -> Option<u64> {
        Some(crate::scratch::allocated_bytes(&self.dir))
    }

    fn fsyncs(&self) -> Option<u64> {
        None
    }
}
