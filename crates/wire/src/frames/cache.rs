//! Caches: in memory, bounded, never logged.

use crate::{
    codec::{List, Rest},
    layouts::{choices, structure, variants},
};

variants! {
    /// How long an entry is to live.
    CacheTtl as "cache ttl" {
        /// Until it is evicted.
        Never = 0 "never" {},
        /// At most so many microseconds.
        After = 1 "after" {
            /// How many.
            micros: u64
        },
        /// As long as the entry that it takes the place of; without one, until it is evicted.
        Keep = 2 "keep" {},
    }
}

variants! {
    /// What must hold of an entry before it is changed.
    CacheExpect<'a> as "cache expect" {
        /// Nothing.
        Any = 0 "any" {},
        /// There is none.
        Absent = 1 "absent" {},
        /// There is one.
        Present = 2 "present" {},
        /// It is at this version.
        Version = 3 "version" {
            /// Which.
            version: u64
        },
        /// It has this value.
        Value = 4 "value" {
            /// Which.
            value: &'a [u8]
        },
    }
}

choices! {
    /// What happens if there is no cache of a name.
    CacheCreate as "cache create" {
        /// It is an error.
        Never = 0 "never",
        /// It is created.
        IfMissing = 1 "if missing",
    }
}

structure! {
    /// Asks for the id of a cache: of this run of the server, see [`Welcome::run`](super::Welcome::run).
    OpenCache<'a> as "open cache" {
        /// What happens if there is none.
        create: CacheCreate,
        /// Most bytes that it holds if it is created; 0: as the server likes.
        max_bytes: u64,
        /// Its name.
        name: &'a str,
    }
}

structure! {
    /// Reads an entry.
    CacheGet<'a> as "cache get" {
        /// Of which cache.
        cache: u32,
        /// Its key.
        key: Rest<'a>,
    }
}

structure! {
    /// Reads entries.
    CacheMultiGet<'a> as "cache multi get" {
        /// Of which cache.
        cache: u32,
        /// Their keys.
        keys: List<'a, &'a [u8]>,
    }
}

structure! {
    /// Sets an entry.
    CachePut<'a> as "cache put" {
        /// Of which cache.
        cache: u32,
        /// What must hold.
        expect: CacheExpect<'a>,
        /// How long it lives.
        ttl: CacheTtl,
        /// Its key.
        key: &'a [u8],
        /// Its value.
        value: Rest<'a>,
    }
}

structure! {
    /// A key and its value.
    CachePair<'a> as "cache pair" {
        /// The key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
    }
}

structure! {
    /// Sets entries, each by itself: others may see some of them before the rest.
    CacheMultiPut<'a> as "cache multi put" {
        /// Of which cache.
        cache: u32,
        /// How long they live.
        ttl: CacheTtl,
        /// What.
        pairs: List<'a, CachePair<'a>>,
    }
}

structure! {
    /// Removes an entry.
    CacheDelete<'a> as "cache delete" {
        /// Of which cache.
        cache: u32,
        /// What must hold.
        expect: CacheExpect<'a>,
        /// Its key.
        key: Rest<'a>,
    }
}

structure! {
    /// Gives an entry another time to live.
    CacheTouch<'a> as "cache touch" {
        /// Of which cache.
        cache: u32,
        /// How long it lives from now on.
        ttl: CacheTtl,
        /// Its key.
        key: Rest<'a>,
    }
}

structure! {
    /// Adds to a counter: decimal digits, as in keyspaces. One that is missing counts as 0.
    CacheAdd<'a> as "cache add" {
        /// Of which cache.
        cache: u32,
        /// How much.
        delta: i64,
        /// How long it lives.
        ttl: CacheTtl,
        /// Its key.
        key: Rest<'a>,
    }
}

structure! {
    /// Lists keys, in an order that means nothing. One that is there all the while is listed once.
    CacheScan as "cache scan" {
        /// Of which cache.
        cache: u32,
        /// What the page before gave; none for the first.
        cursor: Option<u64>,
        /// At most so many keys.
        limit: u32,
    }
}

structure! {
    /// Forgets all entries; figures stay.
    CacheClear as "cache clear" {
        /// Of which cache.
        cache: u32,
    }
}

structure! {
    /// Removes a cache. Its id is not used again in this run.
    DropCache as "drop cache" {
        /// Which.
        cache: u32,
    }
}

structure! {
    /// Asks for figures.
    ReadCacheStats as "read cache stats" {
        /// Of which cache; 0: of all.
        cache: u32,
    }
}

structure! {
    /// A cache that was asked for.
    CacheOpened as "cache opened" {
        /// Its id.
        cache: u32,
        /// Whether it was created.
        created: bool,
        /// Most bytes that it holds.
        max_bytes: u64,
    }
}

structure! {
    /// An entry as it was read.
    CacheValue<'a> as "cache value" {
        /// Of the put that made it; 0: there is no entry.
        version: u64,
        /// Microseconds that it has left to live; 2^64-1: it does not end by itself.
        remaining: u64,
        /// The value.
        value: Rest<'a>,
    }
}

structure! {
    /// One of several entries that were read.
    CacheEntry<'a> as "cache entry" {
        /// Of the put that made it; 0: there is no entry.
        version: u64,
        /// Microseconds that it has left to live; 2^64-1: it does not end by itself.
        remaining: u64,
        /// The value.
        value: &'a [u8],
    }
}

structure! {
    /// Entries as they were read, in the order asked for.
    CacheEntries<'a> as "cache entries" {
        /// One for each key.
        entries: List<'a, CacheEntry<'a>>,
    }
}

structure! {
    /// An entry was set.
    CacheStored as "cache stored" {
        /// Its version now.
        version: u64,
    }
}

structure! {
    /// An entry was removed or touched; or entries were set, or a cache cleared or dropped.
    CacheDone as "cache done" {
        /// Whether there was such an entry, or cache.
        existed: bool,
    }
}

structure! {
    /// A counter was added to.
    CacheCounter as "cache counter" {
        /// What it is now.
        value: i64,
    }
}

structure! {
    /// A page of keys.
    CacheKeys<'a> as "cache keys" {
        /// Where the next page begins; none at the end.
        cursor: Option<u64>,
        /// Keys.
        keys: List<'a, &'a [u8]>,
    }
}

structure! {
    /// Figures of a cache; counters count since it was created.
    CacheFigures<'a> as "cache figures" {
        /// Its id.
        cache: u32,
        /// Entries.
        entries: u64,
        /// Bytes of keys, values and what they cost beside.
        bytes: u64,
        /// Most of them.
        max_bytes: u64,
        /// Reads that found something.
        hits: u64,
        /// Reads that did not.
        misses: u64,
        /// Values set.
        puts: u64,
        /// Keys removed that were there.
        deletes: u64,
        /// Entries that had to go for others.
        evictions: u64,
        /// Entries whose time was up.
        expirations: u64,
        /// Its name.
        name: &'a str,
    }
}

structure! {
    /// Figures that were asked for.
    CacheStats<'a> as "cache stats" {
        /// By id.
        caches: List<'a, CacheFigures<'a>>,
    }
}
