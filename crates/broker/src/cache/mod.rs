//! Caches: bounded maps in memory, with deadlines, that forget what is used least.
//!
//! Owns: entries, their deadlines, which leave when there is no room. Does not own: time (an argument everywhere), or
//! anything that survives the process: a cache is never logged.
//!
//! A cache is cut into shards by the keys' hashes; each is a mutex over a part of the bytes, its entries in the
//! `quick_cache` crate's eviction order, and a timer wheel. A read takes a shard's mutex for some 30 ns. What happens to
//! one key is atomic, whatever else happens: see [`Cache::update`]. Operations on several keys are as many operations.
//!
//! What is past its deadline is not there for any read, at once; its memory comes back when it is read, when
//! [`Cache::reclaim`] comes by, or when it is evicted.

mod error;
mod named;
mod shard;
mod wheel;

use std::{
    fmt,
    hash::BuildHasher,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use foldhash::quality::FixedState;
use thalweg_types::limits::{MAX_CACHE_SCAN_KEYS, MAX_KEY_BYTES, MAX_TTL, MAX_VALUE_BYTES, MIN_CACHE_BYTES};

use self::shard::{Gone, Lookup, Shard, weight};
pub use self::{
    error::{CacheError, CreateCacheError},
    named::{CacheId, Caches, NamedCache},
};
use crate::{Moment, locked};

/// What an entry is counted for beside the bytes of its key and value: the tables' slots with their slack, the headers
/// of two allocations, its timer.
pub const ENTRY_BYTES: u64 = 256;

/// Bytes of a shard, at least, if there are to be several: so that the largest value fits.
const MIN_SHARD_BYTES: u64 = 16 * 1024 * 1024;
/// Enough that the threads of a node seldom meet.
const MAX_SHARDS: u64 = 16;
/// Longer values are not copied under a shard's mutex when one is put in the place of another.
const MAX_OVERWRITTEN_BYTES: usize = 1024;
/// Entries freed at a time under a shard's mutex.
const RECLAIM_AT_ONCE: usize = 64;

/// What a cache may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Bytes of keys and values, with [`ENTRY_BYTES`] for each entry. At least [`MIN_CACHE_BYTES`]. At the bound the
    /// least used entries leave. An entry may take at most 97 % of a shard: of the cache, up to 32 MiB; of a 16th of it,
    /// from 256 MiB.
    pub max_bytes: u64,
    /// Under which keys are hashed. From the system's randomness, so that nobody can choose keys that collide.
    pub seed: u64,
}

/// Tells one put of a key from another. Rises with every put of the key, over deletes and evictions too, as long as the
/// cache lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// What is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheEntry {
    /// Its value. A clone is a reference.
    pub value: Arc<[u8]>,
    /// Of the put that made it.
    pub version: Version,
    /// From then on it is not there; [`Moment::NEVER`] if it has none.
    pub deadline: Moment,
}

/// Until when an entry is to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Until it is evicted.
    Never,
    /// Until then at most.
    At(Moment),
    /// As long as the one that it takes the place of; without one, as `Never`.
    Keep,
}

impl Expiry {
    /// So long from now; at most [`MAX_TTL`].
    #[must_use]
    pub fn after(now: Moment, ttl: Duration) -> Self {
        Self::At(now.plus(ttl.min(MAX_TTL)))
    }
}

/// What must be the case for a change to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition<'v> {
    /// The key is not there.
    Absent,
    /// The key is there.
    Present,
    /// It has that version.
    Version(Version),
    /// It has that value.
    Value(&'v [u8]),
}

impl Condition<'_> {
    fn holds(&self, entry: Option<&CacheEntry>) -> bool {
        match self {
            Self::Absent => entry.is_none(),
            Self::Present => entry.is_some(),
            Self::Version(version) => entry.is_some_and(|entry| entry.version == *version),
            Self::Value(value) => entry.is_some_and(|entry| *entry.value == **value),
        }
    }
}

/// What becomes of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// Nothing changes.
    Keep,
    /// It has this value.
    Put {
        /// The value.
        value: Arc<[u8]>,
        /// Until when.
        expiry: Expiry,
    },
    /// It has its value, until another time. Nothing if it is not there.
    Touch(Expiry),
    /// It is not there.
    Delete,
}

/// A cache, or all of them, at one moment. Counters run since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Entries, those past their deadline included that have not been reclaimed.
    pub entries: u64,
    /// What they are counted for.
    pub bytes: u64,
    /// What they may come to.
    pub max_bytes: u64,
    /// Reads that found something.
    pub hits: u64,
    /// Reads that found nothing.
    pub misses: u64,
    /// Values written.
    pub puts: u64,
    /// Keys deleted that were there.
    pub deletes: u64,
    /// Entries that left for want of room.
    pub evictions: u64,
    /// Entries removed because of their deadline.
    pub expired: u64,
}

