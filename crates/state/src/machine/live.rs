//! What a key is at the time of the entry being applied: the one place that decides.
//!
//! Conditions, transactions, counters and reads within a commit all ask [`live_key`]. It sees what earlier
//! writes of the same entry made of the key, then what the backend holds, and answers `None` for a key
//! that is not there any more at the entry's time although a row of it is. Readers outside of an entry
//! decide by the same rule.

use thalweg_types::{KeyspaceId, Revision};

use crate::{
    keys,
    keyspaces::{Stored, StoredValue, decode_owned},
    machine::{MachineError, entry::Applying, overlay::Overlay},
};

/// A key that is there.
#[derive(Clone, Debug)]
pub(crate) struct LiveKey<'a> {
    /// The command that wrote it.
    pub(crate) revision: Revision,
    /// Its value, wherever that is.
    pub(crate) value: LiveValue<'a>,
}

/// The value of a key that is there.
#[derive(Clone, Debug)]
pub(crate) enum LiveValue<'a> {
    /// Written by this entry: bytes of its payload.
    Written(&'a [u8]),
    /// As the backend holds it.
    Stored(StoredValue),
}

impl LiveKey<'_> {
    /// Whether the value is these bytes. Of a value in the log, length and checksum are compared first.
    pub(crate) fn value_is(&self, applying: &Applying<'_>, bytes: &[u8]) -> Result<bool, MachineError> {
        Ok(match &self.value {
            LiveValue::Written(value) => *value == bytes,
            LiveValue::Stored(StoredValue::Inline(value)) => value == bytes,
            LiveValue::Stored(StoredValue::Blob(blob)) => {
                blob.len as usize == bytes.len()
                    && blob.crc == crc_fast::crc32_iscsi(bytes)
                    && applying.machine.blobs.read(blob)? == bytes
            }
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
    match overlay.get(keyspace, key) {
        Some(written) => Ok(written.clone()),
        None => stored_key(applying, keyspace, key),
    }
}

fn stored_key<'a>(
    applying: &Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
) -> Result<Option<LiveKey<'a>>, MachineError> {
    let found = keys::with_data_key(keyspace, key, |full| decode_owned(full, applying.machine.backend.get(full)?))?;
    Ok(found.map(|Stored { revision, value }| LiveKey { revision, value: LiveValue::Stored(value) }))
}
