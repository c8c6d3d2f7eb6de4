//! Which truncations the log holds.
//!
//! Owns: the table of them, from open to close. Does not own: what follows from one (see the log's user).
//!
//! A reader that comes to an entry must know of a truncation that lies behind it, far ahead perhaps. So the table is
//! there before anything is read. It costs nothing where there are none: the footer of a sealed segment says whether the
//! segment holds any, recovery goes through the active one anyway, and appends add to the table. Only segments that hold
//! some are read once more at open.
//!
//! Invariants: rising by LSN; among those of one space, rising by index, because a later truncation at the same index or
//! below does all that an earlier one does. So there are never more than entries that were kept in between.
//!
//! All truncations are in it that lie behind a record which can be read in order. Behind other records some may be
//! missing: those whose segment was freed first.

use std::sync::Arc;

use arc_swap::ArcSwap;
use thalweg_types::Lsn;

use crate::{
    errors::{OpenError, ReadError},
    reader::Records,
    record::{Draft, RecordKind, Truncation},
    segment::Table,
};

#[derive(Debug, Default)]
pub(crate) struct Truncations(ArcSwap<Vec<Truncation>>);

impl Truncations {
    pub fn load(&self) -> Arc<Vec<Truncation>> {
        self.0.load_full()
    }

    /// Adds those among records that were appended from `first` on. The caller holds the core's lock.
    pub fn add_appended(&self, drafts: &[Draft<'_>], first: Lsn) {
        let mut table = (*self.load()).clone();
        for (draft, number) in drafts.iter().zip(0..) {
            if draft.kind == RecordKind::Truncate {
                add(&mut table, Truncation { space: draft.space, lsn: first.plus(number), index: draft.index });
            }
        }
        self.0.store(Arc::new(table));
    }

    /// Forgets those of a segment that has been freed. The caller holds the core's lock.
    pub fn forget(&self, from: Lsn, below: Lsn) {
        let table = self.load();
        if table.iter().any(|known| from <= known.lsn && known.lsn < below) {
            let kept = table.iter().filter(|known| known.lsn < from || below <= known.lsn);
            self.0.store(Arc::new(kept.copied().collect()));
        }
    }

    /// Reads those segments of a log that hold some.
    pub fn read(&self, segments: &Table) -> Result<(), OpenError> {
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

/// Nobody can say which entries are void without it.
fn unreadable(error: ReadError) -> OpenError {
    match error {
        ReadError::Corrupt(corruption) => corruption.into(),
        ReadError::Disk(fault) => fault.into(),
        ReadError::Gone { .. } | ReadError::Compacted { .. } | ReadError::PastEnd { .. } => {
            unreachable!("a segment that is held is read from its begin to what is written")
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
