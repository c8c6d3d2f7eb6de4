//! The node's one durable log: segments, framing, checksums, group commit, recovery, space.
//!
//! Owns: `<root>/log/*.seg`, LSNs, durability and its watermark, which segments exist.
//! Does not own: what records mean, which segments are still wanted (its user says so), time.

mod api;

pub use api::*;
