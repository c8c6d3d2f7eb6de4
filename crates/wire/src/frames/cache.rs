//! Frames of caches. A cache is a bounded map in memory, which is never logged.
//!
//! Owns: the contents of these frames. Does not own: their numbers and senders (`mod`), or the operations on caches,
//! which the broker executes.

use thalweg_types::codec::{List, RemainingBytes, choices, structure, variants};
pub use thalweg_types::info::CacheFigures;

variants! {
    /// Time to live of an entry.
    CacheTtl as "cache ttl" {
        /// The entry lives until the cache evicts it.
        Never = 0 "never" {},
        /// The entry lives for at most a given time.
        After = 1 "after" {
            /// Maximum lifetime of the cache entry in microseconds.
            micros: u64
        },
        /// The entry keeps the deadline of the entry that it replaces. If it replaces none, it lives until the cache
        /// evicts it.
        Keep = 2 "keep" {},
    }
}

variants! {
    /// Condition on an entry that the server checks before it changes the entry.
    CacheExpect<'a> as "cache expect" {
        /// The server checks no condition.
        Any = 0 "any" {},
        /// The key must have no entry.
        Absent = 1 "absent" {},
        /// The key must have an entry.
        Present = 2 "present" {},
        /// The key's entry must have this version.
        Version = 3 "version" {
            /// Version that the entry must have.
            version: u64
        },
        /// The key's entry must have this value.
        Value = 4 "value" {
            /// Value that the entry must have.
            value: &'a [u8]
        },
    }
}

choices! {
    /// Behaviour of [`OpenCache`] if no cache has the requested name.
    CacheCreate as "cache create" {
        /// The request fails if no cache has the requested name.
        Never = 0 "never",
        /// The server creates the cache if no cache has the requested name.
        IfMissing = 1 "if missing",
    }
}

structure! {
    /// Requests the id of a cache. The id is valid for one run of the server, see
    /// [`Welcome::run`](super::Welcome::run).
    OpenCache<'a> as "open cache" {
        /// Behaviour if no cache has the requested name.
        create: CacheCreate,
        /// Capacity of a created cache in bytes; 0 selects the server's default.
        max_bytes: u64,
        /// Name of the cache to open.
        name: &'a str,
    }
}

structure! {
    /// Reads an entry of a cache.
    CacheGet<'a> as "cache get" {
        /// Id of the cache to read.
        cache: u32,
        /// Key to read.
        key: RemainingBytes<'a>,
    }
}

structure! {
    /// Reads several entries of a cache.
    CacheMultiGet<'a> as "cache multi get" {
        /// Id of the cache to read.
        cache: u32,
        /// Keys to read.
        keys: List<'a, &'a [u8]>,
    }
}

structure! {
    /// Sets an entry of a cache.
    CachePut<'a> as "cache put" {
        /// Id of the cache in which the entry is set.
        cache: u32,
        /// Condition on the key's present entry.
        expect: CacheExpect<'a>,
        /// Time to live of the new entry.
        ttl: CacheTtl,
        /// Key to set.
        key: &'a [u8],
        /// Value of the new entry.
        value: RemainingBytes<'a>,
    }
}

structure! {
    /// A key and its value, as an item of a [`CacheMultiPut`] request.
    CachePair<'a> as "cache pair" {
        /// Key of the pair.
        key: &'a [u8],
        /// Value of the pair.
        value: &'a [u8],
    }
}

structure! {
    /// Sets several entries of a cache, one after the other. Other clients may see some of the entries before the
    /// others are set.
    CacheMultiPut<'a> as "cache multi put" {
        /// Id of the cache in which the entries are set.
        cache: u32,
        /// Time to live of the new entries.
        ttl: CacheTtl,
        /// Entries to set.
        pairs: List<'a, CachePair<'a>>,
    }
}

structure! {
    /// Removes an entry of a cache.
    CacheDelete<'a> as "cache delete" {
        /// Id of the cache from which the entry is removed.
        cache: u32,
        /// Condition on the key's present entry.
        expect: CacheExpect<'a>,
        /// Key to remove.
        key: RemainingBytes<'a>,
    }
}

