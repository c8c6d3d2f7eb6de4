//! What one process does: a workload of row P on one store in a fresh directory.
//!
//! Keys and orders are made before the clock runs. A get compares the value while the clock runs. A range compares the
//! number of its pairs and bytes while it runs, and the first queries are compared pair by pair afterwards.

use std::{os::unix::fs::MetadataExt as _, path::Path, time::Duration};

use crate::{
    Failure,
    keys::{KEY_BYTES, Numbers, Values, key},
    subjects::{Level, Subject, SubjectKind},
    timing::{Measured, Unit, timed},
};

/// A group of lines that one process measures on one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// 50 k × 100 B in order into a fresh directory, then gets and ranges in memory.
    Small,
    /// 50 k × 100 B in random order into a fresh directory.
    Random,
    /// 500 batches of 100 × 100 B into a fresh directory.
    Batches,
    /// Puts of 100 B that are on disk when they return, one thread.
    Durable,
    /// 200 k × 200 B in order, flushed, then gets and ranges.
    Ordered,
    /// 2 M × 200 B in random order, then gets and ranges, and the bytes of the files.
    Large,
}

impl Workload {
    /// All workloads, in the order of the table.
    pub const ALL: [Self; 6] = [Self::Small, Self::Random, Self::Batches, Self::Durable, Self::Ordered, Self::Large];

    /// Returns what is measured on this workload: the stores, and beside durable puts the disk itself.
    pub fn subjects(self, stores: &[SubjectKind]) -> Vec<SubjectKind> {
        let probe = (self == Self::Durable).then_some(SubjectKind::Probe);
        stores.iter().copied().filter(|store| *store != SubjectKind::Probe).chain(probe).collect()
    }
}

impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Small => "small",
            Self::Random => "random",
            Self::Batches => "batches",
            Self::Durable => "durable",
            Self::Ordered => "ordered",
            Self::Large => "large",
        })
    }
}

/// Numbers of operations.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Keys of the workloads `small` and `random`.
    pub small: u64,
    /// Keys of the workload `ordered`.
    pub ordered: u64,
    /// Keys of the workload `large`.
    pub large: u64,
    /// Batches of 100 pairs.
    pub batches: u64,
    /// Puts that wait for the disk.
    pub durable: u64,
    /// Queries of each range test.
    pub queries: u64,
    /// Seconds between the last read of `large` and the second look at its files.
    pub rest: u64,
}

const BATCH_PAIRS: u64 = 100;
const SMALL_VALUE_BYTES: usize = 100;
const LARGE_VALUE_BYTES: usize = 200;
/// Number of queries of a range test whose pairs are compared after the clock has stopped.
const COMPARED_QUERIES: usize = 20;

impl Counts {
    /// The counts of row P, or a tenth of them.
    pub fn new(quick: bool, rest: u64) -> Self {
        let of = if quick { 10 } else { 1 };
        Self {
            small: 50_000 / of,
            ordered: 200_000 / of,
            large: 2_000_000 / of,
            batches: 500 / of,
            durable: 5_000 / of,
            queries: 2_000 / of,
            rest,
        }
    }
}

/// Runs one workload on one store in an empty directory.
pub fn run(
    workload: Workload,
    subject: SubjectKind,
    dir: &Path,
    counts: &Counts,
    seed: u64,
) -> Result<Vec<Measured>, Failure> {
    let level = if workload == Workload::Durable { Level::Disk } else { Level::Interval };
    let value_bytes = match workload {
        Workload::Ordered | Workload::Large => LARGE_VALUE_BYTES,
        _ => SMALL_VALUE_BYTES,
    };
    let opened = subject.open(dir, level)?;
    let store = Store {
        subject: &*opened,
        values: Values::new(value_bytes, seed),
        numbers: Numbers::new(seed),
        queries: counts.queries,
    };
    match workload {
        Workload::Small => small(store, counts.small),
        Workload::Random => random(store, counts.small),
        Workload::Batches => batches(&store, counts.batches),
        Workload::Durable => {
            let order: Vec<u64> = (0..counts.durable).collect();
            let title = format!("put in order, {} × 100 B, one thread [disk]", short(counts.durable));
            Ok(vec![store.puts(title, &order)?])
        }
        Workload::Ordered => ordered(store, counts.ordered),
        Workload::Large => large(store, counts, dir),
    }
}

struct Store<'s> {
    subject: &'s dyn Subject,
    values: Values,
    numbers: Numbers,
    queries: u64,
}

fn small(mut store: Store<'_>, count: u64) -> Result<Vec<Measured>, Failure> {
    let order: Vec<u64> = (0..count).collect();
    let keys = short(count);
    let puts = store.puts(format!("put in order, {keys} × 100 B, fresh directory [interval]"), &order)?;
    let gets = store.gets(format!("get in order, of {keys} in memory [interval]"), &order)?;
    let shuffled = store.numbers.shuffled(count);
    let random_gets = store.gets(format!("get at random, of {keys} in memory [interval]"), &shuffled)?;
    let ranges = store.ranges(format!("range of 100 of {keys} in memory, iterator [interval]"), count, 100)?;
    Ok(vec![puts, gets, random_gets, ranges])
}

fn random(mut store: Store<'_>, count: u64) -> Result<Vec<Measured>, Failure> {
    let order = store.numbers.shuffled(count);
    let title = format!("put at random, {} × 100 B, fresh directory [interval]", short(count));
    Ok(vec![store.puts(title, &order)?])
}

