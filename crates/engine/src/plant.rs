//! Deliberate bugs, for simulations that must find them. The switches exist only with the feature `plant`.
//!
//! Owns: the switches, which each thread has separately. All are off at first.

use thalweg_types::limits::MIN_INLINE_VALUE_BYTES;

#[cfg(feature = "plant")]
thread_local! {
    static TAKES_ANY_INLINE_BYTES: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Makes databases that are opened on this thread accept any value of the option `inline_value_bytes`, even below its
/// minimum. The rows that a log entry writes then depend on the option, so replicas can differ.
#[cfg(feature = "plant")]
pub fn take_any_inline_bytes(takes: bool) {
    TAKES_ANY_INLINE_BYTES.set(takes);
}

/// Returns the minimum of the option `inline_value_bytes`.
pub(crate) fn min_inline_value_bytes() -> usize {
    #[cfg(feature = "plant")]
    if TAKES_ANY_INLINE_BYTES.get() {
        return 0;
    }
    MIN_INLINE_VALUE_BYTES
}
