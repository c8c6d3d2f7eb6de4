//! Ledger of the appends that a benchmark run sent to its stream, and of the positions of their records. With it, the
//! run tells lost, duplicated and reordered records apart.
//!
//! Owns: the numbers of appends, the known positions of their records, and the sets of records that were acknowledged,
//! and that were found when the whole stream was read. Does not own: the texts of records (`texts`), or the deliveries
//! of a group (`deliveries`).
//!
//! The position of a record is its offset if the server numbers records without gaps. Otherwise it is an id, and ids
//! rise with gaps ([`Positions`]). With offsets, the stream is divided into *slots*: ranges of offsets with the length
//! of one append. Invariants: each slot is known to hold at most one append, and each append is known to be in at most
//! one slot. Each record has at most one id. `end` is the end of the acknowledged records: the offset after the last
//! one, or the highest id. The records of an append that is sent later must get positions after `end`.

use std::{
    ops::Range,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use rand::RngExt as _;

use super::{
    faults::FeedFault,
    numbers::{MAX_NUMBERS, Numbers},
};
use crate::random::Generator;

/// Kind of the positions that a server gives to the records of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// Offsets: numbers without gaps, from 0. A read begins at an offset.
    Offsets,
    /// Ids: rising numbers with gaps, above 0. A read begins after an id.
    Ids,
}

/// Ledger of the appends that all load threads of a benchmark run sent to one new stream.
#[derive(Debug)]
pub struct AppendLedger {
    batch: u64,
    issued: AtomicU64,
    end: AtomicU64,
    /// One bit for each append. It is set if the append was acknowledged.
    acked: Numbers,
    places: RecordPositions,
    /// One bit for each record. It is set if the reading of the whole stream has found the record.
    found: Numbers,
}

/// Known positions of the records of a stream: slots if the server gives offsets, otherwise ids.
#[derive(Debug)]
enum RecordPositions {
    Slots {
        /// Slot number of each append plus 1; 0 if the slot is not known. A slot is a range of offsets with the length
        /// of one append.
        slots: Numbers,
        /// Number of the append in each slot (a range of offsets with the length of one append), plus 1; 0 if no append
        /// is known to be there.
        appends: Numbers,
    },
    Ids {
        /// Id of each record, by the record's number; 0 if the id is not known.
        ids: Numbers,
        /// Ids of all acknowledged records, in ascending order.
        sorted: Mutex<Vec<u64>>,
    },
}

/// An append that was sent or is about to be sent, and is not acknowledged yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Append {
    /// Number of the append, from 0.
    pub number: u64,
    /// End of the stream's acknowledged records when this append was sent: the offset after the last one, or the
    /// highest id. The append's own records must come after them.
    floor: u64,
}

impl AppendLedger {
    /// Creates the ledger of an empty stream. Every append adds `batch` records, at least 1.
    pub fn new(batch: u32, positions: Positions) -> Self {
        let [issued, end] = [const { AtomicU64::new(0) }; 2];
        let places = match positions {
            Positions::Offsets => RecordPositions::Slots { slots: Numbers::default(), appends: Numbers::default() },
            Positions::Ids => RecordPositions::Ids { ids: Numbers::default(), sorted: Mutex::default() },
        };
        let [acked, found] = [(); 2].map(|()| Numbers::default());
        Self { batch: u64::from(batch), issued, end, acked, places, found }
    }

    /// Registers a new append that is about to be sent.
    pub fn begin(&self) -> Append {
        let floor = self.end();
        let number = self.issued.fetch_add(1, Ordering::AcqRel);
        assert!(number < MAX_NUMBERS / self.batch, "a run appends at most {MAX_NUMBERS} records");
        Append { number, floor }
    }

    /// Returns the numbers of the records in the append with the number `append`.
    pub fn records(&self, append: u64) -> Range<u64> {
        append * self.batch..(append + 1) * self.batch
    }

