//! Caches: compared with a map with deadlines under virtual time; limits; races.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    thread,
    time::Duration,
};

use thalweg_broker::{
    Cache, CacheConfig, CacheEntry, CacheError, Caches, Condition, CreateCacheError, ENTRY_BYTES, Expiry, Moment,
    Update, Version,
};
use thalweg_types::limits::{MAX_CACHES, MAX_KEY_BYTES, MAX_VALUE_BYTES, MIN_CACHE_BYTES};

use crate::common::{Rng, seeds};

const MIB: u64 = 1024 * 1024;

fn cache(max_bytes: u64) -> Cache {
    Cache::new(CacheConfig { max_bytes, seed: 7 }).unwrap()
}

fn at(millis: u64) -> Moment {
    Moment::from(Duration::from_millis(millis))
}

struct Model {
    entries: BTreeMap<Vec<u8>, (Vec<u8>, Moment)>,
    now: Moment,
}

impl Model {
    fn live(&self, key: &[u8]) -> Option<&(Vec<u8>, Moment)> {
        self.entries.get(key).filter(|(_, deadline)| *deadline > self.now)
    }

    fn put(&mut self, key: &[u8], value: &[u8], expiry: Expiry) {
        let deadline = self.deadline(key, expiry);
        self.entries.insert(key.to_vec(), (value.to_vec(), deadline));
    }

    fn deadline(&self, key: &[u8], expiry: Expiry) -> Moment {
        match expiry {
            Expiry::Never => Moment::NEVER,
            Expiry::At(moment) => moment,
            Expiry::Keep => self.live(key).map_or(Moment::NEVER, |(_, deadline)| *deadline),
        }
    }
}