structure! {
    /// Changes the time to live of an entry of a cache.
    CacheTouch<'a> as "cache touch" {
        /// Id of the cache that has the entry.
        cache: u32,
        /// New time to live of the entry, from now on.
        ttl: CacheTtl,
        /// Key of the entry whose time to live changes.
        key: RemainingBytes<'a>,
    }
}

structure! {
    /// Adds a number to a counter in a cache, and creates the counter at 0 if it is missing. The value is stored as
    /// decimal digits, as for counters in keyspaces.
    CacheAdd<'a> as "cache add" {
        /// Id of the cache that has the counter.
        cache: u32,
        /// Number to add to the counter.
        delta: i64,
        /// Time to live of the counter's entry.
        ttl: CacheTtl,
        /// Key of the counter.
        key: RemainingBytes<'a>,
    }
}

structure! {
    /// Lists keys of a cache in an unspecified order. A key that is present throughout the scan is listed once.
    CacheScan as "cache scan" {
        /// Id of the cache whose keys are listed.
        cache: u32,
        /// Cursor that the previous page returned; none for the first page.
        cursor: Option<u64>,
        /// Maximum number of keys in the returned page.
        limit: u32,
    }
}

structure! {
    /// Removes all entries of a cache. The statistics of the cache stay.
    CacheClear as "cache clear" {
        /// Id of the cache to clear.
        cache: u32,
    }
}

structure! {
    /// Drops a cache. The server does not use the cache's id again until it restarts.
    DropCache as "drop cache" {
        /// Id of the cache to drop.
        cache: u32,
    }
}

structure! {
    /// Requests the statistics of one cache or of all caches.
    ReadCacheStats as "read cache stats" {
        /// Id of the cache whose statistics are requested; 0 selects all caches.
        cache: u32,
    }
}

structure! {
    /// Reply to [`OpenCache`]: the id of the opened cache.
    CacheOpened as "cache opened" {
        /// Id of the opened cache.
        cache: u32,
        /// True if this request created the cache; false if the cache existed.
        created: bool,
        /// Capacity of the cache in bytes.
        max_bytes: u64,
    }
}

structure! {
    /// Reply to [`CacheGet`]: an entry of a cache.
    CacheValue<'a> as "cache value" {
        /// Version that the put of this entry assigned; 0 means that the key has no entry.
        version: u64,
        /// Remaining time to live in microseconds; 2^64-1 means that the entry has no deadline.
        remaining: u64,
        /// Value of the requested cache entry.
        value: RemainingBytes<'a>,
    }
}

structure! {
    /// One entry of a [`CacheEntries`] reply.
    CacheEntry<'a> as "cache entry" {
        /// Version that the put of this entry assigned; 0 means that the key has no entry.
        version: u64,
        /// Remaining time to live in microseconds; 2^64-1 means that the entry has no deadline.
        remaining: u64,
        /// Value of the entry.
        value: &'a [u8],
    }
}

structure! {
    /// Reply to [`CacheMultiGet`]: entries in the order of the requested keys.
    CacheEntries<'a> as "cache entries" {
        /// One entry for each requested key.
        entries: List<'a, CacheEntry<'a>>,
    }
}

structure! {
    /// Reply to [`CachePut`]: the entry was set.
    CacheStored as "cache stored" {
        /// Version of the new entry.
        version: u64,
    }
}

structure! {
    /// Reply to requests that remove or touch an entry, set several entries, or clear or drop a cache.
    CacheDone as "cache done" {
        /// True if the entry to remove or touch, or the cache to drop, existed. Always true for a clear. If the request
        /// sets entries, false only if it contains none.
        existed: bool,
    }
}

structure! {
    /// Reply to [`CacheAdd`]: the value of the counter.
    CacheCounter as "cache counter" {
        /// Value of the counter after the addition.
        value: i64,
    }
}

structure! {
    /// Reply to [`CacheScan`]: a page of the cache's keys.
    CacheKeys<'a> as "cache keys" {
        /// Cursor with which to request the next page; none after the last page.
        cursor: Option<u64>,
        /// Keys in the page.
        keys: List<'a, &'a [u8]>,
    }
}

structure! {
    /// Reply to [`ReadCacheStats`]: statistics of one cache or of all caches.
    CacheStats<'a> as "cache stats" {
        /// Statistics of each cache, ordered by id.
        caches: List<'a, CacheFigures>,
    }
}