    /// Registers the acknowledgement of an append. `first` is the offset of its first record.
    pub fn end_append(&self, append: Append, first: u64) -> Result<(), FeedFault> {
        self.acked.set_bit(append.number);
        self.end.fetch_max(first.saturating_add(self.batch), Ordering::AcqRel);
        self.place(append.number * self.batch, first)?;
        if first < append.floor { Err(FeedFault::Reordered) } else { Ok(()) }
    }

    /// Registers the acknowledgement of an append. `found` are the ids of its records.
    pub fn end_append_at(&self, append: Append, found: &[u64]) -> Result<(), FeedFault> {
        self.acked.set_bit(append.number);
        if let RecordPositions::Ids { sorted, .. } = &self.places {
            let mut sorted = lock(sorted);
            for id in found {
                // Acknowledgements arrive nearly in order, so the place of an id is near the end.
                let at = sorted.iter().rposition(|other| other <= id).map_or(0, |at| at + 1);
                sorted.insert(at, *id);
            }
        }
        let mut last = append.floor;
        for (record, id) in self.records(append.number).zip(found) {
            self.end.fetch_max(*id, Ordering::AcqRel);
            self.place(record, *id)?;
            if *id <= last {
                return Err(FeedFault::Reordered);
            }
            last = *id;
        }
        Ok(())
    }

    /// Registers that a record was found at a position. Returns a fault if the record cannot be there.
    pub fn place(&self, record: u64, position: u64) -> Result<(), FeedFault> {
        let (append, at) = (record / self.batch, record % self.batch);
        let issued = self.issued.load(Ordering::Acquire);
        if append >= issued {
            return Err(FeedFault::Wrong);
        }
        let (slots, appends) = match &self.places {
            RecordPositions::Slots { slots, appends } => (slots, appends),
            RecordPositions::Ids { ids, .. } => {
                return match ids.claim(record, position) {
                    Err(known) if known != position => Err(FeedFault::Duplicated),
                    _ => Ok(()),
                };
            }
        };
        let slot = position / self.batch;
        if at != position % self.batch {
            return Err(FeedFault::Reordered);
        }
        if slot >= issued {
            return Err(FeedFault::Duplicated);
        }
        match appends.claim(slot, append + 1) {
            Ok(()) => slots.claim(append, slot + 1).map_err(|_| FeedFault::Duplicated),
            Err(known) if known == append + 1 => Ok(()),
            Err(_) => Err(FeedFault::Reordered),
        }
    }

    /// Checks the order of two consecutive records in the reply to a read: the record at `position` must follow the one
    /// at `last`. For the first record of the reply `last` is `None`, and `position` is compared with the start `from`
    /// of the read. Offsets must have no gap, ids only have to rise. Returns `None` if the order is right. Otherwise
    /// returns the fault, and the number of records with this fault.
    pub fn follows(&self, from: u64, last: Option<u64>, position: u64) -> Option<(FeedFault, u64)> {
        match &self.places {
            RecordPositions::Slots { .. } => {
                let next = last.map_or(from, |last| last.saturating_add(1));
                let fault = if position > next { FeedFault::Lost } else { FeedFault::Reordered };
                (position != next).then(|| (fault, position.saturating_sub(next).max(1)))
            }
            RecordPositions::Ids { .. } => (position <= last.unwrap_or(from)).then_some((FeedFault::Reordered, 1)),
        }
    }

    /// Returns the position at which a reader continues after a read from `from`. `last` is the position of the last
    /// record of the reply; `None` if it had no records.
    pub fn after(&self, from: u64, last: Option<u64>) -> u64 {
        match &self.places {
            RecordPositions::Slots { .. } => last.map_or(from, |last| last.saturating_add(1)),
            RecordPositions::Ids { .. } => last.unwrap_or(from),
        }
    }