fn batches(store: &Store<'_>, count: u64) -> Result<Vec<Measured>, Failure> {
    let keys: Vec<_> = (0..count * BATCH_PAIRS).map(key).collect();
    let title = format!("batch of 100 × 100 B, {count} in order, fresh directory [interval]");
    let measured = timed(title, count, |batch| {
        let first = batch * BATCH_PAIRS;
        let pair = |number: u64| (&keys[number as usize][..], store.values.of(number));
        let pairs: Vec<_> = (first..first + BATCH_PAIRS).map(pair).collect();
        store.subject.put_batch(&pairs)
    })?;
    Ok(vec![measured])
}

fn ordered(mut store: Store<'_>, count: u64) -> Result<Vec<Measured>, Failure> {
    let order: Vec<u64> = (0..count).collect();
    let keys = short(count);
    let puts = store.puts(format!("put in order, {keys} × 200 B, fresh directory [interval]"), &order)?;
    store.subject.flush()?;
    let shuffled = store.numbers.shuffled(count);
    let gets = store.gets(format!("get at random, of {keys} flushed [interval]"), &shuffled)?;
    let ranges = store.ranges(format!("range of 500 of {keys} flushed, iterator [interval]"), count, 500)?;
    Ok(vec![puts, gets, ranges])
}

fn large(mut store: Store<'_>, counts: &Counts, dir: &Path) -> Result<Vec<Measured>, Failure> {
    let count = counts.large;
    let order = store.numbers.shuffled(count);
    let keys = short(count);
    let puts = store.puts(format!("put at random, {keys} × 200 B, fresh directory [interval]"), &order)?;
    drop(order);
    let asked: Vec<u64> = (0..count / 10).map(|_| store.numbers.below(count)).collect();
    let gets = store.gets(format!("get at random, of {keys} right after their puts [interval]"), &asked)?;
    let ranges = store.ranges(format!("range of 100 of {keys} right after, iterator [interval]"), count, 100)?;
    let payload = count * (KEY_BYTES + LARGE_VALUE_BYTES) as u64;
    let files = |title: &str| -> Result<Measured, Failure> {
        let value = allocated_bytes(dir)? as f64 / payload as f64;
        let title = format!("files {title}, of {keys} × 200 B [interval]");
        Ok(Measured { title, unit: Unit::OfPayload, value, micros: None })
    };
    let at_once = files("right after")?;
    std::thread::sleep(Duration::from_secs(counts.rest));
    Ok(vec![puts, gets, ranges, at_once, files(&format!("after a rest of {} s", counts.rest))?])
}

impl Store<'_> {
    fn puts(&self, title: String, order: &[u64]) -> Result<Measured, Failure> {
        let keys: Vec<_> = order.iter().map(|&number| key(number)).collect();
        timed(title, order.len() as u64, |at| self.subject.put(&keys[at as usize], self.values.of(order[at as usize])))
    }

    fn gets(&self, title: String, order: &[u64]) -> Result<Measured, Failure> {
        let keys: Vec<_> = order.iter().map(|&number| key(number)).collect();
        timed(title, order.len() as u64, |at| {
            match self.subject.holds(&keys[at as usize], self.values.of(order[at as usize]))? {
                true => Ok(()),
                false => Err(format!("key {} has another value than was written", order[at as usize]).into()),
            }
        })
    }

    /// Queries ranges of `length` pairs among the keys below `count`.
    fn ranges(&mut self, title: String, count: u64, length: u64) -> Result<Measured, Failure> {
        let length = length.min(count);
        let firsts: Vec<u64> = (0..self.queries).map(|_| self.numbers.below(count - length + 1)).collect();
        let bounds: Vec<_> = firsts.iter().map(|&first| (key(first), key(first + length))).collect();
        let pair_bytes = KEY_BYTES + self.values.of(0).len();
        let measured = timed(title, self.queries, |at| {
            let (start, end) = &bounds[at as usize];
            let (mut pairs, mut bytes) = (0, 0);
            self.subject.range(start, end, &mut |key, value| {
                pairs += 1;
                bytes += key.len() + value.len();
            })?;
            if pairs == length && bytes == length as usize * pair_bytes {
                return Ok(());
            }
            Err(format!("a range of {length} has {pairs} pairs of {bytes} bytes").into())
        })?;
        for (&first, (start, end)) in firsts.iter().zip(&bounds).take(COMPARED_QUERIES) {
            let (mut next, mut right) = (first, true);
            self.subject.range(start, end, &mut |found, value| {
                right &= found == key(next) && value == self.values.of(next);
                next += 1;
            })?;
            if !right || next != first + length {
                return Err(format!("the range of {length} from key {first} is not what was written").into());
            }
        }
        Ok(measured)
    }
}

/// Bytes that the disk has allocated for all files below a directory.
fn allocated_bytes(dir: &Path) -> Result<u64, Failure> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        match std::fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => bytes += allocated_bytes(&path)?,
            Ok(found) => bytes += found.blocks() * 512,
            // Removed by the store since the listing.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

/// Writes a count as people do: 50 k, 2 M.
fn short(count: u64) -> String {
    match count {
        _ if count >= 1_000_000 && count.is_multiple_of(1_000_000) => format!("{} M", count / 1_000_000),
        _ if count >= 1000 && count.is_multiple_of(1000) => format!("{} k", count / 1000),
        _ => count.to_string(),
    }
}
