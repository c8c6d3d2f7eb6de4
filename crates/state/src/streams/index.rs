//! Lookups in the index of a stream. Each lookup uses one [`View`], so a head and the index entries that it refers to
//! are from the same point in time.

use std::ops::{Bound, ControlFlow};

use thalweg_store::{Direction, View};
use thalweg_types::{Offset, StreamId};

use crate::{
    error::MachineError,
    keys,
    streams::{heads::Head, index_entry::IndexEntry},
};

/// Loads a stream's head (its name, settings and offsets) from a view.
pub(crate) fn head(view: &dyn View, stream: StreamId) -> Result<Option<Head>, MachineError> {
    let key = keys::stream_head(stream);
    view.get(&key)?.map(|row| Head::decode(&key, &row)).transpose()
}

/// Returns the index entry of the batch that begins exactly at offset `first`; `None` if no batch begins there.
pub(crate) fn entry_at(view: &dyn View, stream: StreamId, first: Offset) -> Result<Option<IndexEntry>, MachineError> {
    let key = keys::index_entry(stream, first);
    Ok(view.get(&key)?.map(|row| IndexEntry::decode(&key, &row)).transpose()?.map(|(_, entry)| entry))
}

/// Returns the batch that contains an offset, with the batch's first offset. The offset must be one that the stream's
/// index covers. Costs one point lookup.
pub(crate) fn batch_with(
    view: &dyn View,
    stream: StreamId,
    offset: Offset,
) -> Result<(Offset, IndexEntry), MachineError> {
    let lower = keys::index_entry(stream, Offset::ZERO);
    let upper = keys::index_entry(stream, offset);
    let mut found = None;
    view.scan(Bound::Included(&lower), Bound::Included(&upper), Direction::Reverse, &mut |key, row| {
        found = Some(IndexEntry::decode(key, row));
        ControlFlow::Break(())
    })?;
    let missing = || MachineError::corrupt("stream index entry", &upper, "no entry holds this offset");
    let (first, entry) = found.ok_or_else(missing)??;
    if entry.end(first) <= offset { Err(missing()) } else { Ok((first, entry)) }
}

/// Visits the index entries from the batch that begins at offset `from` up to offset `end`, in order. Checks that the
/// entries cover the range without gaps or overlaps. Returns the offset at which the visit stopped: `end`, or the end
/// of the batch at which `visit` broke, or the end of the last entry.
pub(crate) fn visit(
    view: &dyn View,
    stream: StreamId,
    from: Offset,
    end: Offset,
    visit: &mut dyn FnMut(Offset, &IndexEntry) -> ControlFlow<()>,
) -> Result<Offset, MachineError> {
    let lower = keys::index_entry(stream, from);
    let upper = keys::index_entry(stream, end);
    let mut expected = from;
    let mut failure = None;
    if from >= end {
        return Ok(from);
    }
    view.scan(Bound::Included(&lower), Bound::Excluded(&upper), Direction::Forward, &mut |key, row| {
        match IndexEntry::decode(key, row) {
            Ok((first, entry)) if first == expected && entry.end(first) <= end => {
                let flow = visit(first, &entry);
                expected = entry.end(first);
                flow
            }
            Ok(_) => {
                failure = Some(MachineError::corrupt(
                    "stream index entry",
                    key,
                    "does not follow the previous one, or extends beyond the end",
                ));
                ControlFlow::Break(())
            }
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    failure.map_or(Ok(expected), Err)
}

/// Checks that a batch is within the range of readable batches that the stream's head states.
pub(crate) fn check_within(
    stream: StreamId,
    head: &Head,
    first: Offset,
    entry: &IndexEntry,
) -> Result<(), MachineError> {
    let bytes = entry.bytes_before.saturating_add(entry.source_bytes());
    if first < head.start_batch
        || entry.end(first) > head.next
        || entry.bytes_before < head.start_bytes
        || bytes > head.end_bytes
    {
        let key = keys::index_entry(stream, first);
        return Err(MachineError::corrupt("stream index entry", &key, "extends beyond the range in the head"));
    }
    Ok(())
}

/// Returns the first offset of the first batch, from `head.start_batch` on, for which `wanted` returns true. `wanted`
/// must be monotone: true for all batches after that one. A binary search over offsets: O(log n) point lookups.
pub(crate) fn first_where(
    view: &dyn View,
    stream: StreamId,
    head: &Head,
    wanted: impl Fn(&IndexEntry) -> bool,
) -> Result<Offset, MachineError> {
    // Invariant: batches that end at or below `low` are not wanted; those that begin at or above `high` are.
    let (mut low, mut high) = (head.start_batch, head.next);
    while low < high {
        let middle = Offset(low.0 + (high.0 - low.0) / 2);
        let (first, entry) = batch_with(view, stream, middle)?;
        check_within(stream, head, first, &entry)?;
        if wanted(&entry) {
            high = first;
        } else {
            low = entry.end(first);
        }
    }
    Ok(high)
}
