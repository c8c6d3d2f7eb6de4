//! `thalweg bench http`: options in, report out.

use std::{collections::HashSet, path::PathBuf, sync::Arc, time::Duration};

use thalweg_types::Durability;

use super::{
    request::{Api, Operation, Requests},
    run::{Http, Missing, Outcome},
    scenario::{ApiChoice, Mix, Preset, Scenario},
};
use crate::{
    BenchError, Progress, Report,
    data::Values,
    latency::micros,
    load::{
        pace::Pace,
        run::{self, Plan},
        schedule::Arrivals,
        search::{self, Bounds, Objective, Trial, parse_duration},
        target::{NativePort, Target},
        validity::{Validity, summary},
    },
    options::{rate_within, require, within},
    random::{Distribution, KeyChooser},
    report::{Check, Row, Table, cells, mebibytes},
    stats::{Summary, ratio},
};

const DEFAULT_KEYS: u64 = 100_000;

/// Options of the HTTP suite.
#[derive(Clone, Debug, clap::Args)]
pub struct HttpOptions {
    /// Server to load, as http://host:port. Without it one is started in a process of its own.
    #[arg(long)]
    pub target: Option<String>,
    /// The command to start as `COMMAND serve` when no target is given; this one by default.
    #[arg(long)]
    pub server_binary: Option<PathBuf>,
    /// More arguments for the started server.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub server_arg: Vec<String>,
    /// Directory below which the started server keeps its data; decides which disk is measured.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Requests per second, whatever the server does.
    #[arg(long, default_value_t = 1000.0)]
    pub rate: f64,
    /// Spread of the requests over time.
    #[arg(long, value_enum, default_value_t)]
    pub arrivals: Arrivals,
    /// Connections.
    #[arg(long, default_value_t = 64)]
    pub connections: usize,
    /// Load threads; each takes up to a core from the server if they share a machine.
    #[arg(long, default_value_t = 1)]
    pub workers: usize,
    /// Requests under way per connection; 1 waits for each reply.
    #[arg(long, default_value_t = 1)]
    pub pipeline: usize,
    /// Counted time of each run.
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Time before it that is not counted.
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Runs of each scenario; the median is reported.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100)]
    pub value_size: usize,
    /// Number of different keys.
    #[arg(long, default_value_t = DEFAULT_KEYS)]
    pub keys: u64,
    /// Kind of the requests.
    #[arg(long, value_enum, default_value_t)]
    pub mix: Mix,
    /// Spread of the requests over the keys.
    #[arg(long, value_enum, default_value_t)]
    pub distribution: Distribution,
    /// Durability asked of each put; the server's default without it.
    #[arg(long)]
    pub durability: Option<Durability>,
    /// API that carries the requests.
    #[arg(long, value_enum, default_value_t)]
    pub api: ApiChoice,
    /// Keyspace of the key-value API.
    #[arg(long, default_value = "bench")]
    pub keyspace: String,
    /// Look for the highest rate that meets an objective, such as p99<5ms; --rate is where it begins.
    #[arg(long, conflicts_with_all = ["closed", "preset"])]
    pub search: Option<Objective>,
    /// Rate above which the search does not go.
    #[arg(long, default_value_t = 1e6)]
    pub max_rate: f64,
    /// Send as fast as replies come. This hides stalls: use it for throughput, never for latency.
    #[arg(long)]
    pub closed: bool,
    /// A fixed set of scenarios instead of one.
    #[arg(long, value_enum)]
    pub preset: Option<Preset>,
    /// Do not load the keys before gets; then a key may be missing.
    #[arg(long)]
    pub no_load: bool,
    /// Route that stores nothing, measured in the same run for comparison; empty for none.
    #[arg(long, default_value = "/v1/echo")]
    pub echo_path: String,
    /// The generator's own lateness (99th percentile) above which a run is void.
    #[arg(long, default_value = "1ms", value_parser = parse_duration)]
    pub max_lag: Duration,
    /// Seed of keys, values and arrivals.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl HttpOptions {
    pub(super) fn keys_are_default(&self) -> bool {
        self.keys == DEFAULT_KEYS
    }

    fn check(&self) -> Result<(), BenchError> {
        rate_within(Some(self.rate), 10_000_000)?;
        within("--connections", self.connections, 50_000)?;
        within("--workers, --pipeline", self.workers, 1024)?;
        within("--workers, --pipeline", self.pipeline, 1024)?;
        require(self.rounds > 0 && self.keys > 0, "--rounds, --keys", "must be at least 1")?;
        let fits = self.value_size <= thalweg_types::limits::MAX_VALUE_BYTES;
        require(fits, "--value-size", "is above the largest value")?;
        require(!self.duration.is_zero(), "--duration", "must be above 0")
    }
}

