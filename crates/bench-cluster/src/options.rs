//! Options of `thalweg bench cluster`.
//!
//! Owns: the options, the names of the parts, and the checks of their values. Does not own: the goals, which each part
//! has in its own module.

use std::{path::PathBuf, time::Duration};

use thalweg_lab::{profile::ProfileKind, profiling::ProfileOptions};
use thalweg_load::options::{parse_duration, require, within};

use crate::BenchError;

/// A measurement of the cluster benchmark, which the user can select.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Puts to the leader, by number of clients.
    Puts,
    /// Gets on the leader, on a follower and on all nodes together, by consistency level.
    Gets,
    /// The time from empty directories until three nodes serve.
    Founding,
    /// `SET` of Redis clients, 50 connections with 16 requests in flight each, to the leader and spread over all nodes.
    Resp,
    /// Batches of 100 records of 1 KiB that 16 publishers append to a stream over the native protocol.
    Appends,
    /// SIGKILL of the leader under load: time until the next acknowledgement.
    Failover,
    /// SIGTERM of each node in turn under load: failed requests, and the longest one of each restart.
    Rolling,
    /// Records that a follower lacks, at the rates and network delays of a published benchmark (row S of
    /// docs/performance.md).
    Lag,
    /// A follower was down while the cluster wrote: rate at which it gets the entries, and the cost for the clients.
    CatchUp,
    /// A new node gets the state as a snapshot: rate, memory, and what that costs the clients.
    Snapshot,
    /// Bytes that an idle node sends a minute, at the default heartbeat intervals and at those of a published benchmark
    /// (row S of docs/performance.md).
    Heartbeats,
    /// SIGKILL of a node: time until the others report it as suspect and as down. Also simulated, for more nodes.
    Detection,
    /// Puts on a cluster with TLS between the nodes and on a cluster without TLS, alternately.
    Tls,
    /// Puts while one follower has a tenth of a processor, or while its disk repeatedly does not respond. As root,
    /// control groups and loop devices cause this; otherwise the follower's process is stopped repeatedly.
    SlowFollower,
}

impl Part {
    /// Returns true if the part works only with nodes that the benchmark itself starts.
    fn needs_own_nodes(self) -> bool {
        !matches!(self, Self::Puts | Self::Gets)
    }
}

/// Times of heartbeats and of failure detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Timing {
    /// The defaults of `serve`.
    Default,
    /// Heartbeat and failure-detection times of a published benchmark (row S of docs/performance.md): a heartbeat every
    /// 5 s, suspect after 10 s, down after 15 s. With these times, founding a cluster takes half a minute.
    RowS,
}

/// System other than Thalweg that the benchmark also measures: its cluster and Thalweg's do the requests alternately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PeerKind {
    /// etcd, by the program that `peers/etcd/run.sh` builds.
    Etcd,
}

