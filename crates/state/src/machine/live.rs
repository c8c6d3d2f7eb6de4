//! What a key is at the time of the entry being applied: the one place that decides.
//!
//! Conditions, transactions, counters and reads within a commit all ask [`live_key`]. It sees what earlier
//! writes of the same entry made of the key, then what the backend holds, and answers `None` for a key
//! that is not there any more although a row of it is. Whether a row counts is [`Sight`]'s to say, by
//! which readers outside of an entry decide, too.
//!
//! [`Sight`]: crate::keyspaces::Sight

use bytes::Bytes;
use thalweg_redis::CollectionId;
use thalweg_types::{KeyspaceId, LogPosition, Revision};

use crate::{
    counts::{CountChange, Held},
    expiry::Expiry,
    keys,
    keyspaces::{Decoded, Stored, StoredValue, decode_owned, decode_value},
    machine::{MachineError, entry::Applying, overlay::Overlay},
};

/// A key that is there.
#[derive(Clone, Debug)]
pub(crate) struct LiveKey<'a> {
    /// The command that wrote it.
    pub(crate) revision: Revision,
    /// Its value, wherever that is.
    pub(crate) value: LiveValue<'a>,
    /// When it ends.
    pub(crate) expiry: Expiry,
}

/// The value of a key that is there.
#[derive(Clone, Debug)]
pub(crate) enum LiveValue<'a> {
    /// Written by this entry: bytes of its payload, and where they lie in the log.
    Written(&'a [u8], LogPosition),
    /// Computed by this entry: a counter.
    Number(i64),
    /// As the backend holds it.
    Stored(StoredValue),
}

impl LiveKey<'_> {
    /// Whether the value is these bytes. Of a value in the log, length and checksum are compared first.
    pub(crate) fn value_is(&self, applying: &Applying<'_>, bytes: &[u8]) -> Result<bool, MachineError> {
        Ok(match &self.value {
            LiveValue::Number(number) => number.to_string().as_bytes() == bytes,
            LiveValue::Written(value, _) => *value == bytes,
            LiveValue::Stored(StoredValue::Inline(value)) => value == bytes,
            LiveValue::Stored(StoredValue::Collection(_)) => false,
            LiveValue::Stored(StoredValue::Blob(blob)) => {
                blob.len as usize == bytes.len()
                    && blob.crc == crc_fast::crc32_iscsi(bytes)
                    && applying.machine.blobs.read(blob)? == bytes
            }
        })
    }

    /// The length of the value.
    pub(crate) fn value_len(&self) -> usize {
        match &self.value {
            LiveValue::Written(value, _) => value.len(),
            LiveValue::Number(number) => number.to_string().len(),
            LiveValue::Stored(value) => value.as_ref().value_len(),
        }
    }

    /// Its collection, if it holds one.
    pub(crate) fn collection(&self) -> Option<CollectionId> {
        match &self.value {
            LiveValue::Stored(value) => value.as_ref().collection(),
            LiveValue::Written(..) | LiveValue::Number(_) => None,
        }
    }

    /// What counts of it.
    pub(crate) fn held(&self) -> Held {
        Held { value_bytes: self.value_len(), collection: self.collection() }
    }

    /// The value; read from the log if it stays there. Of a collection, which callers look out for, its meta.
    pub(crate) fn bytes(&self, applying: &Applying<'_>) -> Result<Bytes, MachineError> {
        Ok(match &self.value {
            LiveValue::Written(value, _) => Bytes::copy_from_slice(value),
            LiveValue::Number(number) => number.to_string().into(),
            LiveValue::Stored(StoredValue::Inline(value)) => value.clone(),
            LiveValue::Stored(StoredValue::Collection(collection)) => collection.meta.clone(),
            LiveValue::Stored(StoredValue::Blob(blob)) => applying.machine.blobs.read(blob)?,
        })
    }
}

