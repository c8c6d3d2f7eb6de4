//! Results of earlier walks over a log segment (searches for its live bytes), and the back-off until the next walk.
//!
//! Owns: the back-off. Does not own: the order in which segments take turns, and the number of walks in a round (see
//! [`super`]).
//!
//! A value is dead once it is overwritten. The state does not count dead values; only a walk finds them. Further values
//! can have died only if the log has grown since the last walk. A segment with many live bytes is walked again once the
//! log has grown by the segment's size, then by twice that size, and so on up to the size of all segments. All walks
//! together therefore read no more than is written, except for the first few walks of each segment.

use thalweg_log::SegmentInfo;
use thalweg_state::segments::Liveness;
use thalweg_types::{Index, Lsn, Term};

use super::walk::Walked;

/// Position and size of the log at the start of a round of the mover.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogNow {
    /// LSN at the end of the log.
    pub(super) end: Lsn,
    /// Bytes written to the log since it was opened.
    pub(super) written_bytes: u64,
    /// Bytes of all segments that the log has now.
    pub(super) held_bytes: u64,
    /// True if the log accepts no data because the disk is full.
    pub(super) is_full: bool,
}

/// Results of the walks (searches for live bytes) over one log segment that has not been freed yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SegmentHistory {
    /// Number of walks (searches for live bytes) that did not free the segment.
    walks: u32,
    /// Live bytes that the state counted in the segment when it was last searched for live bytes.
    liveness: Liveness,
    /// Position and size of the log when the segment was last searched for live bytes.
    log: LogNow,
    /// Live bytes that the state counted in the segment in the mover's last round.
    pub(super) last: Liveness,
    /// LSN up to which the state must be persisted before the segment is freed; `None` until a search of the segment
    /// has found nothing live.
    pub(super) free_from: Option<Lsn>,
    /// Term and index of the last valid log entry in the segment; set together with `free_from`.
    pub(super) last_entry: Option<(Term, Index)>,
    /// True if the mover has copied bytes of the segment to the end of the log.
    pub(super) copied: bool,
    /// True if a search of the segment found live bytes although the state counted none.
    pub(super) undercounted: bool,
    /// True if a record of the segment could not be read.
    pub(super) unreadable: bool,
    /// True if the last search of the segment found live bytes that could not be copied.
    pub(super) not_copied: bool,
}

impl SegmentHistory {
    /// Begins another walk (search for live bytes) of a segment in which the state counts `live` bytes. Keeps the
    /// results of earlier walks that still matter.
    pub(super) fn begin(&mut self, live: Liveness, log: LogNow) {
        let Self { walks, copied, undercounted, unreadable, .. } = *self;
        *self = Self { walks, liveness: live, log, last: live, copied, undercounted, unreadable, ..Self::default() };
    }

    /// Records a walk that found no way to free the segment.
    pub(super) fn keep(&mut self) {
        self.walks = self.walks.saturating_add(1);
    }

    /// Records that a walk (search) has left nothing live in the segment. `applied` is the applied position of the
    /// state; `row` has the live bytes that the state counts in the segment, `None` if it has no counter for it.
    pub(super) fn set_free(&mut self, applied: Lsn, row: Option<Liveness>, walked: &Walked) {
        self.free_from = Some(self.free_from(applied, row, walked));
        self.last_entry = walked.last_entry;
    }

    /// Returns the LSN up to which the state must be persisted before the segment is freed. It is the applied position
    /// if bytes were copied, or if commands may have read values of the segment; otherwise 0. So a later replay begins
    /// after all copies, and after every command that may have read a value in the segment. Commands never read batches
    /// of streams while they are applied, so dead batches require no wait.
    fn free_from(&self, applied: Lsn, row: Option<Liveness>, walked: &Walked) -> Lsn {
        let held_values = walked.has_long_values && row.is_some();
        if self.copied || held_values { applied } else { Lsn::ZERO }
    }