/// Options of `thalweg bench cluster`.
#[derive(Clone, Debug, clap::Args)]
pub struct ClusterOptions {
    /// HTTP addresses of the nodes of a running cluster, separated by commas. Without them the benchmark starts nodes
    /// of its own.
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
    /// Repeat the puts of each number of clients once for each of these kinds of profile, and add flame graphs of the
    /// leader's process to the report. perf records the process, or for alloc its own allocator does. --html also
    /// writes the graphs as SVG files beside the page.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND")]
    pub profile: Vec<ProfileKind>,
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
    /// Maximum lateness of the load generator's sends (99th percentile) in runs at a fixed rate: the appends of the
    /// part lag, and the puts beside a catch-up or a snapshot. Above it such a run is void. The nodes share the
    /// processors with the generator.
    #[arg(long, default_value = "10ms", value_parser = parse_duration)]
    pub max_lag: Duration,
    /// Number of times that each measurement is repeated; medians are reported.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Number of times that the leader is killed.
    #[arg(long, visible_alias = "kills", default_value_t = 20)]
    pub failovers: u32,
    /// Clients that write while nodes are killed or restarted.
    #[arg(long, default_value_t = 8)]
    pub failover_clients: usize,
    /// Rounds of rolling restarts, each of which restarts all nodes.
    #[arg(long, default_value_t = 20)]
    pub restarts: u32,
    /// Bytes of records that the cluster writes while a follower is down. The log must keep them: see --history-bytes
    /// of `serve`.
    #[arg(long, default_value_t = 256 << 20)]
    pub missed_bytes: u64,
    /// Bytes of keys and values in the state that a new node gets as a snapshot.
    #[arg(long, default_value_t = 512 << 20)]
    pub snapshot_bytes: u64,
    /// Numbers of nodes for which the parts heartbeats and detection are measured.
    #[arg(long, value_delimiter = ',', default_value = "3,10")]
    pub sizes: Vec<usize>,
    /// Settings of heartbeats and failure detection with which the bytes of an idle cluster are counted.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "default,row-s")]
    pub timings: Vec<Timing>,
    /// Time for which the bytes of an idle cluster are counted.
    #[arg(long, default_value = "60s", value_parser = parse_duration)]
    pub idle: Duration,
    /// Number of failures with which detection is measured for each cluster size: killed nodes, or failures in the
    /// simulation.
    #[arg(long, default_value_t = 20)]
    pub detections: u32,
    /// Cluster sizes for which detection is simulated, because one machine cannot run them.
    #[arg(long, value_delimiter = ',', default_value = "50")]
    pub simulated: Vec<usize>,
    /// System to compare with Thalweg: its cluster and Thalweg's do the same puts and gets alternately.
    #[arg(long, value_enum, requires = "peer_binary")]
    pub peer: Option<PeerKind>,
    /// Program that runs the cluster and the clients of the system that `--peer` names.
    #[arg(long, value_name = "FILE")]
    pub peer_binary: Option<PathBuf>,
    /// Seed of the random keys and values.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Shortest time for which the bytes of an idle cluster are counted. It spans many heartbeats at the default interval.
const MIN_IDLE: Duration = Duration::from_secs(1);
/// Largest number of nodes that the benchmark starts for heartbeats and detection.
const MAX_SIZE: usize = 16;
/// Largest number of nodes in a simulation of failure detection. In it, each node sends messages to every other node.
const MAX_SIMULATED: usize = 200;
/// Minimum bytes of a state that is sent as a snapshot. The log then has several segments, and can free the first ones.
const MIN_SNAPSHOT_BYTES: u64 = 64 << 20;

impl ClusterOptions {
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        // The most nodes that can found a cluster together.
        within("--count", self.count, 7)?;
        for clients in self.clients.iter().chain([&self.readers, &self.failover_clients]) {
            within("--clients, --readers, --failover-clients", *clients, 10_000)?;
        }
        require(self.rounds > 0 && self.keys > 0, "--rounds, --keys", "must be at least 1")?;
        let fits = self.value_size <= thalweg_types::limits::MAX_VALUE_BYTES;
        require(fits, "--value-size", "is above the largest value")?;
        require(!self.duration.is_zero(), "--duration", "must be above 0")?;
        if !self.profile.is_empty() {
            let message = "profiles need nodes that the benchmark starts here: leave out --nodes";
            require(self.nodes.is_empty(), "--profile", message)?;
            require(self.runs(Part::Puts), "--profile", "the profiles are of the puts: add puts to --parts")?;
        }
        if self.parts.iter().any(|part| part.needs_own_nodes()) {
            let message = "only puts and gets run on nodes that run already: leave out --nodes";
            require(self.nodes.is_empty(), "--parts", message)?;
        }
        if self.runs(Part::Failover) || self.runs(Part::Rolling) {
            require(self.count >= 3, "--count", "must be at least 3 for failover and rolling")?;
        }
        if self.runs(Part::SlowFollower) {
            require(self.count >= 3, "--count", "must be at least 3 for slow-follower")?;
        }
        for size in &self.sizes {
            within("--sizes", *size, MAX_SIZE)?;
            require(*size > 1, "--sizes", "must be at least 2")?;
        }
        for size in &self.simulated {
            within("--simulated", *size, MAX_SIMULATED)?;
            require(*size > 1, "--simulated", "must be at least 2")?;
        }
        if self.runs(Part::Snapshot) {
            let message = "must be at least 67108864 (64 MiB), so that the log can be freed";
            require(self.snapshot_bytes >= MIN_SNAPSHOT_BYTES, "--snapshot-bytes", message)?;
        }
        require(self.idle >= MIN_IDLE, "--idle", "must be at least 1s")?;
        require(self.missed_bytes > 0, "--missed-bytes", "must be at least 1")?;
        Ok(())
    }

    pub(crate) fn runs(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    /// Returns the profiles to record while the puts run.
    pub(crate) fn profiles(&self) -> ProfileOptions {
        ProfileOptions { profile: self.profile.clone() }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_load::options::parsed;

    use super::*;

    fn options(flags: &str) -> ClusterOptions {
        parsed(flags.split_whitespace()).unwrap()
    }

    #[test]
    fn profiles_are_of_puts_on_nodes_that_are_started_here() {
        let profiled = options("--profile cpu,offcpu");
        profiled.check().unwrap();
        assert_eq!(profiled.profiles().profile, [ProfileKind::Cpu, ProfileKind::Offcpu]);
        for (flags, part) in [
            ("--profile cpu --nodes 10.0.0.1:7070", "nodes that the benchmark starts here"),
            ("--profile cpu --parts gets,tls", "add puts to --parts"),
        ] {
            let error = options(flags).check().unwrap_err().to_string();
            assert!(error.starts_with("--profile: ") && error.contains(part), "{flags}: {error}");
        }
    }
}
