//! The range of keys, the direction and the caching of one scan.

use std::{ops::Bound, sync::Arc};

use crate::backend::Direction;

/// The bounds and direction of a scan, with bounds of type `K`.
#[derive(Clone, Copy)]
pub struct SpanOf<K> {
    /// Bound with the lowest keys of the scan, whatever its direction.
    pub lower: Bound<K>,
    /// Bound with the highest keys of the scan, whatever its direction.
    pub upper: Bound<K>,
    /// Order in which the scan visits pairs of key and value.
    pub direction: Direction,
    /// Choice of caching for the blocks that the scan reads from files.
    pub reads: Reads,
}

/// The bounds and direction of a scan that borrows its bounds.
pub(crate) type Span<'a> = SpanOf<&'a [u8]>;
/// The bounds and direction of a scan that outlives its caller. Clones share the bounds.
pub(crate) type OwnedSpan = SpanOf<Arc<[u8]>>;

/// Choice whether the blocks that a scan reads are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Blocks are likely to be read again: blocks read from files are kept in the cache.
    Again,
    /// Blocks are unlikely to be read again: blocks read from files are not kept in the cache.
    Once,
}

impl Span<'_> {
    /// Returns the same span of keys with copied bounds, which can outlive the borrowed ones.
    pub fn to_owned(self) -> OwnedSpan {
        let Self { lower, upper, direction, reads } = self;
        OwnedSpan { lower: lower.map(Arc::from), upper: upper.map(Arc::from), direction, reads }
    }
}

impl<K: AsRef<[u8]>> SpanOf<K> {
    /// Returns the lower bound of the scan's keys, borrowed.
    pub fn lower(&self) -> Bound<&[u8]> {
        self.lower.as_ref().map(K::as_ref)
    }

    /// Returns the upper bound of the scan's keys, borrowed.
    pub fn upper(&self) -> Bound<&[u8]> {
        self.upper.as_ref().map(K::as_ref)
    }

    /// Returns true if the lower bound excludes the key, so that the span begins after the key.
    pub fn begins_after(&self, key: &[u8]) -> bool {
        match self.lower() {
            Bound::Unbounded => false,
            Bound::Included(lower) => key < lower,
            Bound::Excluded(lower) => key <= lower,
        }
    }

    /// Returns true if the upper bound excludes the key, so that the span ends before the key.
    pub fn ends_before(&self, key: &[u8]) -> bool {
        match self.upper() {
            Bound::Unbounded => false,
            Bound::Included(upper) => key > upper,
            Bound::Excluded(upper) => key >= upper,
        }
    }
}
