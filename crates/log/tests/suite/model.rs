//! Seeded sequences of operations compared with a `Vec`, with reopens and crashes in between; and concurrent
//! threads.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use thalweg_disk::{Disk, SimDisk};
use thalweg_log::{Log, LogOptions, offline};
use thalweg_types::{Durability, Lsn, SpaceTime};

use crate::common::*;

fn options(rng: &mut Rng) -> LogOptions {
    let segment_bytes = [16 * 1024, 32 * 1024, 64 * 1024][rng.below(3) as usize];
    LogOptions { segment_bytes, history_bytes: rng.below(3) * 20_000, ..small_options() }
}

fn sizes(rng: &mut Rng) -> Vec<usize> {
    let count = [1, 1, 1, 2, 5, 20][rng.below(6) as usize];
    let bound = [10, 200, 200, 7000 / count][rng.below(4) as usize];
    (0..count).map(|_| rng.below(bound) as usize).collect()
}

struct Model {
    payloads: Vec<Vec<u8>>,
    /// Number of records that must survive a power loss.
    durable: usize,
}

impl Model {
    fn check(&self, log: &Log, rng: &mut Rng) {
        assert_eq!(log.end(), Lsn(self.payloads.len() as u64));
        let start = log.start().get() as usize;
        let from = start + rng.below((self.payloads.len() - start) as u64 + 1) as usize;
        let read: Vec<_> = log.records_from(Lsn(from as u64)).unwrap().collect::<Result<_, _>>().unwrap();
        assert_records(&read, from as u64, &self.payloads[from..]);
        for info in log.segments() {
            let read: Vec<_> = log.segment_records(info.generation).unwrap().collect::<Result<_, _>>().unwrap();
            assert_records(
                &read,
                info.first.get(),
                &self.payloads[info.first.get() as usize..info.next.get() as usize],
            );
        }
    }
}

fn run(seed: u64, steps: u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut sim = SimDisk::new(seed);
    let as_disk = |sim: &SimDisk| -> Arc<dyn Disk> { Arc::new(sim.clone()) };
    let mut log = open_still(&as_disk(&sim), options(&mut rng)).unwrap().0;
    let mut model = Model { payloads: Vec::new(), durable: 0 };
    for _ in 0..steps {
        match rng.below(100) {
            0..80 => {
                let first = model.payloads.len() as u64;
                let batch: Vec<_> =
                    sizes(&mut rng).into_iter().zip(first..).map(|(len, number)| payload(number, len)).collect();
                let level = Durability::ALL[rng.below(5) as usize];
                let appended = append(&log, &batch, level).unwrap();
                assert_eq!(appended.first, Lsn(first));
                model.payloads.extend(batch);
                assert_eq!(appended.next, Lsn(model.payloads.len() as u64));
            }
            80..84 => assert_eq!(log.sync().unwrap(), log.end()),
            84..88 => model.check(&log, &mut rng),
            88..92 => {
                log.release(log.durable());
                let now = SpaceTime(1000 + model.payloads.len() as u64);
                for info in log.freeable(now) {
                    // Some freeable segments are still referenced, so they are not freed.
                    if rng.below(3) > 0 {
                        log.free(info.generation).unwrap();
                    }
                }
            }
            what => {
                model.durable = model.durable.max(log.durable().get() as usize);
                let (next, survives) = match what {
                    92..95 => {
                        log.close().unwrap();
                        (None, model.payloads.len())
                    }
                    95..97 => (Some(sim.kill_process()), model.payloads.len()),
                    _ => (Some(sim.power_loss(rng.next())), model.durable),
                };
                drop(log);
                sim = next.unwrap_or(sim);
                let before = sim.operations();
                let report = offline::verify(&sim, "log").unwrap();
                assert_eq!(sim.operations(), before);
                assert_ne!(report.verdict, offline::Verdict::Corrupt, "{report:?}");
                let (opened, recovery) = open_still(&as_disk(&sim), options(&mut rng)).unwrap();
                log = opened;
                let end = recovery.end.get() as usize;
                assert!(survives <= end && end <= model.payloads.len(), "{survives} <= {end}");
                assert_eq!((report.end_lsn, report.clean), (recovery.end.get(), recovery.clean));
                assert_eq!(recovery.clean, what < 95);
                model.payloads.truncate(end);
                model.check(&log, &mut rng);
            }
        }
        model.durable = model.durable.max(log.durable().get() as usize);
        assert!(log.durable() <= log.end());
    }
    model.check(&log, &mut rng);
}

