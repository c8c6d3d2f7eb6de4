//! Options of `thalweg bench log`.

use std::{path::PathBuf, time::Duration};

use thalweg_types::Durability;

use crate::{
    BenchError,
    options::{parse_duration, require, within},
};

/// Options of `thalweg bench log`, the log suite.
#[derive(Clone, Debug, clap::Args)]
pub struct LogOptions {
    /// Directory below which the log is created. This decides which disk is measured.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Durability levels to measure.
    #[arg(long, value_delimiter = ',', default_values_t = [Durability::None, Durability::Os, Durability::Interval, Durability::Disk])]
    pub durability: Vec<Durability>,
    /// Numbers of threads that append at the same time, each measured.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 50, 100])]
    pub processes: Vec<usize>,
    /// Numbers of records per append, each measured.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 100, 1000])]
    pub batches: Vec<usize>,
    /// Length of a record in bytes.
    #[arg(long, default_value_t = 1024)]
    pub payload: usize,
    /// Duration of each round of a measurement; the disk probe beside it takes half of this.
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    pub time: Duration,
    /// Warm-up before the rounds of each measurement; its appends are not counted. 0: none.
    #[arg(long, default_value = "0s", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Rounds of each measurement; medians are reported.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Run only the measurements that have a required figure.
    #[arg(long)]
    pub only_checks: bool,
    /// MiB of memory to touch before the run, so that a virtual machine's slow first touch is not measured.
    #[arg(long, default_value_t = 1024)]
    pub warm_mib: u64,
    /// Seed of the random payloads.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Maximum size of a batch in bytes. A batch with its headers must fit into a segment of the default size.
const MAX_BATCH_BYTES: usize = 32 << 20;

impl LogOptions {
    pub(super) fn check(&self) -> Result<(), BenchError> {
        require(self.rounds > 0 && !self.time.is_zero(), "--rounds, --time", "must be above 0")?;
        self.processes.iter().try_for_each(|count| within("--processes", *count, 1000))?;
        let largest = self.batches.iter().max().copied().unwrap_or(0);
        let fits = !self.batches.contains(&0) && largest.saturating_mul(self.payload) <= MAX_BATCH_BYTES;
        require(fits, "--batches", "must be at least 1, and batch × payload at most 32 MiB")
    }
}
