//! Appends that are on their way to a follower.
//!
//! Owns: the bound of their bytes. Does not own: the appends (`network`).
//!
//! At most [`MAX_PIPELINED_BYTES`] of entries are on their way, so a follower with a slow disk holds no more in memory.

use std::sync::Arc;

use thalweg_types::limits::MAX_PIPELINED_BYTES;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Size in bytes of an append before which other tasks run.
pub(crate) const YIELD_FROM_BYTES: usize = 64 * 1024;

/// Age of the entries of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryAge {
    /// The entries are among the newest, which are in memory, or there are none.
    New,
    /// The entries must be read from the file.
    Old,
}

/// Bytes on their way to a follower, of one stream of appends.
#[derive(Debug)]
pub(crate) struct Pipeline {
    room: Arc<Semaphore>,
}

impl Default for Pipeline {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(MAX_PIPELINED_BYTES)) }
    }
}

impl Pipeline {
    /// Reserves memory for the entries of an append of `bytes` bytes, until the permit is dropped. Waits until the
    /// appends on their way leave enough, and lets other tasks run before a large append: otherwise all that a follower
    /// lacks, up to the bound, would be sent before consensus continues on the same thread.
    pub(crate) async fn room_for(&self, bytes: usize) -> OwnedSemaphorePermit {
        if bytes >= YIELD_FROM_BYTES {
            tokio::task::yield_now().await;
        }
        let wanted = bytes.min(MAX_PIPELINED_BYTES) as u32;
        Arc::clone(&self.room).acquire_many_owned(wanted).await.expect("the semaphore is never closed")
    }
}
