//! Notes about the Redis streams that may have got entries, for callers on this node that wait for entries.
//!
//! Owns: the notes from the apply of a command until the engine takes them. Does not own: the waiting callers. The notes affect
//! only who is woken, never an outcome.
//!
//! Invariant: a note is taken only after its entry is visible to readers. So a caller that registers, and then reads a view
//! without the entry, finds its key in a later note.

use std::{
    collections::hash_map::DefaultHasher,
    hash::Hasher,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use thalweg_redis::Command;

use crate::{machine::state_machine::Machine, sync::lock};

/// Maximum number of keys in the notes that are not taken yet. With more, the notes say only that some streams have grown.
const MAX_KEYS: usize = 1024;

/// Redis streams that may have got entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GrownStreams {
    /// No stream.
    #[default]
    None,
    /// The streams with keys of these [hashes](stream_key_hash), in any keyspace.
    Keys(Vec<u64>),
    /// Any streams: their keys were not noted, because no caller waited then, or because there were too many.
    Any,
}

impl GrownStreams {
    fn add(&mut self, hashes: impl IntoIterator<Item = u64>) {
        let mut keys = match std::mem::take(self) {
            Self::Any => {
                *self = Self::Any;
                return;
            }
            Self::None => Vec::new(),
            Self::Keys(keys) => keys,
        };
        keys.extend(hashes);
        *self = if keys.len() > MAX_KEYS { Self::Any } else { Self::Keys(keys) };
    }

    fn merge(&mut self, newer: Self) {
        match newer {
            Self::None => {}
            Self::Keys(keys) => self.add(keys),
            Self::Any => *self = Self::Any,
        }
    }
}

/// Returns the hash by which [`GrownStreams`] names the key of a stream. It is the same in all calls of a process. Two keys
/// with one hash cost a needless wake.
#[must_use]
pub fn stream_key_hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}

/// Returns true if a command can add an entry to a stream, or put a stream with entries at a key.
fn adds_entries(command: &Command) -> bool {
    matches!(command.name, "xadd" | "rename" | "renamenx" | "copy")
}

/// Notes of a machine that the engine has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct GrowthNotes {
    /// Number of callers on this node that wait for entries.
    waiters: AtomicUsize,
    has_grown: AtomicBool,
    grown: Mutex<GrownStreams>,
}

impl GrowthNotes {
    /// Notes, in the notes of the log record being applied, the keys of a command that was carried out.
    #[inline]
    pub(crate) fn note(&self, of_record: &mut GrownStreams, command: &Command, args: &[&[u8]]) {
        if !adds_entries(command) {
            return;
        }
        if self.waiters.load(Ordering::Acquire) == 0 {
            *of_record = GrownStreams::Any;
        } else {
            of_record.add(command.keys_of(args).map(stream_key_hash));
        }
    }

    /// Adds the notes of a log record that is visible to readers now.
    pub(crate) fn publish(&self, of_record: &mut GrownStreams) {
        if *of_record != GrownStreams::None {
            lock(&self.grown).merge(std::mem::take(of_record));
            self.has_grown.store(true, Ordering::Release);
        }
    }

    /// Notes that any stream may have got entries.
    pub(crate) fn note_all(&self) {
        self.publish(&mut GrownStreams::Any);
    }
}

/// Registration of a caller that waits for entries of Redis streams. Dropping it ends the registration.
#[derive(Debug)]
pub struct GrowthWaiter(Arc<GrowthNotes>);

impl Drop for GrowthWaiter {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Machine {
    /// Registers a caller that waits for entries of Redis streams. While any caller is registered, the keys of grown streams are
    /// noted.
    #[must_use]
    pub fn await_stream_growth(&self) -> GrowthWaiter {
        self.growth.waiters.fetch_add(1, Ordering::AcqRel);
        GrowthWaiter(Arc::clone(&self.growth))
    }

    /// Returns the Redis streams that may have got entries since the last call, all of them visible to readers. Without
    /// waiting callers, a call costs one atomic load and returns [`GrownStreams::None`].
    #[must_use]
    pub fn take_grown_streams(&self) -> GrownStreams {
        let notes = &self.growth;
        if notes.waiters.load(Ordering::Acquire) == 0 || !notes.has_grown.load(Ordering::Acquire) {
            return GrownStreams::None;
        }
        let mut grown = lock(&notes.grown);
        notes.has_grown.store(false, Ordering::Release);
        std::mem::take(&mut grown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_beyond_the_bound_name_no_keys() {
        let mut grown = GrownStreams::None;
        grown.add(0..MAX_KEYS as u64);
        assert!(matches!(&grown, GrownStreams::Keys(keys) if keys.len() == MAX_KEYS));
        grown.merge(GrownStreams::Keys(vec![7]));
        assert_eq!(grown, GrownStreams::Any);
        grown.add([1]);
        assert_eq!(grown, GrownStreams::Any);
    }
}
