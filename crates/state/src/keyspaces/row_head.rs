//! The row of a key without the bytes of its value.
//!
//! Owns: [`RowHead`] (such a row), and [`LargeRows`], a cache of the heads of those rows of 16 KiB or more that the log
//! record being applied has read. Does not own: reading rows (`Applying::row_head`).
//!
//! redb and SQLite read a whole row from their pages and compute its checksum, although the caller needs its first
//! bytes only; for a row of 8 MiB that takes a few milliseconds. A lookup is charged few steps of work, so a
//! transaction may look up one row thousands of times. Only the first lookup reads the row.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use thalweg_redis::Kind;
use thalweg_types::Revision;

use crate::{
    error::MachineError,
    expiry::rows::Expiry,
    keyspaces::{
        counts::CountedValue,
        values::{Decoded, StoredRef, decode_value},
    },
};

/// Size in bytes from which a row is large: its head is kept in [`LargeRows`], so that it is read only once.
pub(crate) const LARGE_ROW_BYTES: usize = 16 * 1024;

/// The row of a key without the bytes of its value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowHead {
    pub(crate) revision: Revision,
    pub(crate) expiry: Expiry,
    pub(crate) held: CountedValue,
    pub(crate) kind: Kind,
}

impl RowHead {
    pub(crate) fn of(revision: Revision, value: StoredRef<'_>, expiry: Expiry) -> Self {
        let kind = match value {
            StoredRef::Collection(collection) => collection.kind,
            StoredRef::Inline(_) | StoredRef::Blob(_) => Kind::String,
        };
        Self { revision, expiry, held: value.into(), kind }
    }

    /// Decodes the head of a row; `key` is used in errors.
    #[inline]
    pub(crate) fn decode(key: &[u8], row: &[u8]) -> Result<Self, MachineError> {
        let Decoded { revision, value, expiry } = decode_value(key, row)?;
        Ok(Self::of(revision, value, expiry))
    }
}

/// Large rows (16 KiB or more) of the backend that the log record being applied has read. The backend does not change
/// before the record's changes are applied, so this table stays correct.
#[derive(Debug, Default)]
pub(crate) struct LargeRows(OnceLock<Mutex<NotedRows>>);

#[derive(Debug, Default)]
struct NotedRows {
    /// Heads (rows without the values) of the large rows of users' keys, by row key.
    heads: HashMap<Box<[u8]>, RowHead>,
    /// Keys of all other rows of 16 KiB or more, such as fields of a hash.
    others: HashSet<Box<[u8]>>,
}

impl LargeRows {
    /// Returns the head of the row of a user's key, if the row has 16 KiB or more and was read before.
    #[inline]
    pub(crate) fn head(&self, key: &[u8]) -> Option<RowHead> {
        self.found()?.heads.get(key).copied()
    }

    /// Stores the head of the row of a user's key that was just read, if the row has 16 KiB or more.
    #[inline]
    pub(crate) fn note_head(&self, key: &[u8], row: &[u8], head: RowHead) {
        if row.len() >= LARGE_ROW_BYTES {
            self.found_or_new().heads.insert(key.into(), head);
        }
    }

    /// Returns true if this row was read before and has 16 KiB or more. It must not be the row of a user's key.
    #[inline]
    pub(crate) fn has_other(&self, key: &[u8]) -> bool {
        self.found().is_some_and(|found| found.others.contains(key))
    }

    /// Stores the key of a row that was just read, if it has 16 KiB or more. It must not be the row of a user's key.
    #[inline]
    pub(crate) fn note_other(&self, key: &[u8], row: &[u8]) {
        if row.len() >= LARGE_ROW_BYTES {
            self.found_or_new().others.insert(key.into());
        }
    }

    #[inline]
    fn found(&self) -> Option<MutexGuard<'_, NotedRows>> {
        self.0.get().map(|found| found.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn found_or_new(&self) -> MutexGuard<'_, NotedRows> {
        self.0.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
    }
}
