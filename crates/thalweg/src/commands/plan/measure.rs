//! Measures a profile for capacity plans: how many writes this machine can acknowledge, and how fast. Clients append
//! records to a node on this machine: a node alone, or the leader of a cluster on this machine. Each client waits for
//! the acknowledgement of a record before it sends the next.
//!
//! Owns: the runs, the clients, and the checks that make a run invalid. Does not own: the server processes (`server`),
//! or the conclusions from the profile (`thalweg_planner`).
//!
//! Rules: the first part of each run does not count. The runs are repeated in rounds. Each round has one run for each
//! combination of a payload size and a number of clients, so that a slow minute of the machine does not affect only one
//! combination. A run is invalid if its clients and its server count different numbers of writes. At the end each
//! stream must have exactly the acknowledged records, and the same node must still lead.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use thalweg_disk::RealDisk;
use thalweg_doctor::{Limits, Storage, System, Walls};
use thalweg_planner::{Disk, FORMAT, Machine, Profile, Run};
use thalweg_types::command::AppendConditions;

use super::server::Server;
use crate::{
    commands::interrupt::Interrupt,
    failure::{Exit, Failure},
    session::{Record, Session},
};

/// Payload sizes of the appended records, in bytes. Each run uses one of them.
const SIZES: [usize; 3] = [100, 1000, 10_000];
/// Numbers of clients that append at the same time. Each run uses one of these numbers.
const WRITERS: [usize; 3] = [1, 16, 64];
/// Number of rounds. In each round, every combination of payload size and number of clients is measured in one run.
const ROUNDS: usize = 2;
/// Time for which the raw disk is measured before the runs.
const DISK_TIME: Duration = Duration::from_secs(1);

/// Minimum average number of writes for each client. A run with fewer writes continues after its time, because
/// percentiles of so few writes mean nothing.
const LEAST_WRITES: u64 = 10;
/// Maximum duration of a run, as a multiple of the requested duration. If the disk pauses for so long, the profile is
/// invalid.
const LONGEST: u32 = 10;

/// Phase of a run in which the clients append and nothing is counted. `COUNTING` follows, in which writes are counted,
/// and then `ENDED`.
const WARMING: u8 = 0;
const COUNTING: u8 = 1;
const ENDED: u8 = 2;

/// Measures a profile in a new directory below the existing directory `data`. Calls `report` with a description of each
/// step.
pub(super) fn measure(
    data: &Path,
    replicas: u32,
    run_time: Duration,
    interrupt: &Interrupt,
    report: &dyn Fn(&str),
) -> Result<Profile, Failure> {
    report("measuring the disk");
    let system = System::of_this_machine();
    let storage = Storage::read(&system, data).map_err(|error| Failure::file(data, &error))?;
    let disk = raw_disk(data, interrupt)?;
    let limits = Limits::read(&system, None);
    let server = Server::start(data, replicas)?;
    let (mut runs, mut acknowledged) = (Vec::new(), BTreeMap::new());
    for round in 1..=ROUNDS {
        for size in SIZES {
            for writers in WRITERS {
                report(&format!("round {round} of {ROUNDS}: {writers} clients, {size} bytes"));
                let (run, written) = one_run(&server, size, writers, run_time, interrupt)?;
                *acknowledged.entry(size).or_insert(0) += written;
                runs.push(run);
            }
        }
    }
    verify(&server, &acknowledged)?;
    let kind = storage.mount.map_or_else(|| "unknown".to_owned(), |mount| mount.kind);
    let device = storage.device.map_or_else(|| "unknown".to_owned(), |device| device.name);
    Ok(Profile {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        build: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
        machine: Machine {
            processors: limits.processors as u64,
            memory_bytes: limits.memory_bytes,
            storage: format!("{kind} on {device}"),
            kernel: system.text("proc/sys/kernel/osrelease"),
        },
        disk,
        workload: match replicas {
            1 => "appends of one record each to a stream over HTTP/1.1, in a closed loop".to_owned(),
            nodes => format!(
                "appends of one record each to a stream over HTTP/1.1, in a closed loop, to the leader of {nodes} nodes on one \
                 machine"
            ),
        },
        durability: if replicas == 1 { "disk" } else { "quorum" }.to_owned(),
        replicas,
        runs,
    })
}

fn raw_disk(data: &Path, interrupt: &Interrupt) -> Result<Disk, Failure> {
    let failed = |error: std::io::Error| Failure::file(data, &error);
    let disk: Arc<dyn thalweg_disk::Disk> = Arc::new(RealDisk::open(data).map_err(failed)?);
    let times = thalweg_doctor::measure(&disk, DISK_TIME, &mut Walls::default(), &mut || !interrupt.arrived());
    let times = times.map_err(failed)?.ok_or_else(Interrupt::failure)?;
    Ok(Disk {
        sync_p50_micros: times.small.p50_micros,
        sync_p99_micros: times.small.p99_micros,
        bytes_per_second: times.large_bytes_per_second,
    })
}

fn stream_of(size: usize) -> String {
    format!("plan-{size}")
}

