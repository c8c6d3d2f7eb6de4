//! What readers get of streams: figures, and where batches lie.

use std::{ops::ControlFlow, sync::Arc};

use thalweg_types::{BlobRef, Offset, SpaceTime, StreamId, command::StreamConfig};

use crate::{
    backend::View,
    machine::StreamReadError,
    streams::{Head, index},
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
            config: head.config,
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
    /// Its encoded bytes.
    pub blob: BlobRef,
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
        found.batches.push(BatchRef { first, count: entry.count, time: entry.time, blob: entry.blob });
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
    let first = index::first_where(view, stream, &head, |entry| entry.time >= time)?;
    Ok(first.max(head.start))
}
