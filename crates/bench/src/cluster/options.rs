//! Options of `thalweg bench cluster`.

use std::{path::PathBuf, time::Duration};

use crate::{
    BenchError,
    options::{parse_duration, require, within},
};

/// Part of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Puts to the leader, by number of clients.
    Puts,
    /// Gets on the leader, on a follower and on all nodes together, by level.
    Gets,
    /// SIGKILL of the leader under load: time until the next acknowledgement.
    Failover,
}

/// Another system whose cluster does the same work in turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PeerKind {
    /// etcd, by the program that `peers/etcd/run.sh` builds.
    Etcd,
}

/// Options of the cluster suite.
#[derive(Clone, Debug, clap::Args)]
pub struct ClusterOptions {
    /// HTTP addresses of the nodes of a running cluster, separated by commas. Without them the benchmark starts nodes of
    /// its own.
    #[arg(long, value_delimiter = ',', value_name = "ADDRESS", conflicts_with_all = ["count", "server_binary", "server_arg"])]
    pub nodes: Vec<String>,
    /// Number of nodes that the benchmark starts.
    #[arg(long, default_value_t = 3)]
    pub count: usize,
    /// Command to start as `COMMAND serve`; by default this program.
    #[arg(long)]
    pub server_binary: Option<PathBuf>,
    /// Additional arguments for the started nodes.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub server_arg: Vec<String>,
    /// Directory below which the started nodes keep their data. This decides which disk is measured.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Parts of the suite to run.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "puts,gets")]
    pub parts: Vec<Part>,
    /// Numbers of clients of the puts. Each client has a connection and one request in flight.
    #[arg(long, value_delimiter = ',', default_value = "1,10,50,100")]
    pub clients: Vec<usize>,
    /// Number of clients of the gets.
    #[arg(long, default_value_t = 100)]
    pub readers: usize,
    /// Length of a value in bytes.
    #[arg(long, default_value_t = 256)]
    pub value_size: usize,
    /// Number of different keys.
    #[arg(long, default_value_t = 100_000)]
    pub keys: u64,
    /// Duration of each run, without its warm-up.
    #[arg(long, default_value = "3s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Warm-up before each run; its requests are not counted.
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Runs of each row; medians are reported.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Number of times that the leader is killed.
    #[arg(long, default_value_t = 20)]
    pub failovers: u32,
    /// Clients that write while leaders are killed.
    #[arg(long, default_value_t = 8)]
    pub failover_clients: usize,
    /// Another system that does the same puts and gets in turns.
    #[arg(long, value_enum, requires = "peer_binary")]
    pub peer: Option<PeerKind>,
    /// Program that runs the other system's cluster and clients.
    #[arg(long, value_name = "FILE")]
    pub peer_binary: Option<PathBuf>,
    /// Seed of the random keys and values.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl ClusterOptions {
    pub(super) fn check(&self) -> Result<(), BenchError> {
        // The most nodes that can found a cluster together.
        within("--count", self.count, 7)?;
        for clients in self.clients.iter().chain([&self.readers, &self.failover_clients]) {
            within("--clients, --readers, --failover-clients", *clients, 10_000)?;
        }
        require(self.rounds > 0 && self.keys > 0, "--rounds, --keys", "must be at least 1")?;
        let fits = self.value_size <= thalweg_types::limits::MAX_VALUE_BYTES;
        require(fits, "--value-size", "is above the largest value")?;
        require(!self.duration.is_zero(), "--duration", "must be above 0")?;
        if self.runs(Part::Failover) {
            require(self.nodes.is_empty(), "--parts failover", "kills nodes, so it runs with nodes of its own only")?;
            require(self.count >= 3, "--count", "must be at least 3 for failover")?;
        }
        Ok(())
    }

    pub(super) fn runs(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }
}
