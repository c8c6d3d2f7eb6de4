//! Cost of the backends' operations, in nanoseconds per operation.
//!
//! `cargo bench -p thalweg-store --bench backend [-- KEYS VALUE_BYTES]`. The defaults are small, so that the benchmark
//! can run as a test. It uses one thread. Writes are not durable, because the log makes them durable in a node. Reads
//! of flushed data are measured with a warm block cache. The benchmark verifies the contents that it reads, not only
//! their number.

#![allow(clippy::print_stdout, reason = "it prints a report")]

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
    time::Instant,
};

use thalweg_disk::SimDisk;
use thalweg_store::{
    Applied, Backend, BarrierFailed, Direction, LogBarrier, WriteBatch,
    lsm::{LsmBackend, LsmOptions},
    memory::{MemoryBackend, MemoryOptions},
};
use thalweg_types::{Index, Lsn};

/// A log barrier that always succeeds at once, as if the log were already on disk.
struct Durable;

impl LogBarrier for Durable {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        Ok(())
    }
}

/// Returns a key in the state machine's layout: tag, keyspace, user key.
fn key(number: usize) -> [u8; 19] {
    let mut key = *b"\x10\0\0\0\x01key_0000000000";
    let mut rest = number;
    for digit in key.iter_mut().rev().take(10) {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// Returns a random permutation of `0..count`. The permutation is the same in each run.
fn shuffled(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for at in (1..count).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(at, (state >> 33) as usize % (at + 1));
    }
    order
}

fn report(backend: &dyn Backend, what: &str, operations: usize, start: Instant) {
    let nanos = start.elapsed().as_nanos() as f64 / operations as f64;
    println!("{:<8} {what:<28} {nanos:>10.0} ns/op {:>12.0} op/s", backend.name(), 1e9 / nanos);
}

fn puts(backend: &dyn Backend, what: &str, order: &[usize], value: &[u8]) {
    let mut batch = WriteBatch::new();
    let mut applied = backend.applied().unwrap_or_default();
    let start = Instant::now();
    for number in order {
        batch.clear();
        batch.put(&[&key(*number)], &[value]);
        applied.index = Index(applied.index.0 + 1);
        backend.apply(&batch, applied).expect("applies");
    }
    report(backend, what, order.len(), start);
}

fn gets(backend: &dyn Backend, what: &str, order: &[usize], value: &[u8]) {
    let start = Instant::now();
    for number in order {
        let found = backend.get(&key(*number)).expect("reads");
        assert_eq!(found.as_deref(), Some(value));
    }
    report(backend, what, order.len(), start);
}

fn misses(backend: &dyn Backend, what: &str, order: &[usize]) {
    let start = Instant::now();
    for number in order {
        let mut key = key(*number);
        key[18] = b'x';
        assert_eq!(backend.get(&key).expect("reads"), None);
    }
    report(backend, what, order.len(), start);
}

fn ranges(backend: &dyn Backend, what: &str, order: &[usize], len: usize, direction: Direction) {
    let starts = order.iter().filter(|start| **start + len <= order.len() && **start + 1 >= len).take(2_000);
    let starts: Vec<usize> = starts.copied().collect();
    let start = Instant::now();
    for first in &starts {
        let first = key(*first);
        let (lower, upper) = match direction {
            Direction::Forward => (Bound::Included(&first[..]), Bound::Unbounded),
            Direction::Reverse => (Bound::Unbounded, Bound::Included(&first[..])),
        };
        let mut left = len;
        let mut bytes = 0;
        let visit = &mut |key: &[u8], value: &[u8]| {
            bytes += key.len() + value.len();
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        backend.view().scan(lower, upper, direction, visit).expect("scans");
        assert!(left == 0 && bytes > 0, "a range was short");
    }
    report(backend, what, starts.len(), start);
}

fn reads(backend: &dyn Backend, state: &str, sequential: &[usize], random: &[usize], value: &[u8]) {
    gets(backend, &format!("{state} get sequential"), sequential, value);
    gets(backend, &format!("{state} get random"), random, value);
    misses(backend, &format!("{state} get missing"), random);
    for len in [100, 500] {
        ranges(backend, &format!("{state} range {len}"), random, len, Direction::Forward);
        ranges(backend, &format!("{state} range {len} reverse"), random, len, Direction::Reverse);
    }
}

fn run(backend: &dyn Backend, keys: usize, value: &[u8]) {
    let sequential: Vec<usize> = (0..keys).collect();
    let random = shuffled(keys);
    puts(backend, "put sequential", &sequential, value);
    reads(backend, "memory", &sequential, &random, value);
    puts(backend, "put again random", &random, value);
    let start = Instant::now();
    backend.flush().expect("flushes");
    report(backend, "flush, per key", keys, start);
    reads(backend, "flushed", &sequential, &random, value);
}

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let keys = numbers.first().copied().unwrap_or(5_000).max(1_000);
    let value = vec![b'v'; numbers.get(1).copied().unwrap_or(100)];
    println!("{keys} keys of 19 bytes, values of {} bytes, one thread, nothing synced", value.len());

    let dir = tempfile::tempdir().expect("a directory");
    let options = LsmOptions { cache_bytes: 1 << 30, ..LsmOptions::new(dir.path()) };
    run(&LsmBackend::open(options, Arc::new(Durable)).expect("opens"), keys, &value);

    let disk = Arc::new(SimDisk::new(1));
    let backend = MemoryBackend::open(disk, MemoryOptions::default(), Arc::new(Durable)).expect("opens");
    run(&backend, keys, &value);
    assert_eq!(backend.applied().map(|applied: Applied| applied.index), Some(Index(2 * keys as u64)));
}
