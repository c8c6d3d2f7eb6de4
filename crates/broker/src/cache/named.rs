//! The caches of a node, which can be found by name and by id.

use std::{
    collections::BTreeMap,
    sync::{Arc, RwLock},
};

use thalweg_types::limits::{MAX_CACHES, MAX_NAME_BYTES};

use super::{Cache, CacheConfig, CreateCacheError};
use crate::{Moment, locked};

/// Id of a cache of this node, counted from 1. An id is never used again while the node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheId(pub u32);

/// A cache with its name and id. Clones share the same cache.
#[derive(Clone, Debug)]
pub struct NamedCache {
    /// Number by which connections refer to the cache.
    pub id: CacheId,
    /// Name by which clients find the cache.
    pub name: Arc<str>,
    /// Capacity of the cache in bytes.
    pub max_bytes: u64,
    /// Handle of the cache's entries.
    pub cache: Arc<Cache>,
}

#[derive(Debug, Default)]
struct Tables {
    by_name: BTreeMap<Arc<str>, NamedCache>,
    by_id: BTreeMap<CacheId, Arc<Cache>>,
    last_id: u32,
    /// Sum of the capacities in bytes of all caches of the node.
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

/// All caches of a node, by name. Bounds: at most [`MAX_CACHES`] caches, and a limit on the sum of their capacities in
/// bytes.
#[derive(Debug)]
pub struct Caches {
    tables: RwLock<Tables>,
    max_bytes: u64,
}

impl Caches {
    /// Creates an empty set of caches. The sum of their capacities can be at most `max_bytes`.
    #[must_use]
    pub fn new(max_bytes: u64) -> Self {
        Self { tables: RwLock::default(), max_bytes }
    }

    /// Creates a cache with this name.
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

    /// Maximum sum of the capacities of all caches in bytes.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Number of caches of this node.
    #[must_use]
    pub fn count(&self) -> usize {
        locked(self.tables.read()).by_name.len()
    }

    /// Number of bytes of capacity that are still available for new caches.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.max_bytes - locked(self.tables.read()).bytes
    }

    /// Returns the cache with that name; `None` if there is none.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<NamedCache> {
        locked(self.tables.read()).by_name.get(name).cloned()
    }

    /// Returns the cache with that id; `None` if there is none.
    #[must_use]
    pub fn by_id(&self, id: CacheId) -> Option<Arc<Cache>> {
        locked(self.tables.read()).by_id.get(&id).cloned()
    }

    /// Removes the cache with this name and returns it. Its memory is freed when the last clone of its handle is
    /// dropped.
    pub fn remove(&self, name: &str) -> Option<NamedCache> {
        locked(self.tables.write()).remove(name)
    }

    /// Removes the cache with this id and returns it, like [`remove`](Self::remove).
    pub fn remove_id(&self, id: CacheId) -> Option<NamedCache> {
        let mut tables = locked(self.tables.write());
        let name = Arc::clone(&tables.by_name.values().find(|named| named.id == id)?.name);
        tables.remove(&name)
    }

    /// Returns all caches of the node, ordered by name.
    #[must_use]
    pub fn list(&self) -> Vec<NamedCache> {
        locked(self.tables.read()).by_name.values().cloned().collect()
    }

    /// Frees expired entries of one cache after another with [`Cache::reclaim`], until `at_most` entries are freed or
    /// none is left. Returns their number.
    pub fn reclaim(&self, now: Moment, at_most: usize) -> usize {
        self.list().iter().fold(0, |freed, named| freed + named.cache.reclaim(now, at_most - freed))
    }

    /// Earliest time at which any cache may have an expired entry to free; `None` if no entry has a deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.list().iter().filter_map(|named| named.cache.next_deadline()).min()
    }
}
