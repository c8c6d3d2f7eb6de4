//! Streams: the handle with its operations append, read, tail, trim, configure and delete.
//!
//! Owns: `Stream`, the search for an offset by time, and reading pages, which looks up a batch again if it has been
//! moved or trimmed in the meantime. Does not own: the decoding of pages (`stream_page`), idempotent producers
//! (`producer`), or consumer groups (`group`).
//!
//! Invariant: a read of at least one record returns an empty page only at the end of the stream. If two lookups in a
//! row return the same position of a batch and the log no longer has it, the batch is lost, and the read returns
//! `Corrupt`.

use std::{
    thread,
    time::{Duration, Instant},
};

use thalweg_log::Purpose;
use thalweg_replica::Committed;
use thalweg_state::{
    machine::StreamReadError,
    streams::{BatchForm, LiveStream},
};
pub use thalweg_types::info::Stream as StreamInfo;
use thalweg_types::{
    BlobRef, Durability, Offset, SpaceTime, StreamId,
    budget::{self, BudgetSpent},
    command::{
        AppendConditions, CommandError, ExpectedOffset, Outcome, StreamConfig, encode_append_with,
        encode_configure_stream, encode_create_stream, encode_delete_stream, encode_trim_stream,
    },
    record::RecordBatch,
    steps::{COLD_READ, READ, SCAN, read_bytes},
};

use crate::{
    ack::{Ack, check_outcome_known, unexpected},
    database::Database,
    error::{ReadError, WriteError, refusal},
    inner::Inner,
    stream_page::{StreamPage, cut, parts, read_batch},
    tails::Waiter,
};

/// Maximum number of batches that one read of a stream looks up.
const MAX_BATCHES_PER_READ: u64 = 4096;

fn described(live: LiveStream) -> StreamInfo {
    let LiveStream { id, name, config, start, next, bytes, last_time } = live;
    StreamInfo { id, start, next, bytes, last_time, config, name: name.to_string() }
}

/// Handle of a stream. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stream {
    db: Database,
    id: StreamId,
}

/// Cost of finding an offset in a stream's index, in steps of the thread's work budget: about twenty lookups, 40 µs.
/// Steps for reading a batch afterwards remain.
const OFFSET_SEARCH_STEPS: u64 = 4 * (SCAN + READ);
const _: () = assert!(OFFSET_SEARCH_STEPS < COLD_READ / 2);

impl Database {
    /// Returns the stream with this name. If it is missing, creates it without limits.
    pub fn stream(&self, name: &str) -> Result<Stream, WriteError> {
        match self.find_stream(name) {
            Some(found) => Ok(found),
            None => self.create_stream(name, &StreamConfig::default()).map(|(stream, _)| stream),
        }
    }

    /// Returns the stream with this name. If it is missing, creates it with `config`. The flag is true if this call
    /// created the stream. An existing stream keeps its configuration.
    pub fn create_stream(&self, name: &str, config: &StreamConfig) -> Result<(Stream, bool), WriteError> {
        let outcome = self
            .inner
            .propose(self.level.max(Durability::Os), Purpose::Data, |out| encode_create_stream(out, name, config))?;
        self.created_stream(outcome)
    }

    pub(crate) fn created_stream(&self, committed: Committed) -> Result<(Stream, bool), WriteError> {
        match committed.outcome.map(refusal).transpose()? {
            Some(Outcome::Stream { id, created }) => Ok((Stream::new(self.clone(), id), created)),
            other => Err(unexpected(other.as_ref())),
        }
    }

    /// Returns the stream with this name; `None` if there is none.
    #[must_use]
    pub fn find_stream(&self, name: &str) -> Option<Stream> {
        self.inner.open.machine.stream_id(name).map(|id| Stream::new(self.clone(), id))
    }

    /// Returns a handle of the stream with this id, which need not exist.
    #[must_use]
    pub(crate) fn stream_with_id(&self, id: StreamId) -> Stream {
        Stream::new(self.clone(), id)
    }

    /// Returns the descriptions of at most `limit` streams with ids above `after`, in the order of their creation.
    #[must_use]
    pub fn streams_after(&self, after: Option<StreamId>, limit: usize) -> Vec<StreamInfo> {
        self.inner.open.machine.streams_after(after, limit).into_iter().map(described).collect()
    }

    /// Returns the descriptions of all streams. There may be millions: [`streams_after`](Self::streams_after) returns
    /// them in pages.
    #[must_use]
    pub fn streams(&self) -> Vec<StreamInfo> {
        self.inner.open.machine.streams().into_iter().map(described).collect()
    }
}

impl Stream {
    pub(crate) fn new(db: Database, id: StreamId) -> Self {
        Self { db, id }
    }

    /// Id of the stream, by which commits refer to it.
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Name of the stream; empty if it no longer exists.
    #[must_use]
    pub fn name(&self) -> String {
        self.info().map(|info| info.name).unwrap_or_default()
    }

    /// Returns a handle of the same stream whose writes use the durability `level` by default.
    #[must_use]
    pub fn with_durability(&self, level: Durability) -> Self {
        Self { db: self.db.with_durability(level), id: self.id }
    }

    /// Returns the stream's configuration, bounds and size.
    pub fn info(&self) -> Result<StreamInfo, ReadError> {
        self.db.inner.open.machine.stream(self.id).map(described).ok_or(ReadError::NoSuchStream(self.id))
    }

    /// Appends records at the end of the stream.
    pub fn append(&self, batch: &RecordBatch) -> Result<Ack, WriteError> {
        self.append_with(batch, &AppendConditions::default())
    }

