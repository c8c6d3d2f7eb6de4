//! A cache as a database of Redis clients: strings only, in memory, with deadlines.
//!
//! Owns: [`CacheDatabase`], a view of one of the node's caches. Does not own the cache. Clients of other protocols read
//! and write the same entries, and a full cache evicts its least used entries.
//!
//! A read locks one shard of the cache for each key. A Redis client that writes locks the database against other Redis
//! clients that write. So none of them changes a key between the read and the write of a command or transaction.
//! Readers may see some changes of a transaction before the others. Clients of other protocols do not use this lock.
//!
//! Time: Redis's deadlines use the wall clock, and the cache uses a monotonic clock. The difference between the two
//! clocks is measured at the start, and again after the wall clock was set. Existing entries then keep their remaining
//! time to live.
//!
//! Cost of a GET: reading the clock (25 ns), a hash and a shard's mutex (30 ns), and copying a short value (30 ns).

use std::{
    borrow::Cow,
    cell::{Cell, OnceCell},
    fmt,
    ops::Bound,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use thalweg_broker::{Cache, CacheEntry, CacheError, Expiry, Moment, Update};
use thalweg_redis::{
    Collection, CollectionId, KeyInfo, KeyValue, Kind, NewValue, Read, Reply, Store, StoreError, Value,
    errors::STRINGS_ONLY,
    store::{Visit, VisitKeys},
};
use thalweg_serving::aside;
use thalweg_types::{
    budget::{self, BudgetSpent},
    limits::{MAX_CACHE_SCAN_KEYS, MAX_REDIS_VIEW_COMPARISONS},
    steps::{ROW, SCAN, WRITE, comparisons},
};

/// Maximum size in bytes of a value that is copied into a reply. A reply refers to a larger value in the cache.
const MAX_COPIED_BYTES: usize = 4096;
/// Number of keys that a scan reads from the cache in its first page. Each further page has twice as many keys as the
/// previous one.
const FIRST_PAGE_KEYS: usize = 256;
/// Maximum total bytes of the keys that a scan reads from the cache in one page.
const PAGE_BYTES: usize = 1024 * 1024;
/// Number of bytes that count as one step of work when a value is copied into a cache. Steps of work are the units in
/// which the cost of commands is limited.
const BYTES_COPIED_PER_STEP: usize = 256;
/// Error reply to a command that is not executed, because earlier commands of its transaction have used up the work
/// that one transaction may do.
const TOO_EXPENSIVE: &str = "ERR too expensive: the commands of the transaction before this one have used up its steps, so \
                             this one and those after it were not executed";
/// Change of the difference between wall clock and monotonic clock, in nanoseconds, above which the wall clock is taken
/// to have been set.
const MAX_DRIFT_NANOS: u64 = 500_000_000;

/// A cache of the node that serves Redis clients as a database; see the module's documentation.
pub struct CacheDatabase {
    cache: Arc<Cache>,
    now: Box<dyn Fn() -> Moment + Send + Sync>,
    /// Lock that one Redis client at a time holds while it writes to the cache.
    writing: Mutex<()>,
    /// Wall-clock time at which the cache's monotonic clock was zero, in nanoseconds since the Unix epoch.
    began: AtomicU64,
    seeds: AtomicU64,
}

impl fmt::Debug for CacheDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheDatabase").field("cache", &self.cache).finish_non_exhaustive()
    }
}

