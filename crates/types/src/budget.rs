//! Limit on the work that one read may cause on its thread. Work is counted in [steps](crate::steps); a step is about
//! 100 ns.
//!
//! A thread that serves many clients begins each read with a small [`Budget`]. The thread abandons a read that spends
//! this budget, or that would have to wait for the disk. Another thread then performs the read again. Owns, for each
//! thread: the remaining steps of its current read, the rule for bytes of files that are not in memory, and counters of
//! the file reads that it has begun or requested ahead. Does not own: the prices of work, the choice of the other
//! thread, or the budget of a command in the log (`meter`).
//!
//! Each layer charges the work that it does: the rows that a scan examines, the deleted rows that a backend skips, the
//! bytes of values, the comparisons of patterns. Layers that read files call [`read_file`]. The budget is a property of
//! the thread and not an argument, because reads pass through interfaces of several crates, and most callers set no
//! budget. On a thread without a budget, a charge costs a load and a comparison.
//!
//! Invariant: after the budget is spent, loops end early, so the result of the read is meaningless. [`Budget::perform`]
//! drops it.

use std::{cell::Cell, ops::ControlFlow};

use crate::steps::{COLD_READ, DISK_READ, SHORT_READ};

/// Number of remaining steps (units of work) on a thread without a budget. It is so large that it never runs out.
const UNLIMITED: u64 = u64::MAX;

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(UNLIMITED) };
    static DISK: Cell<DiskRule> = const { Cell::new(DiskRule::Wait) };
    static FILE_READS: Cell<u64> = const { Cell::new(0) };
    static READS_AHEAD: Cell<u64> = const { Cell::new(0) };
}

/// Rule for a read that needs bytes of a file and finds that they are not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiskRule {
    /// A read that needs bytes from the disk waits for them.
    Wait,
    /// A read that needs bytes from the disk waits for them, and each wait costs [`DISK_READ`] steps (units of work).
    Charge,
    /// A read that needs bytes from the disk does not wait: it ends with the error [`BudgetSpent::Disk`].
    Refuse,
    /// The read has ended, because it would have had to wait for the disk.
    Refused,
}

/// Error of a read that has used all its steps (units of work), or that needs the disk but must not wait for it. The
/// read has changed nothing and may be performed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetSpent {
    /// The read has used all steps (units of work) of its budget.
    #[error("the read takes too long for the thread that began it")]
    Steps,
    /// The read needs bytes that are not in memory.
    #[error("the read would wait for the disk, which its thread must not do")]
    Disk,
}

/// Limit on one read: the number of steps (units of work) that it may use, and the rule for bytes of files that are not
/// in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    steps: u64,
    disk: DiskRule,
}

impl Budget {
    /// Budget of a short read on a thread that also serves other clients. The read may use only bytes that are in
    /// memory.
    pub const RESIDENT: Self = Self::resident(SHORT_READ);
    /// Budget of a short read on a thread that serves no other client at the moment: it may wait for the disk a few
    /// times.
    pub const ALONE: Self = Self::alone(SHORT_READ);
    /// Budget of a short read on one of the server's threads that perform reads from the disk. The read may wait for
    /// the disk as often as it needs.
    pub const COLD: Self = Self::waiting(COLD_READ);

    /// Creates a budget of `steps` steps (units of work) for a read that must not wait for the disk.
    #[must_use]
    pub const fn resident(steps: u64) -> Self {
        Self { steps, disk: DiskRule::Refuse }
    }

    /// Creates a budget of `steps` steps (units of work) for a read that may wait for the disk. Each wait is charged as
    /// steps.
    #[must_use]
    pub const fn alone(steps: u64) -> Self {
        Self { steps, disk: DiskRule::Charge }
    }

    /// Creates a budget of `steps` steps (units of work) for a read that may wait for the disk as often as it needs,
    /// without a charge.
    #[must_use]
    pub const fn waiting(steps: u64) -> Self {
        Self { steps, disk: DiskRule::Wait }
    }

    /// Performs a read within the budget.
    ///
    /// # Errors
    /// The read has spent the budget, so its result was dropped.
    #[inline]
    pub fn perform<T>(self, read: impl FnOnce() -> T) -> Result<T, BudgetSpent> {
        let _restore = Restore(LEFT.replace(self.steps.min(UNLIMITED - 1)), DISK.replace(self.disk));
        let result = read();
        match is_spent() {
            false => Ok(result),
            true if DISK.get() == DiskRule::Refused => Err(BudgetSpent::Disk),
            true => Err(BudgetSpent::Steps),
        }
    }
}

/// Restores the previous budget of the thread when dropped, even if the read panics.
struct Restore(u64, DiskRule);

impl Drop for Restore {
    fn drop(&mut self) {
        LEFT.set(self.0);
        DISK.set(self.1);
    }
}

/// Performs a read that may use up to `steps` steps (units of work) and must not wait for the disk.
///
/// # Errors
/// The read used more steps or needs the disk, and its result was dropped.
#[inline]
pub fn within<T>(steps: u64, read: impl FnOnce() -> T) -> Result<T, BudgetSpent> {
    Budget::resident(steps).perform(read)
}

