//! One sorted table on disk, with a reader of our own.
//!
//! Owns: [`Table`], which has an open file, its block index in a form that is fast to search, and point reads
//! through filter, index and block cache. Does not own: decoding the bytes of a block (`block_file`), writing tables,
//! or the set of tables.
//!
//! The reader of the LSM crate costs about three times as much per read, because it uses boxed iterators and
//! materialises every key and value. So only the file format and the filters of that crate are used here.

use std::{
    cmp::Ordering,
    fmt::Display,
    num::NonZeroU64,
    ops::ControlFlow,
    os::unix::fs::FileExt as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use rustix::fs::{Advice, fadvise};
use thalweg_types::budget;
use xxhash_rust::xxh3::Xxh3Default;

use lsm_tree::{
    CompressionType,
    table::{Block, block::BlockType, filter::standard_bloom::Builder},
};

use super::{
    block::{DataBlock, Malformed, common_len},
    block_file::{self, BlockError},
    cache::{BlockCache, Slots},
    config::BLOCK_BYTES,
    discarding::{Discarding, TableFile},
    filter::Filter,
};
use crate::{
    backend::{BackendError, Direction, VerifiedRows},
    caught::caught,
    files::io_error,
    lsm::TableCompression,
    span::Reads,
};

/// Maximum length in bytes of a value that is copied out of its block. Longer values share the block's memory. Without
/// the copy, a caller that keeps a few small values would keep their whole blocks in memory.
const MAX_COPIED_BYTES: usize = 1024;
/// Number of bytes that a long scan asks the kernel to read in advance. A scan that ends early wastes at most this
/// many.
pub(super) const READ_AHEAD_BYTES: u64 = 256 * 1024;
/// Number of bytes that a verification reads at a time.
const VERIFY_PIECE_BYTES: usize = 256 * 1024;
/// First byte of each item of an index block, which lists the blocks of a table.
const ITEM: u8 = 0;
/// Byte after the last item of an index block, which lists the blocks of a table.
const END_OF_ITEMS: u8 = 255;

/// Entry of a key in a table or in a set of tables: its value, or a delete.
pub enum TableEntry {
    /// The table has this value for the key.
    Value(Bytes),
    /// The table has a delete of the key.
    Deleted,
}

/// An open table file with its index and filter; see the [module](self).
pub struct Table {
    /// The LSM crate's handle of the table, which keeps the file from being deleted. It is dropped before `file`, which
    /// detects the deletion.
    inner: lsm_tree::Table,
    file: TableFile,
    cache: Arc<BlockCache>,
    /// Slots with the cached blocks of this table.
    slots: Arc<Slots>,
    index: BlockIndex,
    filter: Option<Filter>,
    /// Number of blocks of the table that [`warm`](Self::warm) has already read or skipped.
    warmed: AtomicUsize,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("id", &self.id()).field("file_bytes", &self.file_bytes()).finish()
    }
}

/// Returns the hash of a key that the bloom filters of tables use.
#[inline]
pub(super) fn key_hash(key: &[u8]) -> u64 {
    Builder::get_hash(key)
}

impl Table {
    pub(super) fn open(
        inner: lsm_tree::Table,
        cache: Arc<BlockCache>,
        discarding: &Discarding,
    ) -> Result<Self, BackendError> {
        let file = TableFile::open(&inner.path, discarding).map_err(io_error("open table"))?;
        let corrupt = |message: &str| corrupt(&inner, message);
        if inner.regions.index.is_some() || inner.regions.filter_tli.is_some() {
            return Err(corrupt("its index or filter is partitioned, which this version never writes"));
        }
        if inner.metadata.index_block_compression != CompressionType::None {
            return Err(corrupt("its index is compressed, which this version never writes"));
        }
        // Another crate in the same build can enable the LSM crate's compression, for which our reader has no decoder.
        if inner.metadata.data_block_compression != CompressionType::None && !cfg!(feature = "lz4") {
            return Err(BackendError::CompressionNotBuilt { compression: TableCompression::Lz4.name() });
        }
        let part = |what: &str, handle, kind| {
            let block = caught(|| Block::from_file(file.get(), handle, CompressionType::None));
            let block = block.map_err(|text| corrupt(&text))?;
            let block = block.map_err(|error| corrupt(&error.to_string()))?;
            if block.header.block_type == kind { Ok(block) } else { Err(corrupt(&format!("its {what} is missing"))) }
        };
        let block = part("index", inner.regions.tli, BlockType::Index)?;
        let index = BlockIndex::decode(&block.data).ok_or_else(|| corrupt("its index is malformed"))?;
        let filter = match inner.regions.filter {
            Some(handle) => {
                let block = part("filter", handle, BlockType::Filter)?;
                Some(Filter::new(&block.data.into()).map_err(|_| corrupt("its filter is malformed"))?)
            }
            None => None,
        };
        let slots = Arc::new(Slots::new(index.len()));
        Ok(Self { inner, file, cache, slots, index, filter, warmed: AtomicUsize::new(0) })
    }

