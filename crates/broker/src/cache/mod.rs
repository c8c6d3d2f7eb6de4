//! Caches: bounded maps in memory, with deadlines and eviction of the least used entries.
//!
//! Owns: entries, their deadlines, and the choice of entries to evict. Does not own: time (an argument of
//! every call), or anything that survives the process: a cache is never logged.
//!
//! The hash of a key selects a shard. Each shard has a mutex, a part of the cache's capacity, its entries in the
//! eviction order of the `quick_cache` crate, and a timer wheel for deadlines. A read holds a shard's mutex for about
//! 30 ns. Operations on one key are atomic, also [`Cache::update`]. Operations on several keys are not atomic; they run
//! key by key.
//!
//! Reads do not return an entry past its deadline. Three operations free the memory of such an entry: the next read of
//! its key, [`Cache::reclaim`], and eviction.
//!
//! Threads that serve clients wait for a shard's mutex, so the work under it is bounded. A reclaim frees at most
//! `RECLAIM_AT_ONCE` entries and moves at most `MOVES_AT_ONCE` timers each time it holds the mutex. A put may double
//! the tables of a shard, which moves all entries of the shard; `MAX_SHARD_BYTES` bounds their number. A page of a scan
//! visits all entries of a shard twice.

mod entry;
mod error;
mod named;
mod shard;
mod wheel;

use std::{
    fmt,
    hash::BuildHasher,
    sync::{Arc, Mutex, MutexGuard},
};

use foldhash::quality::FixedState;
use thalweg_types::{
    counter::parse_counter,
    limits::{MAX_CACHE_SCAN_KEYS, MAX_KEY_BYTES, MAX_VALUE_BYTES, MIN_CACHE_BYTES},
};

use self::shard::{ClearedShard, Lookup, RemovedEntries, Shard, weight};
pub use self::{
    entry::{CacheCounts, CacheEntry, Condition, ENTRY_BYTES, Expiry, Update, Version},
    error::{CacheError, CreateCacheError},
    named::{CacheId, Caches, NamedCache},
};
use crate::{Moment, locked};

/// Minimum capacity in bytes of a shard, in a cache with several shards. A value of the maximum size fits into such a
/// shard.
const MIN_SHARD_BYTES: u64 = 16 * 1024 * 1024;
/// Usual number of shards, with which the threads of a node rarely contend. A small cache has fewer shards, because of
/// [`MIN_SHARD_BYTES`]. A large cache has more, because of [`MAX_SHARD_BYTES`].
const ENOUGH_SHARDS: u64 = 16;
/// Maximum capacity in bytes of a shard, except in a cache that has [`MAX_SHARDS`] shards. A shard of this capacity has
/// at most 262,144 entries, and remembers 32,768 evicted keys. Its tables double for the last time when both numbers
/// together reach 229,376, or half as many if each entry has more than 85 bytes of key and value. This doubling is
/// estimated to take 7 to 17 ms. An additional empty shard takes about 2.5 KiB of memory, including 2 KiB for slots of
/// timers.
const MAX_SHARD_BYTES: u64 = 64 * 1024 * 1024;
/// Maximum number of shards. The shards of an empty cache take at most 40 MiB. In a cache above 1 TiB, shards are
/// larger than [`MAX_SHARD_BYTES`].
const MAX_SHARDS: u64 = 1 << 14;
/// Maximum bytes of a value that a put overwrites in place. The put copies the new value while it holds the shard's
/// mutex.
const MAX_OVERWRITTEN_BYTES: usize = 1024;
/// Maximum number of expired entries that a reclaim frees each time it holds a shard's mutex.
const RECLAIM_AT_ONCE: usize = 64;
/// Maximum number of timers that a reclaim moves within a timer wheel each time it holds a shard's mutex. The moves are
/// estimated to take 20 to 100 µs.
const MOVES_AT_ONCE: usize = 1024;
/// Number of timers that one call of [`Cache::reclaim`] may move for each entry that it may free. A timer moves at most
/// seven times before it fires, and usually two or three times.
const MOVES_PER_ENTRY: usize = 8;

/// Limits of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Maximum bytes of keys and values, plus [`ENTRY_BYTES`] for each entry. At least [`MIN_CACHE_BYTES`]. At the
    /// limit, the cache evicts the least used entries. One entry can take at most 97 % of a shard. A cache below 32 MiB
    /// is a single shard. From 256 MiB to 1 GiB a cache has 16 shards of equal size. Above 1 GiB the number of shards
    /// doubles with each doubling of the capacity, up to 16,384 shards, so that a shard has at most 64 MiB.
    pub max_bytes: u64,
    /// Seed for hashing keys. Use a random number of the operating system, so that clients cannot choose keys with
    /// equal hashes.
    pub seed: u64,
}

