//! Maps key hashes to nodes, for point reads.
//!
//! Owns: an open-addressed table of node offsets. One writer fills it, and any number of readers probe it without a
//! lock. It grows by doubling; another thread may allocate the next table in advance. Smaller tables stay allocated
//! until the memtable is dropped, because a reader may still use them. Does not own: the keys. A probe calls its caller
//! to compare a node's key.
//!
//! A slot is `hash << 32 | node offset`, 0 when free, and never changes after it is set. A key whose probe sequence
//! would be longer than [`MAX_PROBES`] is omitted from the table. After the first omission, the table no longer reports
//! keys as absent; callers search the ordered index instead. So if an attacker chooses keys that collide, each costs
//! one search, never a long probe sequence.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

const MIN_FIRST_SLOTS: usize = 1 << 10;
/// Maximum initial number of slots of a hash table, which take 128 KiB. A memtable with few keys should fit into the
/// processor's cache.
const MAX_FIRST_SLOTS: usize = 1 << 14;
/// Number of arena bytes for each initial slot of a hash table, if the arena is small.
const ARENA_BYTES_PER_FIRST_SLOT: usize = 512;
/// Maximum number of slots of a hash table, because a slot's index is computed from 32 bits of hash.
const MAX_SLOTS: usize = 1 << 31;
const GENERATIONS: usize = (MAX_SLOTS / MIN_FIRST_SLOTS).ilog2() as usize + 1;
/// Maximum length of a probe sequence in slots. In a table that is half full, one key in 10^10 would need more, unless
/// the keys are chosen to collide.
const MAX_PROBES: usize = 128;

/// Result of a lookup of a key in the hash index.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// Offset of the node with the key.
    Found(u32),
    /// No node of the memtable has the key.
    Absent,
    /// The hash index cannot decide if a node has the key; the caller must search the ordered index.
    Unknown,
}

/// A lock-free hash table of a memtable's nodes; see the [module](self). Only the memtable's writer may add nodes.
pub(super) struct HashIndex {
    tables: [OnceLock<Box<[AtomicU64]>>; GENERATIONS],
    current: AtomicUsize,
    len: AtomicUsize,
    incomplete: AtomicBool,
}

impl HashIndex {
    /// Creates a hash index for a memtable with an arena of `bytes` bytes.
    pub(super) fn for_arena(bytes: usize) -> Self {
        let slots = (bytes / ARENA_BYTES_PER_FIRST_SLOT).next_power_of_two();
        Self::with_slots(slots.clamp(MIN_FIRST_SLOTS, MAX_FIRST_SLOTS))
    }

    fn with_slots(slots: usize) -> Self {
        let index = Self {
            tables: [const { OnceLock::new() }; GENERATIONS],
            current: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            incomplete: AtomicBool::new(false),
        };
        let _ = index.tables[0].set(free_slots(slots));
        index
    }

    /// Returns the number of keys added, including those omitted because of collisions.
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns the bytes of memory of all hash tables: the current one, the smaller ones that it has replaced, and the
    /// next one if it is already allocated.
    pub(super) fn bytes(&self) -> usize {
        self.tables.iter().filter_map(OnceLock::get).map(|table| size_of_val(&**table)).sum()
    }

    #[inline]
    fn table(&self) -> &[AtomicU64] {
        self.tables[self.current.load(Ordering::Acquire)].get().expect("set before it became current")
    }

    /// Searches for the node with this hash for which `is_it` returns true.
    #[inline]
    pub(super) fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Lookup {
        let table = self.table();
        let mask = table.len() - 1;
        for probe in 0..MAX_PROBES {
            let slot = table[(hash as usize + probe) & mask].load(Ordering::Acquire);
            if slot == 0 {
                break;
            }
            if (slot >> 32) as u32 == hash && is_it(slot as u32) {
                return Lookup::Found(slot as u32);
            }
        }
        if self.incomplete.load(Ordering::Acquire) { Lookup::Unknown } else { Lookup::Absent }
    }

