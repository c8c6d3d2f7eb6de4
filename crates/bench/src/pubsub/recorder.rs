//! Counts of a generator thread, and the data that its tasks share.

use std::{cell::RefCell, ops::Range, sync::Arc};

use crate::{
    latency::Latencies,
    load::crew::Clock,
    native::{check::Account, finish::Finish},
};

/// One thread's counts, merged at the end.
#[derive(Debug, Default)]
pub struct Recorder {
    /// Times from the moment a message was due to its arrival, one for each subscription that got it.
    pub times: Latencies,
    /// How late batches were composed although nothing held them up: the generator's own fault.
    pub lag: Latencies,
    /// Deliveries that arrived within the counted time.
    pub deliveries: u64,
    /// Bytes read from subscribers' channels within it.
    pub received_bytes: u64,
    /// All deliveries.
    pub all_deliveries: u64,
    /// When the last one of those due within the counted time came, in nanoseconds since that began.
    pub last: u64,
    /// Subscriptions that had room for a batch, by the acks.
    pub acked_deliveries: u64,
    /// Subscriptions that had no room for a batch, by the acks.
    pub acked_misses: u64,
    /// Accounts of subscriptions, with the group of each.
    pub accounts: Vec<(usize, Account)>,
    /// First problem, in words.
    pub problem: Option<String>,
}

impl Recorder {
    /// Remembers the first problem.
    pub fn problem(&mut self, what: impl FnOnce() -> String) {
        self.problem.get_or_insert_with(what);
    }

    /// Adds another thread's counts.
    pub fn merge(&mut self, other: Self) {
        self.times.merge(&other.times);
        self.lag.merge(&other.lag);
        self.deliveries += other.deliveries;
        self.received_bytes += other.received_bytes;
        self.all_deliveries += other.all_deliveries;
        self.last = self.last.max(other.last);
        self.acked_deliveries += other.acked_deliveries;
        self.acked_misses += other.acked_misses;
        self.accounts.extend(other.accounts);
        self.problem = self.problem.take().or(other.problem);
    }
}

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
    pub recorder: RefCell<Recorder>,
}
