//! Counts of a publish-and-subscribe run, and the data that the tasks of a generator thread share.

use std::{cell::RefCell, ops::Range, sync::Arc};

use crate::{
    load::{self, Clock, Merge, Tally},
    native::{Finish, SubscriberAccount},
};

/// Counts of deliveries in a publish-and-subscribe run, in addition to the general counts of [`Tally`]. The field
/// `right` of that tally is the number of correct deliveries.
#[derive(Clone, Debug, Default)]
pub(super) struct Deliveries {
    /// Arrival time of the last counted delivery, in nanoseconds since the end of the warm-up. A delivery is counted if
    /// its message was due after the warm-up and before the end of the run.
    pub last: u64,
    /// Number of subscriptions that accepted a batch, according to the server's ack of the batch, summed over all
    /// batches.
    pub acked_deliveries: u64,
    /// Number of subscriptions whose queue was full when a batch arrived, according to the server's ack of the batch,
    /// summed over all batches.
    pub acked_misses: u64,
    /// For each subscription, the number of its queue group and the account of the messages that it received.
    pub accounts: Vec<(usize, SubscriberAccount)>,
}

impl Deliveries {
    /// Returns the number of messages that the server reported as dropped.
    pub(super) fn dropped(&self) -> u64 {
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

/// Results of a publish-and-subscribe run. Its response times are delivery times: for each message and each
/// subscription that got it, the time from the moment at which the message was due to its arrival.
pub(super) type Outcome = load::Outcome<Deliveries>;

/// Data that the tasks of a generator thread share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Clock that all threads of the run share, in nanoseconds since the start of the run.
    pub clock: Clock,
    /// Part of the run in which due messages are counted, in nanoseconds of the clock.
    pub counted: Range<u64>,
    /// Shared state by which all threads of the run detect its end.
    pub finish: Arc<Finish>,
    /// Counts of the generator thread on which these tasks run.
    pub tally: RefCell<Tally<Deliveries>>,
}
