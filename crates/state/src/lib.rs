//! The deterministic state machine behind the log.
//!
//! Owns: the effect of each command on keyspaces, streams, consumer groups and leases, and the encoding of their rows in
//! an ordered map of bytes ([`thalweg_store`]).
//! Does not own: that map, the log, the order of entries, time, or the scheduling of I/O. Knows no sockets, tasks or Raft.

pub mod audit;
pub mod blobs;
pub mod catalog;
mod clears;
pub mod counts;
pub mod digest;
pub mod expiry;
pub mod groups;
pub mod history;
mod inline_floor;
mod keys;
pub mod keyspaces;
pub mod liveness;
pub mod machine;
pub mod past;
pub mod portable;
pub mod redis;
mod row_kinds;
pub mod streams;
mod versions;
