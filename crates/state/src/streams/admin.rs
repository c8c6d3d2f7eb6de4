//! Commands that create, configure, trim and delete streams. None of them uses a revision.
//!
//! Index entries are node-local: moves and compactions change them on each node at different times. So no outcome
//! depends on their number, and node-local log records delete them ([`reclaim`]).

use std::{ops::ControlFlow, sync::Arc};

use thalweg_types::{
    Offset, StreamId,
    command::{Outcome, StreamConfig},
    limits::MAX_STREAMS,
};

use crate::{
    entry::LocalOutcome,
    error::MachineError,
    keys,
    machine::applying::{Applying, MAX_RECLAIM_ENTRIES},
    refused::Refused,
    segments::liveness::BlobKind,
    streams::{
        heads::{Head, StreamState},
        index, producing as producers,
    },
    sync::read,
};

pub(crate) fn create_stream(applying: &mut Applying<'_>, name: &str, config: StreamConfig) -> Result<Outcome, Refused> {
    if let Some(id) = stream_named(applying, name) {
        return Ok(Outcome::Stream { id, created: false });
    }
    let applier = &mut *applying.applier;
    if applier.stream_count >= MAX_STREAMS || applier.meta.next_stream == StreamId::MAX {
        return Ok(Outcome::TooMany { what: "streams", limit: MAX_STREAMS });
    }
    let id = applier.meta.next_stream;
    applier.meta.next_stream = id.next();
    applier.stream_count += 1;
    let name: Arc<str> = name.into();
    applier.pending.stream_names.insert(name.clone(), id);
    applier.pending.heads.insert(id, Some(Head::new(name, config)));
    Ok(Outcome::Stream { id, created: true })
}

/// Returns the id of the live stream with this name, including one that the same log record has created.
fn stream_named(applying: &mut Applying<'_>, name: &str) -> Option<StreamId> {
    let pending = applying.applier.pending.stream_names.get(name).copied();
    let published = || read(&applying.machine.published.streams).id(name);
    let id = pending.or_else(published)?;
    applying.live_head(id).map(|_| id)
}

pub(crate) fn configure_stream(
    applying: &mut Applying<'_>,
    stream: StreamId,
    config: StreamConfig,
) -> Result<Outcome, Refused> {
    let Some(head) = applying.live_head(stream) else { return Ok(Outcome::NoSuchStream(stream)) };
    head.config = config.into();
    Ok(Outcome::Done)
}

/// Deletes a stream. A small stream is removed completely. The head of a large stream stays, marked as deleted, until
/// commands have removed the rows of its producers and this node has removed its index entries, so that no single
/// batch must remove all of them.
pub(crate) fn delete_stream(applying: &mut Applying<'_>, stream: StreamId) -> Result<Outcome, Refused> {
    let Some(head) = applying.live_head(stream) else { return Ok(Outcome::NoSuchStream(stream)) };
    head.life = StreamState::Deleted;
    head.start = head.next;
    head.start_batch = head.next;
    head.start_bytes = head.end_bytes;
    if head.is_empty_marker() {
        applying.applier.stream_count -= 1;
    }
    applying.groups().stream_deleted(stream);
    reclaim(applying, stream, EAGER_RECLAIM_ENTRIES)?;
    Ok(Outcome::Done)
}

/// Number of index entries (log positions of batches) that deleting a stream removes immediately. Without this, the
/// heads of small deleted streams would accumulate faster than maintenance removes their index entries.
const EAGER_RECLAIM_ENTRIES: u32 = 64;

/// Removes the head of a deleted stream, if no other rows of the stream are left.
fn remove_head_if_empty(applying: &mut Applying<'_>, stream: StreamId) {
    let is_empty = |head: &mut Head| head.is_empty_marker() && head.first_indexed == head.next;
    if applying.head(stream).is_some_and(is_empty) {
        applying.applier.pending.heads.insert(stream, None);
    }
}

