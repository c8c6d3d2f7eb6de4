//! Options of `thalweg bench pressure`.
//!
//! Owns: the options, the names of the suite's parts (its measurements), and the checks of the options' values. Does
//! not own: the goals, which each part has in its own module.

use std::{path::PathBuf, time::Duration};

use clap::ValueEnum as _;
use thalweg_load::{
    Objective,
    native::DEFAULT_MAX_LAG,
    options::{parse_bytes, parse_duration, rate_within, require, within},
    pairs::HEAD_BYTES,
};

use crate::BenchError;

/// A measurement of the pressure benchmark, which the user can select.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Loading the data over RESP, with and without the limit of memory: rates, stalls of the writers, memory.
    Load,
    /// Random gets of the data under the limit of memory, compared with random reads of the bare disk. Beside them,
    /// another client reads keys that stay in memory.
    Gets,
    /// Gets of absent keys that lie between the loaded ones, with and without the limit of memory: the share of the
    /// gets that read the disk, and the rate.
    Misses,
    /// Many small keys under the limit of memory: loading them, the server's start after a stop and after a kill, and
    /// random gets.
    Keys,
    /// Durable puts for a minute at half of the knee (the highest rate that meets the objective), beside a raw probe of
    /// the disk.
    Tails,
}

impl Part {
    /// Returns the name of this part of the suite on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Protocol over which the gets are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum WireProtocol {
    /// The protocol of Redis.
    Resp,
    /// The native protocol over TCP.
    Native,
    /// HTTP/1.1.
    Http,
}

impl WireProtocol {
    /// Returns the name of the protocol in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Resp => "RESP",
            Self::Native => "native",
            Self::Http => "HTTP",
        }
    }
}

/// Order in which the keys are loaded. Each key is written once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// Consecutive writes are far apart in the range of the keys, so that each flushed table covers the whole range.
    Scattered,
    /// The keys are written in ascending order.
    Ascending,
}

impl Order {
    /// Returns the order of loading in words.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Scattered => "scattered",
            Self::Ascending => "ascending",
        }
    }
}

