//! Appends of idempotent producers: each append is applied once, even if the client sends it repeatedly.
//!
//! Owns: the effect of a producer's stamp (id, epoch and sequence) on the state: opening a producer, checking its
//! appends, remembering their results, forgetting producers. Does not own: the rows (`streams::producers`).
//!
//! A commit with producers is checked like any other. Only if it is rejected is it compared with earlier results
//! ([`repeated`]), because its own first success may be the reason why its conditions fail now. So a commit without a
//! producer pays nothing, and a rejected one pays a second pass over its writes.
//!
//! Invariants: `head.producers` is the number of producers with a head row, at most `MAX_STREAM_PRODUCERS`. The choice
//! of evicted producers depends on the commands alone: those silent longest by the entries' time, then by id. A commit
//! never evicts a producer that it names, because its appends were checked against the rows before the first of them
//! was applied. Therefore a commit names at most as many producers of a stream as the stream remembers.

use thalweg_types::{
    Revision, SpaceTime, StreamId,
    command::{AppendedAt, Commit, EncodedStamp, Outcome, ProducerRefusal, ProducerStamp, Write},
    limits::{MAX_STREAM_PRODUCERS, PRODUCER_EVICTIONS},
};

use crate::{
    error::MachineError,
    keys,
    machine::applying::Applying,
    refused::Refused,
    streams::producers::{self, AppendOrder, ProducerResult, ProducerRow},
};

/// Checks an append of a producer, as if the earlier appends of the same commit were applied.
pub(crate) fn check(applying: &mut Applying<'_>, stream: StreamId, stamp: EncodedStamp<'_>) -> Result<(), Refused> {
    let stamp = stamp.get();
    let stored = match applying.applier.pending.producers.get(stream, stamp.id) {
        Some(row) => Some(row),
        None => stored_row(applying, stream, stamp.id)?,
    };
    match ProducerRow::classify_append(stored, applying.applied.time, &stamp) {
        AppendOrder::Next => {
            let row = ProducerRow::after(stored, &stamp, applying.applied.time);
            applying.applier.pending.producers.set(stream, stamp.id, row)
        }
        // The caller checks later if the whole commit is a repetition.
        AppendOrder::Duplicate => Err(refuse(stream, ProducerRefusal::Mixed)),
        AppendOrder::Refused(refusal) => Err(refuse(stream, refusal)),
    }
}

fn refuse(stream: StreamId, refusal: ProducerRefusal) -> Refused {
    Refused::Outcome(Outcome::ProducerRefused { stream, refusal })
}

/// Returns the outcome that a rejected commit had when it was applied before; `None` if it was not applied before. If
/// only some of its appends were applied, the commit is rejected as mixed.
pub(crate) fn repeated(applying: &mut Applying<'_>, commit: &Commit<'_>) -> Result<Option<Outcome>, Refused> {
    let mut first: Option<Revision> = None;
    let (mut appends, mut mixed) = (Vec::new(), None);
    for write in commit.writes().into_iter().flatten().flatten() {
        let Write::Append { stream, producer: Some(stamp), .. } = write else { continue };
        match result_of(applying, stream, &stamp.get())? {
            Some(result) if first.is_none_or(|revision| revision == result.revision) => {
                first = Some(result.revision);
                appends.push(AppendedAt { stream, first: result.first, count: result.count });
            }
            _ => mixed = mixed.or(Some(stream)),
        }
    }
    match (first, mixed) {
        (Some(_), Some(stream)) => Err(refuse(stream, ProducerRefusal::Mixed)),
        (Some(revision), None) => Ok(Some(Outcome::Duplicate { revision, appends })),
        (None, _) => Ok(None),
    }
}

/// Returns the stored result of a producer's append, if the append was applied before and is remembered. If the row of
/// the result is missing, the append is rejected as too old: an error would stop every node, and again at each replay.
fn result_of(
    applying: &mut Applying<'_>,
    stream: StreamId,
    stamp: &ProducerStamp<'_>,
) -> Result<Option<ProducerResult>, Refused> {
    if applying.live_head(stream).is_none() {
        return Ok(None);
    }
    let stored = stored_row(applying, stream, stamp.id)?;
    if ProducerRow::classify_append(stored, applying.applied.time, stamp) != AppendOrder::Duplicate {
        return Ok(None);
    }
    let key = keys::producer_result(stream, stamp.id, producers::slot(stamp.sequence));
    let result = applying.get(&key)?.map(|row| ProducerResult::decode(&key, &row)).transpose()?;
    match result.filter(|result| result.sequence == stamp.sequence) {
        Some(result) => Ok(Some(result)),
        None => Err(refuse(stream, ProducerRefusal::DuplicateTooOld { oldest: stamp.sequence + 1 })),
    }
}

