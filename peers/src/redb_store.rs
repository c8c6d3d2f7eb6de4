//! redb as a contender.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use redb::{Database, Durability, ReadOnlyTable, ReadableDatabase, TableDefinition, WriteTransaction};
use thalweg_bench::{
    BenchError,
    engine::{Contender, LookupResult, KvSubject, Level, Pair, StoreOptions, Visit},
};

use crate::ticker::Ticker;

const NAME: &str = "redb 4.4.0";
const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("bench");

/// redb with its defaults, but for the cache.
#[derive(Debug)]
pub struct Redb;

type Table = ReadOnlyTable<&'static [u8], &'static [u8]>;

struct Store {
    database: Arc<Database>,
    path: PathBuf,
    level: Level,
    /// What reads use until the next write: opening a transaction for each would cost redb more.
    reader: Mutex<Option<Table>>,
    _ticker: Option<Ticker>,
}

fn failed<E: std::fmt::Display>(doing: &'static str) -> impl FnOnce(E) -> BenchError {
    BenchError::subject(NAME, doing)
}

impl Contender for Redb {
    fn name(&self) -> &str {
        NAME
    }

    fn describe(&self) -> String {
        format!("{NAME}: defaults, cache as ours")
    }

    fn open(&self, dir: &Path, options: &StoreOptions) -> Result<Box<dyn KvSubject>, BenchError> {
        let path = dir.join("redb");
        let cache = usize::try_from(options.cache_bytes).unwrap_or(usize::MAX);
        let database = Database::builder().set_cache_size(cache).create(&path).map_err(failed("opening"))?;
        let database = Arc::new(database);
        let ticker = (options.level == Level::Interval).then(|| {
            let database = Arc::clone(&database);
            Ticker::start(move || {
                if let Err(error) = sync(&database) {
                    eprintln!("{error}");
                }
            })
        });
        let store = Store { database, path, level: options.level, reader: Mutex::default(), _ticker: ticker };
        store.write(|_| Ok(()))?;
        Ok(Box::new(store))
    }
}

fn sync(database: &Database) -> Result<(), BenchError> {
    database.begin_write().map_err(failed("syncing"))?.commit().map_err(failed("syncing"))
}

impl Store {
    fn write(
        &self,
        change: impl FnOnce(&mut redb::Table<'_, &'static [u8], &'static [u8]>) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        *self.reader() = None;
        let mut transaction: WriteTransaction = self.database.begin_write().map_err(failed("beginning a write"))?;
        let durability = match self.level {
            Level::Interval => Durability::None,
            Level::Disk => Durability::Immediate,
        };
        transaction.set_durability(durability).map_err(failed("beginning a write"))?;
        change(&mut transaction.open_table(TABLE).map_err(failed("opening the table"))?)?;
        transaction.commit().map_err(failed("committing"))
    }

    fn reader(&self) -> MutexGuard<'_, Option<Table>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T>(&self, look: impl FnOnce(&Table) -> Result<T, BenchError>) -> Result<T, BenchError> {
        let mut reader = self.reader();
        let table = match &mut *reader {
            Some(table) => table,
            none => {
                let transaction = self.database.begin_read().map_err(failed("beginning a read"))?;
                none.insert(transaction.open_table(TABLE).map_err(failed("opening the table"))?)
            }
        };
        look(table)
    }
}

impl KvSubject for Store {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        self.write(|table| table.insert(key, value).map(drop).map_err(failed("putting")))
    }

    fn put_batch(&self, pairs: &[Pair<'_>]) -> Result<(), BenchError> {
        self.write(|table| {
            for (key, value) in pairs {
                table.insert(*key, *value).map_err(failed("putting"))?;
            }
            Ok(())
        })
    }

    fn delete(&self, key: &[u8]) -> Result<(), BenchError> {
        self.write(|table| table.remove(key).map(drop).map_err(failed("deleting")))
    }

    fn get(&self, key: &[u8], expected: &[u8]) -> Result<LookupResult, BenchError> {
        self.read(|table| {
            Ok(match table.get(key).map_err(failed("getting"))? {
                None => LookupResult::Missing,
                Some(value) if value.value() == expected => LookupResult::Right,
                Some(_) => LookupResult::Wrong,
            })
        })
    }

    fn range(&self, start: &[u8], end: &[u8], visit: &mut Visit<'_>) -> Result<(), BenchError> {
        self.read(|table| {
            for pair in table.range(start..end).map_err(failed("scanning"))? {
                let (key, value) = pair.map_err(failed("scanning"))?;
                visit(key.value(), value.value());
            }
            Ok(())
        })
    }

    fn flush(&self) -> Result<(), BenchError> {
        sync(&self.database)
    }

    fn settle(&self) -> Result<(), BenchError> {
        Ok(())
    }

    fn tables(&self) -> Option<u64> {
        None
    }

    fn data_bytes(&self) -> Option<u64> {
        Some(std::fs::metadata(&self.path).ok()?.len())
    }

    fn fsyncs(&self) -> Option<u64> {
        None
    }
}
