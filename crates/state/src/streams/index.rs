//! Index entries: where each batch of a stream lies.
//!
//! ```text
//! entry  := BlobRef (20 bytes) | count u32 | time u64 | bytes before u64      little-endian; 40 bytes
//! sparse := entry | kept u32 | last time u64 | source bytes u64               60 bytes
//! ```
//! An entry of a sparse batch stands for the offsets of all batches that it replaced, of which it holds
//! `kept` records; `time` is that of the first of these batches and `last time` of the last; `source
//! bytes` is what they weighed when they were appended. If no record is left there are no bytes, and the
//! pointer is all zero.
//! `bytes before` counts the bytes of all batches ever appended before this one, so what a range of
//! batches weighs is a subtraction. Reads go through one [`View`], so a head and the entries it
//! promises are always of the same moment.

use std::ops::{Bound, ControlFlow};

use thalweg_store::{Direction, View};
use thalweg_types::{BlobRef, Offset, SpaceTime, StreamId};

use crate::{error::MachineError, keys, streams::heads::Head};

pub(crate) const ENTRY_LEN: usize = BlobRef::ENCODED_LEN + 20;

/// With what a sparse batch adds.
pub(crate) const SPARSE_LEN: usize = ENTRY_LEN + 20;

const _: () = assert!(ENTRY_LEN == 40 && SPARSE_LEN == 60);

/// What the index says of one batch; its first offset is in the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) blob: BlobRef,
    /// At least 1.
    pub(crate) count: u32,
    pub(crate) time: SpaceTime,
    pub(crate) bytes_before: u64,
    /// If compaction has replaced what was there.
    pub(crate) sparse: Option<Sparse>,
}

/// What is left of the batches that a sparse one stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sparse {
    pub(crate) kept: u32,
    /// Of the last batch replaced.
    pub(crate) last_time: SpaceTime,
    /// Bytes of the batches replaced, as they were appended.
    pub(crate) source_bytes: u64,
}

/// An encoded entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row([u8; SPARSE_LEN], usize);

impl Row {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0[..self.1]
    }
}

impl IndexEntry {
    /// When the last of its records was appended.
    pub(crate) fn last_time(&self) -> SpaceTime {
        self.sparse.map_or(self.time, |sparse| sparse.last_time)
    }

    /// Bytes that were appended where it stands.
    pub(crate) fn source_bytes(&self) -> u64 {
        self.sparse.map_or(u64::from(self.blob.len), |sparse| sparse.source_bytes)
    }

    /// Bytes that compaction has saved in it; negative if it has added some.
    pub(crate) fn saved_bytes(&self) -> i64 {
        self.source_bytes().cast_signed() - i64::from(self.blob.len)
    }

    pub(crate) fn encode(&self) -> Row {
        let mut row = [0; SPARSE_LEN];
        let Some(sparse) = self.sparse else {
            row[..ENTRY_LEN].copy_from_slice(&self.encode_dense());
            return Row(row, ENTRY_LEN);
        };
        row[..ENTRY_LEN].copy_from_slice(&self.encode_dense());
        row[40..44].copy_from_slice(&sparse.kept.to_le_bytes());
        row[44..52].copy_from_slice(&sparse.last_time.0.to_le_bytes());
        row[52..].copy_from_slice(&sparse.source_bytes.to_le_bytes());
        Row(row, SPARSE_LEN)
    }

    /// The first 40 bytes, which are all of an entry that is not sparse.
    pub(crate) fn encode_dense(&self) -> [u8; ENTRY_LEN] {
        let mut row = [0; ENTRY_LEN];
        row[..20].copy_from_slice(&self.blob.encode());
        row[20..24].copy_from_slice(&self.count.to_le_bytes());
        row[24..32].copy_from_slice(&self.time.0.to_le_bytes());
        row[32..].copy_from_slice(&self.bytes_before.to_le_bytes());
        row
    }

    pub(crate) fn decode(key: &[u8], row: &[u8]) -> Result<(Offset, Self), MachineError> {
        let corrupt = |message| MachineError::corrupt("stream index entry", key, message);
        if row.len() != ENTRY_LEN && row.len() != SPARSE_LEN {
            return Err(corrupt("row of a wrong length"));
        }
        let u64_at = |at: usize| u64::from_le_bytes(row[at..at + 8].try_into().expect("8 bytes"));
        let entry = Self {
            blob: BlobRef::decode(&row[..20]).ok_or_else(|| corrupt("no pointer"))?,
            count: u32::from_le_bytes(row[20..24].try_into().expect("4 bytes")),
            time: SpaceTime(u64_at(24)),
            bytes_before: u64_at(32),
            sparse: (row.len() == SPARSE_LEN).then(|| Sparse {
                kept: u32::from_le_bytes(row[40..44].try_into().expect("4 bytes")),
                last_time: SpaceTime(u64_at(44)),
                source_bytes: u64_at(52),
            }),
        };
        let first = keys::first_offset_of(key).ok_or_else(|| corrupt("key of a wrong length"))?;
        if entry.count == 0 || first.0.checked_add(u64::from(entry.count)).is_none() {
            return Err(corrupt("count of 0, or past the last offset"));
        }
        Ok((first, entry))
    }

    /// The offset after the batch that begins at `first`.
    pub(crate) fn end(&self, first: Offset) -> Offset {
        first.plus(u64::from(self.count))
    }
}

/// A stream's head as of the view.
pub(crate) fn head(view: &dyn View, stream: StreamId) -> Result<Option<Head>, MachineError> {
    let key = keys::stream_head(stream);
    view.get(&key)?.map(|row| Head::decode(&key, &row)).transpose()
}

