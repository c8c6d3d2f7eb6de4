//! `thalweg bench cluster`: performs the runs that the command's options request, and makes the report.
//!
//! Owns: the rows of the report for puts and gets, which run alternately on Thalweg and on another system; the goals of
//! these rows; and the order of the other parts of the report. Does not own: the run of one row (`work`), the other
//! system (`peer`), or the measurements of the other parts, each of which has a module of its own.

use std::path::Path;

use clap::ValueEnum as _;
use thalweg_lab::profiling::LONGEST_PROFILE;

use crate::{
    BenchError, Progress, Report, catch_up,
    counted::Counted,
    detection, failover, founding, heartbeats, lag,
    load::turns,
    nodes::{Nodes, Setup},
    options::{ClusterOptions, Part},
    peer::Peer,
    probe::steadiness,
    probes::{Probed, Probes},
    publishers,
    report::{Check, Row, Table, cells},
    resp, rolling,
    scenario::{Figures, Scenario},
    server::{Stages, add_stages},
    slow_follower, snapshot,
    stats::{Summary, median_of, ratio},
    tls,
    work::{self, Kind, Level, RequestLoad, TargetNodes, Turn},
};

/// Runs the cluster benchmark with these options, and returns its report.
pub fn run(options: &ClusterOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    options.check()?;
    let (mut report, scratch) = Report::begin_below("cluster", options.dir.as_deref())?;
    let shown = if options.nodes.is_empty() {
        "the benchmark's own, in processes on this machine, over the loopback, on one disk".to_owned()
    } else {
        format!("those that ran already: {}", options.nodes.join(", "))
    };
    report.condition("nodes", shown);
    report.condition("durability", "quorum for all writes: on disk on a majority before the acknowledgement");
    report.condition(
        "load",
        format!(
            "one connection and one request in flight for each client unless a title says otherwise, on this machine; \
             seed {}",
            options.seed
        ),
    );
    report.condition("value B, keys", format!("{}, {}", options.value_size, options.keys));
    let [duration, warmup] = [options.duration, options.warmup].map(|time| time.as_secs_f64());
    report.condition("runs", format!("{duration} s after {warmup} s of warm-up, {} rounds, medians", options.rounds));
    let works = RequestLoad::all(options);
    if !works.is_empty() {
        let nodes = if options.nodes.is_empty() {
            Nodes::start(Setup::new("cluster", scratch.path(), options), progress)?
        } else {
            Nodes::running(&options.nodes)?
        };
        // The profiler is created before the measurements, so that its errors come early.
        options.profiles().profiler(nodes.process_id(nodes.leader()?), scratch.path())?;
        let count = nodes.addresses().len();
        let peer_dir = scratch.path().join("peer");
        let mut peer = match (&options.peer, &options.peer_binary) {
            (Some(_), Some(binary)) => Some(Peer::start(binary, &peer_dir, count)?),
            _ => None,
        };
        if let Some(peer) = &peer {
            report.condition("peer", peer.name());
        }
        let probes = Probes::create(scratch.path(), options.value_size)?;
        let dir = scratch.path();
        Suite { options, dir, nodes: &nodes, peer: peer.as_mut(), probes, progress }.rows(&works, &mut report)?;
    }
    scenarios(options, scratch.path(), progress, &mut report)?;
    Ok(report.finish())
}

