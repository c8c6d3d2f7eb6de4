//! The reads that were begun for the commands behind a client's current one. The module `read_ahead` begins them.

use std::collections::VecDeque;

use thalweg_serving::readers::PendingRead;
use thalweg_types::budget::BudgetSpent;

/// Reads for the commands behind the current one, in their order.
#[derive(Debug, Default)]
pub(crate) struct Lookahead {
    /// Reads for the next commands. `None` for a command that seems to need no file.
    reads: VecDeque<Option<PendingRead<()>>>,
    has_missed: bool,
}

impl Lookahead {
    /// Notes that the current command has `spent` the budget of this thread.
    pub(crate) fn note(&mut self, spent: BudgetSpent) {
        self.has_missed |= spent == BudgetSpent::Disk;
    }

    /// Returns true if a command has needed the disk since the last call.
    pub(crate) fn take_miss(&mut self) -> bool {
        std::mem::take(&mut self.has_missed)
    }

    /// Returns the number of next commands for which it is known whether they need the disk.
    pub(crate) fn known(&self) -> usize {
        self.reads.len()
    }

    /// Adds the read of the command behind those that are known.
    pub(crate) fn push(&mut self, read: Option<PendingRead<()>>) {
        self.reads.push_back(read);
    }

    /// Notes that the session has handled a command. Its own read, if it has not begun, is given up.
    #[inline]
    pub(crate) fn pass(&mut self) {
        self.reads.pop_front();
    }
}
