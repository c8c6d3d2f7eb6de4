//! Caches over the native protocol. HTTP sees the same caches.

use thalweg_server::config::ByteSize;
use thalweg_wire::{
    CacheAdd, CacheClear, CacheCreate, CacheDelete, CacheExpect, CacheGet, CacheMultiGet, CacheMultiPut, CachePair,
    CachePut, CacheScan, CacheTouch, CacheTtl, DropCache, Kind, List, OpenCache, ReadCacheStats, RemainingBytes,
    ServerFrame,
};

use crate::{
    expect,
    support::{Node, native::Raw},
};

const NEVER: u64 = u64::MAX;

async fn open(client: &mut Raw, name: &str, max_bytes: u64) -> u32 {
    client.send(1, &OpenCache { create: CacheCreate::IfMissing, max_bytes, name }).await;
    expect!(client, 1, ServerFrame::CacheOpened(opened) => opened.cache)
}

async fn put(client: &mut Raw, cache: u32, key: &[u8], value: &[u8]) -> u64 {
    client.send(2, &plain(cache, key, value)).await;
    expect!(client, 2, ServerFrame::CacheStored(stored) => stored.version)
}

fn plain<'a>(cache: u32, key: &'a [u8], value: &'a [u8]) -> CachePut<'a> {
    CachePut { cache, expect: CacheExpect::Any {}, ttl: CacheTtl::Never {}, key, value: RemainingBytes(value) }
}

/// Reads an entry, and returns its version, remaining time and value.
async fn get(client: &mut Raw, cache: u32, key: &[u8]) -> (u64, u64, Vec<u8>) {
    client.send(3, &CacheGet { cache, key: RemainingBytes(key) }).await;
    expect!(client, 3, ServerFrame::CacheValue(found) => (found.version, found.remaining, found.value.0.to_vec()))
}

#[tokio::test]
async fn values_of_any_size_come_back() {
    let node = Node::start().await;
    let mut client = node.raw().await;
    let cache = open(&mut client, "c", 64 << 20).await;
    assert_eq!(get(&mut client, cache, b"none").await, (0, NEVER, Vec::new()));
    let mut last = 0;
    for len in [0, 1, 1000, 16 * 1024 - 1, 16 * 1024, 100_000, 3 << 20] {
        let value: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let version = put(&mut client, cache, b"key", &value).await;
        assert!(version > last);
        last = version;
        assert_eq!(get(&mut client, cache, b"key").await, (version, NEVER, value));
    }
    // Many frames that arrive in one read are answered in order.
    for number in 0..1000_u32 {
        client.put(0, &plain(cache, &number.to_be_bytes(), &number.to_le_bytes()));
        client.put(number + 10, &CacheGet { cache, key: RemainingBytes(&number.to_be_bytes()) });
    }
    client.flush().await;
    for number in 0..1000_u32 {
        let value = expect!(client, number + 10, ServerFrame::CacheValue(found) => found.value.0.to_vec());
        assert_eq!(value, number.to_le_bytes());
    }
    // HTTP sees the same cache.
    let over_http = node.get("/v1/caches/c/keys/key").await.is(200);
    assert_eq!(over_http.header("thalweg-version"), last.to_string());
    node.put("/v1/caches/c/keys/h?ttl=100", b"from http").await.is(204);
    let (_, remaining, value) = get(&mut client, cache, b"h").await;
    assert_eq!(value, b"from http");
    assert!((90_000_000..=100_000_000).contains(&remaining), "{remaining}");
    node.stop().await;
}

