//! Segment files: creating and filling them with zeroes, recycling, removing.

use std::{
    sync::{PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use thalweg_disk::{File, PacedJob, PacedWork};
use thalweg_types::{Generation, Lsn};

use super::{Prepared, SegmentPool, Slot, State};
use crate::{
    errors::{DiskFault, Explain},
    format::{HEADER_BLOCK_BYTES, SegmentHeader, SegmentId, SegmentState, segment_name},
    record::Purpose,
};

/// Number of bytes of zeroes in one write. Larger writes create large folios in the page cache, which halve
/// the speed of small writes later.
const ZERO_PIECE_BYTES: usize = 64 * 1024;
/// Number of bytes of zeroes written to a new segment file in one step and then synced. A sync of the writer
/// may have to wait for one step; with steps of 8 MiB it would wait 4 ms.
const PACE_STEP_BYTES: u64 = 1024 * 1024;
/// Minimum duration of one step of zero-filling (`PACE_STEP_BYTES`) while no writer waits for a segment. It
/// limits the speed to 256 MiB/s.
const PACE_STEP: Duration = Duration::from_millis(4);
/// Minimum duration of one step of zero-filling while the writer uses up segments slowly. It limits the speed
/// to 64 MiB/s, so that only one in twenty syncs of the writer has to wait for a step.
const EASY_PACE_STEP: Duration = Duration::from_millis(16);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrepareSpeed {
    /// Zeroes are written at the full speed of the disk.
    Urgent,
    /// Zeroes are written at a limited speed, which leaves the disk to the writer, unless a writer waits for
    /// a segment.
    Bounded,
}

impl State {
    /// Minimum duration of one step of zero-filling, chosen so that preparing a segment takes half the time in which
    /// the writer fills one. The result is between `PACE_STEP` and `EASY_PACE_STEP`. When the log has just stopped
    /// resting (keeping no prepared segments), the result is `PACE_STEP`: the writer may need a segment soon, and the
    /// time between its earlier segments does not predict when.
    fn pace_step(&self, segment_bytes: u32) -> Duration {
        if self.is_refilling {
            return PACE_STEP;
        }
        let steps = (u64::from(segment_bytes) / PACE_STEP_BYTES).max(1) as u32;
        (self.take_times.last_interval() / 2 / steps).clamp(PACE_STEP, EASY_PACE_STEP)
    }
}

impl SegmentPool {
    /// Creates a segment on the caller's thread. Used by open.
    pub(crate) fn create_now(&self) -> Result<Prepared, DiskFault> {
        self.claim_and_build(PrepareSpeed::Urgent)?
            .ok_or_else(|| DiskFault::new("prepare", &self.dir, &std::io::Error::other("the log is closing")))
    }

    /// Creates all prepared segments of a new log on the caller's thread, so that the log's first writes
    /// don't share the disk with the writing of zeroes. Ignores failures; the preparer thread tries again and
    /// reports them.
    pub(crate) fn fill(&self) {
        while self.ready_count() < self.target {
            let free = self.check_free_space().0;
            if free < self.reserve_bytes().saturating_add(self.segment_bytes.into()) {
                return;
            }
            let Ok(prepared) = self.create_now() else { return };
            let mut state = self.state();
            state.ready.push_back(prepared);
            self.note_ready(&state);
        }
    }

    pub(super) fn create(&self, pace: PrepareSpeed) -> Result<Option<Prepared>, DiskFault> {
        let (free, _) = self.check_free_space();
        // Only the last spare, for deletes and trims, may use the reserve.
        let untouched = if self.ready_count() == 0 { 0 } else { self.reserve_bytes() };
        if free < untouched.saturating_add(self.segment_bytes.into()) {
            let error = std::io::Error::new(std::io::ErrorKind::StorageFull, "free space is below the reserve");
            return Err(DiskFault::new("prepare a segment in", &self.dir, &error));
        }
        self.claim_and_build(pace)
    }

    fn claim_and_build(&self, pace: PrepareSpeed) -> Result<Option<Prepared>, DiskFault> {
        let slot = self.claim();
        let built = self.build(slot, pace);
        let mut state = self.state();
        match &built {
            Ok(Some(_)) => state.retry = true,
            Ok(None) | Err(_) => {
                state.slots.remove(&slot);
                drop(state);
                // The error being returned matters more; the next open deletes a leftover file.
                let _ = self.disk.remove(&self.tmp_path(slot));
            }
        }
        built
    }

    fn claim(&self) -> u32 {
        let mut state = self.state();
        let slot = (1..).find(|slot| !state.slots.contains(slot)).expect("fewer than 2^32 segments");
        state.slots.insert(slot);
        slot
    }

    fn next_generation(state: &mut State) -> Generation {
        state.generation += 1;
        Generation(state.generation)
    }

    fn tmp_path(&self, slot: u32) -> String {
        format!("{}/{slot:08}.tmp", self.dir)
    }

    fn build(&self, number: u32, pace: PrepareSpeed) -> Result<Option<Prepared>, DiskFault> {
        let tmp = self.tmp_path(number);
        let path = format!("{}/{}", self.dir, segment_name(number));
        let file = self.disk.create(&tmp).explain("create", &tmp)?;
        if !self.zero_fill(&*file, &tmp, pace)? {
            return Ok(None);
        }
        let slot = Slot { file, path, slot: number, segment_bytes: self.segment_bytes };
        // The generation is taken only now, because segments recycled in the meantime are ready before this
        // one.
        let generation = Self::next_generation(&mut self.state());
        let id = SegmentId::draw(self.seed, generation);
        write_spare_header(&slot, id, generation).explain("write", &tmp)?;
        slot.file.sync_all().explain("sync", &tmp)?;
        self.disk.rename(&tmp, &slot.path).explain("rename", &tmp)?;
        self.disk.sync_dir(&self.dir).explain("sync", &self.dir)?;
        let mapping = slot.file.map(self.segment_bytes.into()).explain("map", &slot.path)?;
        self.counters.created.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Prepared { slot, id, generation, mapping }))
    }

    /// Writes zeroes into a segment file up to its size. Returns false if the thread must stop.
    ///
    /// Once a writer waits for a segment, the function stops writing zeroes and reserves the remaining bytes of the
    /// file on the disk. The writer then waits for a few milliseconds. Under sustained load on a slow disk, waiting for
    /// the zeroes would take a tenth of a second or more. Each sync of a segment without zeroes takes longer, until the
    /// segment is recycled.
    fn zero_fill(&self, file: &dyn File, path: &str, pace: PrepareSpeed) -> Result<bool, DiskFault> {
        let zeroes = [0; ZERO_PIECE_BYTES];
        let total = u64::from(self.segment_bytes);
        let mut at = 0;
        let mut step_began = Instant::now();
        while at < total {
            if pace == PrepareSpeed::Bounded
                && self.state().must_hurry()
                && file.reserve(total).explain("reserve", path)?
            {
                self.counters.reserved_bytes.fetch_add(total - at, Ordering::Relaxed);
                return Ok(true);
            }
            let piece = (total - at).min(ZERO_PIECE_BYTES as u64);
            file.write_all_at(&zeroes[..piece as usize], at).explain("write", path)?;
            at += piece;
            self.counters.zeroed_bytes.fetch_add(piece, Ordering::Relaxed);
            if pace == PrepareSpeed::Bounded && at.is_multiple_of(PACE_STEP_BYTES) {
                let permit = self.pacer.begin(self.fill_job(total - at));
                file.write_out(at - PACE_STEP_BYTES, PACE_STEP_BYTES).explain("write out", path)?;
                if !self.pause(permit.finish(PACE_STEP_BYTES, |_| self.usual_pause(step_began))) {
                    return Ok(false);
                }
                self.recycle_freed();
                step_began = Instant::now();
            }
        }
        Ok(true)
    }

    /// Describes the zero-filling of a segment with `left_bytes` bytes to write. It is due when the writer has filled
    /// all segments that it may take.
    fn fill_job(&self, left_bytes: u64) -> PacedJob {
        let for_data = self.ready_count().saturating_sub(Self::needed(Purpose::Data) - 1);
        let ready_bytes = for_data as u64 * u64::from(self.segment_bytes);
        let deadline = self.progress.time_to_fill(self.pacer.now(), ready_bytes);
        PacedJob { work: PacedWork::Segment, left_bytes, deadline }
    }

    /// Time until a step of zero-filling that began at `began` has taken its minimum duration.
    fn usual_pause(&self, began: Instant) -> Duration {
        let step = self.state().pace_step(self.segment_bytes);
        (began + step).saturating_duration_since(Instant::now())
    }

    /// Waits for `pause` after a step of zero-filling, unless a writer waits for a segment. Returns false if the thread
    /// must stop.
    fn pause(&self, pause: Duration) -> bool {
        let began = Instant::now();
        let mut state = self.state();
        loop {
            let left = (began + pause).saturating_duration_since(Instant::now());
            if state.stop || state.is_awaited() || left.is_zero() {
                break;
            }
            state = self.work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        self.pacer.count_rest(PacedWork::Segment, pause.min(began.elapsed()));
        !state.stop
    }

    /// Prepares a freed segment file for later use: gives it a new id and generation (segment number), which makes all
    /// batches in it invalid.
    pub(crate) fn recycle(&self, slot: Slot) -> Result<Prepared, DiskFault> {
        let generation = Self::next_generation(&mut self.state());
        let id = SegmentId::draw(self.seed, generation);
        write_spare_header(&slot, id, generation).explain("write", &slot.path)?;
        slot.file.sync_data().explain("sync", &slot.path)?;
        let mapping = slot.file.map(slot.segment_bytes.into()).explain("map", &slot.path)?;
        self.counters.recycled.fetch_add(1, Ordering::Relaxed);
        Ok(Prepared { slot, id, generation, mapping })
    }

    pub(super) fn remove(&self, slot: &Slot) -> Result<(), DiskFault> {
        self.disk.remove(&slot.path).explain("remove", &slot.path)?;
        self.disk.sync_dir(&self.dir).explain("sync", &self.dir)?;
        self.state().slots.remove(&slot.slot);
        Ok(())
    }
}

/// Overwrites both headers of a segment file with those of a prepared segment, without syncing.
pub(crate) fn write_spare_header(slot: &Slot, id: SegmentId, generation: Generation) -> std::io::Result<()> {
    let header = SegmentHeader {
        state: SegmentState::Spare,
        id,
        generation,
        base: Lsn::ZERO,
        base_chain: 0,
        segment_bytes: slot.segment_bytes,
        slot: slot.slot,
        previous: Generation::ZERO,
    };
    let block = header.encode_block();
    slot.file.write_all_at(&block, 0)?;
    slot.file.write_all_at(&block, HEADER_BLOCK_BYTES.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_are_written_slowly_for_a_slow_writer_but_not_after_a_rest() {
        let hour = Duration::from_secs(3600);
        let mut state = State::default();
        for takes in 0..2 {
            state.take_times.add(hour * takes, 8);
        }
        assert_eq!(state.pace_step(64 << 20), EASY_PACE_STEP);
        assert!(!state.end_rest(hour), "it did not rest");
        assert_eq!(state.pace_step(64 << 20), EASY_PACE_STEP);
        state.at_rest = true;
        assert!(state.end_rest(hour));
        assert_eq!((state.pace_step(64 << 20), state.rest_ended), (PACE_STEP, Some(hour)));
    }
}
