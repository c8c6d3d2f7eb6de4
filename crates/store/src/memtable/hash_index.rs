//! From a key's hash to its node, for point reads.
//!
//! Owns: an open-addressed table of node offsets that one writer fills and any number of readers probe
//! without a lock. It grows by doubling; the smaller tables stay until the memtable goes, because a
//! reader may still be in one.
//! Does not own: the keys. A probe asks its caller whether a node is the one.
//!
//! A slot is `hash << 32 | node offset`, 0 when free, and never changes once set. A key whose probe
//! would run longer than [`MAX_PROBES`] is left out, and from then on the table no longer claims that a
//! key is absent: its callers search the ordered index instead. So keys chosen to collide cost a
//! search each, never a long walk.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

const MIN_FIRST_SLOTS: usize = 1 << 10;
/// 128 KiB of slots: a memtable of few keys should not cost every read a miss of the processor's cache.
const MAX_FIRST_SLOTS: usize = 1 << 14;
/// A small arena's table begins with a slot for so many of its bytes.
const ARENA_BYTES_PER_FIRST_SLOT: usize = 512;
/// The largest table: a slot's place comes from 32 bits of hash.
const MAX_SLOTS: usize = 1 << 31;
const GENERATIONS: usize = (MAX_SLOTS / MIN_FIRST_SLOTS).ilog2() as usize + 1;
/// At a load of a half, one key in 10^10 would need more, unless somebody chose the keys.
const MAX_PROBES: usize = 128;

/// What a lookup found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// The node with that key.
    Found(u32),
    /// No node has that key.
    Absent,
    /// The table can't tell.
    Unknown,
}

/// See the module. What changes it belongs to the memtable's one writer.
pub(super) struct HashIndex {
    tables: [OnceLock<Box<[AtomicU64]>>; GENERATIONS],
    current: AtomicUsize,
    len: AtomicUsize,
    incomplete: AtomicBool,
}

impl HashIndex {
    /// A table for a memtable with an arena of so many bytes.
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

    /// How many keys.
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Bytes of all tables.
    pub(super) fn bytes(&self) -> usize {
        self.tables.iter().filter_map(OnceLock::get).map(|table| size_of_val(&**table)).sum()
    }

    #[inline]
    fn table(&self) -> &[AtomicU64] {
        self.tables[self.current.load(Ordering::Acquire)].get().expect("set before it became current")
    }

    /// Looks for the node of this hash for which `is_it` holds.
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

    /// The node whose key most probably has this hash; 0 if there is none.
    #[inline]
    pub(super) fn guess(&self, hash: u32) -> u32 {
        let table = self.table();
        table[hash as usize & (table.len() - 1)].load(Ordering::Acquire) as u32
    }

    /// Adds a node whose key is not in the table yet. The writer only.
    pub(super) fn insert(&self, hash: u32, node: u32) {
        let len = self.len.fetch_add(1, Ordering::Relaxed) + 1;
        if len * 2 > self.table().len() {
            self.grow();
        }
        self.put(self.table(), u64::from(hash) << 32 | u64::from(node));
    }

    /// Copies every slot into a table of twice the size.
    fn grow(&self) {
        let current = self.current.load(Ordering::Relaxed);
        if self.table().len() == MAX_SLOTS {
            return;
        }
        let old = self.table();
        let new = free_slots(old.len() * 2);
        for slot in old.iter().map(|slot| slot.load(Ordering::Relaxed)).filter(|slot| *slot != 0) {
            self.put(&new, slot);
        }
        let _ = self.tables[current + 1].set(new);
        self.current.store(current + 1, Ordering::Release);
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
    fn growing_keeps_every_key() {
        let index = HashIndex::with_slots(MIN_FIRST_SLOTS);
        let hash = |node: u32| node.wrapping_mul(0x9e37_79b9);
        for node in 1..=100_000 {
            index.insert(hash(node), node);
        }
        for node in 1..=100_000 {
            assert_eq!(index.find(hash(node), |found| found == node), Lookup::Found(node));
        }
        assert_eq!(index.find(hash(100_001), |_| false), Lookup::Absent);
    }
}
