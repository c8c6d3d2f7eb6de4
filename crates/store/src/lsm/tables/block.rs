//! A data block of a table on disk, indexed in memory so that pairs are read without copying.
//!
//! Owns: finding pairs in one block, without copies, and with few reads of memory. Does not own: loading the block, or
//! verifying its checksum, which happens when the block is read from disk.
//!
//! ```text
//! block   := item* | 255 | offset of each item, u16 or u32 | hash bucket u8* | trailer
//! item    := type u8 | seqno varint | key_len varint | key | (value_len varint | value)?
//! trailer := 1 u8 | offset_bytes u8 | items u32 | offsets_at u32 | buckets u32 | buckets_at u32 | 13 bytes
//! ```
//! This is the format of the LSM crate at restart interval 1 (the leading 1 of the trailer): every item is complete.
//! Deletes have no value. When a block is loaded, its items are decoded once into two small arrays: the position of
//! each key, and four bytes of each key. Most of the cost of a read are the processor's cache misses. The arrays have a
//! tenth of the block's size, and a search reads only the arrays and the one item that it finds. The offsets and hash
//! buckets in the block are not used. Buckets would not help: even with twice as many buckets as keys, four in ten keys
//! collide.
//!
//! Invariant: after construction, all positions are within the bytes and in order, so that reads cannot fail.

use std::{
    cmp::Ordering,
    ops::{ControlFlow, Range},
    sync::atomic::{AtomicBool, Ordering as Memory},
};

use bytes::Bytes;

use crate::{
    backend::{Direction, Visit},
    passed::note_passed,
};

const TRAILER_BYTES: usize = 31;
const END_OF_ITEMS: u8 = 255;
const TYPE_VALUE: u8 = 0;
const TYPE_DELETE: u8 = 1;
/// Maximum number of key heads (four bytes of a key) that a search compares one by one with the wanted key. Larger
/// blocks are bisected first. Comparing all needs no branches, and the cache misses overlap.
const HEADS_AT_ONCE: usize = 128;

/// Error returned when a block's bytes don't follow the format.
#[derive(Debug)]
pub(super) struct Malformed;

/// A data block with its decoded index; see the [module](self).
pub(super) struct DataBlock {
    data: Bytes,
    /// Length in bytes of the prefix that all keys of the block have in common.
    common_len: usize,
    /// Head of each key: the four bytes after the common prefix, as a number.
    heads: Box<[i32]>,
    /// Byte position of each item in the block, and of the end of the last item.
    places: Box<[ItemPosition]>,
    was_read_again: AtomicBool,
}

/// Position of one item in a data block. The value of the item ends at the beginning of the next item.
struct ItemPosition {
    key_at: u32,
    key_len: u16,
    /// Number of bytes of the item in front of its key.
    before_key: u8,
    /// Number of bytes between the item's key and its value; 0 for a delete.
    before_value: u8,
}

const _: () = assert!(size_of::<ItemPosition>() == 8);

impl DataBlock {
    pub(super) fn new(data: Bytes) -> Result<Self, Malformed> {
        let at = data.len().checked_sub(TRAILER_BYTES).ok_or(Malformed)?;
        let items = u32_at(&data, at + 2);
        let items_end = u32_at(&data, at + 6).checked_sub(1).ok_or(Malformed)?;
        if data[at] != 1 || items == 0 || items_end >= at || data[items_end] != END_OF_ITEMS {
            return Err(Malformed);
        }
        let places = places(&data[..items_end], items)?;
        let mut block =
            Self { data, common_len: 0, heads: Box::default(), places, was_read_again: AtomicBool::new(false) };
        block.common_len = common_len(block.key(0), block.key(items - 1));
        if !block.keys().is_sorted_by(|left, right| left < right) {
            return Err(Malformed);
        }
        block.heads = block.keys().map(|key| head(&key[block.common_len..])).collect();
        Ok(block)
    }

    /// Returns the number of bytes of memory that the block uses, with its index.
    pub(super) fn memory_bytes(&self) -> u64 {
        let index = size_of_val(&*self.heads) + size_of_val(&*self.places);
        (size_of::<Self>() + self.data.len() + index) as u64
    }

