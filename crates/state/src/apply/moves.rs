//! Application of move records, which copy live bytes from an old log segment to the end of the log. If the state still
//! points to the original bytes, its pointer changes to the copy.

use thalweg_types::{
    BlobRef, KeyspaceId, LogPosition, Offset, StreamId,
    command::{Move, MoveTarget},
};

use crate::{
    blobs::blob_at,
    entry::LocalOutcome,
    error::MachineError,
    expiry::writes::write_value,
    history::{keep_versions::version_at, rows::VersionRow},
    keys,
    keyspaces::values::{StoredRef, decode_value, encode_value},
    machine::{applying::Applying, state_machine::Machine, verdicts},
    segments::liveness::BlobKind,
    streams::{admin, heads::StreamState, index, index_entry::IndexEntry, replacing as compaction},
};

/// Applies a move record, which copies live bytes within the log. Its payload begins at `at`. If the copied bytes
/// differ from the original, the move is void: the pointer does not change, and the original bytes stay live.
pub(crate) fn apply(
    applying: &mut Applying<'_>,
    payload: &[u8],
    at: LogPosition,
) -> Result<LocalOutcome, MachineError> {
    let Ok(moved) = Move::decode(payload) else { return Ok(LocalOutcome::Void) };
    match moved.target {
        MoveTarget::Cleaned { stream, before } => return Ok(compaction::clean(applying, stream, before)),
        MoveTarget::Reclaimed { stream, max } => return admin::reclaim(applying, stream, max),
        MoveTarget::HistoryFloor { floor, max } => return verdicts::raise_floor(applying, floor, max),
        _ => {}
    }
    let to = blob_at(LogPosition { offset: at.offset + moved.bytes_at as u32, ..at }, moved.bytes);
    if (to.len, to.crc) != (moved.from.len, moved.from.crc) {
        return Ok(LocalOutcome::Void);
    }
    match moved.target {
        MoveTarget::Value { keyspace, key } => move_value(applying, keyspace, key, &moved.from, &to),
        MoveTarget::Batch { stream, first } => move_batch(applying, stream, first, &moved.from, &to),
        MoveTarget::Compacted(compacted) => compaction::replace(applying, &compacted, &to),
        MoveTarget::Cleaned { .. } | MoveTarget::Reclaimed { .. } | MoveTarget::HistoryFloor { .. } => {
            Ok(LocalOutcome::Void)
        }
    }
}

fn move_value(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    from: &BlobRef,
    to: &BlobRef,
) -> Result<LocalOutcome, MachineError> {
    if key.len() > thalweg_types::limits::MAX_KEY_BYTES {
        return Ok(LocalOutcome::Void);
    }
    let found = keys::with_data_key(keyspace, key, |full| {
        let Some(value) = applying.machine.backend.get(full)? else { return Ok(None) };
        let found = decode_value(full, &value)?;
        Ok::<_, MachineError>((found.value == StoredRef::Blob(*from)).then_some((found.revision, found.expiry)))
    })?;
    match found {
        Some((revision, expiry)) => write_value(applying, keyspace, key, revision, &expiry, StoredRef::Blob(*to)),
        None => match version_at(&*applying.machine.backend.view(), keyspace, key, from)? {
            Some((full, row)) => repoint_version(applying, &full, &row, to)?,
            None => return Ok(LocalOutcome::Void),
        },
    }
    applying.lower(BlobKind::Value, from);
    applying.raise(BlobKind::Value, to);
    Ok(LocalOutcome::Applied)
}

/// Makes the row of a version (former value of a key) point to another log position.
fn repoint_version(applying: &mut Applying<'_>, full: &[u8], row: &[u8], to: &BlobRef) -> Result<(), MachineError> {
    let version = VersionRow::decode(full, row)?;
    let value = version.decoded(full)?;
    let value = encode_value(value.revision, &value.expiry, StoredRef::Blob(*to));
    applying.applier.staged.put(&[full], &[&version.head(), &value]);
    Ok(())
}

fn move_batch(
    applying: &mut Applying<'_>,
    stream: StreamId,
    first: Offset,
    from: &BlobRef,
    to: &BlobRef,
) -> Result<LocalOutcome, MachineError> {
    let key = keys::index_entry(stream, first);
    let Some(row) = applying.machine.backend.get(&key)? else { return Ok(LocalOutcome::Void) };
    let (_, entry) = IndexEntry::decode(&key, &row)?;
    if entry.blob != *from {
        return Ok(LocalOutcome::Void);
    }
    let entry = IndexEntry { blob: *to, ..entry };
    applying.applier.staged.put(&[&key], &[entry.encode().bytes()]);
    applying.lower(BlobKind::Batch, from);
    applying.raise(BlobKind::Batch, to);
    Ok(LocalOutcome::Applied)
}

impl Machine {
    /// Returns true if the current or a former value of the key is stored at the log position in `blob`, so that its
    /// segment cannot be freed.
    pub fn is_value_live(&self, keyspace: KeyspaceId, key: &[u8], blob: &BlobRef) -> Result<bool, MachineError> {
        let snapshot = self.read_view();
        Ok(snapshot.value_blob(keyspace, key)?.as_ref() == Some(blob)
            || version_at(snapshot.view(), keyspace, key, blob)?.is_some())
    }

    /// Returns true if the stream's batch that begins at offset `first` is stored at the log position in `blob` and
    /// contains readable records. Returns false for a trimmed batch whose index entry is not reclaimed yet, because no
    /// reader can reach it after the trim is persisted.
    pub fn is_batch_live(&self, stream: StreamId, first: Offset, blob: &BlobRef) -> Result<bool, MachineError> {
        let view = self.backend.view();
        let Some(entry) = index::entry_at(&*view, stream, first)? else { return Ok(false) };
        let Some(head) = index::head(&*view, stream)? else { return Ok(false) };
        Ok(head.life == StreamState::Live && entry.blob == *blob && entry.end(first) > head.start)
    }
}