    /// Appends records if the stream's next offset is as `expected`; otherwise returns `OffsetConflict`, and nothing
    /// happens.
    pub fn append_expecting(
        &self,
        batch: &RecordBatch,
        expected: impl Into<ExpectedOffset>,
    ) -> Result<Ack, WriteError> {
        self.append_with(batch, &expected.into().into())
    }

    /// Appends records under conditions: none, an expected next offset, or a producer's stamp (id, epoch and sequence
    /// number). A [`producer`](Self::producer) numbers its appends automatically.
    pub fn append_with(&self, batch: &RecordBatch, conditions: &AppendConditions<'_>) -> Result<Ack, WriteError> {
        check_batch(batch)?;
        check_outcome_known(conditions.is_conditional(), self.db.durability())?;
        let encode = |out: &mut Vec<u8>| encode_append_with(out, self.id, conditions, batch);
        self.db.inner.propose_for_ack(self.db.durability(), Purpose::Data, encode)
    }

    pub(crate) fn database(&self) -> &Database {
        &self.db
    }

    /// Reads records from the offset `from` on: at most `max_records` records and about `max_bytes` bytes, but at
    /// least one batch if there is any. At the end of the stream the page is empty.
    ///
    /// Offsets of the records rise. In a stream with compaction there may be gaps between them, also at `from` and at
    /// the end: continue at [`StreamPage::next`] instead of counting records.
    ///
    /// # Errors
    /// `Trimmed` if `from` is below the start, `BeyondEnd` if it is above the end.
    pub fn read(&self, from: Offset, max_records: u64, max_bytes: u64) -> Result<StreamPage, ReadError> {
        self.db.inner.read_stream(self.id, from, max_records, max_bytes)
    }

    /// Returns the first offset whose record was appended at or after `time`; the stream's next offset if no record
    /// was.
    pub fn offset_at(&self, time: SpaceTime) -> Result<Offset, ReadError> {
        let open = &self.db.inner.open;
        let mut gone = None;
        loop {
            // The search is a binary search in the index.
            if budget::charge(OFFSET_SEARCH_STEPS).is_break() {
                return Err(ReadError::Io(BudgetSpent::Steps.to_string()));
            }
            let found = open.machine.offset_at_or_after(self.id, time);
            let found = found.map_err(|error| ReadError::of_stream(error, Offset::ZERO))?;
            let batches = match open.machine.batches_from(self.id, found, 1, u64::MAX) {
                Ok(batches) => batches.batches,
                // The stream was trimmed during the search, so search again.
                Err(StreamReadError::Trimmed { .. }) => continue,
                Err(error) => return Err(ReadError::of_stream(error, found)),
            };
            let Some(batch) = batches.first().filter(|batch| batch.time < time && batch.form != BatchForm::Whole)
            else {
                return Ok(found);
            };
            // The batch contains several appends, so the offset for the time is only found in its runs.
            if budget::charge(read_bytes(batch.blob.len as usize)).is_break() {
                return Err(ReadError::Io(BudgetSpent::Steps.to_string()));
            }
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

    /// Blocks until the stream has a record at `offset`, and returns true. Returns false if the stream is deleted, the
    /// database closes, or the timeout passes before.
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

    /// Returns the result of waiting for a record at `offset`: true if the stream has the record, false if it will
    /// never have it; `None` if the caller must continue to wait.
    pub(crate) fn reached(&self, offset: Offset) -> Option<bool> {
        let open = &self.db.inner.open;
        match open.machine.stream(self.id) {
            Some(info) if info.next > offset => Some(true),
            Some(_) if !open.tails.is_closed() => None,
            _ => Some(false),
        }
    }

    /// Raises the log start offset of the stream to `before`. The records below this offset are gone.
    pub fn trim(&self, before: Offset) -> Result<Ack, WriteError> {
        self.propose(Purpose::Reclaim, |out| encode_trim_stream(out, self.id, before))
    }

    /// Replaces the stream's configuration. Its retention is enforced in the background.
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
    /// Reads records of a stream, see [`Stream::read`].
    pub(crate) fn read_stream(
        &self,
        id: StreamId,
        from: Offset,
        max_records: u64,
        max_bytes: u64,
    ) -> Result<StreamPage, ReadError> {
        let mut page = self.read_stream_page(id, from, max_records, max_bytes)?;
        // Compaction may have left no records in the batches read. A page without records would mean the end of the
        // stream, so reading continues.
        while page.batches.is_empty() && max_records > 0 && page.next < page.high_watermark {
            page = match self.read_stream_page(id, page.next, max_records, max_bytes) {
                // The stream was trimmed within the gap. The reader has returned no record of the gap, and continues at
                // the start.
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
                // A batch was moved or trimmed between the lookup and the read, so look it up again. The loop ends: a
                // moved batch is found at its new position, a trimmed one returns `Trimmed`, and one that is still
                // found at its old position is lost.
                Err(ReadError::ViewExpired) => {}
                other => return other,
            }
        }
    }

    /// Reads one page of a stream. If the log has freed a batch since the batch was looked up, fails with
    /// `ViewExpired` and stores the batch's position in `gone`. A second failure at the same position is corruption.
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
            if budget::charge(read_bytes(batch.blob.len as usize)).is_break() {
                return Err(ReadError::Io(BudgetSpent::Steps.to_string()));
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
                // Any records between this offset and the end of the batch are gone.
                page.next = batch.end();
            }
        }
        Ok(page)
    }
}

pub(crate) fn check_batch(batch: &RecordBatch) -> Result<(), WriteError> {
    if batch.is_empty() { Err(WriteError::EmptyBatch) } else { Ok(()) }
}
