//! A shard of a cache: entries and their timers, under one mutex.
//!
//! Owns: the entries of the shard, their versions and timers, eviction, and the counters of the shard. Does not own:
//! the mutex and the choice of a key's shard (`mod`), the decision about an update (its caller), or the timer wheel
//! itself (`wheel`).
//!
//! Every operation on a key has exclusive access to its shard: reads, writes, eviction and expiry. So an operation that
//! reads and then writes a key is atomic.
//!
//! Invariants: an entry with a deadline has exactly one timer, and every timer has its entry; no read returns
//! an entry past its deadline.

use std::{
    hash::{BuildHasher, Hash, Hasher},
    sync::Arc,
};

use quick_cache::{Equivalent, Lifecycle, OptionsBuilder, Weighter, unsync};
use smallvec::SmallVec;

use super::{
    entry::{CacheCounts, CacheEntry, ENTRY_BYTES, Update, Version},
    wheel::{Due, TimerId, Wheel},
};
use crate::Moment;

/// Share of a shard's capacity that the most used entries may take, from 0 to 1. A single entry may take the same
/// share.
const HOT: f64 = 0.97;
/// Bytes of capacity per remembered key. A shard remembers the keys of some evicted entries. When such a key is written
/// again, its entry counts as used before. A remembered key takes about 100 bytes, so all remembered keys take about 5
/// % of the capacity.
const BYTES_PER_GHOST: u64 = 2048;

/// Longest key in bytes that is stored inside its entry's slot. A lookup of such a key needs no further access to
/// memory outside the slot, and a put needs no allocation for it.
const MAX_SHORT: usize = 22;

#[derive(Clone, Debug)]
enum KeyBytes {
    Short { len: u8, bytes: [u8; MAX_SHORT] },
    Long(Arc<[u8]>),
}

const _: () = assert!(size_of::<KeyBytes>() == 24);

impl KeyBytes {
    fn new(key: &[u8]) -> Self {
        if key.len() > MAX_SHORT {
            return Self::Long(key.into());
        }
        let mut bytes = [0; MAX_SHORT];
        bytes[..key.len()].copy_from_slice(key);
        Self::Short { len: key.len() as u8, bytes }
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }
}

impl PartialEq for KeyBytes {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for KeyBytes {}

/// A key of a cache with its hash. The hash is computed only once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    hash: u64,
    bytes: KeyBytes,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// A key with its hash, borrowed for the search for the key's entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookup<'k> {
    pub(crate) hash: u64,
    pub(crate) bytes: &'k [u8],
}

impl Hash for Lookup<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Equivalent<Key> for Lookup<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.hash == key.hash && self.bytes == key.bytes.as_slice()
    }
}

/// Hasher that returns the hash stored in the key, instead of computing a new one.
#[derive(Clone, Debug)]
struct StoredHasher;

#[derive(Default)]
struct StoredHashBuilder(u64);

impl BuildHasher for StoredHasher {
    type Hasher = StoredHashBuilder;

    fn build_hasher(&self) -> StoredHashBuilder {
        StoredHashBuilder(0)
    }
}

impl Hasher for StoredHashBuilder {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys write their hash");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Debug)]
pub(crate) struct Stored {
    entry: CacheEntry,
    timer: TimerId,
}

/// Entries that an operation removed from a shard. They are freed after the shard's mutex is released.
pub(crate) type RemovedEntries = SmallVec<[(Key, Stored); 2]>;

#[derive(Clone, Debug)]
struct EntryWeigher;

impl Weighter<Key, Stored> for EntryWeigher {
    fn weight(&self, key: &Key, stored: &Stored) -> u64 {
        weight(key.bytes.as_slice().len(), stored.entry.value.len())
    }
}

pub(crate) fn weight(key: usize, value: usize) -> u64 {
    (key + value) as u64 + ENTRY_BYTES
}

#[derive(Clone, Debug)]
struct EvictedCollector;

impl Lifecycle<Key, Stored> for EvictedCollector {
    type RequestState = RemovedEntries;

    fn on_evict(&self, gone: &mut RemovedEntries, key: Key, stored: Stored) {
        gone.push((key, stored));
    }
}

type Entries = unsync::Cache<Key, Stored, EntryWeigher, StoredHasher, EvictedCollector>;

#[derive(Debug)]
pub(crate) struct Shard {
    max_bytes: u64,
    entries: Entries,
    timers: Wheel<Key>,
    last_version: u64,
    stats: CacheCounts,
}

/// All entries that a clear removed from one shard.
#[derive(Debug)]
pub(crate) struct ClearedShard {
    entries: Entries,
    _timers: Wheel<Key>,
}

impl ClearedShard {
    pub(crate) fn len(&self) -> u64 {
        self.entries.len() as u64
    }
}

/// A key with its position in the order of scans.
pub(super) type PositionedKey = (u64, Arc<[u8]>);

impl Shard {
    pub(crate) fn new(max_bytes: u64) -> Self {
        let stats = CacheCounts::default();
        Self { max_bytes, entries: entries(max_bytes), timers: Wheel::new(), last_version: 0, stats }
    }

