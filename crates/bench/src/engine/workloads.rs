//! Row P's workloads and those of flushed, large and missing data, for any store.
//!
//! Keys are made before the clock runs. Each value read by a get is compared at once. Ranges are
//! summed while the clock runs, and the same queries are compared pair by pair afterwards.

use std::path::Path;

use rand::{RngExt as _, seq::SliceRandom as _};
use thalweg_engine::Compaction;

use super::{
    results::{Results, Space, Test},
    subject::{Contender, Found, KvSubject, Level, StoreOptions},
    timing::{FAST_STRIDE, Measure, timed},
};
use crate::{
    BenchError, Progress,
    data::{self, KEY_BYTES, Values},
    random::generator,
    scratch::allocated_bytes,
};

pub(super) const SEQUENTIAL_WRITE: Test = Test::new("sequential write", "50k × 100 B", "125.5 k / 36 k/s");
const RANDOM_WRITE: Test = Test::new("random write", "50k × 100 B", "227.9 k / 99 k/s");
const BATCH_WRITE: Test = Test::new("batch write (pairs)", "500 × 100 × 100 B", "141 k / 71 k/s");
const SEQUENTIAL_READ_MEMORY: Test = Test::new("sequential read, memory", "50k of 50k", "966 k / 481 k/s");
const RANDOM_READ_MEMORY: Test = Test::new("random read, memory", "50k of 50k", "633 k / 254 k/s");
const RANGE_100_MEMORY: Test = Test::new("range 100, memory", "1000 queries", "146 / 10,475 q/s");
const RANGE_500_MEMORY: Test = Test::new("range 500, memory", "1000 queries", "");
const SEQUENTIAL_WRITE_LARGE: Test = Test::new("sequential write, disk", "200k × 200 B", "119 k / 57 k/s");
const SEQUENTIAL_READ_DISK: Test = Test::new("sequential read, flushed", "100k of 200k", "756 k / 462 k/s");
const RANDOM_READ_DISK: Test = Test::new("random read, flushed", "100k of 200k", "543 k / 174 k/s");
const RANGE_100_DISK: Test = Test::new("range 100, flushed", "1000 queries", "");
const RANGE_500_DISK: Test = Test::new("range 500, flushed", "1000 queries", "31.9 / 2,694 q/s");
const MIXED_70: Test = Test::new("mixed 70/30", "100k operations", "26.5 k / 73 k/s");
const MIXED_90: Test = Test::new("mixed 90/10", "100k operations", "28.3 k / 116 k/s");
const LARGE_WRITE: Test = Test::new("random write, large", "2 M × 200 B", "");
const LARGE_READ: Test = Test::new("random read, large", "200k of 2 M", "");
const LARGE_MISS: Test = Test::new("miss, large", "200k beside 2 M", "");

/// Bytes of the values of the small tests.
pub(super) const SMALL_VALUE_BYTES: usize = 100;
const LARGE_VALUE_BYTES: usize = 200;

/// What all workloads are given.
pub(super) struct Context<'a> {
    /// Multiplies every count; 1 but in tests and quick looks.
    pub(super) scale: f64,
    pub(super) seed: u64,
    pub(super) cache_bytes: u64,
    pub(super) level: Level,
    pub(super) contender: &'a dyn Contender,
    /// An empty directory.
    pub(super) dir: &'a Path,
    pub(super) results: &'a mut Results,
    pub(super) progress: &'a mut dyn Progress,
}

impl Context<'_> {
    pub(super) fn count(&self, full: u64) -> u64 {
        ((full as f64 * self.scale) as u64).max(1)
    }

    /// A new store in an empty directory of its own.
    pub(super) fn open(&self, memtable_bytes: Option<u64>) -> Result<Box<dyn KvSubject>, BenchError> {
        self.open_with(memtable_bytes, Compaction::Automatic)
    }

    /// The same, and when it merges tables.
    pub(super) fn open_with(
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
        let line = self.results.record(test, self.level, self.contender.name(), measure);
        self.progress.step(&line);
    }

    pub(super) fn record_space(&mut self, after: &'static str, subject: &dyn KvSubject, payload_bytes: u64) {
        self.results.record_space(Space {
            after,
            contender: self.contender.name().to_owned(),
            payload_bytes,
            data_bytes: subject.data_bytes(),
            allocated_bytes: allocated_bytes(self.dir),
            tables: subject.tables(),
        });
    }

    /// One in how many puts is timed: each one that waits for the disk, few of the others.
    fn put_stride(&self) -> u64 {
        if self.level == Level::Disk { 1 } else { FAST_STRIDE }
    }

    pub(super) fn wrong(&self, doing: &'static str, message: String) -> BenchError {
        BenchError::WrongData { subject: self.contender.name().to_owned(), doing, message }
    }
}

