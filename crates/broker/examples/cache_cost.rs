//! CPU time of cache operations, on one thread and on two.
//!
//! `cargo run --release -p thalweg-broker --example cache_cost`

#![allow(unreachable_pub, reason = "an example has no interface")]
#![allow(clippy::print_stdout, reason = "figures are printed")]

mod shared;

use std::{thread, time::Duration};

use shared::{Cpu, Rng, allocated, stop_counting};
use thalweg_broker::{Cache, CacheConfig, Expiry, Moment};

const KEYS: u64 = 100_000;
const OPERATIONS: u64 = 500_000;
const NOW: Moment = Moment::from_nanos(1);

fn key(number: u64) -> [u8; 16] {
    let mut key = *b"key:............";
    key[4..12].copy_from_slice(&number.to_be_bytes());
    key
}

fn measure(name: &str, threads: u64, operation: impl Fn(&mut Rng) + Sync) {
    let start = Cpu::start();
    thread::scope(|scope| {
        for thread in 0..threads {
            let operation = &operation;
            scope.spawn(move || {
                let mut rng = Rng(thread + 1);
                (0..OPERATIONS / threads).for_each(|_| operation(&mut rng));
            });
        }
    });
    println!("  {name:<28} {threads} threads {:7.1} ns", start.each(OPERATIONS as usize));
}

fn main() {
    memory();
    stop_counting();
    for value_bytes in [0_usize, 256, 4096] {
        println!("{value_bytes} B values, {KEYS} keys");
        let value = vec![7; value_bytes];
        let cache = Cache::new(CacheConfig { max_bytes: 2 << 30, seed: 1 }).expect("large enough");
        let hour = Expiry::after(NOW, Duration::from_secs(3600));
        for number in 0..KEYS {
            cache.put(NOW, &key(number), &value, Expiry::Never).expect("fits");
        }
        for threads in [1, 2] {
            measure("get, hit", threads, |rng| {
                assert!(cache.get(NOW, &key(rng.below(KEYS))).is_some());
            });
            measure("read in place, hit", threads, |rng| {
                assert!(cache.read(NOW, &key(rng.below(KEYS)), |entry| entry.value.len()).is_some());
            });
            measure("get, miss", threads, |rng| {
                assert!(cache.get(NOW, &key(KEYS + rng.below(KEYS))).is_none());
            });
            measure("put over", threads, |rng| {
                cache.put(NOW, &key(rng.below(KEYS)), &value, Expiry::Never).expect("fits");
            });
            measure("put over, with a deadline", threads, |rng| {
                cache.put(NOW, &key(rng.below(KEYS)), &value, hour).expect("fits");
            });
        }
        measure("touch", 1, |rng| {
            assert!(cache.touch(NOW, &key(rng.below(KEYS)), hour));
        });
        let small = Cache::new(CacheConfig { max_bytes: 64 << 20, seed: 1 }).expect("large enough");
        for threads in [1, 2] {
            measure("put, full, evicting", threads, |rng| {
                small.put(NOW, &key(rng.below(1 << 30)), &value, Expiry::Never).expect("fits");
            });
        }
    }
    println!("counters");
    let cache = Cache::new(CacheConfig { max_bytes: 64 << 20, seed: 1 }).expect("large enough");
    for (name, keys) in [("add, 1000 keys", 1000), ("add, one key", 1)] {
        for threads in [1, 2] {
            measure(name, threads, |rng| {
                cache.add(NOW, &key(rng.below(keys)), 1, Expiry::Keep).expect("a counter");
            });
        }
    }
    for number in 0..KEYS {
        cache.put(NOW, &key(number), b"v", Expiry::Never).expect("fits");
    }
    let start = Cpu::start();
    let (mut from, mut pages, mut seen) = (None, 0, 0);
    loop {
        let page = cache.scan(NOW, from, 1000, usize::MAX);
        (pages, seen) = (pages + 1, seen + page.keys.len());
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    println!("  scan of {seen} keys in {pages} pages: {:.1} ns a key", start.each(seen));
}

/// Prints the bytes that cache entries really allocate, beside the bytes that the cache counts for them.
fn memory() {
    for (value_bytes, expiry) in
        [(0, Expiry::Never), (0, Expiry::At(Moment::from_nanos(1 << 40))), (256, Expiry::Never)]
    {
        let before = allocated();
        let cache = Cache::new(CacheConfig { max_bytes: 1 << 30, seed: 1 }).expect("large enough");
        for number in 0..KEYS {
            cache.put(NOW, &key(number), &vec![7; value_bytes], expiry).expect("fits");
        }
        let each = (allocated() - before) as u64 / KEYS;
        let counted = cache.stats().bytes / KEYS;
        let timed = if expiry == Expiry::Never { "without" } else { "with" };
        println!("16 B key, {value_bytes} B value, {timed} deadline: {each} B allocated, counted for {counted}");
    }
}
