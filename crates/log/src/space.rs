//! Selection of segments that can be freed.
//!
//! Owns: the LSN below which the log's user has released records, and the history floor: the point below
//! which segments are not kept for history. Does not own: references into a segment; the log's user tracks
//! those.

use std::sync::atomic::Ordering;

use thalweg_types::{Generation, Lsn, SpaceTime};

use crate::{errors::AppendError, log::Shared, options::SegmentInfo};

/// Side of the history floor on which a segment lies. The floor separates segments kept for history, which
/// are young and near the end of the log, from older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// The segment is older than the kept history: only references into the segment keep it.
    Past,
    /// The segment belongs to the kept history.
    Kept,
}

impl Shared {
    pub fn release(&self, lsn: Lsn) {
        self.released.fetch_max(lsn.0, Ordering::AcqRel);
    }

    fn released(&self) -> Lsn {
        Lsn(self.released.load(Ordering::Acquire))
    }

    /// Sealed segments whose records were all released, oldest first: those older than the kept history, or
    /// those that only the kept history still needs, as `kept` selects.
    pub fn released_segments(&self, now: SpaceTime, kept: History) -> Vec<SegmentInfo> {
        let released = self.released();
        let oldest_kept = now.minus(self.options.history_age);
        let table = self.table.load_full();
        let mut bytes_after = 0;
        let mut found: Vec<SegmentInfo> = Vec::new();
        for segment in table.0.iter().rev() {
            let info = segment.info();
            // History keeps a segment that is both near enough to the end and young enough.
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
        // The next segment must be durable first, because it may be the only record of how far the LSNs have
        // advanced.
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
