//! An ordered map of bytes with atomic batches.
//!
//! Owns: the [`Backend`] trait and its four implementations: [`memory`] with checkpoints, the LSM tree in [`lsm`], and
//! the B-trees of `redb` and `sqlite` behind memtables.
//! Does not own: the meaning of keys and values, or the log. A backend only calls a [`LogBarrier`] to make the log
//! durable before it persists anything.
//!
//! Invariant: a batch and its [`Applied`] position become visible together and survive a crash together.

mod backend;
#[cfg(any(feature = "redb", feature = "sqlite"))]
mod buffered;
mod files;
pub mod journal;
pub mod lsm;
pub mod memory;
mod memtable;
mod merge;
#[cfg(feature = "redb")]
pub mod redb;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use backend::{
    Applied, Backend, BackendError, BackendStats, BarrierFailed, Change, Direction, LogBarrier, SyncMode, View, Visit,
    WriteBatch, bounds_are_empty,
};
#[cfg(any(feature = "redb", feature = "sqlite"))]
pub use buffered::BufferOptions;
