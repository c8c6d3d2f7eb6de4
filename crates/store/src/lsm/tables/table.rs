//! One table on disk, read by ourselves.
//!
//! Owns: [`Table`]: an open file, its block index in a form that searches fast, and point reads through
//! filter, index and block cache. Does not own: writing tables, or which tables there are.
//!
//! The crate's own reader costs about three times as much per read: it goes through boxed iterators and
//! materialises every key and value. So only its file format and its filter are used here.

use std::{
    cmp::Ordering,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use lsm_tree::{
    CompressionType,
    table::{Block, BlockHandle, BlockOffset, IndexBlock, block::BlockType, filter::standard_bloom::Builder},
};

use super::{
    block::{DataBlock, Malformed, common_len},
    cache::{BlockCache, Slots},
    cursor::Reads,
    discarding::{Discarding, TableFile},
    filter::Filter,
};
use crate::backend::BackendError;

/// Values up to this length are copied out of their block; longer ones share its memory, so that a
/// caller who keeps many small values doesn't keep a block alive for each.
const MAX_COPIED_BYTES: usize = 1024;

/// What a table, or a set of them, says of a key.
pub enum Found {
    /// It has this value.
    Value(Bytes),
    /// It was deleted.
    Deleted,
}

/// See the module.
pub struct Table {
    /// Keeps the file from being deleted. Dropped before `file` is, which sees to what was deleted.
    inner: lsm_tree::Table,
    file: TableFile,
    cache: Arc<BlockCache>,
    /// Its blocks in memory.
    slots: Arc<Slots>,
    index: BlockIndex,
    filter: Option<Filter>,
    /// Blocks that [`warm`](Self::warm) need not look at any more.
    warmed: AtomicUsize,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("id", &self.id()).field("file_bytes", &self.file_bytes()).finish()
    }
}

/// The hash by which filters and block buckets know a key.
#[inline]
pub fn key_hash(key: &[u8]) -> u64 {
    Builder::get_hash(key)
}

impl Table {
    pub(super) fn open(
        inner: lsm_tree::Table,
        cache: Arc<BlockCache>,
        discarding: &Discarding,
    ) -> Result<Self, BackendError> {
        let io = |error: std::io::Error| BackendError::Io { operation: "open table", message: error.to_string() };
        let file = TableFile::open(&inner.path, discarding).map_err(io)?;
        let corrupt = |message: &str| corrupt(&inner, message);
        if inner.regions.index.is_some() || inner.regions.filter_tli.is_some() {
            return Err(corrupt("its index or filter is partitioned, which this version never writes"));
        }
        let part = |what: &str, handle, compression, kind| {
            let block =
                Block::from_file(file.get(), handle, compression).map_err(|error| corrupt(&error.to_string()))?;
            if block.header.block_type == kind {
                Ok(block)
            } else {
                Err(corrupt(&format!("no {what} where it belongs")))
            }
        };
        let block = part("index", inner.regions.tli, inner.metadata.index_block_compression, BlockType::Index)?;
        let index = BlockIndex::new(&IndexBlock::new(block));
        let index = index.ok_or_else(|| corrupt("its index is malformed"))?;
        let filter = match inner.regions.filter {
            Some(handle) => {
                let block = part("filter", handle, CompressionType::None, BlockType::Filter)?;
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

    /// False only if the table does not hold a key of this hash; cheaper and less sure than the filter.
    #[inline]
    pub(super) fn may_hold_at_first_sight(&self, hash: u64) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.may_contain_at_first_sight(hash))
    }

    /// False only if the table does not hold a key of this hash.
    #[inline]
    pub(super) fn may_hold(&self, hash: u64) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.may_contain(hash))
    }

    /// What this table says of a key. Asks the filter only to save a read of the file.
    #[inline]
    pub(super) fn get(&self, key: &[u8], hash: u64) -> Result<Option<Found>, BackendError> {
        let Some(number) = self.index.first_ending_at_or_after(key) else { return Ok(None) };
        if let Some(block) = &*self.slots.get(number) {
            return Ok(found(block, key));
        }
        if !self.may_hold(hash) {
            return Ok(None);
        }
        Ok(found(&*self.load_block(number)?, key))
    }

    /// A block by its number, from memory or the file.
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

    /// Reads blocks into memory, from where the last call ended, as long as there is room for them and `go_on`
    /// says so. True if nothing is left to do here.
    pub(super) fn warm(&self, go_on: &dyn Fn() -> bool) -> Result<bool, BackendError> {
        loop {
            let number = self.warmed.load(Relaxed);
            if number == self.index.len() {
                return Ok(true);
            }
            if !go_on() || !self.cache.has_room(self.index.place(number).1.into()) {
                return Ok(false);
            }
            if !self.slots.holds(number) {
                self.load_block(number)?;
            }
            self.warmed.store(number + 1, Relaxed);
        }
    }

    /// Says that its blocks are not worth being read before somebody wants them.
    pub(super) fn leave_cold(self) -> Self {
        self.warmed.store(self.index.len(), Relaxed);
        self
    }

    /// Reads a block and keeps it.
    #[cold]
    fn load_block(&self, number: usize) -> Result<Arc<DataBlock>, BackendError> {
        let block = self.read_block(number)?;
        self.cache.insert(&self.slots, number, &block);
        Ok(block)
    }

    fn read_block(&self, number: usize) -> Result<Arc<DataBlock>, BackendError> {
        let (offset, size) = self.index.place(number);
        let handle = BlockHandle::new(BlockOffset(offset), size);
        let block =
            Block::from_file(self.file.get(), handle, self.inner.metadata.data_block_compression).map_err(|error| {
                match error {
                    lsm_tree::Error::Io(error) => BackendError::Io {
                        operation: "read table",
                        message: format!("{}: {error}", self.inner.path.display()),
                    },
                    error => corrupt(&self.inner, &format!("block at {offset}: {error}")),
                }
            })?;
        if block.header.block_type != BlockType::Data {
            return Err(corrupt(&self.inner, &format!("no data block at {offset}")));
        }
        let malformed = |Malformed| corrupt(&self.inner, "a block is malformed though its checksum is right");
        Ok(Arc::new(DataBlock::new(block.data.into()).map_err(malformed)?))
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.cache.forget(&self.slots);
    }
}