/// Options of `thalweg bench pressure`.
#[derive(Clone, Debug, clap::Args)]
pub struct PressureOptions {
    /// Parts of the suite to run. `keys` takes long, so it runs only if it is named.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "load,gets,misses,tails")]
    pub parts: Vec<Part>,
    /// Memory that the server gets, with its page cache: the limit of its control group. The load generator is outside.
    #[arg(long, default_value = "512MiB", value_parser = parse_bytes, value_name = "BYTES")]
    pub memory: u64,
    /// Start servers without a limit of memory. The titles of the report state this, and no figure is compared with a
    /// figure under the limit.
    #[arg(long)]
    pub no_limit: bool,
    /// Bytes of the values of the parts load, gets and misses together; by default four times the memory.
    #[arg(long, value_parser = parse_bytes, value_name = "BYTES")]
    pub data: Option<u64>,
    /// Length in bytes of each value in the parts load, gets and misses.
    #[arg(long, default_value_t = 1200)]
    pub value_size: usize,
    /// Number of keys in the part `keys`.
    #[arg(long, default_value_t = 100_000_000)]
    pub keys: u64,
    /// Length in bytes of each value in the part `keys`.
    #[arg(long, default_value_t = 100)]
    pub key_value_size: usize,
    /// Order in which keys are loaded.
    #[arg(long, value_enum, default_value = "scattered")]
    pub order: Order,
    /// Number of connections that load the data.
    #[arg(long, default_value_t = 50)]
    pub connections: usize,
    /// Number of requests in flight on each connection that loads the data.
    #[arg(long, default_value_t = 64)]
    pub pipeline: usize,
    /// Numbers of clients of the gets. Each client has a connection and one request in flight. The part misses uses
    /// only the largest number.
    #[arg(long, value_delimiter = ',', default_value = "1,64")]
    pub clients: Vec<usize>,
    /// Protocols over which the gets and misses are sent.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "resp,native,http")]
    pub protocols: Vec<WireProtocol>,
    /// Rate of the client that reads keys in memory during the gets, in requests per second.
    #[arg(long, default_value_t = 1000.0)]
    pub resident_rate: f64,
    /// Duration of each run of gets and misses, without its warm-up, and of each run of the search for the knee in the
    /// part tails.
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Warm-up before each run; its requests are not counted.
    #[arg(long, default_value = "2s", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Duration of each probe of the bare disk, which is made right before a run of gets.
    #[arg(long, default_value = "2s", value_parser = parse_duration)]
    pub probe: Duration,
    /// Longest wait for the end of compactions after loading.
    #[arg(long, default_value = "2m", value_parser = parse_duration)]
    pub settle: Duration,
    /// Runs of each measurement; medians are reported. The part keys has one run.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Lengths in bytes of the values of the part tails.
    #[arg(long, value_delimiter = ',', default_value = "100,1024")]
    pub tail_sizes: Vec<usize>,
    /// Duration of each run of the part tails.
    #[arg(long, default_value = "60s", value_parser = parse_duration)]
    pub tail_duration: Duration,
    /// Number of connections of the part tails.
    #[arg(long, default_value_t = 64)]
    pub tail_connections: usize,
    /// Rate of the puts of the part tails, in requests per second; by default half of the knee, which is searched
    /// first.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Response-time objective of the part tails. The highest rate of puts that meets it is the knee.
    #[arg(long, default_value = "p99<10ms", value_parser = Objective::of_times)]
    pub objective: Objective,
    /// Rate of the raw probe beside the puts, in writes per second.
    #[arg(long, default_value_t = 100.0)]
    pub probe_rate: f64,
    /// Maximum lateness of the load generator's sends (99th percentile). Above it a scheduled run is void.
    #[arg(long, default_value = DEFAULT_MAX_LAG, value_parser = parse_duration)]
    pub max_lag: Duration,
    /// Command to start as `COMMAND serve`; by default this program.
    #[arg(long)]
    pub server_binary: Option<PathBuf>,
    /// Additional arguments for the started server.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub server_arg: Vec<String>,
    /// Directory below which the server keeps its data. This decides which disk is measured.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Seed of the random keys and values.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Maximum number of keys. Keys are numbers of ten digits, and absent keys need as many numbers as loaded ones.
pub(crate) const MAX_KEYS: u64 = 4_000_000_000;
/// Smallest limit of memory with which a server starts, in bytes.
const MIN_MEMORY: u64 = 64 << 20;

impl PressureOptions {
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        require(self.memory >= MIN_MEMORY, "--memory", "must be at least 64MiB")?;
        for connections in self.clients.iter().chain([&self.connections, &self.tail_connections]) {
            within("--clients, --connections, --tail-connections", *connections, 10_000)?;
        }
        within("--pipeline", self.pipeline, 10_000)?;
        within("--rounds", self.rounds, 100)?;
        for size in self.tail_sizes.iter().chain([&self.value_size, &self.key_value_size]) {
            let message = format!(
                "must be {HEAD_BYTES} to {}: a value names its key and its version",
                thalweg_types::limits::MAX_VALUE_BYTES
            );
            let fits = (HEAD_BYTES..=thalweg_types::limits::MAX_VALUE_BYTES).contains(size);
            require(fits, "--value-size, --key-value-size, --tail-sizes", message)?;
        }
        for keys in [self.keys, self.values()] {
            let message = format!("must give 1 to {MAX_KEYS} keys");
            require((1..=MAX_KEYS).contains(&keys), "--keys, --data", message)?;
        }
        for (name, time) in [("--duration", self.duration), ("--tail-duration", self.tail_duration)] {
            require(!time.is_zero(), name, "must be above 0")?;
        }
        for rate in [Some(self.resident_rate), Some(self.probe_rate), self.rate] {
            rate_within(rate, 10_000_000)?;
        }
        for (name, is_empty) in [
            ("--clients", self.clients.is_empty()),
            ("--protocols", self.protocols.is_empty()),
            ("--tail-sizes", self.tail_sizes.is_empty()),
        ] {
            require(!is_empty, name, "must name at least one")?;
        }
        Ok(())
    }

    pub(crate) fn runs(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    /// Returns the total bytes of the values that the benchmark loads, and then reads, in its parts `load`, `gets` and
    /// `misses`.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.data.unwrap_or(self.memory.saturating_mul(4))
    }

    /// Returns the number of values that the parts load, gets and misses load.
    pub(crate) fn values(&self) -> u64 {
        self.data_bytes() / (self.value_size as u64).max(1)
    }

    /// Returns the largest number of clients with which gets are measured.
    pub(crate) fn most_clients(&self) -> usize {
        self.clients.iter().copied().max().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> PressureOptions {
        thalweg_load::options::parsed(words.iter().copied()).unwrap()
    }

    #[test]
    fn the_data_is_four_times_the_memory_unless_it_is_stated() {
        assert_eq!(parsed(&[]).data_bytes(), 2 << 30);
        assert_eq!(parsed(&["--memory", "64MiB"]).data_bytes(), 256 << 20);
        let stated = parsed(&["--memory", "64MiB", "--data", "120MiB"]);
        assert_eq!((stated.data_bytes(), stated.values()), (120 << 20, (120 << 20) / 1200));
        assert!(!parsed(&[]).runs(Part::Keys), "it takes long");
    }

    #[test]
    fn options_out_of_range_are_refused_with_their_names() {
        for (words, part) in [
            (&["--memory", "32MiB"][..], "--memory"),
            (&["--value-size", "21"], "22 to"),
            (&["--data", "0"], "--data"),
            (&["--clients", "0"], "--clients"),
            (&["--rounds", "0"], "--rounds"),
            (&["--tail-duration", "0"], "--tail-duration"),
            (&["--rate", "0"], "--rate"),
        ] {
            let error = parsed(words).check().unwrap_err().to_string();
            assert!(error.contains(part), "{words:?}: {error}");
        }
        parsed(&[]).check().unwrap();
    }
}