/// Runs the suite.
pub fn run(options: &HttpOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    options.check()?;
    let (mut report, scratch) = Report::begin_below("http", options.dir.as_deref())?;
    let target = match &options.target {
        Some(url) => Target::running(url)?,
        None => {
            let data = scratch.path().join("data");
            Target::start(options.server_binary.as_deref(), &data, NativePort::Off, &options.server_arg, progress)?
        }
    };
    report.condition("target", target_name(options, &target));
    report.condition(
        "load",
        format!(
            "{} threads in this process, same machine as the server if that is local; seed {}",
            options.workers, options.seed
        ),
    );
    let mut suite = Suite { options, target: &target, loaded: HashSet::new(), progress };
    match options.search {
        Some(objective) => suite.search(objective, &mut report)?,
        None => suite.scenarios(&mut report)?,
    }
    Ok(report.finish())
}

fn target_name(options: &HttpOptions, target: &Target) -> String {
    match (&options.target, target.process()) {
        (Some(url), _) => url.clone(),
        (None, id) => format!("own server at {}, process {}", target.address, id.unwrap_or(0)),
    }
}

/// The rounds of one scenario, and of the echo route beside it.
struct Rounds {
    subject: Vec<Outcome>,
    echo: Vec<Outcome>,
}

struct Suite<'a> {
    options: &'a HttpOptions,
    target: &'a Target,
    /// Key sets that are in the server already: API, keys, bytes of a value.
    loaded: HashSet<(ApiChoice, u64, usize)>,
    progress: &'a mut dyn Progress,
}