    /// Marks the block as read again. Called when a read finds the block in the cache.
    #[inline]
    pub(super) fn mark_read_again(&self) {
        // The store is skipped if the mark is already set, so that the cache line stays shared among cores.
        if !self.was_read_again.load(Memory::Relaxed) {
            self.was_read_again.store(true, Memory::Relaxed);
        }
    }

    /// Returns true if the block was marked as read again since the last call, and resets the mark.
    pub(super) fn was_read_again(&self) -> bool {
        self.was_read_again.swap(false, Memory::Relaxed)
    }

    /// Returns the number of items in the block.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.heads.len()
    }

    /// Returns the bytes of the block, from which keys and values are borrowed.
    pub(super) fn data(&self) -> &Bytes {
        &self.data
    }

    /// Returns the key of the item with this index.
    #[inline]
    pub(super) fn key(&self, number: usize) -> &[u8] {
        let place = &self.places[number];
        &self.data[place.key_at as usize..][..usize::from(place.key_len)]
    }

    /// Returns the value of the item with this index; `None` for a delete.
    #[inline]
    pub(super) fn value(&self, number: usize) -> Option<&[u8]> {
        let (place, next) = (&self.places[number], &self.places[number + 1]);
        let from = place.key_at as usize + usize::from(place.key_len) + usize::from(place.before_value);
        (place.before_value > 0).then(|| &self.data[from..next.key_at as usize - usize::from(next.before_key)])
    }

    /// Calls `visit` with the pairs of a range of items, in the given direction. Skips deletes.
    pub(super) fn visit(&self, items: Range<usize>, direction: Direction, visit: &mut Visit<'_>) -> ControlFlow<()> {
        // Each window has an item and the next one. The value of the first ends where the second begins.
        let mut pairs = self.places[items.start..=items.end].windows(2);
        let mut one = |pair: &[ItemPosition]| {
            let [place, next] = pair else { return ControlFlow::Continue(()) };
            let item = &self.data[place.key_at as usize..next.key_at as usize - usize::from(next.before_key)];
            let (key, rest) = item.split_at(usize::from(place.key_len));
            if place.before_value == 0 {
                return note_passed();
            }
            visit(key, &rest[usize::from(place.before_value)..])
        };
        match direction {
            Direction::Forward => pairs.try_for_each(one),
            Direction::Reverse => pairs.rev().try_for_each(&mut one),
        }
    }

    /// Returns the number of items in the block whose keys are less than `key` or, if `inclusive`, equal to `key`.
    pub(super) fn rank(&self, key: &[u8], inclusive: bool) -> usize {
        let shared = &self.key(0)[..self.common_len];
        let alike = match key.get(..self.common_len).unwrap_or(key).cmp(shared) {
            Ordering::Less => return 0,
            Ordering::Greater => return self.len(),
            Ordering::Equal => self.equal_heads(key),
        };
        let is_before = |other: &[u8]| if inclusive { other <= key } else { other < key };
        self.first_where_not(alike, is_before)
    }

    /// Returns the index of the item whose key equals `key`; `None` if the block has no such item.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<usize> {
        if key.len() < self.common_len {
            return None;
        }
        let mut alike = self.equal_heads(key);
        if alike.len() > 1 {
            alike.start = self.first_where_not(alike.clone(), |other| other < key);
        }
        (!alike.is_empty() && self.key(alike.start) == key).then_some(alike.start)
    }

    /// Returns the range of items whose key head equals the head of `key`. The `key` must be at least as long as the
    /// common prefix of the block's keys.
    #[inline]
    fn equal_heads(&self, key: &[u8]) -> Range<usize> {
        let head = head(&key[self.common_len..]);
        let first = count_less(&self.heads, head);
        let more = self.heads[first..].iter().take_while(|other| **other == head).count();
        first..first + more
    }

    #[inline]
    fn first_where_not(&self, among: Range<usize>, is_before: impl Fn(&[u8]) -> bool) -> usize {
        let (mut low, mut high) = (among.start, among.end);
        while low < high {
            let middle = usize::midpoint(low, high);
            if is_before(self.key(middle)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.places.len() - 1).map(|number| self.key(number))
    }
}

