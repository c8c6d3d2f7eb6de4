//! Random gets of more data than memory, over each protocol, compared with random reads of the bare disk.
//!
//! Owns: the goals, the order of probes and runs, and the tables of this measurement. Does not own: loading the data
//! (`filled`), the runs of the load generator (`over`), or the reads of the bare disk (`read_probe`).
//!
//! Right before each run, the probe measures the disk with one read in flight and with 32. During the run, one more
//! client reads keys that stay in memory, at a fixed rate. Gets that wait for the disk must not delay this client.

use std::time::Duration;

use crate::{
    BenchError, filled,
    load::{Validity, live, turns},
    options::{Order, PressureOptions, WireProtocol},
    over::{self, Job},
    probe::steadiness,
    read_probe::{ReadProbe, ReadRate},
    report::{Check, Table, cells, number},
    scenario::{Figures, Scenario},
    server::{MemoryLimit, PerRequest, RESIDENT, Server, VALUES},
    stats::{Summary, median_of, ratio},
    work::{Action, Keys},
};

/// Number of reads that the disk probe keeps in flight. The gets of many clients are compared with the rate of this
/// probe.
const DEPTH: u64 = 32;
/// Goal: upper bound in milliseconds of the 99th percentile of the gets' response time, with the largest number of
/// clients.
const MAX_P99_MS: f64 = 10.0;
/// Goal: upper bound in milliseconds of the 99th percentile of the response time, for the client whose keys stay in
/// memory.
const MAX_RESIDENT_P99_MS: f64 = 2.0;
/// Number of keys that stay in the server's memory, for the client that reads only these.
const RESIDENT_KEYS: u64 = 100;
/// Length in bytes of the values of keys that stay in memory.
const RESIDENT_BYTES: usize = 100;
/// Number of connections of the client that reads the keys in memory. With several, it keeps to its schedule although
/// some replies are late.
const RESIDENT_CONNECTIONS: usize = 8;

/// Returns the goal of a protocol: the smallest rate of gets, as a share of the disk's rate of random reads.
fn min_share(protocol: WireProtocol) -> f64 {
    match protocol {
        WireProtocol::Resp | WireProtocol::Native => 0.7,
        WireProtocol::Http => 0.4,
    }
}

/// Figures of one run of gets: of the gets, of another client whose keys stay in memory, of the disk probes before the
/// run, and of the server's counts.
#[derive(Clone, Debug)]
struct GetRun {
    gets: over::Figures,
    resident: over::Figures,
    /// Speed of the disk's random reads with one read in flight, measured right before the run.
    one: ReadRate,
    /// Speed of the disk's random reads with [`DEPTH`] reads in flight, measured right before the run.
    deep: ReadRate,
    each: PerRequest,
}

/// All runs of gets over one protocol with one number of clients, one for each round.
#[derive(Debug)]
struct Rounds {
    protocol: WireProtocol,
    clients: usize,
    runs: Vec<GetRun>,
}

impl Rounds {
    fn over(&self, figure: impl Fn(&GetRun) -> f64) -> Vec<f64> {
        self.runs.iter().map(figure).collect()
    }

    fn name(&self) -> String {
        format!("gets over {}, {} clients", self.protocol.name(), self.clients)
    }
}

/// Loads the data into a server under the limit of memory, and measures gets of the loaded keys.
pub(crate) fn run(scenario: &mut Scenario<'_>) -> Result<Figures, BenchError> {
    let options = scenario.options;
    let limit = scenario.limit();
    let keys = Keys::new(options.values(), options.value_size, options.order, options.seed);
    let (mut server, loaded) = filled::start(scenario, "gets", limit, &keys)?;
    scenario.step(&format!("gets: {} values loaded at {}/s", keys.count(), number(loaded.rate)));
    let resident = Keys::new(RESIDENT_KEYS, RESIDENT_BYTES, Order::Ascending, options.seed);
    let job = Job::loading(RESIDENT, &resident, (0, RESIDENT_KEYS), options);
    over::run(WireProtocol::Resp, &server, &job, options)?;
    scenario.step("writing the file of the probe");
    let mut probe = ReadProbe::create(scenario.dir, options.data_bytes())?;
    let mut all: Vec<Rounds> = Vec::new();
    for &protocol in &options.protocols {
        all.extend(options.clients.iter().map(|&clients| Rounds { protocol, clients, runs: Vec::new() }));
    }
    for round in 0..options.rounds {
        for turn in turns(u64::from(round), all.len()) {
            let Rounds { protocol, clients, .. } = all[turn];
            let one = probe.run(1, options.probe)?;
            let deep = probe.run(DEPTH, options.probe)?;
            let (gets, resident, each) = measure(&mut server, (protocol, clients), (&keys, &resident), options)?;
            scenario.step(&format!(
                "round {}, {}: {}; {} disk reads each; probe {}/s and {}/s at depth {DEPTH}",
                round + 1,
                all[turn].name(),
                gets.summary("/s"),
                number(each.reads()),
                number(one.rate),
                number(deep.rate)
            ));
            all[turn].runs.push(GetRun { gets, resident, one, deep, each });
        }
    }
    server.discard()?;
    Ok(figures(&all, limit, options))
}

