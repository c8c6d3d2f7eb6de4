//! Options of the RESP suite.
//!
//! Owns: the options, the names of servers and generators, and the checks of options that exclude each other. Does not
//! own: the scenarios of a preset (`scenario`), or starting servers (`server`).

use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

use super::requests::Mix;
use crate::{
    BenchError, ProfileOptions,
    load::{Address, Arrivals, Objective, Pace},
    native::HEAD_BYTES,
    options::{check_window, max_rate_within, parse_duration, rate_within, require, scheduled, steady, within},
    random::Distribution,
};

/// Options of one scenario that cannot be combined with a preset, because its scenarios set them.
const OF_SCENARIOS: [&str; 8] =
    ["mix", "subscribers", "rate", "server", "connections", "pipeline", "distribution", "database"];

/// Options of the RESP suite.
#[derive(Clone, Debug, clap::Args)]
pub struct RespOptions {
    /// Servers, measured in turns: thalweg, redis-none, redis-always (started for the run), bare (a minimal server that
    /// only syncs each SET before it replies: the upper bound of the machine), host:port or unix:PATH, each with @N for
    /// its database N. The first server's figures are divided by those of each other server.
    #[arg(long, value_delimiter = ',', default_value = "thalweg")]
    pub server: Vec<ServerSpec>,
    /// Load generators to use. If none is named, a preset runs both, and otherwise this program generates the load.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub generator: Vec<Generator>,
    /// Operations with their weights, as in get:9,set:1: ping, get, set, incr, hget, hset, mget, mset, xadd.
    #[arg(long, default_value = "set")]
    pub mix: Mix,
    /// Publish to this number of subscribers instead of sending the mix; each delivery is counted and compared.
    #[arg(long, conflicts_with_all = ["mix", "rate", "search"])]
    pub subscribers: Option<usize>,
    /// Number of connections to each server.
    #[arg(long, short = 'c', default_value_t = 50)]
    pub connections: usize,
    /// Maximum number of unanswered requests on each connection.
    #[arg(long, short = 'P', default_value_t = 1)]
    pub pipeline: usize,
    /// Bytes of a value or a message [default: 100; with a preset, what its scenarios require]
    #[arg(long, short = 'd')]
    pub value_size: Option<usize>,
    /// Number of different keys.
    #[arg(long, default_value_t = 100_000)]
    pub keys: u64,
    /// Distribution of the requests over the keys.
    #[arg(long, value_enum, default_value_t)]
    pub distribution: Distribution,
    /// Number of the database to select on servers that are named without one.
    #[arg(long, default_value_t = 0)]
    pub database: u32,
    /// Requests per second by a schedule, independent of the replies. Without it the next request follows a reply.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Distribution of the scheduled requests over time: constant, poisson, ramp:FROM:TIME (the rate changes evenly
    /// from FROM/s to --rate within TIME after the warm-up), step:FROM:TIME (FROM/s until TIME after the warm-up, then
    /// --rate), or replay:FILE (the times in seconds on the lines of FILE, stretched to --rate on average and
    /// repeated).
    #[arg(long, default_value_t)]
    pub arrivals: Arrivals,
    /// Search for the highest rate that meets an objective, such as p99<5ms, or p50<1ms,p99.9<20ms,errors<0.1% for
    /// several conditions; the search begins at --rate.
    #[arg(long, conflicts_with = "preset")]
    pub search: Option<Objective>,
    /// Highest rate that the search tries, in requests per second.
    #[arg(long, default_value_t = 2e6, requires = "search")]
    pub max_rate: f64,
    /// A fixed set of scenarios with their own servers to run, instead of the one scenario of the options.
    #[arg(long, value_enum, conflicts_with_all = OF_SCENARIOS)]
    pub preset: Option<Preset>,
    /// Run only scenarios whose name contains this text, such as "SET durable".
    #[arg(long, requires = "preset")]
    pub only: Option<String>,
    /// Options for profiling the servers.
    #[command(flatten)]
    pub profile: ProfileOptions,
    /// Duration of each run, without its warm-up.
    #[arg(long, default_value = "2s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Warm-up before each run; its requests are not counted.
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Length of the windows into which plots and the samples of a report divide each run: at least 10ms, and longer if
    /// a run would have more than 1,200 windows. The default is 250ms, or longer if a run would have more than 120.
    /// Runs with subscribers and runs of redis-benchmark have no windows.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub window: Option<Duration>,
    /// Longest wait for a reply before a run is aborted.
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub give_up: Duration,
    /// Runs of each scenario on each server; medians are reported.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Maximum lateness of the load generator's sends (99th percentile). Above it a scheduled run is void.
    #[arg(long, default_value = "1ms", value_parser = parse_duration)]
    pub max_lag: Duration,
    /// Seed of the random keys, values, operations and arrival times.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Use version 3 of the protocol, RESP3, instead of RESP2.
    #[arg(long)]
    pub resp3: bool,
    /// Password for AUTH on servers that run already.
    #[arg(long)]
    pub password: Option<String>,
    /// Count wrong replies instead of ending the run at the first one.
    #[arg(long)]
    pub keep_going: bool,
    /// Command to start as `COMMAND serve`; by default this program.
    #[arg(long)]
    pub server_binary: Option<PathBuf>,
    /// Additional arguments for the started Thalweg server.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub server_arg: Vec<String>,
    /// Path of the redis-server to start.
    #[arg(long, default_value = "redis-server")]
    pub redis_server: PathBuf,
    /// Path of the redis-benchmark to run.
    #[arg(long, default_value = "redis-benchmark")]
    pub redis_benchmark: PathBuf,
    /// Directory below which started servers keep their data. This decides which disk is measured.
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

/// Load generator: the program that sends the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Generator {
    /// This process sends the requests and compares the replies.
    Own,
    /// redis-benchmark sends the requests in a process of its own; it notices only error replies.
    RedisBenchmark,
}

