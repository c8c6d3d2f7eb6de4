//! State of the reads that were begun in advance for a client's pipelined commands. The module `read_ahead` begins
//! these reads.

use std::collections::VecDeque;

use thalweg_serving::readers::PendingRead;
use thalweg_types::budget::BudgetSpent;

/// Reads for the commands after the current one, in the order of the commands.
#[derive(Debug, Default)]
pub(crate) struct Lookahead {
    /// One item for each of the next commands. `None` for a command that seems to need no read from disk.
    reads: VecDeque<Option<PendingRead<()>>>,
    has_missed: bool,
}

impl Lookahead {
    /// Records that the current command has used up the budget of this thread, for the reason `spent`.
    pub(crate) fn note(&mut self, spent: BudgetSpent) {
        self.has_missed |= spent == BudgetSpent::Disk;
    }

    /// Returns true if a command has needed the disk since the last call.
    pub(crate) fn take_miss(&mut self) -> bool {
        std::mem::take(&mut self.has_missed)
    }

    /// Returns the number of next commands that were already examined.
    pub(crate) fn known(&self) -> usize {
        self.reads.len()
    }

    /// Adds the result for the first command that was not examined yet.
    pub(crate) fn push(&mut self, read: Option<PendingRead<()>>) {
        self.reads.push_back(read);
    }

    /// Records that the session has handled a command, and drops the advance read for this command. If no thread has
    /// started this read yet, it is given up.
    #[inline]
    pub(crate) fn pass(&mut self) {
        self.reads.pop_front();
    }
}
