//! A hash during a command: its rows, and the number of its fields. The number is the hash's meta, the small value that
//! is stored with the key.
//!
//! ```text
//! key -> (hash, id, meta = fields u64 little-endian)      part (id, field) -> value
//! ```
//!
//! Invariants:
//! * `meta` contains the number of fields. The number is never 0: a hash without fields does not exist.
//! * A command that changes a field also writes the key, so that the version of the key changes.

use bytes::Bytes;
use thalweg_types::limits::MAX_KEY_BYTES;

use crate::{
    errors::{CommandEnd, STRINGS_ONLY, WRONG_TYPE, key_too_long, refused},
    store::{Collection, CollectionId, KeyValue, Kind, NewValue, Read, Store, StoreError, Value},
};

/// The hash of a key, as a command sees it: an existing hash, or one that the command is about to create.
#[derive(Debug)]
pub(super) struct Hash {
    pub id: CollectionId,
    pub fields: u64,
    deadline: Option<u64>,
}

/// Error returned if the meta of a hash is not a number of fields, encoded in 8 bytes. Contains the meta's length.
#[derive(Debug, thiserror::Error)]
#[error("a hash's meta has {0} bytes instead of 8: the store is damaged")]
struct BadMeta(usize);

/// Returns the number of fields of a hash.
pub(crate) fn fields_of(hash: &Collection) -> Result<u64, StoreError> {
    let Ok(count) = <[u8; 8]>::try_from(&hash.meta[..]) else {
        return Err(StoreError::Failed(Box::new(BadMeta(hash.meta.len()))));
    };
    Ok(u64::from_le_bytes(count))
}

impl Hash {
    /// Finds the hash of a key; `None` if the key does not exist. Returns an error if the key holds another kind of
    /// value.
    pub(super) fn find(read: &(impl Read + ?Sized), key: &[u8]) -> Result<Option<Self>, CommandEnd> {
        let Some(found) = read.get_collection(key)? else { return Ok(None) };
        match found {
            Some(KeyValue { value: Value::Collection(hash), deadline, .. }) if hash.kind == Kind::Hash => {
                Ok(Some(Self { id: hash.id, fields: fields_of(&hash)?, deadline }))
            }
            _ => Err(refused(WRONG_TYPE)),
        }
    }

    /// Finds the hash of a key, or prepares a new one. The store contains a new hash only after [`Self::put`].
    pub(super) fn find_or_new<'a>(store: &mut dyn Store<'a>, key: &[u8]) -> Result<Self, CommandEnd> {
        if let Some(hash) = Self::find(store, key)? {
            return Ok(hash);
        }
        if !store.has_collections() {
            return Err(refused(STRINGS_ONLY));
        }
        Ok(Self { id: store.new_collection()?, fields: 0, deadline: None })
    }

    pub(super) fn get(&self, read: &(impl Read + ?Sized), field: &[u8]) -> Result<Option<Bytes>, CommandEnd> {
        Ok(read.part(self.id, field)?)
    }

    pub(super) fn has(&self, read: &(impl Read + ?Sized), field: &[u8]) -> Result<bool, CommandEnd> {
        Ok(read.has_part(self.id, field)?)
    }

    /// Sets a field of the hash. Returns true if the field is new. Afterwards the caller must call [`Self::put`], which
    /// stores the new number of fields.
    pub(super) fn set<'a>(
        &mut self,
        store: &mut dyn Store<'a>,
        field: &[u8],
        value: &[u8],
    ) -> Result<bool, CommandEnd> {
        let is_new = self.fields == 0 || !store.has_part(self.id, field)?;
        self.fields += u64::from(is_new);
        store.put_part(self.id, field, value)?;
        Ok(is_new)
    }

    /// Writes the hash's key with the current number of fields. This changes the version of the key.
    pub(super) fn put<'a>(self, store: &mut dyn Store<'a>, key: &'a [u8]) -> Result<(), CommandEnd> {
        let meta = Bytes::copy_from_slice(&self.fields.to_le_bytes());
        let collection = Collection { id: self.id, kind: Kind::Hash, meta };
        Ok(store.put(key, NewValue::Collection(collection), self.deadline)?)
    }
}

/// Returns an error for a field whose name is longer than [`MAX_KEY_BYTES`].
pub(super) fn check_field(field: &[u8]) -> Result<(), CommandEnd> {
    if field.len() > MAX_KEY_BYTES { Err(key_too_long().into()) } else { Ok(()) }
}
