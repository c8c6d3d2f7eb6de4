//! A profile: runs of a server that were measured on one machine.

use serde::{Deserialize, Serialize};

/// Version of the form.
pub const FORMAT: u32 = 1;

/// Reason why a profile cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// Another version of the program has written the profile.
    #[error("the profile has format version {found}, and this program reads version {FORMAT}")]
    Format {
        /// Version of the profile's form.
        found: u32,
    },
    /// A line needs three runs of two payload sizes or more.
    #[error("the profile has too few runs: at least three, of two payload sizes")]
    TooFew,
    /// A run has a figure that no measurement can have.
    #[error("run {run} of the profile has an impossible {figure}")]
    Impossible {
        /// Position of the run, from 0.
        run: usize,
        /// Name of the figure.
        figure: &'static str,
    },
}

/// Measured runs, with the machine on which they ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Version of the form, [`FORMAT`].
    pub format: u32,
    /// Version of the server.
    pub version: String,
    /// Build of the server: `release` or `debug`.
    pub build: String,
    /// Machine, which also ran the clients.
    pub machine: Machine,
    /// Raw speed of the disk, measured beside the runs.
    pub disk: Disk,
    /// Description of the workload.
    pub workload: String,
    /// Durability of each write.
    pub durability: String,
    /// Number of nodes of the measured cluster, all on the same machine; 1 is a node alone.
    #[serde(default = "one")]
    pub replicas: u32,
    /// Runs in the order in which they were measured.
    pub runs: Vec<Run>,
}

/// Profiles from before there was a number of nodes are those of one.
fn one() -> u32 {
    1
}

/// Description of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processors that the server and the clients shared.
    pub processors: u64,
    /// Size of the memory.
    pub memory_bytes: Option<u64>,
    /// File system and device.
    pub storage: String,
    /// Release of the kernel.
    pub kernel: Option<String>,
}

/// Raw speed of a disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Disk {
    /// Median time of an `fdatasync` after a write of 4 KiB.
    pub sync_p50_micros: f64,
    /// 99th percentile of the time of an `fdatasync` after a write of 4 KiB.
    pub sync_p99_micros: f64,
    /// Bytes per second of synced writes of 1 MiB.
    pub bytes_per_second: f64,
}

/// One run: clients that append records, each waiting for its acknowledgement before the next one (a closed loop).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Size of each record's payload.
    pub payload_bytes: u64,
    /// Number of clients.
    pub writers: u64,
    /// Duration.
    pub seconds: f64,
    /// Acknowledged writes.
    pub writes: u64,
    /// CPU time of the server's process; in a cluster that of the leader, as are the other figures of the server.
    pub cpu_seconds: f64,
    /// Bytes written to the log, framing included.
    pub log_bytes: u64,
    /// fsyncs of the log.
    pub syncs: u64,
    /// Growth of the state: its memtables and tables.
    pub state_bytes: u64,
    /// Largest resident memory of the server's process until the end of the run.
    pub peak_memory_bytes: u64,
    /// Median time of a write, as the client sees it.
    pub p50_micros: f64,
    /// 90th percentile.
    pub p90_micros: f64,
    /// 99th percentile.
    pub p99_micros: f64,
    /// 99.9th percentile.
    pub p999_micros: f64,
}

impl Run {
    /// Writes per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.writes as f64 / self.seconds
    }

    /// Returns an amount for each write.
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
    /// Fails if another version has written it, if it has too few runs, or if a figure is impossible.
    pub fn check(&self) -> Result<(), ProfileError> {
        if self.format != FORMAT {
            return Err(ProfileError::Format { found: self.format });
        }
        for (run, figures) in self.runs.iter().enumerate() {
            // Each client can have a write that one counter has and another does not have yet.
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

    /// Returns the payload sizes of the runs, in order, each once.
    #[must_use]
    pub fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<_> = self.runs.iter().map(|run| run.payload_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}