/// Stores the result of a producer's append that has just been applied.
pub(crate) fn store_result(
    applying: &mut Applying<'_>,
    stream: StreamId,
    stamp: EncodedStamp<'_>,
    revision: Revision,
    at: &AppendedAt,
) -> Result<(), MachineError> {
    let stamp = stamp.get();
    let row = ProducerRow::after(stored_row(applying, stream, stamp.id)?, &stamp, applying.applied.time);
    set_row(applying, stream, stamp.id, row)?;
    let result = ProducerResult { sequence: stamp.sequence, revision, first: at.first, count: at.count };
    let key = keys::producer_result(stream, stamp.id, producers::slot(stamp.sequence));
    applying.applier.staged.put(&[&key], &[&result.encode()]);
    Ok(())
}

/// Opens a producer: gives it an epoch above its current one, which fences older instances of it.
pub(crate) fn open(applying: &mut Applying<'_>, stream: StreamId, id: &str) -> Result<Outcome, Refused> {
    if applying.live_head(stream).is_none() {
        return Ok(Outcome::NoSuchStream(stream));
    }
    // Producers that an earlier commit named may now be evicted, even if that commit is in the same entry.
    applying.applier.pending.producers.clear();
    // Also used for a producer that was silent too long, if its row still exists, so that its old instances stay
    // fenced.
    let stored = stored_row(applying, stream, id)?;
    let epoch = match stored {
        None => 1,
        Some(row) => match row.epoch.checked_add(1) {
            Some(epoch) => epoch,
            None => {
                return Ok(Outcome::ProducerRefused { stream, refusal: ProducerRefusal::Fenced { epoch: row.epoch } });
            }
        },
    };
    let used = stored.map_or(0, |row| row.used);
    set_row(applying, stream, id, ProducerRow { next: 0, last_time: applying.applied.time, epoch, used })?;
    Ok(Outcome::Producer { epoch })
}

fn stored_row(applying: &Applying<'_>, stream: StreamId, id: &str) -> Result<Option<ProducerRow>, MachineError> {
    let key = keys::producer_head(stream, id);
    applying.get(&key)?.map(|row| ProducerRow::decode(&key, &row)).transpose()
}

fn set_row(applying: &mut Applying<'_>, stream: StreamId, id: &str, row: ProducerRow) -> Result<(), MachineError> {
    if stored_row(applying, stream, id)?.is_none() {
        if applying.live_head(stream).is_some_and(|head| head.producers >= MAX_STREAM_PRODUCERS) {
            evict(applying, stream)?;
        }
        applying.live_head(stream).expect("checked by the caller").producers += 1;
    }
    applying.applier.staged.put(&[&keys::producer_head(stream, id)], &[&row.encode()]);
    Ok(())
}

/// Evicts the producers of a stream that have not appended for the longest time, except those that the current commit
/// names.
fn evict(applying: &mut Applying<'_>, stream: StreamId) -> Result<(), MachineError> {
    let mut silent: Vec<(SpaceTime, Box<str>, u8)> = Vec::new();
    let named = &applying.applier.pending.producers;
    producers::visit(&applying.view(), stream, &mut |id, row| {
        if named.get(stream, id).is_none() {
            silent.push((row.last_time, id.into(), row.used));
        }
    })?;
    silent.sort_unstable();
    silent.truncate(PRODUCER_EVICTIONS);
    for (_, id, used) in silent {
        applying.applier.staged.delete(&[&keys::producer_head(stream, &id)]);
        for slot in 0..used {
            applying.applier.staged.delete(&[&keys::producer_result(stream, &id, slot)]);
        }
        applying.live_head(stream).expect("checked by the caller").producers -= 1;
    }
    Ok(())
}

/// Removes at most `max` rows of a deleted stream's producers. Returns the number of removed rows, and true if no rows
/// are left.
pub(crate) fn forget(applying: &mut Applying<'_>, stream: StreamId, max: u32) -> Result<(u32, bool), MachineError> {
    let keys = producers::some_keys(&applying.view(), stream, (max as usize).saturating_add(1))?;
    let removed = keys.len().min(max as usize);
    for key in &keys[..removed] {
        applying.applier.staged.delete(&[key]);
    }
    Ok((removed as u32, keys.len() == removed))
}
