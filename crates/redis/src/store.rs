//! What commands need of the place where keys are.
//!
//! Owns: the traits, and what is true of every implementation. A key holds a string, or a *collection*: a small value of
//! its own (`meta`, encoded by the commands of that kind: how many fields, the last id, ...) and *parts*, rows in order
//! by name, found by the collection's id. So a hash is a key with a count, and a part for each field; renaming moves the
//! key and leaves the parts where they are; deleting forgets the id, and its parts are removed later.
//!
//! Invariants:
//! * A key past its deadline is not there, for reads and for writes.
//! * Ids of collections are never used again. Parts whose collection no key holds any more are removed by the store, some
//!   time: whoever overwrites, deletes, or lets end the key that held it does nothing else.
//! * The version of a key changes with every write that changes it, or its deadline, or is made through [`Store::put`].
//!   Commands that change a part of a collection put the key's meta, too, even if it says the same as before. What is no
//!   change for `WATCH`, as that of a stream's groups, is put through [`Store::put_meta`], which leaves the version.
//! * A command that is refused changes nothing: commands check, and only then write. The state machine takes back what
//!   such a command has done; other stores can't.

use std::{
    borrow::Cow,
    error::Error,
    ops::{Bound, ControlFlow},
};

use bytes::Bytes;
use thalweg_types::reply::Reply;

/// The last deadline there is, in milliseconds since the Unix epoch: as microseconds it is still an `i64`. In the year
/// 294,247. Commands put this one for what would be later.
pub const MAX_DEADLINE_MILLIS: u64 = i64::MAX as u64 / 1000;

/// Why a store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It can't take or give this: a bound, or something that this store has not. The reply says so, and the command
    /// ends with it.
    #[error("refused: {0:?}")]
    Refused(Reply),
    /// It failed: nothing of the command may be believed to have happened.
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
}

/// Of a collection; from 1, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CollectionId(pub u64);

/// What a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Bytes.
    String,
    /// Fields.
    Hash,
    /// Entries by id, consumer groups.
    Stream,
}

impl Kind {
    /// As `TYPE` says it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Hash => "hash",
            Self::Stream => "stream",
        }
    }
}

/// A key without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// What it holds.
    pub kind: Kind,
    /// When it ends, in milliseconds since the Unix epoch.
    pub deadline: Option<u64>,
    /// Another one after each change.
    pub version: u64,
    /// Bytes of the string, or of the collection's meta.
    pub len: usize,
}

/// A collection as its key holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// Where its parts are.
    pub id: CollectionId,
    /// Never [`Kind::String`].
    pub kind: Kind,
    /// What its commands keep with the key.
    pub meta: Bytes,
}

/// A value as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A string.
    String(Bytes),
    /// A hash or a stream.
    Collection(Collection),
}

/// A key that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its value.
    pub value: Value,
    /// When it ends, in milliseconds since the Unix epoch.
    pub deadline: Option<u64>,
    /// Another one after each change.
    pub version: u64,
}

/// A value to be put.
#[derive(Clone, Debug)]
pub enum NewValue<'a> {
    /// A string. Borrowed bytes are those of an argument, which a store may keep by where they are.
    String(Cow<'a, [u8]>),
    /// A hash or a stream: the meta, and which parts are its.
    Collection(Collection),
}

/// Called for each row; `Break` ends the visit.
pub type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;
/// Called for each key; `Break` ends the visit.
pub type VisitKeys<'v> = dyn FnMut(&[u8], &Look) -> ControlFlow<()> + 'v;

/// What reading commands need. Object-safe.
pub trait Read {
    /// The time by which deadlines are judged, in milliseconds since the Unix epoch.
    fn now(&self) -> u64;
    /// A number to choose by (`RANDOMKEY`, `HRANDFIELD`), another one on each call where that can be. In a command of
    /// the log it comes from a counter of the space, so that every node chooses alike.
    fn seed(&self) -> u64 {
        self.now()
    }
    /// Whether keys can hold collections here. A cache's can't.
    fn has_collections(&self) -> bool {
        true
    }
    /// A key without its value.
    fn look(&self, key: &[u8]) -> Result<Option<Look>, StoreError>;
    /// A key with its value.
    fn get(&self, key: &[u8]) -> Result<Option<Found>, StoreError>;
    /// How many keys are stored, those included that have ended and are not removed yet.
    fn len(&self) -> Result<u64, StoreError>;
    /// Whether there are none.
    fn is_empty(&self) -> Result<bool, StoreError> {
        Ok(self.len()? == 0)
    }
    /// Visits keys in the store's order, from behind `after`. The order is the same for every call.
    fn keys(&self, after: Option<&[u8]>, visit: &mut VisitKeys<'_>) -> Result<(), StoreError>;
    /// A part of a collection.
    fn part(&self, id: CollectionId, name: &[u8]) -> Result<Option<Bytes>, StoreError>;
    /// Visits parts, names ascending as bytes, or descending.
    fn parts(
        &self,
        id: CollectionId,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        descending: bool,
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError>;
}

/// What writing commands need. What is written is seen by reads that come after it. `'a` is for how long the arguments
/// of commands live.
pub trait Store<'a>: Read {
    /// Gives a key a value and a deadline, or none. One that has passed deletes it.
    fn put(&mut self, key: &'a [u8], value: NewValue<'a>, deadline: Option<u64>) -> Result<(), StoreError>;
    /// Gives a key that holds this collection another meta, and leaves its version: what was changed is none of what
    /// `WATCH` looks after.
    fn put_meta(&mut self, key: &'a [u8], collection: Collection) -> Result<(), StoreError>;
    /// Gives a key that is there another deadline, or none, and leaves its value. One that has passed deletes it.
    fn set_deadline(&mut self, key: &'a [u8], deadline: Option<u64>) -> Result<(), StoreError>;
    /// Removes a key, and says whether it was there.
    fn delete(&mut self, key: &'a [u8]) -> Result<bool, StoreError>;
    /// Gives the value and the deadline of a key that is there to another key, and removes it; a collection goes along.
    fn rename(&mut self, from: &'a [u8], to: &'a [u8]) -> Result<(), StoreError>;
    /// An id for a collection, which has no parts yet.
    fn new_collection(&mut self) -> Result<CollectionId, StoreError>;
    /// Sets a part.
    fn put_part(&mut self, id: CollectionId, name: &[u8], value: &[u8]) -> Result<(), StoreError>;
    /// Removes a part.
    fn delete_part(&mut self, id: CollectionId, name: &[u8]) -> Result<(), StoreError>;
    /// Removes all keys.
    fn clear(&mut self) -> Result<(), StoreError>;
}
