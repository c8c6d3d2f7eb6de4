//! Counter of the deleted rows that scans have passed: keys whose newest entry in a memtable or a table marks them as
//! deleted.
//!
//! A caller that scans one range repeatedly compares the counter before and after a step. So it learns which ranges are
//! expensive although they have no rows. The number depends on flushes and compactions, so it may influence only the
//! speed of a scan, not its result.

use std::{cell::Cell, ops::ControlFlow};

use thalweg_types::{budget, steps::ROW};

thread_local! {
    static PASSED: Cell<u64> = const { Cell::new(0) };
}

/// Returns the number of deleted rows that the scans of this thread have passed since it started.
#[must_use]
pub fn deleted_rows_passed() -> u64 {
    PASSED.get()
}

/// Counts a deleted row that a scan passes. Returns `Break` if the [budget] of the thread's read is spent, so
/// that the scan ends.
#[inline]
pub(crate) fn note_passed() -> ControlFlow<()> {
    PASSED.set(PASSED.get() + 1);
    budget::charge(ROW)
}
