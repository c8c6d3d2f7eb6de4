//! Entries of caches: values with versions and deadlines, and changes of entries. Also the sizes and counters of a
//! cache.

use std::{sync::Arc, time::Duration};

use thalweg_types::limits::MAX_TTL;

use crate::Moment;

/// Bytes counted for an entry in addition to its key and value. They cover slots of the tables with their slack, two
/// allocation headers, and the entry's timer.
pub const ENTRY_BYTES: u64 = 256;

/// Version of a key's value in a cache. Every put of a key assigns a higher version than the put before, also after
/// deletes and evictions, for the lifetime of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// Value of a key, with its version and deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheEntry {
    /// The value of the key. A clone is only a reference.
    pub value: Arc<[u8]>,
    /// Version that the last put of the key assigned.
    pub version: Version,
    /// Time at which the entry expires; [`Moment::NEVER`] if it has no deadline.
    pub deadline: Moment,
}

/// Choice of the time at which a written entry expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// The entry has no deadline; only eviction removes it.
    Never,
    /// The entry expires at this time.
    At(Moment),
    /// The entry keeps the deadline of the entry that it replaces. If it replaces none, it has no deadline.
    Keep,
}

impl Expiry {
    /// Returns the expiry at the time `ttl` after `now`. `ttl` is limited to [`MAX_TTL`].
    #[must_use]
    pub fn after(now: Moment, ttl: Duration) -> Self {
        Self::At(now.plus(ttl.min(MAX_TTL)))
    }

    /// Returns the deadline of an entry with this expiry. `before` is the deadline of the entry that it replaces.
    pub(super) fn moment(self, before: Moment) -> Moment {
        match self {
            Self::Never => Moment::NEVER,
            Self::At(moment) => moment,
            Self::Keep => before,
        }
    }
}

/// Condition that a key must meet for an operation to change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition<'v> {
    /// The key does not exist.
    Absent,
    /// The key exists, with any value.
    Present,
    /// The key has this version.
    Version(Version),
    /// The key has this value.
    Value(&'v [u8]),
}

impl Condition<'_> {
    pub(super) fn holds(&self, entry: Option<&CacheEntry>) -> bool {
        match self {
            Self::Absent => entry.is_none(),
            Self::Present => entry.is_some(),
            Self::Version(version) => entry.is_some_and(|entry| entry.version == *version),
            Self::Value(value) => entry.is_some_and(|entry| *entry.value == **value),
        }
    }
}

/// Change of a key's entry: put, touch, delete or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// Leaves the key's entry unchanged.
    Keep,
    /// Writes a value for the key.
    Put {
        /// The value to write.
        value: Arc<[u8]>,
        /// Expiry of the written entry.
        expiry: Expiry,
    },
    /// Changes the deadline of the entry and keeps its value. Has no effect if the key does not exist.
    Touch(Expiry),
    /// Deletes the key.
    Delete,
}

/// Sizes and counters of one cache, or of one of its shards. The counters start at 0 when the cache is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Number of entries, including expired entries whose memory is not freed yet.
    pub entries: u64,
    /// Bytes of the keys and values in the cache, plus [`ENTRY_BYTES`] for each entry.
    pub bytes: u64,
    /// Capacity of the cache in bytes. At this limit, the cache evicts entries.
    pub max_bytes: u64,
    /// Number of reads of the cache that found a value.
    pub hits: u64,
    /// Number of reads of the cache that found no value.
    pub misses: u64,
    /// Number of values written to the cache.
    pub puts: u64,
    /// Number of deletes that found a key in the cache.
    pub deletes: u64,
    /// Number of entries evicted because the cache was full.
    pub evictions: u64,
    /// Number of entries removed because their deadline had passed.
    pub expired: u64,
}

impl CacheCounts {
    /// Share of reads that found a value, from 0 to 1; `None` before the first read.
    #[must_use]
    pub fn hit_ratio(&self) -> Option<f64> {
        let reads = self.hits + self.misses;
        (reads > 0).then(|| self.hits as f64 / reads as f64)
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.entries += other.entries;
        self.bytes += other.bytes;
        self.max_bytes += other.max_bytes;
        self.hits += other.hits;
        self.misses += other.misses;
        self.puts += other.puts;
        self.deletes += other.deletes;
        self.evictions += other.evictions;
        self.expired += other.expired;
    }
}
