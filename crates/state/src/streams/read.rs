//! Results of queries about streams: statistics, and the log positions of batches.

use std::{ops::ControlFlow, sync::Arc};

use thalweg_store::View;
use thalweg_types::{BlobRef, Offset, SpaceTime, StreamId, command::StreamConfig};

use crate::{
    error::StreamReadError,
    streams::{heads::Head, index, index_entry::IndexEntry},
};

/// A live stream as of the last applied log entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveStream {
    /// Id of the stream.
    pub id: StreamId,
    /// Name of the stream, shared with its head: a copy under the lock of the heads allocates nothing.
    pub name: Arc<str>,
    /// Configuration of the stream.
    pub config: StreamConfig,
    /// Oldest readable offset of the stream.
    pub start: Offset,
    /// Next offset to assign, the exclusive end of the readable records.
    pub next: Offset,
    /// Encoded bytes of the batches with readable records. The first of these batches may begin below `start`.
    pub bytes: u64,
    /// Time of the last batch ever appended, as its log entry states; 0 if there was none.
    pub last_time: SpaceTime,
}

impl LiveStream {
    pub(crate) fn of(id: StreamId, head: &Head) -> Self {
        Self {
            id,
            name: head.name.clone(),
            config: head.config.get(),
            start: head.start,
            next: head.next,
            bytes: head.live_bytes(),
            last_time: head.last_time,
        }
    }

    /// Returns the number of offsets between `start` and `next`: the readable records, if compaction has removed none.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.next.0 - self.start.0
    }
}

/// Log position of one batch of a stream, which covers the offsets `first..first + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRef {
    /// Offset of the first record in the batch.
    pub first: Offset,
    /// Number of offsets that the batch covers.
    pub count: u32,
    /// Time of the log entry that appended the batch.
    pub time: SpaceTime,
    /// Pointer to the batch's encoded bytes in the log; its length is 0 for a sparse batch without remaining records.
    pub blob: BlobRef,
    /// Form of the batch: original or sparse (compacted).
    pub form: BatchForm,
}

/// Form of a batch of a stream: original or sparse (compacted).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchForm {
    /// All records of the batch exist, in the encoding of [`thalweg_types::record`].
    Whole,
    /// Compaction has replaced several batches by their remaining records, in the encoding of
    /// [`thalweg_types::sparse`].
    Sparse {
        /// Number of records that remain, of the `count` offsets that the batch covers.
        kept: u32,
        /// Time at which the last of the replaced batches was appended; [`BatchRef::time`] is that of the first.
        last_time: SpaceTime,
    },
}

impl BatchRef {
    pub(crate) fn of(first: Offset, entry: &IndexEntry) -> Self {
        let form = entry
            .sparse
            .map_or(BatchForm::Whole, |sparse| BatchForm::Sparse { kept: sparse.kept, last_time: sparse.last_time });
        Self { first, count: entry.count, time: entry.time, blob: entry.blob, form }
    }

    /// Returns the offset after the batch's last record.
    #[must_use]
    pub fn end(&self) -> Offset {
        self.first.plus(u64::from(self.count))
    }

    /// Returns the time at which the batch's last record was appended.
    #[must_use]
    pub fn last_time(&self) -> SpaceTime {
        match self.form {
            BatchForm::Whole => self.time,
            BatchForm::Sparse { last_time, .. } => last_time,
        }
    }
}

/// Consecutive batches of a stream, and the stream's bounds at the same point in time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batches {
    /// Positions of the batches. The first batch may begin below the requested offset and below `start`.
    pub batches: Vec<BatchRef>,
    /// Oldest readable offset of the stream.
    pub start: Offset,
    /// Next offset that the stream will assign.
    pub next: Offset,
}

fn live_head(view: &dyn View, stream: StreamId) -> Result<Head, StreamReadError> {
    index::head(view, stream)?.filter(Head::is_live).ok_or(StreamReadError::NoSuchStream(stream))
}

pub(crate) fn batches_from(
    view: &dyn View,
    stream: StreamId,
    from: Offset,
    max_batches: usize,
    max_bytes: u64,
) -> Result<Batches, StreamReadError> {
    let head = live_head(view, stream)?;
    if from < head.start {
        return Err(StreamReadError::Trimmed { start: head.start });
    }
    if from > head.next {
        return Err(StreamReadError::BeyondEnd { next: head.next });
    }
    let mut found = Batches { batches: Vec::new(), start: head.start, next: head.next };
    if from == head.next || max_batches == 0 {
        return Ok(found);
    }
    // A reader that follows the stream requests the beginning of a batch, which saves one lookup.
    let first = match index::entry_at(view, stream, from)? {
        Some(_) => from,
        None => index::batch_with(view, stream, from)?.0,
    };
    let mut bytes = 0_u64;
    index::visit(view, stream, first, head.next, &mut |first, entry| {
        bytes = bytes.saturating_add(u64::from(entry.blob.len));
        if bytes > max_bytes && !found.batches.is_empty() {
            return ControlFlow::Break(());
        }
        found.batches.push(BatchRef::of(first, entry));
        if found.batches.len() == max_batches { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(found)
}

pub(crate) fn offset_at_or_after(
    view: &dyn View,
    stream: StreamId,
    time: SpaceTime,
) -> Result<Offset, StreamReadError> {
    let head = live_head(view, stream)?;
    let first = index::first_where(view, stream, &head, |entry| entry.last_time() >= time)?;
    Ok(first.max(head.start))
}
