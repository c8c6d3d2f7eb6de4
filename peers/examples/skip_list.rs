//! The memtable of Thalweg beside `crossbeam-skiplist`, in one process.
//!
//! `cargo run --release --example skip_list [-- KEYS ROUNDS]`. Keys are 16 random bytes, values 100 bytes. One thread
//! writes. The concurrent part has one reader, which reads random keys while the writer inserts. Rounds alternate
//! between the two maps; the table shows the median of each operation. Contents are verified, not only counted.
//!
//! The memtable is compiled from its source, because the crate `thalweg-store` does not publish it. It applies one
//! batch for each key, so its figures include the batch and its visibility. `SkipMap` has boxed keys and values, as
//! keys of any length need. Memory is what the memtable reports, and for `SkipMap` the bytes that it requests from the
//! allocator, without the allocator's own overhead.

use std::{
    alloc::{GlobalAlloc, Layout},
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

use crossbeam_skiplist::SkipMap;
use thalweg_store::{Direction, WriteBatch};

mod backend {
    pub use thalweg_store::{Change, Direction, WriteBatch};
}
#[allow(dead_code, reason = "the store uses all of it, this comparison only a part")]
#[path = "../../crates/store/src/memtable/mod.rs"]
mod memtable;

use memtable::{ArenaPool, BatchNumber, Entry, Memtable, MemtableWriter};

/// Keys per scan.
const SCAN_KEYS: usize = 100;
/// Scans and misses measured in each round.
const SCANS: usize = 10_000;

type Key = [u8; 16];
type Value = [u8; 100];

/// The allocator of the `thalweg` command, with a count of the requested bytes.
struct Counting;

static REQUESTED_BYTES: AtomicUsize = AtomicUsize::new(0);
static INNER: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: both functions pass their arguments on unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        REQUESTED_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { INNER.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        REQUESTED_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { INNER.dealloc(at, layout) }
    }
}

/// Returns the key with this number. Keys of consecutive numbers are in no order.
fn key(number: usize) -> Key {
    let mix = |number: u64| {
        let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ (mixed >> 32)
    };
    let mut key = Key::default();
    key[..8].copy_from_slice(&mix(number as u64).to_be_bytes());
    key[8..].copy_from_slice(&(number as u64).to_be_bytes());
    key
}

/// Returns the value of a key.
fn value(key: &Key) -> Value {
    let mut value = [7; 100];
    value[..16].copy_from_slice(key);
    value
}

/// A map under test: one handle writes, any number of threads read.
trait Map: Send + Sync + Sized {
    const NAME: &'static str;
    type Writer: Send;
    fn create(keys: usize) -> (Arc<Self>, Self::Writer);
    fn insert(&self, writer: &mut Self::Writer, key: &Key, value: &Value);
    /// Returns true if the key has this value.
    fn holds(&self, key: &Key, value: &Value) -> bool;
    /// Returns the sum of the last bytes of `SCAN_KEYS` values, beginning at a key. The last byte of each value is 7.
    fn scan(&self, from: &Key) -> usize;
    /// Returns the bytes in use, given the bytes requested from the allocator.
    fn memory_bytes(&self, requested: usize) -> usize;
}

impl Map for Memtable {
    const NAME: &'static str = "memtable";
    type Writer = (MemtableWriter, WriteBatch);

    fn create(keys: usize) -> (Arc<Self>, Self::Writer) {
        let bytes = keys * 256;
        let (memtable, writer) = Memtable::create_in(&Arc::new(ArenaPool::new(bytes, 0)), bytes);
        (memtable, (writer, WriteBatch::new()))
    }

    fn insert(&self, (writer, batch): &mut Self::Writer, key: &Key, value: &Value) {
        batch.clear();
        batch.put(&[key], &[value]);
        writer.apply(batch).expect("room for all keys");
    }

    fn holds(&self, key: &Key, value: &Value) -> bool {
        self.get(key, BatchNumber::MAX) == Some(Entry::Value(value))
    }

    fn scan(&self, from: &Key) -> usize {
        let range = self.range(Bound::Included(from), Bound::Unbounded, Direction::Forward, BatchNumber::MAX);
        let last = |(_, entry): (&[u8], Entry<'_>)| match entry {
            Entry::Value(value) => usize::from(value[99]),
            Entry::Deleted => 0,
        };
        range.take(SCAN_KEYS).map(last).sum()
    }

    fn memory_bytes(&self, _: usize) -> usize {
        Memtable::memory_bytes(self)
    }
}

