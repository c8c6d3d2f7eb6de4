//! Workloads for any store: those of *row P*, a published benchmark of another storage engine (see
//! docs/performance.md), and further ones over flushed, large and missing data.
//!
//! Owns: the tests of these workloads, their keys and values, and the comparison of each value that is read. Does not
//! own: the stores (`subject`, `database`), the timing loop (`timing`), or the tests of compactions (`compaction`).
//!
//! Keys are made before the clock runs. Each value that a get reads is compared immediately. Pairs of a range are only
//! added up while the clock runs; afterwards the same queries are repeated and compared pair by pair.

use std::path::Path;

use rand::{RngExt as _, seq::SliceRandom as _};
use thalweg_engine::Compaction;

use super::{
    results::{Results, Space, Test, count_at, counts_at},
    subject::{Contender, KvSubject, Level, LookupResult, StoreOptions},
    timing::{FAST_STRIDE, Measure, timed, timed_apart},
};
use crate::{
    BenchError, Progress,
    data::{self, KEY_BYTES, Values},
    random::generator,
    scratch::allocated_bytes,
};

pub(super) const SEQUENTIAL_WRITE: Test = Test::new("sequential write", "{50k} × 100 B", "125.5 k / 36 k/s");
const RANDOM_WRITE: Test = Test::new("random write", "{50k} × 100 B", "227.9 k / 99 k/s");
const BATCH_WRITE: Test = Test::new("batch write (pairs)", "{500} × 100 × 100 B", "141 k / 71 k/s");
const SEQUENTIAL_READ_MEMORY: Test = Test::new("sequential read, memory", "{50k} of {50k}", "966 k / 481 k/s");
const RANDOM_READ_MEMORY: Test = Test::new("random read, memory", "{50k} of {50k}", "633 k / 254 k/s");
const RANGE_100_MEMORY: Test = Test::new("range 100, memory", "{1000} queries", "146 / 10,475 q/s");
const RANGE_500_MEMORY: Test = Test::new("range 500, memory", "{1000} queries", "");
const SEQUENTIAL_WRITE_LARGE: Test = Test::new("sequential write, disk", "{200k} × 200 B", "119 k / 57 k/s");
const SEQUENTIAL_READ_DISK: Test = Test::new("sequential read, flushed", "{100k} of {200k}", "756 k / 462 k/s");
pub(super) const RANDOM_READ_DISK: Test = Test::new("random read, flushed", "{100k} of {200k}", "543 k / 174 k/s");
const RANGE_100_DISK: Test = Test::new("range 100, flushed", "{1000} queries", "");
const RANGE_500_DISK: Test = Test::new("range 500, flushed", "{1000} queries", "31.9 / 2,694 q/s");
const MIXED_70: Test = Test::new("mixed 70/30", "{100k} operations", "26.5 k / 73 k/s");
const MIXED_90: Test = Test::new("mixed 90/10", "{100k} operations", "28.3 k / 116 k/s");
const LARGE_WRITE: Test = Test::new("random write, large", "{2 M} × 200 B", "");
const LARGE_READ: Test = Test::new("random read, large", "{200k} of {2 M}", "");
const LARGE_MISS: Test = Test::new("miss, large", "{200k} beside {2 M}", "");

/// Size of the values of the small tests in bytes.
pub(super) const SMALL_VALUE_BYTES: usize = 100;
const LARGE_VALUE_BYTES: usize = 200;

/// Parameters of all workloads, and the results so far.
pub(super) struct Context<'a> {
    /// Factor on every number of operations. It differs from 1 only in tests and quick runs.
    pub(super) scale: f64,
    pub(super) seed: u64,
    pub(super) cache_bytes: u64,
    pub(super) level: Level,
    pub(super) contender: &'a dyn Contender,
    /// Directory in which each store is created. It is emptied before a store is opened.
    pub(super) dir: &'a Path,
    pub(super) results: &'a mut Results,
    pub(super) progress: &'a mut dyn Progress,
}

impl<'a> Context<'a> {
    pub(super) fn count(&self, full: u64) -> u64 {
        count_at(full, self.scale)
    }

    /// Opens a new store for values of `value_bytes` bytes, with the default size of the memtable.
    fn store(&mut self, value_bytes: usize) -> Result<Store<'_, 'a>, BenchError> {
        let subject = self.open(None, Compaction::Automatic)?;
        Ok(Store { subject, values: Values::new(value_bytes, self.seed), context: self })
    }

