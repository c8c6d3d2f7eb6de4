//! Index entries: where each batch of a stream lies.
//!
//! ```text
//! entry := BlobRef (20 bytes) | count u32 | time u64 | bytes before u64       little-endian; 40 bytes
//! ```
//! `bytes before` counts the bytes of all batches ever appended before this one, so what a range of
//! batches weighs is a subtraction. Reads go through one [`View`], so a head and the entries it
//! promises are always of the same moment.

use std::ops::{Bound, ControlFlow};

use thalweg_types::{BlobRef, Offset, SpaceTime, StreamId};

use crate::{
    backend::{Direction, View},
    keys,
    machine::MachineError,
    streams::Head,
};

pub(crate) const ENTRY_LEN: usize = BlobRef::ENCODED_LEN + 20;

const _: () = assert!(ENTRY_LEN == 40);

/// What the index says of one batch; its first offset is in the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) blob: BlobRef,
    /// At least 1.
    pub(crate) count: u32,
    pub(crate) time: SpaceTime,
    pub(crate) bytes_before: u64,
}

impl IndexEntry {
    pub(crate) fn encode(&self) -> [u8; ENTRY_LEN] {
        let mut row = [0; ENTRY_LEN];
        row[..20].copy_from_slice(&self.blob.encode());
        row[20..24].copy_from_slice(&self.count.to_le_bytes());
        row[24..32].copy_from_slice(&self.time.0.to_le_bytes());
        row[32..].copy_from_slice(&self.bytes_before.to_le_bytes());
        row
    }

    pub(crate) fn decode(key: &[u8], row: &[u8]) -> Result<(Offset, Self), MachineError> {
        let corrupt = |message| MachineError::corrupt("stream index entry", key, message);
        let row: &[u8; ENTRY_LEN] = row.try_into().map_err(|_| corrupt("row of a wrong length"))?;
        let u64_at = |at: usize| u64::from_le_bytes(row[at..at + 8].try_into().expect("8 bytes"));
        let entry = Self {
            blob: BlobRef::decode(&row[..20]).ok_or_else(|| corrupt("no pointer"))?,
            count: u32::from_le_bytes(row[20..24].try_into().expect("4 bytes")),
            time: SpaceTime(u64_at(24)),
            bytes_before: u64_at(32),
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
    let bytes = entry.bytes_before.saturating_add(u64::from(entry.blob.len));
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
        let entry = IndexEntry { blob, count: 5, time: SpaceTime(6), bytes_before: 7 };
        let row = b"\x01\0\0\0\0\0\0\0\x02\0\0\0\x03\0\0\0\x04\0\0\0\x05\0\0\0\x06\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0";
        assert_eq!(&entry.encode(), row);
        let key = keys::index_entry(StreamId(1), Offset(9));
        assert_eq!(IndexEntry::decode(&key, row).unwrap(), (Offset(9), entry));
        assert!(IndexEntry::decode(&key, &row[1..]).is_err());
        assert!(IndexEntry::decode(b"short", row).is_err());
        assert!(IndexEntry::decode(&keys::index_entry(StreamId(1), Offset::MAX), row).is_err());
        let empty = IndexEntry { count: 0, ..entry };
        assert!(IndexEntry::decode(&key, &empty.encode()).is_err());
    }
}