fn wall_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl CacheDatabase {
    /// Creates a database over a cache. `now` returns the time of the cache's clock. `seed` is the start of the
    /// sequence from which the database takes random seeds.
    pub fn new(cache: Arc<Cache>, now: impl Fn() -> Moment + Send + Sync + 'static, seed: u64) -> Self {
        let began = wall_nanos().saturating_sub(now().nanos());
        let (began, seeds) = (AtomicU64::new(began), AtomicU64::new(seed));
        Self { cache, now: Box::new(now), writing: Mutex::default(), began, seeds }
    }

    /// Returns the wall-clock time at which the cache's monotonic clock was zero, in nanoseconds since the Unix
    /// epoch. Measures the time again if the wall clock was set.
    fn began(&self, now: Moment) -> u64 {
        let (known, measured) = (self.began.load(Ordering::Relaxed), wall_nanos().saturating_sub(now.nanos()));
        if known.abs_diff(measured) <= MAX_DRIFT_NANOS {
            return known;
        }
        self.began.store(measured, Ordering::Relaxed);
        measured
    }

    fn view(&self) -> CacheView<'_> {
        let (steps, left) = (Cell::new(0), Cell::new(u64::MAX));
        CacheView { cached: self, now: (self.now)(), began: OnceCell::new(), steps, left }
    }

    /// Capacity of the cache in bytes. A full cache evicts keys.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        self.cache.stats().max_bytes
    }

    /// Calls `act` with a view of the cache for reading.
    pub fn read<R>(&self, act: impl FnOnce(&dyn Read) -> R) -> R {
        act(&self.view())
    }

    /// Calls `act` with a view of the cache for writing. No other Redis client writes to the cache in the meantime.
    pub fn write<'a, R>(&self, act: impl FnOnce(&mut dyn Store<'a>) -> R) -> R {
        self.write_at_most(u64::MAX, act)
    }

    /// Calls `act` like [`write`](Self::write). The view refuses all further operations after `max_steps` steps of
    /// work.
    pub fn write_at_most<'a, R>(&self, max_steps: u64, act: impl FnOnce(&mut dyn Store<'a>) -> R) -> R {
        // A command that panics leaves nothing half done, because each of its changes is a single change of the cache.
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut view = self.view();
        view.left = Cell::new(max_steps);
        let result = act(&mut view);
        drop(writing);
        result
    }
}

/// Access to the cache for one command or transaction, with a fixed current time.
struct CacheView<'c> {
    cached: &'c CacheDatabase,
    now: Moment,
    /// Wall-clock time at which the cache's clock was zero, in nanoseconds since the Unix epoch; computed at the
    /// first use.
    began: OnceCell<u64>,
    /// Steps of work that this command or transaction has used so far, without those of lookups.
    steps: Cell<u64>,
    /// Number of steps of work that this command or transaction may still use; `u64::MAX` if there is no limit.
    left: Cell<u64>,
}

impl CacheView<'_> {
    fn began(&self) -> u64 {
        *self.began.get_or_init(|| self.cached.began(self.now))
    }

    fn deadline_of(&self, moment: Moment) -> Option<u64> {
        // Rounded up, so that no entry is reported as expired before it has expired.
        (moment != Moment::NEVER).then(|| moment.nanos().saturating_add(self.began()).div_ceil(1_000_000))
    }

    /// Converts a deadline in milliseconds since the Unix epoch to an expiry on the cache's clock. Returns `None`
    /// if the deadline has passed.
    fn expiry(&self, deadline: Option<u64>) -> Option<Expiry> {
        let Some(deadline) = deadline else { return Some(Expiry::Never) };
        if deadline <= self.now() {
            return None;
        }
        // The maximum value stands for no deadline, so a deadline stays at least one below it.
        let nanos = deadline.saturating_mul(1_000_000).saturating_sub(self.began()).min(u64::MAX - 1);
        Some(Expiry::At(Moment::from_nanos(nanos)))
    }

    /// Counts steps of work against two limits: the work that a read may do on this thread, and the work that is left
    /// for this view. Returns an error, which ends the command, if one of them is used up.
    #[inline]
    fn charge(&self, steps: u64) -> Result<(), StoreError> {
        if budget::charge(steps).is_break() {
            return Err(StoreError::Failed(Box::new(BudgetSpent::Steps)));
        }
        let left = self.left.get();
        if left == u64::MAX {
            return Ok(());
        }
        self.left.set(left.saturating_sub(steps));
        if left < steps { Err(StoreError::Refused(Reply::error(TOO_EXPENSIVE))) } else { Ok(()) }
    }

    fn look_of(&self, entry: &CacheEntry) -> KeyInfo {
        let deadline = self.deadline_of(entry.deadline);
        KeyInfo { kind: Kind::String, deadline, version: entry.version.0, len: entry.value.len() }
    }

    /// Returns a key's properties without counting the access as a use of the key; `None` if the key does not
    /// exist.
    fn peek(&self, key: &[u8]) -> Option<KeyInfo> {
        let look = |entry: Option<&CacheEntry>| (Update::Keep, entry.map(|entry| self.look_of(entry)));
        self.cached.cache.update(self.now, key, look).ok()?.1
    }

    fn set(&self, key: &[u8], bytes: &[u8], deadline: Option<u64>) -> Result<(), StoreError> {
        match self.expiry(deadline) {
            Some(expiry) => self.cached.cache.put(self.now, key, bytes, expiry).map(drop).map_err(too_large),
            None => {
                self.cached.cache.delete(self.now, key);
                Ok(())
            }
        }
    }
}

