//! Counts of a publish-and-subscribe run, and the data that the tasks of a generator thread share.

use std::{cell::RefCell, ops::Range, sync::Arc};

use crate::{
    load::{self, Clock, Merge, Tally},
    native::{Finish, SubscriberAccount},
};

/// Counts of deliveries in a publish-and-subscribe run, which supplement the general counts of [`Tally`]. The right
/// items of that tally are deliveries.
#[derive(Clone, Debug, Default)]
pub(super) struct Deliveries {
    /// Arrival time of the last delivery whose message was due in the counted part of the run, in nanoseconds since the
    /// start of that part.
    pub last: u64,
    /// Number of subscriptions that accepted a batch, summed over the acks.
    pub acked_deliveries: u64,
    /// Number of subscriptions whose queue was full for a batch, summed over the acks.
    pub acked_misses: u64,
    /// One pair for each subscription: the number of its queue group, and the account of the messages that it received.
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

/// Figures of a publish-and-subscribe run. Its times run from the moment at which a message was due to the message's
/// arrival, one for each subscription that got the message.
pub(super) type Outcome = load::Outcome<Deliveries>;

/// Data that the tasks of a generator thread share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Clock that all threads of the run share, in nanoseconds since its start.
    pub clock: Clock,
    /// Part of the run in which due messages are counted, in nanoseconds of the clock.
    pub counted: Range<u64>,
    /// State of the end of the run, shared by all threads.
    pub finish: Arc<Finish>,
    /// Counts of the generator thread that these tasks run on.
    pub tally: RefCell<Tally<Deliveries>>,
}
