//! The storage interface of the commands.
//!
//! Owns: the traits, and the rules for every implementation. A key holds a string or a *collection*. A collection has a
//! small value (`meta`) that is stored with the key. The commands of its kind encode the meta: the number of fields,
//! the last id, and so on. A collection also has *parts*: rows under the collection's id, ordered by name. For example,
//! a hash is a key with a number of fields, and one part for each field. Renaming moves the key and leaves the parts
//! unchanged. Deleting removes the key, and the parts are removed later.
//!
//! Invariants:
//! * A key past its deadline does not exist, for reads and for writes.
//! * Ids of collections are never reused. The store removes the parts of collections without a key at some
//!   later time; a command that overwrites, deletes or expires the key does not remove them.
//! * The version of a key changes with every write that changes the key or its deadline, and with every
//!   [`Store::put`]. Commands that change a part of a collection also put the key's meta, even if it is
//!   unchanged. Changes that `WATCH` ignores, such as changes of a stream's groups, use [`Store::put_meta`],
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

/// Last deadline that a key can have, in milliseconds since the Unix epoch: in the year 294,247. Commands store it
/// instead of a later one. The same time in microseconds still fits into an `i64`.
pub const MAX_DEADLINE_MILLIS: u64 = i64::MAX as u64 / 1000;

/// Error returned by a store operation.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store rejects the operation because of a limit or a missing feature. The command ends with this reply.
    #[error("the store rejected the operation: {0:?}")]
    Refused(Reply),
    /// The store failed. The command may have had an effect or not.
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
}

/// Number that identifies a collection: the value of a key that holds a hash or a stream. Counts from 1; never
/// reused.
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
    /// Name of the kind, as the command `TYPE` returns it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Hash => "hash",
            Self::Stream => "stream",
        }
    }
}

/// Properties of a key, without the bytes of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// Kind of the key's value.
    pub kind: Kind,
    /// Deadline in milliseconds since the Unix epoch; `None` if the key has no deadline.
    pub deadline: Option<u64>,
    /// Version of the key: a number that differs after each change of the key.
    pub version: u64,
    /// Length in bytes of the string, or of the collection's meta (the small value that a hash or a stream stores
    /// with its key).
    pub len: usize,
}

/// The value of a key that holds a hash or a stream. The fields of a hash, and the entries and groups of a stream,
/// are its *parts*: rows of the store that are separate from the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// Id of the collection, under which its parts (fields of a hash, entries of a stream) are stored.
    pub id: CollectionId,
    /// Kind of the collection; never [`Kind::String`].
    pub kind: Kind,
    /// Small value stored with the key, such as the number of fields of a hash. The commands on that kind of
    /// collection encode it.
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

/// An existing key with its value, deadline and version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// Value of the key.
    pub value: Value,
    /// Deadline in milliseconds since the Unix epoch; `None` if the key has no deadline.
    pub deadline: Option<u64>,
    /// Version of the key: a number that differs after each change of the key.
    pub version: u64,
}

/// A value that a command writes under a key.
#[derive(Clone, Debug)]
pub enum NewValue<'a> {
    /// A string. Borrowed bytes are an argument of the command. A store may keep a reference to them instead of a copy.
    String(Cow<'a, [u8]>),
    /// A hash or a stream: its meta, and the id under which its parts (fields or entries) are stored.
    Collection(Collection),
}

/// Function that receives the name and the value of each visited part of a collection; `Break` ends the visit.
pub type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;
/// Function that receives the name and the properties of each visited key; `Break` ends the visit.
pub type VisitKeys<'v> = dyn FnMut(&[u8], &KeyInfo) -> ControlFlow<()> + 'v;

