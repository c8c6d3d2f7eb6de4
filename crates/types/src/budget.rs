//! Budget of the reads that a thread performs outside the log, in [steps](crate::steps).
//!
//! Owns: the remaining steps of the thread's current read. A thread that serves many clients begins each read with a
//! small budget. A read that spends it is abandoned, and another thread performs it again without a budget. Does not
//! own: the prices, or the budget of a command in the log, which is part of the state machine.
//!
//! Each layer charges the work that it sees: rows that a scan examines, hidden or not, deleted rows that a backend
//! passes, bytes of values, comparisons of patterns. The budget is a property of the thread and not an argument, because
//! reads pass through interfaces of several crates, and most callers have none. Without a budget, a charge costs a load
//! and a comparison.
//!
//! Invariant: after the budget is spent, loops end early, so the result of the read is meaningless. [`within`] drops it.

use std::{cell::Cell, ops::ControlFlow};

/// Value of [`LEFT`] on a thread without a budget.
const UNLIMITED: u64 = u64::MAX;

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(UNLIMITED) };
}

/// Error of a read that has spent its budget. The read has changed nothing and may be performed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the read takes too long for the thread that began it")]
pub struct Spent;

/// Restores the previous budget of the thread, also if the read panics.
struct Restore(u64);

impl Drop for Restore {
    fn drop(&mut self) {
        LEFT.set(self.0);
    }
}

/// Performs a read that may take up to `steps` steps.
///
/// # Errors
/// The read took more steps, and its result was dropped.
#[inline]
pub fn within<T>(steps: u64, read: impl FnOnce() -> T) -> Result<T, Spent> {
    let _restore = Restore(LEFT.replace(steps.min(UNLIMITED - 1)));
    let result = read();
    if is_spent() { Err(Spent) } else { Ok(result) }
}

/// Charges work to the budget of the current read, if it has one. Returns `Break` if the budget is spent: the caller then
/// ends its loop, or returns without doing the work.
#[inline]
pub fn charge(steps: u64) -> ControlFlow<()> {
    let left = LEFT.get();
    if left == UNLIMITED {
        return ControlFlow::Continue(());
    }
    let left = left.saturating_sub(steps);
    LEFT.set(left);
    if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Returns true if the current read has a budget. A loop over many rows asks once and then charges nothing otherwise.
#[inline]
#[must_use]
pub fn is_bounded() -> bool {
    LEFT.get() != UNLIMITED
}

/// Returns true if the current read has a budget and has spent it.
#[inline]
#[must_use]
pub fn is_spent() -> bool {
    LEFT.get() == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_spends_its_budget_is_dropped_and_others_are_not_bounded() {
        assert!(charge(UNLIMITED).is_continue() && !is_spent() && !is_bounded(), "no budget");
        assert_eq!(within(1, is_bounded), Ok(true));
        assert_eq!(within(10, || charge(9)), Ok(ControlFlow::Continue(())));
        let mut rows = 0;
        let count = || {
            while rows < 1000 && charge(1).is_continue() {
                rows += 1;
            }
        };
        assert_eq!(within(100, count), Err(Spent));
        assert_eq!(rows, 99);
        assert!(charge(1_000_000).is_continue() && !is_spent(), "the budget ends with the read");
    }

    #[test]
    fn a_panic_ends_the_budget() {
        let panicked = std::panic::catch_unwind(|| within(1, || panic!("a read panics")));
        assert!(panicked.is_err());
        assert!(charge(10).is_continue());
    }
}
