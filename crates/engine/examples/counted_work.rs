//! Runs operations of the engine under valgrind, which counts their instructions. The counts do not depend on other
//! load of the machine, so two commits can be compared on a busy machine. Only the work of the calling thread inside
//! [`counted`] is counted.
//!
//! ```text
//! cargo build --release -p thalweg-engine --example counted_work
//! valgrind --tool=callgrind --toggle-collect='*counted_work::counted*' --callgrind-out-file=OUT \
//!     target/release/examples/counted_work sequential-get
//! ```
//!
//! Each run uses a new directory, the LSM backend with default options, and durability `interval`. Keys have 14 bytes,
//! values 100.

#![allow(clippy::print_stdout)]

use std::{ops::Bound, ops::ControlFlow, time::Duration};

use thalweg_engine::{Database, Keyspace, Options, ScanRange};
use thalweg_types::{Durability, command::CommitBuilder};

const OPERATIONS: u64 = 20_000;
/// Number of key-value pairs that each batch writes and each range scan reads.
const PAIRS: u64 = 100;
const NAMES: &str = "sequential-put, random-put, batch-100, sequential-get, random-get or range-100";

fn main() {
    let name = std::env::args().nth(1).expect(NAMES);
    let dir = tempfile::tempdir().expect("has a directory");
    let options =
        Options { durability: Durability::Interval, sync_interval: Duration::from_secs(1), ..Options::default() };
    let database = Database::open(dir.path(), options).expect("opens");
    let keyspace = database.keyspace("counted").expect("is created");
    let sequential: Vec<String> = (0..OPERATIONS).map(key).collect();
    // The order is a permutation: the multiplier is odd and not divisible by five, so it shares no factor with 20,000.
    let random: Vec<String> = (0..OPERATIONS).map(|number| key(number * 7_919 % OPERATIONS)).collect();
    let value = [7; 100];
    let put = |key: &String| drop(keyspace.put(key.as_bytes(), &value).expect("is put"));
    let get = |key: &String| assert!(*keyspace.get(key.as_bytes()).expect("is read").expect("is there").value == value);
    if name.ends_with("get") || name.starts_with("range") {
        sequential.iter().for_each(put);
    }
    match name.as_str() {
        "sequential-put" => counted(&sequential, put),
        "random-put" => counted(&random, put),
        "sequential-get" => counted(&sequential, get),
        "random-get" => counted(&random, get),
        "batch-100" => {
            let batches: Vec<&[String]> = sequential.chunks(PAIRS as usize).collect();
            counted(&batches, |keys| put_batch(&database, &keyspace, keys, &value));
        }
        "range-100" => {
            let starts: Vec<u64> =
                (0..OPERATIONS / PAIRS).map(|number| number * 7_919 % (OPERATIONS - PAIRS)).collect();
            counted(&starts, |start| read_range(&keyspace, *start));
        }
        _ => panic!("expected {NAMES}"),
    }
    drop(keyspace);
    database.close().expect("closes");
}

fn key(number: u64) -> String {
    format!("key_{number:010}")
}

/// Runs the code whose instructions valgrind counts. The command in this file's head names this function.
#[inline(never)]
fn counted<T>(items: &[T], operation: impl FnMut(&T)) {
    items.iter().for_each(operation);
    println!("{} operations", items.len());
}

fn put_batch(database: &Database, keyspace: &Keyspace, keys: &[String], value: &[u8]) {
    let mut commit = CommitBuilder::new();
    for key in keys {
        commit.put(keyspace.id(), key.as_bytes(), value).expect("fits");
    }
    database.commit(&commit).expect("is committed");
}

fn read_range(keyspace: &Keyspace, start: u64) {
    let range = ScanRange {
        start: Bound::Included(key(start).into_bytes()),
        end: Bound::Excluded(key(start + PAIRS).into_bytes()),
        ..ScanRange::default()
    };
    let mut pairs = 0;
    let mut each = |_: thalweg_engine::ScanItem<'_>| {
        pairs += 1;
        ControlFlow::Continue(())
    };
    keyspace.scan(&range, &mut each).expect("is read");
    assert!(pairs == PAIRS);
}
