use std::{
    collections::BTreeMap,
    ops::{Bound, RangeBounds},
    sync::atomic::{AtomicBool, Ordering},
};

use super::*;

type Model = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// A small deterministic generator of random numbers, so that a failure is repeatable from its printed seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn key(&mut self) -> Vec<u8> {
        // Zeroes and long common prefixes test the comparison of padded keys.
        let longest = if self.below(8) == 0 { 70 } else { 10 };
        let len = 1 + self.below(longest) as usize;
        let alphabet = [0, 0, b'a', b'b', 255];
        (0..len).map(|at| if at < 3 { b'k' } else { alphabet[self.below(5) as usize] }).collect()
    }
}

fn owned<'a>(entry: (&'a [u8], Entry<'a>)) -> (Vec<u8>, Option<Vec<u8>>) {
    let value = match entry.1 {
        Entry::Value(value) => Some(value.to_vec()),
        Entry::Deleted => None,
    };
    (entry.0.to_vec(), value)
}

fn check_range(memtable: &Memtable, upto: BatchNumber, model: &Model, random: &mut Random) {
    let (low, high) = (random.key(), random.key());
    let bound = |kind: u64, key: &'static [u8]| match kind {
        0 => Bound::Unbounded,
        1 => Bound::Included(key),
        _ => Bound::Excluded(key),
    };
    let lower = bound(random.below(3), low.leak());
    let upper = bound(random.below(3), high.leak());
    let inside = |key: &[u8]| RangeBounds::<[u8]>::contains(&(lower, upper), key);
    let expected: Vec<_> =
        model.iter().filter(|(key, _)| inside(key)).map(|(key, value)| (key.clone(), value.clone())).collect();
    if crate::backend::bounds_are_empty(lower, upper) {
        assert!(expected.is_empty());
        return;
    }
    let forward: Vec<_> = memtable.range(lower, upper, Direction::Forward, upto).map(owned).collect();
    assert_eq!(forward, expected);
    let mut reverse: Vec<_> = memtable.range(lower, upper, Direction::Reverse, upto).map(owned).collect();
    reverse.reverse();
    assert_eq!(reverse, expected);
}

#[test]
fn behaves_like_a_map_at_every_batch() {
    let rounds = if cfg!(miri) { 1 } else { 20 };
    for seed in 0..rounds {
        eprintln!("seed {seed}");
        let mut random = Random(seed);
        let (memtable, mut writer) = Memtable::create(4 << 20);
        let mut model = Model::new();
        let mut history = vec![(memtable.visible(), model.clone())];
        let mut batch = WriteBatch::new();
        for _ in 0..if cfg!(miri) { 15 } else { 100 } {
            batch.clear();
            for _ in 0..random.below(20) {
                let key = random.key();
                if random.below(4) == 0 {
                    batch.delete(&[&key]);
                    model.insert(key, None);
                } else {
                    let value = vec![random.below(256) as u8; random.below(40) as usize];
                    batch.put(&[&key], &[&value]);
                    model.insert(key, Some(value));
                }
            }
            writer.apply(&batch).unwrap();
            history.push((memtable.visible(), model.clone()));
            // A walk links all queued nodes; later nodes stay queued until the next walk.
            if random.below(4) == 0 {
                check_range(&memtable, memtable.visible(), &model, &mut random);
            }
        }
        for (upto, model) in &history {
            let all: Vec<_> = memtable.iter(*upto).map(owned).collect();
            assert_eq!(all, model.clone().into_iter().collect::<Vec<_>>());
            for _ in 0..5 {
                check_range(&memtable, *upto, model, &mut random);
                let key = random.key();
                let found = memtable.get(&key, *upto).map(|entry| owned((&key, entry)).1);
                assert_eq!(found, model.get(&key).cloned());
            }
            for (key, value) in model.iter().take(20) {
                let found = memtable.get(key, *upto).map(|entry| owned((key, entry)).1);
                assert_eq!(found.as_ref(), Some(value));
            }
        }
    }
}