    /// Empties the directory of the workloads, and opens a new store in it with this size of the memtable.
    pub(super) fn open(
        &self,
        memtable_bytes: Option<u64>,
        compaction: Compaction,
    ) -> Result<Box<dyn KvSubject>, BenchError> {
        for entry in std::fs::read_dir(self.dir).map_err(BenchError::files(self.dir))?.flatten() {
            let removed = if entry.path().is_dir() {
                std::fs::remove_dir_all(entry.path())
            } else {
                std::fs::remove_file(entry.path())
            };
            removed.map_err(BenchError::files(entry.path()))?;
        }
        let options = StoreOptions { level: self.level, cache_bytes: self.cache_bytes, memtable_bytes, compaction };
        self.contender.open(self.dir, &options)
    }

    pub(super) fn record(&mut self, test: Test, measure: Measure) {
        let parameters = test.parameters_at(self.scale);
        let line = self.results.record(test, parameters, self.level, self.contender.name(), measure);
        self.progress.step(&line);
    }

    pub(super) fn record_space(&mut self, after: &'static str, subject: &dyn KvSubject, payload_bytes: u64) {
        self.results.record_space(Space {
            after: counts_at(after, self.scale),
            contender: self.contender.name().to_owned(),
            payload_bytes,
            data_bytes: subject.data_bytes(),
            allocated_bytes: allocated_bytes(self.dir),
            tables: subject.tables(),
        });
    }

    /// Returns the number of puts in a stride, of which one put is timed. It is 1 if puts wait for the disk, and larger
    /// if puts are too fast to time each.
    fn put_stride(&self) -> u64 {
        if self.level == Level::Disk { 1 } else { FAST_STRIDE }
    }

    pub(super) fn wrong(&self, doing: &'static str, message: String) -> BenchError {
        BenchError::wrong(self.contender.name(), doing, message)
    }
}

/// Keys with their indices, in the order of their use. They are made before the timed part.
pub(super) struct Keys {
    indices: Vec<u64>,
    keys: Vec<[u8; KEY_BYTES]>,
}

impl Keys {
    pub(super) fn of(indices: Vec<u64>) -> Self {
        let keys = indices.iter().map(|&index| data::key(index)).collect();
        Self { indices, keys }
    }

    pub(super) fn sequential(count: u64) -> Self {
        Self::of((0..count).collect())
    }

    fn shuffled(count: u64, seed: u64) -> Self {
        let mut indices: Vec<u64> = (0..count).collect();
        indices.shuffle(&mut generator(seed));
        Self::of(indices)
    }

    pub(super) fn random(count: u64, among: u64, seed: u64) -> Self {
        let mut rng = generator(seed);
        Self::of((0..count).map(|_| rng.random_range(0..among)).collect())
    }

    pub(super) fn len(&self) -> u64 {
        self.keys.len() as u64
    }

    fn at(&self, number: u64) -> (u64, &[u8]) {
        (self.indices[number as usize], &self.keys[number as usize])
    }
}

/// An open store, and the current values of its keys.
pub(super) struct Store<'c, 'a> {
    pub(super) context: &'c mut Context<'a>,
    pub(super) subject: Box<dyn KvSubject>,
    pub(super) values: Values,
}

/// Runs the tests of 50k × 100 B: writes in order, then reads and ranges of data that is still in memory. Then writes
/// in random order and in batches, each into a new store.
pub(super) fn small(context: &mut Context<'_>) -> Result<(), BenchError> {
    let (count, seed) = (context.count(50_000), context.seed);
    let mut store = context.store(SMALL_VALUE_BYTES)?;
    store.puts(SEQUENTIAL_WRITE, &Keys::sequential(count))?;
    if store.context.level == Level::Interval {
        store.gets(SEQUENTIAL_READ_MEMORY, &Keys::sequential(count))?;
        store.gets(RANDOM_READ_MEMORY, &Keys::random(count, count, seed + 1))?;
        store.ranges(RANGE_100_MEMORY, 100, count)?;
        store.ranges(RANGE_500_MEMORY, 500, count)?;
    }
    store.record_space("{50k} × 100 B in order", count);
    drop(store);
    context.store(SMALL_VALUE_BYTES)?.puts(RANDOM_WRITE, &Keys::shuffled(count, seed + 2))?;
    context.store(SMALL_VALUE_BYTES)?.batches(&Keys::sequential(count))
}

