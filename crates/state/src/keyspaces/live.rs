//! What a key is at the time of the entry being applied: the one place that decides.
//!
//! Conditions, transactions, counters and reads within a commit all ask [`live_key`], or [`live_head`] if the value does
//! not matter. It sees what the commands so far
//! left of the key, and answers `None` for a key that is not there any more although a row of it is. Whether a row
//! counts is [`Sight`]'s to say, by which readers outside of an entry decide, too.
//!
//! [`Sight`]: crate::keyspaces::read_view::Sight

use bytes::Bytes;
use thalweg_redis::CollectionId;
use thalweg_types::{KeyspaceId, Revision};

use crate::{
    error::MachineError,
    expiry::rows::Expiry,
    keys,
    keyspaces::{
        counts::{CountChange, Held},
        values::{Decoded, Stored, StoredValue, decode_owned, decode_value},
    },
    machine::applying::Applying,
};

impl Stored {
    /// The length of the value.
    pub(crate) fn value_len(&self) -> usize {
        self.value.as_ref().value_len()
    }

    /// Its collection, if it holds one.
    pub(crate) fn collection(&self) -> Option<CollectionId> {
        self.value.as_ref().collection()
    }

    /// What counts of it.
    pub(crate) fn held(&self) -> Held {
        self.value.as_ref().into()
    }
}

impl Applying<'_> {
    /// Whether a value is these bytes. Of a value in the log, length and checksum are compared first.
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

    /// The bytes of a value; read from the log if it stays there. Of a collection, which callers look out for, its meta.
    pub(crate) fn bytes_of(&self, stored: &Stored) -> Result<Bytes, MachineError> {
        Ok(match &stored.value {
            StoredValue::Inline(value) => value.clone(),
            StoredValue::Collection(collection) => collection.meta.clone(),
            StoredValue::Blob(blob) => self.read_blob(blob)?,
        })
    }

    /// A key's row as the commands so far left it, be it hidden or ended.
    #[inline]
    pub(crate) fn row_of(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Stored>, MachineError> {
        keys::with_data_key(keyspace, key, |full| decode_owned(full, self.get(full)?))
    }
}

/// A key as everything before left it; `None` if it is not there at the entry's time.
pub(crate) fn live_key(
    applying: &Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
) -> Result<Option<Stored>, MachineError> {
    let found = applying.row_of(keyspace, key)?;
    let Some(found) = found.filter(|found| applying.sight(keyspace).shows(key, found.revision)) else {
        return Ok(None);
    };
    Ok(is_live(applying, &found.expiry)?.then_some(found))
}

/// The fields of a key's row beside its value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveHead {
    pub(crate) revision: Revision,
    pub(crate) expiry: Expiry,
}

/// As [`live_key`]; nothing of the value is copied, however large it is.
pub(crate) fn live_head(
    applying: &Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
) -> Result<Option<LiveHead>, MachineError> {
    let found = keys::with_data_key(keyspace, key, |full| {
        let mut found = Ok(None);
        applying.look(full, &mut |row| {
            found = decode_value(full, row).map(|row| Some(LiveHead { revision: row.revision, expiry: row.expiry }));
        })?;
        found
    })?;
    let Some(found) = found.filter(|found| applying.sight(keyspace).shows(key, found.revision)) else {
        return Ok(None);
    };
    Ok(is_live(applying, &found.expiry)?.then_some(found))
}

/// Whether what ends so is there at the entry's time.
pub(crate) fn is_live(applying: &Applying<'_>, expiry: &Expiry) -> Result<bool, MachineError> {
    expiry.is_live(applying.applied.time, |id| applying.lease(id))
}

/// What a write that leaves the key with a value of `after` bytes, or none, makes of its keyspace's exact
/// counts. Rows are counted, be they hidden or not.
pub(crate) fn count_change(
    applying: &Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    after: Option<usize>,
) -> Result<CountChange, MachineError> {
    let before = replaced(applying, keyspace, key)?;
    Ok(change_of_row(key, before.as_ref(), after.map(Held::bytes)))
}

/// What a write that asks for nothing must know of the row that it replaces, be that hidden or ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replaced {
    pub(crate) held: Held,
    pub(crate) expiry: Expiry,
    /// Whether exact counts count it.
    pub(crate) is_counted: bool,
}

impl Replaced {
    pub(crate) fn of(applying: &Applying<'_>, keyspace: KeyspaceId, stored: &Stored) -> Self {
        let is_counted = applying.counts_row(keyspace, stored.revision);
        Self { held: stored.held(), expiry: stored.expiry, is_counted }
    }
}

/// The row that a write replaces; nothing of it is copied.
#[inline]
pub(crate) fn replaced(
    applying: &Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
) -> Result<Option<Replaced>, MachineError> {
    keys::with_data_key(keyspace, key, |full| {
        let mut found = Ok(None);
        applying.look(full, &mut |row| {
            found = decode_value(full, row).map(|Decoded { revision, value, expiry }| {
                let is_counted = applying.counts_row(keyspace, revision);
                Some(Replaced { held: value.into(), expiry, is_counted })
            });
        })?;
        found
    })
}

/// What a write makes of exact counts.
pub(crate) fn change_of_row(key: &[u8], before: Option<&Replaced>, after: Option<Held>) -> CountChange {
    let counted = before.filter(|before| before.is_counted).map(|before| before.held);
    let change = CountChange::of(key, counted, after);
    // A row that does not count any more, and waits to be swept, is not found by the sweep when it is replaced.
    let held = before.and_then(|before| before.held.collection);
    CountChange { trash: held.filter(|held| after.and_then(|after| after.collection) != Some(*held)), ..change }
}
