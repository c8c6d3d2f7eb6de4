//! Positions at which the log last began to rest, and at which the writer makes it stop. A log rests while it has no
//! prepared segments, because nothing is appended.
//!
//! Owns: [`RestBounds`]. Does not own: the conditions under which a log rests (see `rest`), or the time at which it
//! stops (see `prepare`).

/// Positions at which the log last began to rest (keep no prepared segments; see `rest`), and at which an append makes
/// it stop.
#[derive(Debug)]
pub(crate) struct RestBounds {
    /// Byte position in the active segment. An append beyond it makes the log stop resting; `u32::MAX` while the log
    /// does not rest.
    pub(crate) until: u32,
    /// Number of bytes that had been appended since the log was opened, when the log last began to rest.
    pub(crate) began: u64,
}

impl Default for RestBounds {
    fn default() -> Self {
        Self { until: u32::MAX, began: 0 }
    }
}

impl RestBounds {
    /// Returns true if an append that ends at this position in the active segment makes the log stop resting.
    #[inline]
    pub(crate) fn ends_at(&self, offset: u32) -> bool {
        offset > self.until
    }

    /// Records that the log no longer rests, because the writer continues in another segment.
    pub(crate) fn end_with_segment(&mut self) {
        self.until = u32::MAX;
    }
}