/// Key indices in the order of their use, and the keys, so that making them costs nothing later.
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

/// 50k × 100 B: writes in order, reads and ranges of what is still in memory; then writes in random
/// order and in batches, each into a store of its own.
pub(super) fn small(context: &mut Context<'_>) -> Result<(), BenchError> {
    let count = context.count(50_000);
    let values = Values::new(SMALL_VALUE_BYTES, context.seed);
    let subject = context.open(None)?;
    puts(context, &*subject, SEQUENTIAL_WRITE, &Keys::sequential(count), &values)?;
    if context.level == Level::Interval {
        gets(context, &*subject, SEQUENTIAL_READ_MEMORY, &Keys::sequential(count), &values, Found::Right)?;
        let random = Keys::random(count, count, context.seed + 1);
        gets(context, &*subject, RANDOM_READ_MEMORY, &random, &values, Found::Right)?;
        ranges(context, &*subject, RANGE_100_MEMORY, 100, count, &values)?;
        ranges(context, &*subject, RANGE_500_MEMORY, 500, count, &values)?;
    }
    context.record_space("50k × 100 B in order", &*subject, count * (KEY_BYTES + SMALL_VALUE_BYTES) as u64);
    drop(subject);

    let subject = context.open(None)?;
    puts(context, &*subject, RANDOM_WRITE, &Keys::shuffled(count, context.seed + 2), &values)?;
    drop(subject);
    let subject = context.open(None)?;
    batches(context, &*subject, &Keys::sequential(count), &values)
}

/// 200k × 200 B: writes in order, then reads and ranges of what has been flushed into tables.
pub(super) fn flushed(context: &mut Context<'_>) -> Result<(), BenchError> {
    let count = context.count(200_000);
    let values = Values::new(LARGE_VALUE_BYTES, context.seed);
    let subject = context.open(None)?;
    puts(context, &*subject, SEQUENTIAL_WRITE_LARGE, &Keys::sequential(count), &values)?;
    if context.level == Level::Disk {
        return Ok(());
    }
    subject.flush()?;
    subject.settle()?;
    let half = context.count(100_000);
    // Once untimed, so that all are measured with a warm cache of the same size.
    check_all(context, &*subject, &Keys::sequential(count), &values)?;
    gets(context, &*subject, SEQUENTIAL_READ_DISK, &Keys::sequential(half), &values, Found::Right)?;
    let random = Keys::random(half, count, context.seed + 3);
    gets(context, &*subject, RANDOM_READ_DISK, &random, &values, Found::Right)?;
    ranges(context, &*subject, RANGE_100_DISK, 100, count, &values)?;
    ranges(context, &*subject, RANGE_500_DISK, 500, count, &values)?;
    context.record_space("200k × 200 B, flushed", &*subject, count * (KEY_BYTES + LARGE_VALUE_BYTES) as u64);
    Ok(())
}

