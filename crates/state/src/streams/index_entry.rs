//! Index entries of a stream: rows with the log position of one batch.
//!
//! ```text
//! entry  := BlobRef (20 bytes) | count u32 | time u64 | bytes before u64      little-endian; 40 bytes
//! sparse := entry | kept u32 | last time u64 | source bytes u64               60 bytes
//! ```
//! The entry of a sparse batch covers the offsets of all batches that it replaced, of which it contains `kept`
//! records. `time` is that of the first of these batches and `last time` that of the last; `source bytes` is their
//! total size when they were appended. If no record is left there are no bytes, and the pointer is all zeros.
//!
//! `bytes before` is the size of all batches ever appended before this one, so the size of a range of batches is a
//! subtraction.

use thalweg_types::{BlobRef, Offset, SpaceTime};

use crate::{error::MachineError, keys};

pub(crate) const ENTRY_LEN: usize = BlobRef::ENCODED_LEN + 20;

/// Length in bytes of the index entry of a sparse (compacted) batch.
pub(crate) const SPARSE_LEN: usize = ENTRY_LEN + 20;

const _: () = assert!(ENTRY_LEN == 40 && SPARSE_LEN == 60);

/// The index entry of one batch of a stream, with the batch's log position. The batch's first offset is in the row key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) blob: BlobRef,
    /// Number of offsets that the batch covers, at least 1.
    pub(crate) count: u32,
    pub(crate) time: SpaceTime,
    pub(crate) bytes_before: u64,
    /// Additional fields of a sparse batch, with which compaction has replaced the original batches; `None` for an
    /// original batch.
    pub(crate) sparse: Option<Sparse>,
}

/// Additional fields in the index entry of a sparse batch, with which compaction has replaced other batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sparse {
    pub(crate) kept: u32,
    /// Time at which the last of the replaced batches was appended.
    pub(crate) last_time: SpaceTime,
    /// Total bytes of the replaced batches when they were appended.
    pub(crate) source_bytes: u64,
}

/// An encoded index entry of 40 or 60 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row([u8; SPARSE_LEN], usize);

impl Row {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0[..self.1]
    }
}

impl IndexEntry {
    /// Returns the time at which the last record of the batch was appended.
    pub(crate) fn last_time(&self) -> SpaceTime {
        self.sparse.map_or(self.time, |sparse| sparse.last_time)
    }

    /// Returns the bytes that were originally appended for the offsets of this batch.
    pub(crate) fn source_bytes(&self) -> u64 {
        self.sparse.map_or(u64::from(self.blob.len), |sparse| sparse.source_bytes)
    }

    /// Returns the number of bytes that compaction has saved in this batch; negative if compaction has made it larger.
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

    /// Encodes the first 40 bytes of the row. They are the whole row unless the batch is sparse.
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

    /// Returns the offset after the batch that begins at `first`.
    pub(crate) fn end(&self, first: Offset) -> Offset {
        first.plus(u64::from(self.count))
    }
}

#[cfg(test)]
mod tests {

    use thalweg_types::{Generation, StreamId};

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