impl CacheStats {
    /// Hits of all reads; nothing if there were none.
    #[must_use]
    pub fn hit_ratio(&self) -> Option<f64> {
        let reads = self.hits + self.misses;
        (reads > 0).then(|| self.hits as f64 / reads as f64)
    }

    fn add(&mut self, other: &Self) {
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

/// Where a scan goes on. Good for as long as the cache lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScanCursor(pub u64);

/// A part of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanPage {
    /// Keys, in an order that means nothing.
    pub keys: Vec<Arc<[u8]>>,
    /// Where to go on; nothing at the end.
    pub next: Option<ScanCursor>,
}

#[repr(align(128))]
struct Padded(Mutex<Shard>);

/// One cache.
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
    /// One with nothing in it.
    ///
    /// # Errors
    /// [`CreateCacheError::TooSmall`].
    pub fn new(config: CacheConfig) -> Result<Self, CreateCacheError> {
        let CacheConfig { max_bytes, seed } = config;
        if max_bytes < MIN_CACHE_BYTES {
            return Err(CreateCacheError::TooSmall { bytes: max_bytes });
        }
        let shards = 1 << (max_bytes / MIN_SHARD_BYTES).clamp(1, MAX_SHARDS).ilog2();
        let each = max_bytes / shards;
        let shard = |_| Padded(Mutex::new(Shard::new(each)));
        Ok(Self {
            hasher: FixedState::with_seed(seed),
            shards: (0..shards).map(shard).collect(),
            max_entry: Shard::max_entry(each),
        })
    }

    /// Where a hash stands in the order of scans. Its highest bits choose the shard; they are neither those by which the
    /// table inside finds a bucket nor those by which it tells entries apart.
    fn place(hash: u64) -> u64 {
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
        locked(self.shards[self.shard_of(Self::place(hash))].0.lock())
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

    /// What is there.
    #[must_use]
    pub fn get(&self, now: Moment, key: &[u8]) -> Option<CacheEntry> {
        self.read(now, key, Clone::clone)
    }

    /// Gives what is there to `read`, under the shard's mutex: for copying a small value to where it is needed, without a
    /// reference being counted. It must not use this cache.
    pub fn read<R>(&self, now: Moment, key: &[u8], read: impl FnOnce(&CacheEntry) -> R) -> Option<R> {
        let mut gone = Gone::new();
        let (key, mut shard) = self.shard(key);
        let found = shard.read(now, key, &mut gone, read);
        drop(shard);
        found
    }

    /// What is there of each.
    #[must_use]
    pub fn get_many<'k>(&self, now: Moment, keys: impl IntoIterator<Item = &'k [u8]>) -> Vec<Option<CacheEntry>> {
        keys.into_iter().map(|key| self.get(now, key)).collect()
    }

    /// Puts a value, whatever is there.
    ///
    /// # Errors
    /// Too long or too large for this cache.
    pub fn put(&self, now: Moment, key: &[u8], value: &[u8], expiry: Expiry) -> Result<Version, CacheError> {
        self.check(key, value.len())?;
        let mut gone = Gone::new();
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
        Ok(version.expect("what was put is there"))
    }

