//! Selection of segments that can be freed.
//!
//! Owns: the LSN below which the log's user has released records, the LSN from which other nodes need records, and the
//! history floor: the LSN below which segments are not kept for history. Does not own: the references from the state of
//! the log's user to bytes in a segment; the user tracks them.
//!
//! [`segment_uses`] determines why each segment is in the log. An open log uses it, and so does the report on a
//! directory that is not open.

use std::sync::atomic::Ordering;

use thalweg_types::{Generation, Lsn, SpaceTime};

use crate::{errors::AppendError, log::Log, options::SegmentInfo};

/// Reason for which a segment is in the log. References from the state of the log's user to bytes in the segment, such
/// as large values, are not considered here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentUse {
    /// The log's user has not released all records of the segment yet.
    Needed,
    /// The segment is kept as history only: it is near the end of the log, and it is young or another node needs it.
    History,
    /// Nothing needs the records of the segment, and it is not part of the kept history. It is in the log only until
    /// the state of the log's user refers to none of its bytes any more.
    Past,
}

/// Bounds of the history that a log keeps: segments that the log's user no longer needs, but readers of old records
/// may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryBounds {
    /// Distance from the end of the log, in bytes. Only segments nearer to the end are kept for history.
    pub bytes: u64,
    /// Records with this timestamp or an earlier one are too old to be kept for history. Timestamps are times of the
    /// clock that all replicas share (space time).
    pub oldest: SpaceTime,
    /// LSN from which another node needs the records, whatever their age.
    pub kept_from: Lsn,
}

/// Returns for each segment why the log keeps it. `segments` are all segments of a log, oldest first. The log's user
/// still needs the records from `released` on.
#[must_use]
pub fn segment_uses(segments: &[SegmentInfo], released: Lsn, bounds: HistoryBounds) -> Vec<SegmentUse> {
    let mut bytes_after = 0;
    let mut uses = Vec::with_capacity(segments.len());
    for segment in segments.iter().rev() {
        // History keeps a segment that is near enough to the end, if it is young enough or another node needs it.
        let is_near = bytes_after < bounds.bytes;
        let is_wanted = segment.last_time > bounds.oldest || segment.next > bounds.kept_from;
        bytes_after += u64::from(segment.bytes);
        uses.push(match segment.next > released {
            true => SegmentUse::Needed,
            false if is_near && is_wanted => SegmentUse::History,
            false => SegmentUse::Past,
        });
    }
    uses.reverse();
    uses
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

    /// Sets the LSN from which another node needs the records. A segment with records at or above this LSN is kept as
    /// history whatever its age, as long as it is within `history_bytes` of the log's end. `None` means that no other
    /// node needs records.
    pub fn keep_from(&self, lsn: Option<Lsn>) {
        self.shared().kept_from.store(lsn.unwrap_or(Lsn::MAX).0, Ordering::Release);
    }

    /// Returns the sealed segments, oldest first, that the log does not need any more at `now`: the log's user has
    /// [released](Self::release) their records, and they are outside the history that the log keeps. They may be freed
    /// when no pointer refers to them.
    #[must_use]
    pub fn freeable(&self, now: SpaceTime) -> Vec<SegmentInfo> {
        self.sealed_segments(now, SegmentUse::Past)
    }

    /// Returns the sealed segments, oldest first, that are kept only as history: the log's user has
    /// [released](Self::release) all their records. A caller that must regain disk space may free them like those of
    /// [`freeable`](Self::freeable).
    #[must_use]
    pub fn kept_for_history(&self, now: SpaceTime) -> Vec<SegmentInfo> {
        self.sealed_segments(now, SegmentUse::History)
    }

    /// Returns all segments, oldest first, each with the reason why the log keeps it at `now`. The last one is being
    /// written.
    #[must_use]
    pub fn segment_uses(&self, now: SpaceTime) -> Vec<(SegmentInfo, SegmentUse)> {
        let options = &self.shared().options;
        let bounds = HistoryBounds {
            bytes: options.history_bytes,
            oldest: now.minus(options.history_age),
            kept_from: Lsn(self.shared().kept_from.load(Ordering::Acquire)),
        };
        let released = self.released();
        let segments: Vec<_> = self.shared().table.load_full().0.iter().map(|segment| segment.info()).collect();
        let uses = segment_uses(&segments, released, bounds);
        segments.into_iter().zip(uses).collect()
    }

    /// Returns the sealed segments that the log keeps for the reason `wanted`, oldest first.
    fn sealed_segments(&self, now: SpaceTime, wanted: SegmentUse) -> Vec<SegmentInfo> {
        let all = self.segment_uses(now).into_iter();
        all.filter(|(segment, found)| !segment.active && *found == wanted).map(|(segment, _)| segment).collect()
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
