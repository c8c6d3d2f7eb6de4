//! Computes a capacity plan from a requested load and a profile (measured runs): nodes, processors, memory, disk and
//! network, each with its formula.
//!
//! Owns: the formulas, the assumptions in words, and the reasons why there is no plan. Does not own: fitting a line
//! (`fit`), the measured runs (`profile`), or the load and the settings (`request`).
//!
//! The chain of reasoning:
//!
//! 1. A profile has several runs for each payload size and number of clients. For each payload size, the plan takes the
//!    number of clients that reaches the highest rate and meets the objective in each of its runs. This rate is the
//!    capacity of one cluster at this size. The profile must have as many nodes as one cluster of the plan, because a
//!    write to three nodes costs more than a write to one. The planned nodes have a network between them, and the
//!    measured ones shared a machine. So each write takes one round trip longer than measured, and each client writes
//!    less often.
//! 2. Lines through these runs give the time, the CPU time and the bytes of one write as `a + b × payload`.
//! 3. One leader takes all writes of its cluster, so a load above the capacity needs more clusters.
//! 4. All resources follow from the number of writes that one cluster takes.

use serde::Serialize;

use crate::{Interval, Line, Profile, ProfileError, Quantile, Request, Run, Settings};

/// One computed number of a capacity plan, with its name, unit and formula.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Name of the computed value. Names stay the same across versions, so programs can rely on them.
    pub name: &'static str,
    /// Computed value with its lower and upper bound.
    pub interval: Interval,
    /// Unit of the value: `writes/s`, `processors`, `bytes`, `bytes/s`, `fsyncs/s` or `seconds`.
    pub unit: &'static str,
    /// Formula of the value as text, with the numbers that went into it.
    pub formula: String,
}

/// A capacity plan: the number of clusters and nodes that a load needs, and the computed numbers from which they
/// follow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Number of clusters, each with its own leader.
    pub clusters: u64,
    /// Total number of nodes in all clusters.
    pub nodes: u64,
    /// Computed numbers of the plan. Each describes one cluster, or one node of it.
    pub figures: Vec<Figure>,
    /// Assumptions and limits of this plan, as sentences for the reader.
    pub notes: Vec<String>,
}

/// Error returned when no plan can be computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The profile (the file of measured runs) cannot be used.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A number in the request to the planner is outside its valid range.
    #[error("{0}")]
    Request(&'static str),
    /// The profile was measured on a cluster with another number of nodes than the plan's clusters are to have.
    #[error(
        "the profile is that of {measured} node(s) and says nothing about clusters of {wanted}, whose writes cost more"
    )]
    Replicas {
        /// Number of nodes on which the profile was measured.
        measured: u32,
        /// Number of nodes that the request to the planner asks for.
        wanted: u32,
    },
    /// The round trip between the nodes alone takes as long as the objective permits for a write.
    #[error("a round trip between the nodes takes as long as the objective permits")]
    RoundTrip,
    /// No number of clients meets the latency objective in all of its measured runs with payloads of this size.
    #[error(
        "no measured run with payloads of {payload_bytes} bytes meets the objective in every round: the best {quantile} is \
         {best_micros:.0} µs, with {writers} clients"
    )]
    Missed {
        /// Payload size of the measured runs, in bytes.
        payload_bytes: u64,
        /// Name of the objective's percentile, such as `p99`.
        quantile: &'static str,
        /// Lowest value of the percentile in any run, in microseconds.
        best_micros: f64,
        /// Number of clients of the run with the lowest value.
        writers: u64,
    },
    /// The line through the measured runs predicts zero or less time for a write of the requested size.
    #[error(
        "the line through the measured runs gives writes of {payload_bytes} bytes no time: plan a size nearer to the \
         measured ones"
    )]
    NoTime {
        /// Payload size of the request, in bytes.
        payload_bytes: u64,
    },
    /// Too few of the measured runs meet the objective to fit a line through them.
    #[error("too few runs meet the objective to fit a line: measure a profile with more rounds")]
    TooFew,
}

/// Length in bytes of the header before each record in the log (see docs/formats/log.md).
const RECORD_HEADER_BYTES: u64 = 40;

