//! Options of the load over HTTP and of `thalweg bench http`.
//!
//! Owns: the options with their checks, and the description of the load in words and as arguments that repeat it. Does
//! not own: the loads of presets (`scenario`), or the options of other suites.

use std::time::Duration;

use thalweg_types::Durability;

use crate::{
    BenchError, ProfileOptions,
    load::{Arrivals, Objective, Pace},
    options::{check_window, max_rate_within, parse_duration, parsed, rate_within, require, steady, within},
    random::Distribution,
    server::StartOptions,
};

/// Number of keys if the options state none.
pub(super) const DEFAULT_KEYS: u64 = 100_000;

/// Options that need a schedule. `--closed` excludes them.
pub(crate) const OF_SCHEDULES: [&str; 2] = ["rate", "arrivals"];
/// Options that cannot be combined with `--preset`, because each scenario of a preset sets them.
const OF_SCENARIOS: [&str; 9] =
    ["rate", "arrivals", "closed", "connections", "pipeline", "value_size", "mix", "durability", "api"];

/// Kind of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Mix {
    /// Only puts.
    #[default]
    Put,
    /// Only gets, of keys that the benchmark stored before the run.
    Get,
    /// Gets and puts in equal number, of keys that the benchmark stored before the run.
    Mixed,
}

impl Mix {
    /// Returns the share of gets in per cent.
    pub fn get_percent(self) -> u8 {
        match self {
            Self::Put => 0,
            Self::Mixed => 50,
            Self::Get => 100,
        }
    }
}

/// API of the server that carries the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, clap::ValueEnum)]
pub enum ApiChoice {
    /// Key-value API: `/v1/kv/{keyspace}/{key}`.
    #[default]
    Kv,
    /// Entity API: `/v0/entity?id={key}`.
    Entity,
}

/// Sets of scenarios with fixed parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Preset {
    /// Load of a published benchmark of another server (row H of docs/performance.md): one connection at fixed rates,
    /// then 1 and 64 connections in a closed loop.
    RowH,
    /// 64 connections in a closed loop with values of 100 B, each load compared with requests to the route that stores
    /// nothing.
    Ratios,
}

/// Server under load: one that runs already, or one that the benchmark starts.
#[derive(Clone, Debug, clap::Args)]
pub struct ServerOptions {
    /// Address of a running server, as http://host:port. Without it the benchmark starts a server of its own.
    #[arg(long, conflicts_with_all = ["server_binary", "server_arg"])]
    pub target: Option<String>,
    /// Server to start without a target.
    #[command(flatten)]
    pub start: StartOptions,
}

/// Load of one scenario over HTTP.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct HttpLoad {
    /// Requests per second by a schedule, independent of the server's replies.
    #[arg(long, default_value_t = 1000.0)]
    pub rate: f64,
    /// Distribution of the scheduled requests over time: constant, poisson, ramp:FROM:TIME (the rate changes evenly
    /// from FROM/s to --rate within TIME after the warm-up), step:FROM:TIME (FROM/s until TIME after the warm-up, then
    /// --rate), or replay:FILE (the times in seconds on the lines of FILE, stretched to --rate on average and
    /// repeated).
    #[arg(long, default_value_t)]
    pub arrivals: Arrivals,
    /// Number of connections to the server.
    #[arg(long, default_value_t = 64)]
    pub connections: usize,
    /// Number of load threads. Each uses up to a core that a server on the same machine then lacks.
    #[arg(long, default_value_t = 1)]
    pub workers: usize,
    /// Number of unanswered requests per connection; 1 waits for each reply.
    #[arg(long, default_value_t = 1)]
    pub pipeline: usize,
    /// Duration of each run, without its warm-up.
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Warm-up before each run; its requests are not counted.
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Length of the windows into which plots and the samples of a report divide each run: at least 10ms, and longer if
    /// a run would have more than 1,200 windows. The default is 250ms, or longer if a run would have more than 120.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub window: Option<Duration>,
    /// Length of a value in bytes.
    #[arg(long, default_value_t = 100)]
    pub value_size: usize,
    /// Number of different keys.
    #[arg(long, default_value_t = DEFAULT_KEYS)]
    pub keys: u64,
    /// Kind of the requests: puts, gets or both.
    #[arg(long, value_enum, default_value_t)]
    pub mix: Mix,
    /// Distribution of the requests over the keys.
    #[arg(long, value_enum, default_value_t)]
    pub distribution: Distribution,
    /// Durability level that each put requests; without it the server's default.
    #[arg(long)]
    pub durability: Option<Durability>,
    /// API of the server that the requests use.
    #[arg(long, value_enum, default_value_t)]
    pub api: ApiChoice,
    /// Keyspace for requests to the key-value API.
    #[arg(long, default_value = "bench")]
    pub keyspace: String,
    /// Closed loop: send the next request after a reply. This hides stalls; use it to measure throughput, never
    /// latency.
    #[arg(long)]
    pub closed: bool,
    /// Do not store the keys before runs with gets; a get may then find no value.
    #[arg(long)]
    pub no_load: bool,
    /// Maximum lateness of the load generator's sends (99th percentile). Above it a run is void.
    #[arg(long, default_value = "1ms", value_parser = parse_duration)]
    pub max_lag: Duration,
    /// Seed of the random keys, values and arrival times.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Options of the HTTP suite.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("closed", |arg| arg.conflicts_with_all(OF_SCHEDULES)))]
