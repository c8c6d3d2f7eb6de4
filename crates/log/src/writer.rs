//! Appends: batches are encoded by the caller, and written under the lock of the writer role.
//!
//! Owns: `Log::append`, the checks of a batch's size and of the free space, and the change to the next segment. Does
//! not own: the state of the role (see `writer_role`), syncing (see `commit`), preparing segments (see `prepare`),
//! appends that never wait (see `try_append`).
//!
//! Bound: at most `MAX_UNSYNCED_SEGMENTS` sealed segments are not synced; a writer that would seal another one syncs
//! first.

use std::{
    cell::RefCell,
    sync::{MutexGuard, atomic::Ordering},
    time::Duration,
};

use thalweg_types::{Durability, Generation, LogPosition, Lsn};

use crate::{
    encode::{Encoded, Measure, Scratch},
    errors::AppendError,
    format::{
        BATCH_HEADER_BYTES, BatchKind, DATA_START, FOOTER_BYTES, MARKER_ROOM, MAX_NUMBER, RECORD_HEADER_BYTES, padded,
    },
    log::Log,
    prepare::PrepareError,
    record::{Appended, Draft, Purpose},
    shared::Shared,
    writer_role::{Core, WritePath},
};

/// Maximum number of sealed segments that are not yet synced. A writer that would seal another one syncs
/// first.
pub(crate) const MAX_UNSYNCED_SEGMENTS: usize = 4;
/// Maximum time that a writer waits until an empty segment file is prepared.
const SPARE_PATIENCE: Duration = Duration::from_secs(10);

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

impl Log {
    /// Appends records as one batch and returns once durability `level` is reached. Level `None` behaves like `Os`
    /// here: the records are written to the kernel before the call returns, and the caller decides when it acknowledges
    /// them.
    ///
    /// There is no queue: a caller that finds the writer role free takes it, and other callers wait inside the call
    /// with their own records. After the error `Failed`, the records may or may not exist after a restart. After any
    /// other error, no bytes were written.
    pub fn append(&self, drafts: &[Draft<'_>], level: Durability, purpose: Purpose) -> Result<Appended, AppendError> {
        let shared = self.shared();
        self.prepare_if_stepped();
        let measure = self.admit(drafts, purpose)?;
        let through = WritePath::of(level, measure.total());
        let (mut core, appended) = shared.write_drafts(drafts, &measure, through, |core| shared.roll(core, purpose))?;
        match level {
            Durability::None | Durability::Os => Ok(appended),
            Durability::Interval => {
                if core.interval_since.is_none() {
                    let now = shared.clock.monotonic();
                    core.interval_since = Some(now);
                    drop(core);
                    shared.syncer.due_at(now + shared.options.sync_interval);
                }
                Ok(appended)
            }
            Durability::Disk | Durability::Quorum => {
                let written = shared.clock.monotonic();
                shared.commit(core, appended.next)?;
                Ok(Appended { waited: shared.clock.monotonic().saturating_sub(written), ..appended })
            }
        }
    }
}

impl Log {
    /// Maximum size in bytes of a batch, which includes 48 bytes of its header, 40 bytes for each record's header, and
    /// up to 7 bytes of padding. A larger batch does not fit in a segment.
    #[must_use]
    pub fn max_batch_bytes(&self) -> u64 {
        u64::from(self.shared().options.segment_bytes - DATA_START - FOOTER_BYTES as u32 - MARKER_ROOM)
    }

