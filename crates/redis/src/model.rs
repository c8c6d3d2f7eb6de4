//! An in-memory store. Tests execute commands on it, and compare other stores with it. A server uses an empty one for a
//! database that has no data yet.
//!
//! Deliberately simple: maps that can be cloned, and a clock that the test sets.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    ops::{Bound, ControlFlow, RangeBounds},
};

use bytes::Bytes;

use crate::store::{
    Collection, CollectionId, KeyInfo, KeyValue, Kind, NewValue, Read, Store, StoreError, Value, Visit, VisitKeys,
};

/// A store that keeps all keys in memory.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Current time in milliseconds since the Unix epoch, as [`Read::now`] returns it.
    pub now: u64,
    /// Stored keys with their values, by name.
    keys: BTreeMap<Vec<u8>, KeyValue>,
    parts: BTreeMap<(CollectionId, Vec<u8>), Bytes>,
    last_version: u64,
    last_collection: u64,
}

impl Model {
    /// Creates an empty store whose clock shows `now`, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn at(now: u64) -> Self {
        Self { now, ..Self::default() }
    }

    fn live(&self, key: &[u8]) -> Option<&KeyValue> {
        self.keys.get(key).filter(|found| found.deadline.is_none_or(|deadline| deadline > self.now))
    }

    fn version(&mut self) -> u64 {
        self.last_version += 1;
        self.last_version
    }

    fn forget(&mut self, key: &[u8]) -> Option<KeyValue> {
        let found = self.keys.remove(key)?;
        if let Value::Collection(collection) = &found.value {
            self.parts.retain(|(id, _), _| *id != collection.id);
        }
        Some(found)
    }
}

fn look(found: &KeyValue) -> KeyInfo {
    let (kind, len) = match &found.value {
        Value::String(bytes) => (Kind::String, bytes.len()),
        Value::Collection(collection) => (collection.kind, collection.meta.len()),
    };
    KeyInfo { kind, deadline: found.deadline, version: found.version, len }
}

impl Read for Model {
    fn now(&self) -> u64 {
        self.now
    }

    fn look(&self, key: &[u8]) -> Result<Option<KeyInfo>, StoreError> {
        Ok(self.live(key).map(look))
    }

    fn get(&self, key: &[u8]) -> Result<Option<KeyValue>, StoreError> {
        Ok(self.live(key).cloned())
    }

    fn len(&self) -> Result<u64, StoreError> {
        Ok(self.keys.len() as u64)
    }

    fn keys(&self, after: Option<&[u8]>, visit: &mut VisitKeys<'_>) -> Result<(), StoreError> {
        let lower = after.map_or(Bound::Unbounded, Bound::Excluded);
        for (key, _) in self.keys.range::<[u8], _>((lower, Bound::Unbounded)) {
            if let Some(found) = self.live(key)
                && visit(key, &look(found)) == ControlFlow::Break(())
            {
                break;
            }
        }
        Ok(())
    }

    fn part(&self, id: CollectionId, name: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(self.parts.get(&(id, name.to_vec())).cloned())
    }

    fn parts(
        &self,
        id: CollectionId,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        descending: bool,
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError> {
        let range = self.parts.range((id, Vec::new())..(CollectionId(id.0 + 1), Vec::new()));
        let within = |name: &[u8]| RangeBounds::<[u8]>::contains(&(lower, upper), name);
        let mut rows: Vec<_> = range.filter(|((_, name), _)| within(name)).collect();
        if descending {
            rows.reverse();
        }
        for ((_, name), value) in rows {
            if visit(name, value) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }
}

impl<'a> Store<'a> for Model {
    fn put(&mut self, key: &'a [u8], value: NewValue<'a>, deadline: Option<u64>) -> Result<(), StoreError> {
        let value = match value {
            NewValue::String(bytes) => Value::String(Bytes::from(Cow::into_owned(bytes))),
            NewValue::Collection(collection) => Value::Collection(collection),
        };
        let keeps = match (&value, self.keys.get(key).map(|found| &found.value)) {
            (Value::Collection(new), Some(Value::Collection(old))) => new.id == old.id,
            _ => false,
        };
        if keeps {
            self.keys.remove(key);
        } else {
            self.forget(key);
        }
        let version = self.version();
        self.keys.insert(key.to_vec(), KeyValue { value, deadline, version });
        if deadline.is_some_and(|deadline| deadline <= self.now) {
            self.forget(key);
        }
        Ok(())
    }

    fn put_meta(&mut self, key: &'a [u8], collection: Collection) -> Result<(), StoreError> {
        if let Some(found) = self.keys.get_mut(key) {
            found.value = Value::Collection(collection);
        }
        Ok(())
    }

    fn set_deadline(&mut self, key: &'a [u8], deadline: Option<u64>) -> Result<(), StoreError> {
        let version = self.version();
        if let Some(found) = self.keys.get_mut(key) {
            (found.deadline, found.version) = (deadline, version);
        }
        if deadline.is_some_and(|deadline| deadline <= self.now) {
            self.forget(key);
        }
        Ok(())
    }

    fn delete(&mut self, key: &'a [u8]) -> Result<bool, StoreError> {
        let was_there = self.live(key).is_some();
        self.forget(key);
        Ok(was_there)
    }

    fn rename(&mut self, from: &'a [u8], to: &'a [u8]) -> Result<(), StoreError> {
        if let Some(mut found) = self.keys.remove(from) {
            self.forget(to);
            found.version = self.version();
            self.keys.insert(to.to_vec(), found);
        }
        Ok(())
    }

    fn new_collection(&mut self) -> Result<CollectionId, StoreError> {
        self.last_collection += 1;
        Ok(CollectionId(self.last_collection))
    }

    fn put_part(&mut self, id: CollectionId, name: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.parts.insert((id, name.to_vec()), Bytes::copy_from_slice(value));
        Ok(())
    }

    fn delete_part(&mut self, id: CollectionId, name: &[u8]) -> Result<(), StoreError> {
        self.parts.remove(&(id, name.to_vec()));
        Ok(())
    }

    fn clear(&mut self) -> Result<(), StoreError> {
        self.keys.clear();
        self.parts.clear();
        Ok(())
    }
}
