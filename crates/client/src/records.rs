//! Records of streams without copies: runs of consecutive records that refer to the bytes of one frame.
//!
//! Owns: [`Records`] and the iterators over it. The records of a frame are checked when the frame arrives: each record
//! must decode, and their number must be the stated one.

use bytes::Bytes;
use thalweg_types::{Durability, Offset, SpaceTime};
use thalweg_wire::{List, Message, Messages, RecordRun, SharedFrame};

use crate::error::{Error, ProtocolError};

/// The records that arrived in one frame, in the order of their offsets. They keep the frame's whole read
/// buffer alive.
#[derive(Clone, Debug)]
pub struct Records {
    pub(crate) payload: Bytes,
    runs: Vec<Run>,
    count: u64,
    /// Offset at which to continue reading the stream after these records.
    pub next: Offset,
    /// Offset that the next appended record would have received at the time of the read.
    pub high_watermark: Offset,
    /// Durability level that all these records have reached.
    pub durability: Durability,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    first: Offset,
    time: SpaceTime,
    count: u32,
    deliveries: u32,
    begin: usize,
    end: usize,
}

/// A record of a frame with its offset and its append time. It borrows the frame's bytes.
#[derive(Clone, Copy, Debug)]
pub struct RecordAt<'a> {
    /// Offset of the record.
    pub offset: Offset,
    /// Time at which the record was appended, by the cluster's own clock (space time).
    pub time: SpaceTime,
    /// Number of times a consumer group has delivered the record, including this time; 0 if no group
    /// delivered it.
    pub deliveries: u32,
    /// The record itself: key, headers and payload.
    pub record: Message<'a>,
}

/// A record of a frame that shares the frame's bytes instead of borrowing them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedRecord {
    /// Offset of the record.
    pub offset: Offset,
    /// Time at which the record was appended, by the cluster's own clock (space time).
    pub time: SpaceTime,
    /// Number of times a consumer group has delivered the record, including this time; 0 if no group
    /// delivered it.
    pub deliveries: u32,
    /// Key of the record.
    pub key: Option<Bytes>,
    /// Headers of the record.
    pub headers: Vec<(String, Bytes)>,
    /// Payload of the record.
    pub payload: Bytes,
    /// True if the record is a tombstone, which marks its key as deleted.
    pub is_tombstone: bool,
}

impl Records {
    /// Checks the runs of consecutive records in a frame. `parts` yields lists of runs, each with the number of times
    /// that a consumer group has delivered their records.
    pub(crate) fn new<'a>(
        frame: &'a SharedFrame,
        parts: impl Iterator<Item = (u32, List<'a, RecordRun<'a>>)>,
        durability: Durability,
        next: Offset,
        high_watermark: Offset,
    ) -> Result<Self, Error> {
        let base = frame.payload.as_ptr() as usize;
        let (mut runs, mut count) = (Vec::new(), 0);
        for (deliveries, part) in parts {
            for run in part.iter() {
                let found = Messages::new(run.records).check();
                if found != Ok(run.count) {
                    return Err(Error::Protocol(ProtocolError::Records { first: run.first.0 }));
                }
                let begin = run.records.as_ptr() as usize - base;
                let end = begin + run.records.len();
                count += u64::from(run.count);
                runs.push(Run { first: run.first, time: run.time, count: run.count, deliveries, begin, end });
            }
        }
        Ok(Self { payload: frame.payload.clone(), runs, count, next, high_watermark, durability })
    }

    /// Number of records in the frame.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX)
    }

    /// Returns true if the frame has no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the offsets of the first and the last record; `None` if there are no records.
    #[must_use]
    pub fn offsets(&self) -> Option<(Offset, Offset)> {
        let (first, last) = (self.runs.first()?, self.runs.last()?);
        Some((first.first, Offset(last.first.0 + u64::from(last.count) - 1)))
    }

    /// Iterates over the records, which borrow the bytes of the frame.
    pub fn iter(&self) -> impl Iterator<Item = RecordAt<'_>> {
        self.runs.iter().flat_map(|run| {
            let messages = Messages::new(&self.payload[run.begin..run.end]).map_while(Result::ok);
            messages.zip(run.first.0..).map(|(record, offset)| RecordAt {
                offset: Offset(offset),
                time: run.time,
                deliveries: run.deliveries,
                record,
            })
        })
    }

    /// Iterates over the records, which share the bytes of the frame.
    pub fn owned(&self) -> impl Iterator<Item = OwnedRecord> {
        self.iter().map(|at| at.to_owned(&self.payload))
    }
}

impl RecordAt<'_> {
    fn to_owned(self, bytes: &Bytes) -> OwnedRecord {
        let share = |part: &[u8]| bytes.slice_ref(part);
        OwnedRecord {
            offset: self.offset,
            time: self.time,
            deliveries: self.deliveries,
            key: self.record.key.map(share),
            headers: self.record.headers.iter().map(|(name, value)| (name.to_owned(), share(value))).collect(),
            payload: share(self.record.payload),
            is_tombstone: self.record.is_tombstone,
        }
    }
}

/// Position of an iteration over the records of a frame. The iteration can span several calls.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    records: Option<Records>,
    run: usize,
    /// Number of bytes of the current run of records that the iteration has returned.
    at: usize,
    given: u64,
}

impl Cursor {
    pub(crate) fn new(records: Records) -> Self {
        Self { records: Some(records), run: 0, at: 0, given: 0 }
    }

    pub(crate) fn next(&mut self) -> Option<OwnedRecord> {
        let records = self.records.as_ref()?;
        loop {
            let Some(run) = records.runs.get(self.run) else {
                self.records = None;
                return None;
            };
            let mut messages = Messages::new(&records.payload[run.begin + self.at..run.end]);
            if let Some(Ok(record)) = messages.next() {
                let offset = Offset(run.first.0 + self.given);
                self.at += messages.position();
                self.given += 1;
                let at = RecordAt { offset, time: run.time, deliveries: run.deliveries, record };
                return Some(at.to_owned(&records.payload));
            }
            self.run += 1;
            (self.at, self.given) = (0, 0);
        }
    }
}