/// Number of entries that a scan visits twice in one [step](thalweg_types::steps), the unit in which the work of a read
/// is counted.
const ENTRIES_VISITED_PER_STEP: u64 = 10;

/// Entries that [`Cache::clear`] has removed from a cache. Dropping this value frees them, which takes about 0.1 µs for
/// each entry. A thread that serves clients should leave this to another thread.
#[derive(Debug)]
#[must_use = "freeing the entries takes time"]
pub struct ClearedEntries(Vec<ClearedShard>);

impl ClearedEntries {
    /// Number of the removed entries.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.iter().map(ClearedShard::len).sum()
    }

    /// Returns true if the cache had no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Position of a scan of a cache's keys. Valid for the lifetime of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScanCursor(pub u64);

/// One page of the keys that a scan of a cache returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanPage {
    /// Keys of the page, in an arbitrary order.
    pub keys: Vec<Arc<[u8]>>,
    /// Position at which the next page begins; `None` after the last page.
    pub next: Option<ScanCursor>,
}

#[repr(align(128))]
struct Padded(Mutex<Shard>);

/// A bounded map in memory with deadlines, usable from any thread.
pub struct Cache {
    hasher: FixedState,
    shards: Box<[Padded]>,
    max_entry: u64,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Cache {
    /// Creates an empty cache.
    ///
    /// # Errors
    /// Returns [`CreateCacheError::TooSmall`] if the capacity is below the minimum.
    pub fn new(config: CacheConfig) -> Result<Self, CreateCacheError> {
        let CacheConfig { max_bytes, seed } = config;
        if max_bytes < MIN_CACHE_BYTES {
            return Err(CreateCacheError::TooSmall { bytes: max_bytes });
        }
        let shards = shards_of(max_bytes);
        let each = max_bytes / shards;
        let shard = |_| Padded(Mutex::new(Shard::new(each)));
        Ok(Self {
            hasher: FixedState::with_seed(seed),
            shards: (0..shards).map(shard).collect(),
            max_entry: Shard::max_entry(each),
        })
    }

    /// Returns the position of a hash in the order of scans. The highest bits of the position select the shard. They
    /// differ from the bits of the hash that a shard's hash table uses for its buckets and tags.
    fn scan_position(hash: u64) -> u64 {
        hash.rotate_left(24)
    }

    fn shard_of(&self, place: u64) -> usize {
        ((u128::from(place) * self.shards.len() as u128) >> 64) as usize
    }

    #[inline]
    fn shard<'k>(&self, bytes: &'k [u8]) -> (Lookup<'k>, MutexGuard<'_, Shard>) {
        let hash = self.hasher.hash_one(bytes);
        (Lookup { hash, bytes }, self.locked_shard(hash))
    }