pub struct HttpOptions {
    /// Server under load.
    #[command(flatten)]
    pub server: ServerOptions,
    /// Load of the scenario.
    #[command(flatten)]
    pub load: HttpLoad,
    /// Runs of each scenario; the median is reported.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Search for the highest rate that meets an objective, such as p99<5ms, or p50<1ms,p99.9<20ms,errors<0.1% for
    /// several conditions; the search begins at --rate.
    #[arg(long, conflicts_with_all = ["closed", "preset"])]
    pub search: Option<Objective>,
    /// Highest rate that the search tries, in requests per second.
    #[arg(long, default_value_t = 1e6, requires = "search")]
    pub max_rate: f64,
    /// A fixed set of scenarios to run, instead of the one scenario of the options.
    #[arg(long, value_enum, conflicts_with_all = OF_SCENARIOS)]
    pub preset: Option<Preset>,
    /// Options for profiling the server.
    #[command(flatten)]
    pub profile: ProfileOptions,
    /// Route that stores nothing, measured in the same run for comparison; empty for no comparison.
    #[arg(long, default_value = "/v1/echo")]
    pub echo_path: String,
}

impl HttpOptions {
    pub(super) fn check(&self) -> Result<(), BenchError> {
        require(self.rounds > 0, "--rounds, --keys", "must be at least 1")?;
        steady(self.search.as_ref(), self.load.arrivals)?;
        max_rate_within(self.max_rate)?;
        self.load.check()
    }
}

impl HttpLoad {
    /// Returns an error if the value of an option is out of its range. The error names the option.
    pub fn check(&self) -> Result<(), BenchError> {
        rate_within(Some(self.rate), 10_000_000)?;
        within("--connections", self.connections, 50_000)?;
        within("--workers, --pipeline", self.workers, 1024)?;
        within("--workers, --pipeline", self.pipeline, 1024)?;
        require(self.keys > 0, "--rounds, --keys", "must be at least 1")?;
        let fits = self.value_size <= thalweg_types::limits::MAX_VALUE_BYTES;
        require(fits, "--value-size", "is above the largest value")?;
        check_window(self.window)?;
        require(!self.duration.is_zero(), "--duration", "must be above 0")
    }

    /// Returns true if the load has gets of keys that the benchmark must have stored before.
    pub fn reads_stored_keys(&self) -> bool {
        self.mix != Mix::Put && !self.no_load
    }

    /// Returns the pace of the requests: the schedule, or a closed loop.
    pub fn pace(&self) -> Pace {
        Pace::of_rate(Some(self.rate).filter(|_| !self.closed), self.arrivals)
    }