/// Runs the gets. At the same time, another client reads keys that stay in memory. Returns the results of the gets, the
/// results of the other client, and the server's counts divided by the number of requests of both.
fn measure(
    server: &mut Server,
    (protocol, clients): (WireProtocol, usize),
    (keys, resident): (&Keys, &Keys),
    options: &PressureOptions,
) -> Result<(over::Figures, over::Figures, PerRequest), BenchError> {
    let gets = Job::reading(VALUES, keys, Action::Get, clients, options);
    let beside =
        Job::reading(RESIDENT, resident, Action::Get, RESIDENT_CONNECTIONS, options).at_rate(options.resident_rate);
    let before = server.counts();
    let shared = &*server;
    let (gets, beside) = std::thread::scope(|scope| {
        let beside = scope.spawn(|| live::hidden(|| over::run(protocol, shared, &beside, options)));
        let gets = over::run(protocol, shared, &gets, options);
        (gets, beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let after = server.counts();
    // If the server has ended, this error is the reason for the lost connections, so it is reported first.
    server.check_alive()?;
    let (gets, beside) = (gets?, beside?);
    let requests = gets.tally.all_right + beside.tally.all_right;
    Ok((gets, beside, after.per_request(&before, requests)))
}

fn figures(all: &[Rounds], limit: MemoryLimit, options: &PressureOptions) -> Figures {
    let (bytes, limit_name) = (options.value_size, limit.name());
    let title =
        format!("gets of random keys, values of {bytes} B, memory: {limit_name}; medians of the rounds, closed loop");
    let mut table = Table::new(title);
    let title = format!(
        "beside the gets: one client with {RESIDENT_CONNECTIONS} connections, {}/s by a schedule, that reads {RESIDENT_KEYS} \
         keys which stay in memory",
        number(options.resident_rate)
    );
    let mut beside = Table::new(title);
    let mut checks = Vec::new();
    for rounds in all {
        let (runs, name) = (&rounds.runs, rounds.name());
        let rates = rounds.over(|run| run.gets.rate);
        let (summary, of_deep) = (Summary::of(&rates), ratio(&rates, &rounds.over(|run| run.deep.rate)));
        let p99_ms = median_of(runs, |run| run.gets.time_us(99.0)) / 1e3;
        table.row(cells! {
            "protocol" => rounds.protocol.name(), "clients" => rounds.clients, "gets/s" => summary.median,
            "± MAD" => summary.mad, "p50 µs" => median_of(runs, |run| run.gets.time_us(50.0)),
            "p95 µs" => median_of(runs, |run| run.gets.time_us(95.0)), "p99 µs" => 1e3 * p99_ms,
            "max µs" => median_of(runs, |run| run.gets.time_us(100.0)),
            "disk at depth 1" => median_of(runs, |run| run.one.rate),
            "at depth 32" => median_of(runs, |run| run.deep.rate),
            "of depth 1" => ratio(&rates, &rounds.over(|run| run.one.rate)), "of depth 32" => of_deep,
            "disk reads each" => median_of(runs, |run| run.each.disk_reads),
            "KiB read each" => median_of(runs, |run| run.each.read_kib),
            "cold reads each" => median_of(runs, |run| run.each.cold_reads),
            "server's CPU µs each" => median_of(runs, |run| run.each.cpu_us),
            "verdict" => Validity::worst(runs.iter().map(|run| &run.gets.validity)).name(),
        });
        let resident_ms = median_of(runs, |run| run.resident.time_us(99.0)) / 1e3;
        beside.row(cells! {
            "gets beside it" => name.as_str(), "p50 µs" => median_of(runs, |run| run.resident.time_us(50.0)),
            "p95 µs" => median_of(runs, |run| run.resident.time_us(95.0)), "p99 µs" => 1e3 * resident_ms,
            "p99.9 µs" => median_of(runs, |run| run.resident.time_us(99.9)),
            "max µs" => median_of(runs, |run| run.resident.time_us(100.0)),
            "generator's lag p99 µs" => median_of(runs, |run| run.resident.lag_us()),
            "verdict" => Validity::worst(runs.iter().map(|run| &run.resident.validity)).name(),
        });
        let validity = |of: fn(&GetRun) -> &over::Figures| Validity::worst(runs.iter().map(|run| &of(run).validity));
        checks.push(validity(|run| &run.gets).check(name.as_str(), "all answered, with the stored values"));
        checks
            .push(validity(|run| &run.resident).check(format!("{name}: resident keys beside"), "all answered in time"));
        if limit != MemoryLimit::None && rounds.clients == options.most_clients() {
            let what = format!("{name}: of the disk's random reads at depth {DEPTH}");
            checks.push(Check::at_least(what, of_deep, min_share(rounds.protocol), " ×"));
            checks.push(Check::below(format!("{name}: p99"), p99_ms, MAX_P99_MS, " ms"));
            let what = format!("{name}: p99 of resident keys beside");
            checks.push(Check::below(what, resident_ms, MAX_RESIDENT_P99_MS, " ms"));
        }
    }
    let deep: Vec<f64> = all.iter().flat_map(|rounds| rounds.over(|run| run.deep.rate)).collect();
    checks.extend(steadiness(format!("gets: random reads of the disk at depth {DEPTH}"), &deep, "/s"));
    Figures { tables: vec![table, beside, probe_table(all, options.probe)], checks, notes: notes() }
}

fn probe_table(all: &[Rounds], time: Duration) -> Table {
    let title = format!(
        "probe: random reads of 4 KiB with O_DIRECT from a file as large as the data, {} s right before each run",
        time.as_secs_f64()
    );
    let mut table = Table::new(title);
    let mut add = |depth: u64, of: fn(&GetRun) -> ReadRate| {
        let runs: Vec<ReadRate> = all.iter().flat_map(|rounds| rounds.runs.iter().map(of)).collect();
        let rates = Summary::of(&runs.iter().map(|run| run.rate).collect::<Vec<_>>());
        table.row(cells! {
            "reads in flight" => depth, "reads/s" => rates.median, "± MAD" => rates.mad, "min" => rates.min,
            "max" => rates.max, "p99 µs" => median_of(&runs, |run| run.p99_us), "runs" => rates.rounds,
        });
    };
    add(1, |run| run.one);
    add(DEPTH, |run| run.deep);
    table
}

fn notes() -> Vec<String> {
    vec![
        "gets: disk reads are those that the kernel counts for the server's control group, KiB those of its process, and cold \
         reads those that the server handed to threads that wait for the disk; some of these find their block in the page cache"
            .to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        load::{Outcome, Tally, options::parsed},
        report::Verdict,
        usage::RunResources,
        work::Counts,
    };

    fn outcome(rate: f64, p99_ms: u64) -> over::Figures {
        let mut tally: Tally<Counts> = Tally::new(1);
        tally.times[0].record_nanos_times(p99_ms * 1_000_000, 1000);
        tally.right = rate as u64;
        Outcome::new(tally, 1.0, RunResources::default())
    }

    fn rounds(protocol: WireProtocol, clients: usize, rate: f64, (p99, resident): (u64, u64)) -> Rounds {
        let probe = |rate| ReadRate { rate, p99_us: 1.0 };
        let each = PerRequest { disk_reads: 1.0, read_kib: 4.0, cold_reads: 1.0, cpu_us: 5.0 };
        let run = GetRun {
            gets: outcome(rate, p99),
            resident: outcome(1000.0, resident),
            one: probe(10_000.0),
            deep: probe(100_000.0),
            each,
        };
        Rounds { protocol, clients, runs: vec![run.clone(), run] }
    }

    #[test]
    fn the_most_clients_of_each_protocol_have_goals() {
        let options = parsed([]).unwrap();
        let verdicts = |all: &[Rounds], limit| {
            let Figures { checks, .. } = figures(all, limit, &options);
            checks.into_iter().filter(|check| check.is_goal).map(|check| check.verdict).collect::<Vec<_>>()
        };
        let limit = MemoryLimit::Bytes(64 << 20);
        let good = [
            rounds(WireProtocol::Resp, 64, 71_000.0, (9, 1)),
            rounds(WireProtocol::Native, 64, 71_000.0, (9, 1)),
            rounds(WireProtocol::Http, 64, 41_000.0, (9, 1)),
            rounds(WireProtocol::Http, 1, 1.0, (99, 99)),
        ];
        assert_eq!(verdicts(&good, limit), [Verdict::Met; 9]);
        assert!(verdicts(&good, MemoryLimit::None).is_empty());
        let bad =
            [rounds(WireProtocol::Native, 64, 69_000.0, (11, 3)), rounds(WireProtocol::Http, 64, 39_000.0, (11, 3))];
        assert_eq!(verdicts(&bad, limit), [Verdict::Missed; 6]);
    }
}
