//! The row of a key without the bytes of its value.
//!
//! Owns: [`RowHead`] (such a row), and [`LargeRows`], a cache of the heads of large rows that the log record being
//! applied has read. Does not own: reading rows (`Applying::row_head`).
//!
//! redb and SQLite read a whole row from their pages and compute its checksum, although the caller needs its first
//! bytes only; for a row of 8 MiB that takes a few milliseconds. A lookup costs few steps, so a transaction may look up
//! one row thousands of times. Only the first lookup reads the row.

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

/// Size in bytes from which a row is large: looking up its head in [`LargeRows`] is faster than reading it again.
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

/// Large rows of the backend that the log record being applied has read. The backend does not change before the
/// record's changes are applied, so this table stays correct.
#[derive(Debug, Default)]
pub(crate) struct LargeRows(OnceLock<Mutex<NotedRows>>);

#[derive(Debug, Default)]
struct NotedRows {
    /// Heads of the large rows of users' keys, by row key.
    heads: HashMap<Box<[u8]>, RowHead>,
    /// Row keys of all other large rows, such as the fields of a hash.
    others: HashSet<Box<[u8]>>,
}

impl LargeRows {
    /// Returns the head of the row of a user's key, if the row is large and was read before.
    #[inline]
    pub(crate) fn head(&self, key: &[u8]) -> Option<RowHead> {
        self.found()?.heads.get(key).copied()
    }

    /// Stores the head of the row of a user's key that was read, if the row is large.
    #[inline]
    pub(crate) fn note_head(&self, key: &[u8], row: &[u8], head: RowHead) {
        if row.len() >= LARGE_ROW_BYTES {
            self.found_or_new().heads.insert(key.into(), head);
        }
    }

    /// Returns true if this row was read before and is large. It must not be the row of a user's key.
    #[inline]
    pub(crate) fn has_other(&self, key: &[u8]) -> bool {
        self.found().is_some_and(|found| found.others.contains(key))
    }

    /// Stores the key of a row that was read, if the row is large. It must not be the row of a user's key.
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
