//! A backend that stores the state in an LSM tree: memtables over sorted tables on disk.
//!
//! Owns: [`LsmStore`], which writes memtables to tables, slows writes down if compactions fall behind, and reads the
//! tables; and the threads that compact tables and that read new blocks into the cache. Does not own: the memtables in
//! front of the tables, or the decision when to flush; see `buffered`.
//!
//! ```text
//! apply -> active memtable -> sealed memtables -> level 0 -> level 1 ..   (tables on disk)
//!                          seal             flush       compact
//! ```

mod options;
mod slowdown;
mod store;
mod tables;
mod view;
mod worker;

use std::sync::Arc;

use crate::{
    backend::{BackendError, LogBarrier, SyncMode},
    buffered::{Background, BufferOptions, Buffered, ThreadMain},
};
pub use options::{Compaction, LsmOptions, TableCompression};
pub use store::LsmStore;

/// A backend that consists of memtables over an LSM tree of sorted tables; see the [module](self).
pub type LsmBackend = Buffered<LsmStore>;

impl LsmBackend {
    /// Opens the LSM tree in `options.dir` and starts the background threads.
    pub fn open(options: LsmOptions, barrier: Arc<dyn LogBarrier>) -> Result<Self, BackendError> {
        let store = LsmStore::open(&options)?;
        let LsmOptions { memtable_bytes, max_sealed, max_stall, max_unflushed_records, background, .. } = options;
        let sync = SyncMode::BehindLog;
        let buffer = BufferOptions { sync, memtable_bytes, max_sealed, max_stall, max_unflushed_records, background };
        let upkeep: [ThreadMain<LsmStore>; 2] = [("thalweg-compact", worker::compact), ("thalweg-warm", worker::warm)];
        // A stepped backend has no background work to move to another thread, so reading blocks ahead is no use to it.
        let needed = if background == Background::Stepped { 1 } else { upkeep.len() };
        Self::over(store, buffer, barrier, &upkeep[..needed])
    }
}