    /// Maximum bytes of an entry in a shard with a capacity of `max_bytes`.
    pub(crate) fn max_entry(max_bytes: u64) -> u64 {
        (max_bytes as f64 * HOT) as u64
    }

    pub(crate) fn stats(&self) -> CacheCounts {
        let (entries, bytes) = (self.entries.len() as u64, self.entries.weight());
        CacheCounts { entries, bytes, max_bytes: self.max_bytes, ..self.stats }
    }

    /// Calls `read` with the entry of a key at time `now`. The eviction order treats the entry as used. Returns the
    /// result of `read`; `None` if the key has no entry.
    #[inline]
    pub(crate) fn read<R>(
        &mut self,
        now: Moment,
        key: Lookup<'_>,
        gone: &mut RemovedEntries,
        read: impl FnOnce(&CacheEntry) -> R,
    ) -> Option<R> {
        let found = self.entries.get(&key);
        if let Some(stored) = found.filter(|stored| stored.entry.deadline > now) {
            self.stats.hits += 1;
            return Some(read(&stored.entry));
        }
        if found.is_some() {
            self.expire(key, gone);
        }
        self.stats.misses += 1;
        None
    }

    /// Overwrites a value in place, which needs no allocation and moves no entry. Does this only if the new value has
    /// the same length, no reader holds the old value, and the entry has no deadline. Returns the new version; `None`
    /// if the value cannot be overwritten.
    #[inline]
    pub(crate) fn overwrite(&mut self, key: Lookup<'_>, value: &[u8]) -> Option<Version> {
        let mut stored = self.entries.get_mut(&key).filter(|stored| stored.entry.deadline == Moment::NEVER)?;
        let place = Arc::get_mut(&mut stored.entry.value).filter(|place| place.len() == value.len())?;
        place.copy_from_slice(value);
        self.last_version += 1;
        self.stats.puts += 1;
        stored.entry.version = Version(self.last_version);
        Some(stored.entry.version)
    }

    fn expire(&mut self, key: Lookup<'_>, gone: &mut RemovedEntries) {
        if self.remove(key, gone) {
            self.stats.expired += 1;
        }
    }

    fn remove(&mut self, key: Lookup<'_>, gone: &mut RemovedEntries) -> bool {
        let Some((key, stored)) = self.entries.remove(&key) else { return false };
        self.timers.cancel(stored.timer);
        gone.push((key, stored));
        true
    }

    /// Calls `decide` with the current entry of a key and applies the update that `decide` returns. Returns
    /// the version of the entry afterwards.
    pub(crate) fn update<R>(
        &mut self,
        now: Moment,
        key: Lookup<'_>,
        gone: &mut RemovedEntries,
        decide: impl FnOnce(Option<&CacheEntry>) -> (Update, R),
    ) -> (Option<Version>, R) {
        let found = self.entries.peek(&key);
        let live = found.map(|stored| &stored.entry).filter(|entry| entry.deadline > now);
        let has_ended = found.is_some() && live.is_none();
        let (version, deadline) = live.map_or((None, Moment::NEVER), |live| (Some(live.version), live.deadline));
        let (update, result) = decide(live);
        if has_ended {
            self.expire(key, gone);
        }
        let after = match update {
            Update::Keep => version,
            Update::Put { value, expiry } => Some(self.put(key, value, expiry.moment(deadline), gone)),
            Update::Touch(expiry) => {
                if version.is_some() {
                    self.touch(key, expiry.moment(deadline));
                }
                version
            }
            Update::Delete => {
                self.stats.deletes += u64::from(self.remove(key, gone));
                None
            }
        };
        (after, result)
    }

    fn put(&mut self, key: Lookup<'_>, value: Arc<[u8]>, deadline: Moment, gone: &mut RemovedEntries) -> Version {
        self.last_version += 1;
        let version = Version(self.last_version);
        let key = Key { hash: key.hash, bytes: KeyBytes::new(key.bytes) };
        let timer = self.timer(&key, deadline);
        let from = gone.len();
        let stored = Stored { entry: CacheEntry { value, version, deadline }, timer };
        self.entries.insert_with_lifecycle(key.clone(), stored, gone);
        for (left, stored) in &gone[from..] {
            self.timers.cancel(stored.timer);
            self.stats.evictions += u64::from(*left != key);
        }
        self.stats.puts += 1;
        version
    }