/// Lets clients append to the measured server for one run. Returns the results of the run, and the number of all
/// acknowledged records, including those of the warm-up.
fn one_run(
    server: &Server,
    size: usize,
    writers: usize,
    run_time: Duration,
    interrupt: &Interrupt,
) -> Result<(Run, u64), Failure> {
    let session = server.session()?;
    let (phase, counted) = (AtomicU8::new(WARMING), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..writers).map(|_| scope.spawn(|| client(server, size, &phase, &counted))).collect();
        let measured = (|| -> Result<_, Failure> {
            rest(run_time / 4, interrupt)?;
            let before = server.counters(&session)?;
            let began = Instant::now();
            phase.store(COUNTING, Ordering::SeqCst);
            rest(run_time, interrupt)?;
            let least = LEAST_WRITES * writers as u64;
            while counted.load(Ordering::SeqCst) < least {
                if began.elapsed() > run_time * LONGEST {
                    let message =
                        format!("void: {writers} clients made fewer than {least} writes in {LONGEST} × --run-time");
                    return Err(Failure::new(Exit::Failed, "void", message)
                        .then("raise --run-time, or measure while the disk is idle"));
                }
                rest(run_time / 10, interrupt)?;
            }
            // The server's counters are read while all clients write, at the beginning and at the end. So writes in
            // progress distort both readings equally.
            let (after, seconds) = (server.counters(&session)?, began.elapsed().as_secs_f64());
            Ok((before, after, seconds))
        })();
        phase.store(ENDED, Ordering::SeqCst);
        let (mut times, mut acknowledged) = (Vec::new(), 0);
        for client in clients {
            let done = client
                .join()
                .map_err(|_| Failure::new(Exit::Failed, "client", "a client of the measurement failed"))?;
            let (own, count) = done?;
            times.extend(own);
            acknowledged += count;
        }
        let (before, after, seconds) = measured?;
        let writes = (after.commands - before.commands) as u64;
        // At the beginning and at the end, each client can have one write that only one of the two sides counts.
        if writes.abs_diff(times.len() as u64) > 2 * writers as u64 + writes / 20 {
            let message = format!("void: the clients counted {} writes, and the server {writes}", times.len());
            return Err(Failure::new(Exit::Failed, "void", message).then("measure on a machine without other load"));
        }
        times.sort_unstable();
        let percentile = |part: f64| {
            let rank = (times.len() as f64 * part).ceil() as usize;
            times.get(rank.max(1) - 1).map_or(0.0, |time: &Duration| time.as_secs_f64() * 1e6)
        };
        let run = Run {
            payload_bytes: size as u64,
            writers: writers as u64,
            seconds,
            writes,
            cpu_seconds: after.cpu_seconds - before.cpu_seconds,
            log_bytes: (after.log_bytes - before.log_bytes) as u64,
            syncs: (after.syncs - before.syncs) as u64,
            // The state can become smaller because of a flush between the two readings.
            state_bytes: (after.state_bytes - before.state_bytes).max(0.0) as u64,
            peak_memory_bytes: after.peak_memory_bytes,
            p50_micros: percentile(0.5),
            p90_micros: percentile(0.9),
            p99_micros: percentile(0.99),
            p999_micros: percentile(0.999),
        };
        Ok((run, acknowledged))
    })
}

/// Pauses the measurement for `time`. Returns an error if a signal arrives.
fn rest(time: Duration, interrupt: &Interrupt) -> Result<(), Failure> {
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        if interrupt.arrived() {
            return Err(Interrupt::failure());
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
    Ok(())
}

/// Runs one client of a run, which appends records one after the other. Returns the times of the appends that began in
/// the counted part of the run, and the number of all appends.
fn client(
    server: &Server,
    size: usize,
    phase: &AtomicU8,
    counted: &AtomicU64,
) -> Result<(Vec<Duration>, u64), Failure> {
    let session: Session = server.session()?;
    let records = [Record { payload: vec![b'x'; size], ..Record::default() }];
    let (stream, terms) = (stream_of(size), AppendConditions::default());
    let (mut times, mut acknowledged) = (Vec::new(), 0);
    loop {
        let now = phase.load(Ordering::SeqCst);
        if now == ENDED {
            return Ok((times, acknowledged));
        }
        let from = Instant::now();
        session.append(&stream, &records, &terms)?;
        acknowledged += 1;
        if now == COUNTING {
            times.push(from.elapsed());
            counted.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Checks that each stream has exactly the acknowledged records.
fn verify(server: &Server, acknowledged: &BTreeMap<usize, u64>) -> Result<(), Failure> {
    let session = server.session()?;
    if !server.leads(&session)? {
        let message = "void: another node took over the leadership during the measurement";
        return Err(Failure::new(Exit::Failed, "void", message).then("measure on a machine without other load"));
    }
    for (size, count) in acknowledged {
        let row = session.stream(&stream_of(*size))?;
        if row.next != *count {
            let message = format!("{} records were acknowledged, and the stream has {}", count, row.next);
            return Err(Failure::new(Exit::Failed, "lost_records", message).then("report this as a bug"));
        }
    }
    Ok(())
}
