//! The stores, each through its public API and with the same size of cache.

use std::{cell::OnceCell, fs::File, ops::Bound, os::unix::fs::FileExt as _, path::Path, sync::Arc, time::Duration};

use fjall::{KeyspaceCreateOptions, PersistMode};
use redb::{Durability as RedbDurability, ReadOnlyTable, ReadableDatabase as _, TableDefinition};
use thalweg_engine::{
    Database, Keyspace, Options, ScanRange,
    types::{Durability, command::CommitBuilder},
};

use crate::{Failure, ticker::Ticker};

const CACHE_BYTES: usize = 256 << 20;

/// A store that is measured, or the disk itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SubjectKind {
    /// Our engine.
    Thalweg,
    /// fjall, the store above lsm-tree.
    Fjall,
    /// redb, a copy-on-write B-tree.
    Redb,
    /// No store: one write and one fdatasync for each put, into a file of zeroes.
    Probe,
}

impl SubjectKind {
    /// The subjects that are stores.
    pub const STORES: [Self; 3] = [Self::Thalweg, Self::Fjall, Self::Redb];

    /// Opens the store in an empty directory.
    pub fn open(self, dir: &Path, level: Level) -> Result<Box<dyn Subject>, Failure> {
        Ok(match self {
            Self::Thalweg => Box::new(Thalweg::open(dir, level)?),
            Self::Fjall => Box::new(Fjall::open(dir, level)?),
            Self::Redb => Box::new(Redb::open(dir, level)?),
            Self::Probe => Box::new(Probe::open(dir)?),
        })
    }

    /// Name with the version that is measured.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Thalweg => "thalweg (this tree, its defaults)",
            Self::Fjall => "fjall 3.1.13 (its defaults, without compression)",
            Self::Redb => "redb 4.4.0 (its defaults)",
            Self::Probe => "raw probe (one write and one fdatasync for each put)",
        }
    }
}

impl std::fmt::Display for SubjectKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Thalweg => "thalweg",
            Self::Fjall => "fjall",
            Self::Redb => "redb",
            Self::Probe => "probe",
        })
    }
}

/// Durability of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Synced once a second.
    Interval,
    /// Synced before the write returns.
    Disk,
}

/// Function that receives the pairs of a range.
pub type Visit<'v> = dyn FnMut(&[u8], &[u8]) + 'v;

/// What the workloads do with a store.
pub trait Subject {
    /// Sets a key.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Failure>;
    /// Sets several keys at once.
    fn put_batch(&self, pairs: &[(&[u8], &[u8])]) -> Result<(), Failure>;
    /// Returns true if the key has this value.
    fn holds(&self, key: &[u8], value: &[u8]) -> Result<bool, Failure>;
    /// Visits the pairs from `start` up to `end` with the store's iterator.
    fn range(&self, start: &[u8], end: &[u8], visit: &mut Visit<'_>) -> Result<(), Failure>;
    /// Writes what is in memory to the files that reads use.
    fn flush(&self) -> Result<(), Failure>;
}

struct Thalweg {
    database: Database,
    keyspace: Keyspace,
}

impl Thalweg {
    fn open(dir: &Path, level: Level) -> Result<Self, Failure> {
        let durability = match level {
            Level::Interval => Durability::Interval,
            Level::Disk => Durability::Disk,
        };
        let sync_interval = Duration::from_secs(1);
        let options = Options { durability, sync_interval, cache_bytes: CACHE_BYTES as u64, ..Options::default() };
        let database = Database::open(dir.join("data"), options)?;
        let keyspace = database.keyspace("bench")?;
        Ok(Self { database, keyspace })
    }
}

impl Subject for Thalweg {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        self.keyspace.put(key, value)?;
        Ok(())
    }

    fn put_batch(&self, pairs: &[(&[u8], &[u8])]) -> Result<(), Failure> {
        let mut commit = CommitBuilder::new();
        for (key, value) in pairs {
            commit.put(self.keyspace.id(), key, value)?;
        }
        self.database.commit(&commit)?;
        Ok(())
    }

    fn holds(&self, key: &[u8], value: &[u8]) -> Result<bool, Failure> {
        Ok(self.keyspace.get(key)?.is_some_and(|entry| entry.value == value))
    }

