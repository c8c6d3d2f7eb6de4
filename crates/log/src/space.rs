//! Selection of segments that can be freed.
//!
//! Owns: the LSN below which the log's user has released records, the LSN from which it needs records for others, and
//! the history floor: the point below which segments are not kept for history. Does not own: references into a segment; the log's user tracks
//! those.

use std::sync::atomic::Ordering;

use thalweg_types::{Generation, Lsn, SpaceTime};

use crate::{errors::AppendError, log::Log, options::SegmentInfo};

/// Side of the history floor on which a segment lies. The floor separates segments kept for history, which
/// are young and near the end of the log, from older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum History {
    /// The segment is older than the kept history: only references into the segment keep it.
    Past,
    /// The segment belongs to the kept history.
    Kept,
}

impl Log {
    /// Declares that the state machine has persisted all records below `lsn`; the caller guarantees this.
    /// Segments that lie completely below `lsn`, and are too old or too far from the end for the kept
    /// history, become candidates for `free`.
    pub fn release(&self, lsn: Lsn) {
        self.shared().released.fetch_max(lsn.0, Ordering::AcqRel);
    }

    fn released(&self) -> Lsn {
        Lsn(self.shared().released.load(Ordering::Acquire))
    }

    /// Keeps the segments with records from `lsn` on as history whatever their age, as long as they are within
    /// `history_bytes`: another node needs them. `None` keeps none of them for this reason.
    pub fn keep_from(&self, lsn: Option<Lsn>) {
        self.shared().kept_from.store(lsn.unwrap_or(Lsn::MAX).0, Ordering::Release);
    }

    /// Returns the sealed segments that the log does not need any more at `now`, oldest first: their records
    /// were passed to [`release`](Self::release), and they are older than the history that the options keep.
    /// They may be freed when no pointer refers to them.
    #[must_use]
    pub fn freeable(&self, now: SpaceTime) -> Vec<SegmentInfo> {
        self.released_segments(now, History::Past)
    }

    /// Returns the sealed segments, oldest first, that only the options `history_bytes` and `history_age`
    /// still keep: all their records were passed to [`release`](Self::release). A caller that must regain
    /// space may free them like those of [`freeable`](Self::freeable).
    #[must_use]
    pub fn kept_for_history(&self, now: SpaceTime) -> Vec<SegmentInfo> {
        self.released_segments(now, History::Kept)
    }

    /// Sealed segments whose records were all released, oldest first: those older than the kept history, or
    /// those that only the kept history still needs, as `kept` selects.
    fn released_segments(&self, now: SpaceTime, kept: History) -> Vec<SegmentInfo> {
        let released = self.released();
        let oldest_kept = now.minus(self.shared().options.history_age);
        let kept_from = Lsn(self.shared().kept_from.load(Ordering::Acquire));
        let table = self.shared().table.load_full();
        let mut bytes_after = 0;
        let mut found: Vec<SegmentInfo> = Vec::new();
        for segment in table.0.iter().rev() {
            let info = segment.info();
            // History keeps a segment that is near enough to the end, if it is young enough or another node needs it.
            let is_near = bytes_after < self.shared().options.history_bytes;
            let in_history = is_near && (info.last_time > oldest_kept || info.next > kept_from);
            bytes_after += u64::from(info.bytes);
            if !info.active && info.next <= released && in_history == (kept == History::Kept) {
                found.push(info);
            }
        }
        found.reverse();
        found
    }

    /// Frees a sealed segment whose records were all released, so that its file can be recycled. Readers that
    /// hold the segment continue; later reads return the error `Gone`. A crash soon afterwards can restore
    /// the segment unchanged; then it can be freed again.
    pub fn free(&self, generation: Generation) -> Result<(), AppendError> {
        let shared = self.shared();
        let core = shared.writable_core()?;
        let table = shared.table.load_full();
        let segment = table.find(generation).ok_or(AppendError::NoSuchSegment { generation })?;
        if !segment.is_sealed() || segment.next() > self.released() {
            return Err(AppendError::StillNeeded { generation });
        }
        // The next segment must be durable first, because it may be the only record of how far the LSNs have
        // advanced.
        let next = core.next;
        if shared.durable() <= segment.next() || !core.unsynced.is_empty() {
            shared.sync_files(core, next)?;
        } else {
            drop(core);
        }
        let _core = shared.writable_core()?;
        let table = shared.table.load_full();
        let segment = table.find(generation).ok_or(AppendError::NoSuchSegment { generation })?;
        shared.table.store(table.without(generation).into());
        shared.truncations.forget(segment.first, segment.next());
        segment.release_file();
        Ok(())
    }
}
