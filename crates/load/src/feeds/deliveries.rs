//! Ledgers of the deliveries to the members of a consumer group, and to the subscribers of a subject.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{
    faults::{FeedFault, FeedFaults},
    numbers::{MAX_NUMBERS, Numbers},
};

/// Ledger of the deliveries of one consumer group to all its members.
#[derive(Debug, Default)]
pub struct GroupLedger {
    /// One bit for each record. It is set if the record was delivered at least once.
    delivered: Numbers,
    /// One bit for each record. It is set if the record's first delivery, by the server's count, has arrived. A later
    /// delivery of the record may arrive earlier over another connection.
    first: Numbers,
    different: AtomicU64,
    again: AtomicU64,
    lapsed: AtomicU64,
}

impl GroupLedger {
    /// Registers a delivery of a record. `deliveries` is the number of the record's deliveries so far, by the server's
    /// count. If the server counts two deliveries of a record as the first, returns a fault.
    pub fn deliver(&self, record: u64, deliveries: u64) -> Result<(), FeedFault> {
        if record >= MAX_NUMBERS {
            return Err(FeedFault::Wrong);
        }
        if self.delivered.set_bit(record) {
            self.different.fetch_add(1, Ordering::AcqRel);
        }
        if deliveries > 1 {
            self.again.fetch_add(1, Ordering::AcqRel);
            return Ok(());
        }
        if self.first.set_bit(record) { Ok(()) } else { Err(FeedFault::Duplicated) }
    }

    /// Returns the array with one bit for each record, which is set if the record was delivered.
    pub(super) fn bits(&self) -> &Numbers {
        &self.delivered
    }

    /// Counts records whose ack came too late: the server had already taken the records back, to deliver them again.
    pub fn lapse(&self, records: u64) {
        self.lapsed.fetch_add(records, Ordering::AcqRel);
    }

    /// Returns the number of records that were delivered at least once.
    pub fn delivered(&self) -> u64 {
        self.different.load(Ordering::Acquire)
    }

    /// Returns the number of deliveries that are not the first delivery of their record, by the server's count.
    pub fn redelivered(&self) -> u64 {
        self.again.load(Ordering::Acquire)
    }

    /// Returns the number of records whose ack came too late, after the server had taken them back to deliver them
    /// again.
    pub fn lapsed(&self) -> u64 {
        self.lapsed.load(Ordering::Acquire)
    }
}

/// Ledger of the messages that one subscriber of a subject received. Messages are numbered, and the messages of one
/// publish have consecutive numbers. If a server keeps no order between publishers, only the numbers of each
/// publisher's messages must rise.
#[derive(Debug)]
pub struct SubscriberLedger {
    batch: u64,
    seen: Numbers,
    last: Option<u64>,
    /// Last message of each publisher. Used only if the server keeps no order between publishers.
    last_of: BTreeMap<u64, u64>,
    /// Number of different messages that arrived.
    pub received: u64,
    /// Number of messages that the server reported as dropped.
    pub dropped: u64,
    /// Number of messages with each kind of fault, except losses.
    pub faults: FeedFaults,
    order: u64,
}

impl SubscriberLedger {
    /// Creates the ledger of a subscriber. Each publish to its subject has `batch` messages.
    pub fn new(batch: u32) -> Self {
        let (seen, faults) = (Numbers::default(), FeedFaults::default());
        let (last_of, batch) = (BTreeMap::new(), u64::from(batch));
        Self { batch, seen, last: None, last_of, received: 0, dropped: 0, faults, order: 0 }
    }

    /// Registers a received message. `None` means that the benchmark run has not sent this content.
    pub fn take(&mut self, message: Option<u64>) {
        let Some(message) = self.receive(message) else { return };
        let follows = message % self.batch == 0 || self.last.is_some_and(|last| last + 1 == message);
        if !follows && self.dropped == 0 {
            self.faults.add(FeedFault::Reordered, 1);
        }
        self.last = Some(message);
        self.order = (self.order ^ message).wrapping_mul(0x0100_0000_01b3);
    }