    #[inline]
    fn locked_shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        locked(self.shards[self.shard_of(Self::scan_position(hash))].0.lock())
    }

    fn check(&self, key: &[u8], value: usize) -> Result<(), CacheError> {
        if key.len() > MAX_KEY_BYTES {
            return Err(CacheError::KeyTooLong { bytes: key.len() });
        }
        if value > MAX_VALUE_BYTES {
            return Err(CacheError::ValueTooLong { bytes: value });
        }
        let (bytes, max) = (weight(key.len(), value), self.max_entry);
        if bytes > max { Err(CacheError::EntryTooLarge { bytes, max }) } else { Ok(()) }
    }

    /// Returns the entry of a key; `None` if the cache has no entry for the key or the entry's deadline has passed.
    #[must_use]
    pub fn get(&self, now: Moment, key: &[u8]) -> Option<CacheEntry> {
        self.read(now, key, Clone::clone)
    }

    /// Calls `read` with the entry of a key, under the mutex of the shard. The caller can copy a small value this way
    /// without changing a reference count. `read` must not use this cache. Returns the result of `read`; `None` if the
    /// key has no entry.
    pub fn read<R>(&self, now: Moment, key: &[u8], read: impl FnOnce(&CacheEntry) -> R) -> Option<R> {
        let mut gone = RemovedEntries::new();
        let (key, mut shard) = self.shard(key);
        let found = shard.read(now, key, &mut gone, read);
        drop(shard);
        found
    }

    /// Returns the entry of each key, in the order of the keys; `None` for a key without an entry.
    #[must_use]
    pub fn get_many<'k>(&self, now: Moment, keys: impl IntoIterator<Item = &'k [u8]>) -> Vec<Option<CacheEntry>> {
        keys.into_iter().map(|key| self.get(now, key)).collect()
    }

    /// Writes the value of a key, whether the key exists or not. Returns the version that the write assigned.
    ///
    /// # Errors
    ///
    /// Returns an error if the key or value is too long, or the entry too large for the cache.
    pub fn put(&self, now: Moment, key: &[u8], value: &[u8], expiry: Expiry) -> Result<Version, CacheError> {
        self.check(key, value.len())?;
        let mut gone = RemovedEntries::new();
        let (key, mut shard) = self.shard(key);
        if expiry == Expiry::Never
            && value.len() <= MAX_OVERWRITTEN_BYTES
            && let Some(version) = shard.overwrite(key, value)
        {
            return Ok(version);
        }
        drop(shard);
        let value = Arc::from(value);
        let mut shard = self.locked_shard(key.hash);
        let (version, ()) = shard.update(now, key, &mut gone, |_| (Update::Put { value, expiry }, ()));
        drop(shard);
        Ok(version.expect("the put created the entry"))
    }

    /// Writes the value of a key if the key meets the condition (compare and set).
    ///
    /// # Errors
    /// Returns [`CacheError::ConditionFailed`], and the errors of [`put`](Self::put).
    pub fn put_if(
        &self,
        now: Moment,
        key: &[u8],
        value: &[u8],
        expiry: Expiry,
        condition: Condition<'_>,
    ) -> Result<Version, CacheError> {
        self.check(key, value.len())?;
        let value = Arc::from(value);
        let put = Update::Put { value, expiry };
        let version = self.update_if(now, key, condition, put)?;
        Ok(version.expect("the put created the entry"))
    }

    /// Writes the values of several keys. Each write is separate: other threads may see some of the new
    /// values before the others.
    ///
    /// # Errors
    /// Returns an error if a key or value is too long, or an entry too large. In this case no value was written.
    pub fn put_many<'k>(
        &self,
        now: Moment,
        pairs: impl IntoIterator<Item = (&'k [u8], &'k [u8])> + Clone,
        expiry: Expiry,
    ) -> Result<(), CacheError> {
        pairs.clone().into_iter().try_for_each(|(key, value)| self.check(key, value.len()))?;
        pairs.into_iter().try_for_each(|(key, value)| self.put(now, key, value, expiry).map(drop))
    }

    /// Deletes a key. Returns true if the key existed.
    pub fn delete(&self, now: Moment, key: &[u8]) -> bool {
        self.apply(now, key, |entry| (Update::Delete, entry.is_some())).1
    }

    /// Deletes a key if it meets the condition.
    ///
    /// # Errors
    /// Returns [`CacheError::ConditionFailed`] if the key does not meet the condition.
    pub fn delete_if(&self, now: Moment, key: &[u8], condition: Condition<'_>) -> Result<(), CacheError> {
        self.update_if(now, key, condition, Update::Delete).map(drop)
    }

    /// Changes the deadline of a key. Returns true if the key exists.
    pub fn touch(&self, now: Moment, key: &[u8], expiry: Expiry) -> bool {
        self.apply(now, key, |entry| (Update::Touch(expiry), entry.is_some())).1
    }

    /// Adds `delta` to a counter and returns the sum. Counters are 64-bit decimal numbers, like those of the
    /// key-value store; a missing key counts as 0.
    ///
    /// # Errors
    /// Returns [`CacheError::NotANumber`], [`CacheError::Overflow`], and the errors of [`put`](Self::put).
    pub fn add(&self, now: Moment, key: &[u8], delta: i64, expiry: Expiry) -> Result<i64, CacheError> {
        const MAX_DIGITS: usize = 20;
        self.check(key, MAX_DIGITS)?;
        let sum = |entry: Option<&CacheEntry>| {
            let value = entry.map_or(Some(0), |entry| parse_counter(&entry.value)).ok_or(CacheError::NotANumber)?;
            value.checked_add(delta).ok_or(CacheError::Overflow { value, delta })
        };
        let add = |entry: Option<&CacheEntry>| match sum(entry) {
            Ok(sum) => (Update::Put { value: sum.to_string().into_bytes().into(), expiry }, Ok(sum)),
            Err(error) => (Update::Keep, Err(error)),
        };
        self.apply(now, key, add).1
    }

    /// Calls `decide` with the current entry of a key, and applies the [`Update`] that `decide` returns. This is
    /// atomic: no other change, eviction or expiry comes in between. All operations that read and then write a key use
    /// this function. `decide` runs under a shard's mutex, so it should be fast and must not use this cache. Returns
    /// the version of the entry after the update, and the second result of `decide`.
    ///
    /// # Errors
    /// The update's value is too long or too large. The cache is unchanged, but `decide` was called.
    pub fn update<R>(
        &self,
        now: Moment,
        key: &[u8],
        decide: impl FnOnce(Option<&CacheEntry>) -> (Update, R),
    ) -> Result<(Option<Version>, R), CacheError> {
        self.check(key, 0)?;
        let (version, (checked, result)) = self.apply(now, key, |entry| {
            let (update, result) = decide(entry);
            let checked = match &update {
                Update::Put { value, .. } => self.check(key, value.len()),
                _ => Ok(()),
            };
            if checked.is_ok() { (update, (checked, result)) } else { (Update::Keep, (checked, result)) }
        });
        checked.map(|()| (version, result))
    }

    fn apply<R>(
        &self,
        now: Moment,
        key: &[u8],
        decide: impl FnOnce(Option<&CacheEntry>) -> (Update, R),
    ) -> (Option<Version>, R) {
        let mut gone = RemovedEntries::new();
        let (key, mut shard) = self.shard(key);
        let updated = shard.update(now, key, &mut gone, decide);
        drop(shard);
        updated
    }

    fn update_if(
        &self,
        now: Moment,
        key: &[u8],
        condition: Condition<'_>,
        update: Update,
    ) -> Result<Option<Version>, CacheError> {
        let decide = |entry: Option<&CacheEntry>| {
            if condition.holds(entry) {
                return (update, Ok(()));
            }
            let version = entry.map(|entry| entry.version);
            (Update::Keep, Err(CacheError::ConditionFailed { version }))
        };
        let (version, held) = self.apply(now, key, decide);
        held.map(|()| version)
    }

    /// Returns a page of the cache's keys, starting at a cursor. The page has up to `count` keys (limited to
    /// [`MAX_CACHE_SCAN_KEYS`]) with up to `max_bytes` bytes together, but at least one key if any is left. A complete
    /// scan returns every key that exists during the whole scan exactly once. It may or may not return keys that exist
    /// only during a part of the scan. Each page visits all entries of a shard twice under its mutex (about 5 ns each),
    /// so request large pages.
    #[must_use]
    pub fn scan(&self, now: Moment, from: Option<ScanCursor>, count: usize, max_bytes: usize) -> ScanPage {
        let count = count.clamp(1, MAX_CACHE_SCAN_KEYS);
        let first = from.map_or(0, |cursor| self.shard_of(cursor.0));
        let (mut page, mut room, mut end) = (ScanPage::default(), max_bytes, None);
        for shard in first..self.shards.len() {
            let after = from.map(|cursor| cursor.0);
            let wanted = count - page.keys.len();
            let (found, whole) =
                locked(self.shards[shard].0.lock()).keys_after(now, after, wanted, room, Self::scan_position);
            end = found.last().map(|(place, _)| *place).or(end);
            room = room.saturating_sub(found.iter().map(|(_, key)| key.len()).sum());
            page.keys.extend(found.into_iter().map(|(_, key)| key));
            // The page is full and ends here. The next page begins after the last key, or at the next shard.
            if page.keys.len() >= count || !whole || (room == 0 && !page.keys.is_empty()) {
                page.next = end.map(ScanCursor);
                break;
            }
        }
        page
    }

    /// Returns the position in a scan just after `key`. The key need not exist.
    #[must_use]
    pub fn cursor_behind(&self, key: &[u8]) -> ScanCursor {
        ScanCursor(Self::scan_position(self.hasher.hash_one(key)))
    }

    /// Removes all entries of the cache and returns them. The caller chooses the thread that frees them, because
    /// freeing takes much longer than removing. The counters of the cache keep their values.
    pub fn clear(&self) -> ClearedEntries {
        let clear = |shard: &Padded| locked(shard.0.lock()).clear();
        ClearedEntries(self.shards.iter().map(clear).collect())
    }

    /// Returns the number of [steps](thalweg_types::steps) (units of work) that one page of a scan costs in addition to
    /// the steps for the keys that it returns. The additional steps pay for visiting all entries of a shard twice.
    #[must_use]
    pub fn scan_steps(&self) -> u64 {
        self.stats().entries / self.shards.len() as u64 / ENTRIES_VISITED_PER_STEP
    }

    /// Frees up to `at_most` expired entries and returns their number. The driver should call this at about
    /// [`next_deadline`](Self::next_deadline), and again while the result is `at_most`. If very many timers must be
    /// moved first, a call may free fewer entries although more have expired. In this case `next_deadline` stays in the
    /// past.
    pub fn reclaim(&self, now: Moment, at_most: usize) -> usize {
        let (mut freed, mut moves) = (0, at_most.saturating_mul(MOVES_PER_ENTRY));
        for shard in &self.shards {
            loop {
                let mut gone = RemovedEntries::new();
                let some = RECLAIM_AT_ONCE.min(at_most - freed);
                let step = MOVES_AT_ONCE.min(moves);
                let mut left = step;
                let (more, is_done) = locked(shard.0.lock()).reclaim(now, some, &mut left, &mut gone);
                let moved = step - left;
                freed += more;
                moves -= moved;
                if is_done || (more == 0 && moved == 0) {
                    break;
                }
            }
        }
        freed
    }

    /// Earliest time at which the cache may have an expired entry to free; `None` if no entry has a deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.shards.iter().filter_map(|shard| locked(shard.0.lock()).next_due()).min()
    }

    /// Returns the present sizes and the counters of the cache, summed over its shards.
    #[must_use]
    pub fn stats(&self) -> CacheCounts {
        let mut stats = CacheCounts::default();
        for shard in &self.shards {
            stats.add(&locked(shard.0.lock()).stats());
        }
        stats
    }
}

