//! Shared parts of the engine's tests: a seeded generator, directories, small options, and a plain model.

#![allow(dead_code)]

pub mod hooked;

use std::{
    collections::BTreeMap,
    future::Future,
    ops::{Bound, ControlFlow},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use thalweg_disk::SimDisk;
use thalweg_engine::{
    BackendKind, Database, Options, ReadError, ScanRange,
    types::{Durability, ManualClock, Offset, SpaceTime, record::RecordBatch},
};

/// Longest wait for an event that should come immediately. Reaching it is a failure; it does not set the pace of a
/// test.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Pauses a loop that waits for another thread or process. Without the pause, the loop takes a processor from it.
pub fn pause() {
    thread::sleep(Duration::from_millis(1));
}

struct Unparks(Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, for tests without a runtime.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unparks(thread::current())));
    let (mut future, until) = (pin!(future), Instant::now() + PATIENCE);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        assert!(Instant::now() < until, "nothing woke it");
        thread::park_timeout(PATIENCE);
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, seeded, and good enough for choosing operations.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Seed of a run: `THALWEG_TEST_SEED` if it is set, else `default`. It is printed, so that a failure can be replayed.
pub fn seed(default: u64) -> u64 {
    let seed = std::env::var("THALWEG_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    println!("seed {seed} (set THALWEG_TEST_SEED to replay)");
    seed
}

/// Options with small segments, no background thread, no log kept for history, and no reserve.
pub fn small(backend: BackendKind) -> Options {
    Options {
        backend: Some(backend),
        segment_bytes: 64 * 1024,
        spare_segments: 2,
        reserve_bytes: 0,
        history_bytes: 0,
        history_age: Duration::ZERO,
        inline_value_bytes: 256,
        cache_bytes: 1 << 20,
        memtable_bytes: 64 << 10,
        maintenance_interval: Duration::ZERO,
        scrub_interval: Duration::ZERO,
        ..Options::default()
    }
}

pub fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(SpaceTime(1_700_000_000_000_000)))
}

/// Opens a database with the memory backend on a simulated disk.
pub fn simulated(disk: &SimDisk, seed: u64) -> Database {
    Database::open_on(Arc::new(disk.clone()), clock(), seed, small(BackendKind::Memory)).expect("opens")
}

pub fn batch(payloads: &[Vec<u8>]) -> RecordBatch {
    let mut batch = RecordBatch::new();
    payloads.iter().for_each(|payload| batch.push_payload(payload).expect("small"));
    batch
}

/// Expected contents of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    pub keys: BTreeMap<(String, Vec<u8>), Vec<u8>>,
    pub streams: BTreeMap<String, ModelStream>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelStream {
    pub start: u64,
    /// Payloads by offset, including trimmed ones.
    pub records: Vec<Vec<u8>>,
}

/// Reads all payloads of a stream from its start, in pages of a few records.
pub fn read_all(db: &Database, stream: &str) -> Result<(u64, Vec<Vec<u8>>), ReadError> {
    let stream = db.find_stream(stream).expect("the stream exists");
    let info = stream.info()?;
    let (mut from, mut payloads) = (info.start, Vec::new());
    while from < info.next {
        let page = stream.read(from, 7, 10_000)?;
        assert!(page.next > from, "a page below the end holds records");
        page.for_each(&mut |offset, _, record| {
            assert_eq!(offset, Offset(info.start.0 + payloads.len() as u64), "offsets have no gaps");
            payloads.push(record.payload.to_vec());
            ControlFlow::Continue(())
        })?;
        from = page.next;
    }
    Ok((info.start.0, payloads))
}

/// Compares everything that can be read with the model.
pub fn check(db: &Database, model: &Model) {
    let mut found = BTreeMap::new();
    for keyspace in db.keyspaces() {
        let handle = db.find_keyspace(&keyspace.name).expect("listed keyspaces exist");
        for pair in handle.iter(ScanRange::default()) {
            let (key, entry) = pair.expect("readable");
            let point = handle.get(&key).expect("readable").expect("a scanned key exists");
            assert_eq!(point, entry, "get and scan agree");
            found.insert((keyspace.name.clone(), key.to_vec()), entry.value.to_vec());
        }
        let mut reversed = Vec::new();
        let range = ScanRange { order: thalweg_engine::Order::Descending, ..ScanRange::default() };
        handle
            .scan(&range, &mut |item| {
                reversed.push(item.key.to_vec());
                ControlFlow::Continue(())
            })
            .expect("readable");
        reversed.reverse();
        let forward: Vec<_> =
            found.keys().filter(|(name, _)| *name == keyspace.name).map(|(_, key)| key.clone()).collect();
        assert_eq!(reversed, forward, "both directions agree");
    }
    assert_eq!(found, model.keys);
    for (name, expected) in &model.streams {
        let (start, payloads) = read_all(db, name).expect("readable");
        assert_eq!(start, expected.start, "start of {name}");
        assert_eq!(payloads, expected.records[start as usize..], "records of {name}");
    }
}

/// Returns a random bound at a key.
pub fn random_bound(rng: &mut Rng, key: Vec<u8>) -> Bound<Vec<u8>> {
    match rng.below(3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(key),
        _ => Bound::Excluded(key),
    }
}

pub const LEVELS: [Durability; 4] = [Durability::Os, Durability::Interval, Durability::Disk, Durability::Quorum];