    /// Checks that the log accepts a batch with the size of these records for this purpose. Returns the batch's sizes.
    pub(crate) fn admit(&self, drafts: &[Draft<'_>], purpose: Purpose) -> Result<Measure, AppendError> {
        let measure = Measure::of(drafts)?;
        let max = self.max_batch_bytes();
        if measure.total() > max {
            return Err(AppendError::TooLarge { got: measure.total(), max });
        }
        if purpose == Purpose::Data {
            self.check_room()?;
        }
        Ok(measure)
    }

    /// Returns an error if the log would reject new data now because the disk is nearly full. Cheap while the disk has
    /// enough free space.
    #[inline]
    pub fn check_room(&self) -> Result<(), AppendError> {
        if self.shared().segment_pool.is_low() { self.shared().admit() } else { Ok(()) }
    }
}

impl Shared {
    /// Encodes records as one batch and writes it. If the active segment has no room, calls `roll` to continue in the
    /// next segment. Returns while still holding the lock of the writer role.
    #[inline]
    pub(crate) fn write_drafts<'a, E: From<AppendError>>(
        &'a self,
        drafts: &[Draft<'_>],
        measure: &Measure,
        through: WritePath,
        roll: impl Fn(MutexGuard<'a, Core>) -> Result<MutexGuard<'a, Core>, E>,
    ) -> Result<(MutexGuard<'a, Core>, Appended), E> {
        let mut appended = Appended {
            first: Lsn::ZERO,
            next: Lsn::ZERO,
            payload_at: LogPosition { generation: Generation(0), offset: 0 },
            waited: Duration::ZERO,
        };
        let core = SCRATCH.with_borrow_mut(|scratch| {
            let mut batch = scratch.encode(drafts, measure);
            self.write_batch(&mut batch, &mut appended, through, roll)
        })?;
        if measure.truncates {
            core.active.note_truncations();
            self.truncations.add_appended(drafts, appended.first);
        }
        Ok((core, appended))
    }

    /// Checks the disk's free space again, if the last check found it nearly full. Returns an error if it is still
    /// below the reserve that the log's options require.
    #[cold]
    fn admit(&self) -> Result<(), AppendError> {
        match self.segment_pool.check_free_space() {
            (free_bytes, true) => Err(self.disk_full(free_bytes)),
            (_, false) => Ok(()),
        }
    }

    #[cold]
    fn disk_full(&self, free_bytes: u64) -> AppendError {
        let pool = &self.segment_pool;
        AppendError::DiskFull { free_bytes, reserve_bytes: pool.reserve_bytes(), short_bytes: pool.short_bytes() }
    }

    /// Writes a batch, continuing in a new segment if needed, and stores the batch's positions in `appended`. Returns
    /// while still holding the lock of the writer role.
    #[inline]
    fn write_batch<'a, E: From<AppendError>>(
        &'a self,
        batch: &mut Encoded<'_>,
        appended: &mut Appended,
        through: WritePath,
        roll: impl Fn(MutexGuard<'a, Core>) -> Result<MutexGuard<'a, Core>, E>,
    ) -> Result<MutexGuard<'a, Core>, E> {
        let mut core = self.writable_core()?;
        let total = padded(BATCH_HEADER_BYTES as u32 + batch.body_len);
        loop {
            let end = core.next;
            if end.plus(batch.count.into()).0 >= MAX_NUMBER {
                return Err(AppendError::NoLsnLeft { end }.into());
            }
            if core.fits(total) {
                break;
            }
            core = roll(core)?;
        }
        let durable = self.durable();
        let (at, first) = match core.write(batch, BatchKind::Records, durable, through) {
            Ok(placed) => placed,
            Err(error) => {
                let reason = format!("write to {}: {error}", core.active.path);
                return Err(self.fail(core, reason).into());
            }
        };
        if core.rest.ends_at(core.written_bytes()) {
            self.end_rest(&mut core);
        }
        core.batches += 1;
        core.counters.appends += 1;
        core.counters.records += u64::from(batch.count);
        core.counters.payload_bytes += batch.payload_len;
        self.end.store(core.next.0, Ordering::Release);
        let offset = at + (BATCH_HEADER_BYTES + RECORD_HEADER_BYTES) as u32;
        let payload_at = LogPosition { generation: core.active.key.generation, offset };
        *appended = Appended { first, next: core.next, payload_at, waited: Duration::ZERO };
        Ok(core)
    }

    /// Takes the lock that gives the writer role. Returns an error if the log has failed or is closed.
    pub(crate) fn writable_core(&self) -> Result<MutexGuard<'_, Core>, AppendError> {
        let core = self.core();
        self.check_writable()?;
        Ok(core)
    }

    /// Makes the log continue in a new segment. Releases the lock of the writer role while it waits for an empty
    /// segment file.
    pub(crate) fn roll<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        purpose: Purpose,
    ) -> Result<MutexGuard<'a, Core>, AppendError> {
        if core.unsynced.len() >= MAX_UNSYNCED_SEGMENTS {
            let (next, begun) = (core.next, self.clock.monotonic());
            // The durable bound can already be beyond `next` while a footer is not synced. So this call forces a sync.
            self.sync_files(core, next)?;
            self.count_segment_wait(begun);
            return self.writable_core();
        }
        if let Some(prepared) = self.segment_pool.take(purpose) {
            core.switch(prepared, &self.table, &self.segment_pool);
            self.syncer.due_now();
            return Ok(core);
        }
        drop(core);
        self.wait_for_spare(purpose)?;
        self.writable_core()
    }

    fn wait_for_spare(&self, purpose: Purpose) -> Result<(), AppendError> {
        let begun = self.clock.monotonic();
        let waited = self.segment_pool.wait(purpose, SPARE_PATIENCE);
        self.count_segment_wait(begun);
        waited.map_err(|error| self.no_segment(error))
    }

    /// Counts the wait of an append for its next segment, from the monotonic time `begun` until now.
    pub(crate) fn count_segment_wait(&self, begun: Duration) {
        self.segment_pool.counters.count_wait(self.clock.monotonic().saturating_sub(begun));
    }

    /// Returns the error of an append for which no segment could be prepared.
    pub(crate) fn no_segment(&self, error: PrepareError) -> AppendError {
        match error {
            PrepareError::Failed(fault) if fault.is_full() => {
                let (free_bytes, _) = self.segment_pool.check_free_space();
                self.disk_full(free_bytes)
            }
            PrepareError::Failed(fault) => {
                AppendError::NoSegment { waited: Duration::ZERO, reason: Some(fault.to_string()) }
            }
            PrepareError::TimedOut => AppendError::NoSegment { waited: SPARE_PATIENCE, reason: None },
            PrepareError::Stopped => AppendError::Closed,
        }
    }
}
