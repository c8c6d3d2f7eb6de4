//! The ordered state behind the log.
//!
//! Owns: the [`Backend`](backend::Backend) trait (an ordered byte map with atomic batches), its
//! implementations, and the deterministic state machine over it: keyspaces, streams, consumer groups, and what their
//! encodings in the map are.
//! Does not own: the log, ordering, time, I/O scheduling of entries. Knows no sockets, tasks or Raft.

pub mod audit;
pub mod backend;
pub mod blobs;
#[cfg(any(feature = "redb", feature = "sqlite"))]
mod buffered;
pub mod catalog;
mod clears;
pub mod counts;
pub mod digest;
pub mod expiry;
mod files;
pub mod groups;
pub mod history;
mod inline_floor;
pub mod journal;
mod keys;
pub mod keyspaces;
pub mod liveness;
pub mod lsm;
pub mod machine;
pub mod memory;
pub mod memtable;
mod merge;
pub mod past;
pub mod portable;
#[cfg(feature = "redb")]
pub mod redb;
pub mod redis;
mod row_kinds;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod streams;
mod versions;

#[cfg(any(feature = "redb", feature = "sqlite"))]
pub use buffered::BufferOptions;
