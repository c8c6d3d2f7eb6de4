//! The groups of row A, one sample at a time.
//!
//! Owns: the setup, the timed part, and the comparison of the content. Does not own: the order of samples of several
//! stores.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use rand::RngExt as _;

use crate::{
    BenchError,
    data::{KEY_BYTES, Values, key},
    engine::{KvSubject, LookupResult, Pair},
    random::generator,
};

/// Entries written at a time while a store is set up.
const LOAD_BATCH: u64 = 1000;
/// Entries that row A's reads choose from.
const LOADED: u64 = 10_000;
/// A hundred reads are over before a clock says much: they are repeated within a sample.
const REPEATS: u64 = 50;
/// Transactions of one sample.
const TRANSACTIONS: u64 = 20;

/// A group with its parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Sets, one after the other; their number.
    Writes(u64),
    /// Threads that set concurrently; their number.
    Writers(u64),
    /// Tasks of one thread that set concurrently; their number.
    Tasks(u64),
    /// Random reads of 10,000 entries; their number.
    Reads(u64),
    /// A consistent copy of all entries; their number.
    Copy(u64),
    /// Operations, 70 % reads and 30 % sets, over 10,000 entries; their number.
    Mixed(u64),
    /// Transactions; the number of sets of each.
    Transaction(u64),
    /// Random reads; the number of entries of the store.
    ReadsOf(u64),
    /// Threads that read 10,000 entries concurrently; their number.
    Readers(u64),
}

/// Parameters of all groups.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Values of one length.
    pub values: Values,
    /// Seed of the orders.
    pub seed: u64,
}

impl Group {
    /// Returns the group's name in row A; the sweeps have names of their own.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Writes(_) => "write_throughput",
            Self::Writers(_) | Self::Tasks(_) => "concurrent_writers",
            Self::Reads(_) => "read_latency",
            Self::Copy(_) => "snapshot_speed",
            Self::Mixed(_) => "mixed_workload",
            Self::Transaction(_) => "transaction_overhead",
            Self::ReadsOf(_) => "sweep: data size",
            Self::Readers(_) => "sweep: readers",
        }
    }

    /// Describes the group's work, with its parameter.
    pub fn what(self) -> String {
        match self {
            Self::Writes(count) => format!("{count} sequential sets"),
            Self::Writers(threads) => format!("{threads} threads set at once"),
            Self::Tasks(tasks) => format!("{tasks} tasks set at once"),
            Self::Reads(count) => format!("{count} random reads of {LOADED}"),
            Self::Copy(entries) => format!("copy of {entries} entries"),
            Self::Mixed(count) => format!("{count} operations, 70 % reads"),
            Self::Transaction(writes) => format!("transaction of {writes}"),
            Self::ReadsOf(entries) => format!("random reads of {entries}"),
            Self::Readers(threads) => format!("{threads} readers at once"),
        }
    }

    /// Returns the number behind the group's name, which a sweep varies.
    pub const fn parameter(self) -> u64 {
        match self {
            Self::Writes(number)
            | Self::Writers(number)
            | Self::Tasks(number)
            | Self::Reads(number)
            | Self::Copy(number)
            | Self::Mixed(number)
            | Self::Transaction(number)
            | Self::ReadsOf(number)
            | Self::Readers(number) => number,
        }
    }

    /// Returns the unit of one operation.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Writes(_) | Self::Writers(_) | Self::Tasks(_) | Self::Transaction(_) => "set",
            Self::Reads(_) | Self::ReadsOf(_) | Self::Readers(_) => "read",
            Self::Copy(_) => "entry",
            Self::Mixed(_) => "operation",
        }
    }

    fn loaded(self) -> u64 {
        match self {
            Self::Reads(_) | Self::Mixed(_) | Self::Readers(_) => LOADED,
            Self::Copy(entries) | Self::ReadsOf(entries) => entries,
            Self::Writes(_) | Self::Writers(_) | Self::Tasks(_) | Self::Transaction(_) => 0,
        }
    }

    /// Before the timed part: loads the entries and moves them to where the store keeps them for long.
    pub fn prepare(self, store: &dyn KvSubject, workload: &Workload) -> Result<(), BenchError> {
        let loaded = self.loaded();
        let mut from = 0;
        while from < loaded {
            let to = (from + LOAD_BATCH).min(loaded);
            put_batch(store, workload, from..to)?;
            from = to;
        }
        if loaded > 0 {
            store.flush()?;
            store.settle()?;
        }
        Ok(())
    }

    /// Returns the number of operations of a sample.
    pub const fn operations(self) -> u64 {
        match self {
            Self::Writes(count) | Self::Mixed(count) | Self::Copy(count) => count,
            Self::Writers(count) | Self::Tasks(count) => count * SETS_OF_A_WRITER,
            Self::Reads(count) => count * REPEATS,
            Self::ReadsOf(_) => READS_OF_A_SWEEP,
            Self::Readers(count) => count * READS_OF_A_READER,
            Self::Transaction(writes) => TRANSACTIONS * writes,
        }
    }

    /// Returns the entries that a sample writes, where it writes entries of its own.
    fn indices(self, sample: u64) -> Range<u64> {
        sample * self.operations()..(sample + 1) * self.operations()
    }

    /// One sample, the timed part.
    pub fn sample(self, store: &dyn KvSubject, workload: &Workload, sample: u64) -> Result<(), BenchError> {
        let mut rng = generator(workload.seed ^ (sample << 32));
        let mut indices = self.indices(sample);
        match self {
            Self::Writes(_) => indices.try_for_each(|index| put(store, workload, index)),
            Self::Writers(threads) => {
                let next = AtomicU64::new(indices.start);
                let put = |_| put(store, workload, next.fetch_add(1, Ordering::Relaxed));
                run_threads(threads, |_| (0..SETS_OF_A_WRITER).try_for_each(put))
            }
            Self::Tasks(tasks) => {
                let put = store.put_by_tasks(tasks as usize, indices, &workload.values);
                put.unwrap_or_else(|| Err(wrong("setting from tasks", "it can only block".to_owned())))
            }
            Self::Reads(_) => indices.try_for_each(|_| get(store, workload, rng.random_range(0..LOADED))),
            Self::ReadsOf(entries) => indices.try_for_each(|_| get(store, workload, rng.random_range(0..entries))),
            Self::Copy(entries) => copy(store, workload, entries),
            Self::Mixed(_) => indices.try_for_each(|_| {
                let index = rng.random_range(0..LOADED);
                let is_get = rng.random_range(0..10) < 7;
                if is_get { get(store, workload, index) } else { put(store, workload, index) }
            }),
            Self::Transaction(writes) => {
                indices.step_by(writes as usize).try_for_each(|first| put_batch(store, workload, first..first + writes))
            }
            Self::Readers(threads) => run_threads(threads, |thread| {
                let mut rng = generator(workload.seed ^ (sample << 32) ^ thread);
                (0..READS_OF_A_READER).try_for_each(|_| get(store, workload, rng.random_range(0..LOADED)))
            }),
        }
    }

    /// Checks after the timed part that a sample of the written entries is there.
    pub fn verify(self, store: &dyn KvSubject, workload: &Workload, sample: u64) -> Result<(), BenchError> {
        if self.unit() != "set" {
            return Ok(());
        }
        self.indices(sample).step_by(17).try_for_each(|index| get(store, workload, index))
    }
}

