//! Faults of records and messages that a run got back: lost, duplicated, reordered, or with wrong content.

use std::fmt;

use crate::Merge;

/// Kind of a fault of a record or message that a benchmark run got back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedFault {
    /// An acknowledged record is not where it was acknowledged.
    Lost,
    /// A record arrived twice, or the stream has more records than the benchmark run has sent.
    Duplicated,
    /// A record arrived out of order.
    Reordered,
    /// The benchmark run has not sent this content.
    Wrong,
}

/// Number of records or messages with a fault, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedFaults {
    /// Number of acknowledged records and messages that are missing.
    pub lost: u64,
    /// Number of records and messages that arrived twice, or that were never sent.
    pub duplicated: u64,
    /// Number of records and messages that arrived out of order.
    pub reordered: u64,
    /// Number of records and messages with content that the benchmark run has not sent.
    pub wrong: u64,
}

impl FeedFaults {
    /// Adds `records` to the number of records with this kind of fault.
    pub fn add(&mut self, fault: FeedFault, records: u64) {
        *match fault {
            FeedFault::Lost => &mut self.lost,
            FeedFault::Duplicated => &mut self.duplicated,
            FeedFault::Reordered => &mut self.reordered,
            FeedFault::Wrong => &mut self.wrong,
        } += records;
    }

    /// Returns true if there is any fault.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

impl Merge for FeedFaults {
    fn merge(&mut self, other: Self) {
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.wrong += other.wrong;
    }
}

impl fmt::Display for FeedFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lost, duplicated, reordered, wrong } = self;
        write!(f, "{lost} lost, {duplicated} duplicated, {reordered} reordered, {wrong} with wrong content")
    }
}
