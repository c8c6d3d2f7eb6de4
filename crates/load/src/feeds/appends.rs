//! Appends of a run to its stream: which were sent, and where their records lie.
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
    acked: AtomicU64,
    end: AtomicU64,
    /// For each append, the number of its slot plus 1; 0 if it is not known.
    slots: Numbers,
    /// For each slot, the number of its append plus 1; 0 if it is not known.
    appends: Numbers,
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
        let [issued, acked, end] = [const { AtomicU64::new(0) }; 3];
        Self { batch: u64::from(batch), issued, acked, end, slots: Numbers::default(), appends: Numbers::default() }
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
        self.place(append.number * self.batch, first)?;
        self.acked.fetch_add(1, Ordering::AcqRel);
        self.end.fetch_max(first + self.batch, Ordering::AcqRel);
        if first < append.floor { Err(FeedFault::Reordered) } else { Ok(()) }
    }

    /// Records that a record was found at an offset, or returns the fault of its place.
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

    /// Returns the offset behind the last acknowledged record.
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Returns the number of acknowledged records.
    pub fn acked_records(&self) -> u64 {
        self.acked.load(Ordering::Acquire) * self.batch
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