/// Function that measures one scenario.
type Run = fn(&mut Scenario<'_>) -> Result<Figures, BenchError>;

/// Scenarios for which the benchmark starts nodes of their own, with the functions that measure them, in the order of
/// the report.
const SCENARIOS: [(Part, Run); 12] = [
    (Part::Founding, founding::run),
    (Part::Resp, resp::run),
    (Part::Appends, publishers::run),
    (Part::Failover, failover::run),
    (Part::Rolling, rolling::run),
    (Part::Lag, lag::run),
    (Part::CatchUp, catch_up::run),
    (Part::Snapshot, snapshot::run),
    (Part::Heartbeats, heartbeats::run),
    (Part::Detection, detection::run),
    (Part::Tls, tls::run),
    (Part::SlowFollower, slow_follower::run),
];

/// Runs the scenarios that the options name. If the probes before the measurements of a scenario disagree, the run is
/// void.
fn scenarios(
    options: &ClusterOptions,
    dir: &Path,
    progress: &mut dyn Progress,
    report: &mut Report,
) -> Result<(), BenchError> {
    for (part, run) in SCENARIOS.into_iter().filter(|(part, _)| options.runs(*part)) {
        let mut scenario = Scenario::new(options, dir, progress)?;
        let Figures { tables, checks, notes } = run(&mut scenario)?;
        let name = part.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        let mut probes = probe_table(&scenario.probed);
        probes.title = format!("{name}: {}", probes.title);
        report.tables.extend(tables);
        report.tables.push(probes);
        let values = |of: fn(&Probed) -> f64| scenario.probed.iter().map(of).collect::<Vec<_>>();
        let round_trip =
            steadiness(format!("{name}: round trip over the loopback"), &values(|one| one.round_trip_us), " µs");
        report.checks.extend(round_trip);
        report.checks.extend(steadiness(format!("{name}: fsync"), &values(|one| one.fsync_us), " µs"));
        report.checks.extend(checks);
        report.notes.extend(notes);
    }
    Ok(())
}

struct Suite<'a> {
    options: &'a ClusterOptions,
    /// Directory for the benchmark's own files, such as profiles and the file of the disk probe.
    dir: &'a Path,
    nodes: &'a Nodes,
    peer: Option<&'a mut Peer>,
    probes: Probes,
    progress: &'a mut dyn Progress,
}

/// Results of one row of the report, from all rounds (repetitions of the measurement) so far.
struct Rounds {
    work: RequestLoad,
    ours: Vec<Turn>,
    peer: Vec<Turn>,
    /// Highest number of puts per second that one client could reach, one value for each round. It follows from the
    /// probes of the machine right before the round.
    allowed: Vec<f64>,
}

impl Rounds {
    /// Returns a table of the average times that the row's puts spent in each stage in the servers, over all rounds;
    /// `None` for gets.
    fn stages(&self) -> Option<Stages> {
        let counted = Counted::sum(self.ours.iter().map(|turn| &turn.counted));
        let is_put = self.work.kind == Kind::Put;
        is_put.then(|| counted.stages_of_puts(&self.work.name(), median_of(&self.ours, |turn| turn.mean_us)))?
    }
}

impl Suite<'_> {
    fn rows(mut self, works: &[RequestLoad], report: &mut Report) -> Result<(), BenchError> {
        self.load_keys()?;
        let (mut probed, mut all) = (Vec::new(), Vec::new());
        all.extend(works.iter().map(|work| Rounds { work: *work, ours: vec![], peer: vec![], allowed: vec![] }));
        for round in 0..self.options.rounds {
            for rounds in &mut all {
                // A tenth of a run is enough for hundreds of round trips and fsyncs.
                let probe = self.probes.run(self.options.duration / 10)?;
                probed.push(probe);
                rounds.allowed.push(probe.allowed_rate());
                for turn in turns(u64::from(round), 2) {
                    self.turn(turn, round, rounds)?;
                }
            }
        }
        report.tables.push(probe_table(&probed));
        report.tables.push(figures_table(&all));
        add_stages(report, "stages of a put", &all.iter().filter_map(Rounds::stages).collect::<Vec<_>>());
        let values = |of: fn(&Probed) -> f64| probed.iter().map(of).collect::<Vec<_>>();
        report.checks.extend(steadiness("round trip over the loopback", &values(|probe| probe.round_trip_us), " µs"));
        report.checks.extend(steadiness("fsync", &values(|probe| probe.fsync_us), " µs"));
        report
            .checks
            .extend(all.iter().map(|rounds| work::check(rounds.ours.iter().chain(&rounds.peer), &rounds.work.name())));
        report.checks.extend(goals(&all));
        self.profile_puts(works, report)
    }

    /// Repeats the puts of each number of clients while the leader's process is profiled, once for each kind of profile
    /// that the options request. Adds the profiles to the report.
    fn profile_puts(&mut self, works: &[RequestLoad], report: &mut Report) -> Result<(), BenchError> {
        if self.options.profile.is_empty() {
            return Ok(());
        }
        let duration = self.options.duration.min(LONGEST_PROFILE);
        let (options, nodes) = (ClusterOptions { duration, ..self.options.clone() }, self.nodes);
        for work in works.iter().filter(|work| work.kind == Kind::Put) {
            let leader = nodes.leader()?;
            let Some(profiler) = options.profiles().profiler(nodes.process_id(leader), self.dir)? else {
                return Ok(());
            };
            let (label, place) = (work.name(), format!("-{}", work.clients));
            let puts = || work::run(nodes, *work, &options).map(|turn| turn.rate);
            profiler.run((&label, &place), report, self.progress, puts)?;
            if nodes.leader()? != leader {
                report.notes.push(format!("{label}: the leader changed under a profile, which shows the old one"));
            }
        }
        Ok(())
    }

    fn load_keys(&mut self) -> Result<(), BenchError> {
        let has_gets = self.options.runs(Part::Gets);
        if has_gets {
            self.progress.step(&format!("storing {} keys", self.options.keys));
            work::load_keys(self.nodes, self.options)?;
            if let Some(peer) = &mut self.peer {
                peer.load_keys(self.options)?;
            }
        }
        Ok(())
    }

    /// Does the requests of one row of the report once: on Thalweg's nodes (turn 0), or on the cluster of the compared
    /// system, such as etcd (turn 1).
    fn turn(&mut self, turn: usize, round: u32, rounds: &mut Rounds) -> Result<(), BenchError> {
        let work = rounds.work;
        let (system, turn) = match (turn, &mut self.peer) {
            (0, _) => {
                rounds.ours.push(work::run(self.nodes, work, self.options)?);
                ("thalweg", rounds.ours.last())
            }
            (_, Some(peer)) if work.peer_has() => {
                rounds.peer.push(peer.run(work, self.options)?);
                ("etcd", rounds.peer.last())
            }
            _ => return Ok(()),
        };
        if let Some(Turn { rate, p50_us, p99_us, validity, .. }) = turn {
            let (round, name, validity) = (round + 1, work.name(), validity.name());
            let figures = format!("{rate:.0}/s, p50 {p50_us:.0} µs, p99 {p99_us:.0} µs, {validity}");
            self.progress.step(&format!("round {round}, {system}, {name}: {figures}"));
        }
        Ok(())
    }
}

