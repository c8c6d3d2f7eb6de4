//! The range of keys, the direction and the caching of one scan.

use std::ops::Bound;

use crate::backend::Direction;

/// The bounds and direction of a scan.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    /// Bound with the lowest keys of the scan, whatever its direction.
    pub lower: Bound<&'a [u8]>,
    /// Bound with the highest keys of the scan, whatever its direction.
    pub upper: Bound<&'a [u8]>,
    /// Order in which the pairs are visited.
    pub direction: Direction,
    /// Choice of caching for the blocks that the scan reads from files.
    pub reads: Reads,
}

/// Expectation whether the blocks that a scan reads will soon be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Blocks are likely to be read again: blocks read from files are kept in the cache.
    Again,
    /// Blocks are unlikely to be read again: blocks read from files are not kept in the cache.
    Once,
}

impl Span<'_> {
    /// Returns true if the lower bound excludes the key, so that the span begins after the key.
    pub fn begins_after(&self, key: &[u8]) -> bool {
        match self.lower {
            Bound::Unbounded => false,
            Bound::Included(lower) => key < lower,
            Bound::Excluded(lower) => key <= lower,
        }
    }

    /// Returns true if the upper bound excludes the key, so that the span ends before the key.
    pub fn ends_before(&self, key: &[u8]) -> bool {
        match self.upper {
            Bound::Unbounded => false,
            Bound::Included(upper) => key > upper,
            Bound::Excluded(upper) => key >= upper,
        }
    }
}
