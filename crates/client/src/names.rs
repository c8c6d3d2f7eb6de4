//! Names that have been resolved to ids.
//!
//! Owns: the table, which all handles of a client share. Bound: [`MAX_NAMES`]; above that the table is forgotten, and names
//! are asked for again. Ids are never used twice for other things of their kind, so one that is out of date is refused by
//! the server and then asked for anew; those of caches are of a run of the server, which is kept with them.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// Names that are remembered.
pub(crate) const MAX_NAMES: usize = 16_384;

/// What a name belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Name {
    Keyspace(String),
    Stream(String),
    /// Of a stream.
    Group(u32, String),
    /// With the server's run.
    Cache(u64, String),
}

#[derive(Debug, Default)]
pub(crate) struct Names(Mutex<HashMap<Name, u32>>);

impl Names {
    pub(crate) fn get(&self, name: &Name) -> Option<u32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }

    pub(crate) fn put(&self, name: Name, id: u32) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= MAX_NAMES {
            names.clear();
        }
        names.insert(name, id);
    }

    /// Forgets a name, if it has that id.
    pub(crate) fn forget(&self, name: &Name, id: u32) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if names.get(name) == Some(&id) {
            names.remove(name);
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
            names.put(Name::Keyspace(id.to_string()), id);
            assert_eq!(names.get(&Name::Keyspace(id.to_string())), Some(id));
            assert!(names.0.lock().unwrap().len() <= MAX_NAMES);
        }
        assert_eq!(names.get(&Name::Keyspace("0".to_owned())), None);
    }
}
