//! Handles of caches, which hold entries in the server's memory only, up to a bound, and never log them.
//!
//! Owns: `Cache` with its requests, and the cache's id in the present run of the server. Does not own: caches spread
//! over several nodes (`spread_cache`), connections and retries (`client`, `pool`), or the table of resolved names
//! (`names`).
//!
//! The id of a cache is valid for one run of the server, from its start to its stop. The client sends a request with an
//! id only to the run that assigned the id. If the server has restarted since, the client asks for the cache's id again
//! by name. This also creates the cache again, empty.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
pub use thalweg_types::info::CacheFigures;
use thalweg_wire::{
    self as wire, CacheCreate, CacheExpect, CachePair, CacheTtl, Frame, List, RemainingBytes, SharedFrame,
};

use crate::{
    client::{Client, RequestOptions, RetrySafety},
    error::Error,
    keyspace::remaining,
    names::Name,
    request::reply_of,
    target::Target,
};

/// A handle of a cache identified by its name. Cheap to clone. The handle requests the cache's id at the
/// first use.
#[derive(Clone, Debug)]
pub struct Cache(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    client: Client,
    name: String,
    create: CacheCreate,
    max_bytes: u64,
    id: Mutex<Option<Id>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Id {
    run: u64,
    cache: u32,
}

/// A cache entry, as a read returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheValue {
    /// Value of the entry. The value is not copied, and keeps the whole read buffer of the reply alive.
    pub value: Bytes,
    /// Version of the entry: a number that the server assigned when the entry was last written. Each put of a key
    /// assigns a higher number.
    pub version: u64,
    /// Remaining time to live of the entry; `None` if it has no deadline and lives until the cache evicts it.
    pub remaining: Option<Duration>,
}

impl Client {
    /// Returns a handle of the cache with this name. The first use creates a missing cache with the server's default
    /// capacity.
    #[must_use]
    pub fn cache(&self, name: impl Into<String>) -> Cache {
        self.cache_with(name, CacheCreate::IfMissing, 0)
    }

    /// Returns a handle of the cache with this name, like [`cache`](Self::cache). `create` states if the first use
    /// creates a missing cache. `max_bytes` is the capacity in bytes of a cache that is created; 0 selects the server's
    /// default.
    #[must_use]
    pub fn cache_with(&self, name: impl Into<String>, create: CacheCreate, max_bytes: u64) -> Cache {
        let (client, name) = (self.clone(), name.into());
        Cache(Arc::new(Inner { client, name, create, max_bytes, id: Mutex::new(None) }))
    }

    /// Returns the statistics of all caches of the server.
    pub async fn caches(&self) -> Result<Vec<CacheFigures>, Error> {
        self.request(RequestOptions::QUICK, wire::ReadCacheStats { cache: 0 }, read_stats).await
    }
}

