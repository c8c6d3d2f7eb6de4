//! Which segments may go.
//!
//! Owns: the released bound and the history floor. Does not own: whether something still points into a segment;
//! the log's user knows.

use std::sync::atomic::Ordering;

use thalweg_types::{Generation, Lsn, SpaceTime};

use crate::{errors::AppendError, log::Shared, options::SegmentInfo};

/// On which side of the history floor a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// Below it: nothing but what points into it keeps it.
    Past,
    /// Above it.
    Kept,
}

impl Shared {
    pub fn release(&self, lsn: Lsn) {
        self.released.fetch_max(lsn.0, Ordering::AcqRel);
    }

    fn released(&self) -> Lsn {
        Lsn(self.released.load(Ordering::Acquire))
    }

    /// Sealed segments that are wholly released, oldest first: those below the history floor, or those that it keeps.
    pub fn released_segments(&self, now: SpaceTime, kept: History) -> Vec<SegmentInfo> {
        let released = self.released();
        let oldest_kept = now.minus(self.options.history_age);
        let table = self.table.load_full();
        let mut bytes_after = 0;
        let mut found: Vec<SegmentInfo> = Vec::new();
        for segment in table.0.iter().rev() {
            let info = segment.info();
            // Kept while it is both near enough to the end and young enough.
            let in_history = bytes_after < self.options.history_bytes && info.last_time > oldest_kept;
            bytes_after += u64::from(info.bytes);
            if !info.active && info.next <= released && in_history == (kept == History::Kept) {
                found.push(info);
            }
        }
        found.reverse();
        found
    }

    pub fn free(&self, generation: Generation) -> Result<(), AppendError> {
        let core = self.writable_core()?;
        let table = self.table.load_full();
        let segment = table.find(generation).ok_or(AppendError::NoSuchSegment { generation })?;
        if !segment.is_sealed() || segment.next() > self.released() {
            return Err(AppendError::StillNeeded { generation });
        }
        // Its successor must be on disk before it goes: it alone may know where the LSNs have got to.
        let next = core.next;
        if self.durable() <= segment.next() || !core.unsynced.is_empty() {
            self.sync_files(core, next)?;
        } else {
            drop(core);
        }
        let _core = self.writable_core()?;
        let table = self.table.load_full();
        let segment = table.find(generation).ok_or(AppendError::NoSuchSegment { generation })?;
        self.table.store(table.without(generation).into());
        self.truncations.forget(segment.first, segment.next());
        segment.give_up();
        Ok(())
    }
}
