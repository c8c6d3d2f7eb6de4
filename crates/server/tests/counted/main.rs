//! Work per operation that can be counted: heap allocations, allocated bytes, log batches and syncs. Unlike times,
//! these figures are the same on an idle and on a busy machine, so a change that makes a hot path more expensive fails
//! here.
//!
//! This program has a single test, because the counters cover the whole process. The clients allocate nothing while the
//! server is counted.

#![allow(unreachable_pub, reason = "a test program has no interface")]

#[path = "../support/mod.rs"]
mod support;

mod clients;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use thalweg_engine::{Database, Options, ScanRange};
use thalweg_server::Config;
use thalweg_types::{Durability, record::RecordBatch};

use crate::{
    clients::{HttpClient, RespClient},
    support::{Node, config, resp::serving},
};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call goes unchanged to the system's allocator; counting touches no memory of the allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Relaxed);
    BYTES.fetch_add(bytes as u64, Relaxed);
}

/// Expected work of an operation.
struct Expected {
    operation: &'static str,
    allocations: f64,
    bytes: f64,
    log_batches: f64,
    syncs: f64,
}

const fn expect(operation: &'static str, allocations: f64, bytes: f64, log_batches: f64, syncs: f64) -> Expected {
    Expected { operation, allocations, bytes, log_batches, syncs }
}

/// Recorded work of each operation, in the order in which the test performs them. A failure prints the table as
/// measured. Record a figure that went down, too, so that it stays down.
const EXPECTED: &[Expected] = &[
    expect("put 100 B, interval", 0.00, 0.0, 1.0, 0.0),
    expect("put 100 B, disk", 0.08, 11.0, 1.0, 1.0),
    expect("get 100 B", 1.00, 109.0, 0.0, 0.0),
    expect("range of 100 by the iterator", 7.04, 17_724.0, 0.0, 0.0),
    expect("append 100 × 100 B, interval", 3.05, 1_904.0, 1.0, 0.0),
    expect("HTTP PUT 100 B, interval", 15.00, 12_446.0, 1.0, 0.0),
    expect("HTTP GET 100 B", 11.00, 12_748.0, 0.0, 0.0),
    expect("RESP SET 100 B, disk", 10.08, 1_542.0, 1.0, 1.0),
    expect("RESP 16 × SET 100 B at once, disk", 8.08, 6_146.0, 1.0, 1.0),
    expect("RESP GET 100 B", 2.00, 189.0, 0.0, 0.0),
    expect("RESP 16 × GET 100 B at once", 32.02, 3_027.0, 0.0, 0.0),
];

/// Deviation of a figure from the recorded one that is accepted: threads in the background allocate too, and memtables
/// grow at moments of their own.
fn is_near(measured: f64, recorded: f64, least: f64) -> bool {
    (measured - recorded).abs() <= (recorded * 0.05).max(least)
}

/// Measured work per operation.
struct Work {
    operation: &'static str,
    figures: [f64; 4],
}

struct Meter {
    db: Database,
    rows: Vec<Work>,
}

impl Meter {
    /// Performs `operations` operations by `run` to warm buffers, and then three times as many in three parts. Records
    /// the lowest figures of the parts, because a thread in the background may allocate during one of them.
    fn measure(&mut self, operation: &'static str, operations: u64, mut run: impl FnMut(u64)) {
        (0..operations).for_each(&mut run);
        let mut figures = [f64::MAX; 4];
        for part in 1..=3 {
            let before = self.counters();
            (part * operations..(part + 1) * operations).for_each(&mut run);
            let after = self.counters();
            for ((lowest, before), after) in figures.iter_mut().zip(before).zip(after) {
                *lowest = lowest.min((after - before) as f64 / operations as f64);
            }
        }
        self.rows.push(Work { operation, figures });
    }

    fn counters(&self) -> [u64; 4] {
        let log = self.db.stats().log;
        [ALLOCATIONS.load(Relaxed), BYTES.load(Relaxed), log.appends, log.syncs]
    }