#[test]
fn many_operations_agree_with_a_vec() {
    for seed in 1..=100 {
        println!("seed {seed}");
        run(seed, 300);
    }
}

/// 64 threads append at mixed levels while others read. LSNs must be dense, each thread's records must be in
/// its order, and every acknowledgement must hold after a power loss.
#[test]
fn many_threads() {
    let sim = SimDisk::new(9);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let options = LogOptions { segment_bytes: 64 * 1024, sync_interval: Duration::from_millis(1), ..small_options() };
    let (log, _) = open(&disk, options.clone()).unwrap();
    let (threads, each) = (64, 40);
    let barrier = Arc::new(Barrier::new(threads + 1));
    let durable = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = (0..threads as u64)
        .map(|thread| {
            let (log, barrier, durable) = (log.clone(), Arc::clone(&barrier), Arc::clone(&durable));
            std::thread::spawn(move || {
                barrier.wait();
                let mut mine = Vec::new();
                for number in 0..each {
                    let bytes = payload(thread * 1000 + number, 16 + (number as usize % 50) * 20);
                    let level = Durability::ALL[(thread + number) as usize % 5];
                    let appended = append(&log, std::slice::from_ref(&bytes), level).unwrap();
                    if level.waits_for_sync() {
                        assert!(log.durable() >= appended.next);
                        durable.fetch_max(appended.next.get(), Ordering::Relaxed);
                    }
                    mine.push((appended.first, bytes));
                }
                assert!(mine.is_sorted_by_key(|(lsn, _)| *lsn));
                mine
            })
        })
        .collect();
    barrier.wait();
    while log.end().get() < threads as u64 * each {
        for (record, expected) in log.records_from(Lsn(0)).unwrap().zip(0..) {
            assert_eq!(record.unwrap().lsn, Lsn(expected));
        }
    }
    let written: BTreeMap<Lsn, Vec<u8>> = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
    assert_eq!(written.len() as u64, threads as u64 * each);
    log.wait_durable(log.durable()).unwrap();
    let stats = log.stats();
    assert_eq!((stats.appends, stats.records, stats.waiting_writers), (written.len() as u64, written.len() as u64, 0));
    let acknowledged = durable.load(Ordering::Relaxed);
    drop(log);
    for seed in 0..5 {
        let disk: Arc<dyn Disk> = Arc::new(sim.power_loss(seed));
        let (log, recovery) = open(&disk, options.clone()).unwrap();
        assert!(recovery.end.get() >= acknowledged);
        for record in read_all(&log) {
            assert_eq!(record.payload, written[&record.lsn], "{}", record.lsn);
        }
    }
}

/// The background thread syncs `interval` writes at their deadline and not earlier, without a caller's
/// request.
#[test]
fn interval_writes_become_durable_by_themselves() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(10));
    let options = LogOptions { sync_interval: Duration::from_millis(2), ..small_options() };
    let (log, _) = open(&disk, options).unwrap();
    for number in 0..5 {
        let appended = append(&log, &[payload(number, 10)], Durability::Interval).unwrap();
        log.wait_durable(appended.next).unwrap();
        assert!(log.durable() >= appended.next);
    }
    let syncs = log.stats().syncs;
    assert!((5..=5).contains(&syncs), "{syncs}");
    let appended = append(&log, &[payload(5, 10)], Durability::Os).unwrap();
    assert_eq!(log.durable(), appended.first);
    log.request_sync();
    log.wait_durable(appended.next).unwrap();
}

/// The leader of a sync waits for further callers during the commit delay, so a few syncs serve all.
#[test]
fn a_commit_delay_gathers_writers() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(11));
    let options = LogOptions { commit_delay: Duration::from_millis(20), ..small_options() };
    let (log, _) = open(&disk, options).unwrap();
    let barrier = Arc::new(Barrier::new(16));
    let writers: Vec<_> = (0..16)
        .map(|number| {
            let (log, barrier) = (log.clone(), Arc::clone(&barrier));
            std::thread::spawn(move || {
                barrier.wait();
                let appended = append(&log, &[payload(number, 50)], Durability::Disk).unwrap();
                assert!(log.durable() >= appended.next);
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let stats = log.stats();
    assert!(stats.syncs < 16 && stats.batches_per_sync_max > 1, "{stats:?}");
}
