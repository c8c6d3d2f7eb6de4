//! Options of the memtables in front of a store.

use std::time::Duration;

use crate::backend::SyncMode;

/// Options of the memtables. Total memory: `memtable_bytes` times `max_sealed + 2`, and about a tenth more for hash
/// indexes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferOptions {
    /// Time at which batches become durable.
    pub sync: SyncMode,
    /// Bytes at which a memtable is sealed and persisted. More takes memory, and time at open to replay batches
    /// that were not persisted; less makes more and smaller transactions.
    pub memtable_bytes: usize,
    /// Maximum number of sealed memtables. Beyond it, writes wait.
    pub max_sealed: usize,
    /// Maximum time that one write waits for the store to catch up. After that the backend fails, because its
    /// memory would grow without bound.
    pub max_stall: Duration,
    /// Number of log records, applied since the last persist, after which
    /// [`maintain`](crate::Backend::maintain) persists. It bounds the replay at open.
    pub max_unflushed_records: u64,
}

impl Default for BufferOptions {
    fn default() -> Self {
        Self {
            sync: SyncMode::default(),
            memtable_bytes: 64 << 20,
            max_sealed: 3,
            max_stall: Duration::from_secs(60),
            max_unflushed_records: 1_000_000,
        }
    }
}
