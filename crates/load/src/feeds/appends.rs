//! Appends of a run to its stream: those that were sent, and the positions of their records.
//!
//! Invariants: a slot is known to hold at most one append, and an append to lie in at most one slot. `end` is the highest
//! end of an acknowledged append; an append that is sent later must lie at or after it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    faults::FeedFault,
    numbers::{MAX_NUMBERS, Numbers},
};

/// Appends of all threads to one new stream.
#[derive(Debug)]
pub struct AppendLedger {
    batch: u64,
    issued: AtomicU64,
    end: AtomicU64,
    /// Bits of the appends: a bit is set if its append was acknowledged.
    acked: Numbers,
    /// Number of each append's slot plus 1; 0 if it is not known.
    slots: Numbers,
    /// Number of each slot's append plus 1; 0 if it is not known.
    appends: Numbers,
    /// Bits of the records: a bit is set if the reading of the whole stream has found its record.
    found: Numbers,
}

/// An append that is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Append {
    /// Number of the append, from 0.
    pub number: u64,
    /// End of the acknowledged records at the moment of sending.
    floor: u64,
}

impl AppendLedger {
    /// Creates the ledger of a stream without records, to which every append adds `batch` records, at least 1.
    pub fn new(batch: u32) -> Self {
        let [issued, end] = [const { AtomicU64::new(0) }; 2];
        let [acked, slots, appends, found] = [(); 4].map(|()| Numbers::default());
        Self { batch: u64::from(batch), issued, end, acked, slots, appends, found }
    }

    /// Records that an append is sent.
    pub fn begin(&self) -> Append {
        let floor = self.end();
        let number = self.issued.fetch_add(1, Ordering::AcqRel);
        assert!(number < MAX_NUMBERS / self.batch, "a run appends at most {MAX_NUMBERS} records");
        Append { number, floor }
    }

    /// Returns the numbers of an append's records.
    pub fn records(&self, append: u64) -> std::ops::Range<u64> {
        append * self.batch..(append + 1) * self.batch
    }

    /// Records that an append was acknowledged with the offset of its first record.
    pub fn end_append(&self, append: Append, first: u64) -> Result<(), FeedFault> {
        self.acked.set_bit(append.number);
        self.end.fetch_max(first.saturating_add(self.batch), Ordering::AcqRel);
        self.place(append.number * self.batch, first)?;
        if first < append.floor { Err(FeedFault::Reordered) } else { Ok(()) }
    }

    /// Records that a record was found at an offset. Returns a fault if the record cannot be there.
    pub fn place(&self, record: u64, offset: u64) -> Result<(), FeedFault> {
        let ((append, at), slot) = ((record / self.batch, record % self.batch), offset / self.batch);
        let issued = self.issued.load(Ordering::Acquire);
        if append >= issued {
            return Err(FeedFault::Wrong);
        }
        if at != offset % self.batch {
            return Err(FeedFault::Reordered);
        }
        if slot >= issued {
            return Err(FeedFault::Duplicated);
        }
        match self.appends.claim(slot, append + 1) {
            Ok(()) => self.slots.claim(append, slot + 1).map_err(|_| FeedFault::Duplicated),
            Err(known) if known == append + 1 => Ok(()),
            Err(_) => Err(FeedFault::Reordered),
        }
    }

    /// Returns the offset after the last acknowledged record.
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Records that the reading of the whole stream has found a record at an offset, or returns the fault.
    pub fn find(&self, record: u64, offset: u64) -> Result<(), FeedFault> {
        if record / self.batch < self.issued.load(Ordering::Acquire) && !self.found.set_bit(record) {
            return Err(FeedFault::Duplicated);
        }
        self.place(record, offset)
    }

    /// Returns the number of acknowledged records.
    pub fn acked_records(&self) -> u64 {
        self.acked_appends().count() as u64 * self.batch
    }

    /// Returns the number of acknowledged records that the reading of the whole stream has not found.
    pub fn lost_records(&self) -> u64 {
        let records = self.acked_appends().flat_map(|append| self.records(append));
        records.filter(|record| !self.found.bit(*record)).count() as u64
    }

    fn acked_appends(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.issued.load(Ordering::Acquire)).filter(|append| self.acked.bit(*append))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_lie_where_they_were_acknowledged() {
        let ledger = AppendLedger::new(3);
        let [first, second] = [ledger.begin(), ledger.begin()];
        assert_eq!(ledger.end_append(second, 0), Ok(()), "they overlap, so either may be first");
        assert_eq!(ledger.end_append(first, 3), Ok(()));
        assert_eq!((ledger.end(), ledger.acked_records(), ledger.records(1)), (6, 6, 3..6));
        assert_eq!((ledger.place(3, 0), ledger.place(5, 2), ledger.place(0, 3)), (Ok(()), Ok(()), Ok(())));
        assert_eq!(ledger.place(0, 0), Err(FeedFault::Reordered), "its slot has another append");
        assert_eq!(ledger.place(4, 2), Err(FeedFault::Reordered), "within the append");
        assert_eq!(ledger.place(3, 6), Err(FeedFault::Duplicated), "more than was sent");
        assert_eq!(ledger.place(6, 3), Err(FeedFault::Wrong), "this one was never sent");
        assert_eq!(ledger.place(u64::MAX, u64::MAX), Err(FeedFault::Wrong));
    }

    #[test]
    fn an_append_without_acknowledgement_may_lie_anywhere_once() {
        let ledger = AppendLedger::new(1);
        let [_unacknowledged, second, _] = [ledger.begin(), ledger.begin(), ledger.begin()];
        assert_eq!(ledger.end_append(second, 1), Ok(()));
        assert_eq!(ledger.place(0, 0), Ok(()));
        assert_eq!(ledger.place(0, 2), Err(FeedFault::Duplicated));
        assert_eq!(ledger.acked_records(), 1);
    }

    #[test]
    fn reading_the_whole_stream_finds_each_record_once() {
        let ledger = AppendLedger::new(2);
        let [first, second, _unacknowledged] = [ledger.begin(), ledger.begin(), ledger.begin()];
        ledger.end_append(first, 0).unwrap();
        ledger.end_append(second, 2).unwrap();
        assert_eq!((ledger.find(0, 0), ledger.find(2, 2), ledger.find(3, 3)), (Ok(()), Ok(()), Ok(())));
        assert_eq!(ledger.lost_records(), 1);
        assert_eq!(ledger.find(3, 4), Err(FeedFault::Duplicated));
        assert_eq!(ledger.find(1, 4), Err(FeedFault::Reordered), "it is there, at another offset");
        assert_eq!(ledger.lost_records(), 0);
        assert_eq!(ledger.find(u64::MAX, 5), Err(FeedFault::Wrong));
    }

    #[test]
    fn an_append_follows_those_that_were_acknowledged_before_it() {
        let ledger = AppendLedger::new(2);
        let overlapping = ledger.begin();
        let first = ledger.begin();
        assert_eq!(ledger.end_append(first, 2), Ok(()));
        let later = ledger.begin();
        assert_eq!(ledger.end_append(overlapping, 0), Ok(()), "it was sent before");
        assert_eq!(ledger.end_append(later, 4), Ok(()));
        let wrong = AppendLedger::new(2);
        let _sent = wrong.begin();
        let first = wrong.begin();
        wrong.end_append(first, 2).unwrap();
        assert_eq!(wrong.end_append(wrong.begin(), 0), Err(FeedFault::Reordered));
    }
}