    /// Returns the durability level that the puts request, as a name for reports; `-` if the load has no puts.
    pub fn durability_name(&self) -> &'static str {
        match self.mix {
            Mix::Get => "-",
            Mix::Put | Mix::Mixed => self.durability.map_or("server default", Durability::name),
        }
    }

    /// Describes the load in one line without its durability. Only loads with equal descriptions can be compared.
    pub fn describe(&self) -> String {
        self.describe_over(&format!("{} API", name(self.api)))
    }

    /// Describes the load like [`describe`](Self::describe). `api` names the API or the protocol.
    pub(crate) fn describe_over(&self, api: &str) -> String {
        let Self { connections, pipeline, value_size, keys, .. } = self;
        let pace = self.pace().name("/s");
        let [mix, spread] = [name(self.mix), name(self.distribution)];
        format!(
            "{mix}, {pace}, {connections} connections, pipeline {pipeline}, {value_size} B values, {keys} keys {spread}, \
             {api}, runs of {} s after {} s of warm-up",
            self.duration.as_secs_f64(),
            self.warmup.as_secs_f64()
        )
    }

    /// Returns the command-line arguments that describe this load.
    pub fn arguments(&self) -> Vec<String> {
        self.arguments_if(|_| true)
    }

    /// Returns the command-line arguments of the options of the load whose names satisfy `is`.
    pub(crate) fn arguments_if(&self, is: impl Fn(&str) -> bool) -> Vec<String> {
        let seconds = |time: Duration| format!("{}s", time.as_secs_f64());
        let mut all = vec![
            ("--rate", self.rate.to_string()),
            ("--arrivals", self.arrivals.to_string()),
            ("--connections", self.connections.to_string()),
            ("--workers", self.workers.to_string()),
            ("--pipeline", self.pipeline.to_string()),
            ("--duration", seconds(self.duration)),
            ("--warmup", seconds(self.warmup)),
            ("--value-size", self.value_size.to_string()),
            ("--keys", self.keys.to_string()),
            ("--mix", name(self.mix)),
            ("--distribution", name(self.distribution)),
            ("--api", name(self.api)),
            ("--keyspace", self.keyspace.clone()),
            ("--max-lag", seconds(self.max_lag)),
            ("--seed", self.seed.to_string()),
        ];
        all.extend(self.durability.map(|level| ("--durability", level.to_string())));
        all.extend(self.window.map(|window| ("--window", seconds(window))));
        let flags = [("--closed", self.closed), ("--no-load", self.no_load)];
        let flags = flags.into_iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag.to_owned());
        let flags = flags.filter(|flag| is(flag));
        let all = all.into_iter().filter(|(option, _)| is(option));
        all.flat_map(|(option, value)| [option.to_owned(), value]).chain(flags).collect()
    }

    /// Parses the arguments of a load, such as those that [`arguments`](Self::arguments) returned.
    pub fn of_arguments(arguments: &[String]) -> Result<Self, String> {
        parsed(arguments.iter().map(String::as_str))
    }
}

/// Returns the name of a choice as it is typed on the command line.
fn name(choice: impl clap::ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_repeated_from_its_arguments() {
        let usual = HttpLoad::of_arguments(&[]).unwrap();
        let other = HttpLoad {
            rate: 1234.5,
            arrivals: "ramp:100:1.5s".parse().unwrap(),
            mix: Mix::Mixed,
            distribution: Distribution::Zipf,
            durability: Some(Durability::Interval),
            warmup: Duration::from_micros(1500),
            window: Some(Duration::from_millis(50)),
            max_lag: Duration::from_nanos(333),
            closed: true,
            no_load: true,
            seed: u64::MAX,
            ..usual.clone()
        };
        for load in [usual, other] {
            assert_eq!(HttpLoad::of_arguments(&load.arguments()), Ok(load));
        }
        let described = HttpLoad::of_arguments(&["--warmup=1.5s".to_owned()]).unwrap().describe();
        assert!(described.ends_with("runs of 5 s after 1.5 s of warm-up"), "{described}");
        assert!(HttpLoad::of_arguments(&["--mix".to_owned(), "nothing".to_owned()]).is_err());
    }
}
