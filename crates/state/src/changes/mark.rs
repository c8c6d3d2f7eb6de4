//! Marks: where in the log the entry lies before which a revision was the last one used.
//!
//! ```text
//! mark := lsn u64 | index u64                  at key 0c | revision u64 BE; value little-endian
//! ```
//! Which entries get one follows from where they lie, so that a replay writes the same. They are sparse: one
//! entry in [`STEP_RECORDS`], and one per [`STEP_BYTES`] of a segment. A reader that looks for a revision
//! reads that much of the log for nothing.

use thalweg_store::Applied;
use thalweg_types::{Index, Lsn, Revision};

use crate::entry::Entry;

/// Records between marks.
const STEP_RECORDS: u64 = 256;
/// Bytes of a segment between marks.
const STEP_BYTES: u64 = 1024 * 1024;

/// Where reading may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The last revision used before the entry.
    pub revision: Revision,
    /// The entry's record.
    pub lsn: Lsn,
    /// The entry.
    pub index: Index,
}

/// Whether the entry, applied to what was `before`, gets a mark. The very first commit is behind one.
#[inline]
pub(crate) fn is_due(entry: &Entry<'_>, before: &Applied) -> bool {
    let start = u64::from(entry.at.offset);
    before.revision == Revision::ZERO
        || before.lsn.0 / STEP_RECORDS != entry.next_lsn.0 / STEP_RECORDS
        || start / STEP_BYTES != (start + entry.payload.len() as u64) / STEP_BYTES
}

impl Mark {
    /// Of an entry that is applied to what was `before`.
    pub(crate) fn of(entry: &Entry<'_>, before: &Applied) -> Self {
        Self { revision: before.revision, lsn: Lsn(entry.next_lsn.0 - 1), index: entry.index }
    }

    pub(crate) fn encode(&self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.lsn.0.to_le_bytes());
        out[8..].copy_from_slice(&self.index.0.to_le_bytes());
        out
    }

    /// `None` if the row is of another length.
    pub(crate) fn decode(revision: Revision, row: &[u8]) -> Option<Self> {
        let (lsn, index) = row.split_first_chunk::<8>()?;
        let index = index.try_into().ok().map(u64::from_le_bytes)?;
        Some(Self { revision, lsn: Lsn(u64::from_le_bytes(*lsn)), index: Index(index) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_pinned() {
        let mark = Mark { revision: Revision(1), lsn: Lsn(258), index: Index(3) };
        let row = b"\x02\x01\0\0\0\0\0\0\x03\0\0\0\0\0\0\0";
        assert_eq!(mark.encode(), *row);
        assert_eq!(Mark::decode(Revision(1), row), Some(mark));
        assert_eq!(Mark::decode(Revision(1), &row[1..]), None);
        assert_eq!(Mark::decode(Revision(1), &[0; 17]), None);
    }
}
