//! Marks: rows with the log position of an entry. The key of a mark is the last revision used before the entry.
//!
//! ```text
//! mark := lsn u64 | index u64                  at key 0c | revision u64 BE; value little-endian
//! ```
//! The position of an entry alone decides if it gets a mark, so a replay writes the same marks. Marks are sparse: one
//! in [`STEP_RECORDS`] records, and one for each [`STEP_BYTES`] of a segment. A reader that searches for a revision
//! reads at most that much of the log before it finds the revision.

use thalweg_store::Applied;
use thalweg_types::{Index, Lsn, Revision};

use crate::entry::Entry;

/// Number of log records after which the next entry gets a mark: a row with its log position.
const STEP_RECORDS: u64 = 256;
/// Number of bytes of a log segment after which the next entry gets a mark: a row with its log position. When old
/// segments are freed, the history begins at the first mark that is left. A step far below the size of a segment
/// therefore keeps most of the oldest segment readable.
const STEP_BYTES: u64 = 128 * 1024;

/// A mark: a log position at which reading of changes can begin, with the revision reached there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Last revision that a command before the marked log entry used.
    pub revision: Revision,
    /// LSN of the log record that contains the entry to which the mark belongs.
    pub lsn: Lsn,
    /// Index of the marked log entry.
    pub index: Index,
}

/// Returns true if the log entry gets a mark: a row with its log position. `before` is the state's position before the
/// entry. Until the first revision is used, every entry gets one, so a mark precedes the very first commit.
#[inline]
pub(crate) fn is_due(entry: &Entry<'_>, before: &Applied) -> bool {
    let start = u64::from(entry.at.offset);
    before.revision == Revision::ZERO
        || before.lsn.0 / STEP_RECORDS != entry.next_lsn.0 / STEP_RECORDS
        || start / STEP_BYTES != (start + entry.payload.len() as u64) / STEP_BYTES
}

impl Mark {
    /// Creates the mark (row with the log position) of an entry. `before` is the state's position before the entry.
    pub(crate) fn of(entry: &Entry<'_>, before: &Applied) -> Self {
        Self { revision: before.revision, lsn: Lsn(entry.next_lsn.0 - 1), index: entry.index }
    }

    pub(crate) fn encode(&self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.lsn.0.to_le_bytes());
        out[8..].copy_from_slice(&self.index.0.to_le_bytes());
        out
    }

    /// Decodes a mark (log position of a revision) from its row; returns `None` if the row has another length.
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
