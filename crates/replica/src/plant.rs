//! Deliberate bugs, for simulations that must find them. Compiled only with the feature `plant`.
//!
//! Owns: the switches, one set for each thread. All are off at first.

use std::cell::Cell;

thread_local! {
    static APPLIES_VOID_ENTRIES: Cell<bool> = const { Cell::new(false) };
}

/// Makes members on this thread apply entries that a truncation has voided.
pub fn apply_void_entries(applies: bool) {
    APPLIES_VOID_ENTRIES.set(applies);
}

pub(crate) fn applies_void_entries() -> bool {
    APPLIES_VOID_ENTRIES.get()
}
