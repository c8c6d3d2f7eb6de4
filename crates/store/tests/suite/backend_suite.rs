//! One suite that every backend passes identically, compared with a `BTreeMap`.
//!
//! Random histories with tiny memtables, so that flushes and compactions happen all the time, and with views held
//! across them. Then the same bytes are reopened, with and without a flush before.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use thalweg_store::{
    Applied, Backend, BarrierFailed, Direction, LogBarrier, SyncMode, View, WriteBatch,
    lsm::{Compaction, LsmBackend, LsmOptions},
};
use thalweg_types::{Index, Lsn, Revision, SpaceTime, Term};

use crate::backend_support::{
    Harness, JournaledLsmHarness, JournaledMemoryHarness, LsmHarness, MemoryHarness, Random, RedbHarness, SqliteHarness,
};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn applied(number: u64) -> Applied {
    Applied {
        lsn: Lsn(number * 3),
        term: Term(1 + number / 100),
        index: Index(number),
        revision: Revision(number * 2),
        time: SpaceTime(number * 1000),
        running_hash: number * 7,
    }
}

fn put_all(backend: &dyn Backend, number: u64, pairs: &[(&[u8], &[u8])]) {
    let mut batch = WriteBatch::new();
    for (key, value) in pairs {
        batch.put(&[key], &[value]);
    }
    backend.apply(&batch, applied(number)).unwrap();
}

fn collect(view: &dyn View, lower: Bound<&[u8]>, upper: Bound<&[u8]>, direction: Direction, limit: usize) -> Pairs {
    let mut pairs = Vec::new();
    if limit == 0 {
        return pairs;
    }
    let visit = &mut |key: &[u8], value: &[u8]| {
        pairs.push((key.to_vec(), value.to_vec()));
        if pairs.len() == limit { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
    };
    view.scan(lower, upper, direction, visit).unwrap();
    if let Some(mut cursor) = view.cursor(lower, upper, direction).unwrap() {
        assert!(cursor.pair().is_none(), "a cursor begins before the first pair");
        for (number, (key, value)) in pairs.iter().enumerate() {
            if number % 7 == 3 {
                // A copy goes on from the same pair.
                let copy = cursor.boxed_clone();
                assert_eq!(copy.pair(), cursor.pair());
                cursor = copy;
            }
            assert!(cursor.advance().unwrap());
            assert_eq!(cursor.pair(), Some((key.as_slice(), value.as_slice())));
        }
        if pairs.len() < limit {
            assert!(!cursor.advance().unwrap() && cursor.pair().is_none());
            assert!(!cursor.advance().unwrap(), "the end stays");
        }
    }
    pairs
}

fn all(view: &dyn View) -> Pairs {
    collect(view, Bound::Unbounded, Bound::Unbounded, Direction::Forward, usize::MAX)
}

fn pairs_of(map: &Map) -> Pairs {
    map.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Returns a key from a small set, so that keys repeat. Some are prefixes of one another, and some contain zeroes.
fn key(random: &mut Random, spread: u64) -> Vec<u8> {
    let number = random.below(spread);
    match random.below(6) {
        0 => vec![1; 1 + number as usize % 40],
        1 => [b"\x10\0\0\0\x01".as_slice(), &number.to_be_bytes()[4..]].concat(),
        2 => format!("key {:05}", number * 7919 % spread).into_bytes(),
        3 => vec![0; 1 + number as usize % 4],
        4 => [&[0xfe; 3][..], &number.to_le_bytes()].concat(),
        _ => number.to_be_bytes().to_vec(),
    }
}

fn bound<'a>(random: &mut Random, key: &'a [u8]) -> Bound<&'a [u8]> {
    match random.below(5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(key),
        _ => Bound::Excluded(key),
    }
}

fn is_inverted(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    match (lower, upper) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => low >= high,
    }
}

