//! The memory of a memtable.
//!
//! Owns: one allocation of fixed capacity, the layout of nodes and versions in it, and all unsafe reads and writes of
//! them. All other code of the memtable is safe code over [`Node`] and [`Version`]. Does not own: the order of keys,
//! hashing, or the visibility of batches.
//!
//! ```text
//! node    := tower | newest u32 | prev u32 | key_len u16 | height u8 | 0 u8 | next[0] u32 | key, padded
//! tower   := next[height - 1] .. next[1], u32 each, padded in front to 8 bytes
//! version := batch u32 | older u32 | value_len u32 | value
//! ```
//! The offset of a node is the offset of its field `newest`; the offset of a version is that of its field `batch`. All
//! these offsets are multiples of 8, and offset 0 means "none". Keys are padded with zeroes to a multiple of 8 bytes,
//! so that they compare a word at a time.
//!
//! Invariants that all the unsafe code in this file depends on:
//! 1. Offsets come only from [`ArenaWriter`], of which there is one per arena. So bytes are reserved once and never
//!    again until the arena is dropped.
//! 2. A node and its first version are written completely before the node's offset is stored anywhere. Stores of
//!    offsets are `Release`, loads `Acquire`. So a thread that loads an offset sees the bytes at it.
//! 3. Afterwards only `newest`, `prev` and the `next`s change, and they are atomics. While a batch is being
//!    written, the length and value of its versions can also change. Readers of such a version read only its batch
//!    and `older`, which don't change, because the memtable shows them complete batches only.

use rustix::mm::{Advice, madvise};
use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    cmp::Ordering as Order,
    ptr::NonNull,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

/// Number of levels of the skip list. A quarter of the nodes of each level are also on the next: enough for 4^12 keys.
pub(super) const MAX_HEIGHT: usize = 12;

const ALIGN: usize = 8;
/// Size of a huge page in bytes. By default the kernel provides new memory in pages of 4 KiB, each at the cost of a
/// page fault, which slows down a put. On request the kernel provides pages of this size instead.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Minimum size in bytes of an arena that uses huge pages. Smaller arenas use small pages, so that a memtable does not
/// take far more memory than configured.
const HUGE_FROM_BYTES: usize = 8 * HUGE_PAGE_BYTES;
const NODE_HEADER_BYTES: usize = 16;
const VERSION_HEADER_BYTES: usize = 12;
const TOMBSTONE: u32 = u32::MAX;
const NEWEST: usize = 0;
const PREV: usize = 4;
const KEY_LEN: usize = 8;
const HEIGHT: usize = 10;
const NEXT: usize = 12;
const OLDER: usize = 4;
const VALUE_LEN: usize = 8;

const _: () = assert!(NEXT + size_of::<AtomicU32>() == NODE_HEADER_BYTES);
const _: () = assert!(VALUE_LEN + 4 == VERSION_HEADER_BYTES);
const _: () = assert!(NODE_HEADER_BYTES.is_multiple_of(ALIGN));

/// Returns the maximum number of arena bytes that one change needs, for any height of the key's node.
pub(super) fn max_entry_bytes(key_len: usize, value_len: usize) -> usize {
    tower_bytes(MAX_HEIGHT) + NODE_HEADER_BYTES + padded(key_len) + version_bytes(value_len)
}

/// Number of arena bytes taken by the head node of the skip list, and by the space that makes offset 0 unused.
pub(super) const HEAD_BYTES: usize =
    ALIGN + padded((MAX_HEIGHT - 1) * 4) + NODE_HEADER_BYTES + padded(VERSION_HEADER_BYTES);

const fn padded(len: usize) -> usize {
    len.next_multiple_of(ALIGN)
}

const fn tower_bytes(height: usize) -> usize {
    padded((height - 1) * size_of::<AtomicU32>())
}

const fn version_bytes(value_len: usize) -> usize {
    padded(VERSION_HEADER_BYTES + value_len)
}