    /// Compares the measured rows with the recorded ones. Returns a description of the differences; empty if there are
    /// none.
    fn differences(&self) -> String {
        let mut found = String::new();
        for (at, Work { operation, figures: [allocations, bytes, log_batches, syncs] }) in self.rows.iter().enumerate()
        {
            let is_same = EXPECTED.get(at).is_some_and(|expected| {
                expected.operation == *operation
                    && is_near(*allocations, expected.allocations, 0.1)
                    && is_near(*bytes, expected.bytes, 40.0)
                    && is_near(*log_batches, expected.log_batches, 0.01)
                    && is_near(*syncs, expected.syncs, 0.01)
            });
            let mark = if is_same { "" } else { " // differs" };
            let row = format!("{operation:?}, {allocations:.2}, {bytes:.0}.0, {log_batches:.3}, {syncs:.3}");
            writeln!(found, "    expect({row}),{mark}").unwrap();
        }
        let is_complete = self.rows.len() == EXPECTED.len();
        if is_complete && !found.contains("// differs") { String::new() } else { found }
    }
}

const KEYS: u64 = 1_000;
const VALUE: [u8; 100] = [7; 100];

/// Returns the key of an operation; the keys repeat.
fn key(number: u64) -> [u8; 8] {
    (number % KEYS).to_be_bytes()
}

fn embedded(meter: &mut Meter) {
    let db = meter.db.clone();
    let keyspace = db.keyspace("counted").unwrap();
    let interval = keyspace.with_durability(Durability::Interval);
    meter.measure("put 100 B, interval", 2 * KEYS, |number| _ = interval.put(&key(number), &VALUE).unwrap());
    let disk = keyspace.with_durability(Durability::Disk);
    meter.measure("put 100 B, disk", 50, |number| _ = disk.put(&key(number), &VALUE).unwrap());
    meter.measure("get 100 B", 2 * KEYS, |number| _ = keyspace.get(&key(number)).unwrap().unwrap());
    meter.measure("range of 100 by the iterator", 100, |_| {
        let range = ScanRange { limit: Some(100), ..ScanRange::default() };
        assert_eq!(keyspace.iter(range).map(Result::unwrap).count(), 100);
    });
    let stream = db.stream("counted").unwrap().with_durability(Durability::Interval);
    let mut batch = RecordBatch::new();
    (0..100).for_each(|_| batch.push_payload(&VALUE).unwrap());
    meter.measure("append 100 × 100 B, interval", 100, |_| _ = stream.append(&batch).unwrap());
}

fn over_http(meter: &mut Meter, mut client: HttpClient) {
    meter.measure("HTTP PUT 100 B, interval", 2 * KEYS, |number| client.put(number % KEYS, &VALUE));
    meter.measure("HTTP GET 100 B", 2 * KEYS, |number| client.get(number % KEYS, &VALUE));
}

fn over_resp(meter: &mut Meter, mut client: RespClient) {
    meter.measure("RESP SET 100 B, disk", 50, |number| client.set(&[number % KEYS], &VALUE));
    let sixteen: [u64; 16] = std::array::from_fn(|at| at as u64);
    meter.measure("RESP 16 × SET 100 B at once, disk", 50, |_| client.set(&sixteen, &VALUE));
    meter.measure("RESP GET 100 B", 2 * KEYS, |number| client.get(&[number % 100], &VALUE));
    meter.measure("RESP 16 × GET 100 B at once", KEYS, |_| client.get(&sixteen, &VALUE));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn operations_do_no_more_work_than_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config();
    // The default backend, not the one of the other tests.
    config.backend = Config::default().backend;
    serving(&mut config);
    let options = Options { maintenance_interval: std::time::Duration::ZERO, ..config.engine_options() };
    let db = Database::open(dir.path(), options).unwrap();
    let node = Node::over(config, db.clone()).await;
    let (http, resp) = (node.address, node.resp.unwrap());
    let (differences, table) = tokio::task::block_in_place(|| {
        let mut meter = Meter { db, rows: Vec::new() };
        embedded(&mut meter);
        over_http(&mut meter, HttpClient::connect(http));
        over_resp(&mut meter, RespClient::connect(resp));
        (meter.differences(), meter.rows.len())
    });
    node.stop().await;
    assert_eq!(table, EXPECTED.len(), "{differences}");
    assert!(differences.is_empty(), "work per operation differs from what is recorded; measured:\n{differences}");
}