type Boxes = SkipMap<Box<[u8]>, Box<[u8]>>;

impl Map for Boxes {
    const NAME: &'static str = "crossbeam-skiplist";
    type Writer = ();

    fn create(_: usize) -> (Arc<Self>, ()) {
        (Arc::new(SkipMap::new()), ())
    }

    fn insert(&self, (): &mut (), key: &Key, value: &Value) {
        SkipMap::insert(self, key[..].into(), value[..].into());
    }

    fn holds(&self, key: &Key, value: &Value) -> bool {
        self.get(&key[..]).is_some_and(|entry| **entry.value() == value[..])
    }

    fn scan(&self, from: &Key) -> usize {
        let range = self.range::<[u8], _>((Bound::Included(&from[..]), Bound::Unbounded));
        range.take(SCAN_KEYS).map(|entry| usize::from(entry.value()[99])).sum()
    }

    fn memory_bytes(&self, requested: usize) -> usize {
        requested
    }
}

/// Figures of one round: name and amount, in nanoseconds unless the name says otherwise.
type Figures = Vec<(&'static str, f64)>;

fn nanos(operations: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / operations as f64
}

fn round<M: Map>(keys: usize) -> Figures {
    let mut figures = Figures::new();
    let numbers = || (0..keys).map(|number| key(number));
    let shuffled = |step: usize| (0..keys).map(move |number| key((number * 7_919 + step) % keys));
    let before = REQUESTED_BYTES.load(Ordering::Relaxed);
    let (map, mut writer) = M::create(keys);
    let insert = nanos(keys, || numbers().for_each(|key| map.insert(&mut writer, &key, &value(&key))));
    figures.push(("insert, random order", insert));
    let requested = REQUESTED_BYTES.load(Ordering::Relaxed) - before;
    figures.push(("memory, bytes a key", map.memory_bytes(requested) as f64 / keys as f64));
    let get = nanos(keys, || shuffled(1).for_each(|key| assert!(map.holds(&key, &value(&key)))));
    figures.push(("get", get));
    let absent = (keys..).map(key).take(SCANS);
    let miss = nanos(SCANS, || absent.for_each(|key| assert!(!map.holds(&key, &value(&key)))));
    figures.push(("get, absent", miss));
    let scan = nanos(SCANS, || shuffled(2).take(SCANS).for_each(|key| assert!(map.scan(&key) > 0)));
    figures.push(("scan of 100", scan));
    drop((map, writer));

    let (map, mut writer) = M::create(keys);
    let mut sorted: Vec<Key> = numbers().collect();
    sorted.sort_unstable();
    let ascending = nanos(keys, || sorted.iter().for_each(|key| map.insert(&mut writer, key, &value(key))));
    figures.push(("insert, ascending", ascending));
    drop((map, writer));

    // The reader asks for the keys of the first half, which were inserted before it began.
    let (map, mut writer) = M::create(keys);
    let half = keys / 2;
    (0..half).map(key).for_each(|key| map.insert(&mut writer, &key, &value(&key)));
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (start, mut reads) = (Instant::now(), 0);
            while !is_done.load(Ordering::Relaxed) {
                let key = key((reads * 7_919 + 3) % half);
                assert!(map.holds(&key, &value(&key)));
                reads += 1;
            }
            start.elapsed().as_nanos() as f64 / reads as f64
        });
        let insert = nanos(keys - half, || {
            (half..keys).map(key).for_each(|key| map.insert(&mut writer, &key, &value(&key)));
        });
        is_done.store(true, Ordering::Relaxed);
        figures.push(("insert beside a reader", insert));
        figures.push(("get beside a writer", reader.join().expect("the reader verifies every value")));
    });
    figures
}

fn median(rounds: &[Figures], at: usize) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(|figures| figures[at].1).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let keys = numbers.first().copied().unwrap_or(300_000).max(SCANS);
    let rounds = numbers.get(1).copied().unwrap_or(5).max(1);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(round::<Memtable>(keys));
        theirs.push(round::<Boxes>(keys));
    }
    println!("{keys} keys of 16 bytes, values of 100 bytes, one writer; median of {rounds} rounds, ns an operation");
    println!("{:<24} {:>12} {:>20} {:>8}", "", Memtable::NAME, Boxes::NAME, "ratio");
    for at in 0..ours[0].len() {
        let (ours, theirs, name) = (median(&ours, at), median(&theirs, at), ours[0][at].0);
        println!("{name:<24} {ours:>12.0} {theirs:>20.0} {:>8.2}", theirs / ours);
    }
}