#[test]
fn agrees_with_a_map_under_virtual_time() {
    for seed in seeds(30) {
        println!("seed {seed}");
        let mut rng = Rng(seed);
        // The cache is large enough never to evict, because the model cannot predict evictions.
        let cache = cache(64 * MIB);
        let mut model = Model { entries: BTreeMap::new(), now: at(0) };
        let mut versions: BTreeMap<Vec<u8>, Version> = BTreeMap::new();
        for step in 0..4000 {
            // Short and long keys, which the cache stores differently.
            let number = rng.below(30) as usize;
            let key = format!("k{number}{}", "-tail".repeat(number % 7)).into_bytes();
            let expiry = match rng.below(3) {
                0 => Expiry::Never,
                1 => Expiry::Keep,
                _ => Expiry::after(model.now, Duration::from_micros(rng.below(20_000_000) >> rng.below(16))),
            };
            let value = rng.next().to_string().into_bytes();
            let live = model.live(&key).cloned();
            match rng.below(9) {
                0 | 1 => {
                    let version = cache.put(model.now, &key, &value, expiry).unwrap();
                    let before = versions.insert(key.clone(), version);
                    assert!(before.is_none_or(|before| before < version), "seed {seed}: versions must increase");
                    model.put(&key, &value, expiry);
                }
                2 => {
                    assert_eq!(cache.delete(model.now, &key), live.is_some(), "seed {seed} step {step}");
                    model.entries.remove(&key);
                }
                3 => {
                    assert_eq!(cache.touch(model.now, &key, expiry), live.is_some(), "seed {seed} step {step}");
                    if live.is_some() {
                        let deadline = model.deadline(&key, expiry);
                        model.entries.get_mut(&key).unwrap().1 = deadline;
                    }
                }
                4 => {
                    let number = rng.next() as i64;
                    let delta = if rng.below(2) == 0 { 1 } else { number };
                    let text = live.as_ref().map_or("0".into(), |(value, _)| String::from_utf8(value.clone()).unwrap());
                    let expected = match text.parse::<i64>() {
                        Err(_) => Err(CacheError::NotANumber),
                        Ok(value) => value.checked_add(delta).ok_or(CacheError::Overflow { value, delta }),
                    };
                    assert_eq!(cache.add(model.now, &key, delta, expiry), expected, "seed {seed} step {step}");
                    if let Ok(sum) = expected {
                        model.put(&key, sum.to_string().as_bytes(), expiry);
                    }
                }
                5 => {
                    let other = [b"x".to_vec(), live.clone().unwrap_or_default().0];
                    let condition = match rng.below(4) {
                        0 => Condition::Absent,
                        1 => Condition::Present,
                        2 => Condition::Value(&other[rng.below(2) as usize]),
                        _ => Condition::Version(versions.get(&key).copied().unwrap_or(Version(0))),
                    };
                    let there = cache.get(model.now, &key);
                    let holds = match condition {
                        Condition::Absent => live.is_none(),
                        Condition::Present => live.is_some(),
                        Condition::Value(value) => live.as_ref().is_some_and(|(there, _)| there == value),
                        Condition::Version(version) => there.as_ref().is_some_and(|there| there.version == version),
                    };
                    let done = cache.put_if(model.now, &key, &value, expiry, condition);
                    let failed = CacheError::ConditionFailed { version: there.map(|there| there.version) };
                    assert_eq!(done.map(drop), if holds { Ok(()) } else { Err(failed) }, "seed {seed} step {step}");
                    if let Ok(version) = done {
                        versions.insert(key.clone(), version);
                        model.put(&key, &value, expiry);
                    }
                }
                6 => {
                    model.now = model.now.plus(Duration::from_micros(rng.below(2_000_000) >> rng.below(12)));
                    if rng.below(2) == 0 {
                        cache.reclaim(model.now, usize::MAX);
                    }
                }
                7 => {
                    let live: BTreeSet<_> =
                        model.entries.keys().filter(|key| model.live(key).is_some()).cloned().collect();
                    let mut seen = BTreeSet::new();
                    let mut from = None;
                    loop {
                        let page = cache.scan(model.now, from, 1 + rng.below(12) as usize, rng.below(40) as usize);
                        for key in page.keys {
                            assert!(seen.insert(key.to_vec()), "seed {seed} step {step}: a key was returned twice");
                        }
                        from = page.next;
                        if from.is_none() {
                            break;
                        }
                    }
                    assert_eq!(seen, live, "seed {seed} step {step}");
                }
                _ => {
                    let got = cache.get(model.now, &key).map(|entry| (entry.value.to_vec(), entry.deadline));
                    assert_eq!(got, live, "seed {seed} step {step}");
                }
            }
        }
        model.now = model.now.plus(Duration::from_secs(3600));
        cache.reclaim(model.now, usize::MAX);
        let forever = model.entries.keys().filter(|key| model.live(key).is_some()).count();
        let stats = cache.stats();
        assert_eq!(stats.entries, forever as u64, "seed {seed}: the wheel must have reclaimed all other entries");
        assert_eq!(stats.evictions, 0);
        assert!(cache.next_deadline().is_none());
    }
}

#[test]
fn holds_what_it_may_and_no_more() {
    for seed in seeds(4) {
        println!("seed {seed}");
        let mut rng = Rng(seed);
        for max_bytes in [MIN_CACHE_BYTES, MIB, 40 * MIB] {
            let cache = cache(max_bytes);
            let mut put = 0;
            let mut bytes = 0;
            while bytes < 3 * max_bytes {
                let value = vec![7; rng.below(2000) as usize];
                let key = format!("key{}", rng.below(1 << 20));
                let expiry = if rng.below(2) == 0 { Expiry::Never } else { Expiry::At(at(1000)) };
                cache.put(at(0), key.as_bytes(), &value, expiry).unwrap();
                put += 1;
                bytes += value.len() as u64 + key.len() as u64 + ENTRY_BYTES;
                let stats = cache.stats();
                assert!(stats.bytes <= stats.max_bytes && stats.max_bytes <= max_bytes, "seed {seed}: {stats:?}");
            }
            let stats = cache.stats();
            assert_eq!(stats.puts, put);
            assert!(stats.bytes * 10 > max_bytes * 7, "seed {seed}: the cache must use its capacity: {stats:?}");
            assert!(stats.evictions > 0);
        }
    }
}

