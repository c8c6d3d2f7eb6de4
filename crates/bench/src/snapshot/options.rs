//! Options of `thalweg bench snapshot`.

use std::{num::NonZeroU64, path::PathBuf, time::Duration};

use thalweg_engine::{BackendKind, snapshot::Compression};
use thalweg_types::Durability;

use crate::{
    load::Objective,
    options::{backend, parse_duration},
};

/// Name of the measured store in error messages.
pub(super) const NAME: &str = "thalweg";

/// Options of `thalweg bench snapshot`.
#[derive(Clone, Debug, clap::Args)]
pub struct SnapshotOptions {
    /// Number of entries in the database.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub entries: u64,
    /// Length of each value in bytes.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub value_size: u32,
    /// Percentage of each value that compresses 8 to 1; the rest of the value is random bytes.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub compressible: u32,
    /// Storage backend of the database.
    #[arg(long, default_value = "lsm", value_parser = backend)]
    pub backend: BackendKind,
    /// Compression of the snapshot: none, lz4 or zstd.
    #[arg(long, default_value = "zstd", value_parser = compression)]
    pub compress: Compression,
    /// Limit on the MB per second, before compression, that a snapshot reads while writers run; 0: no limit.
    #[arg(long, default_value_t = 0)]
    pub pace: u32,
    /// Destination to which the snapshot is written.
    #[arg(long, value_enum, default_value_t)]
    pub to: Target,
    /// Number of writers that run while a snapshot is taken; each makes one put at a time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub writers: u32,
    /// How the writers run: as tasks or as threads.
    #[arg(long, value_enum, default_value_t)]
    pub drive: WriterKind,
    /// Response-time objective for the writers. Without --rate, they write at half of the highest rate that meets it.
    #[arg(long, default_value = "p99<5ms", value_parser = Objective::of_times)]
    pub objective: Objective,
    /// Puts per second of all writers. Without it, the benchmark searches for the highest rate that meets the
    /// objective, and uses half of it.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Durability level of the writers' puts.
    #[arg(long, default_value_t = Durability::Disk)]
    pub durability: Durability,
    /// Shortest time for which the writers are measured without a snapshot, and duration of each run of the rate
    /// search.
    #[arg(long, default_value = "3s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Time for which the writers write before the first round, without being counted. 0: none.
    #[arg(long, default_value = "0s", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Number of rounds. Each measures the writers once while a snapshot is taken and once without a snapshot; the
    /// figures of all rounds are combined.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Directory below which the database and the snapshots are created. This decides which disk is measured.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Seed of the random keys and values.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

fn compression(text: &str) -> Result<Compression, String> {
    let names = Compression::ALL.map(Compression::name).join(", ");
    Compression::from_name(text).ok_or_else(|| format!("one of {names}"))
}

impl SnapshotOptions {
    /// Returns the limit on the bytes per second that a snapshot reads while writers run; `None` for no limit.
    pub(super) fn pace(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(u64::from(self.pace) * 1_000_000)
    }
}

/// Destination to which the chunks of a snapshot are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Target {
    /// A file on the measured disk, synced at the end. Afterwards the benchmark reads and checks the whole file.
    #[default]
    File,
    /// No storage: the chunks are counted and dropped.
    Null,
}

/// Kind of the writers that run while a snapshot is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum WriterKind {
    /// Each writer is an async task. All tasks share one thread, as the connections of a server do.
    #[default]
    Tasks,
    /// Each writer is a thread with blocking calls, as in a program that embeds the engine.
    Threads,
}
