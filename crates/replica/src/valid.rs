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
use thalweg_types::{Lsn, SpaceId};

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

    /// Adds the truncations that the log has gained, and keeps the known ones behind `from`. A reader that still holds a
    /// freed segment needs the truncations of the other segments that were freed with it.
    pub fn go_on(&mut self, log: &Log, from: Lsn) {
        self.merge(&log.truncations(), from);
    }

    fn merge(&mut self, newer: &Arc<Vec<Truncation>>, from: Lsn) {
        let is_gone = |known: &&Truncation| {
            let covers = |other: &Truncation| other.space == known.space && other.index <= known.index;
            known.lsn > from && !newer.iter().any(|other| other.lsn >= known.lsn && covers(other))
        };
        let mut kept: Vec<_> = self.truncations.iter().filter(is_gone).copied().collect();
        if kept.is_empty() {
            self.truncations = Arc::clone(newer);
            return;
        }
        kept.extend(newer.iter());
        kept.sort_unstable_by_key(|truncation| truncation.lsn);
        self.truncations = Arc::new(kept);
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

#[cfg(test)]
mod tests {
    use thalweg_types::Index;

    use super::*;

    fn truncation(space: u32, lsn: u64, index: u64) -> Truncation {
        Truncation { space: SpaceId(space), lsn: Lsn(lsn), index: Index(index) }
    }

    fn merged(known: &[Truncation], newer: &[Truncation], from: u64) -> Vec<Truncation> {
        let mut valid = Valid { space: SpaceId(0), truncations: Arc::new(known.to_vec()) };
        valid.merge(&Arc::new(newer.to_vec()), Lsn(from));
        valid.truncations.to_vec()
    }

    #[test]
    fn truncations_that_the_log_has_lost_stay_known_to_those_who_are_before_them() {
        let [early, late, other] = [truncation(0, 20, 5), truncation(0, 40, 9), truncation(1, 30, 2)];
        assert_eq!(merged(&[early, other], &[late], 10), [early, other, late]);
        assert_eq!(merged(&[early, other], &[late], 20), [other, late], "who is behind it needs it no more");
        assert_eq!(merged(&[early], &[early, late], 10), [early, late]);
        let covering = truncation(0, 50, 4);
        assert_eq!(merged(&[early, late], &[covering], 10), [covering], "a later one that does all that they did");
        assert_eq!(merged(&[early], &[], 10), [early]);
    }
}
