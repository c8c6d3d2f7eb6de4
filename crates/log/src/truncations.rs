//! Table of the truncations in the log. A truncation is a record that voids the log entries of its Raft group from an
//! index on.
//!
//! Owns: the table, from open to close. Does not own: the effects of a truncation, which the log's user applies.
//!
//! A reader of an entry must know if a later truncation voids the entry, and this truncation can be far ahead in the
//! log. So the table is complete before any record is read. It costs nothing if there are none: the footer of a sealed
//! segment reports whether the segment has any, recovery reads the active segment anyway, and appends update the table.
//! Only segments with truncations are read a second time at open.
//!
//! Invariants: truncations are ordered by LSN. Those of one Raft group are also ordered by index, because a later
//! truncation replaces earlier ones at the same or a higher index. Between two truncations that remain lies at least
//! one valid entry, which bounds their number.
//!
//! The newest segments form a range of LSNs without gaps, and the table contains every truncation in it. Older segments
//! can remain before a gap, because segments between them were freed. Truncations in freed segments are missing, and so
//! are, after an open, those in the segments before the gap.

use std::sync::Arc;

use arc_swap::ArcSwap;
use thalweg_types::Lsn;

use crate::{
    errors::{OpenError, ReadError},
    record::{Draft, Truncation},
    record_kind::RecordKind,
    records::Records,
    segment::Table,
};

#[derive(Debug, Default)]
pub(crate) struct Truncations(ArcSwap<Vec<Truncation>>);

impl Truncations {
    pub(crate) fn load(&self) -> Arc<Vec<Truncation>> {
        self.0.load_full()
    }

    /// Adds the truncations among records appended from LSN `first` on. The caller holds the mutex `Shared::core`.
    pub(crate) fn add_appended(&self, drafts: &[Draft<'_>], first: Lsn) {
        let mut table = (*self.load()).clone();
        for (draft, number) in drafts.iter().zip(0..) {
            if draft.kind == RecordKind::Truncate {
                add(&mut table, Truncation { space: draft.space, lsn: first.plus(number), index: draft.index });
            }
        }
        self.0.store(Arc::new(table));
    }

    /// Removes the truncations in a freed segment. The segment contained the LSNs from `from` to below `below`. The
    /// caller holds the mutex `Shared::core`.
    pub(crate) fn forget(&self, from: Lsn, below: Lsn) {
        let table = self.load();
        if table.iter().any(|known| from <= known.lsn && known.lsn < below) {
            let kept = table.iter().filter(|known| known.lsn < from || below <= known.lsn);
            self.0.store(Arc::new(kept.copied().collect()));
        }
    }

    /// Reads all segments that contain truncations, and adds these truncations to the table.
    pub(crate) fn read(&self, segments: &Table) -> Result<(), OpenError> {
        let mut table = Vec::new();
        for segment in segments.contiguous().iter().filter(|segment| segment.holds_truncations()) {
            for record in Records::of_segment(segment) {
                let record = record.map_err(unreadable)?;
                if record.kind == RecordKind::Truncate {
                    add(&mut table, Truncation { space: record.space, lsn: record.lsn, index: record.index });
                }
            }
        }
        self.0.store(Arc::new(table));
        Ok(())
    }
}

fn add(table: &mut Vec<Truncation>, new: Truncation) {
    table.retain(|known| known.space != new.space || known.index < new.index);
    table.push(new);
}

/// Converts a read error into an error of open. Without the truncations, void entries could not be
/// recognised, so the open fails.
fn unreadable(error: ReadError) -> OpenError {
    match error {
        ReadError::Corrupt(corruption) => corruption.into(),
        ReadError::Disk(fault) => fault.into(),
        ReadError::Gone { .. } | ReadError::Compacted { .. } | ReadError::PastEnd { .. } => {
            unreachable!("a held segment is read from its start to its written end")
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_types::{Index, SpaceId};

    use super::*;

    fn truncation(space: u32, lsn: u64, index: u64) -> Truncation {
        Truncation { space: SpaceId(space), lsn: Lsn(lsn), index: Index(index) }
    }

    #[test]
    fn a_later_truncation_takes_the_place_of_those_that_it_covers() {
        let mut table = Vec::new();
        for (space, lsn, index) in [(0, 10, 5), (1, 11, 2), (0, 20, 8), (0, 30, 6), (0, 40, 9), (1, 41, 2)] {
            add(&mut table, truncation(space, lsn, index));
        }
        let left = [truncation(0, 10, 5), truncation(0, 30, 6), truncation(0, 40, 9), truncation(1, 41, 2)];
        assert_eq!(table, left);
        let truncations = Truncations(ArcSwap::from_pointee(table));
        truncations.forget(Lsn(30), Lsn(41));
        assert_eq!(*truncations.load(), [left[0], left[3]]);
    }
}
