//! The storage interface of the commands.
//!
//! Owns: the traits, and the rules for every implementation. A key holds a string or a *collection*. A
//! collection has a small value of its own (`meta`, encoded by the commands of its kind: the number of
//! fields, the last id, ...) and *parts*, which are rows ordered by name under the collection's id. For
//! example, a hash is a key with a counter and one part for each field. Renaming moves the key and leaves the
//! parts unchanged. Deleting drops the id, and the parts are removed later.
//!
//! Invariants:
//! * A key past its deadline does not exist, for reads and for writes.
//! * Ids of collections are never reused. The store removes the parts of collections without a key at some
//!   later time; a command that overwrites, deletes or expires the key does nothing else.
//! * The version of a key changes with every write that changes the key or its deadline, and with every
//!   [`Store::put`]. Commands that change a part of a collection also put the key's meta, even if it is
//!   unchanged. Changes that `WATCH` ignores, such as those of a stream's groups, use [`Store::put_meta`],
//!   which keeps the version.
//! * A rejected command changes nothing: commands check first and write afterwards. The state machine also
//!   rolls back the changes of a rejected command; other stores cannot.

use std::{
    borrow::Cow,
    error::Error,
    ops::{Bound, ControlFlow},
};

use bytes::Bytes;
use thalweg_types::reply::Reply;

/// Last representable deadline, in milliseconds since the Unix epoch: in microseconds it still fits an `i64`.
/// It is in the year 294,247. Commands use it instead of a later one.
pub const MAX_DEADLINE_MILLIS: u64 = i64::MAX as u64 / 1000;

/// Error returned by a store operation.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store rejects the operation because of a limit or a missing feature. The command ends with this
    /// reply.
    #[error("the store rejected the operation: {0:?}")]
    Refused(Reply),
    /// The store failed. No effect of the command may be assumed.
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
}

/// Number of a collection, from 1; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CollectionId(pub u64);

/// Kind of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A string of bytes.
    String,
    /// A hash of fields.
    Hash,
    /// A stream of entries, with consumer groups.
    Stream,
}

impl Kind {
    /// Name that `TYPE` returns.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Hash => "hash",
            Self::Stream => "stream",
        }
    }
}

/// A key's properties without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// Kind of the value.
    pub kind: Kind,
    /// Deadline in milliseconds since the Unix epoch; `None` without one.
    pub deadline: Option<u64>,
    /// Version of the key, which differs after each change.
    pub version: u64,
    /// Bytes of the string, or of the collection's meta.
    pub len: usize,
}

/// The value of a key that holds a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// Number under which its parts are stored.
    pub id: CollectionId,
    /// Kind of the collection; never [`Kind::String`].
    pub kind: Kind,
    /// Data that the collection's commands store with the key.
    pub meta: Bytes,
}

/// A value read from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A string.
    String(Bytes),
    /// A hash or a stream.
    Collection(Collection),
}

/// An existing key with its value and deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// Value of the key.
    pub value: Value,
    /// Deadline in milliseconds since the Unix epoch; `None` without one.
    pub deadline: Option<u64>,
    /// Version of the key, which differs after each change.
    pub version: u64,
}

/// A value to write.
#[derive(Clone, Debug)]
pub enum NewValue<'a> {
    /// A string. Borrowed bytes are from an argument, and a store may keep them by reference.
    String(Cow<'a, [u8]>),
    /// A hash or a stream: its meta, and the id of its parts.
    Collection(Collection),
}

/// Visitor of rows (name, value); `Break` ends the visit.
pub type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;
/// Visitor of keys; `Break` ends the visit.
pub type VisitKeys<'v> = dyn FnMut(&[u8], &KeyInfo) -> ControlFlow<()> + 'v;

/// Operations that reading commands need. Object-safe.
pub trait Read {
    /// Current time for deadlines, in milliseconds since the Unix epoch.
    fn now(&self) -> u64;
    /// Seed for random choices (`RANDOMKEY`, `HRANDFIELD`), different on each call where possible. For a
    /// command in the log it comes from a counter of the space, so that every node chooses the same.
    fn seed(&self) -> u64 {
        self.now()
    }
    /// Returns true if keys of this store can hold collections. Keys of a cache cannot.
    fn has_collections(&self) -> bool {
        true
    }
    /// Returns a key's properties without its value; `None` if it does not exist.
    fn look(&self, key: &[u8]) -> Result<Option<KeyInfo>, StoreError>;
    /// Returns a key with its value; `None` if it does not exist.
    fn get(&self, key: &[u8]) -> Result<Option<KeyValue>, StoreError>;
    /// Number of stored keys, including expired ones that are not removed yet.
    fn len(&self) -> Result<u64, StoreError>;
    /// Returns true if no keys are stored.
    fn is_empty(&self) -> Result<bool, StoreError> {
        Ok(self.len()? == 0)
    }
    /// Visits keys in the store's order, starting after `after`. The order is the same for every call.
    fn keys(&self, after: Option<&[u8]>, visit: &mut VisitKeys<'_>) -> Result<(), StoreError>;
    /// Returns a part of a collection.
    fn part(&self, id: CollectionId, name: &[u8]) -> Result<Option<Bytes>, StoreError>;
    /// Visits parts in ascending or descending byte order of their names.
    fn parts(
        &self,
        id: CollectionId,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        descending: bool,
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError>;
}

/// Operations that writing commands need. Later reads see earlier writes. `'a` is the lifetime of the
/// commands' arguments.
pub trait Store<'a>: Read {
    /// Writes a key's value and deadline. A deadline in the past deletes the key.
    fn put(&mut self, key: &'a [u8], value: NewValue<'a>, deadline: Option<u64>) -> Result<(), StoreError>;
    /// Replaces the meta of a key that holds this collection, and keeps its version: `WATCH` ignores this
    /// change.
    fn put_meta(&mut self, key: &'a [u8], collection: Collection) -> Result<(), StoreError>;
    /// Changes or removes the deadline of an existing key, and keeps its value. A deadline in the past
    /// deletes the key.
    fn set_deadline(&mut self, key: &'a [u8], deadline: Option<u64>) -> Result<(), StoreError>;
    /// Deletes a key. Returns true if it existed.
    fn delete(&mut self, key: &'a [u8]) -> Result<bool, StoreError>;
    /// Moves an existing key's value and deadline to another key; a collection keeps its parts.
    fn rename(&mut self, from: &'a [u8], to: &'a [u8]) -> Result<(), StoreError>;
    /// Returns an id for a new collection without parts.
    fn new_collection(&mut self) -> Result<CollectionId, StoreError>;
    /// Writes a part of a collection.
    fn put_part(&mut self, id: CollectionId, name: &[u8], value: &[u8]) -> Result<(), StoreError>;
    /// Deletes a part of a collection.
    fn delete_part(&mut self, id: CollectionId, name: &[u8]) -> Result<(), StoreError>;
    /// Deletes all keys.
    fn clear(&mut self) -> Result<(), StoreError>;
}
