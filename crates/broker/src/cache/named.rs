//! The caches of a node, by name.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, RwLock},
};

use thalweg_types::limits::{MAX_CACHES, MAX_NAME_BYTES};

use super::{Cache, CacheConfig, CreateCacheError};
use crate::{Moment, locked};

/// Named caches, at most [`MAX_CACHES`]. What they may come to together is the sum of their bounds.
#[derive(Debug, Default)]
pub struct Caches(RwLock<BTreeMap<String, Arc<Cache>>>);

impl Caches {
    /// Without any.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes one.
    ///
    /// # Errors
    /// See [`CreateCacheError`].
    pub fn create(&self, name: &str, config: CacheConfig) -> Result<Arc<Cache>, CreateCacheError> {
        if !(1..=MAX_NAME_BYTES).contains(&name.len()) {
            return Err(CreateCacheError::Name { bytes: name.len() });
        }
        let cache = Arc::new(Cache::new(config)?);
        let mut caches = locked(self.0.write());
        let full = caches.len() >= MAX_CACHES;
        match caches.entry(name.to_owned()) {
            Entry::Occupied(_) => Err(CreateCacheError::Exists),
            Entry::Vacant(_) if full => Err(CreateCacheError::TooMany),
            Entry::Vacant(free) => Ok(Arc::clone(free.insert(cache))),
        }
    }

    /// The one of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<Cache>> {
        locked(self.0.read()).get(name).cloned()
    }

    /// Takes one away; gives it. It goes when nobody uses it any more.
    pub fn remove(&self, name: &str) -> Option<Arc<Cache>> {
        locked(self.0.write()).remove(name)
    }

    /// All of them, by name.
    #[must_use]
    pub fn list(&self) -> Vec<(String, Arc<Cache>)> {
        locked(self.0.read()).iter().map(|(name, cache)| (name.clone(), Arc::clone(cache))).collect()
    }

    /// As [`Cache::reclaim`], of each in turn until so many are freed.
    pub fn reclaim(&self, now: Moment, at_most: usize) -> usize {
        self.list().iter().fold(0, |freed, (_, cache)| freed + cache.reclaim(now, at_most - freed))
    }

    /// As [`Cache::next_deadline`], of the first of them.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.list().iter().filter_map(|(_, cache)| cache.next_deadline()).min()
    }
}
