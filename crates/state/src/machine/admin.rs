//! Commands about streams themselves. None of them uses a revision.

use std::{ops::ControlFlow, sync::Arc};

use thalweg_types::{
    Offset, StreamId,
    command::{Outcome, StreamConfig},
    limits::MAX_STREAMS,
};

use crate::{
    keys,
    liveness::BlobKind,
    machine::{
        MachineError,
        entry::{Applying, MAX_RECLAIM_ENTRIES, Refused},
        producers, read,
    },
    streams::{
        Head, Life,
        index::{self, IndexEntry},
    },
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

/// The live stream of that name, as earlier commands left it.
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

/// The head stays as a marker until the index entries are reclaimed, so that a huge stream is not
/// forgotten in one batch.
pub(crate) fn delete_stream(applying: &mut Applying<'_>, stream: StreamId) -> Result<Outcome, Refused> {
    let Some(head) = applying.live_head(stream) else { return Ok(Outcome::NoSuchStream(stream)) };
    head.life = Life::Deleted;
    head.start = head.next;
    head.start_batch = head.next;
    head.start_bytes = head.end_bytes;
    let is_empty = head.first_indexed == head.next && head.producers == 0;
    if is_empty {
        remove_head(applying, stream);
    }
    applying.groups().stream_deleted(stream);
    Ok(Outcome::Done)
}

fn remove_head(applying: &mut Applying<'_>, stream: StreamId) {
    applying.applier.pending.heads.insert(stream, None);
    applying.applier.stream_count -= 1;
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
        let (first, entry) = batch_with(applying, stream, before)?;
        let head = applying.live_head(stream).expect("looked up above");
        index::check_within(stream, head, first, &entry)?;
        head.start_batch = first;
        head.start_bytes = entry.bytes_before;
        head.start_time = entry.last_time();
    }
    applying.live_head(stream).expect("looked up above").start = before;
    applying.groups().trimmed(stream, before);
    Ok(Outcome::Done)
}

/// The batch that holds an offset, be it appended by this record or before.
fn batch_with(applying: &Applying<'_>, stream: StreamId, offset: Offset) -> Result<(Offset, IndexEntry), MachineError> {
    let holds = |&&(id, first, ref entry): &&(StreamId, Offset, IndexEntry)| {
        id == stream && first <= offset && offset < entry.end(first)
    };
    match applying.applier.pending.appended.iter().find(holds) {
        Some(&(_, first, entry)) => Ok((first, entry)),
        None => index::batch_with(&*applying.machine.backend.view(), stream, offset),
    }
}

/// Forgets index entries that lie wholly below the start, oldest first. Those that this record itself
/// appended are left to a later one.
pub(crate) fn reclaim_stream(applying: &mut Applying<'_>, stream: StreamId, max: u32) -> Result<Outcome, Refused> {
    let Some(head) = applying.head(stream) else { return Ok(Outcome::NoSuchStream(stream)) };
    let (from, below) = (head.first_indexed, head.start_batch);
    let max = max.min(MAX_RECLAIM_ENTRIES - applying.applier.pending.reclaimed);
    let entries = forget_entries(applying, stream, from, below, max)?;
    applying.applier.pending.reclaimed += entries;
    let head = applying.head(stream).expect("looked up above");
    let (is_live, mut more) = (head.is_live(), head.first_indexed < head.start_batch);
    if !more && !is_live {
        let max = max - entries;
        let (rows, none_left) = producers::forget(applying, stream, max)?;
        applying.applier.pending.reclaimed += rows;
        more = !none_left;
        if none_left {
            remove_head(applying, stream);
        }
    }
    Ok(Outcome::Reclaimed { entries, more })
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
    let view = applying.machine.backend.view();
    let (mut entries, mut saved) = (0, 0);
    let reached = index::visit(&*view, stream, from, below, &mut |first, entry| {
        applying.applier.batch.delete(&[&keys::index_entry(stream, first)]);
        applying.lower(BlobKind::Batch, &entry.blob);
        saved += entry.saved_bytes();
        entries += 1;
        if entries == max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    let appended_here =
        applying.applier.pending.appended.iter().any(|&(id, first, _)| id == stream && first == reached);
    if entries < max && reached < below && !appended_here {
        let key = keys::index_entry(stream, reached);
        return Err(MachineError::corrupt("stream index entry", &key, "missing"));
    }
    let head = applying.head(stream).expect("looked up by the caller");
    head.first_indexed = reached;
    head.saved_bytes -= saved;
    Ok(entries)
}
