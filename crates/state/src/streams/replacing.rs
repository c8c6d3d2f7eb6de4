//! Replacement of a stream's batches by the one batch that compaction has made of them.
//!
//! A replacement is a move: local to the node, and void unless the state still has exactly the index entries from which
//! the new batch was made. So it can lose a race against a trim or another move without any effect. Offsets do not
//! change: the new index entry covers all offsets of the entries that it replaces.
//!
//! Invariants: index entries still cover `first_indexed..next` without gaps or overlaps. `start_batch` is the first
//! offset of an entry, and so is `cleaned` if it is between `start_batch` and `next`. A replacement across `cleaned`
//! lowers `cleaned`; the only effect is that compaction examines some keys again.

use std::ops::ControlFlow;

use thalweg_types::{BlobRef, Generation, Offset, StreamId, command::Compacted};

use crate::{
    entry::LocalOutcome,
    error::MachineError,
    keys,
    machine::applying::Applying,
    segments::liveness::BlobKind,
    streams::{
        compaction::RowsCrc,
        index,
        index_entry::{IndexEntry, Sparse},
    },
};

/// Maximum number of batches that one compacted batch may replace. Bounds the time for which readers of the log wait
/// for the next entry.
const MAX_SOURCES: u32 = 10_000;

/// The index entries of the batches to be replaced, and their checksum.
#[derive(Default)]
struct Sources {
    entries: Vec<(Offset, IndexEntry)>,
    crc: RowsCrc,
}

/// Replaces the batches that `compacted` names by the sparse batch at log position `to`. Has no effect if their index
/// entries have changed.
pub(crate) fn replace(
    applying: &mut Applying<'_>,
    compacted: &Compacted,
    to: &BlobRef,
) -> Result<LocalOutcome, MachineError> {
    let Compacted { stream, first, end, sources, rows_crc, kept } = *compacted;
    let Some(head) = applying.live_head(stream) else { return Ok(LocalOutcome::Void) };
    let (start_batch, next) = (head.start_batch, head.next);
    let Ok(count) = u32::try_from(end.0.saturating_sub(first.0)) else { return Ok(LocalOutcome::Void) };
    let is_within = start_batch <= first && first < end && end <= next;
    if !is_within || sources == 0 || sources > MAX_SOURCES || kept > count {
        return Ok(LocalOutcome::Void);
    }
    let Some(found) = sources_of(applying, compacted)? else { return Ok(LocalOutcome::Void) };
    if found.crc.finish() != rows_crc {
        return Ok(LocalOutcome::Void);
    }
    let (Some((_, oldest)), Some((_, newest))) = (found.entries.first(), found.entries.last()) else {
        return Ok(LocalOutcome::Void);
    };
    let is_empty = to.len == 0;
    let blob = if is_empty { BlobRef { generation: Generation(0), offset: 0, len: 0, crc: 0 } } else { *to };
    let source_bytes = found.entries.iter().map(|(_, entry)| entry.source_bytes()).sum();
    let sparse = Sparse { kept, last_time: newest.last_time(), source_bytes };
    let entry = IndexEntry { blob, count, time: oldest.time, bytes_before: oldest.bytes_before, sparse: Some(sparse) };
    let saved_before: i64 = found.entries.iter().map(|(_, entry)| entry.saved_bytes()).sum();
    for (offset, source) in &found.entries {
        if *offset != first {
            applying.applier.staged.delete(&[&keys::index_entry(stream, *offset)]);
        }
        applying.lower(BlobKind::Batch, &source.blob);
    }
    applying.applier.staged.put(&[&keys::index_entry(stream, first)], &[entry.encode().bytes()]);
    applying.raise(BlobKind::Batch, &blob);
    let head = applying.live_head(stream).expect("looked up above");
    head.saved_bytes += entry.saved_bytes() - saved_before;
    if first < head.cleaned && head.cleaned < end {
        head.cleaned = first;
    }
    if first == head.start_batch {
        head.start_time = entry.last_time();
    }
    Ok(LocalOutcome::Applied)
}

/// Returns the index entries of the batches that `compacted` names; `None` if their number has changed.
fn sources_of(applying: &Applying<'_>, compacted: &Compacted) -> Result<Option<Sources>, MachineError> {
    let mut found = Sources::default();
    let view = applying.machine.backend.view();
    let Compacted { stream, first, end, sources, .. } = *compacted;
    // An entry that begins elsewhere, or extends past the end, means that the move is too late; it is not corruption.
    if index::entry_at(&*view, stream, first)?.is_none() {
        return Ok(None);
    }
    let reached = index::visit(&*view, stream, first, Offset(end.0), &mut |offset, entry| {
        found.crc.add(stream, offset, entry);
        found.entries.push((offset, *entry));
        if found.entries.len() > sources as usize { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    match reached {
        Ok(reached) if reached == end && found.entries.len() == sources as usize => Ok(Some(found)),
        Ok(_) => Ok(None),
        Err(MachineError::Corrupt { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Stores the offset below which compaction has left one record per key.
pub(crate) fn clean(applying: &mut Applying<'_>, stream: StreamId, before: Offset) -> LocalOutcome {
    match applying.live_head(stream) {
        Some(head) if head.cleaned < before && before <= head.next => {
            head.cleaned = before;
            LocalOutcome::Applied
        }
        _ => LocalOutcome::Void,
    }
}
