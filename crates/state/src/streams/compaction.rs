//! Data for the compaction of streams: the streams to compact, and ranges of batches, each with a checksum that later
//! shows if the range is unchanged.
//!
//! Owns: the queries for both. Does not own: the choice of records to drop (maintenance reads them), or the replacement
//! of batches (`replacing`).

use std::ops::ControlFlow;

use thalweg_store::View;
use thalweg_types::{Offset, StreamId, command::Compaction};

use crate::{
    error::MachineError,
    keys,
    streams::{heads::Head, index, index_entry::IndexEntry, read::BatchRef},
};

/// A stream that is configured for compaction and has records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionCandidate {
    /// Id of the stream that compaction may work on.
    pub stream: StreamId,
    /// Settings of the compaction.
    pub compaction: Compaction,
    /// First readable offset of the stream.
    pub start: Offset,
    /// First offset of the batch that contains the record at `start`.
    pub start_batch: Offset,
    /// Offset below which compaction has left one record per key; at least `start_batch`.
    pub cleaned: Offset,
    /// Next offset that the stream will assign.
    pub next: Offset,
}

impl CompactionCandidate {
    pub(crate) fn of(stream: StreamId, head: &Head) -> Option<Self> {
        let compaction = head.config.get().compaction.filter(|_| head.is_live() && head.start_batch < head.next)?;
        let Head { start, start_batch, next, .. } = *head;
        Some(Self { stream, compaction, start, start_batch, cleaned: head.cleaned.max(start_batch), next })
    }
}

/// Consecutive batches of a stream as of one point in time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchRange {
    /// The batches, in order, without gaps.
    pub batches: Vec<BatchRef>,
    /// Checksum of the index entries of these batches. A replacement of the batches takes effect only if the entries
    /// still have this checksum ([`thalweg_types::command::Compacted`]).
    pub rows_crc: u32,
}

/// Checksum of index entries, computed over their row keys and contents.
#[derive(Debug, Default)]
pub(crate) struct RowsCrc(Vec<u8>);

impl RowsCrc {
    pub(crate) fn add(&mut self, stream: StreamId, first: Offset, entry: &IndexEntry) {
        self.0.extend_from_slice(&keys::index_entry(stream, first));
        self.0.extend_from_slice(entry.encode().bytes());
    }

    pub(crate) fn finish(&self) -> u32 {
        crc_fast::crc32_iscsi(&self.0)
    }
}

pub(crate) fn batch_range(
    view: &dyn View,
    stream: StreamId,
    from: Offset,
    end: Offset,
    max_batches: usize,
    max_bytes: u64,
) -> Result<BatchRange, MachineError> {
    let (mut found, mut crc, mut bytes) = (BatchRange::default(), RowsCrc::default(), 0_u64);
    index::visit(view, stream, from, end, &mut |first, entry| {
        bytes = bytes.saturating_add(u64::from(entry.blob.len));
        let is_long = entry.end(first).0 - from.0 > u64::from(u32::MAX);
        if !found.batches.is_empty() && (bytes > max_bytes || found.batches.len() >= max_batches || is_long) {
            return ControlFlow::Break(());
        }
        crc.add(stream, first, entry);
        found.batches.push(BatchRef::of(first, entry));
        ControlFlow::Continue(())
    })?;
    found.rows_crc = crc.finish();
    Ok(found)
}
