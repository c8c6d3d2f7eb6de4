//! Cost of appends, compared with a raw probe of the same disk in the same run.
//!
//! `cargo bench -p thalweg-log` measures. Without `--bench` (as in `cargo test --benches`) it runs with small
//! parameters, as a test. Set `THALWEG_BENCH_DIR` to measure a file system other than the temporary one.
#![allow(clippy::print_stdout)]

use std::{
    io::IoSlice,
    sync::{Arc, Barrier},
    time::{Duration, Instant},
};

use thalweg_disk::{Disk, File, RealDisk};
use thalweg_log::{Draft, Log, LogOptions, Purpose, RecordKind};
use thalweg_types::{Durability, Index, Lsn, SpaceId, SpaceTime, SystemClock, Term};

/// Number of rounds. Probe and log take turns, so that changes of the disk's speed affect both.
const ROUNDS: usize = 5;

struct Scale {
    durable: usize,
    large: usize,
    grouped: usize,
    buffered: usize,
    replay_mib: usize,
}

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let scale = if full {
        Scale { durable: 3000, large: 150, grouped: 3000, buffered: 800_000, replay_mib: 1024 }
    } else {
        Scale { durable: 20, large: 2, grouped: 10, buffered: 1000, replay_mib: 4 }
    };
    let wanted = |name: &str| only.as_deref().is_none_or(|only| name.contains(only));
    let dir = std::env::var_os("THALWEG_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let dir = tempfile::tempdir_in(dir).expect("a directory to measure in");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir.path()).expect("the directory opens"));
    if wanted("durable") {
        one_writer(&disk, "100B", 100, scale.durable);
        one_writer(&disk, "1KiB", 1024, scale.durable);
    }
    if wanted("large") {
        one_writer(&disk, "1MiB", 1 << 20, scale.large);
    }
    if wanted("grouped") {
        for writers in [1, 8, 32, 64] {
            grouped(&disk, writers, scale.grouped);
        }
    }
    if wanted("buffered") {
        for level in [Durability::Os, Durability::Interval] {
            for _ in 0..3 {
                buffered(&disk, level, scale.buffered);
            }
        }
    }
    if wanted("sizes") {
        sizes(&disk, scale.durable * 20);
    }
    if wanted("fresh") {
        for _ in 0..3 {
            fresh(&disk);
        }
    }
    if wanted("replay") {
        replay(&disk, scale.replay_mib);
    }
}

fn open(disk: &Arc<dyn Disk>, name: &str) -> Log {
    let options = LogOptions { reserve_bytes: 0, ..LogOptions::default() };
    let clock = Arc::new(SystemClock::default());
    let log = Log::open(Arc::clone(disk), name, options, clock, 1).expect("the log opens").0;
    // Waits for the spares, whose preparation in the background is not part of the measurement.
    while log.stats().spare_segments < 2 {
        std::thread::sleep(Duration::from_millis(5));
    }
    log
}

fn remove(disk: &Arc<dyn Disk>, log: Log, name: &str) {
    drop(log);
    for file in disk.list(name).expect("the directory lists") {
        disk.remove(&format!("{name}/{file}")).expect("the file is removed");
    }
}

fn append(log: &Log, payload: &[u8], level: Durability) {
    let parts = [IoSlice::new(payload)];
    let draft = Draft {
        space: SpaceId(0),
        kind: RecordKind::Entry,
        term: Term(1),
        index: Index(1),
        time: SpaceTime(1),
        payload: &parts,
    };
    log.append(&[draft], level, Purpose::Data).expect("the append succeeds");
}