impl Suite<'_> {
    fn scenarios(&mut self, report: &mut Report) -> Result<(), BenchError> {
        let scenarios = match self.options.preset {
            Some(preset) => Scenario::of_preset(preset, self.options),
            None => vec![Scenario::from_options(self.options)],
        };
        let echo = self.has_echo();
        report.condition("rounds", self.options.rounds.to_string());
        report.tables.push(conditions_table(&scenarios));
        let mut figures = Table::new("figures: medians of the rounds; response times from the scheduled moment");
        let mut last = None;
        for scenario in &scenarios {
            self.load_keys(scenario)?;
            let fsyncs = self.fsyncs();
            let rounds = self.rounds(scenario, echo)?;
            let fsyncs = self.fsyncs().zip(fsyncs).map(|(now, then)| now - then);
            figures.row(figure_row(scenario, &rounds, fsyncs));
            report.checks.extend(checks(scenario, &rounds));
            last = rounds.subject.into_iter().next_back();
        }
        report.tables.push(figures);
        if let (Some(outcome), 1) = (last, scenarios.len()) {
            report.tables.push(spectrum_table(&outcome));
            report.tables.push(status_table(&outcome));
        }
        Ok(())
    }

    fn rounds(&mut self, scenario: &Scenario, echo: bool) -> Result<Rounds, BenchError> {
        let mut rounds = Rounds { subject: Vec::new(), echo: Vec::new() };
        for round in 1..=self.options.rounds {
            if echo {
                let outcome = run::run(&self.load(scenario, Kind::Echo, scenario.pace))?;
                self.say(scenario, "echo", round, &outcome);
                rounds.echo.push(outcome);
            }
            let outcome = run::run(&self.load(scenario, Kind::Subject, scenario.pace))?;
            self.say(scenario, "", round, &outcome);
            rounds.subject.push(outcome);
        }
        Ok(rounds)
    }

    fn say(&mut self, scenario: &Scenario, what: &str, round: u32, outcome: &Outcome) {
        let figures = summary(outcome.rate, "/s", &outcome.times, &outcome.validity);
        let (name, pace, durability) = (&scenario.name, scenario.pace_name(), scenario.durability_name());
        self.progress.step(&format!("{name} {what} ({pace}, {durability}) round {round}: {figures}"));
    }

    fn search(&mut self, objective: Objective, report: &mut Report) -> Result<(), BenchError> {
        let scenario = Scenario::from_options(self.options);
        self.load_keys(&scenario)?;
        let bounds = Bounds {
            start: self.options.rate,
            max: self.options.max_rate,
            precision: 0.03,
            repeats: self.options.rounds,
        };
        report.condition("objective", objective.to_string());
        report.tables.push(conditions_table(std::slice::from_ref(&scenario)));
        let mut table = Table::new("search: climb, bisect, repeat");
        let mut last_good = None;
        let knee = search::find_knee(&bounds, |rate| {
            let mut load = self.load(&scenario, Kind::Subject, Pace::Open { rate, arrivals: self.options.arrivals });
            load.give_up = objective.patience();
            let outcome = run::run(&load)?;
            let trial = trial_of(&outcome, objective)?;
            self.say(&Scenario { pace: load.pace, ..scenario.clone() }, "", 1, &outcome);
            table.row(trial_row(rate, &outcome, trial));
            if trial == Trial::Pass {
                last_good = Some(outcome);
            }
            Ok::<_, BenchError>(trial)
        })?;
        report.tables.push(table);
        report.tables.extend(last_good.iter().map(spectrum_table));
        let what = format!("highest rate with {objective}, stable over {} repeats", bounds.repeats);
        report.checks.push(knee.check(what, |rate| format!("{rate:.0}/s")));
        Ok(())
    }

    /// Puts every key of a scenario with gets into the server once, at level `os`: that is setup.
    fn load_keys(&mut self, scenario: &Scenario) -> Result<(), BenchError> {
        let set = (scenario.api, scenario.keys, scenario.value_bytes);
        if scenario.mix == Mix::Put || self.options.no_load || !self.loaded.insert(set) {
            return Ok(());
        }
        self.progress.step(&format!("loading {} keys of {} B", scenario.keys, scenario.value_bytes));
        let setup = Scenario { mix: Mix::Put, durability: Some(Durability::Os), pipeline: 16, ..scenario.clone() };
        let outcome = run::run(&self.load(&setup, Kind::Subject, Pace::Each { keys: scenario.keys }))?;
        match outcome.validity {
            Validity::Good => Ok(()),
            Validity::Errors(why) | Validity::Overloaded(why) | Validity::Saturated(why) => {
                Err(BenchError::Subject { subject: self.target.host.clone(), doing: "loading the keys", message: why })
            }
        }
    }

    fn load(&self, scenario: &Scenario, kind: Kind, pace: Pace) -> Plan<Http> {
        let options = self.options;
        let api = match (kind, scenario.api) {
            (Kind::Echo, _) => Api::Echo { path: options.echo_path.clone() },
            (Kind::Subject, ApiChoice::Kv) => Api::Kv { keyspace: options.keyspace.clone() },
            (Kind::Subject, ApiChoice::Entity) => Api::Entity,
        };
        let values = Values::new(scenario.value_bytes, options.seed);
        let durability = scenario.durability.filter(|_| kind == Kind::Subject);
        let missing = if scenario.mix == Mix::Put || options.no_load { Missing::Allowed } else { Missing::Lost };
        Plan {
            protocol: Http {
                address: self.target.address,
                requests: Arc::new(Requests::new(api, &self.target.host, durability, values)),
                get_percent: scenario.mix.get_percent(),
                missing,
            },
            connections: scenario.connections,
            workers: options.workers,
            pipeline: scenario.pipeline,
            pace,
            keys: KeyChooser::new(scenario.distribution, scenario.keys),
            warmup: options.warmup,
            duration: options.duration,
            give_up: scenario.give_up(),
            max_lag: options.max_lag,
            seed: options.seed,
            server: self.target.process(),
        }
    }

    fn has_echo(&self) -> bool {
        let path = &self.options.echo_path;
        // A GET only finds out whether the route is there; it takes POST.
        !path.is_empty() && self.target.get(path).is_some_and(|(status, _)| matches!(status, 200 | 405))
    }

    /// Returns the server's fsyncs since its start, from its metrics.
    fn fsyncs(&self) -> Option<u64> {
        self.target.metric("thalweg_log_syncs_total").map(|count| count as u64)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Subject,
    Echo,
}