/// Reads from a file. On a thread whose budget forbids waiting for the disk, calls `resident`, which must read without
/// waiting; it returns `None` if the bytes are not in memory. On other threads, calls `waiting`.
///
/// # Errors
/// The bytes are not in memory, and the thread must not wait for them. The budget then counts as spent, and
/// [`Budget::perform`] drops the result of the whole read.
pub fn read_file<T>(resident: impl FnOnce() -> Option<T>, waiting: impl FnOnce() -> T) -> Result<T, BudgetSpent> {
    FILE_READS.set(FILE_READS.get().wrapping_add(1));
    let rule = DISK.get();
    if rule == DiskRule::Wait {
        return Ok(waiting());
    }
    if let Some(found) = resident() {
        return Ok(found);
    }
    if rule == DiskRule::Charge && charge(DISK_READ).is_continue() {
        return Ok(waiting());
    }
    LEFT.set(0);
    DISK.set(DiskRule::Refused);
    Err(BudgetSpent::Disk)
}

/// Returns the number of file reads that the calling thread has begun, even if the kernel had the bytes in memory. To
/// count the reads of a piece of work, a caller subtracts the number before it from the number after it. The number
/// wraps around.
#[must_use]
pub fn file_reads() -> u64 {
    FILE_READS.get()
}

/// Counts a read ahead: the calling thread has asked the kernel to read bytes of a file into memory, and continues
/// without waiting for them.
pub fn note_read_ahead() {
    READS_AHEAD.set(READS_AHEAD.get().wrapping_add(1));
}

/// Returns the number of reads ahead that the calling thread has requested. To count those of a piece of work, a caller
/// subtracts the number before it from the number after it. The number wraps around.
#[must_use]
pub fn reads_ahead() -> u64 {
    READS_AHEAD.get()
}

/// Charges work to the budget of the current read, if it has one. Returns `Break` if the budget is spent: the caller
/// then ends its loop, or returns without doing the work.
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

/// Returns true if the current read has a budget. A loop over many rows checks this once, and charges nothing if there
/// is no budget.
#[inline]
#[must_use]
pub fn is_bounded() -> bool {
    LEFT.get() != UNLIMITED
}

/// Returns true if the current read may wait for the disk as often as it needs.
#[inline]
#[must_use]
pub fn may_wait() -> bool {
    DISK.get() == DiskRule::Wait
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
        assert_eq!(within(100, count), Err(BudgetSpent::Steps));
        assert_eq!(rows, 99);
        assert!(charge(1_000_000).is_continue() && !is_spent(), "the budget ends with the read");
    }

    #[test]
    fn a_panic_ends_the_budget() {
        let panicked = std::panic::catch_unwind(|| within(1, || panic!("a read panics")));
        assert!(panicked.is_err());
        assert!(charge(10).is_continue());
        assert_eq!(cold(), Ok("waited"), "no rule about the disk is left");
    }

    /// Performs a test read of a file whose bytes are not in memory.
    fn cold() -> Result<&'static str, BudgetSpent> {
        read_file(|| None, || "waited")
    }

    /// Performs a test read of a file whose bytes are in memory.
    fn warm() -> Result<&'static str, BudgetSpent> {
        read_file(|| Some("in memory"), || "waited")
    }

    #[test]
    fn a_read_that_must_not_wait_ends_at_the_first_byte_on_disk() {
        assert_eq!(cold(), Ok("waited"), "no budget");
        assert!(may_wait() && Budget::COLD.perform(may_wait).unwrap() && !Budget::RESIDENT.perform(may_wait).unwrap());
        assert_eq!(warm(), Ok("waited"), "no budget: one system call");
        assert_eq!(Budget::RESIDENT.perform(warm), Ok(Ok("in memory")));
        let mut reads = Vec::new();
        let read = || reads.extend([cold(), cold(), warm()]);
        assert_eq!(Budget::RESIDENT.perform(read), Err(BudgetSpent::Disk), "whatever it returns");
        assert_eq!(reads[..2], [Err(BudgetSpent::Disk), Err(BudgetSpent::Disk)]);
        assert_eq!(Budget::RESIDENT.perform(|| ()), Ok(()), "the next read has a budget of its own");
    }

    #[test]
    fn reads_of_files_are_counted_with_and_without_a_budget() {
        let before = file_reads();
        let reads = || _ = (cold(), warm());
        reads();
        assert_eq!(file_reads() - before, 2);
        assert_eq!(Budget::RESIDENT.perform(reads), Err(BudgetSpent::Disk));
        assert_eq!(file_reads() - before, 4);
    }

    #[test]
    fn a_read_that_is_alone_waits_a_few_times_and_one_of_another_thread_as_often_as_it_needs() {
        let mut waited = 0;
        let all = || (0..1000).filter(|_| cold().is_ok()).count();
        let read = || {
            while cold().is_ok() {
                waited += 1;
            }
        };
        assert_eq!(Budget::ALONE.perform(read), Err(BudgetSpent::Disk));
        assert_eq!(waited, (SHORT_READ - 1) / DISK_READ);
        assert_eq!(Budget::COLD.perform(all), Ok(1000));
        assert_eq!(Budget::COLD.perform(|| charge(COLD_READ)), Err(BudgetSpent::Steps));
    }
}
