//! Which records of a space count.
//!
//! Owns: the rule by which a truncation voids entries. Replay, watches, snapshots and the freeing of segments all ask here.
//! Does not own: the table of truncations, which the log keeps ([`Log::truncations`]).
//!
//! The rule: an entry (a record that [has an index](thalweg_log::RecordKind::has_index)) at LSN `n` with index `i` is void
//! if a truncation of its space lies behind it, at an LSN above `n`, whose index is `i` or below. A truncation names the
//! first index that it takes back. Entries that are appended after it have these indexes again, and count. Other records
//! (votes, moves, purges) are the node's own and never void.
//!
//! ```text
//! LSN    10  11  12  13          14  15
//! index   5   6   7  truncate 6   6   7        void: those at 11 and 12
//! ```
//!
//! Invariant: below what the state has applied, each entry was applied or is void by a truncation that is in the log by
//! now, below what is applied or above: a node applies an entry, or passes the truncation that took it back, before the
//! records behind it.

use std::sync::Arc;

use thalweg_log::{Log, LogRecord, Truncation};
use thalweg_types::SpaceId;

/// Tells void entries of one space from those that count, as of when it was made. Cheap to make.
#[derive(Clone, Debug)]
pub struct Valid {
    space: SpaceId,
    /// Of all spaces; rising by LSN, and among those of one space by index.
    truncations: Arc<Vec<Truncation>>,
}

impl Valid {
    /// Of a space, by the truncations that its log holds now. Records that can be read in order, or that lie in the segments
    /// at the begin of the log, are told apart rightly.
    #[must_use]
    pub fn of(log: &Log, space: SpaceId) -> Self {
        Self { space, truncations: log.truncations() }
    }

    /// Whether entries of the space were ever taken back, as far as the log still shows it.
    #[must_use]
    pub fn has_truncations(&self) -> bool {
        self.truncations.iter().any(|truncation| truncation.space == self.space)
    }

    /// Whether a record is an entry of the space that a later truncation has taken back.
    #[must_use]
    pub fn is_void(&self, record: &LogRecord) -> bool {
        if self.truncations.is_empty() || record.space != self.space || !record.kind.has_index() {
            return false;
        }
        let behind = self.truncations.partition_point(|truncation| truncation.lsn <= record.lsn);
        // The first behind it has the lowest index of all that are behind it.
        let first = self.truncations[behind..].iter().find(|truncation| truncation.space == self.space);
        first.is_some_and(|truncation| truncation.index <= record.index)
    }

    /// Whether a record is an entry of the space, and counts.
    #[must_use]
    pub fn is_entry(&self, record: &LogRecord) -> bool {
        record.space == self.space && record.kind.has_index() && !self.is_void(record)
    }
}