/// Operations on stored keys that reading commands need. The trait is object-safe.
pub trait Read {
    /// Current time for deadlines, in milliseconds since the Unix epoch.
    fn now(&self) -> u64;
    /// Seed for random choices (`RANDOMKEY`, `HRANDFIELD`), if possible different on each call. While a log entry is
    /// applied, the seed comes from a counter in the replicated state, so that every node makes the same choice.
    fn seed(&self) -> u64 {
        self.now()
    }
    /// Returns true if keys of this store can hold collections (hashes and streams). A cache stores only strings.
    fn has_collections(&self) -> bool {
        true
    }
    /// Returns a key's properties without its value; `None` if the key does not exist.
    fn look(&self, key: &[u8]) -> Result<Option<KeyInfo>, StoreError>;
    /// Returns a key with its value; `None` if the key does not exist.
    fn get(&self, key: &[u8]) -> Result<Option<KeyValue>, StoreError>;
    /// Returns a key with its value, like [`get`](Self::get), but does not read a string of more than `max_bytes`
    /// bytes. The inner `None` stands for such a string.
    fn get_short(&self, key: &[u8], max_bytes: usize) -> Result<Option<Option<KeyValue>>, StoreError> {
        match self.look(key)? {
            None => Ok(None),
            Some(look) if look.kind == Kind::String && look.len > max_bytes => Ok(Some(None)),
            Some(_) => Ok(self.get(key)?.map(Some)),
        }
    }
    /// Returns a key with its value, like [`get`](Self::get), for a command that needs a collection. A store that need
    /// not read strings returns the inner `None` for a string.
    fn get_collection(&self, key: &[u8]) -> Result<Option<Option<KeyValue>>, StoreError> {
        Ok(self.get(key)?.map(Some))
    }
    /// Tells the store which keys the command will get next, so that the store can request them from the disk together.
    /// A store in memory does nothing.
    fn read_ahead(&self, _keys: &[&[u8]]) {}
    /// Number of stored keys, including expired ones that are not removed yet.
    fn len(&self) -> Result<u64, StoreError>;
    /// Returns true if no keys are stored.
    fn is_empty(&self) -> Result<bool, StoreError> {
        Ok(self.len()? == 0)
    }
    /// Visits the keys after the key `after`, or all keys if it is `None`. The order is that of the store, and the same
    /// for every call.
    fn keys(&self, after: Option<&[u8]>, visit: &mut VisitKeys<'_>) -> Result<(), StoreError>;
    /// Counts work that reads no data, such as matching a pattern or parsing a long number, in
    /// [steps](thalweg_types::steps). Returns an error if the command has used up the work that it may do. A store
    /// without a bound on work counts nothing.
    fn work(&self, _steps: u64) -> Result<(), StoreError> {
        Ok(())
    }
    /// Returns true if a collection has a part (a field of a hash, an entry of a stream) of that name.
    fn has_part(&self, id: CollectionId, name: &[u8]) -> Result<bool, StoreError> {
        Ok(self.part(id, name)?.is_some())
    }
    /// Returns the value of a part of a collection (a field of a hash, an entry of a stream); `None` if there is no
    /// part of that name.
    fn part(&self, id: CollectionId, name: &[u8]) -> Result<Option<Bytes>, StoreError>;
    /// Returns the value of a part, like [`part`](Self::part), but does not read a value of more than `max_bytes`
    /// bytes. The inner `None` stands for such a value.
    fn part_short(&self, id: CollectionId, name: &[u8], max_bytes: usize) -> Result<Option<Option<Bytes>>, StoreError> {
        Ok(self.part(id, name)?.map(|value| Some(value).filter(|value| value.len() <= max_bytes)))
    }
    /// Maximum bytes of values that a reply may contain at present. A command whose reply would exceed it is rejected
    /// before it copies the values. Commands that are executed from the log have no such limit, because every node must
    /// decide equally.
    fn reply_room(&self) -> usize {
        usize::MAX
    }
    /// Visits the parts of a collection (fields of a hash, entries of a stream) whose names are within two bounds,
    /// in ascending or descending byte order of their names.
    fn parts(
        &self,
        id: CollectionId,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        descending: bool,
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError>;
}

/// Operations on stored keys that writing commands need. Later reads see earlier writes. `'a` is the lifetime of
/// the commands' arguments.
pub trait Store<'a>: Read {
    /// Checks if the command may still do the work of writing a value of this length, before it computes the value.
    /// Returns an error if not, so that the command does not compute a value only to discard it. A store without a
    /// bound on work always agrees.
    fn prepare_value(&mut self, _bytes: usize) -> Result<(), StoreError> {
        Ok(())
    }
    /// Writes a key's value and deadline. A deadline in the past deletes the key.
    fn put(&mut self, key: &'a [u8], value: NewValue<'a>, deadline: Option<u64>) -> Result<(), StoreError>;
    /// Replaces the meta of a key that already holds this collection. The key keeps its version, because `WATCH`
    /// ignores such a change.
    fn put_meta(&mut self, key: &'a [u8], collection: Collection) -> Result<(), StoreError>;
    /// Changes or removes the deadline of an existing key, and keeps its value. A deadline in the past deletes the key.
    fn set_deadline(&mut self, key: &'a [u8], deadline: Option<u64>) -> Result<(), StoreError>;
    /// Deletes a key. Returns true if it existed.
    fn delete(&mut self, key: &'a [u8]) -> Result<bool, StoreError>;
    /// Moves an existing key's value and deadline to another key. If the value is a collection, its parts (fields
    /// or entries) stay where they are and now belong to the new key.
    fn rename(&mut self, from: &'a [u8], to: &'a [u8]) -> Result<(), StoreError>;
    /// Returns the id of a new collection without parts (fields or entries).
    fn new_collection(&mut self) -> Result<CollectionId, StoreError>;
    /// Writes the value of a part of a collection: a field of a hash, or a row of a stream.
    fn put_part(&mut self, id: CollectionId, name: &[u8], value: &[u8]) -> Result<(), StoreError>;
    /// Deletes a part of a collection: a field of a hash, or a row of a stream.
    fn delete_part(&mut self, id: CollectionId, name: &[u8]) -> Result<(), StoreError>;
    /// Deletes all keys of the store.
    fn clear(&mut self) -> Result<(), StoreError>;
}
