//! `Solo` under threads: blocking, async and unseen proposers, moves that fail, a full queue, a close and a
//! panic in between. Nobody waits for ever, and what was acknowledged is in the log once and in order.
//!
//! Seeds choose what the threads do, not how they interleave. `THALWEG_TEST_SEED` replays one.

use std::{
    collections::BTreeSet,
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use thalweg_disk::SimDisk;
use thalweg_log::{Log, LogOptions, Purpose};
use thalweg_replica::{Committed, Observer, ProposeError, Solo, SoloOptions, replay};
use thalweg_state::machine::{Machine, MachineOptions};
use thalweg_store::{
    BarrierFailed, LogBarrier,
    memory::{MemoryBackend, MemoryOptions},
};
use thalweg_types::{
    Durability, KeyspaceId, Lsn, ManualClock, NodeId, Revision, SpaceId, SpaceTime,
    command::{CommandError, Framed, KeyspaceConfig, Outcome, encode_create_keyspace, encode_put},
};

const KEYSPACE: KeyspaceId = KeyspaceId(1);
const SEGMENT_BYTES: u32 = 256 * 1024;
/// Longer than anything here takes on the slowest machine: past it, somebody was not woken.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Barrier(Log);

impl LogBarrier for Barrier {
    fn sync_through(&self, lsn: Lsn) -> Result<(), BarrierFailed> {
        self.0.sync_through(lsn).map_err(|error| BarrierFailed(error.to_string()))
    }
}

fn open(disk: &SimDisk, max_queue_bytes: usize) -> (Solo, Arc<Machine>, Log) {
    let clock = Arc::new(ManualClock::at(SpaceTime(1_000_000)));
    let options = LogOptions { segment_bytes: SEGMENT_BYTES, reserve_bytes: 0, ..LogOptions::default() };
    let (log, _) = Log::open(Arc::new(disk.clone()), "log", options, clock.clone(), 3).unwrap();
    let barrier = Arc::new(Barrier(log.clone()));
    let backend = MemoryBackend::open(Arc::new(disk.clone()), MemoryOptions::default(), barrier).unwrap();
    let machine = Arc::new(Machine::open(Arc::new(backend), MachineOptions::default()).unwrap());
    replay(&log, &machine, SpaceId::ZERO, &mut |_| {}).unwrap();
    let options = SoloOptions { space: SpaceId::ZERO, node: NodeId(7), max_queue_bytes };
    (Solo::open(log.clone(), machine.clone(), clock, &options).unwrap(), machine, log)
}

fn framed(encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>) -> Framed {
    let mut command = Framed::new();
    command.encode(encode).unwrap();
    command
}

fn put(key: &str, len: usize) -> Framed {
    framed(|out| encode_put(out, KEYSPACE, key.as_bytes(), &vec![1; len]))
}

fn create_keyspace(solo: &Solo) {
    solo.propose(
        &framed(|out| encode_create_keyspace(out, "k", &KeyspaceConfig::default())),
        Durability::Os,
        Purpose::Data,
    )
    .unwrap();
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

fn seeds() -> Vec<u64> {
    let given = std::env::var("THALWEG_TEST_SEED").ok().and_then(|text| text.parse().ok());
    given.map_or_else(|| (1..=24).collect(), |seed| vec![seed])
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// What the threads learned.
#[derive(Default)]
struct Seen {
    acknowledged: Mutex<BTreeSet<String>>,
    revisions: Mutex<BTreeSet<Revision>>,
    refused: AtomicU64,
}

impl Seen {
    /// Notes an answer; false if the proposer should stop.
    fn answer(&self, key: String, last: &mut Revision, answer: Result<Committed, ProposeError>) -> bool {
        match answer {
            Ok(committed) => {
                let Some(Outcome::Committed { revision, .. }) = committed.outcome else {
                    panic!("{key}: {committed:?}");
                };
                assert!(revision > *last, "a proposer's own writes are in order");
                *last = revision;
                assert!(self.revisions.lock().unwrap().insert(revision), "no two commands share a revision");
                self.acknowledged.lock().unwrap().insert(key);
                true
            }
            Err(ProposeError::Overloaded { .. }) => {
                thread::yield_now();
                true
            }
            Err(_) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }
}

const BLOCKING: [Durability; 3] = [Durability::Os, Durability::Interval, Durability::Disk];

fn blocking(solo: &Solo, seen: &Seen, name: u64, mut rng: Rng, sizes: u64) {
    let mut last = Revision(0);
    for number in 0..150 {
        let key = format!("{name}-{number}");
        let command = put(&key, rng.below(sizes) as usize);
        let level = BLOCKING[rng.below(3) as usize];
        if !seen.answer(key, &mut last, solo.propose(&command, level, Purpose::Data)) {
            return;
        }
    }
}

fn tasks(solo: &Solo, seen: &Seen, name: u64, mut rng: Rng, sizes: u64) {
    let mut last = Revision(0);
    for number in 0..60 {
        // Several under way at once, some of them dropped unseen.
        let keys: Vec<String> = (0..1 + rng.below(4)).map(|at| format!("{name}-{number}-{at}")).collect();
        let proposals: Vec<_> = keys
            .into_iter()
            .map(|key| {
                let command = put(&key, rng.below(sizes) as usize);
                (key, solo.propose_async(command, BLOCKING[rng.below(3) as usize], Purpose::Data))
            })
            .collect();
        for (key, proposal) in proposals {
            let go_on = match proposal {
                Ok(_) if rng.below(8) == 0 => true,
                Ok(proposal) => seen.answer(key, &mut last, block_on(proposal)),
                Err(error) => seen.answer(key, &mut last, Err(error)),
            };
            if !go_on {
                return;
            }
        }
    }
}

fn unseen(solo: &Solo, mut rng: Rng, sizes: u64) {
    for number in 0..100 {
        let command = put(&format!("unseen-{number}"), rng.below(sizes) as usize);
        if solo.propose(&command, Durability::None, Purpose::Data).is_err() {
            return;
        }
    }
}

/// Takes the role again and again and gives it back with an error.
fn failing_moves(solo: &Solo, stop: &AtomicBool) {
    let too_large = vec![0; SEGMENT_BYTES as usize];
    while !stop.load(Ordering::Relaxed) {
        assert!(solo.relocate(&too_large).is_err());
        thread::yield_now();
    }
}

/// Runs the threads; fails if one of them does not end.
fn run(jobs: Vec<Box<dyn FnOnce() + Send>>, seed: u64) {
    let (sender, ended) = mpsc::channel();
    let count = jobs.len();
    for job in jobs {
        let sender = sender.clone();
        thread::spawn(move || {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            let _ = sender.send(result.is_ok());
        });
    }
    for _ in 0..count {
        match ended.recv_timeout(PATIENCE) {
            Ok(went_well) => assert!(went_well, "seed {seed}: a thread panicked, see above"),
            Err(_) => panic!("seed {seed}: a proposer was never woken"),
        }
    }
}

#[test]
fn nobody_is_forgotten() {
    for seed in seeds() {
        println!("seed {seed}");
        let mut rng = Rng(seed);
        let disk = SimDisk::new(seed);
        let max_queue_bytes = [300, 2000, 1 << 20][rng.below(3) as usize];
        let sizes = [40, 280, 1500][rng.below(3) as usize];
        let closes = rng.below(2) == 0;
        let (solo, machine, log) = open(&disk, max_queue_bytes);
        create_keyspace(&solo);
        let seen = Arc::new(Seen::default());
        let stop = Arc::new(AtomicBool::new(false));
        let mover = {
            let (solo, stop) = (solo.clone(), stop.clone());
            thread::spawn(move || failing_moves(&solo, &stop))
        };
        let mut jobs: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
        for name in 0..6 {
            let (solo, seen, rng) = (solo.clone(), seen.clone(), Rng(rng.below(u64::MAX)));
            jobs.push(match name {
                0..4 => Box::new(move || blocking(&solo, &seen, name, rng, sizes)),
                4 => Box::new(move || tasks(&solo, &seen, name, rng, sizes)),
                _ => Box::new(move || unseen(&solo, rng, sizes)),
            });
        }
        if closes {
            let (solo, seen, machine, enough) = (solo.clone(), seen.clone(), machine.clone(), rng.below(200) as usize);
            jobs.push(Box::new(move || {
                while seen.acknowledged.lock().unwrap().len() < enough {
                    thread::yield_now();
                }
                solo.close();
                let applied = machine.applied();
                let late = solo.propose(&put("late", 1), Durability::Os, Purpose::Data);
                assert!(matches!(late, Err(ProposeError::Closed)), "{late:?}");
                assert_eq!(machine.applied(), applied, "nothing is applied once it is closed");
            }));
        }
        run(jobs, seed);
        stop.store(true, Ordering::Relaxed);
        mover.join().unwrap();
        assert!(closes || seen.refused.load(Ordering::Relaxed) == 0);
        solo.close();
        log.sync().unwrap();
        drop((solo, machine, log));
        let (_solo, machine, _log) = open(&disk.power_loss(seed), 1 << 20);
        for key in &*seen.acknowledged.lock().unwrap() {
            assert!(machine.get(KEYSPACE, key.as_bytes()).unwrap().is_some(), "seed {seed}: {key} is gone");
        }
    }
}

/// Panics when the keyspace's revisions get so far.
#[derive(Debug)]
struct PanicAt(Revision);

impl Observer for PanicAt {
    fn applied(&self, outcomes: &[Outcome]) {
        let reached = |outcome: &Outcome| matches!(outcome, Outcome::Committed { revision, .. } if *revision >= self.0);
        assert!(!outcomes.iter().any(reached), "told to panic");
    }
}

#[test]
fn a_panic_while_committing_fails_all_and_loses_nothing() {
    for seed in seeds().into_iter().take(4) {
        println!("seed {seed}");
        let mut rng = Rng(seed);
        let disk = SimDisk::new(seed);
        let (solo, machine, log) = open(&disk, 2000);
        create_keyspace(&solo);
        solo.observe(Arc::new(PanicAt(Revision(20 + rng.below(80)))));
        let seen = Arc::new(Seen::default());
        let mut jobs: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
        for name in 0..4 {
            let (solo, seen, rng) = (solo.clone(), seen.clone(), Rng(rng.below(u64::MAX)));
            jobs.push(Box::new(move || {
                // One of them is the one that panics, unless the committer is.
                let work = || {
                    if name < 3 { blocking(&solo, &seen, name, rng, 40) } else { tasks(&solo, &seen, name, rng, 40) }
                };
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            }));
        }
        run(jobs, seed);
        let after = solo.propose(&put("after", 1), Durability::Os, Purpose::Data);
        assert!(matches!(after, Err(ProposeError::State(_))), "{after:?}");
        assert!(solo.failure().is_some());
        solo.close();
        drop((solo, machine, log));
        let (solo, machine, _log) = open(&disk.kill_process(), 1 << 20);
        for key in &*seen.acknowledged.lock().unwrap() {
            assert!(machine.get(KEYSPACE, key.as_bytes()).unwrap().is_some(), "seed {seed}: {key} is gone");
        }
        solo.propose(&put("after", 1), Durability::Os, Purpose::Data).unwrap();
    }
}