/// Returns the number of steps of work that count for writing an entry whose value has `bytes` bytes.
fn steps_to_write(bytes: usize) -> u64 {
    WRITE + (bytes / BYTES_COPIED_PER_STEP) as u64
}

fn too_large(error: CacheError) -> StoreError {
    StoreError::Refused(Reply::error(format!("ERR {error}")))
}

fn strings_only() -> StoreError {
    StoreError::Refused(Reply::error(STRINGS_ONLY))
}

fn bytes_of(value: &Arc<[u8]>) -> Bytes {
    if value.len() <= MAX_COPIED_BYTES { Bytes::copy_from_slice(value) } else { Bytes::from_owner(Arc::clone(value)) }
}

impl Read for CacheView<'_> {
    fn now(&self) -> u64 {
        self.now.nanos().saturating_add(self.began()) / 1_000_000
    }

    fn seed(&self) -> u64 {
        // The seeds form a Weyl sequence. Mixing makes successive seeds unrelated.
        let step = self.cached.seeds.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (step ^ (step >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ (mixed >> 32)
    }

    fn has_collections(&self) -> bool {
        false
    }

    fn look(&self, key: &[u8]) -> Result<Option<KeyInfo>, StoreError> {
        self.charge(ROW)?;
        Ok(self.cached.cache.read(self.now, key, |entry| self.look_of(entry)))
    }

    fn get(&self, key: &[u8]) -> Result<Option<KeyValue>, StoreError> {
        self.charge(ROW)?;
        let found = |entry: &CacheEntry| (bytes_of(&entry.value), entry.version.0, entry.deadline);
        let found = self.cached.cache.read(self.now, key, found);
        Ok(found.map(|(value, version, deadline)| KeyValue {
            value: Value::String(value),
            deadline: self.deadline_of(deadline),
            version,
        }))
    }

    fn len(&self) -> Result<u64, StoreError> {
        Ok(self.cached.cache.stats().entries)
    }

    fn keys(&self, after: Option<&[u8]>, visit: &mut VisitKeys<'_>) -> Result<(), StoreError> {
        let cache = &self.cached.cache;
        let (mut from, mut count) = (after.map(|after| cache.cursor_behind(after)), FIRST_PAGE_KEYS);
        loop {
            self.charge(cache.scan_steps())?;
            let page = cache.scan(self.now, from, count, PAGE_BYTES);
            for key in &page.keys {
                self.charge(ROW)?;
                if let Some(look) = self.peek(key)
                    && visit(key, &look).is_break()
                {
                    return Ok(());
                }
            }
            let Some(next) = page.next else { return Ok(()) };
            (from, count) = (Some(next), (2 * count).min(MAX_CACHE_SCAN_KEYS));
        }
    }

    fn work(&self, steps: u64) -> Result<(), StoreError> {
        self.charge(steps)?;
        self.steps.set(self.steps.get().saturating_add(steps));
        if self.steps.get() > comparisons(MAX_REDIS_VIEW_COMPARISONS) {
            return Err(StoreError::Refused(Reply::error(
                "ERR too expensive: the commands would block others for too long; use a shorter pattern, or SCAN",
            )));
        }
        Ok(())
    }

    fn part(&self, _: CollectionId, _: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Err(strings_only())
    }

    fn parts(
        &self,
        _: CollectionId,
        _: Bound<&[u8]>,
        _: Bound<&[u8]>,
        _: bool,
        _: &mut Visit<'_>,
    ) -> Result<(), StoreError> {
        Err(strings_only())
    }
}

impl<'a> Store<'a> for CacheView<'_> {
    fn put(&mut self, key: &'a [u8], value: NewValue<'a>, deadline: Option<u64>) -> Result<(), StoreError> {
        self.charge(match &value {
            NewValue::String(bytes) => steps_to_write(bytes.len()),
            NewValue::Collection(_) => 0,
        })?;
        match value {
            NewValue::String(Cow::Borrowed(bytes)) => self.set(key, bytes, deadline),
            NewValue::String(Cow::Owned(bytes)) => self.set(key, &bytes, deadline),
            NewValue::Collection(_) => Err(strings_only()),
        }
    }

    fn put_meta(&mut self, _: &'a [u8], _: Collection) -> Result<(), StoreError> {
        Err(strings_only())
    }

    fn set_deadline(&mut self, key: &'a [u8], deadline: Option<u64>) -> Result<(), StoreError> {
        self.charge(WRITE)?;
        let expiry = self.expiry(deadline);
        // The update writes the same value again, which gives the entry a new version.
        let update = |entry: Option<&CacheEntry>| match (entry, expiry) {
            (None, _) => (Update::Keep, ()),
            (Some(_), None) => (Update::Delete, ()),
            (Some(entry), Some(expiry)) => (Update::Put { value: Arc::clone(&entry.value), expiry }, ()),
        };
        self.cached.cache.update(self.now, key, update).map(drop).map_err(too_large)
    }

    fn delete(&mut self, key: &'a [u8]) -> Result<bool, StoreError> {
        self.charge(WRITE)?;
        Ok(self.cached.cache.delete(self.now, key))
    }

    fn rename(&mut self, from: &'a [u8], to: &'a [u8]) -> Result<(), StoreError> {
        self.charge(2 * WRITE)?;
        let cache = &self.cached.cache;
        let Some(moved) = cache.get(self.now, from) else { return Ok(()) };
        let expiry = if moved.deadline == Moment::NEVER { Expiry::Never } else { Expiry::At(moved.deadline) };
        let put = |_: Option<&CacheEntry>| (Update::Put { value: moved.value, expiry }, ());
        cache.update(self.now, to, put).map_err(too_large)?;
        if from != to {
            cache.delete(self.now, from);
        }
        Ok(())
    }

    fn new_collection(&mut self) -> Result<CollectionId, StoreError> {
        Err(strings_only())
    }

    fn put_part(&mut self, _: CollectionId, _: &[u8], _: &[u8]) -> Result<(), StoreError> {
        Err(strings_only())
    }

    fn delete_part(&mut self, _: CollectionId, _: &[u8]) -> Result<(), StoreError> {
        Err(strings_only())
    }

    fn clear(&mut self) -> Result<(), StoreError> {
        self.charge(SCAN)?;
        aside::free(self.cached.cache.clear());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use thalweg_broker::CacheConfig;
    use thalweg_redis::{admit, execute, model::Model, run_read};

    use std::ops::ControlFlow;

    use super::*;

    /// Creates a database over a new cache. Also returns the cache's clock, in nanoseconds, for the test to change.
    fn cached(max_bytes: u64) -> (Arc<CacheDatabase>, Arc<AtomicU64>) {
        let clock = Arc::new(AtomicU64::new(1_000_000_000));
        let of = Arc::clone(&clock);
        let cache = Arc::new(Cache::new(CacheConfig { max_bytes, seed: 7 }).unwrap());
        let now = move || Moment::from_nanos(of.load(Ordering::Relaxed));
        (Arc::new(CacheDatabase::new(cache, now, 1)), clock)
    }

    fn words(text: &str) -> Vec<&[u8]> {
        text.split(' ').map(str::as_bytes).collect()
    }

    fn run(cached: &CacheDatabase, text: &str) -> Reply {
        cached.write(|store| execute(store, &words(text)).unwrap())
    }

    fn look(cached: &CacheDatabase, text: &str) -> Reply {
        let args = words(text);
        let command = admit(&args).unwrap();
        cached.read(|read| run_read(read, command, &args).unwrap())
    }

    #[test]
    fn strings_are_as_in_the_model() {
        let (cached, _) = cached(64 * 1024 * 1024);
        let mut model = Model::at(5);
        let mut seed = 42_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..5000 {
            let (key, other, value) = (random(8), random(8), random(1000));
            let command: &'static str = match random(14) {
                0..4 => format!("SET k{key} {value}"),
                4 => format!("SET k{key} {value} NX GET"),
                5 => format!("GETDEL k{key}"),
                6 => format!("APPEND k{key} {value}"),
                7 => format!("INCRBY k{key} {value}"),
                8 => format!("MSETNX k{key} {value} k{other} {value}"),
                9 => format!("RENAME k{key} k{other}"),
                10 => format!("COPY k{key} k{other} REPLACE"),
                11 => format!("DEL k{key} k{other}"),
                12 => format!("EXISTS k{key} k{other}"),
                _ => "DBSIZE".into(),
            }
            .leak();
            assert_eq!(run(&cached, command), execute(&mut model, &words(command)).unwrap(), "{command}");
            let get: &'static str = format!("GET k{key}").leak();
            assert_eq!(look(&cached, get), execute(&mut model, &words(get)).unwrap());
        }
    }

    #[test]
    fn deadlines_are_of_the_wall_clock_and_come_back_as_they_were_given() {
        let (cached, clock) = cached(64 * 1024 * 1024);
        let soon = wall_nanos() / 1_000_000 + 60_000;
        run(&cached, "SET k v");
        let version = |key: &[u8]| cached.read(|read| read.look(key).unwrap().map(|look| look.version));
        let before = version(b"k");
        assert_eq!(run(&cached, &format!("PEXPIREAT k {soon}")), Reply::Integer(1));
        assert_ne!(version(b"k"), before, "who watches it is told");
        assert_eq!(look(&cached, "PEXPIRETIME k"), Reply::Integer(soon as i64));
        run(&cached, "RENAME k other");
        assert_eq!(look(&cached, "PEXPIRETIME other"), Reply::Integer(soon as i64));
        clock.fetch_add(59_000_000_000, Ordering::Relaxed);
        assert_eq!(look(&cached, "GET other"), Reply::bulk(b"v"));
        clock.fetch_add(2_000_000_000, Ordering::Relaxed);
        assert_eq!(look(&cached, "GET other"), Reply::Null);
        run(&cached, "SET k v PX 1000");
        assert_eq!(run(&cached, "PERSIST k"), Reply::Integer(1));
        assert_eq!(look(&cached, "TTL k"), Reply::Integer(-1));
        assert_eq!(run(&cached, "PEXPIREAT k 1"), Reply::Integer(1));
        assert_eq!(look(&cached, "EXISTS k"), Reply::Integer(0));
    }

    #[test]
    fn a_scan_shows_every_key_once_wherever_it_is_cut() {
        let (cached, _) = cached(64 * 1024 * 1024);
        for number in 0..1000 {
            run(&cached, &format!("SET key{number} v"));
        }
        let (mut after, mut seen) = (None::<Vec<u8>>, BTreeSet::new());
        loop {
            let mut page = Vec::new();
            cached.read(|read| {
                read.keys(after.as_deref(), &mut |key, look| {
                    assert_eq!((look.kind, look.len), (Kind::String, 1));
                    page.push(key.to_vec());
                    if page.len() == 7 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })
                .unwrap();
            });
            let Some(last) = page.last() else { break };
            after = Some(last.clone());
            page.into_iter().for_each(|key| assert!(seen.insert(key), "only once"));
        }
        assert_eq!(seen.len(), 1000);
        assert_eq!(run(&cached, "FLUSHDB"), Reply::Ok);
        assert_eq!(look(&cached, "DBSIZE"), Reply::Integer(0));
    }

    #[test]
    fn hashes_and_what_is_too_large_are_refused() {
        let (cached, _) = cached(64 * 1024);
        assert_eq!(run(&cached, "HSET h f v"), Reply::error(STRINGS_ONLY));
        let large = "x".repeat(100 * 1024);
        assert!(matches!(run(&cached, &format!("SET k {large}")), Reply::Error(_)));
        assert_eq!(look(&cached, "EXISTS k"), Reply::Integer(0));
    }

    #[test]
    fn what_is_read_and_then_written_is_nobody_elses_meanwhile() {
        let (cached, _) = cached(64 * 1024 * 1024);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let cached = Arc::clone(&cached);
                std::thread::spawn(move || (0..500).for_each(|_| drop(run(&cached, "INCR n"))))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(look(&cached, "GET n"), Reply::bulk(b"2000"));
    }
}
