//! Options of `thalweg bench http`, and its presets, each of which is a list of scenarios with fixed options.

use std::{path::PathBuf, time::Duration};

use thalweg_types::Durability;

use crate::{
    BenchError,
    load::{Arrivals, Objective, Pace},
    options::{parse_duration, rate_within, require, within},
    random::Distribution,
};

const DEFAULT_KEYS: u64 = 100_000;

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
    /// Share of gets in per cent.
    pub fn get_percent(self) -> u8 {
        match self {
            Self::Put => 0,
            Self::Mixed => 50,
            Self::Get => 100,
        }
    }
}

/// API that carries the requests.
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
    /// Row H, a published benchmark: one connection at fixed rates, then 1 and 64 connections in a closed loop.
    RowH,
    /// 64 connections in a closed loop with values of 100 B, compared with the route that stores nothing.
    Ratios,
}

/// Options of the HTTP suite.
#[derive(Clone, Debug, clap::Args)]
pub struct HttpOptions {
    /// Address of a running server, as http://host:port. Without it the benchmark starts a server of its own.
    #[arg(long)]
    pub target: Option<String>,
    /// Command to start as `COMMAND serve` when no target is given; by default this program.
    #[arg(long)]
    pub server_binary: Option<PathBuf>,
    /// Additional arguments for the started server.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub server_arg: Vec<String>,
    /// Directory below which the started server keeps its data. This decides which disk is measured.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Requests per second by a schedule, independent of the server's replies.
    #[arg(long, default_value_t = 1000.0)]
    pub rate: f64,
    /// Distribution of the scheduled requests over time.
    #[arg(long, value_enum, default_value_t)]
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
    /// Runs of each scenario; the median is reported.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
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
    /// Search for the highest rate that meets an objective, such as p99<5ms; the search begins at --rate.
    #[arg(long, conflicts_with_all = ["closed", "preset"])]
    pub search: Option<Objective>,
    /// Highest rate that the search tries, in requests per second.
    #[arg(long, default_value_t = 1e6)]
    pub max_rate: f64,
    /// Closed loop: send the next request after a reply. This hides stalls; use it to measure throughput, never
    /// latency.
    #[arg(long)]
    pub closed: bool,
    /// A fixed set of scenarios to run, instead of the one scenario of the options.
    #[arg(long, value_enum)]
    pub preset: Option<Preset>,
    /// Do not store the keys before runs with gets; a get may then find no value.
    #[arg(long)]
    pub no_load: bool,
    /// Route that stores nothing, measured in the same run for comparison; empty for no comparison.
    #[arg(long, default_value = "/v1/echo")]
    pub echo_path: String,
    /// Maximum lateness of the load generator's sends (99th percentile). Above it a run is void.
    #[arg(long, default_value = "1ms", value_parser = parse_duration)]
    pub max_lag: Duration,
    /// Seed of the random keys, values and arrival times.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl HttpOptions {
    pub(super) fn check(&self) -> Result<(), BenchError> {
        rate_within(Some(self.rate), 10_000_000)?;
        within("--connections", self.connections, 50_000)?;
        within("--workers, --pipeline", self.workers, 1024)?;
        within("--workers, --pipeline", self.pipeline, 1024)?;
        require(self.rounds > 0 && self.keys > 0, "--rounds, --keys", "must be at least 1")?;
        let fits = self.value_size <= thalweg_types::limits::MAX_VALUE_BYTES;
        require(fits, "--value-size", "is above the largest value")?;
        require(!self.duration.is_zero(), "--duration", "must be above 0")
    }

    pub(super) fn pace(&self) -> Pace {
        Pace::of_rate(Some(self.rate).filter(|_| !self.closed), self.arrivals)
    }
}

/// A scenario: one line of the report.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub(super) name: String,
    pub(super) options: HttpOptions,
    /// Required share of the rate of the route that stores nothing; `None` if nothing is required.
    pub(super) echo_share: Option<f64>,
}