    fn range(&self, start: &[u8], end: &[u8], visit: &mut Visit<'_>) -> Result<(), Failure> {
        let (start, end) = (Bound::Included(start.to_vec()), Bound::Excluded(end.to_vec()));
        let mut pairs = self.keyspace.iter(ScanRange { start, end, ..ScanRange::default() });
        while let Some(pair) = pairs.next_pair() {
            let pair = pair?;
            visit(pair.key, pair.value);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Failure> {
        Ok(self.database.flush()?)
    }
}

struct Fjall {
    database: fjall::Database,
    keyspace: fjall::Keyspace,
    level: Level,
    _ticker: Option<Ticker>,
}

impl Fjall {
    fn open(dir: &Path, level: Level) -> Result<Self, Failure> {
        let database = fjall::Database::builder(dir.join("data")).cache_size(CACHE_BYTES as u64).open()?;
        let keyspace = database.keyspace("bench", KeyspaceCreateOptions::default)?;
        let ticker = (level == Level::Interval).then(|| {
            let database = database.clone();
            Ticker::start(move || report(database.persist(PersistMode::SyncData)))
        });
        Ok(Self { database, keyspace, level, _ticker: ticker })
    }

    fn acknowledge(&self) -> Result<(), Failure> {
        if self.level == Level::Disk {
            self.database.persist(PersistMode::SyncData)?;
        }
        Ok(())
    }
}

impl Subject for Fjall {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        self.keyspace.insert(key, value)?;
        self.acknowledge()
    }

    fn put_batch(&self, pairs: &[(&[u8], &[u8])]) -> Result<(), Failure> {
        let mut batch = self.database.batch();
        for (key, value) in pairs {
            batch.insert(&self.keyspace, *key, *value);
        }
        batch.commit()?;
        self.acknowledge()
    }

    fn holds(&self, key: &[u8], value: &[u8]) -> Result<bool, Failure> {
        Ok(self.keyspace.get(key)?.is_some_and(|found| *found == *value))
    }

    fn range(&self, start: &[u8], end: &[u8], visit: &mut Visit<'_>) -> Result<(), Failure> {
        for guard in self.keyspace.range(start..end) {
            let (key, value) = guard.into_inner()?;
            visit(&key, &value);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Failure> {
        Ok(self.keyspace.rotate_memtable_and_wait()?)
    }
}

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("bench");

type Table<'t> = redb::Table<'t, &'static [u8], &'static [u8]>;

struct Redb {
    /// Opened with the first read. All workloads read after their last write.
    reader: OnceCell<ReadOnlyTable<&'static [u8], &'static [u8]>>,
    level: Level,
    database: Arc<redb::Database>,
    _ticker: Option<Ticker>,
}

impl Redb {
    fn open(dir: &Path, level: Level) -> Result<Self, Failure> {
        let database = redb::Database::builder().set_cache_size(CACHE_BYTES).create(dir.join("data"))?;
        let database = Arc::new(database);
        let ticker = (level == Level::Interval).then(|| {
            let database = Arc::clone(&database);
            Ticker::start(move || report(sync(&database)))
        });
        let redb = Self { reader: OnceCell::new(), level, database, _ticker: ticker };
        redb.write(|_| Ok(()))?;
        Ok(redb)
    }

    fn write(&self, change: impl FnOnce(&mut Table<'_>) -> Result<(), Failure>) -> Result<(), Failure> {
        if self.reader.get().is_some() {
            return Err("redb: a workload writes after it has read".into());
        }
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(match self.level {
            Level::Interval => RedbDurability::None,
            Level::Disk => RedbDurability::Immediate,
        })?;
        change(&mut transaction.open_table(TABLE)?)?;
        Ok(transaction.commit()?)
    }

    fn table(&self) -> Result<&ReadOnlyTable<&'static [u8], &'static [u8]>, Failure> {
        if let Some(table) = self.reader.get() {
            return Ok(table);
        }
        let table = self.database.begin_read()?.open_table(TABLE)?;
        Ok(self.reader.get_or_init(|| table))
    }
}

fn sync(database: &redb::Database) -> Result<(), Failure> {
    Ok(database.begin_write()?.commit()?)
}

impl Subject for Redb {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        self.write(|table| {
            table.insert(key, value)?;
            Ok(())
        })
    }

    fn put_batch(&self, pairs: &[(&[u8], &[u8])]) -> Result<(), Failure> {
        self.write(|table| {
            for (key, value) in pairs {
                table.insert(*key, *value)?;
            }
            Ok(())
        })
    }

    fn holds(&self, key: &[u8], value: &[u8]) -> Result<bool, Failure> {
        Ok(self.table()?.get(key)?.is_some_and(|found| found.value() == value))
    }

    fn range(&self, start: &[u8], end: &[u8], visit: &mut Visit<'_>) -> Result<(), Failure> {
        for pair in self.table()?.range(start..end)? {
            let (key, value) = pair?;
            visit(key.value(), value.value());
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Failure> {
        sync(&self.database)
    }
}

/// A background sync cannot stop the run; what it did not sync shows in no figure, so it is at least printed.
fn report<E: std::fmt::Display>(result: Result<(), E>) {
    if let Err(error) = result {
        eprintln!("thalweg-row-p: syncing in the background failed: {error}");
    }
}

/// Size in bytes of the probe's file.
const PROBE_BYTES: u64 = 16 << 20;

struct Probe {
    file: File,
    at: std::cell::Cell<u64>,
}

impl Probe {
    fn open(dir: &Path) -> Result<Self, Failure> {
        let file = File::create(dir.join("probe"))?;
        let zeroes = vec![0; 64 << 10];
        for at in (0..PROBE_BYTES).step_by(zeroes.len()) {
            file.write_all_at(&zeroes, at)?;
        }
        file.sync_all()?;
        Ok(Self { file, at: 0.into() })
    }
}

impl Subject for Probe {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        let bytes = [key, value].concat();
        let at = self.at.get();
        self.file.write_all_at(&bytes, at)?;
        self.file.sync_data()?;
        self.at.set((at + bytes.len() as u64) % (PROBE_BYTES - 4096));
        Ok(())
    }

    fn put_batch(&self, _: &[(&[u8], &[u8])]) -> Result<(), Failure> {
        Err("the probe has no batches".into())
    }

    fn holds(&self, _: &[u8], _: &[u8]) -> Result<bool, Failure> {
        Err("the probe has no keys".into())
    }

    fn range(&self, _: &[u8], _: &[u8], _: &mut Visit<'_>) -> Result<(), Failure> {
        Err("the probe has no keys".into())
    }

    fn flush(&self) -> Result<(), Failure> {
        Ok(())
    }
}