#[tokio::test]
async fn conditions_ttl_touch_delete_and_counters() {
    let node = Node::start().await;
    let mut client = node.raw().await;
    let cache = open(&mut client, "c", 0).await;
    let first = put(&mut client, cache, b"k", b"1").await;
    let conditional = |expect, value: &'static [u8]| CachePut { expect, ..plain(cache, b"k", value) };
    for wrong in
        [CacheExpect::Absent {}, CacheExpect::Version { version: first + 9 }, CacheExpect::Value { value: b"x" }]
    {
        client.send(5, &conditional(wrong, b"no")).await;
        let version = expect!(client, 5, ServerFrame::Failed(failed) => {
            assert_eq!(failed.code, "condition_failed");
            failed.detail("version")
        });
        assert_eq!(version, Some(first));
    }
    for right in [CacheExpect::Present {}, CacheExpect::Value { value: b"2" }] {
        client.ask(5, &conditional(right, b"2"), Kind::CacheStored).await;
    }
    client.send(6, &CachePut { ttl: CacheTtl::After { micros: 60_000_000 }, ..plain(cache, b"k", b"3") }).await;
    expect!(client, 6, ServerFrame::CacheStored(_) => ());
    assert!(get(&mut client, cache, b"k").await.1 <= 60_000_000);
    client.ask(6, &CachePut { ttl: CacheTtl::Keep {}, ..plain(cache, b"k", b"4") }, Kind::CacheStored).await;
    assert!(get(&mut client, cache, b"k").await.1 <= 60_000_000);
    let touched = async |client: &mut Raw, key: &'static [u8], ttl| {
        client.send(7, &CacheTouch { cache, ttl, key: RemainingBytes(key) }).await;
        expect!(client, 7, ServerFrame::CacheDone(done) => done.existed)
    };
    assert!(touched(&mut client, b"k", CacheTtl::Never {}).await);
    assert!(!touched(&mut client, b"none", CacheTtl::Never {}).await);
    assert_eq!(get(&mut client, cache, b"k").await.1, NEVER);
    assert!(touched(&mut client, b"k", CacheTtl::After { micros: 0 }).await);
    assert_eq!(get(&mut client, cache, b"k").await.0, 0, "its time was up at once");

    let add = |key: &'static [u8], delta| CacheAdd { cache, delta, ttl: CacheTtl::Keep {}, key: RemainingBytes(key) };
    for (delta, wanted) in [(5, 5), (-7, -2)] {
        client.send(8, &add(b"n", delta)).await;
        assert_eq!(expect!(client, 8, ServerFrame::CacheCounter(counter) => counter.value), wanted);
    }
    client.send(8, &add(b"n", i64::MIN)).await;
    assert_eq!(client.fails(8).await, "overflow");
    put(&mut client, cache, b"t", b"text").await;
    client.send(8, &add(b"t", 1)).await;
    assert_eq!(client.fails(8).await, "not_a_number");

    let deleted = async |client: &mut Raw, expect| {
        client.send(9, &CacheDelete { cache, expect, key: RemainingBytes(b"t") }).await;
        match ServerFrame::decode(client.next().await.raw()).unwrap().frame {
            ServerFrame::CacheDone(done) => Ok(done.existed),
            ServerFrame::Failed(failed) => Err(failed.code.to_owned()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(deleted(&mut client, CacheExpect::Value { value: b"x" }).await, Err("condition_failed".to_owned()));
    assert_eq!(deleted(&mut client, CacheExpect::Present {}).await, Ok(true));
    assert_eq!(deleted(&mut client, CacheExpect::Absent {}).await, Ok(false));
    assert_eq!(deleted(&mut client, CacheExpect::Any {}).await, Ok(false));
    node.stop().await;
}

#[tokio::test]
async fn several_at_once_and_lists() {
    let node = Node::start().await;
    let mut client = node.raw_taking(64 * 1024).await;
    let cache = open(&mut client, "c", 64 << 20).await;
    let keys: Vec<String> = (0..3000).map(|number| format!("key-{number:024}")).collect();
    let pairs: Vec<_> = keys.iter().map(|key| CachePair { key: key.as_bytes(), value: key.as_bytes() }).collect();
    client.send(1, &CacheMultiPut { cache, ttl: CacheTtl::Never {}, pairs: List::Items(&pairs[..1500]) }).await;
    assert!(expect!(client, 1, ServerFrame::CacheDone(done) => done.existed));
    client.send(1, &CacheMultiPut { cache, ttl: CacheTtl::Never {}, pairs: List::Items(&pairs[1500..]) }).await;
    assert!(expect!(client, 1, ServerFrame::CacheDone(done) => done.existed));
    let wanted: [&[u8]; 3] = [keys[7].as_bytes(), b"none", keys[2999].as_bytes()];
    client.send(2, &CacheMultiGet { cache, keys: List::Items(&wanted) }).await;
    let entries = expect!(client, 2, ServerFrame::CacheEntries(found) => {
        found.entries.iter().map(|entry| (entry.version > 0, entry.value.to_vec())).collect::<Vec<_>>()
    });
    let there = |key: &[u8]| (true, key.to_vec());
    assert_eq!(entries, [there(wanted[0]), (false, Vec::new()), there(wanted[2])]);
    let large = vec![7; 40_000];
    put(&mut client, cache, b"large", &large).await;
    let twice: [&[u8]; 2] = [b"large", b"large"];
    client.send(2, &CacheMultiGet { cache, keys: List::Items(&twice) }).await;
    assert_eq!(client.fails(2).await, "result_too_large");
    // A page is never larger than the client's maximum frame, even if the client requests more.
    for limit in [0, 7, 10_000] {
        let (mut seen, mut cursor, mut pages) = (Vec::new(), None, 0);
        loop {
            client.send(3, &CacheScan { cache, cursor, limit }).await;
            cursor = expect!(client, 3, ServerFrame::CacheKeys(page) => {
                assert!(limit == 0 || page.keys.len() <= limit as usize);
                seen.extend(page.keys.iter().map(<[u8]>::to_vec));
                page.cursor
            });
            pages += 1;
            if cursor.is_none() {
                break;
            }
        }
        seen.sort_unstable();
        let mut all: Vec<_> = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
        all.push(b"large".to_vec());
        assert_eq!(seen, all);
        assert!(pages > 1, "{limit}");
    }
    client.send(4, &CacheClear { cache }).await;
    assert!(expect!(client, 4, ServerFrame::CacheDone(done) => done.existed));
    assert_eq!(get(&mut client, cache, keys[0].as_bytes()).await.0, 0);
    node.stop().await;
}

#[tokio::test]
async fn caches_are_opened_and_dropped_by_id() {
    let node = Node::with(|config| config.max_caches_bytes = ByteSize(64 << 20)).await;
    let mut client = node.raw().await;
    client.send(1, &OpenCache { create: CacheCreate::Never, max_bytes: 0, name: "c" }).await;
    assert_eq!(client.fails(1).await, "no_such_cache");
    client.send(1, &OpenCache { create: CacheCreate::IfMissing, max_bytes: 0, name: "c" }).await;
    let (first, bound) = expect!(client, 1, ServerFrame::CacheOpened(opened) => {
        assert!(opened.created);
        (opened.cache, opened.max_bytes)
    });
    assert_eq!(bound, 32 << 20, "as configured");
    client.send(1, &OpenCache { create: CacheCreate::IfMissing, max_bytes: 1 << 20, name: "c" }).await;
    expect!(client, 1, ServerFrame::CacheOpened(opened) => {
        assert_eq!((opened.cache, opened.created, opened.max_bytes), (first, false, bound));
    });
    client.send(1, &OpenCache { create: CacheCreate::IfMissing, max_bytes: 40 << 20, name: "d" }).await;
    assert_eq!(client.fails(1).await, "caches_full");
    client.send(1, &OpenCache { create: CacheCreate::IfMissing, max_bytes: 5, name: "d" }).await;
    assert_eq!(client.fails(1).await, "cache_too_small");
    put(&mut client, first, b"k", b"v").await;
    get(&mut client, first, b"k").await;
    get(&mut client, first, b"none").await;
    let other = open(&mut client, "b", 1 << 20).await;
    client.send(2, &ReadCacheStats { cache: 0 }).await;
    let all = expect!(client, 2, ServerFrame::CacheStats(stats) => {
        stats.caches.iter().map(|c| (c.cache, c.name.to_owned(), c.entries, c.hits, c.misses)).collect::<Vec<_>>()
    });
    assert_eq!(all, [(first, "c".to_owned(), 1, 1, 1), (other, "b".to_owned(), 0, 0, 0)]);
    client.send(2, &ReadCacheStats { cache: 77 }).await;
    assert_eq!(client.fails(2).await, "no_such_cache");
    client.send(3, &DropCache { cache: first }).await;
    assert!(expect!(client, 3, ServerFrame::CacheDone(done) => done.existed));
    client.send(3, &DropCache { cache: first }).await;
    assert!(!expect!(client, 3, ServerFrame::CacheDone(done) => done.existed));
    client.send(3, &CacheGet { cache: first, key: RemainingBytes(b"k") }).await;
    assert_eq!(client.fails(3).await, "no_such_cache");
    assert!(open(&mut client, "c", 0).await > other, "an id is not given to another cache");
    // Entries that do not fit, and keys that are too long, change nothing, and the channel stays open.
    let small = open(&mut client, "small", 64 << 10).await;
    client.send(4, &plain(small, b"k", &[0; 80_000])).await;
    assert_eq!(client.fails(4).await, "cache_entry_too_large");
    client.send(0, &plain(small, &[b'k'; 70_000], b"")).await;
    assert_eq!(client.fails(0).await, "key_too_long");
    node.stop().await;
}
