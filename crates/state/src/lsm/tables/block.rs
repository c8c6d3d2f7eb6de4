//! A data block of a table, read in place.
//!
//! Owns: finding and decoding the pairs of one block, without allocating and without materialising
//! what is not asked for. Does not own: getting the block, or checking its checksum (done when it was
//! read from disk; from there on its bytes are trusted to be what was written, but a decoder's error is
//! still an error and never a panic).
//!
//! ```text
//! block   := item* | 255 | offset of each item, u16 or u32 | hash bucket u8* | trailer
//! item    := type u8 | seqno varint | key_len varint | key | (value_len varint | value)?
//! trailer := 1 u8 | offset_bytes u8 | items u32 | offsets_at u32 | buckets u32 | buckets_at u32 | 13 bytes
//! ```
//! This is the crate's format at restart interval 1 (the leading 1 of the trailer), where every item is
//! whole and has an offset. A bucket holds an item's number, 254 if no key hashes to it, 255 if several
//! do. Deletes have no value.

use std::cmp::Ordering;

use bytes::Bytes;

const TRAILER_BYTES: usize = 31;
const BUCKET_FREE: u8 = 254;
const BUCKET_CONFLICT: u8 = 255;
const TYPE_VALUE: u8 = 0;
const TYPE_DELETE: u8 = 1;

/// The block's bytes don't follow the format.
#[derive(Debug)]
pub(super) struct Malformed;

/// A block. Cloning shares the bytes.
#[derive(Clone)]
pub(super) struct DataBlock {
    data: Bytes,
    offset_bytes: usize,
    offsets_at: usize,
    items: usize,
    buckets_at: usize,
    buckets: usize,
}

/// One pair; `value: None` is a delete.
#[derive(Clone, Copy)]
pub(super) struct Item<'a> {
    pub key: &'a [u8],
    pub value: Option<&'a [u8]>,
    /// Where the next item begins.
    pub end: usize,
}

impl DataBlock {
    pub(super) fn new(data: Bytes) -> Result<Self, Malformed> {
        let at = data.len().checked_sub(TRAILER_BYTES).ok_or(Malformed)?;
        let field = |number: usize| u32_at(&data, at + 2 + 4 * number);
        let block = Self {
            offset_bytes: usize::from(data[at + 1]),
            items: field(0),
            offsets_at: field(1),
            buckets: field(2),
            buckets_at: field(3),
            data,
        };
        let offsets_end = block.items.checked_mul(block.offset_bytes).and_then(|len| len.checked_add(block.offsets_at));
        let buckets_end = block.buckets.checked_add(block.buckets_at);
        let fits = |end: Option<usize>| end.is_some_and(|end| end <= at);
        let known = block.data[at] == 1 && matches!(block.offset_bytes, 2 | 4);
        if known && fits(offsets_end) && fits(buckets_end) { Ok(block) } else { Err(Malformed) }
    }

    /// How many items.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.items
    }

    /// The bytes that items borrow from.
    pub(super) fn data(&self) -> &Bytes {
        &self.data
    }

    /// Where an item begins.
    #[inline]
    pub(super) fn offset(&self, number: usize) -> usize {
        let at = self.offsets_at + number * self.offset_bytes;
        if self.offset_bytes == 2 {
            usize::from(u16::from_le_bytes([self.data[at], self.data[at + 1]]))
        } else {
            u32_at(&self.data, at)
        }
    }

    /// The item that begins at an offset.
    #[inline]
    pub(super) fn item_at(&self, offset: usize) -> Result<Item<'_>, Malformed> {
        let data = self.data.get(..self.offsets_at).ok_or(Malformed)?;
        let kind = *data.get(offset).ok_or(Malformed)?;
        let (key, at) = self.key_at(offset)?;
        match kind {
            TYPE_VALUE => {
                let (len, at) = varint(data, at)?;
                let value = data.get(at..at + len).ok_or(Malformed)?;
                Ok(Item { key, value: Some(value), end: at + len })
            }
            TYPE_DELETE => Ok(Item { key, value: None, end: at }),
            _ => Err(Malformed),
        }
    }

    /// The key of the item at an offset, and where it ends.
    #[inline]
    fn key_at(&self, offset: usize) -> Result<(&[u8], usize), Malformed> {
        let data = &self.data[..self.offsets_at];
        let mut at = offset + 1;
        while *data.get(at).ok_or(Malformed)? & 0x80 != 0 {
            at += 1;
        }
        let (len, at) = varint(data, at + 1)?;
        let key = data.get(at..at + len).ok_or(Malformed)?;
        Ok((key, at + len))
    }

    /// How many items' keys come before `key`, or before and at it.
    pub(super) fn rank(&self, key: &[u8], inclusive: bool) -> Result<usize, Malformed> {
        let (mut low, mut high) = (0, self.items);
        while low < high {
            let middle = usize::midpoint(low, high);
            let (at, _) = self.key_at(self.offset(middle))?;
            match at.cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal if inclusive => low = middle + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// The item with exactly this key.
    #[inline]
    pub(super) fn find(&self, key: &[u8], hash: u64) -> Result<Option<Item<'_>>, Malformed> {
        let number = match self.bucket(hash) {
            BUCKET_FREE => return Ok(None),
            BUCKET_CONFLICT => self.rank(key, false)?,
            number => usize::from(number),
        };
        if number >= self.items {
            return Ok(None);
        }
        let item = self.item_at(self.offset(number))?;
        Ok((item.key == key).then_some(item))
    }

    #[inline]
    fn bucket(&self, hash: u64) -> u8 {
        if self.buckets == 0 {
            return BUCKET_CONFLICT;
        }
        self.data[self.buckets_at + (hash % self.buckets as u64) as usize]
    }
}

#[inline]
fn u32_at(data: &[u8], at: usize) -> usize {
    u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]) as usize
}

/// A length of at most 32 bits at `at`, and where it ends.
#[inline]
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
