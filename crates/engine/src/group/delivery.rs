//! Result of a fetch from a consumer group: records, and the number that their acks and nacks name.
//!
//! Owns: `Delivery` with its messages, and the reading of delivered records within a byte limit. Does not own: the
//! choice of the records (the state machine), or the acks and nacks of missing or too large records (`fetch`).

use std::ops::ControlFlow;

use thalweg_types::{
    Attempt, Durability, Offset, SpaceTime,
    command::groups::{DeliveredRun, OffsetRun},
    record::Record,
};

use crate::{
    error::ReadError,
    runs::{RunLimits, StreamRun},
    stream::Stream,
    stream_page::StreamPage,
};

/// Records that one fetch has delivered. The consumer settles (acks or nacks) them by their
/// [`attempt`](Self::attempt).
#[derive(Clone, Debug, Default)]
pub struct Delivery {
    /// Number of the delivery attempt, which acks and nacks of the records name. Meaningless if there are no records.
    pub attempt: Attempt,
    /// Ack deadline of the delivery attempt, by the database's own clock (space time).
    pub deadline: SpaceTime,
    /// Durability level that the log entry of the delivery has reached.
    pub durability: Durability,
    parts: Vec<Part>,
}

/// Consecutive records of a delivery that all have been delivered the same number of times.
#[derive(Clone, Debug)]
struct Part {
    deliveries: u32,
    page: StreamPage,
}

/// One record of a delivery, with its offset and its number of deliveries.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Offset of the delivered record in its stream.
    pub offset: Offset,
    /// Number of deliveries of the record, including this one.
    pub deliveries: u32,
    /// Time at which the record was appended, by the database's own clock (space time).
    pub time: SpaceTime,
    /// The delivered record itself.
    pub record: &'a Record<'a>,
}

/// Returns the number of bytes that a record counts against a byte limit: its key, headers and payload.
pub(super) fn record_bytes(record: &Record<'_>) -> u64 {
    let headers: usize = record.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    (record.key.map_or(0, <[u8]>::len) + headers + record.payload.len()) as u64
}

impl Delivery {
    /// Creates a delivery without records, at the given durability level.
    #[must_use]
    pub fn none(durability: Durability) -> Self {
        Self { durability, ..Self::default() }
    }

    /// Returns true if the delivery has no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Number of records in the delivery.
    #[must_use]
    pub fn record_count(&self) -> u64 {
        self.parts.iter().map(|part| part.page.record_count()).sum()
    }

    /// Returns the size in bytes of the stored batches that contain the delivered records. They may contain other
    /// records, too.
    #[must_use]
    pub fn stored_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.page.stored_bytes()).sum()
    }

    /// Returns the records encoded as the log stores them. Each pair has a number of deliveries (including this one),
    /// and the runs of consecutive records that were delivered that many times.
    pub fn into_runs(self) -> Result<Vec<(u32, Vec<StreamRun>)>, ReadError> {
        const ALL: RunLimits = RunLimits { max_bytes: u64::MAX, per_run_bytes: 0, enough_records: u64::MAX };
        let runs = |part: Part| Ok((part.deliveries, part.page.into_runs(ALL)?.0));
        self.parts.into_iter().map(runs).collect()
    }

    /// Calls `visit` for each record in the order of offsets, until `visit` breaks.
    pub fn for_each(&self, visit: &mut dyn FnMut(Message<'_>) -> ControlFlow<()>) -> Result<(), ReadError> {
        let mut flow = ControlFlow::Continue(());
        for Part { deliveries, page } in &self.parts {
            page.for_each(&mut |offset, time, record| {
                flow = visit(Message { offset, deliveries: *deliveries, time, record });
                flow
            })?;
            if flow.is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// State of reading a delivery's records from the log: the records read so far, and those that could not be read.
#[derive(Debug, Default)]
pub(super) struct Reading {
    parts: Vec<Part>,
    /// Number of records accepted into the delivery so far.
    admitted: u64,
    bytes: u64,
    max_bytes: u64,
    /// Delivered records that no longer exist: trimmed or compacted in the meantime.
    pub(super) missing: Vec<OffsetRun>,
    /// Delivered records that exceed the byte limit and were not read.
    pub(super) unread: Vec<OffsetRun>,
}

impl Reading {
    pub(super) fn new(max_bytes: u64) -> Self {
        Self { max_bytes: max_bytes.max(1), ..Self::default() }
    }

    pub(super) fn into_delivery(self, attempt: Attempt, deadline: SpaceTime, durability: Durability) -> Delivery {
        Delivery { attempt, deadline, durability, parts: self.parts }
    }

    /// Reads delivered records from the stream until the byte limit is reached.
    pub(super) fn read(&mut self, stream: &Stream, delivered: &DeliveredRun) -> Result<(), ReadError> {
        let (mut from, end) = (delivered.run.first, delivered.run.end());
        while from < end {
            if self.bytes >= self.max_bytes {
                self.unread.push(run(from, end));
                return Ok(());
            }
            let mut page = match stream.read(from, end.0 - from.0, self.max_bytes - self.bytes) {
                Err(ReadError::Trimmed { start, .. }) => {
                    let start = start.min(end);
                    self.missing.push(run(from, start));
                    from = start;
                    continue;
                }
                page => page?,
            };
            page.truncate(end);
            if let Some(too_many) = self.admit(&page)? {
                page.truncate(too_many);
                self.unread.push(run(too_many, end));
                self.take(delivered.deliveries, from, too_many, page);
                return Ok(());
            }
            let next = page.next;
            if next <= from {
                self.missing.push(run(from, end));
                return Ok(());
            }
            self.take(delivered.deliveries, from, next, page);
            from = next;
        }
        Ok(())
    }

    /// Adds the sizes of a page's records to the bytes of the delivery. Returns the offset of the first record beyond
    /// the byte limit; `None` if all fit. The first record of the whole delivery is always accepted, so that a member
    /// gets at least one.
    fn admit(&mut self, page: &StreamPage) -> Result<Option<Offset>, ReadError> {
        let mut too_many = None;
        page.for_each(&mut |offset, _, record| {
            let bytes = record_bytes(record);
            if self.admitted > 0 && self.bytes + bytes > self.max_bytes {
                too_many = Some(offset);
                return ControlFlow::Break(());
            }
            self.admitted += 1;
            self.bytes += bytes;
            ControlFlow::Continue(())
        })?;
        Ok(too_many)
    }

    /// Adds a page of records with offsets in `from..next` to the delivery, and notes the offsets without a record.
    fn take(&mut self, deliveries: u32, from: Offset, next: Offset, page: StreamPage) {
        let mut reached = from;
        for batch in &page.batches {
            if reached < batch.first {
                self.missing.push(run(reached, batch.first));
            }
            reached = batch.first.plus(u64::from(batch.count));
        }
        if reached < next {
            self.missing.push(run(reached, next));
        }
        if page.record_count() > 0 {
            self.parts.push(Part { deliveries, page });
        }
    }
}

fn run(first: Offset, end: Offset) -> OffsetRun {
    // The offsets are within one delivered run, whose count is a u32.
    OffsetRun { first, count: (end.0 - first.0) as u32 }
}
