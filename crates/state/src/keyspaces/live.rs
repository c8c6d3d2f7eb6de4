//! The value that a key has for the commands of the entry being applied.
//!
//! Conditions, transactions, counters and reads within a commit all call [`live_key`], or [`live_head`] if they don't
//! need the value. Both functions see the changes of the commands so far, and return `None` for a key that is deleted
//! or ended, even if its row still exists. [`Visibility`] decides if a row is visible; readers outside an entry use the
//! same rule.
//!
//! [`Visibility`]: crate::keyspaces::read_view::Visibility

use bytes::Bytes;
use thalweg_redis::CollectionId;
use thalweg_types::KeyspaceId;

use crate::{
    error::MachineError,
    expiry::rows::Expiry,
    keys,
    keyspaces::{
        counts::{CountChange, CountedValue},
        row_head::{LARGE_ROW_BYTES, RowHead},
        values::{Stored, StoredRef, StoredValue, decode_owned},
    },
    machine::applying::Applying,
};

impl Stored {
    pub(crate) fn value_len(&self) -> usize {
        self.value.as_ref().value_len()
    }

    /// Returns the id of the Redis collection, if the value is a hash or a stream.
    pub(crate) fn collection(&self) -> Option<CollectionId> {
        self.value.as_ref().collection()
    }
}

impl Applying<'_> {
    /// Returns true if a stored value equals these bytes. For a value in the log, length and checksum are compared
    /// first, and the log is read only if both are equal.
    pub(crate) fn value_is(&self, stored: &Stored, bytes: &[u8]) -> Result<bool, MachineError> {
        Ok(match &stored.value {
            StoredValue::Inline(value) => value == bytes,
            StoredValue::Collection(_) => false,
            StoredValue::Blob(blob) => {
                blob.len as usize == bytes.len()
                    && blob.crc == crc_fast::crc32_iscsi(bytes)
                    && self.read_blob(blob)? == bytes
            }
        })
    }

    /// Returns the bytes of a stored value, read from the log if necessary. For a Redis collection, returns its meta
    /// data; callers must handle collections before.
    pub(crate) fn bytes_of(&self, stored: &Stored) -> Result<Bytes, MachineError> {
        Ok(match &stored.value {
            StoredValue::Inline(value) => value.clone(),
            StoredValue::Collection(collection) => collection.meta.clone(),
            StoredValue::Blob(blob) => self.read_blob(blob)?,
        })
    }

    /// Returns the bytes of a value in a row, read from the log if necessary; see [`bytes_of`](Self::bytes_of).
    pub(crate) fn bytes_of_ref(&self, value: StoredRef<'_>) -> Result<Bytes, MachineError> {
        Ok(match value {
            StoredRef::Inline(value) => Bytes::copy_from_slice(value),
            StoredRef::Collection(collection) => Bytes::copy_from_slice(collection.meta),
            StoredRef::Blob(blob) => self.read_blob(&blob)?,
        })
    }

    /// Returns a key's row as the commands so far have left it, even if the row is hidden or its value has ended.
    #[inline]
    pub(crate) fn row_of(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Stored>, MachineError> {
        keys::with_data_key(keyspace, key, |full| {
            let row = self.get(full)?;
            if let Some(row) = row.as_deref().filter(|row| row.len() >= LARGE_ROW_BYTES) {
                self.note_large_row(full, row)?;
            }
            decode_owned(full, row)
        })
    }

    /// Returns true if it is already known, from an earlier read, that a key's value has another length than `bytes`.
    pub(crate) fn has_other_length(&self, keyspace: KeyspaceId, key: &[u8], bytes: usize) -> bool {
        let known = keys::with_data_key(keyspace, key, |full| self.known_row_head(full));
        known.is_some_and(|head| head.held.value_bytes != bytes)
    }
}

/// Returns a key's value as earlier commands have left it; `None` if the key does not exist at the time of the current
/// log entry.
pub(crate) fn live_key(
    applying: &Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
) -> Result<Option<Stored>, MachineError> {
    let found = applying.row_of(keyspace, key)?;
    let Some(found) = found.filter(|found| applying.visibility(keyspace).shows(key, found.revision)) else {
        return Ok(None);
    };
    Ok(is_live(applying, &found.expiry)?.then_some(found))
}

/// Returns a key's row without its value; `None` in the same cases as [`live_key`].
pub(crate) fn live_head(
    applying: &Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
) -> Result<Option<RowHead>, MachineError> {
    let found = keys::with_data_key(keyspace, key, |full| applying.row_head(full))?;
    let Some(found) = found.filter(|found| applying.visibility(keyspace).shows(key, found.revision)) else {
        return Ok(None);
    };
    Ok(is_live(applying, &found.expiry)?.then_some(found))
}

/// Returns true if a value with this expiry has not ended at the time of the current log entry.
pub(crate) fn is_live(applying: &Applying<'_>, expiry: &Expiry) -> Result<bool, MachineError> {
    expiry.is_live(applying.applied.time, |id| applying.lease(id))
}

/// Computes how a write changes the exact counts of its keyspace. The write leaves the key with a value of `after`
/// bytes, or with none. The counts can also include a hidden row that the write replaces.
pub(crate) fn count_change(
    applying: &Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    after: Option<usize>,
) -> Result<CountChange, MachineError> {
    let before = replaced(applying, keyspace, key)?;
    Ok(change_of_row(key, before.as_ref(), after.map(CountedValue::bytes)))
}

/// Properties of the row that a write replaces. The row can be hidden, or its value can have ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replaced {
    pub(crate) held: CountedValue,
    pub(crate) expiry: Expiry,
    /// True if the exact counts of the keyspace include the row.
    pub(crate) is_counted: bool,
}

/// Returns properties of the row that a write to this key replaces, without copying the row's value.
#[inline]
pub(crate) fn replaced(
    applying: &Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
) -> Result<Option<Replaced>, MachineError> {
    let found = keys::with_data_key(keyspace, key, |full| applying.row_head(full))?;
    Ok(found.map(|RowHead { revision, expiry, held, .. }| {
        let is_counted = applying.counts_row(keyspace, revision);
        Replaced { held, expiry, is_counted }
    }))
}

/// Computes how a write changes the exact counts of its keyspace, given the replaced row and the properties of the new
/// value.
pub(crate) fn change_of_row(key: &[u8], before: Option<&Replaced>, after: Option<CountedValue>) -> CountChange {
    let counted = before.filter(|before| before.is_counted).map(|before| before.held);
    let change = CountChange::of(key, counted, after);
    // The sweep finds only hidden rows that still exist. So the collection of a replaced row is released here.
    let held = before.and_then(|before| before.held.collection);
    CountChange { trash: held.filter(|held| after.and_then(|after| after.collection) != Some(*held)), ..change }
}