/// 100k operations over 50k keys, 70 % and 90 % of them reads.
pub(super) fn mixed(context: &mut Context<'_>) -> Result<(), BenchError> {
    let keys = context.count(50_000);
    let values = Values::new(SMALL_VALUE_BYTES, context.seed);
    let subject = context.open(None)?;
    fill(&*subject, &Keys::sequential(keys), &values)?;
    for (test, reads_percent) in [(MIXED_70, 70), (MIXED_90, 90)] {
        let operations = Keys::random(context.count(100_000), keys, context.seed + reads_percent);
        let mut rng = generator(context.seed + 4);
        let reads: Vec<bool> = (0..operations.len()).map(|_| rng.random_range(0..100) < reads_percent).collect();
        let mut bad = None;
        let stride = context.put_stride();
        let mut measure = timed(&*subject, operations.len(), stride, |number| {
            let (index, key) = operations.at(number);
            if reads[number as usize] {
                if subject.get(key, values.of(index))? != Found::Right {
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

/// 2 M × 200 B in random order, then gets of present and of missing keys.
pub(super) fn large(context: &mut Context<'_>) -> Result<(), BenchError> {
    let count = context.count(2_000_000);
    let values = Values::new(LARGE_VALUE_BYTES, context.seed);
    let subject = context.open(None)?;
    puts(context, &*subject, LARGE_WRITE, &Keys::shuffled(count, context.seed + 5), &values)?;
    subject.flush()?;
    subject.settle()?;
    let reads = context.count(200_000);
    let random = Keys::random(reads, count, context.seed + 6);
    gets(context, &*subject, LARGE_READ, &random, &values, Found::Right)?;
    // Indices above all that were written, but keys all over the range: with a last byte of their own.
    let missing = missing_keys(&Keys::random(reads, count, context.seed + 7));
    misses(context, &*subject, &missing)?;
    context.record_space("2 M × 200 B, flushed", &*subject, count * (KEY_BYTES + LARGE_VALUE_BYTES) as u64);
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

/// Writes without timing.
pub(super) fn fill(subject: &dyn KvSubject, keys: &Keys, values: &Values) -> Result<(), BenchError> {
    let all: Vec<(u64, &[u8])> = (0..keys.len()).map(|number| keys.at(number)).collect();
    for chunk in all.chunks(1000) {
        let pairs: Vec<(&[u8], &[u8])> = chunk.iter().map(|(index, key)| (*key, values.of(*index))).collect();
        subject.put_batch(&pairs)?;
    }
    Ok(())
}

pub(super) fn puts(
    context: &mut Context<'_>,
    subject: &dyn KvSubject,
    test: Test,
    keys: &Keys,
    values: &Values,
) -> Result<(), BenchError> {
    let mut measure = timed(subject, keys.len(), context.put_stride(), |number| {
        let (index, key) = keys.at(number);
        subject.put(key, values.of(index))
    })?;
    measure.payload_bytes = keys.len() * (KEY_BYTES + values.len()) as u64;
    context.record(test, measure);
    Ok(())
}

fn batches(context: &mut Context<'_>, subject: &dyn KvSubject, keys: &Keys, values: &Values) -> Result<(), BenchError> {
    const BATCH: usize = 100;
    let pairs: Vec<(&[u8], &[u8])> =
        (0..keys.len()).map(|number| keys.at(number)).map(|(index, key)| (key, values.of(index))).collect();
    let chunks: Vec<&[(&[u8], &[u8])]> = pairs.chunks(BATCH).collect();
    let mut measure = timed(subject, chunks.len() as u64, 1, |number| subject.put_batch(chunks[number as usize]))?;
    let written = keys.len();
    // Row P counts pairs.
    measure.operations = written;
    measure.payload_bytes = written * (KEY_BYTES + values.len()) as u64;
    context.record(BATCH_WRITE, measure);
    check_all(context, subject, keys, values)
}

pub(super) fn gets(
    context: &mut Context<'_>,
    subject: &dyn KvSubject,
    test: Test,
    keys: &Keys,
    values: &Values,
    expected: Found,
) -> Result<(), BenchError> {
    let (mut bad, mut hits) = (None, 0);
    let mut measure = timed(subject, keys.len(), FAST_STRIDE, |number| {
        let (index, key) = keys.at(number);
        let found = subject.get(key, values.of(index))?;
        hits += u64::from(found == Found::Right);
        if found != expected {
            bad = Some((index, found));
        }
        Ok(())
    })?;
    if let Some((index, found)) = bad {
        return Err(context.wrong("reading", format!("key {index}: expected {expected:?}, got {found:?}")));
    }
    measure.hits = Some(hits);
    measure.payload_bytes = keys.len() * values.len() as u64;
    context.record(test, measure);
    Ok(())
}

fn misses(context: &mut Context<'_>, subject: &dyn KvSubject, keys: &[[u8; KEY_BYTES + 1]]) -> Result<(), BenchError> {
    let mut found = 0;
    let mut measure = timed(subject, keys.len() as u64, FAST_STRIDE, |number| {
        found += u64::from(subject.get(&keys[number as usize], b"")? != Found::Missing);
        Ok(())
    })?;
    if found > 0 {
        return Err(context.wrong("looking for missing keys", format!("{found} were found")));
    }
    measure.hits = Some(0);
    measure.payload_bytes = 0;
    context.record(LARGE_MISS, measure);
    Ok(())
}

/// Reads every key once and compares, untimed.
pub(super) fn check_all(
    context: &Context<'_>,
    subject: &dyn KvSubject,
    keys: &Keys,
    values: &Values,
) -> Result<(), BenchError> {
    for number in 0..keys.len() {
        let (index, key) = keys.at(number);
        let found = subject.get(key, values.of(index))?;
        if found != Found::Right {
            return Err(context.wrong("reading everything back", format!("key {index}: {found:?}")));
        }
    }
    Ok(())
}

pub(super) fn ranges(
    context: &mut Context<'_>,
    subject: &dyn KvSubject,
    test: Test,
    length: u64,
    keys: u64,
    values: &Values,
) -> Result<(), BenchError> {
    let length = length.min(keys);
    let mut rng = generator(context.seed + length);
    let queries: Vec<u64> = (0..context.count(1000)).map(|_| rng.random_range(0..=keys - length)).collect();
    let bounds: Vec<_> = queries.iter().map(|&first| (data::key(first), data::key(first + length))).collect();
    let mut bytes = 0_u64;
    let mut measure = timed(subject, queries.len() as u64, 1, |number| {
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
            return Err(
                context.wrong("scanning", format!("the range of {length} from key {first} is not what was written"))
            );
        }
    }
    measure.payload_bytes = bytes;
    context.record(test, measure);
    Ok(())
}