/// Decodes the positions of all items, which fill `data` exactly.
fn places(data: &[u8], items: usize) -> Result<Box<[ItemPosition]>, Malformed> {
    // An item has at least four bytes.
    let mut places = Vec::with_capacity(items.min(data.len() / 4) + 1);
    let mut at = 0;
    while at < data.len() {
        let start = at;
        let seqno_end = data[at + 1..].iter().position(|byte| byte & 0x80 == 0).ok_or(Malformed)? + at + 2;
        let (key_len, key_at) = varint(data, seqno_end)?;
        let key_end = key_at.checked_add(key_len).filter(|end| *end <= data.len()).ok_or(Malformed)?;
        let value_at = match data[start] {
            TYPE_VALUE => {
                let (value_len, value_at) = varint(data, key_end)?;
                at = value_at.checked_add(value_len).filter(|end| *end <= data.len()).ok_or(Malformed)?;
                value_at
            }
            TYPE_DELETE => {
                at = key_end;
                key_end
            }
            _ => return Err(Malformed),
        };
        places.push(ItemPosition {
            key_at: u32::try_from(key_at).map_err(|_| Malformed)?,
            key_len: u16::try_from(key_len).map_err(|_| Malformed)?,
            before_key: u8::try_from(key_at - start).map_err(|_| Malformed)?,
            before_value: u8::try_from(value_at - key_end).map_err(|_| Malformed)?,
        });
    }
    if places.len() != items {
        return Err(Malformed);
    }
    let end = u32::try_from(data.len()).map_err(|_| Malformed)?;
    places.push(ItemPosition { key_at: end, key_len: 0, before_key: 0, before_value: 0 });
    Ok(places.into())
}

/// Returns the number of entries less than `head` in `heads`, which is in ascending order.
#[inline]
fn count_less(mut heads: &[i32], head: i32) -> usize {
    let mut before = 0;
    while heads.len() > HEADS_AT_ONCE {
        let (low, high) = heads.split_at(heads.len() / 2);
        if high[0] < head {
            before += low.len();
            heads = high;
        } else {
            heads = low;
        }
    }
    before + heads.iter().map(|other| i32::from(*other < head)).sum::<i32>() as usize
}

/// Returns the first four bytes as a number that has the order of the bytes. The number is signed, because the
/// processor's vector instructions compare signed numbers.
#[inline]
fn head(bytes: &[u8]) -> i32 {
    let head = match bytes.first_chunk::<4>() {
        Some(whole) => u32::from_be_bytes(*whole),
        None => bytes.iter().rev().fold(0, |head, byte| head >> 8 | u32::from(*byte) << 24),
    };
    (head ^ 1 << 31) as i32
}

pub(super) fn common_len(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

#[inline]
fn u32_at(data: &[u8], at: usize) -> usize {
    u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]) as usize
}

/// Decodes a variable-length number of at most 32 bits at byte `at`. Returns the number and the position after it.
fn varint(data: &[u8], mut at: usize) -> Result<(usize, usize), Malformed> {
    let mut value = 0;
    for shift in [0, 7, 14, 21, 28] {
        let byte = *data.get(at).ok_or(Malformed)?;
        at += 1;
        value |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok((value, at));
        }
    }
    Err(Malformed)
}

#[cfg(test)]
pub(super) mod tests {
    use thalweg_types::codec::put_varint;

    use super::*;

    type Pair<'a> = (&'a [u8], Option<&'a [u8]>);

