//! How to open a database.

use std::time::Duration;

use thalweg_log::LogOptions;
use thalweg_store::lsm::Compaction;
use thalweg_types::{Durability, limits};

/// Which state backend a directory uses; fixed when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BackendKind {
    /// All in memory, with checkpoints. The state must fit in memory.
    Memory,
    /// A log-structured merge tree: larger than memory.
    #[default]
    Lsm,
    /// A copy-on-write B-tree: larger than memory, one file.
    Redb,
    /// An SQLite database: larger than memory, one file that other tools read.
    Sqlite,
}

impl BackendKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Memory, Self::Lsm, Self::Redb, Self::Sqlite];

    /// The name that configuration and the identity file use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Lsm => "lsm",
            Self::Redb => "redb",
            Self::Sqlite => "sqlite",
        }
    }

    /// Whether this build has it: redb and SQLite are features of the crate, on by default.
    #[must_use]
    pub const fn is_built(self) -> bool {
        match self {
            Self::Memory | Self::Lsm => true,
            Self::Redb => cfg!(feature = "redb"),
            Self::Sqlite => cfg!(feature = "sqlite"),
        }
    }

    /// The kind of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// What to do when there is no directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Create {
    /// Create it.
    #[default]
    IfMissing,
    /// Fail with `Missing`.
    Never,
}

/// What to do about corruption of attested log data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Repair {
    /// Refuse to open.
    #[default]
    Refuse,
    /// Cut the log where the corruption begins. What is behind it is lost, but for what the state had persisted
    /// of it: that is kept, and the log goes on from there.
    CutAtCorruption,
}

/// How to open a database. The default suits a small server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Backend for a new directory (`None`: LSM). An existing one keeps its own and refuses another.
    pub backend: Option<BackendKind>,
    /// Level of writes that name none.
    pub durability: Durability,
    /// Whether to create a missing directory.
    pub create: Create,
    /// What to do about corruption.
    pub repair: Repair,
    /// Size of a log segment. Larger: fewer files, and space comes back in larger pieces. A write for which a segment has
    /// no room is refused; from [`MIN_MEMBER_SEGMENT_BYTES`](limits::MIN_MEMBER_SEGMENT_BYTES) on none is.
    pub segment_bytes: u32,
    /// Log segments kept prepared. Each costs `segment_bytes` of disk; too few and a burst of writes waits.
    pub spare_segments: u32,
    /// Longest time between an `interval` write and its fsync: what a power loss may take.
    pub sync_interval: Duration,
    /// Free disk space below which new data is refused.
    pub reserve_bytes: u64,
    /// At most so many bytes of log are kept that the state no longer needs.
    pub history_bytes: u64,
    /// At most so long is log kept that the state no longer needs.
    pub history_age: Duration,
    /// Wait so long for company before an fsync. Trades latency for fewer fsyncs; zero is best for most.
    pub commit_delay: Duration,
    /// Values longer than this stay in the log and cost a second read; shorter ones are written twice.
    /// At least 128.
    pub inline_value_bytes: usize,
    /// Block or page cache of the state, in memory. The memory backend has none.
    pub cache_bytes: u64,
    /// Memtable in front of the state; up to four may be in memory. The memory backend has none.
    pub memtable_bytes: usize,
    /// When the LSM backend merges its tables: by itself, or only by [`Database::compact`](crate::Database::compact).
    pub compaction: Compaction,
    /// Bytes of commands that may wait for the writer, in memory.
    pub max_queue_bytes: usize,
    /// The state is flushed once so much log would have to be replayed. Larger: longer opens after a crash.
    pub max_replay_bytes: u64,
    /// How often the background looks for retention, moving and freeing; zero: only when asked to.
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