/// A memory allocation. Its bytes are uninitialised, or have the contents of an earlier arena.
struct Memory {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a `Memory` owns its allocation; moving it to another thread moves the allocation.
unsafe impl Send for Memory {}

impl Memory {
    fn new(layout: Layout) -> Self {
        assert!(layout.size() > 0);
        // SAFETY: the layout is not empty.
        let Some(base) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        if layout.align() == HUGE_PAGE_BYTES {
            // A kernel without huge pages returns an error; small pages work too.
            // SAFETY: advice about the allocation's pages; it changes no byte of them.
            let _ = unsafe { madvise(base.as_ptr().cast(), layout.size(), Advice::LinuxHugepage) };
        }
        Self { base, layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `base` was allocated with this layout, and nothing refers to it any more.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// A pool that keeps the memory of dropped arenas for new arenas, because the first write to new pages costs more than
/// all other work of a put.
pub struct ArenaPool {
    layout: Layout,
    max_spare: usize,
    spare: Mutex<Vec<Memory>>,
}

impl ArenaPool {
    /// Creates a pool of arenas for `bytes` bytes of changes each. The pool keeps the memory of at most `max_spare`
    /// unused arenas.
    #[must_use]
    pub fn new(bytes: usize, max_spare: usize) -> Self {
        Self { layout: layout(bytes.saturating_add(HEAD_BYTES)), max_spare, spare: Mutex::default() }
    }

    /// Returns the number of bytes that the pool keeps for new arenas.
    #[must_use]
    pub fn spare_bytes(&self) -> usize {
        self.lock().len() * self.layout.size()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Memory>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, capacity: usize) -> Memory {
        if capacity > self.layout.size() {
            return Memory::new(layout(capacity));
        }
        let spare = self.lock().pop();
        spare.unwrap_or_else(|| Memory::new(self.layout))
    }

    fn give_back(&self, memory: Memory) {
        let mut spare = self.lock();
        if memory.layout == self.layout && spare.len() < self.max_spare {
            spare.push(memory);
        }
    }
}

fn layout(capacity: usize) -> Layout {
    let capacity = capacity.clamp(HEAD_BYTES, u32::MAX as usize);
    let align = if capacity < HUGE_FROM_BYTES { ALIGN } else { HUGE_PAGE_BYTES };
    Layout::from_size_align(capacity, align).expect("at most 4 GiB")
}

/// An arena: a block of memory of fixed size. The memory returns to its pool when the arena is dropped.
pub(super) struct Arena {
    base: NonNull<u8>,
    layout: Layout,
    /// The allocation into which `base` points; `None` only while the arena is being dropped.
    memory: Option<Memory>,
    pool: Arc<ArenaPool>,
}

// SAFETY: the arena alone owns the memory. Shared access is by plain reads of bytes that no longer change and by
// atomics (invariants 2 and 3); the only writer is the one `ArenaWriter` (invariant 1).
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Drop for Arena {
    fn drop(&mut self) {
        // No borrow of `self` outlives this drop, so no thread reads the memory any more.
        if let Some(memory) = self.memory.take() {
            self.pool.give_back(memory);
        }
    }
}

/// Writer that reserves bytes of an arena and writes them. There is exactly one writer per arena.
pub(super) struct ArenaWriter {
    arena: Arc<Arena>,
    used: usize,
}

/// Error returned when an arena (the memory of a memtable) has not enough room. No bytes were written.
#[derive(Debug)]
pub(super) struct ArenaFull;

/// Creates an arena with room for a head node and `bytes` of changes, and its writer. The total is at most
/// `u32::MAX` bytes, so that offsets fit.
pub(super) fn new_arena(pool: &Arc<ArenaPool>, bytes: usize) -> (Arc<Arena>, ArenaWriter) {
    let memory = pool.take(bytes.saturating_add(HEAD_BYTES).min(u32::MAX as usize));
    let (base, layout) = (memory.base, memory.layout);
    let arena = Arc::new(Arena { base, layout, memory: Some(memory), pool: Arc::clone(pool) });
    (Arc::clone(&arena), ArenaWriter { arena, used: ALIGN })
}

impl ArenaWriter {
    /// Returns the number of bytes of the arena reserved so far.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Returns the size of the arena in bytes, reserved or not.
    pub(super) fn capacity(&self) -> usize {
        self.arena.layout.size()
    }

    /// Returns the number of bytes of the arena that are not reserved yet.
    pub(super) fn free(&self) -> usize {
        self.arena.layout.size() - self.used
    }

    /// Writes a node for a key with its first version; `value: None` writes a delete. Returns the offset of the node,
    /// which is not linked into the skip list or the hash index yet.
    pub(super) fn node(
        &mut self,
        key: &[u8],
        height: usize,
        batch: u32,
        value: Option<&[u8]>,
    ) -> Result<u32, ArenaFull> {
        debug_assert!((1..=MAX_HEIGHT).contains(&height));
        let key_len = u16::try_from(key.len()).map_err(|_| ArenaFull)?;
        let tower = tower_bytes(height);
        let node_bytes = NODE_HEADER_BYTES + padded(key.len());
        let start = self.reserve(tower + node_bytes + version_bytes(value.map_or(0, <[u8]>::len)))?;
        let node = start + tower;
        let version = node + node_bytes;
        // SAFETY: all writes are in the range just reserved, whose offset no other thread has (invariant 1).
        unsafe {
            self.arena.at(start).write_bytes(0, tower + NODE_HEADER_BYTES);
            self.arena.at(node + KEY_LEN).cast::<u16>().write(key_len);
            self.arena.at(node + HEIGHT).write(height as u8);
            self.arena.at(node + NEWEST).cast::<u32>().write(version as u32);
            if !key.is_empty() {
                // The last word is zeroed first, so that its padding is zero.
                self.arena.at(node + node_bytes - ALIGN).cast::<u64>().write(0);
                self.arena.at(node + NODE_HEADER_BYTES).copy_from_nonoverlapping(key.as_ptr(), key.len());
            }
            self.write_version(version, batch, 0, value);
        }
        Ok(node as u32)
    }

    /// Writes a new version of a key in front of the older versions of its node, and publishes it. If the node's newest
    /// version belongs to the same, unfinished batch and has enough room, overwrites that version instead, because no
    /// reader will ever see it.
    pub(super) fn push_version(&mut self, node: Node<'_>, batch: u32, value: Option<&[u8]>) -> Result<(), ArenaFull> {
        let newest = node.atomic(NEWEST);
        let older = newest.load(Ordering::Relaxed);
        let bytes = version_bytes(value.map_or(0, <[u8]>::len));
        if let Some(version) = node.version(older)
            && version.batch() == batch
            && bytes <= version_bytes(version.value().map_or(0, <[u8]>::len))
        {
            // SAFETY: the version was reserved with at least `bytes` bytes. Readers don't read its length and value
            // (invariant 3), and this writer has exclusive access.
            unsafe { self.write_value(older as usize, value) };
            return Ok(());
        }
        let version = self.reserve(bytes)?;
        // SAFETY: the range was just reserved, so no other thread has its offset (invariant 1).
        unsafe { self.write_version(version, batch, older, value) };
        newest.store(version as u32, Ordering::Release);
        Ok(())
    }

    fn reserve(&mut self, bytes: usize) -> Result<usize, ArenaFull> {
        let start = self.used;
        let end = start.checked_add(bytes).filter(|end| *end <= self.arena.layout.size()).ok_or(ArenaFull)?;
        self.used = end;
        Ok(start)
    }

    /// Writes a version (batch number, offset of the older version, value) at byte `at` of the arena.
    ///
    /// # Safety
    /// `[at, at + version_bytes(value.len()))` was reserved and is not yet published.
    unsafe fn write_version(&self, at: usize, batch: u32, older: u32, value: Option<&[u8]>) {
        // SAFETY: see above; the caller's range covers the header and the value.
        unsafe {
            self.arena.at(at).cast::<u32>().write(batch);
            self.arena.at(at + OLDER).cast::<u32>().write(older);
            self.write_value(at, value);
        }
    }

    /// Writes the length and the value of the version at byte `at` of the arena; `None` writes a delete.
    ///
    /// # Safety
    /// `[at, at + version_bytes(value.len()))` was reserved, and no thread reads the length and value of the
    /// version there.
    unsafe fn write_value(&self, at: usize, value: Option<&[u8]>) {
        // SAFETY: see above; the caller's range covers the header and the value.
        unsafe {
            self.arena.at(at + VALUE_LEN).cast::<u32>().write(value.map_or(TOMBSTONE, |value| value.len() as u32));
            if let Some(value) = value {
                self.arena.at(at + VERSION_HEADER_BYTES).copy_from_nonoverlapping(value.as_ptr(), value.len());
            }
        }
    }
}

impl Arena {
    /// Returns the size of the arena in bytes.
    pub(super) fn capacity(&self) -> usize {
        self.layout.size()
    }

    /// Makes the kernel provide the huge pages of a range of bytes now, one page at a time, because other threads wait
    /// for the kernel's lock of the address space during each request. Does nothing for small arenas, which have no
    /// huge pages. Kernels before 5.14 refuse the request; a page is then provided when it is first written.
    pub(super) fn provide(&self, bytes: std::ops::Range<usize>) {
        if self.layout.align() != HUGE_PAGE_BYTES {
            return;
        }
        let end = bytes.end.min(self.layout.size());
        let mut at = bytes.start / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        while at < end {
            let len = HUGE_PAGE_BYTES.min(self.layout.size() - at);
            // SAFETY: `[at, at + len)` is within the allocation, which lives as long as `self`. The kernel rounds the
            // length up to whole pages; the advice changes no byte of any page.
            let provided = unsafe { madvise(self.at(at).cast(), len, Advice::LinuxPopulateWrite) };
            if provided.is_err() {
                return;
            }
            at += HUGE_PAGE_BYTES;
        }
    }

    /// Returns a pointer to the byte of the arena at this offset.
    ///
    /// # Safety
    /// `offset` is at most the capacity.
    #[inline]
    unsafe fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.layout.size());
        // SAFETY: within, or one past, the allocation.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Returns the node at an offset that [`ArenaWriter::node`] returned for this arena; `None` for 0.
    #[inline]
    pub(super) fn node(&self, offset: u32) -> Option<Node<'_>> {
        (offset != 0).then_some(Node { arena: self, offset })
    }
}

/// A published node of the skip list in an arena.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    arena: &'a Arena,
    offset: u32,
}

impl PartialEq for Node<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.offset == other.offset
    }
}

