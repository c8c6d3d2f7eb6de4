//! The newest changes of the state, in memory, before they are written to the store on disk.
//!
//! Owns: [`Memtable`], with one [`MemtableWriter`] and any number of readers. A fixed `arena` holds keys and values. A
//! `hash_index` serves point reads, which never wait. A `skip_list` keeps the keys in order; `order` links new nodes to
//! it in groups, so a scan may have to wait a moment until the last group is linked. Each key's node has its versions,
//! newest first. Does not own: durability, flushing, the meaning of `Applied`, or the replacement of one memtable by
//! the next.
//!
//! Invariants: batches are numbered from 1. A batch becomes visible as a whole, by one store of its number, after
//! all its changes are in the index and are linked or queued for linking. A reader that has loaded the number sees
//! exactly the batches up to it. Within a batch the last change of a key wins: it becomes the newest version of
//! that batch and usually overwrites the previous one, which no reader has seen. Readers never read a batch that is
//! not visible, whatever number they request.

mod arena;
mod cursor;
mod hash_index;
mod order;
mod skip_list;
#[cfg(test)]
mod tests;

use std::{
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
};

use crate::backend::{Change, Direction, WriteBatch};
pub(crate) use arena::ArenaPool;
use arena::{ArenaWriter, HEAD_BYTES, MAX_HEIGHT, Needle, Node, max_entry_bytes, new_arena};
pub(crate) use cursor::MemtableCursor;
use hash_index::{HashIndex, Lookup};
use order::{Order, WriterFinger};
use skip_list::SkipList;

/// Number of a batch within one memtable. A reader sees all batches up to a number that it has loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchNumber(u32);

impl BatchNumber {
    /// A number above all batch numbers: a read with this number sees every visible batch.
    pub const MAX: Self = Self(u32::MAX);
}

/// Error returned when a batch does not fit into the memtable. No change of the batch was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memtable has no room for the batch")]
pub struct MemtableFull;

/// State of a key in a memtable: a value, or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// The key has this value.
    Value(&'a [u8]),
    /// The key was deleted; older memtables and tables are irrelevant.
    Deleted,
}

/// An ordered map in memory with versions of its values; see the [module](self). It is created together with its
/// [`MemtableWriter`].
pub struct Memtable {
    list: SkipList,
    order: Order,
    index: HashIndex,
    /// Number of the newest batch that readers can see.
    visible: AtomicU32,
    /// Number of bytes of the arena that are in use.
    used: AtomicUsize,
}

/// The only handle with which a memtable can be written.
pub struct MemtableWriter {
    memtable: Arc<Memtable>,
    arena: ArenaWriter,
    heights: Heights,
    finger: WriterFinger,
}

impl std::fmt::Debug for Memtable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memtable").field("keys", &self.len()).field("used_bytes", &self.used_bytes()).finish()
    }
}

impl MemtableWriter {
    /// Returns the memtable that this writer changes.
    #[must_use]
    pub fn memtable(&self) -> &Arc<Memtable> {
        &self.memtable
    }

    /// Returns true if the batch is certain to fit into the memtable.
    #[must_use]
    pub fn has_room_for(&self, batch: &WriteBatch) -> bool {
        self.arena.free() >= Memtable::bytes_for(batch) && self.memtable.visible().0 < u32::MAX - 1
    }

    /// Returns the number of bytes of the memtable's arena that are in use.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.arena.used()
    }

    /// Returns the size of the memtable's arena in bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        self.arena.capacity()
    }

    /// Returns the number of bytes that are free in the memtable's arena.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.arena.free()
    }

    /// Applies a batch to the memtable and makes it visible to readers.
    pub fn apply(&mut self, batch: &WriteBatch) -> Result<(), MemtableFull> {
        if !self.has_room_for(batch) {
            return Err(MemtableFull);
        }
        let Self { memtable, arena, heights, finger } = self;
        let number = memtable.visible.load(Ordering::Relaxed) + 1;
        let (list, order) = (&memtable.list, &memtable.order);
        let mut queue = None;
        for change in batch.changes() {
            let (key, value) = match change {
                Change::Put(key, value) => (key, Some(value)),
                Change::Delete(key) => (key, None),
            };
            let needle = Needle::new(key);
            let hash = needle.hash();
            if let Some(node) = memtable.node_of(&needle, hash, || order.settle_held(&mut queue, list)) {
                arena.push_version(node, number, value).map_err(|_| MemtableFull)?;
                continue;
            }
            let offset = arena.node(key, heights.draw(), number, value).map_err(|_| MemtableFull)?;
            let node = list.node(offset).expect("a node is never at 0");
            order.add(&mut queue, finger, list, node, &needle);
            memtable.index.insert(hash, offset);
        }
        drop(queue);
        memtable.used.store(arena.used(), Ordering::Relaxed);
        memtable.visible.store(number, Ordering::Release);
        Ok(())
    }
}

impl Memtable {
    /// Returns the maximum number of arena bytes that a batch needs.
    #[must_use]
    pub fn bytes_for(batch: &WriteBatch) -> usize {
        batch.len() * max_entry_bytes(0, 0) + batch.byte_len() + batch.len() * 2 * 8
    }

