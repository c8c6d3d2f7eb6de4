//! Table of names that have been resolved to ids.
//!
//! Owns: the table, which all handles of a client share. Bound: [`MAX_NAMES`]; above it the table is cleared, and names
//! are looked up again. A server never reuses an id for another object of the same kind, so it rejects an outdated id,
//! and the client looks the name up again. This holds only within one server's data: when the client connects to a
//! server with other data, it clears the table (`Directory::data`). Ids of caches are valid for one run of the server,
//! so the number of the run is part of a cache's name in the table.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// Maximum number of names in the table of resolved names.
pub(crate) const MAX_NAMES: usize = 16_384;

/// Kind and name of an object on the server, which has an id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Name {
    Keyspace(String),
    Stream(String),
    /// Id of the stream, and name of its group.
    Group(u32, String),
    /// Number of the server's run, and name of the cache.
    Cache(u64, String),
}

impl Name {
    /// Name of the object, without its kind.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Keyspace(name) | Self::Stream(name) | Self::Group(_, name) | Self::Cache(_, name) => name,
        }
    }

    /// Code of the server's error for an id that no object of this kind has.
    pub(crate) fn missing(&self) -> &'static str {
        match self {
            Self::Keyspace(_) => "no_such_keyspace",
            Self::Stream(_) => "no_such_stream",
            Self::Group(..) => "no_such_group",
            Self::Cache(..) => "no_such_cache",
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Names(Mutex<NameTable>);

#[derive(Debug, Default)]
struct NameTable {
    /// Number of the server's data set in which all ids of the table are valid. A data set is all data of a server; a
    /// restored server has another one. The client numbers the data sets that it meets (`Directory::data`).
    data: u32,
    ids: HashMap<Name, u32>,
}

impl Names {
    /// Returns the id of a name in the server's data set number `data` (see `Directory::data`); `None` if the table has
    /// no such id.
    pub(crate) fn get(&self, name: &Name, data: u32) -> Option<u32> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.ids.get(name).copied().filter(|_| names.data == data)
    }

    /// Adds the id of a name, which was looked up in the server's data set number `data` (see `Directory::data`). Does
    /// nothing if the table already has ids of a later data set.
    pub(crate) fn put(&self, name: Name, id: u32, data: u32) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if data < names.data {
            return;
        }
        if data > names.data || names.ids.len() >= MAX_NAMES {
            names.ids.clear();
        }
        names.data = data;
        names.ids.insert(name, id);
    }

    /// Removes the name from the table of resolved names, if the table maps it to this id.
    pub(crate) fn forget(&self, name: &Name, id: u32) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if names.ids.get(name) == Some(&id) {
            names.ids.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_bound() {
        let names = Names::default();
        for id in 0..=MAX_NAMES as u32 {
            names.put(Name::Keyspace(id.to_string()), id, 0);
            assert_eq!(names.get(&Name::Keyspace(id.to_string()), 0), Some(id));
            assert!(names.0.lock().unwrap().ids.len() <= MAX_NAMES);
        }
        assert_eq!(names.get(&Name::Keyspace("0".to_owned()), 0), None);
    }

    #[test]
    fn ids_of_other_data_are_not_returned() {
        let (names, [a, b]) = (Names::default(), ["a", "b"].map(|name| Name::Keyspace(name.to_owned())));
        names.put(a.clone(), 5, 0);
        assert_eq!((names.get(&a, 0), names.get(&a, 1)), (Some(5), None));
        names.put(b.clone(), 5, 1);
        names.put(a.clone(), 5, 0);
        assert_eq!((names.get(&a, 1), names.get(&b, 1), names.get(&b, 0)), (None, Some(5), None));
    }
}