impl<'a> Node<'a> {
    #[inline]
    pub(super) fn offset(self) -> u32 {
        self.offset
    }

    #[inline]
    fn key_len(self) -> usize {
        // SAFETY: invariant 2: the header is written; it no longer changes.
        usize::from(unsafe { self.arena.at(self.offset as usize + KEY_LEN).cast::<u16>().read() })
    }

    #[inline]
    pub(super) fn height(self) -> usize {
        // SAFETY: as for `key_len`.
        usize::from(unsafe { self.arena.at(self.offset as usize + HEIGHT).read() })
    }

    #[inline]
    pub(super) fn key(self) -> &'a [u8] {
        // SAFETY: invariant 2; the key follows the header and no longer changes.
        unsafe {
            let start = self.arena.at(self.offset as usize + NODE_HEADER_BYTES);
            std::slice::from_raw_parts(start, self.key_len())
        }
    }

    /// Compares the node's key with the searched key (the needle).
    #[inline]
    pub(super) fn compare(self, needle: &Needle<'_>) -> Order {
        let len = self.key_len();
        let words = len.div_ceil(8).min(needle.word_count);
        for word in 0..words {
            // SAFETY: the key is padded with zeroes to whole words and aligned to them.
            let own =
                unsafe { self.arena.at(self.offset as usize + NODE_HEADER_BYTES + 8 * word).cast::<u64>().read() };
            let own = u64::from_be(own);
            if own != needle.words[word] {
                return own.cmp(&needle.words[word]);
            }
        }
        // The common words are equal. So if one key ends within them, the other has only zeroes there, and the
        // shorter key is the lesser.
        let compared = 8 * words;
        if compared < len.min(needle.bytes.len()) {
            return self.key()[compared..].cmp(&needle.bytes[compared..]);
        }
        len.cmp(&needle.bytes.len())
    }

    #[inline]
    fn atomic(self, field: usize) -> &'a AtomicU32 {
        // SAFETY: the field is within the node, is aligned to 4, and is only accessed as an atomic once
        // the node is published (invariant 3).
        unsafe { AtomicU32::from_ptr(self.arena.at(self.offset as usize + field).cast()) }
    }

    #[inline]
    fn next_slot(self, level: usize) -> &'a AtomicU32 {
        debug_assert!(level < self.height());
        if level == 0 {
            return self.atomic(NEXT);
        }
        // SAFETY: `level < height`, so the slot is in the tower before the node; otherwise as above.
        unsafe { AtomicU32::from_ptr(self.arena.at(self.offset as usize - 4 * level).cast()) }
    }

    /// Returns the next node on a level of the skip list; this node must be on the level, too.
    #[inline]
    pub(super) fn next(self, level: usize) -> Option<Node<'a>> {
        self.arena.node(self.next_slot(level).load(Ordering::Acquire))
    }

    #[inline]
    pub(super) fn set_next(self, level: usize, next: Option<Node<'_>>) {
        self.next_slot(level).store(next.map_or(0, |next| next.offset), Ordering::Release);
    }

    #[inline]
    pub(super) fn prev(self) -> Option<Node<'a>> {
        self.arena.node(self.atomic(PREV).load(Ordering::Acquire))
    }

    #[inline]
    pub(super) fn set_prev(self, prev: Node<'_>) {
        self.atomic(PREV).store(prev.offset, Ordering::Release);
    }

    /// Returns the newest version of the node's key whose batch number is at most `batch`.
    #[inline]
    pub(super) fn version_at(self, batch: u32) -> Option<Version<'a>> {
        let mut version = self.version(self.atomic(NEWEST).load(Ordering::Acquire))?;
        while version.batch() > batch {
            version = self.version(version.older())?;
        }
        Some(version)
    }

    /// Returns the version of the node's key at this offset, which [`Version::offset`] has returned; `None` for
    /// offset 0.
    #[inline]
    pub(super) fn version(self, offset: u32) -> Option<Version<'a>> {
        (offset != 0).then_some(Version { arena: self.arena, offset })
    }
}

