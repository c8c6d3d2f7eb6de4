//! Notes of the Redis streams to which executed commands may have added entries. The engine takes the notes and wakes
//! the callers on this node that wait for entries.
//!
//! Owns: the notes, from the execution of a command until the engine takes them. Does not own: the waiting callers. The
//! notes determine only which callers are woken, never an outcome.
//!
//! Invariant: a note can be taken only after its entry is visible to readers. So if a caller registers, and then reads
//! a view without the entry, a later note contains the key of that entry's stream.

use std::{
    collections::hash_map::DefaultHasher,
    hash::Hasher,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use crate::command::Command;

/// Maximum number of keys of grown streams that are remembered until the engine takes them. With more keys, only the
/// fact that any stream may have grown is remembered.
const MAX_KEYS: usize = 1024;

/// Redis streams that may have got entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GrownStreams {
    /// No stream can have got entries.
    #[default]
    None,
    /// The streams with keys of these [hashes](stream_key_hash), in any keyspace.
    Keys(Vec<u64>),
    /// Any stream may have got entries. Its key was not recorded, because no caller waited at that time, or because
    /// there were too many keys.
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

/// Returns the hash by which [`GrownStreams`] names the key of a stream. It is the same for all calls in one process.
/// If two keys have one hash, a caller is woken needlessly.
#[must_use]
pub fn stream_key_hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}

/// Returns true if a command can add an entry to a stream, or store a stream with entries under a key.
fn adds_entries(command: &Command) -> bool {
    matches!(command.name, "xadd" | "rename" | "renamenx" | "copy")
}

/// Notes of grown streams (streams with new entries) that the engine has not taken from a state machine yet.
#[derive(Debug, Default)]
pub struct GrowthNotes {
    /// Number of callers on this node that wait for entries of Redis streams.
    waiters: AtomicUsize,
    has_grown: AtomicBool,
    grown: Mutex<GrownStreams>,
}

impl GrowthNotes {
    /// Registers a caller that waits for entries of Redis streams. The registration ends when the caller drops the
    /// returned value.
    #[must_use]
    pub fn register(self: &Arc<Self>) -> GrowthWaiter {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        GrowthWaiter(Arc::clone(self))
    }

    /// If a caller waits for entries, removes and returns the streams that may have grown. Otherwise returns
    /// [`GrownStreams::None`].
    #[must_use]
    pub fn take(&self) -> GrownStreams {
        if self.waiters.load(Ordering::SeqCst) == 0 || !self.has_grown.load(Ordering::Acquire) {
            return GrownStreams::None;
        }
        let mut grown = self.lock();
        self.has_grown.store(false, Ordering::Release);
        std::mem::take(&mut grown)
    }

    /// Adds the keys to which a command may have added entries to `of_record`, which collects them for the log record
    /// being applied; if no caller waits, sets it to `Any`.
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

    /// Makes the grown streams of a log record available to [`take`](Self::take). Called once the record is visible to
    /// readers.
    pub fn publish(&self, of_record: &mut GrownStreams) {
        if *of_record != GrownStreams::None {
            self.lock().merge(std::mem::take(of_record));
            self.has_grown.store(true, Ordering::Release);
        }
    }

    /// Notes that any stream may have got entries, so that all waiting callers are woken.
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
