//! Options of the memtables in front of a store.

use std::time::Duration;

use crate::backend::SyncMode;

/// Choice of threads that persist memtables and compact tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Background {
    /// The backend starts its own threads for this work.
    #[default]
    Threads,
    /// The backend starts no threads for this work. [`Backend::step`](crate::Backend::step) does it on the caller's
    /// thread. Calls that would wait for a thread also do it. For simulations.
    Stepped,
}

/// Options of the memtables in front of a store. Total memory in bytes: `memtable_bytes` times `max_sealed + 2`, and
/// about a tenth more for hash indexes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferOptions {
    /// Choice of when applied batches become durable on disk.
    pub sync: SyncMode,
    /// Size in bytes at which a memtable is sealed and persisted. A larger size takes more memory, and more time at
    /// open to replay batches that were not persisted; a smaller size causes more and smaller transactions of the
    /// store.
    pub memtable_bytes: usize,
    /// Maximum number of sealed memtables that wait to be persisted. At this number, writes that need another memtable
    /// wait.
    pub max_sealed: usize,
    /// Maximum time that a write waits while the store writes nothing. If the wait is longer, the backend fails,
    /// because its memory would grow without bound. As long as the store writes, the write waits.
    pub max_stall: Duration,
    /// Number of log records, applied since the memtables were last persisted, after which
    /// [`maintain`](crate::Backend::maintain) persists them. This bounds the replay at open.
    pub max_unflushed_records: u64,
    /// Choice of threads that persist memtables: the backend's own, or the caller's.
    pub background: Background,
}

impl Default for BufferOptions {
    fn default() -> Self {
        Self {
            sync: SyncMode::default(),
            memtable_bytes: 64 << 20,
            max_sealed: 3,
            max_stall: Duration::from_secs(60),
            max_unflushed_records: 1_000_000,
            background: Background::Threads,
        }
    }
}