/// Runs the tests of 200k × 200 B: writes in order, then reads and ranges of data that is flushed into tables.
pub(super) fn flushed(context: &mut Context<'_>) -> Result<(), BenchError> {
    let (count, half, seed) = (context.count(200_000), context.count(100_000), context.seed);
    let mut store = context.store(LARGE_VALUE_BYTES)?;
    store.puts(SEQUENTIAL_WRITE_LARGE, &Keys::sequential(count))?;
    if store.context.level == Level::Disk {
        return Ok(());
    }
    store.subject.flush()?;
    store.subject.settle()?;
    // All keys are read once without timing, so that all stores are measured with a warm cache of the same size.
    store.check_all(&Keys::sequential(count))?;
    store.gets(SEQUENTIAL_READ_DISK, &Keys::sequential(half))?;
    store.gets(RANDOM_READ_DISK, &Keys::random(half, count, seed + 3))?;
    store.ranges(RANGE_100_DISK, 100, count)?;
    store.ranges(RANGE_500_DISK, 500, count)?;
    store.record_space("{200k} × 200 B, flushed", count);
    Ok(())
}

/// Runs 100k mixed operations over 50k keys, once with 70 % reads and once with 90 %.
pub(super) fn mixed(context: &mut Context<'_>) -> Result<(), BenchError> {
    let (keys, seed, stride) = (context.count(50_000), context.seed, context.put_stride());
    let Store { context, subject, values } = context.store(SMALL_VALUE_BYTES)?;
    fill(&*subject, &Keys::sequential(keys), &values)?;
    for (test, reads_percent) in [(MIXED_70, 70), (MIXED_90, 90)] {
        let operations = Keys::random(context.count(100_000), keys, seed + reads_percent);
        let mut rng = generator(seed + 4);
        let reads: Vec<bool> = (0..operations.len()).map(|_| rng.random_range(0..100) < reads_percent).collect();
        let mut bad = None;
        let is_read = |number: u64| reads[number as usize];
        let mut measure = timed_apart(&*subject, operations.len(), stride, is_read, |number| {
            let (index, key) = operations.at(number);
            if reads[number as usize] {
                if subject.get(key, values.of(index))? != LookupResult::Right {
                    bad = bad.or(Some(index));
                }
                Ok(())
            } else {
                subject.put(key, values.of(index))
            }
        })?;
        if let Some(index) = bad {
            return Err(context.wrong("reading between writes", format!("key {index} has no or another value")));
        }
        let writes = reads.iter().filter(|read| !**read).count() as u64;
        measure.payload_bytes = writes * (KEY_BYTES + SMALL_VALUE_BYTES) as u64;
        context.record(test, measure);
    }
    Ok(())
}

/// Runs the tests of 2 M × 200 B: writes in random order, then gets of present and of missing keys.
pub(super) fn large(context: &mut Context<'_>) -> Result<(), BenchError> {
    let (count, reads, seed) = (context.count(2_000_000), context.count(200_000), context.seed);
    let mut store = context.store(LARGE_VALUE_BYTES)?;
    store.puts(LARGE_WRITE, &Keys::shuffled(count, seed + 5))?;
    store.subject.flush()?;
    store.subject.settle()?;
    store.gets(LARGE_READ, &Keys::random(reads, count, seed + 6))?;
    // The missing keys lie between the written ones, over the whole range, because each has an additional last byte.
    let missing = missing_keys(&Keys::random(reads, count, seed + 7));
    store.misses(&missing)?;
    store.record_space("{2 M} × 200 B, flushed", count);
    Ok(())
}

fn missing_keys(beside: &Keys) -> Vec<[u8; KEY_BYTES + 1]> {
    let lengthen = |key: &[u8; KEY_BYTES]| {
        let mut longer = [b'x'; KEY_BYTES + 1];
        longer[..KEY_BYTES].copy_from_slice(key);
        longer
    };
    beside.keys.iter().map(lengthen).collect()
}

/// Puts all keys with their values into a store, without timing.
pub(super) fn fill(subject: &dyn KvSubject, keys: &Keys, values: &Values) -> Result<(), BenchError> {
    let all: Vec<(u64, &[u8])> = (0..keys.len()).map(|number| keys.at(number)).collect();
    for chunk in all.chunks(1000) {
        let pairs: Vec<(&[u8], &[u8])> = chunk.iter().map(|(index, key)| (*key, values.of(*index))).collect();
        subject.put_batch(&pairs)?;
    }
    Ok(())
}

impl Store<'_, '_> {
    fn pair_bytes(&self) -> u64 {
        (KEY_BYTES + self.values.len()) as u64
    }

    fn record_space(&mut self, after: &'static str, pairs: u64) {
        let payload_bytes = pairs * self.pair_bytes();
        self.context.record_space(after, &*self.subject, payload_bytes);
    }