impl Scenario {
    /// Returns the one scenario of the options, or those of the preset that the options select.
    pub(super) fn all(options: &HttpOptions) -> Vec<Self> {
        match options.preset {
            None => vec![Self::new(&format!("{:?}", options.mix).to_lowercase(), options.clone())],
            Some(Preset::RowH) => row_h(options),
            Some(Preset::Ratios) => ratios(options),
        }
    }

    fn new(name: &str, options: HttpOptions) -> Self {
        Self { name: name.to_owned(), options, echo_share: None }
    }

    pub(super) fn durability_name(&self) -> &'static str {
        match self.options.mix {
            Mix::Get => "-",
            Mix::Put | Mix::Mixed => self.options.durability.map_or("server default", Durability::name),
        }
    }
}

/// Returns the scenarios of row H, a published benchmark of another system. Its figures were measured with writes that
/// were not synced: level `interval` is comparable with them, while `disk` is Thalweg's default promise. So each
/// scenario with puts runs at both levels.
fn row_h(options: &HttpOptions) -> Vec<Scenario> {
    let base = HttpOptions { api: ApiChoice::Entity, ..options.clone() };
    let scheduled = |mix: Mix, rate: f64, bytes: usize| HttpOptions {
        mix,
        value_size: bytes,
        connections: 1,
        rate,
        closed: false,
        arrivals: Arrivals::Constant,
        ..base.clone()
    };
    let put = |name: &str, rate: f64, bytes: usize, level: Durability| {
        let options = HttpOptions { durability: Some(level), ..scheduled(Mix::Put, rate, bytes) };
        Scenario::new(&format!("{name}, {level}"), options)
    };
    let fastest = |name: &str, mix: Mix, connections: usize, pipeline: usize, durability: Option<Durability>| {
        let load = HttpOptions { connections, pipeline, closed: true, ..base.clone() };
        Scenario::new(name, HttpOptions { mix, value_size: 100, durability, ..load })
    };
    let keys = if options.keys == DEFAULT_KEYS { 1_500_000 } else { options.keys };
    let many_gets = HttpOptions { keys, ..scheduled(Mix::Get, 2000.0, 1200) };
    vec![
        put("put 50 B at 10,000/s", 10_000.0, 50, Durability::Interval),
        put("put 50 B at 30,000/s", 30_000.0, 50, Durability::Interval),
        put("put 1 KB at 10,000/s", 10_000.0, 1024, Durability::Interval),
        put("put 50 B at 5,000/s", 5000.0, 50, Durability::Disk),
        put("put 1 KB at 5,000/s", 5000.0, 1024, Durability::Disk),
        Scenario::new(&format!("get 1.2 KB of {keys} keys at 2,000/s"), many_gets),
        fastest("put, 1 connection", Mix::Put, 1, 1, Some(Durability::Interval)),
        fastest("put, 1 connection, pipelined", Mix::Put, 1, 64, Some(Durability::Interval)),
        fastest("put, 64 connections", Mix::Put, 64, 1, Some(Durability::Interval)),
        fastest("put, 64 connections", Mix::Put, 64, 1, Some(Durability::Disk)),
        fastest("put, 64 connections, pipelined", Mix::Put, 64, 8, Some(Durability::Interval)),
        fastest("get, 64 connections", Mix::Get, 64, 1, None),
        fastest("get, 64 connections, pipelined", Mix::Get, 64, 8, None),
    ]
}

fn ratios(options: &HttpOptions) -> Vec<Scenario> {
    let base = HttpOptions { value_size: 100, connections: 64, pipeline: 1, closed: true, ..options.clone() };
    let put = HttpOptions { mix: Mix::Put, durability: Some(Durability::Disk), ..base.clone() };
    let get = HttpOptions { mix: Mix::Get, ..base };
    [("put", put, 0.5), ("get", get, 0.8)]
        .map(|(name, options, share)| Scenario { echo_share: Some(share), ..Scenario::new(name, options) })
        .into()
}
