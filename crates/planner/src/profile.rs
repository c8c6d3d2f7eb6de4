//! A profile: the measured runs of a server on one machine, from which capacity plans are computed.

use serde::{Deserialize, Serialize};

/// Version of the JSON format of profiles.
pub const FORMAT: u32 = 1;

/// Reason why a profile cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// The profile has a format version that this program does not read.
    #[error("the profile has format version {found}, and this program reads version {FORMAT}")]
    Format {
        /// Format version that the profile states.
        found: u32,
    },
    /// The profile has fewer than three runs, or runs of only one payload size. Fitting a line needs three runs and two
    /// payload sizes.
    #[error("the profile has too few runs: at least three, of two payload sizes")]
    TooFew,
    /// A measured run has a value that no measurement can produce, such as a duration of zero.
    #[error("run {run} of the profile has an impossible {figure}")]
    Impossible {
        /// Position of the measured run in the profile, from 0.
        run: usize,
        /// Name of the impossible value, such as `duration`.
        figure: &'static str,
    },
}

/// A profile: measured runs, with a description of the machine on which they ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Version of the profile's JSON format; this program writes [`FORMAT`].
    pub format: u32,
    /// Version of the measured server.
    pub version: String,
    /// Cargo build profile of the measured server: `release` or `debug`.
    pub build: String,
    /// Machine on which the server and its clients ran.
    pub machine: Machine,
    /// Times of syncs and throughput of the machine's disk, measured without the server in addition to the measured
    /// runs.
    pub disk: Disk,
    /// Description of the operations that the clients performed.
    pub workload: String,
    /// Durability that each write waited for.
    pub durability: String,
    /// Number of nodes of the measured cluster, all on one machine. 1 is a single node.
    #[serde(default = "one")]
    pub replicas: u32,
    /// Runs in the order in which they were measured.
    pub runs: Vec<Run>,
}

/// Default of the field `replicas`: 1, because profiles without this field were measured on one node.
fn one() -> u32 {
    1
}

/// Description of the machine on which a profile was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Number of processors, shared by the server and the clients.
    pub processors: u64,
    /// Size of the machine's memory in bytes; `None` if the system does not report it.
    pub memory_bytes: Option<u64>,
    /// File system and device of the server's data.
    pub storage: String,
    /// Release of the operating system's kernel; `None` if the system does not report it.
    pub kernel: Option<String>,
}

/// Speed of the measured machine's disk, without the server: times of syncs, and throughput of writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Disk {
    /// Median time of an `fdatasync` after a write of 4 KiB, in microseconds.
    pub sync_p50_micros: f64,
    /// 99th percentile of the time of an `fdatasync` after a write of 4 KiB, in microseconds.
    pub sync_p99_micros: f64,
    /// Throughput of writes of 1 MiB, each followed by a sync, in bytes per second.
    pub bytes_per_second: f64,
}

/// One run of clients that append records. Each client waits for the acknowledgement of a record before it appends the
/// next one (a closed loop).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Size of each record's payload, in bytes.
    pub payload_bytes: u64,
    /// Number of clients that wrote concurrently.
    pub writers: u64,
    /// Duration of the measured run, in seconds.
    pub seconds: f64,
    /// Number of acknowledged writes in the measured run.
    pub writes: u64,
    /// CPU time that the server's process used during the run, in seconds. In a cluster, all values measured at a
    /// server are those of the leader.
    pub cpu_seconds: f64,
    /// Bytes that the server wrote to its log during the measured run, including headers.
    pub log_bytes: u64,
    /// Number of fsyncs of the server's log during the measured run.
    pub syncs: u64,
    /// Growth of the state (memtables and tables) during the measured run, in bytes.
    pub state_bytes: u64,
    /// Largest resident memory of the server's process from its start to the end of the measured run, in bytes.
    pub peak_memory_bytes: u64,
    /// Median time of a write in microseconds, measured by the client.
    pub p50_micros: f64,
    /// 90th percentile of the time of a write, in microseconds.
    pub p90_micros: f64,
    /// 99th percentile of the time of a write, in microseconds.
    pub p99_micros: f64,
    /// 99.9th percentile of the time of a write, in microseconds.
    pub p999_micros: f64,
}

impl Run {
    /// Returns the number of acknowledged writes per second of the measured run.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.writes as f64 / self.seconds
    }

    /// Returns `amount`, a total of the measured run, divided by the number of writes in the run.
    #[must_use]
    pub fn each(&self, amount: f64) -> f64 {
        amount / self.writes as f64
    }
}

impl Profile {
    /// Checks that the profile can be used.
    ///
    /// # Errors
    ///
    /// Fails if the profile has another format version, too few runs, or a value that no measurement can produce.
    pub fn check(&self) -> Result<(), ProfileError> {
        if self.format != FORMAT {
            return Err(ProfileError::Format { found: self.format });
        }
        for (run, figures) in self.runs.iter().enumerate() {
            // The counters are read at slightly different times. Each client may have one write that only one of them
            // counts.
            let least_bytes = figures.writes.saturating_sub(figures.writers).saturating_mul(figures.payload_bytes);
            let times = [figures.p50_micros, figures.p90_micros, figures.p99_micros, figures.p999_micros];
            let wrong = [
                (!(figures.seconds > 0.0 && figures.seconds.is_finite()), "duration"),
                (figures.writes == 0, "number of writes"),
                (!(figures.cpu_seconds > 0.0 && figures.cpu_seconds.is_finite()), "CPU time"),
                (figures.log_bytes < least_bytes, "size of the log"),
                (!times.is_sorted() || !times.iter().all(|time| time.is_finite() && *time > 0.0), "percentile"),
            ];
            if let Some((_, figure)) = wrong.into_iter().find(|(is_wrong, _)| *is_wrong) {
                return Err(ProfileError::Impossible { run, figure });
            }
        }
        if self.runs.len() < 3 || self.sizes().len() < 2 {
            return Err(ProfileError::TooFew);
        }
        Ok(())
    }

    /// Returns the different payload sizes of the measured runs in bytes, in ascending order.
    #[must_use]
    pub fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<_> = self.runs.iter().map(|run| run.payload_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}