    fn puts(&mut self, test: Test, keys: &Keys) -> Result<(), BenchError> {
        let Self { context, subject, values } = self;
        let mut measure = timed(&**subject, keys.len(), context.put_stride(), |number| {
            let (index, key) = keys.at(number);
            subject.put(key, values.of(index))
        })?;
        measure.payload_bytes = keys.len() * self.pair_bytes();
        self.context.record(test, measure);
        Ok(())
    }

    fn batches(&mut self, keys: &Keys) -> Result<(), BenchError> {
        const BATCH: usize = 100;
        let pairs: Vec<(&[u8], &[u8])> =
            (0..keys.len()).map(|number| keys.at(number)).map(|(index, key)| (key, self.values.of(index))).collect();
        let chunks: Vec<&[(&[u8], &[u8])]> = pairs.chunks(BATCH).collect();
        let put = |number| self.subject.put_batch(chunks[number as usize]);
        let mut measure = timed(&*self.subject, chunks.len() as u64, 1, put)?;
        // The figures of row P count pairs, not batches.
        measure.operations = keys.len();
        measure.payload_bytes = keys.len() * self.pair_bytes();
        self.context.record(BATCH_WRITE, measure);
        self.check_all(keys)
    }

    pub(super) fn gets(&mut self, test: Test, keys: &Keys) -> Result<(), BenchError> {
        let Self { context, subject, values } = self;
        let (mut bad, mut hits) = (None, 0);
        let mut measure = timed(&**subject, keys.len(), FAST_STRIDE, |number| {
            let (index, key) = keys.at(number);
            let found = subject.get(key, values.of(index))?;
            hits += u64::from(found == LookupResult::Right);
            if found != LookupResult::Right {
                bad = Some((index, found));
            }
            Ok(())
        })?;
        if let Some((index, found)) = bad {
            return Err(context.wrong("reading", format!("key {index}: expected Right, got {found:?}")));
        }
        measure.hits = Some(hits);
        measure.payload_bytes = keys.len() * values.len() as u64;
        context.record(test, measure);
        Ok(())
    }

    fn misses(&mut self, keys: &[[u8; KEY_BYTES + 1]]) -> Result<(), BenchError> {
        let mut found = 0;
        let mut measure = timed(&*self.subject, keys.len() as u64, FAST_STRIDE, |number| {
            found += u64::from(self.subject.get(&keys[number as usize], b"")? != LookupResult::Missing);
            Ok(())
        })?;
        if found > 0 {
            return Err(self.context.wrong("looking for missing keys", format!("{found} were found")));
        }
        measure.hits = Some(0);
        measure.payload_bytes = 0;
        self.context.record(LARGE_MISS, measure);
        Ok(())
    }

    /// Reads every key once and compares its value, without timing.
    pub(super) fn check_all(&self, keys: &Keys) -> Result<(), BenchError> {
        for number in 0..keys.len() {
            let (index, key) = keys.at(number);
            let found = self.subject.get(key, self.values.of(index))?;
            if found != LookupResult::Right {
                return Err(self.context.wrong("reading everything back", format!("key {index}: {found:?}")));
            }
        }
        Ok(())
    }

    pub(super) fn ranges(&mut self, test: Test, length: u64, keys: u64) -> Result<(), BenchError> {
        let Self { context, subject, values } = self;
        let length = length.min(keys);
        let mut rng = generator(context.seed + length);
        let queries: Vec<u64> = (0..context.count(1000)).map(|_| rng.random_range(0..=keys - length)).collect();
        let bounds: Vec<_> = queries.iter().map(|&first| (data::key(first), data::key(first + length))).collect();
        let mut bytes = 0_u64;
        let mut measure = timed(&**subject, queries.len() as u64, 1, |number| {
            let (start, end) = &bounds[number as usize];
            subject.range(start, end, &mut |key, value| bytes += (key.len() + value.len()) as u64)
        })?;
        let expected = queries.len() as u64 * length * (KEY_BYTES + values.len()) as u64;
        if bytes != expected {
            return Err(context.wrong("scanning", format!("{bytes} bytes in all, expected {expected}")));
        }
        for (first, (start, end)) in queries.iter().zip(&bounds) {
            let (mut next, mut right) = (*first, true);
            subject.range(start, end, &mut |key, value| {
                right &= key == data::key(next) && value == values.of(next);
                next += 1;
            })?;
            if !right || next != first + length {
                let message = format!("the range of {length} from key {first} differs from the written pairs");
                return Err(context.wrong("scanning", message));
            }
        }
        measure.payload_bytes = bytes;
        context.record(test, measure);
        Ok(())
    }
}
