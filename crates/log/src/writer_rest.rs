//! The positions at which the writer ends a rest of the log, and at which the last rest began.
//!
//! Owns: [`RestBounds`]. Does not own: the conditions of a rest (see `rest`), or the time at which it ends (see
//! `prepare`).

/// Positions that the writer needs to end a rest (the time in which the log has no prepared segments; see `rest`).
#[derive(Debug)]
pub(crate) struct RestBounds {
    /// Position in the active segment above which an append ends the rest; `u32::MAX` while the log does not rest.
    pub(crate) until: u32,
    /// Total bytes that the log had appended since its open when the last rest began.
    pub(crate) began: u64,
}

impl Default for RestBounds {
    fn default() -> Self {
        Self { until: u32::MAX, began: 0 }
    }
}

impl RestBounds {
    /// Returns true if an append up to this position in the active segment ends the rest.
    #[inline]
    pub(crate) fn ends_at(&self, offset: u32) -> bool {
        offset > self.until
    }

    /// Ends the rest, because the writer continues in another segment.
    pub(crate) fn end_with_segment(&mut self) {
        self.until = u32::MAX;
    }
}