/// Removes at most `max` rows of the producers of a deleted stream.
pub(crate) fn forget_producers(applying: &mut Applying<'_>, stream: StreamId, max: u32) -> Result<Outcome, Refused> {
    if !applying.head(stream).is_some_and(|head| head.has_former_producers()) {
        return Ok(Outcome::NoSuchStream(stream));
    }
    let (entries, none_left) = producers::forget(applying, stream, max.min(MAX_RECLAIM_ENTRIES))?;
    if none_left {
        applying.head(stream).expect("looked up above").producers = 0;
        applying.applier.stream_count -= 1;
        remove_head_if_empty(applying, stream);
    }
    Ok(Outcome::Reclaimed { entries, more: !none_left })
}

/// Trims a stream for its retention. Does nothing if the stream does not have the configuration `config`, from which
/// the proposer has computed the trim: a limit may have been raised since. The trim itself cannot be computed here,
/// because nodes have different index entries.
pub(crate) fn enforce_retention(
    applying: &mut Applying<'_>,
    stream: StreamId,
    before: Offset,
    config: &StreamConfig,
) -> Result<Outcome, Refused> {
    match applying.live_head(stream) {
        Some(head) if head.config.get() != *config => Ok(Outcome::Done),
        _ => trim_stream(applying, stream, before),
    }
}

pub(crate) fn trim_stream(applying: &mut Applying<'_>, stream: StreamId, before: Offset) -> Result<Outcome, Refused> {
    let Some(head) = applying.live_head(stream) else { return Ok(Outcome::NoSuchStream(stream)) };
    let before = before.min(head.next);
    if before <= head.start {
        return Ok(Outcome::Done);
    }
    if before == head.next {
        head.start_batch = head.next;
        head.start_bytes = head.end_bytes;
    } else {
        let (first, entry) = index::batch_with(&applying.view(), stream, before)?;
        let head = applying.live_head(stream).expect("looked up above");
        index::check_within(stream, head, first, &entry)?;
        head.start_batch = first;
        head.start_bytes = entry.bytes_before;
        head.start_time = entry.last_time();
    }
    applying.live_head(stream).expect("looked up above").start = before;
    applying.groups().stream_trimmed(stream, before);
    Ok(Outcome::Done)
}

/// Deletes at most `max` index entries of batches that are entirely below the stream's start, oldest first. Deletes
/// the head of a deleted stream together with its last index entry.
pub(crate) fn reclaim(applying: &mut Applying<'_>, stream: StreamId, max: u32) -> Result<LocalOutcome, MachineError> {
    let Some(head) = applying.head(stream) else { return Ok(LocalOutcome::Void) };
    let (from, below) = (head.first_indexed, head.start_batch);
    let rows = forget_entries(applying, stream, from, below, max.min(MAX_RECLAIM_ENTRIES))?;
    let more = applying.head(stream).is_some_and(|head| head.first_indexed < head.start_batch);
    remove_head_if_empty(applying, stream);
    Ok(LocalOutcome::SegmentForgotten { rows, more })
}

fn forget_entries(
    applying: &mut Applying<'_>,
    stream: StreamId,
    from: Offset,
    below: Offset,
    max: u32,
) -> Result<u32, MachineError> {
    if max == 0 || from >= below {
        return Ok(0);
    }
    let mut entries = Vec::new();
    let reached = index::visit(&applying.view(), stream, from, below, &mut |first, entry| {
        entries.push((first, *entry));
        if entries.len() == max as usize { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if entries.len() < max as usize && reached < below {
        let key = keys::index_entry(stream, reached);
        return Err(MachineError::corrupt("stream index entry", &key, "missing"));
    }
    let mut saved = 0;
    for (first, entry) in &entries {
        applying.applier.staged.delete(&[&keys::index_entry(stream, *first)]);
        applying.lower(BlobKind::Batch, &entry.blob);
        saved += entry.saved_bytes();
    }
    let head = applying.head(stream).expect("looked up by the caller");
    head.first_indexed = reached;
    head.saved_bytes -= saved;
    Ok(entries.len() as u32)
}
