//! A cache of table blocks in memory.
//!
//! Owns: the choice of the blocks of open tables that stay in memory, bounded in bytes. Reading a cached block costs
//! one load from an array, and no hash, lock or shared counter. Does not own: reading blocks from files.
//!
//! Each table has a slot for each of its blocks. All cached blocks are in one queue, oldest first. When the bytes
//! exceed the bound, the block at the front is evicted. If it was read again since it entered the queue or was last
//! spared, it moves to the back of the queue instead (it is *spared*). So a scan of much data does not evict blocks
//! that are read repeatedly.
//!
//! The blocks of a dropped table leave their slots at once. Their entries stay in the long queue until they reach its
//! front, or until most entries of the queue belong to dropped tables. So dropping a table takes little time.
//!
//! Invariants, with the queue locked: a slot contains a block only if the slot's table and block number are in the
//! queue; the entries whose slots are empty are those of dropped tables, and `dead` counts them; `bytes` is at least
//! the total size of the blocks in the slots.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use arc_swap::{ArcSwapOption, Guard};

use super::block::DataBlock;

/// Maximum number of blocks that one insertion spares (does not evict) because they were read again. With a larger
/// number, evictions hit unused blocks more accurately, but the slowest insertion takes longer.
const MAX_SPARED: usize = 32;

/// Number of bytes of the cache that reading ahead leaves free for blocks that readers load.
pub(super) const ROOM_LEFT_BYTES: u64 = 1 << 20;

/// A cache of table blocks with bounded size; see the [module](self).
pub(super) struct BlockCache {
    capacity_bytes: u64,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    entries: VecDeque<(Arc<Slots>, u32)>,
    bytes: u64,
    /// Number of entries in the queue of cached blocks that belong to dropped tables.
    dead: usize,
}

/// Slots for the cached blocks of one table, indexed by the number of the block.
pub(super) struct Slots(Box<[ArcSwapOption<DataBlock>]>);

impl Slots {
    pub(super) fn new(blocks: usize) -> Self {
        Self((0..blocks).map(|_| ArcSwapOption::empty()).collect())
    }

    /// Returns the block with this number if it is in the cache, and marks it as read again.
    #[inline]
    pub(super) fn get(&self, number: usize) -> Guard<Option<Arc<DataBlock>>> {
        let block = self.0[number].load();
        if let Some(block) = &*block {
            block.mark_read_again();
        }
        block
    }

    /// Returns the block with this number if it is in the cache. Does not mark the block as read again.
    pub(super) fn peek(&self, number: usize) -> Option<Arc<DataBlock>> {
        self.0[number].load_full()
    }

    /// Returns true if the block with this number is in the cache. Does not mark the block as read again.
    pub(super) fn holds(&self, number: usize) -> bool {
        self.0[number].load().is_some()
    }
}

