//! Streams: append, read, tail, trim, configure, delete.

use std::{
    ops::ControlFlow,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use thalweg_log::Purpose;
use thalweg_state::{
    machine::StreamReadError,
    streams::{BatchForm, BatchRef},
};
use thalweg_types::{
    BlobRef, Durability, Offset, SpaceTime, StreamId,
    command::{
        AppendTerms, CommandError, ExpectedOffset, StreamConfig, encode_append_with, encode_configure_stream,
        encode_delete_stream, encode_trim_stream,
    },
    record::{Record, RecordBatch, Records},
    sparse::{Run, Runs},
};

use crate::{
    database::{Ack, Database, Inner, check_outcome_known},
    error::{ReadError, WriteError},
    tails::Waiter,
};

/// Maximum number of batches that one read looks up.
const MAX_BATCHES_PER_READ: u64 = 4096;

/// Description of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// Name of the stream.
    pub name: String,
    /// Id of the stream.
    pub id: StreamId,
    /// Configuration of the stream.
    pub config: StreamConfig,
    /// Oldest offset kept.
    pub start: Offset,
    /// Next offset to assign; on a single node it equals the high watermark.
    pub next: Offset,
    /// Encoded bytes of the batches kept.
    pub bytes: u64,
    /// Space time of the newest record; 0 if there was none.
    pub last_time: SpaceTime,
}

impl From<thalweg_state::streams::StreamInfo> for StreamInfo {
    fn from(info: thalweg_state::streams::StreamInfo) -> Self {
        let thalweg_state::streams::StreamInfo { id, name, config, start, next, bytes, last_time } = info;
        Self { name: name.to_string(), id, config, start, next, bytes, last_time }
    }
}

/// A stream. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stream {
    db: Database,
    id: StreamId,
}

impl Stream {
    pub(crate) fn new(db: Database, id: StreamId) -> Self {
        Self { db, id }
    }

    /// Id of the stream, which commits use.
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Name of the stream; empty if it no longer exists.
    #[must_use]
    pub fn name(&self) -> String {
        self.info().map(|info| info.name).unwrap_or_default()
    }

    /// Returns a handle whose writes default to `level`.
    #[must_use]
    pub fn with_durability(&self, level: Durability) -> Self {
        Self { db: self.db.with_durability(level), id: self.id }
    }

    /// Returns the description of the stream.
    pub fn info(&self) -> Result<StreamInfo, ReadError> {
        self.db.inner.open.machine.stream(self.id).map(StreamInfo::from).ok_or(ReadError::NoSuchStream(self.id))
    }

    /// Appends records at the end of the stream.
    pub fn append(&self, batch: &RecordBatch) -> Result<Ack, WriteError> {
        self.append_with(batch, &AppendTerms::default())
    }

    /// Appends if the next offset is as `expected`; otherwise returns `OffsetConflict`, and nothing happens.
    pub fn append_expecting(
        &self,
        batch: &RecordBatch,
        expected: impl Into<ExpectedOffset>,
    ) -> Result<Ack, WriteError> {
        self.append_with(batch, &expected.into().into())
    }

    /// Appends with any terms. A [`producer`](Self::producer) numbers its appends automatically.
    pub fn append_with(&self, batch: &RecordBatch, terms: &AppendTerms<'_>) -> Result<Ack, WriteError> {
        check_batch(batch)?;
        check_outcome_known(terms.is_conditional(), self.db.durability())?;
        let encode = |out: &mut Vec<u8>| encode_append_with(out, self.id, terms, batch);
        self.db.inner.propose_for_ack(self.db.durability(), Purpose::Data, encode)
    }

    pub(crate) fn database(&self) -> &Database {
        &self.db
    }