impl Generator {
    /// Returns the name of the load generator as it is typed on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::RedisBenchmark => "redis-benchmark",
        }
    }
}

/// Sets of scenarios with fixed parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Preset {
    /// Scenarios that compare Thalweg with redis-server, each with a goal: a ratio of their figures that Thalweg should
    /// reach.
    Goals,
}

/// Size of a value in bytes if neither the options nor a preset set it.
const DEFAULT_VALUE_BYTES: usize = 100;

/// Maximum size of a value in bytes. It is bounded because the generator buffers whole replies.
const MAX_VALUE_BYTES: usize = 1 << 20;

impl RespOptions {
    /// Returns an error if an option is out of its range, or if two options contradict each other.
    pub fn check(&self) -> Result<(), BenchError> {
        within("--connections", self.connections, 20_000)?;
        within("--pipeline", self.pipeline, 10_000)?;
        within("--subscribers", self.subscribers.unwrap_or(1), 10_000)?;
        within("--keys", self.keys, 100_000_000)?;
        within("--rounds", self.rounds, 100)?;
        check_window(self.window)?;
        let bytes = self.value_bytes();
        require(bytes <= MAX_VALUE_BYTES, "--value-size", "must be at most 1 MiB")?;
        let fits = self.subscribers.is_none() || bytes >= HEAD_BYTES;
        require(fits, "--value-size", "a message has a head of 24 bytes: it must be at least that")?;
        let is_valid = !self.duration.is_zero() && self.duration <= Duration::from_secs(3600);
        require(is_valid, "--duration", "must be above 0 and at most an hour")?;
        rate_within(self.rate, 100_000_000)?;
        max_rate_within(self.max_rate)?;
        steady(self.search.as_ref(), self.arrivals)?;
        let is_scheduled = self.rate.is_some() || self.search.is_some();
        scheduled(self.arrivals, is_scheduled)?;
        let measures = |choice: fn(&ServerChoice) -> bool| self.server.iter().any(|spec| choice(&spec.choice));
        let starts = self.preset.is_some() || measures(|choice| *choice == ServerChoice::Thalweg);
        let is_given = self.server_binary.is_some() || !self.server_arg.is_empty();
        require(
            starts || !is_given,
            "--server-binary, --server-arg",
            "are for the server thalweg, which is not among --server",
        )?;
        let has_password = self.preset.is_none() && measures(|choice| matches!(choice, ServerChoice::At(_)));
        require(
            has_password || self.password.is_none(),
            "--password",
            "is for servers that run already: name one with --server",
        )?;
        let is_simple = self.mix.operations().count() == 1 && !is_scheduled;
        let can_send = is_simple || !self.generator.contains(&Generator::RedisBenchmark);
        require(can_send, "--generator", "redis-benchmark has closed loops only, of one operation")?;
        require(!self.server.is_empty(), "--server", "name at least one")
    }

