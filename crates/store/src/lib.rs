//! An ordered map of bytes with atomic batches.
//!
//! Owns: the [`Backend`] trait and its four implementations: [`memory`] with checkpoints, the LSM tree in [`lsm`], and
//! the B-trees of `redb` and `sqlite` behind memtables.
//! Does not own: the meaning of keys and values, or the log. A backend only calls a [`LogBarrier`] to make the log
//! durable before it persists anything.
//!
//! Invariant: a batch and its [`Applied`] position become visible together and survive a crash together.
//!
//! | backend | pairs are stored in | `persisted` is | synced per batch by |
//! |---|---|---|---|
//! | memory | a persistent map in memory | the renamed checkpoint file | a journal of batches ([`journal`]) |
//! | lsm | our memtables over the tables of the LSM crate | the last flush | a journal of batches |
//! | redb | our memtables over a copy-on-write B-tree | the last transaction, at `Immediate` | an `Immediate` transaction |
//! | sqlite | our memtables over a table without row ids | the last transaction, with WAL and `FULL` | the same |
//!
//! redb does its I/O through our `Disk`, so the simulated disk can cut its power; SQLite does its own I/O. Our redb and
//! SQLite backends store a checksum with each value, because neither library detects a flipped bit.

mod backend;
mod buffered;
mod caught;
mod checksum;
mod cursor;
mod files;
pub mod journal;
pub mod lsm;
pub mod memory;
mod memtable;
mod merge;
mod passed;
#[cfg(feature = "redb")]
pub mod redb;
mod span;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use backend::{
    Applied, Backend, BackendError, BackendHealth, BackendStats, BarrierFailed, Change, Direction, LogBarrier,
    PairCursor, Replaced, SyncMode, VerifiedRows, View, Visit, WriteBatch, bounds_are_empty,
};
pub use buffered::{Background, BufferOptions};
pub use passed::deleted_rows_passed;