#[test]
fn who_holds_a_value_keeps_it_though_another_of_its_length_is_put_in_its_place() {
    let (cache, now) = (cache(MIN_CACHE_BYTES), at(1));
    let first = cache.put(now, b"k", b"one", Expiry::Never).unwrap();
    let held = cache.get(now, b"k").unwrap();
    // While a reader holds the value, a put cannot overwrite it in place; afterwards it can.
    for value in [b"two", b"six"] {
        let version = cache.put(now, b"k", value, Expiry::Never).unwrap();
        let entry = cache.get(now, b"k").unwrap();
        assert!(version > first && (entry.version, &*entry.value) == (version, &value[..]));
    }
    assert_eq!((held.version, &*held.value), (first, &b"one"[..]));
    // A put without a deadline removes the old value's deadline.
    cache.put(now, b"k", b"ten", Expiry::At(at(10))).unwrap();
    cache.put(at(2), b"k", b"out", Expiry::Never).unwrap();
    assert_eq!(cache.get(at(10), b"k").map(|entry| entry.deadline), Some(Moment::NEVER));
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.puts, stats.evictions), (1, 5, 0));
}

#[test]
fn sizes_beyond_the_bounds_are_refused_and_change_nothing() {
    let small = cache(MIN_CACHE_BYTES);
    let long = vec![0; MAX_KEY_BYTES + 1];
    small.put(at(0), b"k", b"v", Expiry::Never).unwrap();
    let refused = small.put(at(0), &long, b"", Expiry::Never);
    assert_eq!(refused, Err(CacheError::KeyTooLong { bytes: long.len() }));
    let huge = vec![0; MAX_VALUE_BYTES + 1];
    let refused = small.put(at(0), b"k", &huge, Expiry::Never);
    assert_eq!(refused, Err(CacheError::ValueTooLong { bytes: huge.len() }));
    let max = MIN_CACHE_BYTES * 97 / 100;
    let fits = vec![1; (max - ENTRY_BYTES) as usize - 1];
    let over = vec![1; fits.len() + 1];
    let too_large = CacheError::EntryTooLarge { bytes: max + 1, max };
    assert_eq!(small.put(at(0), b"k", &over, Expiry::Never), Err(too_large));
    let update = |_: Option<&_>| (Update::Put { value: over.clone().into(), expiry: Expiry::Never }, ());
    assert_eq!(small.update(at(0), b"k", update).map(drop), Err(too_large));
    assert_eq!(small.put_many(at(0), [(&b"a"[..], &b"b"[..]), (b"k", &over)], Expiry::Never), Err(too_large));
    assert!(small.get(at(0), b"a").is_none(), "a failed put_many must write no value");
    assert_eq!(&*small.get(at(0), b"k").unwrap().value, b"v");
    small.put(at(0), b"k", &fits, Expiry::Never).unwrap();
    assert_eq!(small.get(at(0), b"k").unwrap().value.len(), fits.len(), "the largest value that fits stays");
    let large = cache(64 * MIB);
    let value = vec![3; MAX_VALUE_BYTES];
    large.put(at(0), &long[1..], &value, Expiry::Never).unwrap();
    assert!(large.get(at(0), &long[1..]).is_some(), "64 MiB hold the longest key with the largest value");
    assert_eq!(Cache::new(CacheConfig { max_bytes: 1, seed: 0 }).unwrap_err(), CreateCacheError::TooSmall { bytes: 1 });
}