    /// Maximum number of arena bytes of a batch, as returned by [`bytes_for`](Self::bytes_for), that a memtable of any
    /// size can hold.
    pub const MAX_BATCH_BYTES: usize = u32::MAX as usize - HEAD_BYTES;

    /// Creates an empty memtable with an arena of at least `bytes` bytes, and its writer. The memory is allocated for
    /// this memtable alone.
    #[cfg(test)]
    #[must_use]
    pub fn create(bytes: usize) -> (Arc<Self>, MemtableWriter) {
        Self::create_in(&Arc::new(ArenaPool::new(bytes, 0)), bytes)
    }

    /// Creates an empty memtable with an arena of at least `bytes` bytes, and its writer. The arena's memory comes from
    /// the pool and returns to the pool. Newly allocated memory is touched only as the memtable fills.
    #[must_use]
    pub fn create_in(pool: &Arc<ArenaPool>, bytes: usize) -> (Arc<Self>, MemtableWriter) {
        let (arena, mut writer) = new_arena(pool, bytes);
        let head = writer.node(&[], MAX_HEIGHT, 0, None).expect("room for the head was added");
        let list = SkipList::new(arena, head);
        let memtable = Arc::new(Self {
            order: Order::new(&list),
            list,
            index: HashIndex::for_arena(writer.capacity()),
            visible: AtomicU32::new(0),
            used: AtomicUsize::new(writer.used()),
        });
        let finger = Order::writer_finger(&memtable.list);
        let writer = MemtableWriter { memtable: Arc::clone(&memtable), arena: writer, heights: Heights::new(), finger };
        (memtable, writer)
    }

    /// Makes the kernel provide the memory of these bytes of the arena now, so that the writer does not wait for it
    /// later. Does not change the contents. Any thread may call this.
    pub fn provide(&self, bytes: std::ops::Range<usize>) {
        self.list.arena().provide(bytes);
    }

    /// Returns true if keys are queued that are not linked into the key order yet.
    #[inline]
    #[must_use]
    pub fn has_queued_keys(&self) -> bool {
        self.order.has_queued()
    }

    /// Links queued keys into the key order, so that the writer and scans need not do it. Any thread may call this.
    pub fn settle(&self) {
        self.order.settle(&self.list);
    }

    /// Allocates the next hash table in advance, if the number of keys will probably exceed the current one. Any thread
    /// may call this.
    pub fn prepare_index(&self) {
        let (used, capacity) = (self.used_bytes(), self.list.arena().capacity());
        let expected = (self.len() as u128 * capacity as u128 / used.max(1) as u128) as usize;
        self.index.prepare(expected);
    }

    /// Returns the node of a key, even if none of its versions is visible. The function `settle` links the queued nodes
    /// into the key order; it is called only if the hash index cannot answer.
    #[inline]
    fn node_of(&self, needle: &Needle<'_>, hash: u32, settle: impl FnOnce()) -> Option<Node<'_>> {
        let is_it = |offset| self.list.node(offset).is_some_and(|node| node.compare(needle).is_eq());
        match self.index.find(hash, is_it) {
            Lookup::Found(offset) => self.list.node(offset),
            Lookup::Absent => None,
            Lookup::Unknown => {
                settle();
                self.list.find(needle)
            }
        }
    }

    /// Returns the number of the newest batch that readers can see.
    #[inline]
    #[must_use]
    pub fn visible(&self) -> BatchNumber {
        BatchNumber(self.visible.load(Ordering::Acquire))
    }

    /// Returns the smaller of `upto` and the number of the newest visible batch. Later batches are still being written
    /// and must not be read.
    #[inline]
    fn complete(&self, upto: BatchNumber) -> u32 {
        upto.min(self.visible()).0
    }

    /// Returns the newest entry (value or delete) of a key, up to batch `upto`; `None` if no batch up to `upto`
    /// contains the key.
    #[inline]
    #[must_use]
    pub fn get(&self, key: &[u8], upto: BatchNumber) -> Option<Entry<'_>> {
        if self.is_empty() {
            return None;
        }
        let upto = self.complete(upto);
        let needle = Needle::new(key);
        let version = self.node_of(&needle, needle.hash(), || self.order.settle(&self.list))?.version_at(upto)?;
        Some(version.value().map_or(Entry::Deleted, Entry::Value))
    }

    /// Loads into the processor's cache the memory that reads of these keys will need: slots of the hash index, then
    /// nodes, then versions. Loads of the same kind don't depend on each other, so the processor waits for all keys'
    /// loads together. A read of a single key waits for each load in turn, which is most of the read's cost in a large
    /// memtable.
    pub fn warm(&self, keys: &[&[u8]]) {
        const AT_ONCE: usize = 16;
        if self.is_empty() {
            return;
        }
        for keys in keys.chunks(AT_ONCE) {
            let mut nodes = [0; AT_ONCE];
            for (node, key) in nodes.iter_mut().zip(keys) {
                *node = self.index.probable_node(Needle::new(key).hash());
            }
            let versions = nodes.map(|node| self.list.node(node).and_then(|node| node.version_at(u32::MAX)));
            std::hint::black_box(versions.map(|version| version.map(arena::Version::batch)));
        }
    }

