//! Allocated bytes of a full cache, of subscriptions, and of full queues.

#![allow(unreachable_pub, reason = "a test program has no interface")]

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use common::{Rng, pattern, quiet};
use thalweg_broker::{
    Batch, Broker, BrokerConfig, Cache, CacheConfig, Expiry, Moment, Subject, SubscribeOptions, SubscriptionId,
};
use thalweg_types::limits::CACHED_TARGETS_PER_SUBJECT;

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

fn allocated() -> usize {
    ALLOCATED.load(Ordering::Relaxed)
}

/// A single test, so that no other test allocates at the same time.
#[test]
fn memory_is_what_the_bounds_say() {
    for (max_value, ttl) in [(1, false), (1, true), (600, true), (20_000, false)] {
        cache_at_its_bound(max_value, ttl);
    }
    subscriptions();
    cached_subjects();
}

fn cache_at_its_bound(max_value: u64, ttl: bool) {
    const MAX_BYTES: u64 = 24 * 1024 * 1024;
    let before = allocated();
    let cache = Cache::new(CacheConfig { max_bytes: MAX_BYTES, seed: 1 }).unwrap();
    let mut rng = Rng(5);
    let mut peak = 0;
    let mut put = 0;
    for step in 0.. {
        let value = vec![0; rng.below(max_value) as usize];
        let expiry = if ttl { Expiry::At(Moment::from_nanos(rng.next() >> 20)) } else { Expiry::Never };
        put += value.len() as u64 + 256;
        cache.put(Moment::from_nanos(0), &rng.below(1 << 22).to_be_bytes(), &value, expiry).unwrap();
        if step % 64 == 0 {
            peak = peak.max(allocated() - before);
        }
        if put > 3 * MAX_BYTES {
            break;
        }
    }
    let stats = cache.stats();
    assert!(stats.evictions > 0);
    let counted = MAX_BYTES as usize;
    assert!(peak <= counted + counted / 8, "values below {max_value}, ttl {ttl}: {peak} of {counted}: {stats:?}");
    drop(cache);
    assert!(allocated() <= before + 1024);
}

fn subscriptions() {
    const LINKS: u64 = 100;
    const EACH: u64 = 1000;
    let broker = Broker::new(BrokerConfig::DEFAULTS);
    let links: Vec<_> = (0..LINKS).map(|_| broker.open_link(quiet()).unwrap()).collect();
    let before = allocated();
    for id in 0..EACH {
        for (at, link) in links.iter().enumerate() {
            let number = at as u64 * EACH + id;
            let text =
                if number.is_multiple_of(10) { format!("wild.{number}.*") } else { format!("subject.number.{number}") };
            link.subscribe(SubscriptionId(id), pattern(&text), &SubscribeOptions::DEFAULTS).unwrap();
        }
    }
    let each = (allocated() - before) as u64 / (LINKS * EACH);
    assert!(each <= 450, "{each} bytes a subscription");
    drop(links);
    assert!(broker.stats().subscriptions == 0);
}

/// A client with very many subscriptions to everything, and publishes to very many subjects.
fn cached_subjects() {
    const SUBJECTS: usize = 3000;
    let config = BrokerConfig { cached_subjects: 6400, max_queued_bytes: 1 << 20, ..BrokerConfig::DEFAULTS };
    let broker = Broker::new(config);
    let link = broker.open_link(quiet()).unwrap();
    let small = SubscribeOptions { max_messages: 1, max_bytes: 1, ..SubscribeOptions::DEFAULTS };
    for id in 0..2000 {
        link.subscribe(SubscriptionId(id), pattern(if id % 2 == 0 { ">" } else { "*.>" }), &small).unwrap();
    }
    let own: Vec<_> = (0..100).map(|id| (SubscriptionId(5000 + id), format!("own.{id}"))).collect();
    own.iter().for_each(|(id, text)| link.subscribe(*id, pattern(text), &small).unwrap());
    let publish = |to: &str| {
        let to = Subject::parse(to.as_bytes()).unwrap();
        broker.publish_now(&Batch::new(to, Bytes::from_static(&[7; 64]), 1).unwrap())
    };
    // Fills the queues.
    publish("first");
    let before = allocated();
    for round in 0..4 {
        for number in 0..SUBJECTS {
            let published = publish(&format!("subject.{number}"));
            assert_eq!(published.delivered + published.missed, 2000, "round {round}");
        }
        for (_, text) in &own {
            let published = publish(text);
            assert_eq!(published.delivered + published.missed, 2001, "round {round}");
        }
    }
    // Subjects whose hashes overwrite one another before their second publish are not cached.
    let cached = broker.stats().cached_subjects;
    assert!(cached > SUBJECTS / 2, "{cached}");
    let used = allocated().saturating_sub(before);
    let bound = config.cached_subjects * (250 + 16 * CACHED_TARGETS_PER_SUBJECT);
    assert!(used <= bound, "{used} bytes of {bound}");
    drop(link);
    assert_eq!(publish("subject.1").delivered, 0);
}
