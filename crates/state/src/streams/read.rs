//! What readers get of streams: figures, and where batches lie.

use std::{ops::ControlFlow, sync::Arc};

use thalweg_store::View;
use thalweg_types::{BlobRef, Offset, SpaceTime, StreamId, command::StreamConfig};

use crate::{
    error::StreamReadError,
    streams::{
        heads::Head,
        index::{self, IndexEntry},
    },
};

/// A stream as of the last applied entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// Its id.
    pub id: StreamId,
    /// Its name.
    pub name: Arc<str>,
    /// What it keeps.
    pub config: StreamConfig,
    /// Oldest readable offset.
    pub start: Offset,
    /// Next offset to assign: exclusive bound of what is readable.
    pub next: Offset,
    /// Encoded bytes of the batches that hold readable records; the first may begin below `start`.
    pub bytes: u64,
    /// Space time of the last batch ever appended; 0 if there was none.
    pub last_time: SpaceTime,
}

impl StreamInfo {
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

    /// How many records can be read.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.next.0 - self.start.0
    }
}

/// Where one batch lies: records `first..first + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRef {
    /// Offset of its first record.
    pub first: Offset,
    /// How many records.
    pub count: u32,
    /// When it was appended.
    pub time: SpaceTime,
    /// Its encoded bytes. None of a sparse batch of which nothing is left.
    pub blob: BlobRef,
    /// Whether all of its records are there.
    pub form: BatchForm,
}

/// Whether a batch is as it was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchForm {
    /// All records, in the encoding of [`thalweg_types::record`].
    Whole,
    /// What compaction has left of several batches, in the encoding of [`thalweg_types::sparse`].
    Sparse {
        /// How many of the `count` records are left.
        kept: u32,
        /// When the last of the replaced batches was appended; `time` is when the first was.
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

    /// The offset after its last record.
    #[must_use]
    pub fn end(&self) -> Offset {
        self.first.plus(u64::from(self.count))
    }

    /// When its last record was appended.
    #[must_use]
    pub fn last_time(&self) -> SpaceTime {
        match self.form {
            BatchForm::Whole => self.time,
            BatchForm::Sparse { last_time, .. } => last_time,
        }
    }
}

/// Consecutive batches of a stream and its bounds at the same moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batches {
    /// The first may begin below the offset asked for, and below `start`.
    pub batches: Vec<BatchRef>,
    /// The stream's oldest readable offset.
    pub start: Offset,
    /// The stream's next offset.
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
    // A reader that follows the stream asks for the begin of a batch: then one lookup less.
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