    /// Iterates over the keys within the bounds, each with its newest entry up to batch `upto`.
    #[must_use]
    pub fn range<'a>(
        &'a self,
        lower: Bound<&'a [u8]>,
        upper: Bound<&'a [u8]>,
        direction: Direction,
        upto: BatchNumber,
    ) -> Range<'a> {
        Range::new(self, lower, upper, direction, upto)
    }

    /// Iterates over all keys in ascending order, each with its newest entry up to batch `upto`.
    #[must_use]
    pub fn iter(&self, upto: BatchNumber) -> Range<'_> {
        let upto = self.complete(upto);
        self.order.settle(&self.list);
        Range { list: &self.list, next: self.list.first(), direction: Direction::Forward, end: End::None, upto }
    }

    /// Iterates over the newest change (put or delete) of each key, in ascending order of the keys.
    pub fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        self.iter(BatchNumber::MAX).map(|(key, entry)| match entry {
            Entry::Value(value) => Change::Put(key, value),
            Entry::Deleted => Change::Delete(key),
        })
    }

    /// Returns the number of keys in the memtable, including deleted ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns true if the memtable contains no key, not even a deleted one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes of the arena that are in use.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes of memory that the memtable uses, including its hash index.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.used_bytes() + self.index.bytes()
    }
}

/// An iterator over the keys of a memtable and their entries. The iterator borrows from the memtable and allocates
/// nothing.
pub struct Range<'a> {
    list: &'a SkipList,
    next: Option<Node<'a>>,
    direction: Direction,
    end: End<'a>,
    upto: u32,
}

/// Bound at which an iteration over keys ends: the upper bound if the keys ascend, the lower bound if they descend.
enum End<'a> {
    None,
    Included(Needle<'a>),
    Excluded(Needle<'a>),
}

impl<'a> End<'a> {
    fn new(bound: Bound<&'a [u8]>) -> Self {
        match bound {
            Bound::Unbounded => Self::None,
            Bound::Included(key) => Self::Included(Needle::new(key)),
            Bound::Excluded(key) => Self::Excluded(Needle::new(key)),
        }
    }
}

impl<'a> Range<'a> {
    fn new(
        memtable: &'a Memtable,
        lower: Bound<&'a [u8]>,
        upper: Bound<&'a [u8]>,
        direction: Direction,
        upto: BatchNumber,
    ) -> Self {
        let (list, upto) = (&memtable.list, memtable.complete(upto));
        memtable.order.settle(list);
        let (next, end) = match direction {
            Direction::Forward => (first_from(list, lower), End::new(upper)),
            Direction::Reverse => (last_to(list, upper), End::new(lower)),
        };
        Self { list, next, direction, end, upto }
    }

    #[inline]
    fn is_past_end(&self, node: Node<'_>) -> bool {
        let (order, inclusive) = match &self.end {
            End::None => return false,
            End::Included(needle) => (node.compare(needle), true),
            End::Excluded(needle) => (node.compare(needle), false),
        };
        match self.direction {
            _ if order.is_eq() => !inclusive,
            Direction::Forward => order.is_gt(),
            Direction::Reverse => order.is_lt(),
        }
    }
}

impl<'a> Iterator for Range<'a> {
    type Item = (&'a [u8], Entry<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let node = self.next?;
            if self.is_past_end(node) {
                self.next = None;
                return None;
            }
            self.next = match self.direction {
                Direction::Forward => node.next(0),
                Direction::Reverse => self.list.before(node),
            };
            if let Some(version) = node.version_at(self.upto) {
                return Some((node.key(), version.value().map_or(Entry::Deleted, Entry::Value)));
            }
        }
    }
}

fn first_from<'a>(list: &'a SkipList, lower: Bound<&[u8]>) -> Option<Node<'a>> {
    match lower {
        Bound::Unbounded => list.first(),
        Bound::Included(key) => list.lower_bound(&Needle::new(key)),
        Bound::Excluded(key) => {
            let needle = Needle::new(key);
            let node = list.lower_bound(&needle)?;
            if node.compare(&needle).is_eq() { node.next(0) } else { Some(node) }
        }
    }
}

fn last_to<'a>(list: &'a SkipList, upper: Bound<&[u8]>) -> Option<Node<'a>> {
    match upper {
        Bound::Unbounded => list.last(),
        Bound::Included(key) => list.upper_bound(&Needle::new(key), true),
        Bound::Excluded(key) => list.upper_bound(&Needle::new(key), false),
    }
}

/// A generator of random heights for skip list nodes: each level has a quarter of the nodes of the level below. The
/// sequence of heights is always the same, so that a run is repeatable.
struct Heights(u64);

impl Heights {
    fn new() -> Self {
        Self(0x2545_f491_4f6c_dd1d)
    }

    #[inline]
    fn draw(&mut self) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let zeroes = (self.0 >> 20).trailing_zeros() as usize;
        (1 + zeroes / 2).min(MAX_HEIGHT)
    }
}