    /// Returns the number of acknowledged records that are missing in the reply to a read of at most `limit` records
    /// from the position `from`. `floor` was the end of the acknowledged records when the read was sent. `seen` are the
    /// positions of the records in the reply, in order.
    pub fn missing(&self, from: u64, floor: u64, limit: u64, seen: &[u64]) -> u64 {
        let (least, found) = match &self.places {
            RecordPositions::Slots { .. } => (floor.saturating_sub(from).min(limit), seen.len()),
            RecordPositions::Ids { sorted, .. } => {
                // If a reply is full, nothing can be missing after its last record.
                let full = seen.last().filter(|_| seen.len() as u64 >= limit);
                let bound = full.map_or(floor, |last| floor.min(*last));
                let sorted = lock(sorted);
                let up_to = |bound: u64| sorted.partition_point(|id| *id <= bound) as u64;
                (up_to(bound).saturating_sub(up_to(from)), seen.iter().filter(|id| **id <= bound).count())
            }
        };
        least.saturating_sub(found as u64)
    }

    /// Returns the position for a read that begins at a random acknowledged record.
    pub fn any(&self, rng: &mut Generator) -> u64 {
        match &self.places {
            RecordPositions::Slots { .. } => rng.random_range(0..self.end().max(1)),
            RecordPositions::Ids { sorted, .. } => {
                let sorted = lock(sorted);
                if sorted.is_empty() { 0 } else { sorted[rng.random_range(0..sorted.len())] - 1 }
            }
        }
    }

    /// Returns the range of positions of page `number`, if the whole stream is read in pages of `limit` records: the
    /// page's start, and the end of the records that it must contain. The pages below [`pages`](Self::pages) contain
    /// all records. The last page has the records that were not acknowledged, if any.
    pub fn page(&self, number: u64, limit: u64) -> Range<u64> {
        match &self.places {
            RecordPositions::Slots { .. } => number * limit..self.end(),
            RecordPositions::Ids { sorted, .. } => {
                let sorted = lock(sorted);
                let id = |count: u64| match count.min(sorted.len() as u64) {
                    0 => 0,
                    count => sorted[count as usize - 1],
                };
                let is_last = number * limit >= sorted.len() as u64;
                id(number * limit)..if is_last { u64::MAX } else { id((number + 1) * limit) }
            }
        }
    }

    /// Returns the number of pages of `limit` records that contain the whole stream: those with records that the server
    /// has acknowledged, and one more.
    pub fn pages(&self, limit: u64) -> u64 {
        let records = match &self.places {
            RecordPositions::Slots { .. } => self.end(),
            RecordPositions::Ids { sorted, .. } => lock(sorted).len() as u64,
        };
        records.div_ceil(limit) + 1
    }

    /// Returns the end of the acknowledged records: the offset after the last one, or the highest id.
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Registers that the reading of the whole stream has found a record at a position. Returns a fault if the record
    /// was found before or cannot be there.
    pub fn find(&self, record: u64, position: u64) -> Result<(), FeedFault> {
        if record / self.batch < self.issued.load(Ordering::Acquire) && !self.found.set_bit(record) {
            return Err(FeedFault::Duplicated);
        }
        self.place(record, position)
    }

    /// Returns the number of acknowledged records.
    pub fn acked_records(&self) -> u64 {
        self.acked_appends().count() as u64 * self.batch
    }

    /// Returns the number of acknowledged records that the reading of the whole stream has not found.
    pub fn lost_records(&self) -> u64 {
        self.acked_outside(&self.found)
    }

    /// Returns the number of acknowledged records whose bit is not set in `bits`, which has one bit for each record.
    pub(super) fn acked_outside(&self, bits: &Numbers) -> u64 {
        let records = self.acked_appends().flat_map(|append| self.records(append));
        records.filter(|record| !bits.bit(*record)).count() as u64
    }

    fn acked_appends(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.issued.load(Ordering::Acquire)).filter(|append| self.acked.bit(*append))
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::generator;