/// Returns the number of shards for a cache of this capacity. The number is a power of two.
fn shards_of(max_bytes: u64) -> u64 {
    let for_threads = 1 << (max_bytes / MIN_SHARD_BYTES).clamp(1, ENOUGH_SHARDS).ilog2();
    let for_size = max_bytes.div_ceil(MAX_SHARD_BYTES).min(MAX_SHARDS).next_power_of_two();
    for_size.max(for_threads)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_shards_of_a_cache_are_neither_too_small_nor_too_large() {
        const MIB: u64 = 1 << 20;
        for (mib, shards) in [
            (1, 1),
            (31, 1),
            (32, 2),
            (255, 8),
            (256, 16),
            (1024, 16),
            (1025, 32),
            (2048, 32),
            (100 * 1024, 2048),
            (1 << 20, 16_384),
            (1 << 40, 16_384),
        ] {
            assert_eq!(shards_of(mib * MIB), shards, "{mib} MiB");
        }
        assert!(size_of::<Padded>() <= 512, "{} bytes beside the slots of timers", size_of::<Padded>());
        for mib in 1..10_000 {
            let shards = shards_of(mib * MIB);
            let each = mib * MIB / shards;
            assert!(shards.is_power_of_two() && each <= MAX_SHARD_BYTES, "{mib} MiB");
            assert!(shards == 1 || each >= MIN_SHARD_BYTES, "{mib} MiB");
        }
    }

    #[test]
    fn very_many_timers_of_one_slot_are_moved_in_parts() {
        const ENTRIES: u32 = 10_000;
        let cache = Cache::new(CacheConfig { max_bytes: 8 << 20, seed: 1 }).unwrap();
        let (begin, deadline) = (Moment::from_nanos(0), Moment::from_nanos(0).plus(Duration::from_secs(3600)));
        for key in 0..ENTRIES {
            cache.put(begin, &key.to_be_bytes(), b"v", Expiry::At(deadline)).unwrap();
        }
        let now = deadline.plus(Duration::from_secs(1));
        // The first call only moves timers. Several calls are necessary before the first entry is freed.
        assert_eq!(cache.reclaim(now, 100), 0);
        let (mut calls, mut freed) = (1, 0);
        while freed < ENTRIES as usize {
            assert!(cache.next_deadline().is_some_and(|due| due <= now), "there is more to do");
            freed += cache.reclaim(now, 100);
            calls += 1;
        }
        // Each timer has moved at least once, which limits the number of calls from below.
        assert!((ENTRIES as usize / (100 * MOVES_PER_ENTRY)..1_000).contains(&calls), "{calls}");
        assert!(cache.next_deadline().is_none() && cache.stats().entries == 0);
    }
}