/// Sequential appends at `disk`, compared with pwrite + fdatasync of the same bytes into a zero-filled file.
fn one_writer(disk: &Arc<dyn Disk>, name: &str, bytes: usize, count: usize) {
    let log = open(disk, "durable");
    let probe = Probe::new(disk);
    let payload = vec![7; bytes];
    let (mut probed, mut logged, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let raw = timed((count / ROUNDS).max(1), || probe.write(&payload));
        let ours = timed((count / ROUNDS).max(1), || append(&log, &payload, Durability::Disk));
        ratios.push(median(&raw).as_secs_f64() / median(&ours).as_secs_f64());
        probed.extend(raw);
        logged.extend(ours);
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "1 writer, {name}, disk: {:.0}/s, raw probe {:.0}/s, ratio {:.2}, of medians {:.2} ({:.2}..{:.2}); p50 {:?} p99 {:?}, probe p50 {:?} p99 {:?}",
        rate(&logged),
        rate(&probed),
        rate(&logged) / rate(&probed),
        ratios[ratios.len() / 2],
        ratios[0],
        ratios[ratios.len() - 1],
        median(&logged),
        percentile(&logged, 0.99),
        median(&probed),
        percentile(&probed, 0.99),
    );
    remove(disk, log, "durable");
    drop(probe);
    disk.remove("probe").expect("the probe is removed");
}

struct Probe {
    file: Arc<dyn File>,
    at: std::cell::Cell<u64>,
}

impl Probe {
    const LEN: u64 = 64 << 20;

    fn new(disk: &Arc<dyn Disk>) -> Self {
        let file = disk.create("probe").expect("the probe is created");
        for at in (0..Self::LEN).step_by(64 * 1024) {
            file.write_all_at(&[0; 64 * 1024], at).expect("zeroes are written");
        }
        file.sync_all().expect("the probe is synced");
        Self { file, at: 0.into() }
    }

    fn write(&self, payload: &[u8]) {
        let at = self.at.get();
        self.file.write_all_at(payload, at).expect("the probe writes");
        self.file.sync_data().expect("the probe syncs");
        let next = at + payload.len() as u64;
        self.at.set(if next + payload.len() as u64 > Self::LEN { 0 } else { next });
    }
}

/// Blocking writers of 1 KiB records at `disk`.
fn grouped(disk: &Arc<dyn Disk>, writers: usize, each: usize) {
    let log = open(disk, "grouped");
    let each = if writers == 1 { each } else { each / 2 };
    let barrier = Arc::new(Barrier::new(writers + 1));
    let threads: Vec<_> = (0..writers)
        .map(|_| {
            let (log, barrier) = (log.clone(), Arc::clone(&barrier));
            std::thread::spawn(move || {
                let payload = vec![7; 1024];
                barrier.wait();
                timed(each, || append(&log, &payload, Durability::Disk))
            })
        })
        .collect();
    let (before, cpu) = (log.stats(), process_cpu());
    barrier.wait();
    let began = Instant::now();
    let mut times: Vec<Duration> =
        threads.into_iter().flat_map(|thread| thread.join().expect("the writer ends")).collect();
    let (took, cpu) = (began.elapsed(), process_cpu().saturating_sub(cpu));
    times.sort();
    let stats = log.stats();
    let syncs = stats.syncs - before.syncs;
    println!(
        "{writers} writers, 1KiB, disk: {:.0}/s; p50 {:?} p99 {:?} max {:?}; {syncs} syncs of {} us on average, {:.1} batches each; {:.1} us of CPU an append",
        (writers * each) as f64 / took.as_secs_f64(),
        percentile(&times, 0.5),
        percentile(&times, 0.99),
        times[times.len() - 1],
        (stats.sync_micros - before.sync_micros) / syncs.max(1),
        (writers * each) as f64 / syncs.max(1) as f64,
        cpu.as_secs_f64() * 1e6 / (writers * each) as f64,
    );
    remove(disk, log, "grouped");
}

/// One thread, 100 bytes a batch, without waiting for syncs.
fn buffered(disk: &Arc<dyn Disk>, level: Durability, count: usize) {
    let log = open(disk, "buffered");
    let payload = vec![7; 100];
    let (cpu, began) = (thread_cpu(), Instant::now());
    for _ in 0..count {
        append(&log, &payload, level);
    }
    let (took, cpu) = (began.elapsed(), thread_cpu() - cpu);
    println!(
        "1 writer, 100B, {level}: {:.0} ns an append, {:.0} ns of it on the CPU ({count})",
        took.as_nanos() as f64 / count as f64,
        cpu as f64 / count as f64
    );
    remove(disk, log, "buffered");
}

