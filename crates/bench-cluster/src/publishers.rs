//! Stream appends: publishers append batches of records to one stream over the native protocol, as fast as the cluster
//! acknowledges them.
//!
//! Owns: the publishers, the goals, and the table of this part of the report. Does not own: appends as a load beside
//! other measurements (`appends`), or the nodes' counters (`counted`).
//!
//! Each publisher is a client of its own, which follows the leader. A batch is acknowledged once a majority of the
//! nodes has it on disk. Runs in which a publisher has one batch in flight alternate with runs in which it has several.
//! After each run, the benchmark checks that the stream contains all acknowledged records. The goal for the rate
//! depends on the disk's speed right before the run, because each of three nodes writes each record about twice.

use std::{
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use thalweg_client::{
    Client, Error, Stream,
    types::{
        command::{ExpectedOffset, StreamConfig},
        record::RecordBatch,
    },
};
use tokio::task::JoinSet;

use crate::{
    BenchError,
    appends::{connect, encoded_batch, failed},
    counted::Counted,
    data::Values,
    latency::Latencies,
    load::{Validity, block_on_thread, turns, unusable_clocks},
    nodes::{Nodes, Setup},
    options::ClusterOptions,
    probes::sequential_rate,
    report::{Check, Table, Verdict, cells},
    scenario::{Figures, Scenario},
    server::{NativePort, Stages},
    stats::{Summary, median, median_of},
    usage::{Clocks, Meter, ThreadCpuMeter, process_cpu},
    work::name_lower_bound,
};

const PUBLISHERS: usize = 16;
const RECORDS_PER_BATCH: u64 = 100;
const RECORD_BYTES: usize = 1024;
/// Numbers of batches in flight for each publisher; the benchmark measures each number. The goal applies to the last
/// number.
const IN_FLIGHT: [usize; 2] = [1, 4];
/// Number of different batches of records, which the publishers append in rotation.
const BATCHES: u64 = 64;
/// Retention of the stream in bytes, so that a long run does not fill the disk.
const KEPT_BYTES: u64 = 256 << 20;
const STREAM: &str = "published";

/// Goal for the acknowledged records per second. It is also met if the rate reaches [`GOAL_SHARE`] of what the disk
/// permits.
const GOAL: f64 = 150_000.0;
/// Goal for the rate, as a part of the rate that the disk permits. It is also met if the rate reaches [`GOAL`].
const GOAL_SHARE: f64 = 0.6;
/// Bytes that the three nodes together write to the disk for each byte of an appended record.
const WRITTEN_PER_BYTE: f64 = 6.1;

/// Results of one run of the publishers.
#[derive(Clone, Debug)]
struct Turn {
    /// Acknowledged records per second, of all publishers together.
    rate: f64,
    /// Time from the append of a batch until its acknowledgement.
    times: Latencies,
    /// CPU time of all nodes for each record, in microseconds; NaN if it is not known.
    node_cpu_us: f64,
    /// CPU time of the publishers for each record, in microseconds. All publishers share one thread.
    client_cpu_us: f64,
    /// Share of the run, from 0 to 1, during which the publishers' thread was running.
    busy: f64,
    /// Readings of the machine's clocks during the run: the drift of the wall clock, and the processor time that a
    /// virtual machine's host took away. They show if the measured times can be trusted.
    clocks: Clocks,
    /// Speed of the disk right before the run: bytes per second of large writes, each with an fsync.
    disk: f64,
    /// Number of acknowledged records that are missing in the stream.
    missing: u64,
    /// Bytes that the nodes have sent to each other for each record; NaN if they are not known.
    link_bytes: f64,
    /// Increase of the nodes' own counters, including the warm-up.
    counted: Counted,
}

impl Turn {
    /// Returns the records per second that the speed of the disk permits.
    fn allowed(&self) -> f64 {
        self.disk / (WRITTEN_PER_BYTE * RECORD_BYTES as f64)
    }
}

/// Counts of the records that the publishers have appended, and the times of their batches.
#[derive(Debug, Default)]
struct Published {
    /// Records that were acknowledged in the measured time, which follows the warm-up.
    counted: u64,
    /// All acknowledged records, including those of the warm-up.
    all: u64,
    times: Latencies,
}

/// Measures the appends. Runs with each number of batches in flight ([`IN_FLIGHT`]) alternate.
pub(crate) fn run(scenario: &mut Scenario<'_>) -> Result<Figures, BenchError> {
    let options = scenario.options;
    let setup = Setup { native: NativePort::Free, ..scenario.setup("appends") };
    let nodes = Nodes::start(setup, scenario.progress)?;
    let mut rounds: [Vec<Turn>; IN_FLIGHT.len()] = Default::default();
    for round in 0..options.rounds {
        for turn in turns(u64::from(round), IN_FLIGHT.len()) {
            scenario.probe()?;
            let disk = sequential_rate(scenario.dir, options.duration / 10)?;
            let figures = once(&nodes, IN_FLIGHT[turn], disk, options)?;
            let line = format!("round {}, {} in flight: {:.0} records/s", round + 1, IN_FLIGHT[turn], figures.rate);
            scenario.step(&line);
            rounds[turn].push(figures);
        }
    }
    let stages = IN_FLIGHT.iter().zip(&rounds).filter_map(|(in_flight, turns)| stages(*in_flight, turns));
    let stages = stages.map(|stages| stages.table("stages of an append of a batch"));
    let mut figures = figures(options.count, &rounds);
    figures.tables.extend(stages);
    Ok(figures)
}

/// Returns a table of the average times that appends spent in each stage in the servers, over all rounds; `None` if the
/// nodes counted no replicated write.
fn stages(in_flight: usize, turns: &[Turn]) -> Option<Stages> {
    let counted = Counted::sum(turns.iter().map(|turn| &turn.counted));
    let mean_us = median_of(turns, |turn| turn.times.quantiles().mean_us);
    counted.stages(&format!("{PUBLISHERS} publishers, {in_flight} in flight, quorum"), mean_us)
}

fn figures(nodes: usize, rounds: &[Vec<Turn>]) -> Figures {
    let title = format!(
        "stream appends: {RECORDS_PER_BATCH} records of {RECORD_BYTES} B a batch, {PUBLISHERS} publishers, native \
         protocol, durability quorum, {nodes} nodes; medians of the rounds, closed loop"
    );
    let (mut table, mut checks) = (Table::new(title), Vec::new());
    for (in_flight, turns) in IN_FLIGHT.iter().zip(rounds) {
        let summary = Summary::of(&turns.iter().map(|turn| turn.rate).collect::<Vec<_>>());
        let share = median(&turns.iter().map(|turn| turn.rate / turn.allowed()).collect::<Vec<_>>());
        let millis = |at| median_of(turns, |turn| turn.times.percentile(at).as_secs_f64() * 1e3);
        table.row(cells! {
            "batches in flight of each" => *in_flight, "records/s" => summary.median, "± MAD" => summary.mad,
            "batches/s" => summary.median / RECORDS_PER_BATCH as f64,
            "MB/s" => summary.median * RECORD_BYTES as f64 / 1e6, "ack p50 ms" => millis(50.0),
            "ack p95 ms" => millis(95.0), "ack p99 ms" => millis(99.0),
            "link MB/s" => median_of(turns, |turn| turn.link_bytes * turn.rate / 1e6),
            "link B/record" => median_of(turns, |turn| turn.link_bytes),
            "disk MB/s" => median_of(turns, |turn| turn.disk / 1e6),
            "of disk ÷ 6.1" => share, "nodes' CPU µs each" => median_of(turns, |turn| turn.node_cpu_us),
            "clients' CPU µs each" => median_of(turns, |turn| turn.client_cpu_us),
        });
        let name = format!("stream appends, quorum, {PUBLISHERS} publishers, {in_flight} in flight");
        let missing: u64 = turns.iter().map(|turn| turn.missing).sum();
        checks.push(Check {
            what: name.clone(),
            required: "the stream has all acknowledged records".to_owned(),
            measured: if missing == 0 { "yes".to_owned() } else { format!("{missing} are missing") },
            verdict: if missing == 0 { Verdict::Met } else { Verdict::Missed },
            is_goal: false,
        });
        checks.push(validity(&name, turns));
        if Some(in_flight) == IN_FLIGHT.last() {
            checks.push(goal(&name, summary.median, share));
        }
    }
    Figures { tables: vec![table], checks, notes: Vec::new() }
}

/// Creates the check that the machine's clocks and processors were reliable in all runs, so that the measured times can
/// be trusted. If the publishers had no spare time, the check says that the rate is only a lower bound.
fn validity(name: &str, turns: &[Turn]) -> Check {
    let unusable: Vec<_> = turns.iter().filter_map(|turn| unusable_clocks(&turn.clocks)).collect();
    let check = Validity::worst(&unusable).check(format!("{name}: clocks and processors"), "usable in all runs");
    name_lower_bound(check, turns.iter().map(|turn| turn.busy))
}

/// Creates the check of the append rate. It passes if `rate` (records per second) reaches [`GOAL`], or if `share`
/// reaches [`GOAL_SHARE`]. `share` is the rate divided by the rate that the disk permits: on a slow disk no program
/// reaches [`GOAL`].
fn goal(name: &str, rate: f64, share: f64) -> Check {
    if rate >= GOAL {
        Check::at_least(format!("{name}: rate"), rate, GOAL, " records/s")
    } else {
        Check::at_least(format!("{name}: of the disk's rate ÷ {WRITTEN_PER_BYTE}"), share, GOAL_SHARE, " ×")
    }
}

fn once(nodes: &Nodes, in_flight: usize, disk: f64, options: &ClusterOptions) -> Result<Turn, BenchError> {
    let ((published, cpu, own_cpu, busy, clocks), counted) = Counted::around(nodes, || {
        let (before, own_before) = (nodes.cpu(), process_cpu());
        let (meter, effort) = (Meter::begin(None), ThreadCpuMeter::begin());
        let published = block_on_thread(publish(&nodes.native_addresses(), in_flight, options));
        let ((_, busy), clocks) = (effort.end(), meter.clocks());
        let cpu = nodes.cpu().zip(before).map(|(now, then)| now.saturating_sub(then));
        (published, cpu, process_cpu().saturating_sub(own_before), busy, clocks)
    });
    let (published, missing) = published?;
    // The CPU times and the counters include the warm-up, so the records of the warm-up count here.
    let link_bytes = counted.sent_bytes() / published.all as f64;
    let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / published.all as f64;
    let (node_cpu_us, client_cpu_us) = (cpu.map_or(f64::NAN, each), each(own_cpu));
    let rate = published.counted as f64 / options.duration.as_secs_f64();
    let times = published.times;
    Ok(Turn { rate, times, node_cpu_us, client_cpu_us, busy, clocks, disk, missing, link_bytes, counted })
}

/// Makes all publishers append for the time of the options. Returns the records that they have appended, and the number
/// of acknowledged records that are missing in the stream.
async fn publish(
    nodes: &[SocketAddr],
    in_flight: usize,
    options: &ClusterOptions,
) -> Result<(Published, u64), BenchError> {
    let values = Values::new(RECORD_BYTES, options.seed);
    let batches = (0..BATCHES).map(|number| encoded_batch(&values, number, RECORDS_PER_BATCH).map(Rc::new));
    let batches: Rc<[_]> = batches.collect::<Result<_, _>>()?;
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..PUBLISHERS {
        clients.push(connect(nodes).await?);
    }
    let stream = clients[0].stream(STREAM);
    let config = StreamConfig { max_bytes: Some(KEPT_BYTES), ..StreamConfig::default() };
    stream.create_if_missing(&config).await.map_err(failed("creating a stream"))?;
    let first = stream.describe().await.map_err(failed("describing a stream"))?.next;
    let begin = Instant::now() + options.warmup;
    let counted = (begin, begin + options.duration);
    let (mut sum, mut running) = (Published::default(), JoinSet::new());
    for (number, client) in clients.iter().enumerate() {
        for lane in 0..in_flight {
            let (stream, batches) = (client.stream(STREAM), Rc::clone(&batches));
            running.spawn_local(append_until(stream, batches, number * in_flight + lane, counted));
        }
    }
    while let Some(done) = running.join_next().await {
        let Published { counted, all, times } = done.map_err(failed("appending"))?.map_err(failed("appending"))?;
        sum.counted += counted;
        sum.all += all;
        sum.times.merge(&times);
    }
    let end = stream.describe().await.map_err(failed("describing a stream"))?.next;
    for client in clients {
        client.close().await;
    }
    let missing = (first.0 + sum.all).saturating_sub(end.0);
    Ok((sum, missing))
}

/// Appends one batch after the other until the counted time is over.
async fn append_until(
    stream: Stream,
    batches: Rc<[Rc<RecordBatch>]>,
    first: usize,
    (begin, end): (Instant, Instant),
) -> Result<Published, Error> {
    let mut published = Published::default();
    for number in first.. {
        let sent = Instant::now();
        if sent >= end {
            break;
        }
        stream.append_batch(&batches[number % batches.len()], ExpectedOffset::Any).await?;
        let acknowledged = Instant::now();
        published.all += RECORDS_PER_BATCH;
        if (begin..end).contains(&acknowledged) {
            published.counted += RECORDS_PER_BATCH;
            published.times.record(acknowledged - sent);
        }
    }
    Ok(published)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(rate: f64, disk: f64, missing: u64) -> Turn {
        let (times, counted, clocks) = (Latencies::default(), Counted::default(), Clocks::default());
        let (node_cpu_us, client_cpu_us, busy, link_bytes) = (1.0, 1.0, 0.5, 2500.0);
        Turn { rate, times, node_cpu_us, client_cpu_us, busy, clocks, disk, missing, link_bytes, counted }
    }

    #[test]
    fn unusable_clocks_void_the_appends_and_a_busy_thread_bounds_their_rate() {
        let judged = |stolen, busy| {
            let clocks = Clocks { seconds: 10.0, drift_seconds: 0.0, stolen: Some(stolen) };
            validity("appends", &[turn(1.0, 1e9, 0), Turn { clocks, busy, ..turn(1.0, 1e9, 0) }])
        };
        assert_eq!((judged(0.1, 0.5).verdict, judged(0.1, 0.5).measured), (Verdict::Met, "yes".to_owned()));
        assert_eq!(judged(0.5, 0.99).verdict, Verdict::Void);
        let bound = judged(0.1, 0.99);
        assert!(bound.verdict == Verdict::Met && bound.measured.contains("lower bound"), "{bound:?}");
    }

    #[test]
    fn a_slow_disk_is_an_excuse_and_a_lost_record_is_none() {
        // A disk of 1 GB/s permits 160,000 records a second.
        let verdicts = |rate, missing| {
            let turns = vec![turn(rate, 1e9, missing)];
            let Figures { checks, .. } = figures(3, &[turns.clone(), turns]);
            let goals: Vec<_> = checks.iter().filter(|check| check.is_goal).collect();
            assert_eq!((goals.len(), checks.len()), (1, 5));
            (goals[0].verdict, checks[0].verdict)
        };
        assert_eq!(verdicts(150_000.0, 0), (Verdict::Met, Verdict::Met));
        assert_eq!(verdicts(100_000.0, 0), (Verdict::Met, Verdict::Met), "0.62 of the disk");
        assert_eq!(verdicts(90_000.0, 1), (Verdict::Missed, Verdict::Missed));
    }
}
