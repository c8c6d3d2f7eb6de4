//! Catch-up: a follower is down while the cluster writes a number of bytes, and gets them when it is back.
//!
//! Clients put small values at a fixed rate before and during the catch-up, so the report shows how much the catch-up
//! slows them down. All nodes share one disk here, so the load on the disk alone also slows down the puts. A probe of
//! the disk without any node measures the effect of the disk. The probe makes small writes as often as the clients,
//! each with an fsync: first alone, and then beside a thread that writes large blocks. The thread writes at the goal
//! for the rate of a catch-up, or as fast as the disk permits if that is slower.
//!
//! The time of the catch-up counts from the moment at which the restarted process answers. It excludes the replay of
//! the process's own log. The report also has the time from the start of the process.

use std::time::{Duration, Instant};

use crate::{
    BenchError,
    appends::Appends,
    latency::Latencies,
    load::{self, Validity},
    nodes::{Nodes, PATIENCE, Setup},
    probes::{SmallWrites, sequential_rate, small_writes},
    report::{Check, Table, cells},
    scenario::{Figures, Scenario},
    server::NativePort,
    work,
};

/// Interval at which the benchmark asks the restarted node for its progress.
const LOOK: Duration = Duration::from_millis(5);
/// Goal for the rate at which a follower gets the entries that it lacks, in bytes per second.
const GOAL: f64 = 200e6;
/// Goal for the p99 of puts during a catch-up: at most this many times the p99 before it. If the disk alone slows down
/// small writes by a larger factor, that factor is the goal.
const GOAL_OF_P99: f64 = 2.0;

/// Times and latencies measured while one follower catches up.
struct CatchUpFigures {
    missed_bytes: u64,
    /// Time from the start of the follower's process until it first answered.
    start: Duration,
    /// Time from the follower's first answer until it had applied all entries that were committed before its process
    /// started.
    caught_up: Duration,
    before: Latencies,
    meanwhile: Latencies,
    /// Speed of the disk before the measurement: bytes per second of large writes, each with an fsync.
    disk: f64,
    /// Times of small writes to the disk with an fsync each, alone and beside large writes. Measured before the
    /// catch-up, without any node.
    small_writes: SmallWrites,
    validity: Validity,
}

/// Measures the catch-up of a follower as many times as the option `rounds` states.
pub(crate) fn run(scenario: &mut Scenario<'_>) -> Result<Figures, BenchError> {
    let mut figures = Figures::default();
    let mut table = Table::new("catch-up of a follower that missed entries, 3 nodes, durability quorum");
    let setup = Setup { count: 3, native: NativePort::Free, ..scenario.setup("catch-up") };
    let mut nodes = Nodes::start(setup, scenario.progress)?;
    for round in 1..=scenario.options.rounds {
        scenario.probe()?;
        let course = once(&mut nodes, scenario)?;
        let rate = course.missed_bytes as f64 / course.caught_up.as_secs_f64();
        let micros = |times: &Latencies, at| times.percentile(at).as_secs_f64() * 1e6;
        let (before, meanwhile) = (micros(&course.before, 99.0), micros(&course.meanwhile, 99.0));
        scenario.step(&format!("catch-up {round}: {:.0} MB/s, p99 {before:.0} then {meanwhile:.0} µs", rate / 1e6));
        table.row(cells! {
            "missed MB" => course.missed_bytes as f64 / 1e6, "start s" => course.start.as_secs_f64(),
            "catch-up s" => course.caught_up.as_secs_f64(), "MB/s" => rate / 1e6, "disk MB/s" => course.disk / 1e6,
            "puts/s" => work::PACED_RATE, "p50 µs before" => micros(&course.before, 50.0),
            "p95 µs before" => micros(&course.before, 95.0), "p99 µs before" => before,
            "p50 µs meanwhile" => micros(&course.meanwhile, 50.0),
            "p95 µs meanwhile" => micros(&course.meanwhile, 95.0),
            "p99 µs meanwhile" => meanwhile,
            "p99 µs of an fsync alone" => micros(&course.small_writes.alone, 99.0),
            "p99 µs of an fsync beside large writes" => micros(&course.small_writes.beside, 99.0),
        });
        let wanted = GOAL.min(course.disk) / 1e6;
        figures.checks.push(Check::at_least(format!("catch-up {round}: rate"), rate / 1e6, wanted, " MB/s"));
        let allowed = GOAL_OF_P99.max(course.small_writes.ratio_of_p99());
        figures.checks.push(Check::below(format!("catch-up {round}: p99 of puts"), meanwhile / before, allowed, " ×"));
        figures.checks.push(course.validity.check(format!("catch-up {round}: puts"), "all answered, rightly"));
    }
    figures.tables.push(table);
    Ok(figures)
}

fn once(nodes: &mut Nodes, scenario: &mut Scenario<'_>) -> Result<CatchUpFigures, BenchError> {
    let options = scenario.options;
    let disk = sequential_rate(scenario.dir, options.duration / 10)?;
    let (size, large_rate) = (options.value_size, GOAL.min(disk));
    let small_writes = small_writes(scenario.dir, (size, work::PACED_RATE), large_rate, options.duration)?;
    let leader = nodes.leader()?;
    let address = nodes.addresses()[leader];
    let before = load::run(&work::paced_puts(address, options))?;
    let victim = (leader + 1) % nodes.addresses().len();
    nodes.stop(victim);
    let missed = Appends::of_bytes(options.missed_bytes, options.seed);
    scenario.step(&format!("node {} is down, writing {} bytes", victim + 1, options.missed_bytes));
    let living: Vec<_> = nodes.native_addresses();
    missed.run(&living)?;
    let wanted = index(nodes, leader, "commit_index").ok_or_else(|| BenchError::target("the leader")("no status"))?;
    let begun = Instant::now();
    nodes.restart_only(victim)?;
    let catching_up = || until_caught_up(nodes, victim, wanted, begun);
    let ((start, caught_up), meanwhile, validity) = work::put_beside(address, options, catching_up)?;
    let validity = Validity::worst([&before.validity, &validity]);
    let missed_bytes = options.missed_bytes;
    Ok(CatchUpFigures { missed_bytes, start, caught_up, before: before.times, meanwhile, disk, small_writes, validity })
}

fn index(nodes: &Nodes, number: usize, field: &str) -> Option<u64> {
    nodes.status(number)?[field].as_u64()
}

/// Waits until the restarted node `victim` answers and has applied the log entry with the index `wanted`. Returns the
/// time from `begun` to the first answer, and the time from the first answer until the entry was applied.
fn until_caught_up(
    nodes: &Nodes,
    victim: usize,
    wanted: u64,
    begun: Instant,
) -> Result<(Duration, Duration), BenchError> {
    let mut answered = None;
    loop {
        if let Some(applied) = index(nodes, victim, "applied_index") {
            let answered = *answered.get_or_insert_with(Instant::now);
            if applied >= wanted {
                return Ok((answered - begun, answered.elapsed()));
            }
        }
        if begun.elapsed() > 10 * PATIENCE {
            return Err(BenchError::target("the started node")("it does not catch up"));
        }
        std::thread::sleep(LOOK);
    }
}