fn probe_table(probed: &[Probed]) -> Table {
    let mut table = Table::new("probes: the bare machine, before each measurement; medians");
    let mut add = |name: &str, figure: fn(&Probed) -> f64| {
        let Summary { median, mad, min, max, .. } = Summary::of(&probed.iter().map(figure).collect::<Vec<_>>());
        table.row(cells! { "probe" => name, "µs" => median, "± MAD" => mad, "min" => min, "max" => max });
    };
    add("round trip over the loopback, one message", |probe| probe.round_trip_us);
    add("write and fdatasync", |probe| probe.fsync_us);
    table
}

fn figures_table(all: &[Rounds]) -> Table {
    let mut table = Table::new("requests: medians of the rounds, closed loop");
    for rounds in all {
        table.row(figure_row(rounds, "thalweg", &rounds.ours));
        if !rounds.peer.is_empty() {
            table.row(figure_row(rounds, "etcd", &rounds.peer));
        }
    }
    table
}

fn figure_row(rounds: &Rounds, system: &str, turns: &[Turn]) -> Row {
    let RequestLoad { kind, place, clients } = rounds.work;
    let (what, level) = match kind {
        Kind::Put => ("put", "quorum"),
        Kind::Get(level) => ("get", level.name()),
    };
    let rates = Summary::of(&rates(turns));
    let is_ours = std::ptr::eq(turns, rounds.ours.as_slice());
    let of_etcd = if is_ours { ratio(&self::rates(turns), &self::rates(&rounds.peer)) } else { f64::NAN };
    let of_allowed = match (kind, clients) {
        (Kind::Put, 1) => ratio(&self::rates(turns), &rounds.allowed),
        _ => f64::NAN,
    };
    cells! {
        "request" => what, "level" => level, "clients" => clients, "node" => place.name(), "system" => system,
        "requests/s" => rates.median, "± MAD" => rates.mad, "p50 µs" => median_of(turns, |turn| turn.p50_us),
        "p95 µs" => median_of(turns, |turn| turn.p95_us), "p99 µs" => median_of(turns, |turn| turn.p99_us),
        "× etcd" => of_etcd, "of 3 hops + fsync" => of_allowed,
        "nodes' CPU µs each" => median_of(turns, |turn| turn.node_cpu_us),
        "clients' CPU µs each" => median_of(turns, |turn| turn.client_cpu_us),
        "clients busy %" => median_of(turns, |turn| 100.0 * turn.busiest),
        "link B each" => median_of(turns, |turn| turn.link_bytes),
    }
}

fn rates(turns: &[Turn]) -> Vec<f64> {
    turns.iter().map(|turn| turn.rate).collect()
}