    fn bytes_of(pairs: &[Pair<'_>]) -> Vec<u8> {
        let (mut data, mut offsets) = (Vec::new(), Vec::new());
        for (key, value) in pairs {
            offsets.push(data.len() as u16);
            data.push(if value.is_some() { TYPE_VALUE } else { TYPE_DELETE });
            put_varint(&mut data, (1 << 32) + 5);
            put_varint(&mut data, key.len() as u64);
            data.extend_from_slice(key);
            if let Some(value) = value {
                put_varint(&mut data, value.len() as u64);
                data.extend_from_slice(value);
            }
        }
        data.push(END_OF_ITEMS);
        let offsets_at = data.len() as u32;
        offsets.iter().for_each(|offset| data.extend_from_slice(&offset.to_le_bytes()));
        data.extend_from_slice(&[1, 2]);
        for field in [pairs.len() as u32, offsets_at, 0, 0] {
            data.extend_from_slice(&field.to_le_bytes());
        }
        data.extend_from_slice(&[0; 13]);
        data
    }

    pub(crate) fn block_of(pairs: &[Pair<'_>]) -> DataBlock {
        DataBlock::new(bytes_of(pairs).into()).unwrap()
    }

    /// Checks that every key is found in a block with these keys. Compares the ranks of these keys, and of keys next to
    /// them, with the ranks that a search in the list of keys returns.
    fn check(keys: &[Vec<u8>]) {
        let value = |number: usize| (!number.is_multiple_of(3)).then(|| &b"some value"[..number % 7]);
        let pairs: Vec<Pair<'_>> = keys.iter().enumerate().map(|(number, key)| (&key[..], value(number))).collect();
        let block = block_of(&pairs);
        assert_eq!(block.len(), keys.len());
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(block.find(key), Some(number), "{key:?}");
            assert_eq!((block.key(number), block.value(number)), (&key[..], value(number)));
            let shorter = key[..key.len() - 1].to_vec();
            let greater: Vec<u8> = key.iter().map(|byte| byte.saturating_add(1)).collect();
            let lesser: Vec<u8> = key.iter().map(|byte| byte.saturating_sub(1)).collect();
            for probe in [key.clone(), shorter, greater, lesser, [key, &b"\0"[..]].concat(), vec![], vec![255; 9]] {
                let before = keys.partition_point(|key| *key < probe);
                let upto = keys.partition_point(|key| *key <= probe);
                assert_eq!((block.rank(&probe, false), block.rank(&probe, true)), (before, upto), "{probe:?}");
                assert_eq!(block.find(&probe), (upto > before).then_some(before), "{probe:?}");
            }
        }
    }

    #[test]
    fn a_visit_passes_over_deletes_and_may_be_ended() {
        let pairs: [Pair<'_>; 4] = [(b"a", Some(b"1")), (b"b", None), (b"c", Some(b"")), (b"d", Some(b"4"))];
        let block = block_of(&pairs);
        let visited = |items, direction, limit| {
            let mut seen = Vec::new();
            let ended = block.visit(items, direction, &mut |key, value| {
                seen.push((key.to_vec(), value.to_vec()));
                if seen.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            let seen: Vec<String> =
                seen.into_iter().map(|(key, value)| String::from_utf8([key, value].concat()).unwrap()).collect();
            (seen.join(" "), ended.is_break())
        };
        assert_eq!(visited(0..4, Direction::Forward, 9), ("a1 c d4".to_owned(), false));
        assert_eq!(visited(0..4, Direction::Reverse, 9), ("d4 c a1".to_owned(), false));
        assert_eq!(visited(1..3, Direction::Forward, 9), ("c".to_owned(), false));
        assert_eq!(visited(1..4, Direction::Reverse, 2), ("d4 c".to_owned(), true));
        assert_eq!(visited(2..2, Direction::Forward, 9), (String::new(), false));
    }

    #[test]
    fn search_agrees_with_a_plain_one() {
        check(&[b"a".to_vec()]);
        check(&(0..1000).map(|number| format!("some keyspace/{number:06}").into_bytes()).collect::<Vec<_>>());
        // One key differs from all others. The others have equal heads.
        let alike = (0..300).map(|number| format!("zzzzzzzz{number:04}").into_bytes());
        check(&[b"a".to_vec()].into_iter().chain(alike).collect::<Vec<_>>());
        // Keys that are prefixes of one another, zero bytes at their ends, and bytes above 127.
        let mut keys: Vec<Vec<u8>> = (1..9).map(|len| vec![0; len]).collect();
        keys.extend((1..9).map(|len| vec![200; len]));
        keys.extend((100..255).map(|byte| vec![b'k', byte, 0]));
        keys.sort();
        check(&keys);
    }

    #[test]
    fn damage_is_an_error_or_other_content_but_no_panic() {
        let pairs: [Pair<'_>; 3] = [(b"key 1", Some(b"value")), (b"key 2", None), (b"key 3", Some(b""))];
        let whole = bytes_of(&pairs);
        for at in 0..whole.len() {
            assert!(DataBlock::new(Bytes::copy_from_slice(&whole[..at])).is_err(), "cut to {at} bytes");
            for byte in 0..=255 {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                let Ok(block) = DataBlock::new(damaged.into()) else { continue };
                for number in 0..block.len() {
                    assert_eq!(block.find(block.key(number)), Some(number));
                    let _ = block.value(number);
                }
            }
        }
    }
}
