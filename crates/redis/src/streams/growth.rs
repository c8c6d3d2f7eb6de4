//! Notes about the streams that may have got entries, for callers on this node that wait for entries.
//!
//! Owns: the notes from the apply of a command until they are taken. Does not own: the waiting callers. The notes
//! affect only which of them are woken, never an outcome.
//!
//! Invariant: a note is taken only after its entry is visible to readers. So a caller that registers, and then reads a
//! view without the entry, finds its key in a later note.

use std::{
    collections::hash_map::DefaultHasher,
    hash::Hasher,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use crate::command::Command;

/// Maximum number of keys in the notes that are not taken yet. With more, the notes say only that some streams have
/// grown.
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

/// Returns the hash by which [`GrownStreams`] names the key of a stream. It is the same in all calls of a process. Two
/// keys with one hash cost a needless wake.
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
pub struct GrowthNotes {
    /// Number of callers on this node that wait for entries.
    waiters: AtomicUsize,
    has_grown: AtomicBool,
    grown: Mutex<GrownStreams>,
}

impl GrowthNotes {
    /// Registers a caller that waits for entries.
    #[must_use]
    pub fn register(self: &Arc<Self>) -> GrowthWaiter {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        GrowthWaiter(Arc::clone(self))
    }

    /// Returns the notes, if a caller waits, and forgets them.
    #[must_use]
    pub fn take(&self) -> GrownStreams {
        if self.waiters.load(Ordering::SeqCst) == 0 || !self.has_grown.load(Ordering::Acquire) {
            return GrownStreams::None;
        }
        let mut grown = self.lock();
        self.has_grown.store(false, Ordering::Release);
        std::mem::take(&mut grown)
    }

    /// Notes, in the notes of the log record being applied, the keys of a command that was carried out.
    #[inline]
    pub fn note(&self, of_record: &mut GrownStreams, command: &Command, args: &[&[u8]]) {
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
    pub fn publish(&self, of_record: &mut GrownStreams) {
        if *of_record != GrownStreams::None {
            self.lock().merge(std::mem::take(of_record));
            self.has_grown.store(true, Ordering::Release);
        }
    }

    /// Notes that any stream may have got entries.
    pub fn note_all(&self) {
        self.publish(&mut GrownStreams::Any);
    }

    fn lock(&self) -> MutexGuard<'_, GrownStreams> {
        self.grown.lock().unwrap_or_else(PoisonError::into_inner)
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
