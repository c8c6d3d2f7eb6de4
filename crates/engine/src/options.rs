//! Options for opening a database.

use std::time::Duration;

use thalweg_log::LogOptions;
use thalweg_store::lsm::Compaction;
use thalweg_types::{Durability, limits};

/// State backend of a directory, fixed when the directory is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BackendKind {
    /// The whole state in memory, with checkpoints. The state must fit into memory.
    Memory,
    /// A log-structured merge tree. The state may be larger than memory.
    #[default]
    Lsm,
    /// A copy-on-write B-tree in one file. The state may be larger than memory.
    Redb,
    /// An SQLite database in one file, which other tools can read. The state may be larger than memory.
    Sqlite,
}

impl BackendKind {
    /// All backends.
    pub const ALL: [Self; 4] = [Self::Memory, Self::Lsm, Self::Redb, Self::Sqlite];

    /// Name of the backend in configurations and in the identity file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Lsm => "lsm",
            Self::Redb => "redb",
            Self::Sqlite => "sqlite",
        }
    }

    /// Returns true if this build contains the backend: redb and SQLite are features of the crate, on by default.
    #[must_use]
    pub const fn is_built(self) -> bool {
        match self {
            Self::Memory | Self::Lsm => true,
            Self::Redb => cfg!(feature = "redb"),
            Self::Sqlite => cfg!(feature = "sqlite"),
        }
    }

    /// Returns the backend with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Treatment of a missing directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Create {
    /// Create it.
    #[default]
    IfMissing,
    /// Fail with `Missing`.
    Never,
}

/// Treatment of corrupt log data that was attested as durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Repair {
    /// Refuse to open.
    #[default]
    Refuse,
    /// Cut the log where the corruption begins. Later data is lost, except what the state has persisted: that is kept,
    /// and the log continues from there.
    CutAtCorruption,
}

/// Options for opening a database. The default suits a small server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Backend for a new directory (`None`: LSM). An existing directory keeps its own, and opening it with another one
    /// fails.
    pub backend: Option<BackendKind>,
    /// Default durability level of writes.
    pub durability: Durability,
    /// Treatment of a missing directory.
    pub create: Create,
    /// Treatment of corrupt log data.
    pub repair: Repair,
    /// Size of a log segment in bytes. A larger size means fewer files, and space is freed in larger pieces. A write
    /// that does not fit into a segment is rejected, which cannot happen from
    /// [`MIN_MEMBER_SEGMENT_BYTES`](limits::MIN_MEMBER_SEGMENT_BYTES) on.
    pub segment_bytes: u32,
    /// Number of log segments prepared in advance. Each costs `segment_bytes` of disk; with too few a burst of writes
    /// waits.
    pub spare_segments: u32,
    /// Longest time between an `interval` write and its fsync: the amount that a power loss may cost.
    pub sync_interval: Duration,
    /// Free disk space in bytes below which new data is rejected.
    pub reserve_bytes: u64,
    /// Maximum number of bytes of log kept for history, beyond the part that the state needs.
    pub history_bytes: u64,
    /// Maximum age of log kept for history, beyond the part that the state needs.
    pub history_age: Duration,
    /// Time that the writer waits for further writes before an fsync. It trades latency for fewer fsyncs; zero is best
    /// for most.
    pub commit_delay: Duration,
    /// Size in bytes above which a value stays in the log and costs a second read; shorter values are written twice.
    /// At least 128.
    pub inline_value_bytes: usize,
    /// Size of the state's block or page cache in memory, in bytes. The memory backend has none.
    pub cache_bytes: u64,
    /// Size of the memtable in front of the state, in bytes; up to four may be in memory. The memory backend has none.
    pub memtable_bytes: usize,
    /// Trigger of the LSM backend's merges: automatic, or only [`Database::compact`](crate::Database::compact).
    pub compaction: Compaction,
    /// Maximum number of bytes of commands in memory that wait for the writer.
    pub max_queue_bytes: usize,
    /// Number of bytes of log to replay after which the state is flushed. A larger value makes opening after a crash
    /// slower.
    pub max_replay_bytes: u64,
    /// Interval of maintenance (retention, moving, freeing); zero runs it only on request.
    pub maintenance_interval: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let log = LogOptions::default();
        Self {
            backend: None,
            durability: Durability::default(),
            create: Create::default(),
            repair: Repair::default(),
            segment_bytes: log.segment_bytes,
            spare_segments: log.spare_segments,
            sync_interval: log.sync_interval,
            reserve_bytes: log.reserve_bytes,
            history_bytes: log.history_bytes,
            history_age: log.history_age,
            commit_delay: log.commit_delay,
            inline_value_bytes: limits::DEFAULT_INLINE_VALUE_BYTES,
            cache_bytes: 256 << 20,
            memtable_bytes: 64 << 20,
            compaction: Compaction::default(),
            max_queue_bytes: limits::MAX_QUEUE_BYTES,
            max_replay_bytes: 512 << 20,
            maintenance_interval: Duration::from_secs(1),
        }
    }
}

impl Options {
    pub(crate) fn log(&self) -> LogOptions {
        LogOptions {
            segment_bytes: self.segment_bytes,
            spare_segments: self.spare_segments,
            sync_interval: self.sync_interval,
            reserve_bytes: self.reserve_bytes,
            history_bytes: self.history_bytes,
            history_age: self.history_age,
            commit_delay: self.commit_delay,
            repair: match self.repair {
                Repair::Refuse => thalweg_log::Repair::Refuse,
                Repair::CutAtCorruption => thalweg_log::Repair::CutAtCorruption,
            },
            ..LogOptions::DEFAULTS
        }
    }
}