impl BlockCache {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, queue: Mutex::default() }
    }

    /// Returns the total bytes of memory of all cached blocks.
    pub(super) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// Returns true if reading ahead may insert `bytes` more bytes of blocks without causing an eviction.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.lock().bytes + bytes + ROOM_LEFT_BYTES <= self.capacity_bytes
    }

    /// Inserts a block into the cache, and evicts older blocks if there is not enough room. If another thread has
    /// inserted the same block before, that copy stays.
    pub(super) fn insert(&self, slots: &Arc<Slots>, number: usize, block: &Arc<DataBlock>) {
        let mut queue = self.lock();
        if slots.0[number].load().is_some() {
            return;
        }
        slots.0[number].store(Some(Arc::clone(block)));
        queue.entries.push_back((Arc::clone(slots), number as u32));
        queue.bytes += block.memory_bytes();
        queue.shrink_to(self.capacity_bytes);
    }

    /// Removes all blocks of a table from the cache. Called when the table is about to be dropped.
    pub(super) fn forget(&self, slots: &Arc<Slots>) {
        // An eviction may empty a slot at the same time. Each block is counted only by the one that takes it from the
        // slot.
        let held = slots.0.iter().filter(|slot| slot.load().is_some()).filter_map(|slot| slot.swap(None));
        let (blocks, bytes) = held.fold((0, 0), |(blocks, bytes), block| (blocks + 1, bytes + block.memory_bytes()));
        if blocks == 0 {
            return;
        }
        let mut queue = self.lock();
        queue.bytes -= bytes;
        queue.dead += blocks;
        queue.drop_dead();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn shrink_to(&mut self, bytes: u64) {
        let mut spared = 0;
        while self.bytes > bytes
            && let Some((slots, number)) = self.entries.pop_front()
        {
            let slot = &slots.0[number as usize];
            let was_read_again =
                spared < MAX_SPARED && slot.load().as_ref().is_some_and(|block| block.was_read_again());
            if was_read_again {
                spared += 1;
                self.entries.push_back((slots, number));
            } else if let Some(block) = slot.swap(None) {
                self.bytes -= block.memory_bytes();
            } else {
                self.dead = self.dead.saturating_sub(1);
            }
        }
    }

    /// Removes the entries of dropped tables from the queue of cached blocks, if they are more than half of the queue.
    fn drop_dead(&mut self) {
        if self.dead > self.entries.len() / 2 {
            self.entries.retain(|(slots, number)| slots.holds(*number as usize));
            self.dead = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::block::tests::block_of, *};

    fn block() -> Arc<DataBlock> {
        Arc::new(block_of(&[(b"key", Some(&[7; 1000]))]))
    }

    fn held(slots: &Slots) -> Vec<usize> {
        (0..slots.0.len()).filter(|number| slots.0[*number].load().is_some()).collect()
    }

    #[test]
    fn the_oldest_goes_unless_it_was_read_again() {
        let bytes = block().memory_bytes();
        let cache = BlockCache::new(3 * bytes);
        let slots = Arc::new(Slots::new(8));
        for number in 0..3 {
            cache.insert(&slots, number, &block());
        }
        assert!(slots.get(0).is_some() && slots.get(7).is_none());
        for number in 3..5 {
            cache.insert(&slots, number, &block());
        }
        assert_eq!(held(&slots), [0, 3, 4], "1 and 2 were not read again");
        cache.insert(&slots, 5, &block());
        assert_eq!(held(&slots), [0, 4, 5], "0 was not read again since it was spared, but 3 came before it");
        assert_eq!(cache.bytes(), 3 * bytes);
    }

    #[test]
    fn the_bound_holds_though_all_are_read_again() {
        let bytes = block().memory_bytes();
        let blocks = 2 * MAX_SPARED;
        let cache = BlockCache::new(blocks as u64 * bytes);
        let slots = Arc::new(Slots::new(2 * blocks));
        for number in 0..2 * blocks {
            cache.insert(&slots, number, &block());
            (0..2 * blocks).for_each(|number| drop(slots.get(number)));
            assert!(cache.bytes() <= blocks as u64 * bytes);
        }
        assert_eq!(held(&slots).len(), blocks);
    }

    #[test]
    fn a_block_inserted_twice_counts_once_and_a_forgotten_table_not_at_all() {
        let cache = BlockCache::new(1 << 20);
        let (one, other) = (Arc::new(Slots::new(2)), Arc::new(Slots::new(2)));
        cache.insert(&one, 0, &block());
        cache.insert(&one, 0, &block());
        cache.insert(&other, 1, &block());
        assert_eq!(cache.bytes(), 2 * block().memory_bytes());
        cache.forget(&one);
        assert_eq!((held(&one), held(&other)), (vec![], vec![1]));
        assert_eq!(cache.bytes(), block().memory_bytes());
        assert_eq!(cache.lock().entries.len(), 2, "half of the queue may be of dropped tables");
    }

    #[test]
    fn entries_of_dropped_tables_leave_the_queue_when_they_are_most_of_it_or_at_its_front() {
        let bytes = block().memory_bytes();
        let cache = BlockCache::new(4 * bytes);
        let tables: Vec<_> = (0..3).map(|_| Arc::new(Slots::new(4))).collect();
        for (table, number) in [(0, 0), (1, 1), (2, 2), (2, 3)] {
            cache.insert(&tables[table], number, &block());
        }
        cache.forget(&tables[0]);
        let counts = || {
            let queue = cache.lock();
            (queue.entries.len(), queue.dead, queue.bytes / bytes)
        };
        assert_eq!(counts(), (4, 1, 3));
        cache.forget(&tables[0]);
        assert_eq!(counts(), (4, 1, 3), "it had no blocks any more");
        cache.insert(&tables[1], 0, &block());
        cache.insert(&tables[1], 2, &block());
        assert_eq!(counts(), (4, 0, 4), "the dead entry was at the front, and one block was evicted");
        assert_eq!(held(&tables[1]), [0, 2]);
        cache.forget(&tables[2]);
        assert_eq!(counts(), (4, 2, 2));
        cache.forget(&tables[1]);
        assert_eq!(counts(), (0, 0, 0));
    }

    #[test]
    fn nothing_is_kept_without_room() {
        let cache = BlockCache::new(0);
        let slots = Arc::new(Slots::new(1));
        cache.insert(&slots, 0, &block());
        assert_eq!((held(&slots), cache.bytes()), (vec![], 0));
    }
}