#[inline]
fn found(block: &DataBlock, key: &[u8]) -> Option<Found> {
    let number = block.find(key)?;
    Some(match block.value(number) {
        None => Found::Deleted,
        Some(value) if value.len() <= MAX_COPIED_BYTES => Found::Value(Bytes::copy_from_slice(value)),
        Some(value) => Found::Value(block.data().slice_ref(value)),
    })
}

fn corrupt(table: &lsm_tree::Table, message: &str) -> BackendError {
    BackendError::Corrupt { what: table.path.display().to_string(), message: message.to_owned() }
}

/// Where a table's blocks are and with which key each ends. Most keys of a table begin alike; the eight
/// bytes after that common beginning decide most comparisons without touching the keys.
pub(super) struct BlockIndex {
    /// How most end keys begin. Not all: what the backend keeps for itself sorts before or after all data.
    common: Box<[u8]>,
    /// Of each end key, and in the same order as those: see [`head`](Self::head).
    heads: Vec<u64>,
    places: Vec<Place>,
    /// The end keys, one after the other.
    keys: Vec<u8>,
}

struct Place {
    offset: u64,
    size: u32,
    key_at: u32,
    key_len: u16,
}

impl BlockIndex {
    fn new(block: &IndexBlock) -> Option<Self> {
        let mut index = Self { common: Box::default(), heads: Vec::new(), places: Vec::new(), keys: Vec::new() };
        let bytes: &[u8] = block.as_slice();
        for item in block.iter() {
            let prefix = item.prefix.as_ref().map_or(Some(&[][..]), |prefix| bytes.get(prefix.0..prefix.1))?;
            let rest = bytes.get(item.end_key.0..item.end_key.1)?;
            index.add(&[prefix, rest].concat(), *item.offset, item.size)?;
        }
        index.finish()
    }

    fn add(&mut self, end_key: &[u8], offset: u64, size: u32) -> Option<()> {
        let key_at = u32::try_from(self.keys.len()).ok()?;
        let key_len = u16::try_from(end_key.len()).ok()?;
        self.keys.extend_from_slice(end_key);
        self.places.push(Place { offset, size, key_at, key_len });
        Some(())
    }

    fn finish(mut self) -> Option<Self> {
        let last = self.len().checked_sub(1)?;
        let (low, high) = (self.end_key(last / 8), self.end_key(last - last / 8));
        self.common = low[..common_len(low, high)].into();
        self.heads = (0..self.len()).map(|number| self.head(self.end_key(number))).collect();
        Some(self)
    }

    /// How many blocks.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The last key of a block.
    #[inline]
    pub(super) fn end_key(&self, number: usize) -> &[u8] {
        let place = &self.places[number];
        &self.keys[place.key_at as usize..][..usize::from(place.key_len)]
    }

    fn place(&self, number: usize) -> (u64, u32) {
        let place = &self.places[number];
        (place.offset, place.size)
    }

    /// The only block that can hold `key`, and the first that can hold keys after it.
    #[inline]
    pub(super) fn first_ending_at_or_after(&self, key: &[u8]) -> Option<usize> {
        self.first_where(key, |end| end >= key)
    }

    /// The first block that ends after `key`.
    pub(super) fn first_ending_after(&self, key: &[u8]) -> Option<usize> {
        self.first_where(key, |end| end > key)
    }

    /// A number that never falls from one key to a greater one: what comes after the common beginning,
    /// or an end of the scale for keys that begin otherwise.
    #[inline]
    fn head(&self, key: &[u8]) -> u64 {
        let begin = key.get(..self.common.len()).unwrap_or(key);
        match begin.cmp(&self.common) {
            Ordering::Less => 0,
            Ordering::Equal => head(&key[begin.len()..]),
            Ordering::Greater => u64::MAX,
        }
    }

    /// The first block for whose end key `reached` holds; it must be monotone and be decided by how the
    /// end key compares with `key`.
    #[inline]
    fn first_where(&self, key: &[u8], reached: impl Fn(&[u8]) -> bool) -> Option<usize> {
        // Those with a lesser head end before the key, those with a greater one after it.
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

/// The first eight bytes as a number that orders as they do.
#[inline]
fn head(bytes: &[u8]) -> u64 {
    if let Some(whole) = bytes.first_chunk::<8>() {
        return u64::from_be_bytes(*whole);
    }
    bytes.iter().rev().fold(0, |head, byte| head >> 8 | u64::from(*byte) << 56)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index_of(keys: &[Vec<u8>]) -> BlockIndex {
        let mut index = BlockIndex { common: Box::default(), heads: Vec::new(), places: Vec::new(), keys: Vec::new() };
        for key in keys {
            index.add(key, 0, 0).unwrap();
        }
        index.finish().unwrap()
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
