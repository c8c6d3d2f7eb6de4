//! The deterministic state machine: applies the log's entries to an ordered map of rows.
//!
//! Owns: the effect of each command on keyspaces, streams, consumer groups and leases, and the encoding of their rows
//! in an ordered map of bytes ([`thalweg_store`]). Does not own: that map, the log, the order of entries, time, or the
//! scheduling of I/O. Has no sockets, tasks or Raft.

pub mod apply;
pub mod audit;
pub mod blobs;
pub mod changes;
mod clears;
pub mod digest;
mod entry;
mod error;
pub mod expiry;
pub mod groups;
pub mod history;
mod keys;
pub mod keyspaces;
pub mod machine;
pub mod membership;
mod open;
pub mod payload;
pub mod portable;
pub mod redis;
mod refused;
pub mod replace;
mod row_kinds;
mod rows;
pub mod segments;
pub mod streams;
mod sync;