fn trial_of(outcome: &Outcome, objective: Objective) -> Result<Trial, BenchError> {
    match &outcome.validity {
        // Shedding load with 503 is a way of not keeping up; wrong bytes are not.
        Validity::Errors(_) if outcome.tally.own.wrong_bytes == 0 && outcome.tally.lost == 0 => Ok(Trial::Fail),
        validity => objective.judge("the server", validity, &outcome.times),
    }
}

fn conditions_table(scenarios: &[Scenario]) -> Table {
    let mut table = Table::new("conditions");
    for scenario in scenarios {
        table.row(cells! {
            "scenario" => scenario.name.as_str(), "requests" => format!("{:?}", scenario.mix).to_lowercase(),
            "API" => format!("{:?}", scenario.api).to_lowercase(), "pace" => scenario.pace_name(),
            "connections" => scenario.connections, "pipeline" => scenario.pipeline,
            "durability" => scenario.durability_name(), "value B" => scenario.value_bytes, "keys" => scenario.keys,
            "spread" => format!("{:?}", scenario.distribution).to_lowercase(),
        });
    }
    table
}

fn figure_row(scenario: &Scenario, rounds: &Rounds, fsyncs: Option<u64>) -> Row {
    let over = |figure: fn(&Outcome) -> f64| Summary::of(&rounds.subject.iter().map(figure).collect::<Vec<_>>()).median;
    let quantile = |percentile: f64| {
        let times = rounds.subject.iter().map(|outcome| micros(outcome.times.percentile(percentile)));
        Summary::of(&times.collect::<Vec<_>>()).median
    };
    let rates = Summary::of(&rates(&rounds.subject));
    let payload = scenario.value_bytes as f64;
    let written = rounds.subject.iter().map(|outcome| {
        let puts = outcome.tally.times[Operation::Put as usize].count();
        outcome.server.and_then(|cost| cost.written_bytes).map_or(f64::NAN, |bytes| bytes as f64)
            / (puts as f64 * payload)
    });
    let written = Summary::of(&written.collect::<Vec<_>>()).median;
    let peak = rounds.subject.iter().filter_map(|outcome| outcome.server?.peak_rss_bytes).max();
    let has_server = rounds.subject.iter().any(|outcome| outcome.server.is_some());
    let cpu = over(|outcome| outcome.server.unwrap_or_default().cpu_seconds * 1e6 / outcome.replies() as f64);
    cells! {
        "scenario" => scenario.name.as_str(), "requests/s" => rates.median, "± MAD" => rates.mad,
        "p50 µs" => quantile(50.0), "p90 µs" => quantile(90.0), "p99 µs" => quantile(99.0),
        "p99.9 µs" => quantile(99.9), "max µs" => quantile(100.0),
        "service p99 µs" => over(|outcome| micros(outcome.tally.own.service.percentile(99.0))),
        "lag p99 µs" => over(|outcome| micros(outcome.tally.lag.percentile(99.0))),
        "server CPU µs/request" => Some(cpu).filter(|_| has_server), "server peak RSS MiB" => mebibytes(peak),
        "written B/payload B" => written, "fsyncs" => fsyncs,
        "echo requests/s" => Summary::of(&self::rates(&rounds.echo)).median,
        "of echo" => ratio(&self::rates(&rounds.subject), &self::rates(&rounds.echo)),
        "verdict" => worst(rounds).name(),
    }
}

fn rates(outcomes: &[Outcome]) -> Vec<f64> {
    outcomes.iter().map(|outcome| outcome.rate).collect()
}