    pub(super) fn id(&self) -> u64 {
        self.inner.id()
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.inner.metadata.file_size
    }

    pub(super) fn item_count(&self) -> u64 {
        self.inner.metadata.item_count
    }

    /// Returns the compression of the table's data blocks.
    pub(super) fn compression(&self) -> CompressionType {
        self.inner.metadata.data_block_compression
    }

    pub(super) fn deletion_count(&self) -> u64 {
        self.inner.metadata.tombstone_count
    }

    #[inline]
    pub(super) fn min_key(&self) -> &[u8] {
        self.inner.metadata.key_range.min()
    }

    #[inline]
    pub(super) fn max_key(&self) -> &[u8] {
        self.inner.metadata.key_range.max()
    }

    #[inline]
    pub(super) fn index(&self) -> &BlockIndex {
        &self.index
    }

    /// Returns false only if the table certainly contains no key with this hash. This check is cheaper and less precise
    /// than [`may_hold`](Self::may_hold).
    #[inline]
    pub(super) fn may_hold_at_first_sight(&self, hash: u64) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.may_contain_at_first_sight(hash))
    }

    /// Returns false only if the table certainly contains no key with this hash, by its bloom filter.
    #[inline]
    pub(super) fn may_hold(&self, hash: u64) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.may_contain(hash))
    }

    /// Returns the entry of a key in this table; `None` if the table has none. Skips the bloom filter if the key's
    /// block is in the cache.
    #[inline]
    pub(super) fn get(&self, key: &[u8], hash: u64) -> Result<Option<TableEntry>, BackendError> {
        let Some(number) = self.index.first_ending_at_or_after(key) else { return Ok(None) };
        if let Some(block) = &*self.slots.get(number) {
            return Ok(found(block, key));
        }
        if !self.may_hold(hash) {
            return Ok(None);
        }
        Ok(found(&*self.load_block(number)?, key))
    }

    /// Returns the block of the table with this number, from the cache or from the file.
    #[inline]
    pub(super) fn block(&self, number: usize, reads: Reads) -> Result<Arc<DataBlock>, BackendError> {
        if reads == Reads::Once {
            return self.slots.peek(number).map_or_else(|| self.read_block(number), Ok);
        }
        match &*self.slots.get(number) {
            Some(block) => Ok(Arc::clone(block)),
            None => self.load_block(number),
        }
    }

    /// Reads further blocks of the table into the cache while the cache has room and `go_on` returns true. Continues
    /// where the last call ended. Returns true if no blocks are left to read.
    pub(super) fn warm(&self, go_on: &dyn Fn() -> bool) -> Result<bool, BackendError> {
        loop {
            let number = self.warmed.load(Relaxed);
            if number == self.index.len() {
                return Ok(true);
            }
            if !go_on() || !self.cache.has_room(self.expected_bytes(number)) {
                return Ok(false);
            }
            if !self.slots.holds(number) {
                self.load_block(number)?;
            }
            self.warmed.store(number + 1, Relaxed);
        }
    }

    /// Returns the number of bytes of memory that the block with this number will probably take.
    fn expected_bytes(&self, number: usize) -> u64 {
        let (_, size) = self.index.block_position(number);
        // For a compressed block, only the block's header in the file has the decompressed size.
        let is_compressed = self.compression() != CompressionType::None;
        u64::from(if is_compressed { size.max(BLOCK_BYTES) } else { size })
    }

    /// Reads the whole table file and compares it with the checksum in the LSM crate's manifest. Adds the numbers of
    /// rows and bytes to `verified`, and calls `step` after each piece. Returns `Break` if `step` does.
    pub fn verify(
        &self,
        verified: &mut VerifiedRows,
        step: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, BackendError> {
        let unreadable = |error| BackendError::io("read table", format_args!("{}: {error}", self.inner.path.display()));
        let mut digest = Xxh3Default::new();
        let (mut at, mut piece) = (0, vec![0; VERIFY_PIECE_BYTES]);
        loop {
            let read = self.file.get().read_at(&mut piece, at).map_err(unreadable)?;
            if read == 0 {
                break;
            }
            digest.update(&piece[..read]);
            at += read as u64;
            verified.bytes += read as u64;
            if step(read as u64).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        let (found, expected) = (digest.digest128(), self.inner.checksum().into_u128());
        if found != expected {
            return Err(corrupt(&self.inner, format_args!("its checksum is {found:032x}, expected {expected:032x}")));
        }
        verified.rows += self.item_count();
        Ok(ControlFlow::Continue(()))
    }

    /// Asks the kernel to read about [`READ_AHEAD_BYTES`] of blocks into memory, beginning with the block of this
    /// number, in the direction of a scan. Does not wait. Returns the number of blocks.
    pub(super) fn read_ahead(&self, number: usize, direction: Direction) -> usize {
        let (mut first, mut last) = (number, number);
        let mut bytes = u64::from(self.index.block_position(number).1);
        while bytes < READ_AHEAD_BYTES {
            let next = match direction {
                Direction::Forward => Some(last + 1).filter(|next| *next < self.index.len()),
                Direction::Reverse => first.checked_sub(1),
            };
            let Some(next) = next else { break };
            (first, last) = (first.min(next), last.max(next));
            bytes += u64::from(self.index.block_position(next).1);
        }
        let (begin, _) = self.index.block_position(first);
        let (last_begin, last_bytes) = self.index.block_position(last);
        let len = NonZeroU64::new(last_begin + u64::from(last_bytes) - begin);
        // If the kernel ignores the advice, the scan waits for each block.
        let _ = fadvise(self.file.get(), begin, len, Advice::WillNeed);
        last - first + 1
    }

    /// Asks the kernel to read the block of a key into memory, unless the block is in the cache. Does not wait.
    pub(super) fn read_ahead_of(&self, key: &[u8]) {
        let Some(number) = self.index.first_ending_at_or_after(key) else { return };
        if self.holds(number) {
            return;
        }
        let (begin, len) = self.index.block_position(number);
        // If the kernel ignores the advice, only the later read of this key waits longer.
        if fadvise(self.file.get(), begin, NonZeroU64::new(len.into()), Advice::WillNeed).is_ok() {
            budget::note_read_ahead();
        }
    }

    /// Returns true if the block with this number is in the cache.
    #[inline]
    pub(super) fn holds(&self, number: usize) -> bool {
        self.slots.holds(number)
    }

    /// Marks all blocks of the table as handled, so that [`warm`](Self::warm) reads none of them.
    pub(super) fn without_warming(self) -> Self {
        self.warmed.store(self.index.len(), Relaxed);
        self
    }

    /// Reads a block of the table from the file and puts it into the cache. If the [budget] of the thread's read
    /// forbids waiting for the disk, and the block is not in the kernel's memory, this fails without reading.
    #[cold]
    fn load_block(&self, number: usize) -> Result<Arc<DataBlock>, BackendError> {
        let block = self.read_block(number)?;
        self.cache.insert(&self.slots, number, &block);
        Ok(block)
    }

    fn read_block(&self, number: usize) -> Result<Arc<DataBlock>, BackendError> {
        let (offset, size) = self.index.block_position(number);
        let block = block_file::read(self.file.get(), offset, size, self.compression());
        let block = block.map_err(|spent| BackendError::io("read table", spent))?;
        let block = block.map_err(|error| match error {
            BlockError::Io(error) => {
                BackendError::io("read table", format_args!("{}: {error}", self.inner.path.display()))
            }
            BlockError::Damaged(text) => corrupt(&self.inner, format_args!("block at {offset}: {text}")),
        })?;
        let malformed = |Malformed| corrupt(&self.inner, "a block is malformed though its checksum is right");
        Ok(Arc::new(DataBlock::new(block).map_err(malformed)?))
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.cache.forget(&self.slots);
    }
}

#[inline]
fn found(block: &DataBlock, key: &[u8]) -> Option<TableEntry> {
    let number = block.find(key)?;
    Some(match block.value(number) {
        None => TableEntry::Deleted,
        Some(value) if value.len() <= MAX_COPIED_BYTES => TableEntry::Value(Bytes::copy_from_slice(value)),
        Some(value) => TableEntry::Value(block.data().slice_ref(value)),
    })
}

fn corrupt(table: &lsm_tree::Table, message: impl Display) -> BackendError {
    BackendError::corrupt(table.path.display(), message)
}

/// Index of the blocks of a table: the position and the last key of each block. Most keys of a table share a prefix;
/// the eight bytes after the prefix decide most comparisons without reading the keys themselves.
pub(super) struct BlockIndex {
    /// Prefix that most end keys (last keys of blocks) share. The backend's reserved keys do not have the prefix,
    /// because they sort before or after all data.
    common: Box<[u8]>,
    /// Head (eight bytes after the prefix) of each end key, in the order of the blocks; see [`head`](Self::head).
    heads: Vec<u64>,
    places: Vec<BlockPosition>,
    /// The end keys (last keys of the blocks), concatenated.
    keys: Vec<u8>,
}

struct BlockPosition {
    offset: u64,
    size: u32,
    key_at: u32,
    key_len: u16,
}

impl BlockIndex {
    /// Decodes an index block; `None` if it is malformed. The LSM crate's own decoder trusts the block: on a malformed
    /// one it panics or reads beyond the end.
    ///
    /// ```text
    /// block := item* | 255 | the rest is not used
    /// item  := 0 u8 | offset varint | size varint | seqno varint | key_len varint | last key of the data block
    /// ```
    fn decode(mut rest: &[u8]) -> Option<Self> {
        let mut index = Self { common: Box::default(), heads: Vec::new(), places: Vec::new(), keys: Vec::new() };
        let (mut end, mut last_key): (u64, &[u8]) = (0, &[]);
        loop {
            let (marker, after) = rest.split_first()?;
            rest = after;
            match *marker {
                ITEM => {}
                END_OF_ITEMS => return index.finish(),
                _ => return None,
            }
            let offset = take_varint(&mut rest)?;
            let size = u32::try_from(take_varint(&mut rest)?).ok()?;
            let _seqno = take_varint(&mut rest)?;
            let key_len = usize::try_from(take_varint(&mut rest)?).ok()?;
            let (key, after) = rest.split_at_checked(key_len)?;
            rest = after;
            if offset < end || key < last_key {
                return None;
            }
            (end, last_key) = (offset.checked_add(size.into())?, key);
            index.add(key, offset, size)?;
        }
    }

    fn add(&mut self, end_key: &[u8], offset: u64, size: u32) -> Option<()> {
        let key_at = u32::try_from(self.keys.len()).ok()?;
        let key_len = u16::try_from(end_key.len()).ok()?;
        self.keys.extend_from_slice(end_key);
        self.places.push(BlockPosition { offset, size, key_at, key_len });
        Some(())
    }

    fn finish(mut self) -> Option<Self> {
        let last = self.len().checked_sub(1)?;
        let (low, high) = (self.end_key(last / 8), self.end_key(last - last / 8));
        self.common = low[..common_len(low, high)].into();
        self.heads = (0..self.len()).map(|number| self.head(self.end_key(number))).collect();
        Some(self)
    }

    /// Returns the number of blocks in the index.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the last key of the block with this number.
    #[inline]
    pub(super) fn end_key(&self, number: usize) -> &[u8] {
        let place = &self.places[number];
        &self.keys[place.key_at as usize..][..usize::from(place.key_len)]
    }

    /// Returns the offset and the size in bytes of the block with this number in the file.
    pub(super) fn block_position(&self, number: usize) -> (u64, u32) {
        let place = &self.places[number];
        (place.offset, place.size)
    }

    /// Returns the number of the first block whose last key is at or after `key`. Only this block can contain `key`.
    #[inline]
    pub(super) fn first_ending_at_or_after(&self, key: &[u8]) -> Option<usize> {
        self.first_where(key, |end| end >= key)
    }

    /// Returns the number of the first block whose last key is above `key`.
    pub(super) fn first_ending_after(&self, key: &[u8]) -> Option<usize> {
        self.first_where(key, |end| end > key)
    }

    /// Returns a number for a key that never decreases when the key increases: the eight bytes after the common prefix,
    /// or the minimum or maximum number for keys without this prefix.
    #[inline]
    fn head(&self, key: &[u8]) -> u64 {
        let begin = key.get(..self.common.len()).unwrap_or(key);
        match begin.cmp(&self.common) {
            Ordering::Less => 0,
            Ordering::Equal => head(&key[begin.len()..]),
            Ordering::Greater => u64::MAX,
        }
    }

    /// Returns the number of the first block whose end key satisfies `reached`. `reached` may depend only on the order
    /// of the end key and `key`. It must be true for all blocks after the first for which it is true.
    #[inline]
    fn first_where(&self, key: &[u8], reached: impl Fn(&[u8]) -> bool) -> Option<usize> {
        // A block with a smaller head ends before the key. A block with a greater head ends after it.
        let head = self.head(key);
        let first = self.heads.partition_point(|end| *end < head);
        let alike = match self.heads.get(first) {
            Some(end) if *end == head => first..first + self.heads[first..].partition_point(|end| *end == head),
            _ => first..first,
        };
        let (mut low, mut high) = (alike.start, alike.end);
        while low < high {
            let middle = usize::midpoint(low, high);
            if reached(self.end_key(middle)) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        (low < self.len()).then_some(low)
    }
}

/// Removes a variable-length number from the beginning of `bytes`, and returns it; `None` if the number is not
/// complete.
fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Returns the first eight bytes of a slice as a number that has the order of the bytes.
#[inline]
fn head(bytes: &[u8]) -> u64 {
    if let Some(whole) = bytes.first_chunk::<8>() {
        return u64::from_be_bytes(*whole);
    }
    bytes.iter().rev().fold(0, |head, byte| head >> 8 | u64::from(*byte) << 56)
}

#[cfg(test)]
mod tests {
    use lsm_tree::table::{BlockHandle, BlockOffset, IndexBlock, KeyedBlockHandle};

    use super::*;

    fn index_of(keys: &[Vec<u8>]) -> BlockIndex {
        let mut index = BlockIndex { common: Box::default(), heads: Vec::new(), places: Vec::new(), keys: Vec::new() };
        for key in keys {
            index.add(key, 0, 0).unwrap();
        }
        index.finish().unwrap()
    }

    #[test]
    fn an_index_of_the_crate_is_decoded_and_a_malformed_one_is_refused() {
        let keys: Vec<Vec<u8>> = (0..300).map(|number| format!("key {number:05}").into_bytes()).collect();
        let place = |number: usize| (number as u64 * 20_000, 16_000 + number as u32);
        let handle = |(number, key): (usize, &Vec<u8>)| {
            let (offset, size) = place(number);
            KeyedBlockHandle::new(key.as_slice().into(), 1 << 32, BlockHandle::new(BlockOffset(offset), size))
        };
        let handles: Vec<KeyedBlockHandle> = keys.iter().enumerate().map(handle).collect();
        let index = BlockIndex::decode(&IndexBlock::encode_into_vec(&handles).unwrap()).unwrap();
        assert_eq!(index.len(), keys.len());
        for (number, key) in keys.iter().enumerate() {
            assert_eq!((index.end_key(number), index.block_position(number)), (&key[..], place(number)));
        }

        let whole = IndexBlock::encode_into_vec(&handles[..3]).unwrap();
        for at in 0..whole.len() {
            let cut = BlockIndex::decode(&whole[..at]);
            assert!(cut.is_none_or(|index| index.len() == 3), "cut to {at} bytes");
            for byte in 0..=255 {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                let Some(index) = BlockIndex::decode(&damaged) else { continue };
                assert!((0..index.len()).is_sorted_by_key(|number| index.block_position(number).0));
            }
        }
        for short in [&b""[..], b"abc", &[0; 31], &[0xff; 31]] {
            assert!(BlockIndex::decode(short).is_none(), "{short:?}");
        }
    }

    #[test]
    fn the_index_agrees_with_a_plain_search() {
        let numbered = (0..500).map(|number| format!("\x10space key {:06}", number * 7).into_bytes());
        let long = (0..20).map(|number| format!("\x10space key 000350 and more {number:02}").into_bytes());
        let outside = [b"\0".to_vec(), b"\x10".to_vec(), b"\x10space".to_vec(), b"\x11".to_vec(), vec![255; 20]];
        let mut keys: Vec<Vec<u8>> = numbered.chain(long).chain(outside).collect();
        keys.sort();
        for keys in [&keys[..], &keys[3..], &keys[..9], &keys[..1]] {
            let index = index_of(keys);
            let shorter = keys.iter().map(|key| key[..key.len() - 1].to_vec());
            let longer = keys.iter().map(|key| [key, &b"\0"[..]].concat());
            for probe in keys.iter().cloned().chain(shorter).chain(longer).chain([vec![], vec![0; 3], vec![255; 30]]) {
                let place = |at: usize| (at < keys.len()).then_some(at);
                let at_or_after = place(keys.partition_point(|key| *key < probe));
                let after = place(keys.partition_point(|key| *key <= probe));
                assert_eq!(index.first_ending_at_or_after(&probe), at_or_after, "{probe:?}");
                assert_eq!(index.first_ending_after(&probe), after, "{probe:?}");
            }
        }
    }
}
