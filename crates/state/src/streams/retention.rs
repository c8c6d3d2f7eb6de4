//! Trims that the retention settings of a stream require.
//!
//! This file only computes the trims. The maintenance of a node alone or of the leader proposes them as commands, so
//! that all replicas apply them at the same position in the log.

use std::ops::ControlFlow;

use thalweg_store::View;
use thalweg_types::{Offset, SpaceTime, StreamId, command::StreamConfig};

use crate::{
    error::MachineError,
    streams::{heads::Head, index},
};

/// Returns false if the stream's head (settings, offsets) alone shows that no trim is due, so that no index lookup is
/// needed.
pub(crate) fn may_be_due(head: &Head, now: SpaceTime) -> bool {
    let config = &head.config.get();
    head.is_live()
        && head.start < head.next
        && (config.max_records.is_some_and(|max| head.records() > max)
            || config.max_bytes.is_some_and(|max| head.live_bytes() > max)
            || config.max_age.is_some_and(|max| head.start_time < now.minus(max)))
}

/// A trim that the retention of a stream requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueTrim {
    /// Stream to be trimmed.
    pub stream: StreamId,
    /// Offset that becomes the new start of the stream.
    pub before: Offset,
    /// Configuration of the stream from which the offset was computed.
    pub config: StreamConfig,
}

/// Returns the trim that the stream's retention settings require at time `now`; `None` if they require none.
pub(crate) fn due(view: &dyn View, stream: StreamId, now: SpaceTime) -> Result<Option<DueTrim>, MachineError> {
    let Some(head) = index::head(view, stream)?.filter(|head| may_be_due(head, now)) else { return Ok(None) };
    let (config, mut start) = (head.config.get(), head.start);
    if let Some(max) = config.max_records {
        start = start.max(Offset(head.next.0.saturating_sub(max)));
    }
    if let Some(max) = config.max_bytes.filter(|&max| head.live_bytes() > max) {
        start = start.max(if head.saved_bytes == 0 {
            index::first_where(view, stream, &head, |entry| head.end_bytes.saturating_sub(entry.bytes_before) <= max)?
        } else {
            first_within(view, stream, &head, max)?
        });
    }
    if let Some(max) = config.max_age {
        let oldest = now.minus(max);
        start = start.max(index::first_where(view, stream, &head, |entry| entry.last_time() >= oldest)?);
    }
    Ok((start > head.start).then_some(DueTrim { stream, before: start, config }))
}

/// Returns the offset at which a compacted stream must start so that it has at most `max` bytes. The current sizes of
/// compacted batches are not summed anywhere, so this visits the index entries of all batches that must be trimmed.
fn first_within(view: &dyn View, stream: StreamId, head: &Head, max: u64) -> Result<Offset, MachineError> {
    let mut held = head.live_bytes();
    index::visit(view, stream, head.start_batch, head.next, &mut |_, entry| {
        held = held.saturating_sub(u64::from(entry.blob.len));
        if held <= max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}
