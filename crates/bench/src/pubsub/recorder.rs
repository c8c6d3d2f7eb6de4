//! Counts of a run beside those of every run, and the data that the tasks of a generator thread share.

use std::{cell::RefCell, ops::Range, sync::Arc};

use crate::{
    load::{self, Clock, Merge, Tally},
    native::{Finish, SubscriberAccount},
};

/// Counts of a run beside those of [`Tally`], whose right items are deliveries.
#[derive(Clone, Debug, Default)]
pub struct Deliveries {
    /// When the last one of those due within the counted time came, in nanoseconds since that began.
    pub last: u64,
    /// Subscriptions that had room for a batch, by the acks.
    pub acked_deliveries: u64,
    /// Subscriptions that had no room for a batch, by the acks.
    pub acked_misses: u64,
    /// Accounts of subscriptions, with the group of each.
    pub accounts: Vec<(usize, SubscriberAccount)>,
}

impl Deliveries {
    /// Returns the messages that the server reported as dropped.
    pub fn dropped(&self) -> u64 {
        self.accounts.iter().map(|(_, account)| account.dropped).sum()
    }
}

impl Merge for Deliveries {
    fn merge(&mut self, other: Self) {
        self.last = self.last.max(other.last);
        self.acked_deliveries += other.acked_deliveries;
        self.acked_misses += other.acked_misses;
        self.accounts.extend(other.accounts);
    }
}

/// Figures of a run. Its times are those from the moment a message was due to its arrival, one for each subscription that
/// got it.
pub type Outcome = load::Outcome<Deliveries>;

/// Data that the tasks of a thread share.
#[derive(Debug)]
pub struct Shared {
    /// Clock of the run.
    pub clock: Clock,
    /// Counted time, in nanoseconds of the clock.
    pub counted: Range<u64>,
    /// End of the run, for all threads.
    pub finish: Arc<Finish>,
    /// This thread's counts.
    pub tally: RefCell<Tally<Deliveries>>,
}