    /// Puts a value if the condition holds: compare and set.
    ///
    /// # Errors
    /// [`CacheError::ConditionFailed`]; or as [`put`](Self::put).
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
        Ok(version.expect("what was put is there"))
    }

    /// Puts several. Each on its own: others may see some of them before the rest.
    ///
    /// # Errors
    /// One is too long or too large: then none was put.
    pub fn put_many<'k>(
        &self,
        now: Moment,
        pairs: impl IntoIterator<Item = (&'k [u8], &'k [u8])> + Clone,
        expiry: Expiry,
    ) -> Result<(), CacheError> {
        pairs.clone().into_iter().try_for_each(|(key, value)| self.check(key, value.len()))?;
        pairs.into_iter().try_for_each(|(key, value)| self.put(now, key, value, expiry).map(drop))
    }

    /// Takes a key away; says whether it was there.
    pub fn delete(&self, now: Moment, key: &[u8]) -> bool {
        self.apply(now, key, |entry| (Update::Delete, entry.is_some())).1
    }

    /// Takes a key away if the condition holds.
    ///
    /// # Errors
    /// [`CacheError::ConditionFailed`].
    pub fn delete_if(&self, now: Moment, key: &[u8], condition: Condition<'_>) -> Result<(), CacheError> {
        self.update_if(now, key, condition, Update::Delete).map(drop)
    }

    /// Gives a key another deadline; says whether it was there.
    pub fn touch(&self, now: Moment, key: &[u8], expiry: Expiry) -> bool {
        self.apply(now, key, |entry| (Update::Touch(expiry), entry.is_some())).1
    }

    /// Adds to a counter: a decimal number of 64 bits, as the key-value store's counters are; 0 if the key is not there.
    /// Gives the sum.
    ///
    /// # Errors
    /// [`CacheError::NotANumber`], [`CacheError::Overflow`]; or as [`put`](Self::put).
    pub fn add(&self, now: Moment, key: &[u8], delta: i64, expiry: Expiry) -> Result<i64, CacheError> {
        const MAX_DIGITS: usize = 20;
        self.check(key, MAX_DIGITS)?;
        let sum = |entry: Option<&CacheEntry>| {
            let value = entry.map_or(Some(0), |entry| number(&entry.value)).ok_or(CacheError::NotANumber)?;
            value.checked_add(delta).ok_or(CacheError::Overflow { value, delta })
        };
        let add = |entry: Option<&CacheEntry>| match sum(entry) {
            Ok(sum) => (Update::Put { value: sum.to_string().into_bytes().into(), expiry }, Ok(sum)),
            Err(error) => (Update::Keep, Err(error)),
        };
        self.apply(now, key, add).1
    }

    /// Asks `decide` what becomes of what is there, and does it, with nothing in between: no other thread's change, no
    /// eviction, no deadline. Everything that reads and then writes is made of this. It is called under a shard's
    /// mutex: it should be quick, and must not use this cache. Gives the version afterwards and what `decide` tells.
    ///
    /// # Errors
    /// What it wants to put is too long or too large. Nothing has changed, but it has been called.
    pub fn update<R>(
        &self,
        now: Moment,
        key: &[u8],
        decide: impl FnOnce(Option<&CacheEntry>) -> (Update, R),
    ) -> Result<(Option<Version>, R), CacheError> {
        self.check(key, 0)?;
        let (version, (checked, told)) = self.apply(now, key, |entry| {
            let (update, told) = decide(entry);
            let checked = match &update {
                Update::Put { value, .. } => self.check(key, value.len()),
                _ => Ok(()),
            };
            if checked.is_ok() { (update, (checked, told)) } else { (Update::Keep, (checked, told)) }
        });
        checked.map(|()| (version, told))
    }

    fn apply<R>(
        &self,
        now: Moment,
        key: &[u8],
        decide: impl FnOnce(Option<&CacheEntry>) -> (Update, R),
    ) -> (Option<Version>, R) {
        let mut gone = Gone::new();
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

    /// Up to `count` keys, cut to [`MAX_CACHE_SCAN_KEYS`], of `max_bytes` together, but at least one, from a cursor on. A scan from the start to the end shows every
    /// key that is there all the time exactly once, and may or may not show others. A page goes through a shard's
    /// entries twice under its mutex (some 5 ns each), so ask for large ones.
    #[must_use]
    pub fn scan(&self, now: Moment, from: Option<ScanCursor>, count: usize, max_bytes: usize) -> ScanPage {
        let count = count.clamp(1, MAX_CACHE_SCAN_KEYS);
        let first = from.map_or(0, |cursor| self.shard_of(cursor.0));
        let (mut page, mut room, mut end) = (ScanPage::default(), max_bytes, None);
        for shard in first..self.shards.len() {
            let after = from.map(|cursor| cursor.0);
            let wanted = count - page.keys.len();
            let (found, whole) = locked(self.shards[shard].0.lock()).keys_after(now, after, wanted, room, Self::place);
            end = found.last().map(|(place, _)| *place).or(end);
            room = room.saturating_sub(found.iter().map(|(_, key)| key.len()).sum());
            page.keys.extend(found.into_iter().map(|(_, key)| key));
            // What is full ends here; the next page begins behind the last key, or at the next shard.
            if page.keys.len() >= count || !whole || (room == 0 && !page.keys.is_empty()) {
                page.next = end.map(ScanCursor);
                break;
            }
        }
        page
    }

    /// A scan goes on from there behind a key, whether it is there or not.
    #[must_use]
    pub fn cursor_behind(&self, key: &[u8]) -> ScanCursor {
        ScanCursor(Self::place(self.hasher.hash_one(key)))
    }

    /// Forgets everything. Counters stay.
    pub fn clear(&self) {
        for shard in &self.shards {
            let forgotten = locked(shard.0.lock()).clear();
            drop(forgotten);
        }
    }

    /// Frees what is past its deadline, up to so many entries; says how many. Call it about when
    /// [`next_deadline`](Self::next_deadline) says, and again while it frees as many as it may.
    pub fn reclaim(&self, now: Moment, at_most: usize) -> usize {
        let mut freed = 0;
        for shard in &self.shards {
            loop {
                let mut gone = Gone::new();
                let some = RECLAIM_AT_ONCE.min(at_most - freed);
                let more = locked(shard.0.lock()).reclaim(now, some, &mut gone);
                freed += more;
                if more == 0 || freed == at_most {
                    break;
                }
            }
        }
        freed
    }

    /// Nothing is to be reclaimed before that.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.shards.iter().filter_map(|shard| locked(shard.0.lock()).next_due()).min()
    }

    /// Its figures.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let mut stats = CacheStats::default();
        for shard in &self.shards {
            stats.add(&locked(shard.0.lock()).stats());
        }
        stats
    }
}

/// A counter's value: as it would be written, so without a plus sign, leading zeros or spaces.
fn number(bytes: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == bytes).then_some(number)
}
