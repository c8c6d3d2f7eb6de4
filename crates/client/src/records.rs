//! Records of streams as they came, without copies: runs of them over the bytes of one frame.
//!
//! Owns: [`Records`] and the ways to go through them. What is in it has been checked when it came: each record decodes, and there are
//! as many as the frame says.

use bytes::Bytes;
use thalweg_types::{Durability, Offset, SpaceTime};
use thalweg_wire::{List, Message, Messages, RecordRun, SharedFrame};

use crate::error::{Error, ProtocolError};

/// Records of one frame, in order. Keeps the read buffer that they came in.
#[derive(Clone, Debug)]
pub struct Records {
    pub(crate) payload: Bytes,
    runs: Vec<Run>,
    count: u64,
    /// Read or tail on from here.
    pub next: Offset,
    /// The stream's next offset when they were read.
    pub high_watermark: Offset,
    /// The level of all that they show.
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

/// A record with where it is.
#[derive(Clone, Copy, Debug)]
pub struct RecordAt<'a> {
    /// Its offset.
    pub offset: Offset,
    /// When it was appended.
    pub time: SpaceTime,
    /// How often a group has delivered it, this time included; 0 of what no group delivers.
    pub deliveries: u32,
    /// Key, headers, payload.
    pub record: Message<'a>,
}

/// The same with shares of the bytes instead of borrows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedRecord {
    /// Its offset.
    pub offset: Offset,
    /// When it was appended.
    pub time: SpaceTime,
    /// How often a group has delivered it.
    pub deliveries: u32,
    /// Its key.
    pub key: Option<Bytes>,
    /// Its headers.
    pub headers: Vec<(String, Bytes)>,
    /// Its payload.
    pub payload: Bytes,
    /// Whether it says that its key is gone.
    pub is_tombstone: bool,
}

impl Records {
    /// Of runs that `parts` gives with how often they were delivered.
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

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The first and the last offset, if there are records.
    #[must_use]
    pub fn offsets(&self) -> Option<(Offset, Offset)> {
        let (first, last) = (self.runs.first()?, self.runs.last()?);
        Some((first.first, Offset(last.first.0 + u64::from(last.count) - 1)))
    }

    /// The records, borrowed.
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

    /// The records with shares of the bytes.
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

/// Goes through records one by one, over calls.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    records: Option<Records>,
    run: usize,
    /// Bytes and records of the run that were given.
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