    /// Returns the offset of the node whose key most probably has this hash; 0 if there is none. The caller must
    /// compare the key.
    #[inline]
    pub(super) fn probable_node(&self, hash: u32) -> u32 {
        let table = self.table();
        table[hash as usize & (table.len() - 1)].load(Ordering::Acquire) as u32
    }

    /// Adds a node whose key is not in the hash index yet. Only the memtable's writer may call this function.
    pub(super) fn insert(&self, hash: u32, node: u32) {
        let len = self.len.load(Ordering::Relaxed) + 1;
        self.len.store(len, Ordering::Relaxed);
        if len * 2 > self.table().len() {
            self.grow();
        }
        self.put(self.table(), u64::from(hash) << 32 | u64::from(node));
    }

    /// Copies all slots to a hash table of twice the size.
    fn grow(&self) {
        let current = self.current.load(Ordering::Relaxed);
        let old = self.table();
        if old.len() == MAX_SLOTS {
            return;
        }
        self.add_table(current + 1, old.len() * 2);
        let new = self.tables[current + 1].get().expect("just added");
        for slot in old.iter().map(|slot| slot.load(Ordering::Relaxed)).filter(|slot| *slot != 0) {
            self.put(new, slot);
        }
        self.current.store(current + 1, Ordering::Release);
    }

    /// Allocates a table of twice the size, if the current one is too small for `keys` keys. Any thread may call this.
    /// The writer fills the new table later, when it grows the index.
    pub(super) fn prepare(&self, keys: usize) {
        let current = self.current.load(Ordering::Acquire);
        let slots = self.tables[current].get().expect("set before it became current").len();
        if slots < MAX_SLOTS && keys > slots / 2 {
            self.add_table(current + 1, 2 * slots);
        }
    }

    /// Adds a table, unless it exists already. Two threads may do this at the same time: neither waits, and the slower
    /// one drops the table that it has allocated.
    fn add_table(&self, number: usize, slots: usize) {
        if self.tables[number].get().is_none() {
            let _ = self.tables[number].set(free_slots(slots));
        }
    }

    fn put(&self, table: &[AtomicU64], slot: u64) {
        let mask = table.len() - 1;
        let home = (slot >> 32) as usize;
        for probe in 0..MAX_PROBES {
            let place = &table[(home + probe) & mask];
            if place.load(Ordering::Relaxed) == 0 {
                place.store(slot, Ordering::Release);
                return;
            }
        }
        self.incomplete.store(true, Ordering::Release);
    }
}

fn free_slots(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colliding_keys_make_it_unsure_and_never_wrong() {
        let index = HashIndex::with_slots(MIN_FIRST_SLOTS);
        for node in 1..=2 * MAX_PROBES as u32 {
            index.insert(7, node);
        }
        assert_eq!(index.find(7, |node| node == 5), Lookup::Found(5));
        assert_eq!(index.find(7, |node| node == 2 * MAX_PROBES as u32), Lookup::Unknown);
        assert_eq!(index.find(8_000, |_| false), Lookup::Unknown);
    }

    #[test]
    fn a_table_is_prepared_only_if_the_expected_keys_need_it() {
        let index = HashIndex::with_slots(MIN_FIRST_SLOTS);
        let before = index.bytes();
        index.prepare(MIN_FIRST_SLOTS / 2);
        assert_eq!(index.bytes(), before);
        index.prepare(MIN_FIRST_SLOTS / 2 + 1);
        index.prepare(usize::MAX);
        assert_eq!(index.bytes(), 3 * before);
        assert_eq!(index.find(1, |_| true), Lookup::Absent, "it is not in use yet");
    }

    #[test]
    fn growing_keeps_every_key() {
        let index = HashIndex::with_slots(MIN_FIRST_SLOTS);
        let hash = |node: u32| node.wrapping_mul(0x9e37_79b9);
        for node in 1..=100_000 {
            if node % 3_000 == 0 {
                index.prepare(100_000);
            }
            index.insert(hash(node), node);
        }
        for node in 1..=100_000 {
            assert_eq!(index.find(hash(node), |found| found == node), Lookup::Found(node));
        }
        assert_eq!(index.find(hash(100_001), |_| false), Lookup::Absent);
    }
}