/// Computes the capacity plan for a requested load from a profile of measured runs.
///
/// # Errors
///
/// Fails if the profile or the request is invalid, or if no measured run meets the objective.
pub fn plan(profile: &Profile, request: &Request, settings: &Settings) -> Result<Plan, PlanError> {
    profile.check()?;
    check(request)?;
    if profile.replicas != request.replicas {
        return Err(PlanError::Replicas { measured: profile.replicas, wanted: request.replicas });
    }
    let chosen = chosen_runs(profile, request)?;
    let fitted = |amount: &dyn Fn(&Run) -> f64| {
        let points: Vec<_> = chosen.iter().map(|run| (run.payload_bytes as f64, amount(run))).collect();
        Line::through(&points).ok_or(PlanError::TooFew)
    };
    let payload = request.payload_bytes as f64;
    let round_trip = round_trip(request).as_secs_f64();
    let time = fitted(&|run| 1.0 / run.rate() + round_trip / run.writers as f64)?;
    let cpu = fitted(&|run| run.each(run.cpu_seconds))?;
    let logged = fitted(&|run| run.each(run.log_bytes as f64))?;
    let stored = fitted(&|run| run.each(run.state_bytes as f64))?;
    let syncs = fitted(&|run| run.each(run.syncs as f64))?;

    // `Line::at` raises negative predictions to 0. A write that takes no time would mean an unlimited capacity.
    if time.at_zero + time.slope * payload <= 0.0 {
        return Err(PlanError::NoTime { payload_bytes: request.payload_bytes });
    }
    let seconds = time.at(payload);
    // If the runs differ very much, the lower bound of the time may be 0. Then the capacity has no upper bound.
    let high = if seconds.low > 0.0 { 1.0 / seconds.low } else { f64::INFINITY };
    let capacity = Interval { value: 1.0 / seconds.value, low: 1.0 / seconds.high, high };
    let usable = capacity.low * (1.0 - request.headroom);
    let clusters = (request.writes_per_second / usable).ceil().max(1.0);
    let each = request.writes_per_second / clusters;
    let free = 1.0 - request.headroom;
    let (log_each, state_each, cpu_each) = (logged.at(payload), stored.at(payload), cpu.at(payload));
    // The measured runs have as many clients as the capacity needs, and concurrent writes share an fsync. With fewer
    // clients, each write may need an fsync of its own.
    let fsyncs = syncs.at(payload).map(|syncs| syncs * each);
    let fsyncs = Interval { high: fsyncs.high.max(each), ..fsyncs };
    let retention = request.retention.as_secs_f64();
    let fixed = (settings.reserve_bytes + settings.segments_bytes) as f64;
    let others = f64::from(request.replicas - 1);
    let peak = chosen.iter().map(|run| run.peak_memory_bytes).max().unwrap_or(0);
    let percent = request.headroom * 100.0;
    let both = Interval {
        value: log_each.value + state_each.value,
        low: log_each.low + state_each.low,
        high: log_each.high + state_each.high,
    };
    let figure = |name, interval, unit, formula: String| Figure { name, interval, unit, formula };
    let figures = vec![
        figure("capacity", capacity, "writes/s", format!("1 / ({})", line(&time, 1e6, "µs"))),
        figure(
            "writes_per_cluster",
            Interval::exact(each),
            "writes/s",
            format!(
                "{} / {clusters} clusters; a cluster takes {usable:.0} at most: the lower bound of its capacity less {percent:.0} %",
                request.writes_per_second
            ),
        ),
        figure(
            "processors_per_node",
            cpu_each.map(|cpu| cpu * each / free),
            "processors",
            format!("{each:.0} × ({}) / {free:.2}", line(&cpu, 1e6, "µs of CPU")),
        ),
        figure(
            "memory_per_node",
            Interval::exact(2.0 * (peak + settings.cache_bytes) as f64),
            "bytes",
            format!(
                "2 × ({peak} at the measured peak + {} of block cache); a node uses half of the memory (docs/guides/sizing.md)",
                settings.cache_bytes
            ),
        ),
        figure(
            "disk_per_node",
            both.map(|bytes| bytes * each * retention / free + fixed),
            "bytes",
            format!(
                "{each:.0} × {retention:.0} s × ({} in the log + {} in the state) / {free:.2} + {fixed:.0} in reserve and \
                 prepared segments",
                line(&logged, 1.0, "B"),
                line(&stored, 1.0, "B")
            ),
        ),
        figure(
            "log_writes_per_node",
            log_each.map(|bytes| bytes * each),
            "bytes/s",
            format!(
                "{each:.0} × ({}); a record has {RECORD_HEADER_BYTES} B of header (docs/formats/log.md)",
                line(&logged, 1.0, "B")
            ),
        ),
        figure(
            "fsyncs_per_node",
            fsyncs,
            "fsyncs/s",
            format!(
                "{each:.0} × ({}); fewer writes at a time share fewer fsyncs, down to one write each",
                line(&syncs, 1.0, "fsyncs")
            ),
        ),
        figure(
            "network_into_leader",
            Interval::exact(each * payload),
            "bytes/s",
            format!("{each:.0} × {payload:.0} B of payload, without the headers of the protocol"),
        ),
        figure(
            "network_out_of_leader",
            log_each.map(|bytes| bytes * each * others),
            "bytes/s",
            format!("{each:.0} × {others:.0} followers × the bytes of a write in the log"),
        ),
    ];
    let notes = notes(profile, request, &time, log_each, each, clusters);
    Ok(Plan { clusters: clusters as u64, nodes: clusters as u64 * u64::from(request.replicas), figures, notes })
}

