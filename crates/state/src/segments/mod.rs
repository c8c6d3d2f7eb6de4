//! Segments of the log: the bytes in each that rows still point at, and pointers that move.

pub(crate) mod inline_floor;
pub(crate) mod liveness;
pub(crate) mod moves;

pub use liveness::Liveness;
