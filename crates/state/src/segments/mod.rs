//! Segments of the log: the live bytes in each, and the inline floor.
//!
//! Owns: the liveness rows and the inline floor. Does not own: the segments themselves, or the records that move bytes
//! within the log (`apply::moves`).
//!
//! Invariant: liveness rows and the inline floor are node-local; no outcome of a command depends on them.
//!
//! * `liveness`: live bytes of each segment.
//! * `inline_floor`: length in bytes up to which values are never stored only in the log.

pub(crate) mod inline_floor;
pub(crate) mod liveness;

pub use liveness::Liveness;
