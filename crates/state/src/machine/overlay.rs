//! What earlier writes of the entry being applied made of keys, for the commands after them that read.
//!
//! An entry of blind commands keeps nothing here: it reads nothing and allocates nothing.
//! Invariant: while it is wanted, the overlay and the backend together say what the map will be.

use std::collections::BTreeMap;

use thalweg_types::{
    KeyspaceId,
    command::{Command, Commands},
    record::Malformed,
};

use crate::machine::live::LiveKey;

/// The keys that the entry wrote; `None` where it deleted.
#[derive(Debug)]
pub(crate) struct Overlay<'a> {
    keys: BTreeMap<KeyspaceId, BTreeMap<&'a [u8], Option<LiveKey<'a>>>>,
    /// The last command that reads keys: what it and those after it write need not be remembered.
    last_reader: usize,
    /// The command being run.
    number: usize,
}

impl<'a> Overlay<'a> {
    pub(crate) fn for_entry(payload: &[u8]) -> Self {
        let reads = |framed: &Result<(usize, &[u8]), Malformed>| {
            framed.as_ref().is_ok_and(|(_, bytes)| Command::has_conditions(bytes))
        };
        let readers = Commands::new(payload).enumerate().filter(|(_, framed)| reads(framed));
        Self { keys: BTreeMap::new(), last_reader: readers.last().map_or(0, |(number, _)| number), number: 0 }
    }

    /// Goes on to a command.
    #[inline]
    pub(crate) fn begin(&mut self, number: usize) {
        self.number = number;
    }

    /// Whether what the current command writes can matter to a later one.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.number < self.last_reader
    }

    pub(crate) fn set(&mut self, keyspace: KeyspaceId, key: &'a [u8], written: Option<LiveKey<'a>>) {
        self.keys.entry(keyspace).or_default().insert(key, written);
    }

    /// What the entry made of a key; `None` if it did not write it.
    pub(crate) fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<&Option<LiveKey<'a>>> {
        self.keys.get(&keyspace)?.get(key)
    }
}
