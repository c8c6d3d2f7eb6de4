//! Segments of the log: the live bytes in each, and moves of pointers.
//!
//! Owns: the liveness rows, the inline floor, and the records that move bytes within the log. Does not own: the
//! segments themselves, or the choice of bytes to move.
//!
//! Invariant: liveness rows and the inline floor are node-local; no outcome of a command depends on them.
//!
//! * `liveness`: live bytes of each segment.
//! * `inline_floor`: length in bytes up to which values are never stored only in the log.
//! * `moves`: applies records that move bytes.

pub(crate) mod inline_floor;
pub(crate) mod liveness;
pub(crate) mod moves;

pub use liveness::Liveness;
