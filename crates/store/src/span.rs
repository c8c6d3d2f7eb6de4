//! Bounds, direction and caching of one scan.

use std::ops::Bound;

use crate::backend::Direction;

/// The bounds and direction of a scan.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    /// Lower bound, in key order.
    pub lower: Bound<&'a [u8]>,
    /// Upper bound, in key order.
    pub upper: Bound<&'a [u8]>,
    /// Order in which the pairs are visited.
    pub direction: Direction,
    /// Caching of the blocks that the scan reads from files.
    pub reads: Reads,
}

/// Likelihood that blocks are read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Blocks read from files are kept in memory.
    Again,
    /// Blocks read from files are not kept in memory.
    Once,
}

impl Span<'_> {
    /// Returns true if the lower bound excludes the key.
    pub fn begins_after(&self, key: &[u8]) -> bool {
        match self.lower {
            Bound::Unbounded => false,
            Bound::Included(lower) => key < lower,
            Bound::Excluded(lower) => key <= lower,
        }
    }

    /// Returns true if the upper bound excludes the key.
    pub fn ends_before(&self, key: &[u8]) -> bool {
        match self.upper {
            Bound::Unbounded => false,
            Bound::Included(upper) => key > upper,
            Bound::Excluded(upper) => key >= upper,
        }
    }
}