    /// Registers a received message of a publisher, if the server keeps no order between publishers. `None` means that
    /// the run has not sent this content.
    pub fn take_of(&mut self, publisher: u64, message: Option<u64>) {
        let Some(message) = self.receive(message) else { return };
        if self.last_of.insert(publisher, message).is_some_and(|last| last > message) {
            self.faults.add(FeedFault::Reordered, 1);
        }
    }

    /// Counts a received message, and returns its number; `None` if it is wrong or duplicated.
    fn receive(&mut self, message: Option<u64>) -> Option<u64> {
        let Some(message) = message.filter(|message| *message < MAX_NUMBERS) else {
            self.faults.add(FeedFault::Wrong, 1);
            return None;
        };
        if !self.seen.set_bit(message) {
            self.faults.add(FeedFault::Duplicated, 1);
            return None;
        }
        self.received += 1;
        Some(message)
    }

    /// Registers that the server has dropped this number of messages, by its own report.
    pub fn gap(&mut self, messages: u64) {
        self.dropped += messages;
    }

    /// Returns a hash of the order of all messages. Returns `None` unless this subscriber received all of `published`
    /// and the server keeps one order for all subscribers.
    pub fn order(&self, published: u64) -> Option<u64> {
        (self.received == published && self.last_of.is_empty()).then_some(self.order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_delivers_each_record_once_or_says_that_it_comes_again() {
        let group = GroupLedger::default();
        assert_eq!((group.deliver(0, 1), group.deliver(1, 1)), (Ok(()), Ok(())));
        assert_eq!(group.deliver(1, 2), Ok(()));
        assert_eq!((group.delivered(), group.redelivered()), (2, 1));
        assert_eq!(group.deliver(0, 1), Err(FeedFault::Duplicated));
        assert_eq!(group.deliver(u64::MAX, 1), Err(FeedFault::Wrong));
        assert_eq!(group.deliver(7, 3), Ok(()), "the replies with the first deliveries may be lost");
        assert_eq!(group.deliver(7, 1), Ok(()), "or come later");
        group.lapse(5);
        assert_eq!((group.delivered(), group.redelivered(), group.lapsed()), (3, 2, 5));
    }

    #[test]
    fn a_subscriber_gets_the_messages_of_a_publish_together() {
        let taken = |messages: &[u64]| {
            let mut ledger = SubscriberLedger::new(2);
            messages.iter().for_each(|message| ledger.take(Some(*message)));
            ledger
        };
        let right = taken(&[2, 3, 0, 1]);
        assert!(!right.faults.any() && right.received == 4);
        assert_eq!(right.order(4), taken(&[2, 3, 0, 1]).order(4));
        assert_ne!(right.order(4), taken(&[0, 1, 2, 3]).order(4));
        assert_eq!(right.order(5), None, "one is missing");
        assert_eq!(taken(&[0, 1, 0]).faults, FeedFaults { duplicated: 1, ..FeedFaults::default() });
        assert_eq!(taken(&[0, 3, 1]).faults, FeedFaults { reordered: 2, ..FeedFaults::default() });
        let mut dropped = taken(&[0]);
        dropped.gap(1);
        dropped.take(Some(3));
        assert!(!dropped.faults.any() && dropped.dropped == 1);
        dropped.take(None);
        assert_eq!(dropped.faults.wrong, 1);
    }

    #[test]
    fn order_may_be_kept_for_each_publisher_only() {
        let taken = |messages: &[(u64, u64)]| {
            let mut ledger = SubscriberLedger::new(2);
            messages.iter().for_each(|(publisher, message)| ledger.take_of(*publisher, Some(*message)));
            ledger
        };
        let mixed = taken(&[(1, 2), (7, 0), (1, 3), (7, 1)]);
        assert!(!mixed.faults.any() && mixed.received == 4);
        assert_eq!(mixed.order(4), None, "another subscriber may have received them in another order");
        assert_eq!(taken(&[(1, 3), (7, 0), (1, 2)]).faults, FeedFaults { reordered: 1, ..FeedFaults::default() });
        assert_eq!(taken(&[(1, 0), (7, 0)]).faults, FeedFaults { duplicated: 1, ..FeedFaults::default() });
        let mut wrong = taken(&[]);
        wrong.take_of(1, None);
        assert_eq!(wrong.faults.wrong, 1);
    }
}
