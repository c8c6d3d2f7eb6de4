//! A counter of the work of commands in the log. Work is counted in [steps](crate::steps) of about 100 ns, and compared
//! with the budget of the current command.
//!
//! Owns: the counts, and the budget. Does not own: the prices. The state machine charges reads and writes of rows in
//! one place (`crates/state/src/machine/staged.rs`). It charges the bytes of a value where a command reads or computes
//! them. The charge depends on the length of the value and not on that of its row, because the row of a long value
//! differs between nodes.
//!
//! Two counts have a limit: all steps of a command, and those of its steps that it uses for searching.
//!
//! Invariants:
//! * Reads of Redis batches outside of transactions have a budget of their own. They change neither the count nor the
//!   budget of the batch, because not all nodes perform them.
//! * Charges are a function of the commands alone. They do not depend on the grouping of commands into entries, the
//!   backend, the options of the node, restarts or compactions.
//! * A command with a budget that has used more steps than it may is rejected, and changes nothing. Work stays charged
//!   after it was rolled back.
//! * Commands of maintenance have no budget. They end by themselves after a bounded number of rows and steps, and
//!   report that more is left.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{
    command::Outcome,
    limits::{MAX_COMMAND_SEARCH_STEPS, MAX_COMMAND_STEPS},
};

/// Counter of the steps (units of work) that commands use, and the limits at which the current command's budget is
/// spent. Only the thread that applies log entries uses it. The counts are atomic because views of uncommitted changes
/// share the counter by reference.
#[derive(Debug)]
pub struct Meter {
    used: AtomicU64,
    end: AtomicU64,
    /// Steps used for searching, which are also part of `used`.
    searched: AtomicU64,
    search_end: AtomicU64,
}

impl Default for Meter {
    fn default() -> Self {
        let [zero, unbounded] = [0, u64::MAX];
        Self { used: zero.into(), end: unbounded.into(), searched: zero.into(), search_end: unbounded.into() }
    }
}

impl Meter {
    /// Adds steps (units of work) to the number of steps used so far.
    #[inline]
    pub fn charge(&self, steps: u64) {
        // Only one thread writes, so no atomic addition is needed.
        self.used.store(self.used.load(Relaxed).saturating_add(steps), Relaxed);
    }

    /// Counts steps (units of work) as used for searching. These steps were charged already.
    #[inline]
    pub fn note_searched(&self, steps: u64) {
        self.searched.store(self.searched.load(Relaxed).saturating_add(steps), Relaxed);
    }

    /// Returns the number of steps (units of work) charged so far, over all commands.
    #[inline]
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Returns true if the current command has used more steps (units of work) than its budget, or more for searching
    /// than it may.
    #[inline]
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.used.load(Relaxed) > self.end.load(Relaxed) || self.has_searched_too_much()
    }

    #[inline]
    fn has_searched_too_much(&self) -> bool {
        self.searched.load(Relaxed) > self.search_end.load(Relaxed)
    }

    /// Returns the outcome of a command that the state machine has rejected because the command has spent its budget.
    #[must_use]
    pub fn too_expensive(&self) -> Outcome {
        let limit = if self.has_searched_too_much() { MAX_COMMAND_SEARCH_STEPS } else { MAX_COMMAND_STEPS };
        Outcome::TooExpensive { limit }
    }

    /// Returns the number of steps (units of work) that are left of the current command's budget.
    #[inline]
    #[must_use]
    pub fn left(&self) -> u64 {
        self.end.load(Relaxed).saturating_sub(self.used.load(Relaxed))
    }

    /// Gives the next command a budget of [`MAX_COMMAND_STEPS`]. It may use [`MAX_COMMAND_SEARCH_STEPS`] of them for
    /// searching.
    #[inline]
    pub fn begin_budget(&self) {
        self.end.store(self.used.load(Relaxed).saturating_add(MAX_COMMAND_STEPS), Relaxed);
        self.search_end.store(self.searched.load(Relaxed).saturating_add(MAX_COMMAND_SEARCH_STEPS), Relaxed);
    }

    /// Gives the next read a budget of `steps` steps (units of work), apart from the budget of the current command.
    /// Returns the command's count and budget, which [`end_read`](Self::end_read) restores.
    #[inline]
    #[must_use]
    pub fn begin_read(&self, steps: u64) -> CommandBudget {
        let (used, end) = (self.used.load(Relaxed), self.end.load(Relaxed));
        let (searched, search_end) = (self.searched.load(Relaxed), self.search_end.load(Relaxed));
        self.end.store(used.saturating_add(steps), Relaxed);
        self.search_end.store(u64::MAX, Relaxed);
        CommandBudget { used, end, searched, search_end }
    }

    /// Ends a read: restores the count and the budget of the current command. Returns the number of steps (units of
    /// work) that the read has used.
    #[inline]
    pub fn end_read(&self, command: CommandBudget) -> u64 {
        let used = self.used.load(Relaxed) - command.used;
        self.used.store(command.used, Relaxed);
        self.end.store(command.end, Relaxed);
        self.searched.store(command.searched, Relaxed);
        self.search_end.store(command.search_end, Relaxed);
        used
    }

    /// Sets the number of used steps (units of work) back to `used`, an earlier value of this number. The caller does
    /// this after work for which the command was already charged in advance, so that the work is not charged twice.
    #[inline]
    pub fn set_back(&self, used: u64) {
        self.used.store(used, Relaxed);
    }

    /// Ends the budget of the current command. Further work is still counted, but the command can no longer be rejected
    /// for it.
    #[inline]
    pub fn end_budget(&self) {
        self.end.store(u64::MAX, Relaxed);
        self.search_end.store(u64::MAX, Relaxed);
    }
}