    /// Reads records from `from` on: at most `max_records` of them and about `max_bytes` bytes, but at least one batch
    /// if there is any. At the end of the stream the page is empty.
    ///
    /// Offsets rise. In a stream with compaction there may be gaps between them, also at `from` and at the end:
    /// continue at [`StreamPage::next`] instead of counting records.
    ///
    /// # Errors
    /// `Trimmed` if `from` is below the start, `BeyondEnd` if it is above the end.
    pub fn read(&self, from: Offset, max_records: u64, max_bytes: u64) -> Result<StreamPage, ReadError> {
        self.db.inner.read_stream(self.id, from, max_records, max_bytes)
    }

    /// Returns the first offset whose record is not older than `time`; the next offset if all are older.
    pub fn offset_at(&self, time: SpaceTime) -> Result<Offset, ReadError> {
        let open = &self.db.inner.open;
        let mut gone = None;
        loop {
            let found = open.machine.offset_at_or_after(self.id, time);
            let found = found.map_err(|error| ReadError::of_stream(error, Offset::ZERO))?;
            let batches = match open.machine.batches_from(self.id, found, 1, u64::MAX) {
                Ok(batches) => batches.batches,
                // The stream was trimmed in the meantime: look again.
                Err(StreamReadError::Trimmed { .. }) => continue,
                Err(error) => return Err(ReadError::of_stream(error, found)),
            };
            let Some(batch) = batches.first().filter(|batch| batch.time < time && batch.form != BatchForm::Whole)
            else {
                return Ok(found);
            };
            // The batch contains several appends: only its runs show the offset for the time.
            match read_batch(&open.log, batch) {
                Ok(bytes) => {
                    let newer = parts(batch, &bytes)?.into_iter().find(|part| part.time >= time);
                    return Ok(newer.map_or(batch.end(), |part| part.first).max(found));
                }
                Err(thalweg_log::ReadError::Gone { generation }) => {
                    if gone.replace(batch.blob) == Some(batch.blob) {
                        return Err(ReadError::Corrupt(format!("the log has lost segment {generation}")));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Blocks until the stream has a record at `offset` (returns true), or it is deleted, the database closes, or the
    /// time is up (returns false).
    #[must_use]
    pub fn wait_for(&self, offset: Offset, timeout: Duration) -> bool {
        let tails = &self.db.inner.open.tails;
        let deadline = Instant::now().checked_add(timeout);
        let ticket = tails.ticket();
        let reached = loop {
            tails.register(self.id, ticket, Waiter::Thread(thread::current()));
            if let Some(reached) = self.reached(offset) {
                break reached;
            }
            match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => break false,
                Some(left) => thread::park_timeout(left),
                None => thread::park(),
            }
        };
        tails.unregister(self.id, ticket);
        reached
    }

    /// Returns the result of waiting for `offset`; `None` if the wait is not over.
    pub(crate) fn reached(&self, offset: Offset) -> Option<bool> {
        let open = &self.db.inner.open;
        match open.machine.stream(self.id) {
            Some(info) if info.next > offset => Some(true),
            Some(_) if !open.tails.is_closed() => None,
            _ => Some(false),
        }
    }

    /// Raises the log start offset: records below `before` are gone.
    pub fn trim(&self, before: Offset) -> Result<Ack, WriteError> {
        self.propose(Purpose::Reclaim, |out| encode_trim_stream(out, self.id, before))
    }

    /// Replaces the configuration, which is enforced in the background.
    pub fn configure(&self, config: &StreamConfig) -> Result<Ack, WriteError> {
        self.propose(Purpose::Reclaim, |out| encode_configure_stream(out, self.id, config))
    }

    /// Deletes the stream with all its records. A new stream with the same name starts at offset 0.
    pub fn delete(&self) -> Result<Ack, WriteError> {
        self.propose(Purpose::Reclaim, |out| encode_delete_stream(out, self.id))
    }

    fn propose(&self, purpose: Purpose, encode: impl FnOnce(&mut Vec<u8>)) -> Result<Ack, WriteError> {
        let encode = |out: &mut Vec<u8>| {
            encode(out);
            Ok::<_, CommandError>(())
        };
        self.db.inner.propose_for_ack(self.db.durability(), purpose, encode)
    }
}

impl Inner {
    /// Reads records, see [`Stream::read`].
    pub(crate) fn read_stream(
        &self,
        id: StreamId,
        from: Offset,
        max_records: u64,
        max_bytes: u64,
    ) -> Result<StreamPage, ReadError> {
        let mut page = self.read_stream_page(id, from, max_records, max_bytes)?;
        // The batches read may have no records left. A page without records would mean the end of the stream, so read
        // on.
        while page.batches.is_empty() && max_records > 0 && page.next < page.high_watermark {
            page = match self.read_stream_page(id, page.next, max_records, max_bytes) {
                // The stream was trimmed within the gap. The reader has seen nothing of it, and continues at the
                // start.
                Err(ReadError::Trimmed { start, .. }) => self.read_stream_page(id, start, max_records, max_bytes)?,
                page => page?,
            };
        }
        Ok(page)
    }

    fn read_stream_page(
        &self,
        id: StreamId,
        from: Offset,
        max_records: u64,
        max_bytes: u64,
    ) -> Result<StreamPage, ReadError> {
        let mut gone = None;
        loop {
            match self.read_stream_once(id, from, max_records, max_bytes, &mut gone) {
                // A batch was moved or trimmed between the lookup and the read: look again. The loop ends, because a
                // moved batch is found at its new position, a trimmed one returns `Trimmed`, and one that is found at
                // its old position is lost.
                Err(ReadError::ViewExpired) => {}
                other => return other,
            }
        }
    }

    /// Reads one page. Fails with `ViewExpired` if the log has freed a batch since its lookup, and stores the batch's
    /// position in `gone`. A second failure at that position is corruption.
    fn read_stream_once(
        &self,
        id: StreamId,
        from: Offset,
        max_records: u64,
        max_bytes: u64,
        gone: &mut Option<BlobRef>,
    ) -> Result<StreamPage, ReadError> {
        let open = &self.open;
        let max_batches = usize::try_from(max_records.min(MAX_BATCHES_PER_READ)).unwrap_or(usize::MAX);
        let found = open
            .machine
            .batches_from(id, from, max_batches, max_bytes)
            .map_err(|error| ReadError::of_stream(error, from))?;
        let mut page =
            StreamPage { batches: Vec::with_capacity(found.batches.len()), next: from, high_watermark: found.next };
        let mut left = max_records;
        for batch in found.batches {
            if left == 0 {
                break;
            }
            let bytes = match read_batch(&open.log, &batch) {
                Err(thalweg_log::ReadError::Gone { generation }) => {
                    if gone.replace(batch.blob) == Some(batch.blob) {
                        return Err(ReadError::Corrupt(format!("the log has lost segment {generation}")));
                    }
                    return Err(ReadError::ViewExpired);
                }
                read => read?,
            };
            let from = page.next;
            for part in parts(&batch, &bytes)? {
                if part.end() <= from || left == 0 {
                    continue;
                }
                let cut = cut(part, from, left);
                left -= u64::from(cut.count);
                page.next = cut.end();
                page.batches.push(cut);
            }
            if left > 0 {
                // Records between here and the end of the batch, if any, are gone.
                page.next = batch.end();
            }
        }
        Ok(page)
    }
}

/// Fails if a batch has no records.
pub(crate) fn check_batch(batch: &RecordBatch) -> Result<(), WriteError> {
    if batch.is_empty() { Err(WriteError::EmptyBatch) } else { Ok(()) }
}

/// Reads a batch's bytes. A batch of which compaction left nothing has none.
pub(crate) fn read_batch(log: &thalweg_log::Log, batch: &BatchRef) -> Result<Bytes, thalweg_log::ReadError> {
    if batch.blob.len == 0 { Ok(Bytes::new()) } else { log.read_blob(&batch.blob) }
}

/// Splits a batch into parts of one append each: a whole batch is one part, and a sparse batch has one part for each
/// run.
pub(crate) fn parts(batch: &BatchRef, bytes: &Bytes) -> Result<Vec<StreamBatch>, ReadError> {
    if batch.form == BatchForm::Whole {
        let BatchRef { first, count, time, .. } = *batch;
        return Ok(vec![StreamBatch { first, count, skip: 0, total: count, time, bytes: bytes.clone() }]);
    }
    let part = |run: Run<'_>| StreamBatch {
        first: batch.first.plus(u64::from(run.delta)),
        count: run.count,
        skip: 0,
        total: run.count,
        time: run.time,
        bytes: bytes.slice(run.batch_at..run.batch_at + run.batch.len()),
    };
    let within = |part: &StreamBatch| part.end() <= batch.end();
    let found: Option<Vec<_>> = Runs::new(bytes).map(|run| run.ok().map(part).filter(within)).collect();
    found.ok_or_else(|| ReadError::Corrupt(format!("the sparse batch at offset {} does not decode", batch.first)))
}

/// Returns the part of a batch from `from` on, with at most `left` records.
fn cut(batch: StreamBatch, from: Offset, left: u64) -> StreamBatch {
    let skip = u32::try_from(from.0.saturating_sub(batch.first.0)).unwrap_or(u32::MAX).min(batch.count);
    let count = (batch.count - skip).min(u32::try_from(left).unwrap_or(u32::MAX));
    StreamBatch { first: batch.first.plus(u64::from(skip)), count, skip, ..batch }
}

/// A page of a stream: encoded batches, which are decoded as they are iterated.
#[derive(Clone, Debug, Default)]
pub struct StreamPage {
    /// Batches in order, with gaps between them only where compaction has dropped records.
    pub batches: Vec<StreamBatch>,
    /// Offset to continue reading at.
    pub next: Offset,
    /// Next offset of the stream at the time of reading.
    pub high_watermark: Offset,
}

/// Consecutive records of one append, which share a timestamp.
#[derive(Clone, Debug)]
pub struct StreamBatch {
    /// Offset of the first wanted record.
    pub first: Offset,
    /// Number of wanted records.
    pub count: u32,
    /// Number of records in `bytes` before the first wanted one.
    pub skip: u32,
    /// Number of records in `bytes`.
    pub total: u32,
    /// Space time of the append.
    pub time: SpaceTime,
    /// Encoded batch, see [`thalweg_types::record`].
    pub bytes: Bytes,
}

impl StreamBatch {
    /// Exclusive end: the offset after the last wanted record.
    #[must_use]
    pub fn end(&self) -> Offset {
        self.first.plus(u64::from(self.count))
    }

    /// Iterates over the wanted records with their offsets.
    pub fn records(&self) -> impl Iterator<Item = Result<(Offset, Record<'_>), ReadError>> {
        let mut records = Records::new(&self.bytes);
        for _ in 0..self.skip {
            if !matches!(records.skip_one(), Some(Ok(()))) {
                break;
            }
        }
        let offsets = (self.first.0..).map(Offset);
        records.take(self.count as usize).zip(offsets).map(|(record, offset)| match record {
            Ok(record) => Ok((offset, record)),
            Err(malformed) => Err(ReadError::Corrupt(format!("record at offset {offset}: {malformed}"))),
        })
    }
}

impl StreamPage {
    /// Removes the records from `end` on. In a stream with gaps a number of records spans more offsets than that
    /// number.
    pub(crate) fn truncate(&mut self, end: Offset) {
        self.next = self.next.min(end);
        self.batches.retain_mut(|batch| {
            let wanted = end.0.saturating_sub(batch.first.0);
            batch.count = batch.count.min(u32::try_from(wanted).unwrap_or(u32::MAX));
            batch.count > 0
        });
    }

    /// Calls `visit` for each record in order until it breaks.
    pub fn for_each(
        &self,
        visit: &mut dyn FnMut(Offset, SpaceTime, &Record<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        for batch in &self.batches {
            for record in batch.records() {
                let (offset, record) = record?;
                if visit(offset, batch.time, &record).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Number of records in the page.
    #[must_use]
    pub fn record_count(&self) -> u64 {
        self.batches.iter().map(|batch| u64::from(batch.count)).sum()
    }
}
