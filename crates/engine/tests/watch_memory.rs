//! Allocated bytes of watches that are behind.

#![allow(unreachable_pub, reason = "a test program has no interface")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use thalweg_engine::{
    BackendKind, Database, Options, WatchKeys,
    types::{Durability, Revision},
};

struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards every call to the system's allocator, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: forwards the caller's layout unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer was allocated by the system's allocator with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of watches whose clients do not read.
const WATCHES: usize = 1000;
/// Bytes of changes that each watch has still to deliver.
const BEHIND_BYTES: usize = 64 << 20;
const VALUE_BYTES: usize = 16 << 10;

/// Each watch holds the page that its client does not take, and nothing besides. A single test, so that no other test
/// allocates at the same time.
#[test]
fn a_watch_that_is_behind_holds_its_page_only() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        backend: Some(BackendKind::Memory),
        durability: Durability::Os,
        history_bytes: u64::MAX,
        history_age: Duration::from_secs(3600),
        maintenance_interval: Duration::ZERO,
        ..Options::default()
    };
    let db = Database::open(dir.path(), options).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let value = [7; VALUE_BYTES];
    for number in 0..BEHIND_BYTES / VALUE_BYTES {
        keyspace.put(&number.to_be_bytes(), &value).unwrap();
    }
    let before = ALLOCATED.load(Ordering::Relaxed);
    let held: Vec<_> = (0..WATCHES)
        .map(|_| {
            let mut watch = keyspace.watch(&WatchKeys::Prefix(Vec::new()), Some(Revision(1))).unwrap();
            let page = watch.try_next().unwrap().unwrap();
            assert_eq!(page.events[0].revision, Revision(1));
            (watch, page)
        })
        .collect();
    let each = (ALLOCATED.load(Ordering::Relaxed) - before) / WATCHES;
    assert!(each < 300 << 10, "a watch and its page hold {each} bytes");
    let bytes: usize = held.iter().map(|(_, page)| page.events.iter().map(|event| event.memory()).sum::<usize>()).sum();
    let besides = each - bytes / WATCHES;
    assert!(besides < 4 << 10, "a watch holds {besides} bytes besides its page");
    db.close().unwrap();
}