/// Count and budget of the current command, saved while a read with a budget of its own runs.
#[derive(Debug)]
pub struct CommandBudget {
    used: u64,
    end: u64,
    searched: u64,
    search_end: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_charged_apart() {
        let meter = Meter::default();
        meter.begin_budget();
        meter.charge(MAX_COMMAND_STEPS);
        let command = meter.begin_read(10);
        meter.charge(10);
        assert!(!meter.is_spent() && meter.left() == 0);
        meter.charge(1);
        assert!(meter.is_spent());
        assert_eq!(meter.end_read(command), 11);
        assert_eq!((meter.used(), meter.is_spent()), (MAX_COMMAND_STEPS, false));
        meter.charge(1);
        assert!(meter.is_spent());
    }

    #[test]
    fn searching_has_a_bound_of_its_own_which_a_read_apart_does_not_use() {
        let meter = Meter::default();
        meter.note_searched(u64::MAX / 2);
        meter.begin_budget();
        meter.charge(MAX_COMMAND_SEARCH_STEPS);
        meter.note_searched(MAX_COMMAND_SEARCH_STEPS);
        assert!(!meter.is_spent());
        let command = meter.begin_read(10);
        meter.note_searched(10);
        assert!(!meter.is_spent());
        meter.end_read(command);
        assert!(!meter.is_spent());
        meter.note_searched(1);
        assert!(meter.is_spent());
        assert_eq!(meter.too_expensive(), Outcome::TooExpensive { limit: MAX_COMMAND_SEARCH_STEPS });
        meter.begin_budget();
        assert!(!meter.is_spent());
        meter.charge(MAX_COMMAND_STEPS + 1);
        assert_eq!(meter.too_expensive(), Outcome::TooExpensive { limit: MAX_COMMAND_STEPS });
        meter.end_budget();
        meter.note_searched(MAX_COMMAND_STEPS);
        assert!(!meter.is_spent());
    }

    #[test]
    fn a_budget_ends_after_its_last_step_and_only_while_it_is_set() {
        let meter = Meter::default();
        meter.charge(u64::MAX / 2);
        assert!(!meter.is_spent(), "no budget");
        meter.begin_budget();
        assert_eq!(meter.left(), MAX_COMMAND_STEPS);
        meter.charge(MAX_COMMAND_STEPS);
        assert!(!meter.is_spent() && meter.left() == 0);
        meter.charge(1);
        assert!(meter.is_spent() && meter.left() == 0);
        meter.end_budget();
        assert!(!meter.is_spent());
        meter.charge(u64::MAX);
        assert_eq!(meter.used(), u64::MAX);
    }
}