fn check_view(view: &dyn View, map: &Map, random: &mut Random, spread: u64) {
    for _ in 0..4 {
        let key = key(random, spread);
        assert_eq!(view.get(&key).unwrap().as_deref(), map.get(&key).map(Vec::as_slice), "get {key:?}");
    }
    let (low, high) = (key(random, spread), key(random, spread));
    let (lower, upper) = (bound(random, &low), bound(random, &high));
    let mut expected: Pairs = if is_inverted(lower, upper) {
        Vec::new()
    } else {
        map.range::<[u8], _>((lower, upper)).map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let limit = if random.below(2) == 0 { usize::MAX } else { random.below(20) as usize };
    let cut = |pairs: &Pairs| pairs.iter().take(limit).cloned().collect::<Pairs>();
    assert_eq!(collect(view, lower, upper, Direction::Forward, limit), cut(&expected), "{lower:?} {upper:?}");
    expected.reverse();
    assert_eq!(collect(view, lower, upper, Direction::Reverse, limit), cut(&expected), "{lower:?} {upper:?}");
}

fn random_batch(random: &mut Random, batch: &mut WriteBatch, map: &mut Map, spread: u64) {
    batch.clear();
    for _ in 0..random.below(30) {
        let key = key(random, spread);
        if random.below(3) == 0 {
            batch.delete(&[&key]);
            map.remove(&key);
        } else {
            let longest = if random.below(50) == 0 { 20_000 } else { 100 };
            let value = vec![random.below(256) as u8; random.below(longest) as usize];
            let (front, back) = value.split_at(value.len() / 2);
            batch.put(&[&key], &[front, back]);
            map.insert(key, value);
        }
    }
}

/// Runs a random history with views, flushes and reopening, and compares the backend with the map at each batch.
fn random_history(harness: &mut dyn Harness, seed: u64, batches: u64) {
    eprintln!("{} seed {seed}", harness.name());
    let mut random = Random(seed);
    let spread = [20, 200, 3_000][random.below(3) as usize];
    let mut backend = harness.open();
    let mut map = Map::new();
    let mut history = vec![map.clone()];
    let mut views: Vec<(Arc<dyn View>, usize)> = Vec::new();
    let mut batch = WriteBatch::new();
    let mut number = 0;
    while number < batches {
        number += 1;
        random_batch(&mut random, &mut batch, &mut map, spread);
        backend.apply(&batch, applied(number)).unwrap();
        history.push(map.clone());
        assert_eq!(backend.applied(), Some(applied(number)));
        match random.below(40) {
            0 => assert_eq!(backend.flush().unwrap(), Some(applied(number))),
            1 => {
                if random.below(2) == 0 {
                    backend.flush().unwrap();
                    assert_eq!(backend.persisted(), Some(applied(number)));
                }
                views.clear();
                drop(backend);
                backend = harness.open();
                let before = number;
                number = backend.persisted().map_or(0, |applied| applied.index.0);
                assert!(number == before || harness.sync() == SyncMode::BehindLog, "{number} of {before} batches");
                assert_eq!(backend.persisted(), (number > 0).then(|| applied(number)), "whole batches survive");
                assert_eq!(backend.applied(), backend.persisted());
                map = history[number as usize].clone();
                history.truncate(number as usize + 1);
                assert_eq!(all(&*backend.view()), pairs_of(&map), "reopened at {number}");
            }
            2 | 3 => views.push((backend.view(), number as usize)),
            4 => drop((!views.is_empty()).then(|| views.remove(0))),
            5 => backend.maintain().unwrap(),
            6 => assert_eq!(all(&*backend.view()), pairs_of(&map)),
            7 => {
                backend.compact().unwrap();
                assert_eq!(backend.persisted(), Some(applied(number)));
            }
            _ => {}
        }
        check_view(&*backend.view(), &map, &mut random, spread);
        let key = key(&mut random, spread);
        assert_eq!(backend.get(&key).unwrap().as_deref(), map.get(&key).map(Vec::as_slice));
        if let Some((view, at)) = views.first() {
            assert_eq!(view.applied(), if *at == 0 { Applied::default() } else { applied(*at as u64) });
            check_view(&**view, &history[*at], &mut random, spread);
        }
        // Read first: a flush in the background may sync the log and persist more at any time.
        let persisted = backend.persisted().map_or(0, |applied| applied.lsn.0);
        assert!(harness.synced_through() >= persisted, "ahead of the log");
    }
    for (view, at) in &views {
        assert_eq!(all(&**view), pairs_of(&history[*at]), "the view of {at} moved");
    }
}

fn edge_cases(harness: &mut dyn Harness) {
    let backend = harness.open();
    assert_eq!((backend.applied(), backend.persisted()), (None, None));
    assert_eq!(backend.flush().unwrap(), None, "nothing to persist");
    assert_eq!(all(&*backend.view()), vec![]);
    let before = backend.view();

    put_all(&*backend, 1, &[(b"a", b""), (b"b", b"1"), (b"b", b"2")]);
    assert_eq!(backend.get(b"a").unwrap().as_deref(), Some(&b""[..]), "an empty value is a value");
    assert_eq!(backend.get(b"b").unwrap().as_deref(), Some(&b"2"[..]), "the last op on a key wins");
    assert_eq!(backend.get(b"").unwrap(), None);
    assert_eq!(all(&*before), vec![]);

    let mut batch = WriteBatch::new();
    batch.put(&[b"a"], &[b"x"]);
    batch.delete(&[b"a"]);
    batch.delete(&[b"b"]);
    batch.put(&[b"b"], &[b"3"]);
    backend.apply(&batch, applied(2)).unwrap();
    backend.flush().unwrap();
    assert_eq!(all(&*backend.view()), vec![(b"b".to_vec(), b"3".to_vec())]);

    backend.apply(&WriteBatch::new(), applied(3)).unwrap();
    assert_eq!(backend.flush().unwrap(), Some(applied(3)), "an empty batch moves `applied` too");

    let long = vec![b'k'; 65_535];
    let large = vec![7; 3 << 20];
    put_all(&*backend, 4, &[(&long, &large), (b"\xfe\xff", b"last")]);
    backend.flush().unwrap();
    drop(backend);
    let backend = harness.open();
    assert_eq!(backend.applied(), Some(applied(4)));
    assert_eq!(backend.get(&long).unwrap().as_deref(), Some(&large[..]));
    let unbounded = collect(&*backend.view(), Bound::Unbounded, Bound::Unbounded, Direction::Reverse, 1);
    assert_eq!(unbounded, vec![(b"\xfe\xff".to_vec(), b"last".to_vec())], "reserved keys stay hidden");

    for bad in [&b""[..], &vec![1; 65_536], b"\xffmine"] {
        let mut batch = WriteBatch::new();
        batch.put(&[b"fine"], &[b""]);
        batch.put(&[bad], &[b""]);
        let error = backend.apply(&batch, applied(5)).unwrap_err();
        assert!(matches!(error, thalweg_store::BackendError::BadBatch(_)), "{error}");
    }
    assert_eq!(backend.get(b"fine").unwrap(), None, "no change of a bad batch is applied");
    assert_eq!(backend.applied(), Some(applied(4)));
}

/// A batch larger than a memtable is applied whole, as the first batch or later.
fn large_batches(harness: &mut dyn Harness) {
    let backend = harness.open();
    let large = vec![3; 200_000];
    put_all(&*backend, 1, &[(b"a", &large), (b"b", &large)]);
    put_all(&*backend, 2, &[(b"b", b"small")]);
    put_all(&*backend, 3, &[(b"c", &large)]);
    let expected =
        vec![(b"a".to_vec(), large.clone()), (b"b".to_vec(), b"small".to_vec()), (b"c".to_vec(), large.clone())];
    assert_eq!(all(&*backend.view()), expected);
    backend.flush().unwrap();
    assert_eq!(all(&*backend.view()), expected);
    assert_eq!(backend.get(b"c").unwrap().as_deref(), Some(&large[..]));
}

/// After a barrier failure nothing is persisted, the flush fails, and reads are unchanged.
fn failed_barrier(harness: &mut dyn Harness) {
    let backend = harness.open();
    put_all(&*backend, 1, &[(b"a", b"1")]);
    backend.flush().unwrap();
    put_all(&*backend, 2, &[(b"a", b"2")]);
    harness.fail_barrier();
    if harness.sync() == SyncMode::PerBatch {
        return failed_barrier_of_a_batch(harness, backend);
    }
    for _ in 0..2 {
        let error = backend.flush().unwrap_err();
        assert_eq!(thalweg_types::Classified::code(&error), "log_failed", "{error}");
    }
    assert_eq!(backend.persisted(), Some(applied(1)));
    assert_eq!(backend.get(b"a").unwrap().as_deref(), Some(&b"2"[..]));
    drop(backend);
    let backend = harness.open();
    assert_eq!(backend.applied(), Some(applied(1)));
    assert_eq!(backend.get(b"a").unwrap().as_deref(), Some(&b"1"[..]), "the state is not ahead of the log");
}

/// A barrier that fails before a batch, with a sync per batch, prevents that batch and all later ones.
fn failed_barrier_of_a_batch(harness: &mut dyn Harness, backend: Box<dyn Backend>) {
    let mut batch = WriteBatch::new();
    batch.put(&[b"a"], &[b"3"]);
    for code in ["log_failed", "state_failed"] {
        let error = backend.apply(&batch, applied(3)).unwrap_err();
        assert_eq!(thalweg_types::Classified::code(&error), code, "{error}");
    }
    assert_eq!((backend.applied(), backend.persisted()), (Some(applied(2)), Some(applied(2))));
    drop(backend);
    let backend = harness.open();
    assert_eq!(backend.applied(), Some(applied(2)));
    assert_eq!(backend.get(b"a").unwrap().as_deref(), Some(&b"2"[..]));
}

/// Readers on other threads see whole batches during flushes and compactions.
fn concurrent_readers(harness: &mut dyn Harness) {
    const KEYS: u64 = 64;
    let backend = harness.open();
    let done = std::sync::atomic::AtomicBool::new(false);
    let load = || done.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        for direction in [Direction::Forward, Direction::Reverse] {
            let (backend, load) = (&backend, &load);
            scope.spawn(move || {
                let mut newest = 0;
                while !load() {
                    let view = backend.view();
                    let pairs = collect(&*view, Bound::Unbounded, Bound::Unbounded, direction, usize::MAX);
                    let at = view.applied().index.0;
                    assert!(at >= newest, "views never go back");
                    newest = at;
                    assert_eq!(pairs.len() as u64, if at == 0 { 0 } else { KEYS });
                    assert!(pairs.iter().all(|(_, value)| value[..8] == at.to_le_bytes()), "half of batch {at}");
                    let got = backend.get(&7u64.to_be_bytes()).unwrap();
                    assert!(at == 0 || got.is_some_and(|got| got[..8] >= [0; 8][..]));
                }
            });
        }
        let mut batch = WriteBatch::new();
        // One synced batch takes as long as hundreds of others.
        let batches: u64 = if harness.sync() == SyncMode::PerBatch { 150 } else { 1_500 };
        for number in 1..=batches {
            batch.clear();
            for key in 0..KEYS {
                batch.put(&[&key.to_be_bytes()], &[&number.to_le_bytes(), &[0; 40]]);
            }
            backend.apply(&batch, applied(number)).unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

macro_rules! suite {
    ($name:ident, $harness:expr, $seeds:expr, $batches:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn random_histories() {
                for seed in 0..$seeds {
                    super::random_history(&mut $harness, seed, $batches);
                }
            }

            #[test]
            fn edge_cases() {
                super::edge_cases(&mut $harness);
            }

            #[test]
            fn large_batches() {
                super::large_batches(&mut $harness);
            }

            #[test]
            fn failed_barrier() {
                super::failed_barrier(&mut $harness);
            }

            #[test]
            fn concurrent_readers() {
                super::concurrent_readers(&mut $harness);
            }
        }
    };
}

suite!(memory, MemoryHarness::new(), 12, 300);
suite!(lsm, LsmHarness::new(), 6, 250);
suite!(redb, RedbHarness::new(SyncMode::BehindLog), 4, 250);
suite!(sqlite, SqliteHarness::new(SyncMode::BehindLog), 4, 250);
suite!(memory_synced, JournaledMemoryHarness::new(), 4, 250);
suite!(lsm_synced, JournaledLsmHarness::new(), 4, 200);
suite!(redb_synced, RedbHarness::new(SyncMode::PerBatch), 2, 200);
suite!(sqlite_synced, SqliteHarness::new(SyncMode::PerBatch), 2, 200);

/// A backend that compacts only on request never compacts on its own, and no write waits for a compaction, regardless
/// of the number of tables. A request leaves one run without overwritten and deleted versions.
#[test]
fn an_lsm_compacts_when_asked_if_told_so() {
    let harness = LsmHarness::new();
    let options = LsmOptions { compaction: Compaction::WhenAsked, table_bytes: 1 << 20, ..harness.options() };
    let barrier: Arc<dyn LogBarrier> = Arc::new(NoLog);
    let backend = LsmBackend::open(options.clone(), barrier.clone()).unwrap();
    let keys: Vec<[u8; 4]> = (0..100_u32).map(u32::to_be_bytes).collect();
    for pass in 1..=40_u64 {
        let value = [pass as u8; 50];
        let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &value[..])).collect();
        put_all(&backend, pass, &pairs);
        backend.flush().unwrap();
    }
    let mut batch = WriteBatch::new();
    keys[..50].iter().for_each(|key| batch.delete(&[key]));
    backend.apply(&batch, applied(41)).unwrap();
    backend.flush().unwrap();
    let before = backend.stats();
    assert_eq!((before.tables, before.compactions, before.stalls), (41, 0, 0), "{before:?}");
    let held = backend.view();
    backend.compact().unwrap();
    let after = backend.stats();
    assert_eq!((after.tables, after.compactions), (1, 1), "{after:?}");
    assert!(after.disk_bytes * 20 < before.disk_bytes, "{} of {}", after.disk_bytes, before.disk_bytes);
    let expected: Pairs = keys[50..].iter().map(|key| (key.to_vec(), vec![40; 50])).collect();
    for view in [&*held, &*backend.view()] {
        assert_eq!(all(view), expected);
    }
    backend.compact().unwrap();
    assert_eq!(backend.stats().compactions, 1, "no compaction is left to do");
    drop((held, backend));
    let backend = LsmBackend::open(options, barrier).unwrap();
    assert_eq!((backend.applied(), all(&*backend.view())), (Some(applied(41)), expected));
}

/// A barrier that always succeeds, as if the log were already durable.
struct NoLog;

impl LogBarrier for NoLog {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        Ok(())
    }
}
