//! Options for opening a database.

use std::time::Duration;

use thalweg_log::LogOptions;
use thalweg_store::lsm::{Compaction, TableCompression};
use thalweg_types::{Durability, limits};

/// Backend that stores the state of a directory. Fixed when the directory is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BackendKind {
    /// The whole state is in memory, with checkpoints on disk. The state must fit into memory.
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
    /// All backends, including those that this build does not contain.
    pub const ALL: [Self; 4] = [Self::Memory, Self::Lsm, Self::Redb, Self::Sqlite];

    /// Returns the backend's name in configurations and in the identity file.
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

    /// Returns the backend with this name; `None` if there is none.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Action if the data directory to be opened does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Create {
    /// The open creates the directory.
    #[default]
    IfMissing,
    /// The open fails with `Missing`.
    Never,
}

/// Action if the log of a directory has corrupt data that was declared durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Repair {
    /// The open fails and changes nothing.
    #[default]
    Refuse,
    /// The open cuts the log where the corruption begins, so log records behind this point are lost. Effects of lost
    /// records that the state has already persisted are kept, and new log records follow the position that the state
    /// has reached.
    CutAtCorruption,
}

/// Options for opening a database. The defaults suit a small server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Backend for the state of a new directory (`None`: LSM). An existing directory keeps its backend, and opening it
    /// with another one fails.
    pub backend: Option<BackendKind>,
    /// Durability level of writes for which the caller chooses none.
    pub durability: Durability,
    /// Action if the directory does not exist.
    pub create: Create,
    /// Action if the log has corrupt data that was declared durable.
    pub repair: Repair,
    /// Size of a log segment in bytes. With larger segments there are fewer files, and space is freed in larger pieces.
    /// A write that does not fit into a segment is rejected; segments of at least
    /// [`MIN_MEMBER_SEGMENT_BYTES`](limits::MIN_MEMBER_SEGMENT_BYTES) hold every write. A member of a cluster needs
    /// segments of that size.
    pub segment_bytes: u32,
    /// Number of log segments prepared in advance. Each takes `segment_bytes` of disk space. With too few segments, a
    /// burst of writes has to wait for new ones.
    pub spare_segments: u32,
    /// Longest time between a write at level `interval` and its fsync. A power loss may lose the writes of this time.
    pub sync_interval: Duration,
    /// Free disk space in bytes below which new data is rejected.
    pub reserve_bytes: u64,
    /// Maximum number of bytes of log kept only for history (watches of past changes), beyond the part that the state
    /// needs.
    pub history_bytes: u64,
    /// Maximum age of log kept only for history (watches of past changes), beyond the part that the state needs.
    pub history_age: Duration,
    /// Time that the writer waits for further writes before an fsync, so that they share it. More time means fewer
    /// fsyncs and a higher latency; zero is best for most uses.
    pub commit_delay: Duration,
    /// Size in bytes above which a value is stored only in the log, so that a get needs a second read. Shorter values
    /// are also stored in the state, so they are written twice. At least 128.
    pub inline_value_bytes: usize,
    /// Size in bytes of the cache, in memory, of the state's blocks or pages. The memory backend has none.
    pub cache_bytes: u64,
    /// Size in bytes of the operating system's page cache. While the state of the LSM backend is larger than this,
    /// newly written tables do not stay in the page cache. Affects only speed.
    pub page_cache_bytes: u64,
    /// Size of the state's memtable in bytes; up to four memtables may be in memory. The memory backend has none.
    pub memtable_bytes: usize,
    /// Compression of the tables of the LSM backend below level 0. Each open may choose another compression; existing
    /// tables change when they are merged.
    pub table_compression: TableCompression,
    /// Determines when the LSM backend merges its tables: automatically, or only on
    /// [`Database::compact`](crate::Database::compact).
    pub compaction: Compaction,
    /// Maximum number of bytes of commands that wait for the writer in memory. Further commands are rejected as
    /// `Overloaded`.
    pub max_queue_bytes: usize,
    /// Maximum number of bytes of changes that wait in memory for the watches of all clients. A watch whose changes
    /// have no room reads them from the log later.
    pub max_watch_queues_bytes: usize,
    /// Number of bytes of keys that one compaction of a stream holds in memory. With fewer bytes, a stream needs more
    /// passes.
    pub compaction_key_bytes: usize,
    /// Number of bytes of log after the persisted state above which the state is persisted again. A larger value makes
    /// opening after a crash slower, because more log is replayed.
    pub max_replay_bytes: u64,
    /// Interval between rounds of maintenance (retention, moving live bytes, freeing log segments). With zero,
    /// maintenance runs only on request.
    pub maintenance_interval: Duration,
    /// Maximum span by which the wall clock may be ahead of the last use of the directory at an open; beyond it, the
    /// open fails with `ClockJump`. Zero disables the check, so a wrong clock ends leases and expires keys for good. A
    /// smaller span finds smaller errors of the clock, but then shorter downtimes also need the consent of an operator.
    pub max_clock_jump: Duration,
    /// Interval between scrubs, each of which reads all stored data and verifies it; with zero there are none. The
    /// first scrub begins at the latest ten minutes after the open.
    pub scrub_interval: Duration,
    /// Maximum number of bytes per second that a scrub reads. A higher rate leaves less of the disk to other work. A
    /// lower rate makes a scrub longer, and the files of redb and SQLite can grow by the data written during a scrub.
    pub scrub_bytes_per_second: u64,
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
            page_cache_bytes: u64::MAX,
            memtable_bytes: 64 << 20,
            table_compression: TableCompression::default(),
            compaction: Compaction::default(),
            max_queue_bytes: limits::MAX_QUEUE_BYTES,
            max_watch_queues_bytes: limits::MAX_WATCH_QUEUES_BYTES,
            compaction_key_bytes: limits::MAX_COMPACTION_KEY_BYTES,
            max_replay_bytes: 512 << 20,
            maintenance_interval: Duration::from_secs(1),
            max_clock_jump: Duration::from_secs(24 * 3600),
            scrub_interval: Duration::from_secs(7 * 24 * 3600),
            scrub_bytes_per_second: 32 << 20,
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