    fn timer(&mut self, key: &Key, deadline: Moment) -> TimerId {
        if deadline == Moment::NEVER { TimerId::NONE } else { self.timers.set(deadline, key.clone()) }
    }

    /// Changes the deadline of an entry, if the entry exists.
    fn touch(&mut self, lookup: Lookup<'_>, deadline: Moment) {
        let Self { entries, timers, .. } = self;
        let Some(mut stored) = entries.peek_mut(&lookup) else { return };
        let key = match timers.cancel(stored.timer) {
            Some(key) => key,
            None => Key { hash: lookup.hash, bytes: KeyBytes::new(lookup.bytes) },
        };
        stored.timer = if deadline == Moment::NEVER { TimerId::NONE } else { timers.set(deadline, key) };
        stored.entry.deadline = deadline;
    }

    /// Frees up to `at_most` expired entries of the shard. To find them, moves at most `moves` timers within the wheel,
    /// and subtracts the moved ones from `moves`. Returns the number of freed entries. The second result is true if no
    /// further entry is known to have expired.
    pub(crate) fn reclaim(
        &mut self,
        now: Moment,
        at_most: usize,
        moves: &mut usize,
        gone: &mut RemovedEntries,
    ) -> (usize, bool) {
        for freed in 0..at_most {
            let key = match self.timers.pop_due(now, moves) {
                Due::Fired(key) => key,
                Due::None => return (freed, true),
                Due::Moving => return (freed, false),
            };
            let lookup = Lookup { hash: key.hash, bytes: key.bytes.as_slice() };
            if let Some(left) = self.entries.remove(&lookup) {
                gone.push(left);
            }
            self.stats.expired += 1;
        }
        (at_most, false)
    }

    pub(crate) fn next_due(&self) -> Option<Moment> {
        self.timers.next_due()
    }

    /// Removes all entries of the shard and returns them. The caller frees them after it has released the mutex.
    pub(crate) fn clear(&mut self) -> ClearedShard {
        let entries = std::mem::replace(&mut self.entries, entries(self.max_bytes));
        ClearedShard { entries, _timers: std::mem::replace(&mut self.timers, Wheel::new()) }
    }

    /// Returns the keys after a position in the order of scans: up to `at_most` keys, and in addition all keys with the
    /// same position as the last of them. The second result is false if `max_bytes` shortened the list.
    pub(crate) fn keys_after(
        &self,
        now: Moment,
        after: Option<u64>,
        at_most: usize,
        max_bytes: usize,
        place: impl Fn(u64) -> u64,
    ) -> (Vec<PositionedKey>, bool) {
        let live = || {
            let live = self.entries.iter().filter(|(_, stored)| stored.entry.deadline > now);
            let placed = live.map(|(key, _)| (place(key.hash), key));
            placed.filter(|(place, _)| after.is_none_or(|after| *place > after))
        };
        let mut places: Vec<u64> = live().map(|(place, _)| place).collect();
        let last = if places.len() > at_most { *places.select_nth_unstable(at_most - 1).1 } else { u64::MAX };
        let mut keys: Vec<_> =
            live().filter(|(place, _)| *place <= last).map(|(place, key)| (place, key.bytes.as_slice())).collect();
        keys.sort_unstable();
        // Keys with equal positions stay on one page, because the next page begins after the position of the last key.
        let (mut bytes, mut last) = (0, None);
        let mut fits = |(place, key): &(u64, &[u8])| {
            bytes += key.len();
            let fits = last.is_none_or(|last| last == *place) || bytes <= max_bytes;
            last = Some(*place);
            fits
        };
        let fitting = keys.iter().position(|found| !fits(found)).unwrap_or(keys.len());
        let whole = fitting == keys.len();
        (keys.into_iter().take(fitting).map(|(place, key)| (place, Arc::from(key))).collect(), whole)
    }
}

fn entries(max_bytes: u64) -> Entries {
    let mut options = OptionsBuilder::new();
    options.weight_capacity(max_bytes).hot_allocation(HOT).ghost_allocation(1.0);
    options.estimated_items_capacity((max_bytes / BYTES_PER_GHOST) as usize);
    let options = options.build().expect("both capacities are given");
    Entries::with_options(options, EntryWeigher, StoredHasher, EvictedCollector)
}