#[test]
fn deadlines_hide_at_once_and_reclaim_in_portions() {
    let cache = cache(MIB);
    for key in 0..100_u32 {
        cache.put(at(0), &key.to_be_bytes(), b"v", Expiry::At(at(10))).unwrap();
    }
    cache.put(at(0), b"stays", b"v", Expiry::Never).unwrap();
    let before = Moment::from_nanos(at(10).nanos() - 1);
    assert!(cache.get(before, &0_u32.to_be_bytes()).is_some());
    assert!(cache.get(at(10), &0_u32.to_be_bytes()).is_none(), "deadlines are exact to the nanosecond");
    assert_eq!(cache.stats().entries, 100, "the read removed its entry; the others wait for the wheel");
    let due = cache.next_deadline().unwrap();
    assert!(due <= at(12), "{due}");
    assert_eq!(cache.reclaim(at(12), 70), 70);
    assert_eq!(cache.reclaim(at(12), 70), 29);
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.expired, stats.hits, stats.misses), (1, 100, 1, 1));
    assert_eq!(stats.hit_ratio(), Some(0.5));
    let before = cache.stats().entries;
    assert_eq!(cache.clear().len(), before);
    assert_eq!((cache.stats().entries, cache.stats().bytes), (0, 0));
    cache.put(at(12), b"again", b"v", Expiry::Never).unwrap();
    let many = cache.get_many(at(12), [&b"stays"[..], b"again"]);
    assert!(many[0].is_none() && many[1].is_some());
}

/// Threads add to counters while other threads fill the cache, so that counters are evicted or expire. An
/// eviction or expiry may remove a whole counter, but never lose a single addition. So the returned sums are
/// distinct within one life of a counter, and each life begins with the first delta.
#[test]
fn reads_and_writes_of_a_key_are_one_step_under_eviction_and_expiry() {
    for seed in seeds(6) {
        println!("seed {seed}");
        let cache = cache(MIN_CACHE_BYTES);
        let clock = AtomicI64::new(0);
        let done = AtomicBool::new(false);
        let now = || at(clock.load(Ordering::SeqCst) as u64);
        let sums: Vec<(u64, Version, i64)> = thread::scope(|scope| {
            scope.spawn(|| {
                let mut rng = Rng(seed);
                while !done.load(Ordering::SeqCst) {
                    let key = rng.below(300).to_string();
                    let expiry = Expiry::after(now(), Duration::from_millis(30));
                    cache.put(now(), key.as_bytes(), &[1; 300], expiry).unwrap();
                    cache.reclaim(now(), 10);
                }
            });
            let adders: Vec<_> = (0..3)
                .map(|adder| {
                    let (cache, clock, now) = (&cache, &clock, &now);
                    scope.spawn(move || {
                        let mut rng = Rng(seed * 10 + adder);
                        let mut sums = Vec::new();
                        for step in 0..20_000 {
                            if step % 50 == 0 {
                                clock.fetch_add(1, Ordering::SeqCst);
                            }
                            // The filling thread may get no CPU time; these puts then cause the evictions.
                            if step % 8 == 0 {
                                let (key, expiry) = (rng.below(300).to_string(), Duration::from_millis(30));
                                cache.put(now(), key.as_bytes(), &[1; 300], Expiry::after(now(), expiry)).unwrap();
                            }
                            let counter = rng.below(150);
                            let (version, sum) = count(cache, now(), counter);
                            sums.push((counter, version, sum));
                        }
                        sums
                    })
                })
                .collect();
            let sums = adders.into_iter().flat_map(|adder| adder.join().unwrap()).collect();
            done.store(true, Ordering::SeqCst);
            sums
        });
        let ordered: BTreeMap<_, _> = sums.iter().map(|(counter, version, sum)| ((*counter, *version), *sum)).collect();
        assert_eq!(ordered.len(), sums.len(), "seed {seed}: each addition must have its own version");
        let mut lives = 0;
        let mut before = (0, 0);
        for ((counter, version), sum) in ordered {
            let last = if before.0 == counter { before.1 } else { 0 };
            assert!(
                sum == last + 1 || sum == 1,
                "seed {seed}: {counter}: {sum} after {last} at {version:?}: an addition was lost"
            );
            lives += u64::from(sum == 1);
            before = (counter, sum);
        }
        let stats = cache.stats();
        assert!(lives > 1000 && stats.expired > 100 && stats.evictions > 100, "seed {seed}: {lives} lives, {stats:?}");
    }
}