fn read_stats(frame: &SharedFrame) -> Result<Vec<CacheFigures>, Error> {
    Ok(reply_of::<wire::CacheStats<'_>>(frame)?.caches.iter().collect())
}

impl Cache {
    /// Name of the cache.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    fn cached_id(&self) -> Option<Id> {
        *self.0.id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn store_id(&self, id: Option<Id>) {
        *self.0.id.lock().unwrap_or_else(PoisonError::into_inner) = id;
    }

    /// Opens the cache now instead of at its first use. Returns true if this call created the cache. Also returns the
    /// cache's capacity in bytes.
    pub async fn open(&self) -> Result<(bool, u64), Error> {
        let Inner { client, name, create, max_bytes, .. } = &*self.0;
        for _ in 0..=client.options().retries.max_attempts {
            let run = client.run();
            let open = wire::OpenCache { create: *create, max_bytes: *max_bytes, name };
            let read = |frame: &SharedFrame| reply_of::<wire::CacheOpened>(frame);
            // The id is useful only with the number of the run that assigned it. Without a connection, the number is
            // not known yet: the run of the next connection will answer.
            let how = RequestOptions {
                run,
                retry_safety: RetrySafety::Never,
                target: Target::Connected,
                ..RequestOptions::READ
            };
            let opened = match client.request(how, open, read).await {
                Err(Error::OtherRun) => continue,
                opened => opened?,
            };
            if let Some(run) = run {
                self.store_id(Some(Id { run, cache: opened.cache }));
                client.names().put(Name::Cache(run, name.clone()), opened.cache, client.directory().data());
            }
            return Ok((opened.created, opened.max_bytes));
        }
        Err(Error::OtherRun)
    }

    async fn id(&self) -> Result<Id, Error> {
        for _ in 0..=self.0.client.options().retries.max_attempts {
            if let Some(id) = self.cached_id() {
                return Ok(id);
            }
            let client = &self.0.client;
            let shared = client.run().and_then(|run| {
                let cache = client.names().get(&Name::Cache(run, self.0.name.clone()), client.directory().data())?;
                Some(Id { run, cache })
            });
            match shared {
                Some(id) => self.store_id(Some(id)),
                None => drop(self.open().await?),
            }
        }
        Err(Error::OtherRun)
    }

    /// Sends a request with the cache's id. If the id belongs to an earlier run of the server or to a dropped
    /// cache, looks up the cache's name and sends the request again.
    async fn ask<'f, F: Frame<'f>, R>(
        &self,
        repeat: RetrySafety,
        frame: impl Fn(u32) -> F,
        read: impl Fn(&SharedFrame) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut again = 0;
        loop {
            let Id { run, cache } = match self.cached_id() {
                Some(id) => id,
                None => self.id().await?,
            };
            let how = RequestOptions { run: Some(run), retry_safety: repeat, ..RequestOptions::QUICK };
            let answer = self.0.client.request(how, frame(cache), &read).await;
            match answer {
                Err(error) if matches!(error, Error::OtherRun) || error.is("no_such_cache") => {
                    self.store_id(None);
                    self.0.client.names().forget(&Name::Cache(run, self.0.name.clone()), cache);
                    again += 1;
                    if again > 2 {
                        return Err(error);
                    }
                }
                answer => return answer,
            }
        }
    }

    /// Reads the entry of a key; `None` if the cache has no entry for it.
    pub async fn get(&self, key: &[u8]) -> Result<Option<CacheValue>, Error> {
        let read = |frame: &SharedFrame| {
            let wire::CacheValue { version, remaining: micros, value } = reply_of(frame)?;
            let found = || CacheValue { value: frame.share(value.0), version, remaining: remaining(micros) };
            Ok((version != 0).then(found))
        };
        self.ask(RetrySafety::Harmless, |cache| wire::CacheGet { cache, key: RemainingBytes(key) }, read).await
    }

    /// Reads the entries of several keys. The result has the order of the keys.
    pub async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<CacheValue>>, Error> {
        let read = |frame: &SharedFrame| {
            let wire::CacheEntries { entries } = reply_of(frame)?;
            let value = |entry: wire::CacheEntry<'_>| {
                (entry.version != 0).then(|| CacheValue {
                    value: frame.share(entry.value),
                    version: entry.version,
                    remaining: remaining(entry.remaining),
                })
            };
            Ok(entries.iter().map(value).collect())
        };
        self.ask(RetrySafety::Harmless, |cache| wire::CacheMultiGet { cache, keys: List::Items(keys) }, read).await
    }

    /// Sets the entry of a key without a deadline: it lives until the cache evicts it. Returns the entry's
    /// version.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<u64, Error> {
        self.put_with(key, value, CacheTtl::Never {}, CacheExpect::Any {}).await
    }

    /// Sets the entry of a key with a condition and a time to live. Returns the entry's version, or the error
    /// `condition_failed` if the present entry does not meet the condition.
    pub async fn put_with(
        &self,
        key: &[u8],
        value: &[u8],
        ttl: CacheTtl,
        expect: CacheExpect<'_>,
    ) -> Result<u64, Error> {
        let repeat = if expect == (CacheExpect::Any {}) { RetrySafety::Harmless } else { RetrySafety::IfNoEffect };
        let put = |cache| wire::CachePut {
            cache,
            expect: expect.clone(),
            ttl: ttl.clone(),
            key,
            value: RemainingBytes(value),
        };
        self.ask(repeat, put, |frame| Ok(reply_of::<wire::CacheStored>(frame)?.version)).await
    }

    /// Sets several entries, one after the other: other clients may see some of the new values before the
    /// others are set.
    pub async fn put_many(&self, pairs: &[(&[u8], &[u8])], ttl: CacheTtl) -> Result<(), Error> {
        let pairs: Vec<_> = pairs.iter().map(|&(key, value)| CachePair { key, value }).collect();
        let put = |cache| wire::CacheMultiPut { cache, ttl: ttl.clone(), pairs: List::Items(&pairs) };
        self.ask(RetrySafety::Harmless, put, existed).await.map(drop)
    }

    /// Removes the entry of a key. Returns true if the cache had one.
    pub async fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        self.delete_if(key, CacheExpect::Any {}).await
    }

    /// Removes the entry of a key if it meets the condition `expect`; otherwise returns the error
    /// `condition_failed`. Returns true if the cache had an entry.
    pub async fn delete_if(&self, key: &[u8], expect: CacheExpect<'_>) -> Result<bool, Error> {
        let delete = |cache| wire::CacheDelete { cache, expect: expect.clone(), key: RemainingBytes(key) };
        self.ask(RetrySafety::IfNoEffect, delete, existed).await
    }

    /// Changes the time to live of a key's entry. Returns true if the cache has one.
    pub async fn touch(&self, key: &[u8], ttl: CacheTtl) -> Result<bool, Error> {
        let touch = |cache| wire::CacheTouch { cache, ttl: ttl.clone(), key: RemainingBytes(key) };
        self.ask(RetrySafety::Harmless, touch, existed).await
    }

    /// Adds `delta` to a counter, which is an entry in decimal digits, and returns the counter's new value. A
    /// missing counter counts as 0.
    pub async fn add(&self, key: &[u8], delta: i64, ttl: CacheTtl) -> Result<i64, Error> {
        let add = |cache| wire::CacheAdd { cache, delta, ttl: ttl.clone(), key: RemainingBytes(key) };
        self.ask(RetrySafety::IfNoEffect, add, |frame| Ok(reply_of::<wire::CacheCounter>(frame)?.value)).await
    }

    /// Returns a page of at most `limit` keys of the cache in an unspecified order, and the cursor of the next page
    /// (`None` after the last page). `cursor` is `None` for the first page.
    pub async fn keys(&self, cursor: Option<u64>, limit: u32) -> Result<(Vec<Bytes>, Option<u64>), Error> {
        let read = |frame: &SharedFrame| {
            let wire::CacheKeys { cursor, keys } = reply_of(frame)?;
            Ok((keys.iter().map(|key| frame.share(key)).collect(), cursor))
        };
        self.ask(RetrySafety::Harmless, |cache| wire::CacheScan { cache, cursor, limit }, read).await
    }

    /// Removes all entries of the cache.
    pub async fn clear(&self) -> Result<(), Error> {
        self.ask(RetrySafety::Harmless, |cache| wire::CacheClear { cache }, existed).await.map(drop)
    }

    /// Drops the cache. Returns true if it existed. The next use creates the cache again if this handle may
    /// create it.
    pub async fn drop_cache(&self) -> Result<bool, Error> {
        let dropped = self.ask(RetrySafety::IfNoEffect, |cache| wire::DropCache { cache }, existed).await;
        if let Some(id) = self.cached_id() {
            self.0.client.names().forget(&Name::Cache(id.run, self.0.name.clone()), id.cache);
        }
        self.store_id(None);
        dropped
    }

    /// Returns the cache's statistics; `None` if the cache does not exist.
    pub async fn stats(&self) -> Result<Option<CacheFigures>, Error> {
        Ok(self.ask(RetrySafety::Harmless, |cache| wire::ReadCacheStats { cache }, read_stats).await?.pop())
    }
}

fn existed(frame: &SharedFrame) -> Result<bool, Error> {
    Ok(reply_of::<wire::CacheDone>(frame)?.existed)
}