#[test]
fn order_is_right_however_many_keys_wait_for_theirs() {
    let keys: u32 = if cfg!(miri) { 200 } else { 30_000 };
    let scattered = |number: u32| number.wrapping_mul(0x9e37_79b1);
    let in_blocks = |number: u32| if number % 100 < 50 { number } else { scattered(number) };
    let patterns: [&dyn Fn(u32) -> u32; 4] = [&scattered, &|number| number, &|number| u32::MAX - number, &in_blocks];
    for pattern in patterns {
        for walk_every in [keys, keys / 10, 7_000] {
            let (memtable, mut writer) = Memtable::create(keys as usize * 200);
            let mut model = std::collections::BTreeSet::new();
            let mut batch = WriteBatch::new();
            for number in 0..keys {
                let key = [b"long in common: ".as_slice(), &pattern(number).to_be_bytes()].concat();
                batch.clear();
                batch.put(&[&key], &[b"v"]);
                writer.apply(&batch).unwrap();
                model.insert(key);
                if number % walk_every == walk_every / 2 {
                    let reverse =
                        memtable.range(Bound::Unbounded, Bound::Unbounded, Direction::Reverse, memtable.visible());
                    assert!(reverse.map(|(key, _)| key).eq(model.iter().rev().map(Vec::as_slice)));
                }
            }
            assert!(memtable.iter(memtable.visible()).map(|(key, _)| key).eq(model.iter().map(Vec::as_slice)));
        }
    }
}

/// Tests keys that differ inside and outside the bytes that the queue compares, and keys that are prefixes of others.
#[test]
fn queued_keys_of_all_lengths_are_sorted() {
    let mut keys = Vec::new();
    for len in 0..40 {
        for last in [0, 1, 255] {
            keys.push([vec![b'a'; len], vec![last]].concat());
            keys.push([vec![0; len], vec![last]].concat());
        }
    }
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    let (memtable, mut writer) = Memtable::create(1 << 20);
    let mut random = Random(3);
    let mut batch = WriteBatch::new();
    while !keys.is_empty() {
        batch.clear();
        batch.put(&[&keys.swap_remove(random.below(keys.len() as u64) as usize)], &[b"v"]);
        writer.apply(&batch).unwrap();
    }
    sorted.dedup();
    assert!(memtable.iter(memtable.visible()).map(|(key, _)| key).eq(sorted.iter().map(Vec::as_slice)));
}

#[test]
fn a_batch_that_writes_a_key_again_and_again_takes_room_for_it_once() {
    let (memtable, mut writer) = Memtable::create(1 << 20);
    let used_by = |writer: &mut MemtableWriter, values: &[Option<&[u8]>]| {
        let (before, mut batch) = (memtable.used_bytes(), WriteBatch::new());
        for value in values {
            match value {
                Some(value) => batch.put(&[b"key"], &[value]),
                None => batch.delete(&[b"key"]),
            }
        }
        writer.apply(&batch).unwrap();
        memtable.used_bytes() - before
    };
    let of_last = || memtable.get(b"key", memtable.visible());
    used_by(&mut writer, &[Some(&[1; 100])]);
    let before = memtable.visible();
    let once = used_by(&mut writer, &[Some(&[2; 100])]);
    let again: Vec<_> = (0..50).map(|number| Some([number; 100])).collect();
    let again: Vec<_> = again.iter().map(|value| value.as_ref().map(|value| &value[..])).collect();
    assert_eq!(used_by(&mut writer, &again), once);
    assert_eq!(of_last(), Some(Entry::Value(&[49; 100])));
    assert_eq!(used_by(&mut writer, &[Some(&[3; 100]), None]), once, "a delete needs no room of its own");
    assert_eq!(of_last(), Some(Entry::Deleted));
    assert_eq!(used_by(&mut writer, &[Some(&[4; 100]), Some(&[5; 10])]), once, "nor does what is shorter");
    assert_eq!(of_last(), Some(Entry::Value(&[5; 10])));
    assert!(used_by(&mut writer, &[Some(b"6"), Some(&[7; 100])]) > once, "what is longer does");
    assert_eq!(of_last(), Some(Entry::Value(&[7; 100])));
    assert_eq!(memtable.get(b"key", before), Some(Entry::Value(&[1; 100])), "what was seen stays");
    assert_eq!(
        memtable.iter(BatchNumber(before.0 + 2)).map(owned).collect::<Vec<_>>(),
        [(b"key".to_vec(), Some(vec![49; 100]))]
    );
}

