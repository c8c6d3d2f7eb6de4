//! Changes of keys as a watch delivers them.

use bytes::Bytes;
use thalweg_state::changes::KeyChange;
use thalweg_types::{Revision, SpaceTime};

/// Kind of a change to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchChange {
    /// The key was set to this value.
    Put(Bytes),
    /// The key was deleted. A delete of a key without a value is reported too, because deletes do not read the key.
    Delete,
    /// The key was removed after its deadline or its lease's deadline.
    Expire,
    /// All keys with a prefix were deleted; the event's key is that prefix. A watch gets the event if it observes a
    /// key that may have the prefix.
    DeletePrefix,
}

/// A change of one key, or of all keys with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// Revision of the commit that made the change.
    pub revision: Revision,
    /// Time of the log entry that contained the commit.
    pub time: SpaceTime,
    /// Key that changed, or the deleted prefix.
    pub key: Bytes,
    /// Kind of the change, with the new value of a put.
    pub change: WatchChange,
}

impl WatchEvent {
    pub(crate) fn of(change: &KeyChange<'_>, revision: Revision, time: SpaceTime) -> Self {
        let (_, key) = change.target();
        let (key, change) = match change {
            KeyChange::Put { value, .. } => {
                // One allocation holds both the key and the value.
                let mut both = Bytes::from([key, value].concat());
                let key = both.split_to(key.len());
                (key, WatchChange::Put(both))
            }
            KeyChange::Delete { .. } => (Bytes::copy_from_slice(key), WatchChange::Delete),
            KeyChange::Expire { .. } => (Bytes::copy_from_slice(key), WatchChange::Expire),
            KeyChange::DeletePrefix { .. } => (Bytes::copy_from_slice(key), WatchChange::DeletePrefix),
        };
        Self { revision, time, key, change }
    }

    /// Approximate memory of the event in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        let value = match &self.change {
            WatchChange::Put(value) => value.len(),
            _ => 0,
        };
        size_of::<Self>() + self.key.len() + value
    }

    /// Returns true for the deletion of all keys of a keyspace, which also happens when the keyspace is dropped.
    pub(crate) fn deletes_all_keys(&self) -> bool {
        self.change == WatchChange::DeletePrefix && self.key.is_empty()
    }

    /// Returns the [memory](Self::memory) that the event of a change would use.
    pub(crate) fn memory_of(change: &KeyChange<'_>) -> usize {
        let value = match change {
            KeyChange::Put { value, .. } => value.len(),
            _ => 0,
        };
        size_of::<Self>() + change.target().1.len() + value
    }
}