/// Published results of another system's cluster of three nodes (row A of docs/performance.md): number of clients, and
/// puts per second. The writes of 50 clients share batches.
const ROW_A: [(usize, f64); 2] = [(1, 311.0), (50, 6186.0)];

/// Returns the checks of those rows of the report that have goals.
fn goals(all: &[Rounds]) -> Vec<Check> {
    let mut checks = Vec::new();
    let row = |kind, place| all.iter().find(|rounds| rounds.work.kind == kind && rounds.work.place == place);
    for rounds in all.iter().filter(|rounds| rounds.work.kind == Kind::Put) {
        let (name, rate) = (rounds.work.name(), median_of(&rounds.ours, |turn| turn.rate));
        if let Some((_, published)) = ROW_A.iter().find(|(clients, _)| *clients == rounds.work.clients) {
            checks.push(Check::at_least(format!("{name}: rate of the published benchmark"), rate, *published, "/s"));
        }
        let against = |share| Check::at_least(format!("{name}: × etcd"), peer_ratio(rounds), share, " ×");
        match rounds.work.clients {
            1 => {
                // The rate or the share is enough, because on a slow disk no program reaches the rate.
                let share = ratio(&rates(&rounds.ours), &rounds.allowed);
                let is_fast = rate >= 2000.0 && median_of(&rounds.ours, |turn| turn.p50_us) <= 500.0;
                if is_fast {
                    checks.push(Check::at_least(format!("{name}: p50 at most 0.5 ms, rate"), rate, 2000.0, "/s"));
                } else {
                    checks.push(Check::at_least(format!("{name}: of three hops and one fsync"), share, 0.8, " ×"));
                }
                checks.extend((!rounds.peer.is_empty()).then(|| against(1.8)));
            }
            100 => {
                let p99_ms = median_of(&rounds.ours, |turn| turn.p99_us) / 1e3;
                checks.push(Check::at_least(format!("{name}: rate"), rate, 40_000.0, "/s"));
                checks.push(Check::below(format!("{name}: p99"), p99_ms, 8.0, " ms"));
                checks.extend((!rounds.peer.is_empty()).then(|| against(4.0)));
            }
            _ => {}
        }
    }
    let get = Kind::Get(Level::Linearizable);
    for rounds in [TargetNodes::Leader, TargetNodes::Follower].into_iter().filter_map(|place| row(get, place)) {
        if !rounds.peer.is_empty() {
            checks.push(Check::at_least(format!("{}: × etcd", rounds.work.name()), peer_ratio(rounds), 1.5, " ×"));
        }
    }
    if let (Some(one), Some(together)) = (row(get, TargetNodes::Leader), row(get, TargetNodes::All)) {
        let share = ratio(&rates(&together.ours), &rates(&one.ours));
        checks.push(Check::at_least("gets from all nodes together against the leader alone", share, 0.7, " ×"));
    }
    checks
}

fn peer_ratio(rounds: &Rounds) -> f64 {
    ratio(&rates(&rounds.ours), &rates(&rounds.peer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Verdict;

    #[test]
    fn a_rate_of_clients_without_spare_time_is_a_lower_bound() {
        let turns = |busiest| [Turn::of_rate(1.0), Turn { busiest, ..Turn::of_rate(2.0) }];
        for (busiest, is_bound) in [(0.5, false), (f64::NAN, false), (0.99, true)] {
            let check = work::check(&turns(busiest), "put");
            assert_eq!(check.measured.contains("lower bound"), is_bound, "{busiest}: {}", check.measured);
            assert_eq!(check.verdict, Verdict::Met);
        }
    }

    #[test]
    fn puts_of_one_and_of_fifty_clients_are_held_against_the_published_ones() {
        let rounds = |clients, rate| Rounds {
            work: RequestLoad { kind: Kind::Put, place: TargetNodes::Leader, clients },
            ours: vec![Turn { p50_us: 1000.0, p99_us: 2000.0, ..Turn::of_rate(rate) }],
            peer: vec![],
            allowed: vec![1000.0],
        };
        let checks = goals(&[rounds(1, 900.0), rounds(10, 1.0), rounds(50, 6000.0)]);
        let published = checks.iter().filter(|check| check.what.ends_with("rate of the published benchmark"));
        let published: Vec<_> = published.map(|check| (&*check.required, check.verdict)).collect();
        assert_eq!(published, [("at least 311/s", Verdict::Met), ("at least 6,186/s", Verdict::Missed)]);
    }
}