/// Adds 1 to a counter and returns the sum with its version. A counter lives for 20 ms.
fn count(cache: &Cache, now: Moment, counter: u64) -> (Version, i64) {
    let add = |entry: Option<&CacheEntry>| {
        let before = entry.map_or(0, |entry| std::str::from_utf8(&entry.value).unwrap().parse::<i64>().unwrap());
        let value = (before + 1).to_string().into_bytes().into();
        let expiry = if before == 0 { Expiry::after(now, Duration::from_millis(20)) } else { Expiry::Keep };
        (Update::Put { value, expiry }, before + 1)
    };
    let (version, sum) = cache.update(now, format!("counter{counter}").as_bytes(), add).unwrap();
    (version.expect("just put"), sum)
}

#[test]
fn counters_of_many_threads_add_up() {
    let cache = cache(MIB);
    thread::scope(|scope| {
        for thread in 0..4_i64 {
            let cache = &cache;
            scope.spawn(move || {
                for number in 0..10_000_i64 {
                    let key = [b'c', (number % 5) as u8];
                    cache.add(at(0), &key, thread + 1, Expiry::Keep).unwrap();
                }
            });
        }
    });
    for key in 0..5 {
        assert_eq!(&*cache.get(at(0), &[b'c', key]).unwrap().value, b"20000");
    }
}

#[test]
fn what_is_used_outlives_what_is_not() {
    let cache = cache(MIB);
    for round in 0..20_u32 {
        for key in 0..200_u32 {
            let hot = [b"hot".as_slice(), &key.to_be_bytes()].concat();
            if cache.get(at(0), &hot).is_none() {
                cache.put(at(0), &hot, &[1; 500], Expiry::Never).unwrap();
            }
        }
        for key in 0..1000_u32 {
            let cold = [b"cold".as_slice(), &(round * 1000 + key).to_be_bytes()].concat();
            cache.put(at(0), &cold, &[1; 500], Expiry::Never).unwrap();
        }
    }
    let stats = cache.stats();
    assert!(stats.hit_ratio().unwrap() > 0.8, "keys used once must not evict keys in use: {stats:?}");
}

#[test]
fn caches_by_name_are_bounded() {
    let caches = Caches::new((MAX_CACHES as u64 + 2) * MIN_CACHE_BYTES);
    let config = CacheConfig { max_bytes: MIN_CACHE_BYTES, seed: 1 };
    for number in 0..MAX_CACHES {
        caches.create(&format!("c{number}"), config).unwrap();
    }
    let why = |name: &str| caches.create(name, config).map(drop).unwrap_err();
    assert_eq!(why("more"), CreateCacheError::TooMany);
    assert_eq!(why("c1"), CreateCacheError::Exists);
    assert_eq!(why(""), CreateCacheError::Name { bytes: 0 });
    assert_eq!(why(&"n".repeat(256)), CreateCacheError::Name { bytes: 256 });
    let kept = caches.remove("c1").unwrap();
    assert!(caches.get("c1").is_none() && caches.by_id(kept.id).is_none());
    let large = CacheConfig { max_bytes: 4 * MIN_CACHE_BYTES, ..config };
    let error = CreateCacheError::NoRoom { max: (MAX_CACHES as u64 + 2) * MIN_CACHE_BYTES, left: 3 * MIN_CACHE_BYTES };
    assert_eq!(caches.create("more", large).map(drop), Err(error));
    let more = caches.create("more", config).unwrap();
    assert!(more.id > kept.id && Arc::ptr_eq(&caches.by_id(more.id).unwrap(), &more.cache));
    let kept = kept.cache;
    kept.put(at(0), b"k", b"v", Expiry::Never).unwrap();
    caches.get("c2").unwrap().cache.put(at(0), b"k", b"v", Expiry::At(at(5))).unwrap();
    assert!(caches.next_deadline().is_some());
    assert_eq!((caches.reclaim(at(9), 100), caches.list().len()), (1, MAX_CACHES));
    assert_eq!(caches.remove_id(more.id).map(|gone| gone.name), Some(more.name));
    assert!(caches.remove_id(more.id).is_none() && caches.get("more").is_none());
}
