//! fjall as a contender.

use std::{path::Path, time::Duration};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use thalweg_bench::{
    BenchError,
    engine::{Contender, LookupResult, KvSubject, Level, Pair, StoreOptions, Visit},
};

use crate::ticker::Ticker;

const NAME: &str = "fjall 3.1.13";

/// fjall with its defaults, but for cache and memtable.
#[derive(Debug)]
pub struct Fjall;

struct Store {
    database: Database,
    keyspace: Keyspace,
    level: Level,
    _ticker: Option<Ticker>,
}

fn failed<E: std::fmt::Display>(doing: &'static str) -> impl FnOnce(E) -> BenchError {
    BenchError::subject(NAME, doing)
}

impl Contender for Fjall {
    fn name(&self) -> &str {
        NAME
    }

    fn describe(&self) -> String {
        format!("{NAME}: defaults without compression, cache as ours")
    }

    fn open(&self, dir: &Path, options: &StoreOptions) -> Result<Box<dyn KvSubject>, BenchError> {
        let database =
            Database::builder(dir.join("fjall")).cache_size(options.cache_bytes).open().map_err(failed("opening"))?;
        let create = || match options.memtable_bytes {
            Some(bytes) => KeyspaceCreateOptions::default().max_memtable_size(bytes),
            None => KeyspaceCreateOptions::default(),
        };
        let keyspace = database.keyspace("bench", create).map_err(failed("creating a keyspace"))?;
        let ticker = (options.level == Level::Interval).then(|| {
            let database = database.clone();
            Ticker::start(move || {
                if let Err(error) = database.persist(PersistMode::SyncData) {
                    eprintln!("{NAME}: syncing failed: {error}");
                }
            })
        });
        Ok(Box::new(Store { database, keyspace, level: options.level, _ticker: ticker }))
    }
}

impl Store {
    fn acknowledge(&self) -> Result<(), BenchError> {
        match self.level {
            Level::Interval => Ok(()),
            Level::Disk => self.database.persist(PersistMode::SyncData).map_err(failed("syncing")),
        }
    }
}

impl KvSubject for Store {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        self.keyspace.insert(key, value).map_err(failed("putting"))?;
        self.acknowledge()
    }

    fn put_batch(&self, pairs: &[Pair<'_>]) -> Result<(), BenchError> {
        let mut batch = self.database.batch();
        for (key, value) in pairs {
            batch.insert(&self.keyspace, *key, *value);
        }
        batch.commit().map_err(failed("committing a batch"))?;
        self.acknowledge()
    }

    fn delete(&self, key: &[u8]) -> Result<(), BenchError> {
        self.keyspace.remove(key).map_err(failed("deleting"))?;
        self.acknowledge()
    }

    fn get(&self, key: &[u8], expected: &[u8]) -> Result<LookupResult, BenchError> {
        Ok(match self.keyspace.get(key).map_err(failed("getting"))? {
            None => LookupResult::Missing,
            Some(value) if *value == *expected => LookupResult::Right,
            Some(_) => LookupResult::Wrong,
        })
    }

    fn range(&self, start: &[u8], end: &[u8], visit: &mut Visit<'_>) -> Result<(), BenchError> {
        for guard in self.keyspace.range(start..end) {
            let (key, value) = guard.into_inner().map_err(failed("scanning"))?;
            visit(&key, &value);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), BenchError> {
        self.keyspace.rotate_memtable_and_wait().map_err(failed("flushing"))
    }

    fn settle(&self) -> Result<(), BenchError> {
        while self.database.outstanding_flushes() > 0 || self.database.active_compactions() > 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn compact(&self) -> Result<(), BenchError> {
        self.settle()?;
        self.keyspace.major_compact().map_err(failed("compacting"))
    }

    fn tables(&self) -> Option<u64> {
        Some(self.keyspace.table_count() as u64)
    }

    fn data_bytes(&self) -> Option<u64> {
        Some(self.keyspace.disk_space())
    }

    fn fsyncs(&self) -> Option<u64> {
        None
    }
}