    /// Returns the size of a value in bytes.
    pub fn value_bytes(&self) -> usize {
        self.value_size.unwrap_or(DEFAULT_VALUE_BYTES)
    }

    /// Returns the pace of the requests: by a schedule or by the replies.
    pub fn pace(&self) -> Pace {
        Pace::of_rate(self.rate, self.arrivals)
    }
}

/// Server to measure, as named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerChoice {
    /// A Thalweg server that the suite starts: database 0 is durable, database 1 is a cache.
    Thalweg,
    /// A redis-server without persistence. The suite starts it.
    RedisNone,
    /// A redis-server that the suite starts. It syncs each write before it replies.
    RedisAlways,
    /// A thread of this process that only writes, syncs and replies. No durable server on this machine can be faster.
    Bare,
    /// A server that runs already at this address.
    At(Address),
}

/// A server to measure, and one of its databases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSpec {
    /// Server to measure, as named on the command line.
    pub choice: ServerChoice,
    /// Number of the database to select; `None` selects the scenario's database.
    pub database: Option<u32>,
}

impl FromStr for ServerSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, database) = match text.rsplit_once('@') {
            Some((name, database)) => {
                let number = database.parse().map_err(|_| format!("{database:?} is not the number of a database"))?;
                (name, Some(number))
            }
            None => (text, None),
        };
        let choice = match name {
            "thalweg" => ServerChoice::Thalweg,
            "redis-none" => ServerChoice::RedisNone,
            "redis-always" => ServerChoice::RedisAlways,
            "bare" => ServerChoice::Bare,
            address => ServerChoice::At(address.strip_prefix("redis://").unwrap_or(address).parse()?),
        };
        Ok(Self { choice, database })
    }
}

impl fmt::Display for ServerChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Thalweg => "thalweg",
            Self::RedisNone => "redis-none",
            Self::RedisAlways => "redis-always",
            Self::Bare => "bare",
            Self::At(address) => return address.fmt(f),
        })
    }
}

impl ServerSpec {
    /// Returns the server as it was typed on the command line.
    pub fn name(&self) -> String {
        self.database.map_or(self.choice.to_string(), |database| format!("{}@{database}", self.choice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_with_their_database() {
        let spec: ServerSpec = "thalweg@1".parse().unwrap();
        assert_eq!(
            (spec.choice.clone(), spec.database, spec.name()),
            (ServerChoice::Thalweg, Some(1), "thalweg@1".to_owned())
        );
        for text in ["redis-none", "redis-always@3", "bare", "127.0.0.1:6379", "unix:/run/redis.sock@2"] {
            assert_eq!(text.parse::<ServerSpec>().unwrap().name(), text);
        }
        // A server prints its address in this form.
        assert_eq!("redis://127.0.0.1:7379".parse::<ServerSpec>().unwrap().name(), "127.0.0.1:7379");
        assert!("redis@x".parse::<ServerSpec>().is_err());
        assert!("mongo".parse::<ServerSpec>().is_err());
    }
}