/// A published version of a key: the value or delete that one batch wrote.
#[derive(Clone, Copy)]
pub(super) struct Version<'a> {
    arena: &'a Arena,
    offset: u32,
}

impl<'a> Version<'a> {
    #[inline]
    fn field(self, field: usize) -> u32 {
        // SAFETY: invariant 2: a version is written before its offset is stored, and never changes.
        unsafe { self.arena.at(self.offset as usize + field).cast::<u32>().read() }
    }

    /// Returns the byte offset in the arena at which this version of a key is stored.
    #[inline]
    pub(super) fn offset(self) -> u32 {
        self.offset
    }

    /// Returns the number of the batch that wrote the version.
    #[inline]
    pub(super) fn batch(self) -> u32 {
        self.field(0)
    }

    #[inline]
    fn older(self) -> u32 {
        self.field(OLDER)
    }

    /// Returns the value of the version; `None` if it is a delete.
    #[inline]
    pub(super) fn value(self) -> Option<&'a [u8]> {
        let len = self.field(VALUE_LEN);
        if len == TOMBSTONE {
            return None;
        }
        // SAFETY: as for `field`; the value follows the header.
        Some(unsafe {
            let start = self.arena.at(self.offset as usize + VERSION_HEADER_BYTES);
            std::slice::from_raw_parts(start, len as usize)
        })
    }
}

