//! State of the reads that were begun in advance for a client's pipelined commands. The module `read_ahead` begins
//! these reads.

use std::collections::VecDeque;

use thalweg_serving::readers::PendingRead;
use thalweg_types::budget::BudgetSpent;

/// Reads that were begun in advance for the commands after the current one, in the order of these commands.
#[derive(Debug, Default)]
pub(crate) struct Lookahead {
    /// One item for each of the client's next commands: the read that was begun for it, or `None` if the command seems
    /// to need no read from disk.
    reads: VecDeque<Option<PendingRead<()>>>,
    has_missed: bool,
}

impl Lookahead {
    /// Records why the current command could not complete on this thread: `spent` says if it took too long or needed
    /// the disk.
    pub(crate) fn note(&mut self, spent: BudgetSpent) {
        self.has_missed |= spent == BudgetSpent::Disk;
    }

    /// Returns true if a command of the client has needed the disk since the last call of this function.
    pub(crate) fn take_miss(&mut self) -> bool {
        std::mem::take(&mut self.has_missed)
    }

    /// Returns the number of commands after the current one that were already examined for a read from disk.
    pub(crate) fn known(&self) -> usize {
        self.reads.len()
    }

    /// Adds an item for one more pipelined command, the next one after those that were examined: the read that was
    /// begun for it, or `None` if it seems to need no read from disk.
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
