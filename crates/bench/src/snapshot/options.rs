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

/// Options of the snapshot suite.
#[derive(Clone, Debug, clap::Args)]
pub struct SnapshotOptions {
    /// Entries that the database holds.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub entries: u64,
    /// Bytes of each value.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub value_size: u32,
    /// Percent of each value that compresses 8 to 1; the rest is random bytes.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub compressible: u32,
    /// Backend that holds the state.
    #[arg(long, default_value = "lsm", value_parser = backend)]
    pub backend: BackendKind,
    /// Compression of the snapshot: none, lz4 or zstd.
    #[arg(long, default_value = "zstd", value_parser = compression)]
    pub compress: Compression,
    /// MB a second, before compression, that a snapshot reads while others write; 0: as fast as it goes.
    #[arg(long, default_value_t = 0)]
    pub pace: u32,
    /// Destination of the snapshot.
    #[arg(long, value_enum, default_value_t)]
    pub to: Target,
    /// Number of writers beside the snapshot; each makes one put at a time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub writers: u32,
    /// Kind of the writers.
    #[arg(long, value_enum, default_value_t)]
    pub drive: Drive,
    /// Objective that the writers must meet at the knee.
    #[arg(long, default_value = "p99<5ms")]
    pub objective: Objective,
    /// Puts a second while a snapshot is taken, instead of half of the knee, which is not searched then.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Durability of their puts.
    #[arg(long, default_value_t = Durability::Disk)]
    pub durability: Durability,
    /// How long a window of the writers is, if a snapshot takes no longer, and a trial of the search.
    #[arg(long, default_value = "3s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Rounds, each a window without and one with a snapshot; all windows of a kind count as one.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Directory below which database and snapshots are made; decides which disk is measured.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Seed of keys and values.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

fn compression(text: &str) -> Result<Compression, String> {
    let names = Compression::ALL.map(Compression::name).join(", ");
    Compression::from_name(text).ok_or_else(|| format!("one of {names}"))
}

impl SnapshotOptions {
    /// Returns the bytes per second that a snapshot may read while others write; `None` means no limit.
    pub(super) fn pace(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(u64::from(self.pace) * 1_000_000)
    }
}

/// Destination of the chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Target {
    /// A file on the measured disk, synced at the end; afterwards all of it is read and checked.
    #[default]
    File,
    /// Nowhere: the chunks are counted and dropped.
    Null,
}

/// Kind of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Drive {
    /// A task: all share one thread, as the connections of a server do, and wait as futures.
    #[default]
    Tasks,
    /// A thread that blocks, as in a program that embeds the engine.
    Threads,
}