/// A key to search for. The beginning of the key is stored as big-endian words, for fast comparison.
pub(super) struct Needle<'a> {
    pub(super) bytes: &'a [u8],
    words: [u64; NEEDLE_WORDS],
    word_count: usize,
}

const NEEDLE_WORDS: usize = 5;

impl<'a> Needle<'a> {
    #[inline]
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let mut words = [0; NEEDLE_WORDS];
        let mut word_count = 0;
        for chunk in bytes.chunks(8).take(NEEDLE_WORDS) {
            words[word_count] = match (<[u8; 8]>::try_from(chunk), bytes.last_chunk::<8>()) {
                (Ok(whole), _) => u64::from_be_bytes(whole),
                // The last eight bytes of the key end with the remaining bytes, so one load replaces a loop over single
                // bytes.
                (Err(_), Some(last)) => u64::from_be_bytes(*last) << (64 - 8 * chunk.len()),
                (Err(_), None) => big_endian_word(chunk),
            };
            word_count += 1;
        }
        Self { bytes, words, word_count }
    }

    /// Returns the first 24 bytes of the key, padded with zeroes, as numbers that compare like the bytes.
    #[inline]
    pub(super) fn beginning(&self) -> [u64; 3] {
        [self.words[0], self.words[1], self.words[2]]
    }

    /// Returns a well-mixed hash of the searched key (the needle).
    #[inline]
    pub(super) fn hash(&self) -> u32 {
        let mut hash = (self.bytes.len() as u64) ^ 0x9e37_79b9_7f4a_7c15;
        for word in &self.words[..self.word_count] {
            hash = fold(hash ^ word, 0xa076_1d64_78bd_642f);
        }
        for chunk in self.bytes.get(8 * NEEDLE_WORDS..).unwrap_or_default().chunks(8) {
            hash = fold(hash ^ big_endian_word(chunk), 0xa076_1d64_78bd_642f);
        }
        (fold(hash, 0xe703_7ed1_a0b4_28db) >> 32) as u32
    }
}

#[inline]
fn big_endian_word(chunk: &[u8]) -> u64 {
    if let Ok(whole) = <[u8; 8]>::try_from(chunk) {
        return u64::from_be_bytes(whole);
    }
    chunk.iter().rev().fold(0, |word, byte| word >> 8 | u64::from(*byte) << 56)
}

#[inline]
fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    (product as u64) ^ (product >> 64) as u64
}