/// Fewer in a debug build, whose figures mean nothing: there it is a test.
const SETS_OF_A_WRITER: u64 = if cfg!(debug_assertions) { 10 } else { 200 };
/// Reads of a sample: enough that a disturbance of a millisecond is not most of it.
const READS_OF_A_SWEEP: u64 = if cfg!(debug_assertions) { 500 } else { 20_000 };
const READS_OF_A_READER: u64 = if cfg!(debug_assertions) { 500 } else { 20_000 };

/// Runs one closure per thread; the first error wins.
fn run_threads(threads: u64, work: impl Fn(u64) -> Result<(), BenchError> + Sync) -> Result<(), BenchError> {
    std::thread::scope(|scope| {
        let work = &work;
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        handles.into_iter().try_for_each(|handle| handle.join().expect("a thread of the benchmark"))
    })
}

fn put(store: &dyn KvSubject, workload: &Workload, index: u64) -> Result<(), BenchError> {
    store.put(&key(index), workload.values.of(index))
}

fn put_batch(store: &dyn KvSubject, workload: &Workload, indices: Range<u64>) -> Result<(), BenchError> {
    let keys: Vec<[u8; KEY_BYTES]> = indices.clone().map(key).collect();
    let pairs: Vec<Pair<'_>> =
        keys.iter().zip(indices).map(|(key, index)| (&key[..], workload.values.of(index))).collect();
    store.put_batch(&pairs)
}

fn get(store: &dyn KvSubject, workload: &Workload, index: u64) -> Result<(), BenchError> {
    match store.get(&key(index), workload.values.of(index))? {
        LookupResult::Right => Ok(()),
        found => Err(wrong("reading", format!("entry {index}: {found:?}"))),
    }
}

/// Every pair in order from one consistent view, its bytes copied.
fn copy(store: &dyn KvSubject, workload: &Workload, entries: u64) -> Result<(), BenchError> {
    let pair_bytes = KEY_BYTES + workload.values.len();
    let mut copied = Vec::with_capacity(entries as usize * pair_bytes);
    store.range(b"key_", b"key`", &mut |key, value| {
        copied.extend_from_slice(key);
        copied.extend_from_slice(value);
    })?;
    let is_right = |(index, pair): (usize, &[u8])| {
        pair[..KEY_BYTES] == key(index as u64) && pair[KEY_BYTES..] == *workload.values.of(index as u64)
    };
    if copied.len() == entries as usize * pair_bytes && copied.chunks(pair_bytes).enumerate().all(is_right) {
        Ok(())
    } else {
        Err(wrong("copying", format!("{} bytes instead of {entries} pairs of {pair_bytes}", copied.len())))
    }
}

fn wrong(doing: &'static str, message: String) -> BenchError {
    BenchError::wrong("a store", doing, message)
}
