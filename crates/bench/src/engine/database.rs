//! Thalweg's own engine as a store that the engine suite measures.

use std::{
    ops::{Bound, ControlFlow, Range},
    path::Path,
    time::{Duration, Instant},
};

use thalweg_engine::{BackendKind, Database, Keyspace, Options, ScanRange};
use thalweg_types::{Durability, command::CommitBuilder};

use super::subject::{Contender, KvSubject, Level, LookupResult, Pair, StoreOptions, Visit};
use crate::{
    BenchError,
    data::{self, Values},
    load::Clock,
    tasks::{self, NextStep},
};

/// The engine with one of its storage backends.
#[derive(Clone, Copy, Debug)]
pub struct Thalweg {
    /// Storage backend in which the engine keeps its state.
    pub backend: BackendKind,
}

const NAME: &str = "thalweg";

impl Contender for Thalweg {
    fn name(&self) -> &str {
        match self.backend {
            BackendKind::Lsm => NAME,
            BackendKind::Memory => "thalweg memory",
            BackendKind::Redb => "thalweg redb",
            BackendKind::Sqlite => "thalweg sqlite",
        }
    }

    fn describe(&self) -> String {
        format!("{}: engine {}, backend {}", self.name(), env!("CARGO_PKG_VERSION"), self.backend.name())
    }

    fn open(&self, dir: &Path, options: &StoreOptions) -> Result<Box<dyn KvSubject>, BenchError> {
        open(dir, engine_options(self.backend, options))
    }
}

/// Opens a database with one keyspace as the measured store.
pub(crate) fn open(dir: &Path, options: Options) -> Result<Box<dyn KvSubject>, BenchError> {
    let database = Database::open(dir, options).map_err(BenchError::subject(NAME, "opening"))?;
    let keyspace = database.keyspace("bench").map_err(BenchError::subject(NAME, "creating a keyspace"))?;
    Ok(Box::new(Store { database, keyspace }))
}

/// Returns the engine's options for a benchmark: the given ones, a sync interval of a second, and defaults for the
/// rest.
pub(crate) fn engine_options(backend: BackendKind, options: &StoreOptions) -> Options {
    let defaults = Options::default();
    Options {
        backend: Some(backend),
        durability: match options.level {
            Level::Interval => Durability::Interval,
            Level::Disk => Durability::Disk,
        },
        sync_interval: Duration::from_secs(1),
        cache_bytes: options.cache_bytes,
        memtable_bytes: options.memtable_bytes.map_or(defaults.memtable_bytes, |bytes| bytes as usize),
        compaction: options.compaction,
        ..defaults
    }
}

struct Store {
    database: Database,
    keyspace: Keyspace,
}

/// Time without changes to the tables after which compactions count as finished.
const QUIET: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(120);

impl KvSubject for Store {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        self.keyspace.put(key, value).map(drop).map_err(BenchError::subject(NAME, "putting"))
    }

    fn put_batch(&self, pairs: &[Pair<'_>]) -> Result<(), BenchError> {
        let mut commit = CommitBuilder::new();
        for (key, value) in pairs {
            commit.put(self.keyspace.id(), key, value).map_err(BenchError::subject(NAME, "building a batch"))?;
        }
        self.database.commit(&commit).map(drop).map_err(BenchError::subject(NAME, "committing a batch"))
    }

    fn put_by_tasks(&self, tasks: usize, indices: Range<u64>, values: &Values) -> Option<Result<(), BenchError>> {
        let (database, keyspace, level) = (self.database.to_async(), self.keyspace.id(), self.database.durability());
        let mut indices = indices;
        let next = |_, put: Option<Result<_, _>>| {
            put.transpose().map_err(BenchError::subject(NAME, "putting"))?;
            Ok(indices.next().map_or(NextStep::Nothing, |index| {
                NextStep::Future(database.put(keyspace, &data::key(index), values.of(index), level))
            }))
        };
        Some(tasks::run(tasks, &Clock::start(), next))
    }

    fn delete(&self, key: &[u8]) -> Result<(), BenchError> {
        self.keyspace.delete(key).map(drop).map_err(BenchError::subject(NAME, "deleting"))
    }

    fn get(&self, key: &[u8], expected: &[u8]) -> Result<LookupResult, BenchError> {
        let entry = self.keyspace.get(key).map_err(BenchError::subject(NAME, "getting"))?;
        Ok(match entry {
            None => LookupResult::Missing,
            Some(entry) if entry.value == expected => LookupResult::Right,
            Some(_) => LookupResult::Wrong,
        })
    }

    fn range(&self, start: &[u8], end: &[u8], visit: &mut Visit<'_>) -> Result<(), BenchError> {
        let range = ScanRange {
            start: Bound::Included(start.to_vec()),
            end: Bound::Excluded(end.to_vec()),
            ..ScanRange::default()
        };
        let mut each = |item: thalweg_engine::ScanItem<'_>| {
            visit(item.key, item.value);
            ControlFlow::Continue(())
        };
        self.keyspace.scan(&range, &mut each).map_err(BenchError::subject(NAME, "scanning"))
    }

    fn flush(&self) -> Result<(), BenchError> {
        self.database.flush().map_err(BenchError::subject(NAME, "flushing"))
    }

    fn settle(&self) -> Result<(), BenchError> {
        settle(&self.database)
    }

    fn compact(&self) -> Result<(), BenchError> {
        self.database.compact().map_err(BenchError::subject(NAME, "compacting"))
    }

    fn tables(&self) -> Option<u64> {
        Some(self.database.stats().state.tables)
    }

    fn data_bytes(&self) -> Option<u64> {
        Some(self.database.stats().state.disk_bytes)
    }

    fn fsyncs(&self) -> Option<u64> {
        Some(self.database.stats().log.syncs)
    }
}

/// Waits until flushes and compactions of the database have ended.
pub(crate) fn settle(database: &Database) -> Result<(), BenchError> {
    let (begun, mut last, mut since) = (Instant::now(), None, Instant::now());
    while begun.elapsed() < LONGEST_WAIT {
        let state = database.stats().state;
        let now = Some((state.compactions, state.flushes, state.tables, state.sealed_memtables));
        if now != last || state.is_compacting {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > QUIET {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(BenchError::subject(NAME, "settling")(format!("it was still busy after {LONGEST_WAIT:?}")))
}

impl Drop for Store {
    fn drop(&mut self) {
        // The directory is deleted next. A failure to close comes from an earlier operation, which has reported it.
        let _ = self.database.close();
    }
}