fn check(request: &Request) -> Result<(), PlanError> {
    if !(request.writes_per_second.is_finite() && request.writes_per_second > 0.0) {
        return Err(PlanError::Request("the rate of writes must be above 0"));
    }
    if !(0.0..1.0).contains(&request.headroom) {
        return Err(PlanError::Request("the headroom must be at least 0 and below 100 %"));
    }
    if request.replicas == 0 {
        return Err(PlanError::Request("there must be at least one replica"));
    }
    Ok(())
}

/// Returns the time that each write waits for the network between the nodes, in addition to the measured time. The
/// measured nodes shared one machine, so their times contain no network. Zero for a single node.
fn round_trip(request: &Request) -> std::time::Duration {
    if request.replicas > 1 { request.round_trip } else { std::time::Duration::ZERO }
}

/// Returns the measured runs from which the plan computes. For each payload size, these are all runs with one number of
/// clients: the number whose runs all meet the objective, and whose mean rate is the highest.
fn chosen_runs<'p>(profile: &'p Profile, request: &Request) -> Result<Vec<&'p Run>, PlanError> {
    let budget = request.objective.below.checked_sub(round_trip(request)).filter(|left| !left.is_zero());
    let budget = budget.ok_or(PlanError::RoundTrip)?.as_secs_f64() * 1e6;
    let quantile = request.objective.quantile;
    let mut chosen = Vec::new();
    for payload_bytes in profile.sizes() {
        let runs: Vec<_> = profile.runs.iter().filter(|run| run.payload_bytes == payload_bytes).collect();
        let mut writers: Vec<_> = runs.iter().map(|run| run.writers).collect();
        writers.sort_unstable();
        writers.dedup();
        let of = |writers: u64| runs.iter().filter(move |run| run.writers == writers);
        let meets = |writers: &u64| of(*writers).all(|run| quantile.of(run) <= budget);
        let rate = |writers: u64| of(writers).map(|run| run.rate()).sum::<f64>() / of(writers).count() as f64;
        let best = writers.into_iter().filter(meets).max_by(|a, b| rate(*a).total_cmp(&rate(*b)));
        match best {
            Some(writers) => chosen.extend(of(writers).copied()),
            None => return Err(missed(&runs, payload_bytes, quantile)),
        }
    }
    Ok(chosen)
}

fn missed(runs: &[&Run], payload_bytes: u64, quantile: Quantile) -> PlanError {
    let best = runs.iter().min_by(|a, b| quantile.of(a).total_cmp(&quantile.of(b)));
    PlanError::Missed {
        payload_bytes,
        quantile: quantile.name(),
        best_micros: best.map_or(0.0, |run| quantile.of(run)),
        writers: best.map_or(0, |run| run.writers),
    }
}