/// Batches of increasing size at `os`; shows at which size the mapping stops paying off.
fn sizes(disk: &Arc<dyn Disk>, count: usize) {
    for kib in [1, 4, 8, 16, 24, 31, 33, 48, 64, 128, 1024] {
        let log = open(disk, "sizes");
        let payload = vec![7; kib * 1024];
        let count = (count / kib).clamp(1, 60 * 1024 / kib);
        let began = Instant::now();
        for _ in 0..count {
            append(&log, &payload, Durability::Os);
        }
        let took = began.elapsed();
        println!(
            "1 writer, {kib}KiB, os: {:.0} ns an append, {:.0} ns/KiB",
            took.as_nanos() as f64 / count as f64,
            took.as_nanos() as f64 / (count * kib) as f64
        );
        remove(disk, log, "sizes");
    }
}

/// Opens a new log, which creates its first segment before the call returns.
fn fresh(disk: &Arc<dyn Disk>) {
    let began = Instant::now();
    let clock = Arc::new(SystemClock::default());
    let options = LogOptions { reserve_bytes: 0, ..LogOptions::default() };
    let (log, _) = Log::open(Arc::clone(disk), "fresh", options, clock, 1).expect("the log opens");
    println!("open of a new log: {:?}", began.elapsed());
    remove(disk, log, "fresh");
}

/// Reads a log of 1 KiB records from the start, and opens it again.
fn replay(disk: &Arc<dyn Disk>, mib: usize) {
    let log = open(disk, "replay");
    let payload = vec![7; 1024];
    let began = Instant::now();
    for _ in 0..mib * 1024 {
        append(&log, &payload, Durability::Os);
    }
    log.sync().expect("the log syncs");
    println!("1 writer, 1KiB, os: {mib} MiB written and synced in {:?}", began.elapsed());
    let began = Instant::now();
    let mut read = 0;
    for record in log.records_from(Lsn(0)).expect("the log reads") {
        read += record.expect("the record is good").payload.len();
    }
    assert_eq!(read, mib << 20);
    println!("replay of {mib} MiB of 1 KiB records: {:?}", began.elapsed());
    log.close().expect("the log closes");
    drop(log);
    let began = Instant::now();
    let log = open(disk, "replay");
    println!("open after a clean close, with its spares: {:?}", began.elapsed());
    drop(log);
    let options = LogOptions { reserve_bytes: 0, ..LogOptions::default() };
    let began = Instant::now();
    let clock = Arc::new(SystemClock::default());
    let (log, recovery) = Log::open(Arc::clone(disk), "replay", options, clock, 1).expect("the log opens");
    println!("open after a crash: {:?}; {} segments, clean: {}", began.elapsed(), recovery.segments, recovery.clean);
    remove(disk, log, "replay");
}

/// CPU time of this thread in nanoseconds; 0 where the system does not report it.
fn thread_cpu() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
}

/// CPU time of all threads of this process, in steps of 10 ms; 0 where the system does not report it.
fn process_cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = text.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

fn timed(count: usize, mut work: impl FnMut()) -> Vec<Duration> {
    (0..count)
        .map(|_| {
            let began = Instant::now();
            work();
            began.elapsed()
        })
        .collect()
}

fn rate(times: &[Duration]) -> f64 {
    times.len() as f64 / times.iter().sum::<Duration>().as_secs_f64()
}

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort();
    percentile(&times, 0.5)
}

/// Quantile `share` of times in any order.
fn percentile(times: &[Duration], share: f64) -> Duration {
    let mut times = times.to_vec();
    times.sort();
    times[((times.len() as f64 * share) as usize).min(times.len() - 1)]
}
