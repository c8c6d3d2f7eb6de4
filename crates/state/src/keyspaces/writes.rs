//! Puts and deletes of keys, which also update the exact counts and the history of the keyspace.

use thalweg_types::{
    KeyspaceId, LogPosition, Revision, codec::Malformed, command::Outcome, limits::MAX_KEY_BYTES, steps::written_bytes,
};

use crate::{
    blobs::blob_at,
    changes::key_change::KeyChange,
    error::MachineError,
    history::rows::VersionEnd,
    keys,
    keyspaces::{
        catalog::KeyspaceKind,
        live::count_change,
        values::{FORM_BLOB, FORM_INLINE, value_head},
    },
    machine::applying::Applying,
    refused::Refused,
    segments::liveness::BlobKind,
};

/// Puts a value that does not expire, and updates the exact counts and the history of the keyspace.
#[inline]
pub(crate) fn put_counted(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    value: &[u8],
    revision: Revision,
    at: LogPosition,
) -> Result<(), MachineError> {
    note_replaced(applying, keyspace, key, Some(value.len()), revision, VersionEnd::Overwritten)?;
    put(applying, keyspace, key, value, revision, at);
    Ok(())
}

/// Deletes a key, and updates the exact counts and the history of the keyspace.
pub(crate) fn delete_counted(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    revision: Revision,
) -> Result<(), MachineError> {
    note_replaced(applying, keyspace, key, None, revision, VersionEnd::Deleted)?;
    delete(applying, keyspace, key);
    Ok(())
}

/// Updates the exact counts and the history of a keyspace before a write that leaves the key with a value of `after`
/// bytes, or with no value.
#[inline]
pub(crate) fn note_replaced(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    after: Option<usize>,
    revision: Revision,
    ending: VersionEnd,
) -> Result<(), MachineError> {
    if applying.counts_exactly(keyspace) {
        let change = count_change(applying, keyspace, key, after)?;
        applying.count(keyspace, change);
    }
    if applying.keeps_history(keyspace) {
        let kept_bytes = applying.supersede(keyspace, key, revision, ending)?;
        applying.charge(kept_bytes.map_or(0, written_bytes));
    }
    Ok(())
}

#[inline]
pub(crate) fn check_key(applying: &Applying<'_>, keyspace: KeyspaceId, key: &[u8]) -> Result<(), Refused> {
    if applying.applier.kinds.of(keyspace) == KeyspaceKind::Missing {
        return Err(Refused::Outcome(Outcome::NoSuchKeyspace(keyspace)));
    }
    if key.len() > MAX_KEY_BYTES {
        return Err(Malformed { at: 0, expected: "key within the limit" }.into());
    }
    Ok(())
}

#[inline]
pub(crate) fn put(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    value: &[u8],
    revision: Revision,
    at: LogPosition,
) {
    applying.changed(&KeyChange::Put { keyspace, key, value }, Some(at));
    let prefix = keys::data_prefix(keyspace);
    if value.len() <= applying.machine.options.inline_value_bytes {
        applying.applier.staged.put(&[&prefix, key], &[&value_head(FORM_INLINE, revision), value]);
    } else {
        let blob = blob_at(at, value);
        applying.applier.staged.put(&[&prefix, key], &[&value_head(FORM_BLOB, revision), &blob.encode()]);
        applying.raise(BlobKind::Value, &blob);
    }
}

#[inline]
pub(crate) fn delete(applying: &mut Applying<'_>, keyspace: KeyspaceId, key: &[u8]) {
    applying.changed(&KeyChange::Delete { keyspace, key }, None);
    applying.applier.staged.delete(&[&keys::data_prefix(keyspace), key]);
}
