//! Ledger of a run's writes, key by key. It determines the lowest and the highest version that a read may return.
//!
//! Owns: the version of each write, the acknowledged versions, and the inserted keys. Does not own: the values
//! ([`super::Records`]).
//!
//! The *floor* of a key is the lowest version that a read may return, and `issued` is the highest one: the version of
//! the last write that was sent. Invariant: `floor <= issued`. Every version that a read returns lies between the floor
//! when the read was sent and the issued version when its reply arrived. The acknowledgement of a write raises the
//! floor to the write's version, but only if no other write of the key was in progress when the write was sent: then
//! all earlier versions are overwritten. A write that was sent while another one was in progress does not raise the
//! floor, because the server may have performed the two in either order. A write without an acknowledgement stays in
//! progress, and the floor of its key stays where it is.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Number of keys whose histories are allocated together.
const CHUNK: u64 = 1 << 16;
/// Maximum number of keys, both loaded and inserted.
const MAX_KEYS: u64 = 1 << 30;

/// Ledger of the writes to all keys of a benchmark run.
#[derive(Debug)]
pub struct Ledger {
    chunks: Vec<OnceLock<Box<[Mutex<History>]>>>,
    /// Index of the next key to insert.
    next: AtomicU64,
    /// All keys below this index have a value. `stored <= next`.
    stored: AtomicU64,
    /// Indices of inserted keys above `stored`. The insert of a lower key is still in progress.
    ahead: Mutex<BTreeSet<u64>>,
}

/// Versions of one key: the version of the last write that was sent, and the lowest version that a read may return.
#[derive(Debug, Default)]
struct History {
    /// Version of the last write that was sent; 0 before the first.
    issued: u32,
    /// Number of writes that were sent and are not acknowledged.
    in_progress: u32,
    /// Lowest version that a read may return if it is sent now.
    floor: u32,
}

/// A write of a key that is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Version of the key that this write stores.
    pub version: u32,
    /// Lowest version of the key that reads may return once this write is acknowledged; 0 if the write does not change
    /// it.
    floor: u32,
}

impl Ledger {
    /// Creates the ledger of the keys `0..keys`. They must be loaded before any read.
    pub fn new(keys: u64) -> Self {
        let chunks = (0..MAX_KEYS / CHUNK).map(|_| OnceLock::new()).collect();
        Self { chunks, next: keys.into(), stored: keys.into(), ahead: Mutex::default() }
    }

    /// Registers that a write of a key is about to be sent. Returns the write with its version.
    pub fn begin(&self, index: u64) -> Write {
        let mut history = self.history(index);
        history.issued += 1;
        let version = history.issued;
        let floor = if history.in_progress == 0 { version } else { 0 };
        history.in_progress += 1;
        Write { version, floor }
    }

    /// Registers that a write of a key was acknowledged.
    pub fn end(&self, index: u64, write: Write) {
        let mut history = self.history(index);
        history.in_progress -= 1;
        history.floor = history.floor.max(write.floor);
    }

    /// Returns the lowest version that a read of this key may return if it is sent now.
    pub fn floor(&self, index: u64) -> u32 {
        self.history(index).floor
    }

    /// Returns the highest version of this key for which a write was sent.
    pub fn issued(&self, index: u64) -> u32 {
        self.history(index).issued
    }

    /// Reserves a key that was not used before. Returns its index. The caller inserts it.
    pub fn reserve(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Registers that the insert of a reserved key was acknowledged.
    pub fn inserted(&self, index: u64) {
        let mut ahead = lock(&self.ahead);
        ahead.insert(index);
        let mut stored = self.stored.load(Ordering::Relaxed);
        while ahead.first() == Some(&stored) {
            ahead.pop_first();
            stored += 1;
        }
        self.stored.store(stored, Ordering::Release);
    }

    /// Returns the lowest index of a key that may have no value yet. All keys below this index have a value.
    pub fn stored(&self) -> u64 {
        self.stored.load(Ordering::Acquire)
    }

    fn history(&self, index: u64) -> MutexGuard<'_, History> {
        assert!(index < MAX_KEYS, "a run has at most {MAX_KEYS} keys");
        let chunk = self.chunks[(index / CHUNK) as usize]
            .get_or_init(|| (0..CHUNK).map(|_| Mutex::new(History::default())).collect());
        lock(&chunk[(index % CHUNK) as usize])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledged_write_raises_the_floor() {
        let ledger = Ledger::new(10);
        assert_eq!((ledger.floor(3), ledger.issued(3)), (0, 0));
        let write = ledger.begin(3);
        assert_eq!((write.version, ledger.floor(3), ledger.issued(3)), (1, 0, 1));
        ledger.end(3, write);
        assert_eq!((ledger.floor(3), ledger.issued(3), ledger.floor(4)), (1, 1, 0));
    }

    #[test]
    fn writes_that_overlap_raise_the_floor_only_as_far_as_is_sure() {
        let ledger = Ledger::new(10);
        let [first, second] = [ledger.begin(3), ledger.begin(3)];
        ledger.end(3, second);
        assert_eq!(ledger.floor(3), 0, "the first may be applied last");
        let third = ledger.begin(3);
        ledger.end(3, third);
        assert_eq!(ledger.floor(3), 0, "the first is still in progress");
        ledger.end(3, first);
        assert_eq!((ledger.floor(3), ledger.issued(3)), (1, 3), "any of the three may be the last");
        let fourth = ledger.begin(3);
        ledger.end(3, fourth);
        assert_eq!(ledger.floor(3), 4);
    }

    #[test]
    fn keys_count_as_stored_in_order() {
        let ledger = Ledger::new(100_000);
        let [first, second, third] = [ledger.reserve(), ledger.reserve(), ledger.reserve()];
        assert_eq!((first, third, ledger.stored()), (100_000, 100_002, 100_000));
        ledger.inserted(second);
        ledger.inserted(third);
        assert_eq!(ledger.stored(), 100_000, "the first is missing");
        ledger.inserted(first);
        assert_eq!(ledger.stored(), 100_003);
    }
}
