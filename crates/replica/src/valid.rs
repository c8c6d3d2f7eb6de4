//! Validity of the log records of a space (Raft group): entries can become void (invalid) by later truncations of the
//! log.
//!
//! Owns: the rule by which a truncation voids entries. Replay, watches, snapshots and the freeing of segments
//! all use it. Does not own: the table of truncations, which is part of the log ([`Log::truncations`]).
//!
//! The rule: an entry is a record that [has an index](thalweg_log::RecordKind::has_index). An entry at LSN `n` with
//! index `i` is void if a later truncation of its Raft group (at an LSN above `n`) has an index of `i` or lower. A
//! truncation contains the first index that it voids. Entries appended after it use these indexes again, and are valid.
//! Other records (votes, moves, purges) belong to the node and are never void.
//!
//! ```text
//! LSN    10  11  12  13          14  15
//! index   5   6   7  truncate 6   6   7        void: those at 11 and 12
//! ```
//!
//! Invariant: the state has applied each entry below its applied position, except for entries that a truncation in the
//! log voids (before or after that position). Reason: the applied position passes an entry only if the node applies the
//! entry, or if the log already contains the truncation that voids it.

use std::sync::Arc;

use thalweg_log::{Log, LogRecord, Truncation};
use thalweg_types::{Lsn, SpaceId};

/// Rule that distinguishes valid from void entries of one space (Raft group). It knows the truncations that the log
/// contained when it was created or last updated. Creating it is cheap.
#[derive(Clone, Debug)]
pub struct Valid {
    space: SpaceId,
    /// Truncation records of all spaces, ordered by LSN. The truncations of one space (Raft group) are also ordered by
    /// index.
    truncations: Arc<Vec<Truncation>>,
}

impl Valid {
    /// Creates the rule for a space (Raft group) from the truncations that the log contains now. The rule is correct
    /// for records that are read in order, and for records in the segments at the start of the log.
    #[must_use]
    pub fn of(log: &Log, space: SpaceId) -> Self {
        Self { space, truncations: log.truncations() }
    }

    /// Adds the truncations that the log has gained since the last update. Also drops known truncations at LSNs up to
    /// `from`, if the log no longer contains them. Those above `from` stay known: a reader at `from` that still reads a
    /// freed segment needs the truncations of other segments that were freed with it.
    pub fn update(&mut self, log: &Log, from: Lsn) {
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

    /// Returns true if the log contains a truncation of the space (Raft group), or contained one when this rule was
    /// last updated.
    #[must_use]
    pub fn has_truncations(&self) -> bool {
        self.truncations.iter().any(|truncation| truncation.space == self.space)
    }

    /// Returns true if a record is an entry of the space (Raft group) that a later truncation has declared void.
    #[must_use]
    pub fn is_void(&self, record: &LogRecord) -> bool {
        if self.truncations.is_empty() || record.space != self.space || !record.kind.has_index() {
            return false;
        }
        let behind = self.truncations.partition_point(|truncation| truncation.lsn <= record.lsn);
        // The first truncation after the record has the lowest index of all truncations after it.
        let first = self.truncations[behind..].iter().find(|truncation| truncation.space == self.space);
        first.is_some_and(|truncation| truncation.index <= record.index)
    }

    /// Returns true if a record is an entry of the space (Raft group), and no later truncation has declared it void.
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
        assert_eq!(merged(&[early, other], &[late], 20), [other, late], "a reader after it no longer needs it");
        assert_eq!(merged(&[early], &[early, late], 10), [early, late]);
        let covering = truncation(0, 50, 4);
        assert_eq!(merged(&[early, late], &[covering], 10), [covering], "a later truncation covers both");
        assert_eq!(merged(&[early], &[], 10), [early]);
    }
}