#[test]
fn a_full_memtable_refuses_the_whole_batch() {
    let (memtable, mut writer) = Memtable::create(2_000);
    let mut batch = WriteBatch::new();
    batch.put(&[b"a"], &[b"1"]);
    writer.apply(&batch).unwrap();
    batch.put(&[b"b"], &[&[7; 3_000]]);
    assert!(!writer.has_room_for(&batch));
    assert_eq!(writer.apply(&batch), Err(MemtableFull));
    assert_eq!(memtable.len(), 1);
    assert_eq!(memtable.get(b"b", memtable.visible()), None);
}

#[test]
fn room_for_a_batch_is_never_underestimated() {
    let mut random = Random(99);
    for _ in 0..if cfg!(miri) { 3 } else { 300 } {
        let mut batch = WriteBatch::new();
        for number in 0..random.below(60) {
            let key = [&number.to_be_bytes()[..], &random.key()].concat();
            batch.put(&[&key], &[&vec![1; random.below(30) as usize]]);
        }
        let (memtable, mut writer) = Memtable::create(Memtable::bytes_for(&batch));
        writer.apply(&batch).unwrap();
        assert_eq!(memtable.len(), batch.len());
    }
}

#[test]
fn readers_see_whole_batches_while_the_writer_writes() {
    let batches: u64 = if cfg!(miri) { 30 } else { 20_000 };
    let (memtable, mut writer) = Memtable::create(batches as usize * 4_000);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for direction in [Direction::Forward, Direction::Reverse] {
            let (memtable, done) = (&memtable, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let upto = memtable.visible();
                    let newest = memtable.get(b"fixed 0003", BatchNumber::MAX);
                    assert_ne!(newest, Some(Entry::Value(&u64::MAX.to_le_bytes())), "a batch that is not complete");
                    // Every batch writes its number under all fixed keys, and adds one key of its own.
                    let mut seen = None;
                    let mut own = 0;
                    for (key, entry) in memtable.range(Bound::Unbounded, Bound::Unbounded, direction, upto) {
                        let Entry::Value(value) = entry else { panic!("nothing was deleted") };
                        if key.starts_with(b"own") {
                            own += 1;
                        } else {
                            assert_eq!(*seen.get_or_insert(value), value, "half a batch");
                        }
                    }
                    assert_eq!(own, upto.0, "a batch is missing");
                    let fixed = memtable.get(b"fixed 0007", upto);
                    assert_eq!(fixed, seen.map(Entry::Value));
                }
            });
        }
        let mut batch = WriteBatch::new();
        for number in 1..=batches {
            batch.clear();
            // No reader may see the first value that a batch writes under a key.
            for value in [u64::MAX, number] {
                for key in 0..10 {
                    batch.put(&[format!("fixed {key:04}").as_bytes()], &[&value.to_le_bytes()]);
                }
            }
            batch.put(&[b"own", &number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()], &[b""]);
            writer.apply(&batch).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn memory_from_the_pool_brings_nothing_along() {
    let pool = Arc::new(ArenaPool::new(100_000, 1));
    let mut random = Random(5);
    for round in 0..20u8 {
        let (memtable, mut writer) = Memtable::create_in(&pool, 0);
        assert_eq!(pool.spare_bytes(), 0);
        let mut model = Model::new();
        let mut batch = WriteBatch::new();
        for _ in 0..100 {
            let key = random.key();
            batch.put(&[&key], &[&[round; 9]]);
            model.insert(key, Some(vec![round; 9]));
        }
        writer.apply(&batch).unwrap();
        let all: Vec<_> = memtable.iter(memtable.visible()).map(owned).collect();
        assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        drop(memtable);
        assert_eq!(pool.spare_bytes(), 0, "the writer still has it");
        drop(writer);
        assert!(pool.spare_bytes() >= 100_000);
        let (large, _writer) = Memtable::create_in(&pool, 200_000);
        assert!(pool.spare_bytes() >= 100_000, "a larger one gets memory of its own");
        drop(large);
    }
}
