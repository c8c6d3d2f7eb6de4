//! The caches of a node, by name and by number.

use std::{
    collections::BTreeMap,
    sync::{Arc, RwLock},
};

use thalweg_types::limits::{MAX_CACHES, MAX_NAME_BYTES};

use super::{Cache, CacheConfig, CreateCacheError};
use crate::{Moment, locked};

/// A cache, for as long as its node runs. Never given to another one; from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheId(pub u32);

/// A cache with what it is called. A clone is the same cache.
#[derive(Clone, Debug)]
pub struct NamedCache {
    /// What connections call it.
    pub id: CacheId,
    /// What people call it.
    pub name: Arc<str>,
    /// The most that it holds.
    pub max_bytes: u64,
    /// The cache.
    pub cache: Arc<Cache>,
}

#[derive(Debug, Default)]
struct Tables {
    by_name: BTreeMap<Arc<str>, NamedCache>,
    by_id: BTreeMap<CacheId, Arc<Cache>>,
    last_id: u32,
    /// The sum of `max_bytes`.
    bytes: u64,
}

impl Tables {
    fn remove(&mut self, name: &str) -> Option<NamedCache> {
        let removed = self.by_name.remove(name)?;
        self.by_id.remove(&removed.id);
        self.bytes -= removed.max_bytes;
        Some(removed)
    }
}

/// Named caches: at most [`MAX_CACHES`], and at most so many bytes together, counted by their bounds.
#[derive(Debug)]
pub struct Caches {
    tables: RwLock<Tables>,
    max_bytes: u64,
}

impl Caches {
    /// Without any.
    #[must_use]
    pub fn new(max_bytes: u64) -> Self {
        Self { tables: RwLock::default(), max_bytes }
    }

    /// Makes one.
    ///
    /// # Errors
    /// See [`CreateCacheError`].
    pub fn create(&self, name: &str, config: CacheConfig) -> Result<NamedCache, CreateCacheError> {
        if !(1..=MAX_NAME_BYTES).contains(&name.len()) {
            return Err(CreateCacheError::Name { bytes: name.len() });
        }
        let mut tables = locked(self.tables.write());
        if tables.by_name.contains_key(name) {
            return Err(CreateCacheError::Exists);
        }
        if tables.by_name.len() >= MAX_CACHES {
            return Err(CreateCacheError::TooMany);
        }
        let left = self.max_bytes - tables.bytes;
        if config.max_bytes > left {
            return Err(CreateCacheError::NoRoom { max: self.max_bytes, left });
        }
        let cache = Arc::new(Cache::new(config)?);
        tables.bytes += config.max_bytes;
        tables.last_id += 1;
        let id = CacheId(tables.last_id);
        let named = NamedCache { id, name: name.into(), max_bytes: config.max_bytes, cache };
        tables.by_id.insert(id, Arc::clone(&named.cache));
        tables.by_name.insert(Arc::clone(&named.name), named.clone());
        Ok(named)
    }

    /// The one of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<NamedCache> {
        locked(self.tables.read()).by_name.get(name).cloned()
    }

    /// The one of that number.
    #[must_use]
    pub fn by_id(&self, id: CacheId) -> Option<Arc<Cache>> {
        locked(self.tables.read()).by_id.get(&id).cloned()
    }

    /// Takes one away; gives it. It goes when nobody uses it any more.
    pub fn remove(&self, name: &str) -> Option<NamedCache> {
        locked(self.tables.write()).remove(name)
    }

    /// As [`remove`](Self::remove), by number.
    pub fn remove_id(&self, id: CacheId) -> Option<NamedCache> {
        let mut tables = locked(self.tables.write());
        let name = Arc::clone(&tables.by_name.values().find(|named| named.id == id)?.name);
        tables.remove(&name)
    }

    /// All of them, by name.
    #[must_use]
    pub fn list(&self) -> Vec<NamedCache> {
        locked(self.tables.read()).by_name.values().cloned().collect()
    }

    /// As [`Cache::reclaim`], of each in turn until so many are freed.
    pub fn reclaim(&self, now: Moment, at_most: usize) -> usize {
        self.list().iter().fold(0, |freed, named| freed + named.cache.reclaim(now, at_most - freed))
    }

    /// As [`Cache::next_deadline`], of the first of them.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.list().iter().filter_map(|named| named.cache.next_deadline()).min()
    }
}