    #[test]
    fn records_lie_where_they_were_acknowledged() {
        let ledger = AppendLedger::new(3, Positions::Offsets);
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
        let ledger = AppendLedger::new(1, Positions::Offsets);
        let [_unacknowledged, second, _] = [ledger.begin(), ledger.begin(), ledger.begin()];
        assert_eq!(ledger.end_append(second, 1), Ok(()));
        assert_eq!(ledger.place(0, 0), Ok(()));
        assert_eq!(ledger.place(0, 2), Err(FeedFault::Duplicated));
        assert_eq!(ledger.acked_records(), 1);
    }

    #[test]
    fn reading_the_whole_stream_finds_each_record_once() {
        let ledger = AppendLedger::new(2, Positions::Offsets);
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
        let ledger = AppendLedger::new(2, Positions::Offsets);
        let overlapping = ledger.begin();
        let first = ledger.begin();
        assert_eq!(ledger.end_append(first, 2), Ok(()));
        let later = ledger.begin();
        assert_eq!(ledger.end_append(overlapping, 0), Ok(()), "it was sent before");
        assert_eq!(ledger.end_append(later, 4), Ok(()));
        let wrong = AppendLedger::new(2, Positions::Offsets);
        let _sent = wrong.begin();
        let first = wrong.begin();
        wrong.end_append(first, 2).unwrap();
        assert_eq!(wrong.end_append(wrong.begin(), 0), Err(FeedFault::Reordered));
    }

    #[test]
    fn ids_rise_and_no_acknowledged_one_is_missing() {
        let ledger = AppendLedger::new(2, Positions::Ids);
        let [first, second] = [ledger.begin(), ledger.begin()];
        assert_eq!(ledger.end_append_at(second, &[50, 51]), Ok(()));
        assert_eq!(ledger.end_append_at(first, &[20, 30]), Ok(()), "they overlap, so either may be first");
        assert_eq!((ledger.end(), ledger.acked_records()), (51, 4));
        assert_eq!(ledger.end_append_at(ledger.begin(), &[40, 60]), Err(FeedFault::Reordered), "sent after id 51");
        assert_eq!((ledger.place(0, 20), ledger.place(0, 21)), (Ok(()), Err(FeedFault::Duplicated)));
        assert_eq!(ledger.place(9, 99), Err(FeedFault::Wrong));
        let ledger = AppendLedger::new(1, Positions::Ids);
        for id in [10, 20, 30, 40] {
            ledger.end_append_at(ledger.begin(), &[id]).unwrap();
        }
        // A reply may contain a record that is not acknowledged yet.
        assert_eq!(ledger.missing(10, 40, 9, &[20, 25, 30, 40]), 0);
        assert_eq!(ledger.missing(10, 40, 9, &[20, 40]), 1);
        assert_eq!(ledger.missing(10, 40, 9, &[20, 30]), 1, "the reply has room, so its end is the stream's");
        assert_eq!(ledger.missing(10, 40, 2, &[20, 30]), 0, "a full reply");
        assert_eq!(ledger.missing(10, 40, 2, &[30, 40]), 1);
        assert_eq!(ledger.missing(10, 30, 9, &[20, 30]), 0, "40 was appended after the read was sent");
        assert_eq!(
            (ledger.follows(10, None, 20), ledger.follows(10, Some(20), 20)),
            (None, Some((FeedFault::Reordered, 1)))
        );
        assert_eq!((ledger.after(10, None), ledger.after(10, Some(20))), (10, 20));
        let pages: Vec<_> = (0..ledger.pages(3)).map(|page| ledger.page(page, 3)).collect();
        assert_eq!(pages, [0..30, 30..40, 40..u64::MAX]);
        let mut rng = generator(1);
        assert!((0..99).all(|_| [9, 19, 29, 39].contains(&ledger.any(&mut rng))));
        assert_eq!(AppendLedger::new(1, Positions::Ids).page(0, 3), 0..u64::MAX);
    }
}