    /// Returns true if another search for live bytes may free the segment: the log has grown enough since the last one,
    /// or the state counts fewer live bytes in the segment.
    pub(super) fn is_due(&self, segment: &SegmentInfo, live: Liveness, log: LogNow) -> bool {
        if self.free_from.is_some() {
            return false;
        }
        if self.unreadable {
            return self.has_grown(segment, log);
        }
        // While streams are being reclaimed, the count falls in every round. So wait until it stays equal, or has
        // halved.
        let has_changed = self.liveness != live;
        let is_settled = self.last == live || live.bytes() <= self.liveness.bytes() / 2;
        // On a full disk the log grows only by commands that free space, such as deletes, and only by little.
        let may_have_freed = log.is_full && log.end > self.log.end;
        self.not_copied || (has_changed && is_settled) || may_have_freed || self.has_grown(segment, log)
    }

    fn has_grown(&self, segment: &SegmentInfo, log: LogNow) -> bool {
        let own = u64::from(segment.bytes);
        let needed = own << self.walks.saturating_sub(1).min(u32::BITS - 1);
        log.written_bytes - self.log.written_bytes >= needed.min(log.held_bytes).max(own)
    }
}

#[cfg(test)]
mod tests {
    use thalweg_types::{Generation, SpaceTime};

    use super::*;

    const BYTES: u32 = 1000;
    const LIVE: Liveness = Liveness { stream_bytes: 0, batches: 0, value_bytes: 700, values: 7 };

    fn segment() -> SegmentInfo {
        SegmentInfo {
            generation: Generation(1),
            file: String::new(),
            first: Lsn(0),
            next: Lsn(8),
            first_time: SpaceTime(0),
            last_time: SpaceTime(0),
            bytes: BYTES,
            active: false,
        }
    }

    fn at(written_bytes: u64) -> LogNow {
        LogNow { end: Lsn(written_bytes), written_bytes, held_bytes: 6000, is_full: false }
    }

    fn walked() -> Walked {
        Walked { live: Some(Vec::new()), last_entry: None, has_long_values: false, lookups: 0 }
    }

    #[test]
    fn each_walk_in_vain_doubles_the_growth_up_to_the_log_itself() {
        let (mut walks, mut written) = (SegmentHistory::default(), 0);
        let mut growths = Vec::new();
        for _ in 0..6 {
            walks.begin(LIVE, at(written));
            walks.keep();
            let grown = (0..).step_by(500).find(|grown| walks.is_due(&segment(), LIVE, at(written + grown)));
            growths.push(grown.unwrap());
            written += grown.unwrap();
        }
        assert_eq!(growths, [1000, 2000, 4000, 6000, 6000, 6000]);
        for _ in 0..100 {
            walks.keep();
        }
        assert!(walks.is_due(&segment(), LIVE, at(written + 6000)));
    }

    #[test]
    fn on_a_full_disk_a_delete_is_reason_enough() {
        let mut walks = SegmentHistory::default();
        walks.begin(LIVE, at(0));
        walks.keep();
        assert!(!walks.is_due(&segment(), LIVE, at(100)));
        let full = LogNow { is_full: true, ..at(100) };
        assert!(walks.is_due(&segment(), LIVE, full));
        assert!(!walks.is_due(&segment(), LIVE, LogNow { is_full: true, ..at(0) }));
        walks.unreadable = true;
        assert!(!walks.is_due(&segment(), LIVE, full), "an unreadable segment stays unreadable");
    }

    #[test]
    fn copies_of_an_earlier_walk_must_be_persisted_too() {
        let mut walks = SegmentHistory::default();
        walks.begin(LIVE, at(0));
        walks.copied = true;
        walks.keep();
        walks.begin(LIVE, at(1000));
        walks.set_free(Lsn(77), None, &walked());
        assert_eq!(walks.free_from, Some(Lsn(77)));
        let mut other = SegmentHistory::default();
        other.begin(LIVE, at(0));
        other.set_free(Lsn(77), None, &walked());
        assert_eq!(other.free_from, Some(Lsn::ZERO), "nothing was copied");
    }
}