/// A key as everything before left it; `None` if it is not there at the entry's time.
pub(crate) fn live_key<'a>(
    applying: &Applying<'_>,
    overlay: &Overlay<'a>,
    keyspace: KeyspaceId,
    key: &[u8],
) -> Result<Option<LiveKey<'a>>, MachineError> {
    let found = match overlay.get(keyspace, key) {
        Some(written) => written.clone(),
        None => {
            let found = stored_row(applying, keyspace, key)?;
            let counts = |found: &Stored| {
                !overlay.is_cleared(keyspace, key) && applying.sight(keyspace).shows(key, found.revision)
            };
            found.filter(counts).map(live)
        }
    };
    let Some(found) = found else { return Ok(None) };
    Ok(is_live(applying, &found.expiry)?.then_some(found))
}

/// Whether what ends so is there at the entry's time.
pub(crate) fn is_live(applying: &Applying<'_>, expiry: &Expiry) -> Result<bool, MachineError> {
    expiry.is_live(applying.applied.time, |id| applying.lease(id))
}

fn live<'a>(stored: Stored) -> LiveKey<'a> {
    LiveKey { revision: stored.revision, value: LiveValue::Stored(stored.value), expiry: stored.expiry }
}

fn stored_row(applying: &Applying<'_>, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Stored>, MachineError> {
    keys::with_data_key(keyspace, key, |full| decode_owned(full, applying.machine.backend.get(full)?))
}

/// What a write that leaves the key with a value of `after` bytes, or none, makes of its keyspace's exact
/// counts. Rows are counted, be they hidden or not.
pub(crate) fn count_change(
    applying: &Applying<'_>,
    overlay: &Overlay<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    after: Option<usize>,
) -> Result<CountChange, MachineError> {
    let before = row_before(applying, overlay, keyspace, key)?;
    Ok(change_of_row(applying, overlay, keyspace, key, before.as_ref(), after.map(Held::bytes)))
}

/// A key's row as everything before left it, be it hidden or ended.
#[inline]
pub(crate) fn row_before<'a>(
    applying: &Applying<'_>,
    overlay: &Overlay<'a>,
    keyspace: KeyspaceId,
    key: &[u8],
) -> Result<Option<LiveKey<'a>>, MachineError> {
    match overlay.get(keyspace, key) {
        Some(written) => Ok(written.clone()),
        None => Ok(stored_row(applying, keyspace, key)?.map(live)),
    }
}

/// What a put that asks for nothing must know of the row that it replaces, be that hidden or ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replaced {
    pub(crate) held: Held,
    pub(crate) expiry: Expiry,
    /// Whether exact counts count it.
    pub(crate) is_counted: bool,
}

/// The row that a put replaces; nothing of it is copied.
#[inline]
pub(crate) fn replaced(
    applying: &Applying<'_>,
    overlay: &Overlay<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
) -> Result<Option<Replaced>, MachineError> {
    if let Some(written) = overlay.get(keyspace, key) {
        let of = |live: &LiveKey<'_>| Replaced { held: live.held(), expiry: live.expiry, is_counted: true };
        return Ok(written.as_ref().map(of));
    }
    keys::with_data_key(keyspace, key, |full| {
        let mut found = Ok(None);
        applying.machine.backend.look(full, &mut |row| {
            found = decode_value(full, row).map(|Decoded { revision, value, expiry }| {
                let is_counted = applying.counts_row(overlay, keyspace, revision);
                Some(Replaced { held: value.into(), expiry, is_counted })
            });
        })?;
        found
    })
}

/// As [`count_change`], of a row that is known already.
pub(crate) fn change_of_row(
    applying: &Applying<'_>,
    overlay: &Overlay<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    before: Option<&LiveKey<'_>>,
    after: Option<Held>,
) -> CountChange {
    let is_written = || overlay.get(keyspace, key).is_some();
    let counts = |before: &&LiveKey<'_>| applying.counts_row(overlay, keyspace, before.revision) || is_written();
    let counted = before.filter(counts).map(LiveKey::held);
    let change = CountChange::of(key, counted, after);
    // A row that does not count any more, and waits to be swept, is not found by the sweep when it is replaced.
    let held = before.and_then(LiveKey::collection);
    CountChange { trash: held.filter(|held| after.and_then(|after| after.collection) != Some(*held)), ..change }
}