/// Formats a fitted line as a formula with numbers. `scale` converts the line's values to `unit`.
fn line(line: &Line, scale: f64, unit: &str) -> String {
    let (at_zero, slope, deviation) = (line.at_zero * scale, line.slope * scale, line.deviation * scale);
    format!("{at_zero:.3} + {slope:.6} × bytes {unit}, ± {deviation:.3} over {} runs", line.points)
}

fn notes(
    profile: &Profile,
    request: &Request,
    time: &Line,
    log_each: Interval,
    each: f64,
    clusters: f64,
) -> Vec<String> {
    let mut notes = vec![
        format!(
            "measured: {}, durability {}, on {} processors that the clients shared with the server, so other machines and \
             clients of their own differ",
            profile.workload, profile.durability, profile.machine.processors
        ),
        "bounds are those of one more run in 95 of 100 cases on the same machine; they do not apply to another machine"
            .to_owned(),
    ];
    if profile.build != "release" {
        notes.push(format!("the profile was measured with a {} build, which is slower than a release", profile.build));
    }
    if time.is_extrapolated(request.payload_bytes as f64) {
        notes.push(format!(
            "payloads of {} bytes lie outside of the measured sizes ({:.0} to {:.0}): the line is extended",
            request.payload_bytes, time.range.0, time.range.1
        ));
    }
    if request.replicas > 1 {
        notes.push(format!(
            "the profile is that of {} nodes on one machine, whose processors and disk they shared with the clients: nodes with \
             machines of their own can do more, so the capacity is a lower bound. Each client also waits for a round trip \
             between the nodes ({} µs, --round-trip); followers are assumed to need as much as the leader",
            profile.replicas,
            request.round_trip.as_micros()
        ));
    }
    if clusters > 1.0 {
        notes.push(format!(
            "one leader takes all writes of a cluster, so the application divides its streams over {clusters} clusters"
        ));
    }
    let used = log_each.high * each / profile.disk.bytes_per_second;
    if used > 1.0 - request.headroom {
        notes.push(format!(
            "the log alone takes {:.0} % of the measured speed of the disk ({:.0} MB/s in synced writes of 1 MiB)",
            used * 100.0,
            profile.disk.bytes_per_second / 1e6
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Disk, FORMAT, Machine, Objective};

    /// Returns a profile with known times for tests. With 64 clients, a write takes 20 µs + 10 ns a byte, at a p99 of 5
    /// ms. With one client, it takes five times as long, at a p99 of 0.2 ms.
    fn profile() -> Profile {
        let run = |payload_bytes: u64, writers: u64| {
            let each = (20.0 + 0.01 * payload_bytes as f64) * if writers == 1 { 5.0 } else { 1.0 } / 1e6;
            let p99_micros = if writers == 1 { 200.0 } else { 5000.0 };
            let writes = (1.0 / each).round() as u64;
            Run {
                payload_bytes,
                writers,
                seconds: writes as f64 * each,
                writes,
                cpu_seconds: writes as f64 * (10.0 + 0.005 * payload_bytes as f64) / 1e6,
                log_bytes: writes * (payload_bytes + 100),
                syncs: writes / 10,
                state_bytes: writes * 20,
                peak_memory_bytes: 100 << 20,
                p50_micros: p99_micros / 4.0,
                p90_micros: p99_micros / 2.0,
                p99_micros,
                p999_micros: p99_micros * 3.0,
            }
        };
        let runs = [0_u64, 1].iter().flat_map(|_| [100, 1000, 10_000]).flat_map(|size| [run(size, 1), run(size, 64)]);
        Profile {
            format: FORMAT,
            version: "0".to_owned(),
            build: "release".to_owned(),
            machine: Machine { processors: 2, memory_bytes: None, storage: "ext4".to_owned(), kernel: None },
            disk: Disk { sync_p50_micros: 80.0, sync_p99_micros: 200.0, bytes_per_second: 1e9 },
            workload: "appends".to_owned(),
            durability: "disk".to_owned(),
            replicas: 3,
            runs: runs.collect(),
        }
    }

    fn request() -> Request {
        Request {
            writes_per_second: 20_000.0,
            payload_bytes: 1000,
            retention: Duration::from_secs(7 * 86_400),
            replicas: 3,
            objective: Objective { quantile: Quantile::P99, below: Duration::from_millis(10) },
            round_trip: Duration::ZERO,
            headroom: 0.3,
        }
    }

    const SETTINGS: Settings = Settings { reserve_bytes: 256 << 20, segments_bytes: 192 << 20, cache_bytes: 256 << 20 };

    fn value(plan: &Plan, name: &str) -> f64 {
        plan.figures.iter().find(|figure| figure.name == name).unwrap().interval.value
    }

    #[track_caller]
    fn near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 0.001, "{found} is not {expected}");
    }

    #[test]
    fn a_known_law_gives_the_plan_that_can_be_computed_by_hand() {
        let plan = plan(&profile(), &request(), &SETTINGS).unwrap();
        // A write takes 30 µs, so the capacity is 33,333 writes a second. Less 30 % headroom, 23,333 remain, so one
        // cluster of three nodes takes 20,000.
        near(value(&plan, "capacity"), 33_333.3);
        assert_eq!((plan.clusters, plan.nodes), (1, 3));
        near(value(&plan, "processors_per_node"), 20_000.0 * 15e-6 / 0.7);
        near(value(&plan, "disk_per_node"), 20_000.0 * 604_800.0 * 1120.0 / 0.7 + f64::from(448 << 20));
        near(value(&plan, "log_writes_per_node"), 20_000.0 * 1100.0);
        near(value(&plan, "network_into_leader"), 2e7);
        near(value(&plan, "network_out_of_leader"), 2.0 * 2.2e7);
        near(value(&plan, "memory_per_node"), 2.0 * f64::from(356 << 20));
        // A write needs a tenth of an fsync as measured, and one fsync at most.
        let fsyncs = plan.figures.iter().find(|figure| figure.name == "fsyncs_per_node").unwrap().interval;
        near(fsyncs.value, 2000.0);
        near(fsyncs.high, 20_000.0);
        assert!(plan.figures.iter().all(|figure| figure.interval.low <= figure.interval.value));
        assert!(
            plan.figures
                .iter()
                .all(|figure| figure.interval.value <= figure.interval.high && !figure.formula.is_empty())
        );
    }

    #[test]
    fn a_round_trip_between_the_nodes_lets_each_client_write_less_often() {
        let request = Request { round_trip: Duration::from_millis(1), ..request() };
        // Each of the 64 clients waits 1 ms longer for each write. That is 15.6 µs for each write of the server.
        near(value(&plan(&profile(), &request, &SETTINGS).unwrap(), "capacity"), 1e6 / (30.0 + 1000.0 / 64.0));
        let alone = Request { replicas: 1, ..request };
        let profile = Profile { replicas: 1, ..profile() };
        near(value(&plan(&profile, &alone, &SETTINGS).unwrap(), "capacity"), 33_333.3);
    }

    #[test]
    fn a_profile_of_one_node_is_none_of_a_cluster() {
        let profile = Profile { replicas: 1, ..profile() };
        assert_eq!(plan(&profile, &request(), &SETTINGS).unwrap_err(), PlanError::Replicas { measured: 1, wanted: 3 });
        let text = serde_json::to_string(&profile).unwrap().replace("\"replicas\":1,", "");
        assert!(!text.contains("replicas"));
        assert_eq!(serde_json::from_str::<Profile>(&text).unwrap().replicas, 1, "of an earlier program");
    }

    #[test]
    fn a_larger_load_or_a_stricter_objective_needs_more_clusters() {
        let clusters = |change: fn(&mut Request)| {
            let mut request = request();
            change(&mut request);
            plan(&profile(), &request, &SETTINGS).unwrap().clusters
        };
        assert_eq!(clusters(|request| request.writes_per_second = 60_000.0), 3);
        // Only the runs with one client meet 2 ms. Their rate is 6,667 writes a second, less 30 % headroom.
        let strict = |request: &mut Request| {
            request.objective.below = Duration::from_millis(2);
        };
        assert_eq!(clusters(strict), 5);
        assert_eq!(clusters(|request| request.headroom = 0.0), 1);
    }

    #[test]
    fn what_cannot_be_planned_is_an_error_that_says_why() {
        let error = |change: fn(&mut Profile, &mut Request)| {
            let (mut profile, mut request) = (profile(), request());
            change(&mut profile, &mut request);
            plan(&profile, &request, &SETTINGS).unwrap_err()
        };
        assert!(matches!(
            error(|_, request| {
                request.objective.below = Duration::from_micros(1100);
                request.round_trip = Duration::from_millis(1);
            }),
            PlanError::Missed { best_micros: 200.0, writers: 1, .. }
        ));
        assert_eq!(error(|_, request| request.round_trip = Duration::from_millis(10)), PlanError::RoundTrip);
        assert!(matches!(error(|_, request| request.headroom = 1.0), PlanError::Request(_)));
        assert!(matches!(error(|_, request| request.replicas = 0), PlanError::Request(_)));
        assert_eq!(error(|profile, _| profile.format = 9), PlanError::Profile(ProfileError::Format { found: 9 }));
        assert_eq!(error(|profile, _| profile.runs.truncate(2)), PlanError::Profile(ProfileError::TooFew));
        let impossible = error(|profile, _| profile.runs[3].log_bytes = 0);
        assert_eq!(impossible, PlanError::Profile(ProfileError::Impossible { run: 3, figure: "size of the log" }));
        let odd = error(|profile, _| profile.runs[0].p99_micros = f64::NAN);
        assert!(matches!(odd, PlanError::Profile(ProfileError::Impossible { run: 0, .. })));
    }

    #[test]
    fn runs_that_differ_much_do_not_bound_the_capacity() {
        let mut profile = profile();
        // The second round was ten times as slow.
        let rounds = profile.runs.len() / 2;
        profile.runs[rounds..].iter_mut().for_each(|run| run.seconds *= 10.0);
        let plan = plan(&profile, &request(), &SETTINGS).unwrap();
        let capacity = plan.figures.iter().find(|figure| figure.name == "capacity").unwrap();
        assert!(capacity.interval.high.is_infinite() && capacity.interval.low > 0.0, "{:?}", capacity.interval);
        assert_eq!(serde_json::to_value(capacity).unwrap()["interval"]["high"], serde_json::Value::Null);
    }

    #[test]
    fn a_line_that_falls_below_nothing_gives_no_plan() {
        let mut profile = profile();
        // Larger writes were a little faster by chance, so the line reaches 0 at a far larger size.
        for run in &mut profile.runs {
            run.seconds = run.writes as f64 * (30e-6 - 1e-9 * run.payload_bytes as f64);
        }
        let far = Request { payload_bytes: 1_000_000, ..request() };
        assert_eq!(plan(&profile, &far, &SETTINGS).unwrap_err(), PlanError::NoTime { payload_bytes: 1_000_000 });
        assert!(plan(&profile, &request(), &SETTINGS).is_ok());
    }

    #[test]
    fn limits_of_the_plan_are_in_its_notes() {
        let mut far = request();
        far.payload_bytes = 50_000;
        far.writes_per_second = 2e6;
        let mut slow = profile();
        slow.disk.bytes_per_second = 1e6;
        slow.build = "debug".to_owned();
        let notes = plan(&slow, &far, &SETTINGS).unwrap().notes.join("\n");
        for wanted in
            ["outside of the measured sizes", "divides its streams", "speed of the disk", "debug build", "round trip"]
        {
            assert!(notes.contains(wanted), "{wanted}: {notes}");
        }
    }

    #[test]
    fn a_profile_survives_its_file() {
        let text = serde_json::to_string(&profile()).unwrap();
        let (read, written) = (serde_json::from_str::<Profile>(&text).unwrap(), profile());
        assert_eq!((read.check(), read.runs.len(), &read.machine), (Ok(()), written.runs.len(), &written.machine));
        // Conversion to text and back may change the last digit of a number.
        for (read, written) in read.runs.iter().zip(&written.runs) {
            assert_eq!(
                (read.writes, read.log_bytes, read.writers),
                (written.writes, written.log_bytes, written.writers)
            );
            near(read.rate(), written.rate());
        }
    }
}