/// The entry of the batch that begins exactly there.
pub(crate) fn entry_at(view: &dyn View, stream: StreamId, first: Offset) -> Result<Option<IndexEntry>, MachineError> {
    let key = keys::index_entry(stream, first);
    Ok(view.get(&key)?.map(|row| IndexEntry::decode(&key, &row)).transpose()?.map(|(_, entry)| entry))
}

/// The batch that holds an offset, which the head says is there. One point lookup.
pub(crate) fn batch_with(
    view: &dyn View,
    stream: StreamId,
    offset: Offset,
) -> Result<(Offset, IndexEntry), MachineError> {
    let lower = keys::index_entry(stream, Offset::ZERO);
    let upper = keys::index_entry(stream, offset);
    let mut found = None;
    view.scan(Bound::Included(&lower), Bound::Included(&upper), Direction::Reverse, &mut |key, row| {
        found = Some(IndexEntry::decode(key, row));
        ControlFlow::Break(())
    })?;
    let missing = || MachineError::corrupt("stream index entry", &upper, "no entry holds this offset");
    let (first, entry) = found.ok_or_else(missing)??;
    if entry.end(first) <= offset { Err(missing()) } else { Ok((first, entry)) }
}

/// Visits the entries of batches from the one that begins at `from` up to `end`, in order, and checks
/// that they tile the range. Returns where it stopped: `end`, or the end of the batch it broke after,
/// or where the entries end.
pub(crate) fn visit(
    view: &dyn View,
    stream: StreamId,
    from: Offset,
    end: Offset,
    visit: &mut dyn FnMut(Offset, &IndexEntry) -> ControlFlow<()>,
) -> Result<Offset, MachineError> {
    let lower = keys::index_entry(stream, from);
    let upper = keys::index_entry(stream, end);
    let mut expected = from;
    let mut failure = None;
    if from >= end {
        return Ok(from);
    }
    view.scan(Bound::Included(&lower), Bound::Excluded(&upper), Direction::Forward, &mut |key, row| {
        match IndexEntry::decode(key, row) {
            Ok((first, entry)) if first == expected && entry.end(first) <= end => {
                let flow = visit(first, &entry);
                expected = entry.end(first);
                flow
            }
            Ok(_) => {
                failure = Some(MachineError::corrupt(
                    "stream index entry",
                    key,
                    "does not follow the one before, or reaches past the end",
                ));
                ControlFlow::Break(())
            }
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    failure.map_or(Ok(expected), Err)
}

/// Checks that a batch lies where the head says that there are readable ones.
pub(crate) fn check_within(
    stream: StreamId,
    head: &Head,
    first: Offset,
    entry: &IndexEntry,
) -> Result<(), MachineError> {
    let bytes = entry.bytes_before.saturating_add(entry.source_bytes());
    if first < head.start_batch
        || entry.end(first) > head.next
        || entry.bytes_before < head.start_bytes
        || bytes > head.end_bytes
    {
        let key = keys::index_entry(stream, first);
        return Err(MachineError::corrupt("stream index entry", &key, "reaches past what the head says"));
    }
    Ok(())
}

/// The first batch among those from `head.start_batch` on for which `wanted` holds; `wanted` must stay
/// true once it is. Binary search over offsets: O(log n) point lookups.
pub(crate) fn first_where(
    view: &dyn View,
    stream: StreamId,
    head: &Head,
    wanted: impl Fn(&IndexEntry) -> bool,
) -> Result<Offset, MachineError> {
    // Invariant: batches that end at or below `low` are not wanted; those that begin at or above `high` are.
    let (mut low, mut high) = (head.start_batch, head.next);
    while low < high {
        let middle = Offset(low.0 + (high.0 - low.0) / 2);
        let (first, entry) = batch_with(view, stream, middle)?;
        check_within(stream, head, first, &entry)?;
        if wanted(&entry) {
            high = first;
        } else {
            low = entry.end(first);
        }
    }
    Ok(high)
}

#[cfg(test)]
mod tests {
    use thalweg_types::Generation;

    use super::*;

    #[test]
    fn entry_layout_is_pinned() {
        let blob = BlobRef { generation: Generation(1), offset: 2, len: 3, crc: 4 };
        let entry = IndexEntry { blob, count: 5, time: SpaceTime(6), bytes_before: 7, sparse: None };
        let row = b"\x01\0\0\0\0\0\0\0\x02\0\0\0\x03\0\0\0\x04\0\0\0\x05\0\0\0\x06\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0";
        assert_eq!(entry.encode().bytes(), row);
        let key = keys::index_entry(StreamId(1), Offset(9));
        assert_eq!(IndexEntry::decode(&key, row).unwrap(), (Offset(9), entry));
        assert!(IndexEntry::decode(&key, &row[1..]).is_err());
        assert!(IndexEntry::decode(b"short", row).is_err());
        assert!(IndexEntry::decode(&keys::index_entry(StreamId(1), Offset::MAX), row).is_err());
        let empty = IndexEntry { count: 0, ..entry };
        assert!(IndexEntry::decode(&key, empty.encode().bytes()).is_err());
        let left = Sparse { kept: 1, last_time: SpaceTime(2), source_bytes: 30 };
        let sparse = IndexEntry { sparse: Some(left), ..entry };
        let added = b"\x01\0\0\0\x02\0\0\0\0\0\0\0\x1e\0\0\0\0\0\0\0";
        assert_eq!(sparse.encode().bytes(), [row.as_slice(), added].concat());
        assert_eq!(IndexEntry::decode(&key, sparse.encode().bytes()).unwrap(), (Offset(9), sparse));
        assert_eq!((sparse.saved_bytes(), entry.saved_bytes(), sparse.last_time()), (27, 0, SpaceTime(2)));
    }
}