/// Returns the first validity that is not good.
fn worst(rounds: &Rounds) -> Validity {
    Validity::worst(rounds.subject.iter().map(|outcome| &outcome.validity))
}

fn checks(scenario: &Scenario, rounds: &Rounds) -> Vec<Check> {
    let what = format!("{} ({}, {})", scenario.name, scenario.pace_name(), scenario.durability_name());
    let mut checks = vec![Check::of_run(&what, "all answered, rightly, in step", worst(rounds))];
    if let Some(share) = scenario.echo_share {
        let measured = ratio(&rates(&rounds.subject), &rates(&rounds.echo));
        checks.push(Check::at_least(
            format!("{what}: rate against the route that stores nothing"),
            measured,
            share,
            " ×",
        ));
    }
    checks
}

fn spectrum_table(outcome: &Outcome) -> Table {
    let mut table = Table::new("percentile spectrum of the last good run");
    let service = outcome.tally.own.service.spectrum();
    for (line, service) in outcome.times.spectrum().iter().zip(service) {
        table.row(cells! {
            "percentile" => format!("{}", line.percentile), "response µs" => line.time_us,
            "requests at or below" => line.count, "service µs" => service.time_us,
        });
    }
    table
}

fn status_table(outcome: &Outcome) -> Table {
    let mut table = Table::new("replies of the last run");
    for (status, count) in &outcome.tally.own.statuses {
        table.row(cells! {
            "status" => status.to_string(), "count" => *count,
        });
    }
    let tally = &outcome.tally;
    for (name, count) in [
        ("key without a value", tally.own.missing),
        ("wrong bytes", tally.own.wrong_bytes),
        ("broken connections", tally.lost),
        ("never answered", tally.unanswered),
    ] {
        table.row(cells! {
            "status" => name, "count" => count,
        });
    }
    table
}

fn trial_row(rate: f64, outcome: &Outcome, trial: Trial) -> Row {
    let times = outcome.times.quantiles();
    let cpu = outcome.server.unwrap_or_default().cpu_seconds * 1e6 / outcome.replies() as f64;
    cells! {
        "offered/s" => rate, "answered/s" => outcome.rate, "p50 µs" => times.p50_us, "p90 µs" => times.p90_us,
        "p99 µs" => times.p99_us, "p99.9 µs" => times.p999_us, "max µs" => times.max_us,
        "lag p99 µs" => micros(outcome.tally.lag.percentile(99.0)),
        "server CPU µs/request" => Some(cpu).filter(|_| outcome.server.is_some()),
        "outcome" => trial.name(&outcome.validity),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Quiet, report::Verdict};
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        options: HttpOptions,
    }

    fn options(more: &[&str]) -> HttpOptions {
        Cli::parse_from(["bench"].iter().chain(more)).options
    }

    #[test]
    fn bad_options_are_named() {
        for (flags, part) in [
            (vec!["--rate", "0"], "--rate"),
            (vec!["--connections", "0"], "--connections"),
            (vec!["--keys", "0"], "--keys"),
            (vec!["--value-size", "999999999"], "--value-size"),
        ] {
            let error = run(&options(&flags), &mut Quiet).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_whole_run_against_a_running_server_reports_rate_spectrum_and_verdict() {
        let address = super::super::run::tests::serve(|_| super::super::run::tests::Act::Answer);
        let url = format!("http://{address}");
        let mut flags = vec!["--target", &url, "--api", "entity", "--keys", "50", "--duration", "200ms"];
        flags.extend(["--warmup", "50ms", "--rounds", "1", "--mix", "mixed", "--max-lag", "1s", "--connections", "2"]);
        let report = run(&options(&flags), &mut Quiet).unwrap();
        assert_eq!(report.verdict(), Verdict::Met, "{}", report.to_text());
        let text = report.to_text();
        for part in ["1000/s constant", "percentile spectrum", "99.99", "never answered"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        flags.extend(["--search", "p90<1s", "--max-rate", "2000"]);
        let report = run(&options(&flags), &mut Quiet).unwrap();
        assert!(report.to_text().contains("2000/s, limited by the highest rate allowed"), "{}", report.to_text());
    }
}
