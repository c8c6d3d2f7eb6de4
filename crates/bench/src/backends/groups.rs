//! Groups of operations that the backends suite measures, one sample at a time. Most of them repeat *row A*, a
//! published benchmark of another key-value store (see docs/performance.md). The results that its authors published are
//! goals for Thalweg.
//!
//! Owns: for each group, the setup of a store, the operations in the timed part, and the check of the stored content
//! afterwards. Does not own: the order in which several stores are measured.

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

/// Number of entries in each write batch while a store is filled during setup.
const LOAD_BATCH: u64 = 1000;
/// Number of entries in the store for groups that read random entries.
const LOADED: u64 = 10_000;
/// Number of times that a sample repeats its reads, because a sample of a hundred reads would be too short to time.
const REPEATS: u64 = 50;
/// Number of transactions in one sample.
const TRANSACTIONS: u64 = 20;

/// A group of operations that is measured together. Its parameter sets its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// Writes of single entries, one after the other. The parameter is the number of writes in a sample.
    Writes(u64),
    /// Threads that set entries concurrently. The parameter is the number of threads.
    Writers(u64),
    /// Tasks of one thread that set entries concurrently. The parameter is the number of tasks.
    Tasks(u64),
    /// Random reads among 10,000 entries. The parameter is the number of reads.
    Reads(u64),
    /// A consistent copy of all entries of the store. The parameter is the number of entries.
    Copy(u64),
    /// Operations on random keys among 10,000: 70 % read and 30 % set. The parameter is the number of operations in a
    /// sample.
    Mixed(u64),
    /// Transactions that set entries. The parameter is the number of sets in one transaction.
    Transaction(u64),
    /// Random reads in a store of a given size. The parameter is the number of entries in the store.
    ReadsOf(u64),
    /// Threads that read random entries among 10,000 concurrently. The parameter is the number of threads.
    Readers(u64),
}

/// Values and seed that all groups of operations use.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    /// Values that the groups write, all of one length.
    pub values: Values,
    /// Seed of the random order in which keys are read.
    pub seed: u64,
}

impl Group {
    /// Returns the group's name in a published benchmark of another key-value store (row A of docs/performance.md). Two
    /// groups are not in that benchmark and have names of their own: reads over a growing amount of data, and reads by
    /// a growing number of threads (the sweeps).
    pub(super) const fn name(self) -> &'static str {
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

    /// Returns the number of sets in each transaction, which is one batch; `None` for groups without transactions.
    pub(super) const fn batch(self) -> Option<u64> {
        match self {
            Self::Transaction(writes) => Some(writes),
            _ => None,
        }
    }

    /// Describes the operations of the group in words, with its parameter.
    pub(super) fn what(self) -> String {
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

    /// Returns the group's parameter, such as the number of threads. It grows from one measurement to the next in a
    /// sweep (a series of measurements).
    pub(super) const fn parameter(self) -> u64 {
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

    /// Returns the name of one operation of the group, such as "set" or "read", as the unit of its figures.
    pub(super) const fn unit(self) -> &'static str {
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

    /// Prepares a store before the timed part: loads the entries, flushes them to disk and waits for background work to
    /// end.
    pub(super) fn prepare(self, store: &dyn KvSubject, workload: &Workload) -> Result<(), BenchError> {
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

    /// Returns the number of operations in one sample.
    pub(super) const fn operations(self) -> u64 {
        match self {
            Self::Writes(count) | Self::Mixed(count) | Self::Copy(count) => count,
            Self::Writers(count) | Self::Tasks(count) => count * SETS_OF_A_WRITER,
            Self::Reads(count) => count * REPEATS,
            Self::ReadsOf(_) => READS_OF_A_SWEEP,
            Self::Readers(count) => count * READS_OF_A_READER,
            Self::Transaction(writes) => TRANSACTIONS * writes,
        }
    }

    /// Returns the indices of the entries that a sample writes; empty if the group writes no new entries.
    fn indices(self, sample: u64) -> Range<u64> {
        sample * self.operations()..(sample + 1) * self.operations()
    }

    /// Runs one sample of the group on a store. This is the timed part of the measurement.
    pub(super) fn sample(self, store: &dyn KvSubject, workload: &Workload, sample: u64) -> Result<(), BenchError> {
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

    /// Checks after the timed part that every 17th entry written by this sample can be read.
    pub(super) fn verify(self, store: &dyn KvSubject, workload: &Workload, sample: u64) -> Result<(), BenchError> {
        if self.unit() != "set" {
            return Ok(());
        }
        self.indices(sample).step_by(17).try_for_each(|index| get(store, workload, index))
    }
}

/// Number of sets that each concurrent writer makes in a sample. A debug build makes fewer: its figures mean nothing,
/// and the sample only serves as a test.
const SETS_OF_A_WRITER: u64 = if cfg!(debug_assertions) { 10 } else { 200 };
/// Number of reads in a sample of a sweep (a series of measurements with a growing parameter). There are so many that a
/// disturbance of a millisecond is only a small part of the sample.
const READS_OF_A_SWEEP: u64 = if cfg!(debug_assertions) { 500 } else { 20_000 };
const READS_OF_A_READER: u64 = if cfg!(debug_assertions) { 500 } else { 20_000 };

/// Calls `work` on each of `threads` threads concurrently. Returns the error of the first thread that failed.
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

/// Copies all pairs in key order from one consistent view of the store. Checks that there are `entries` pairs.
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
