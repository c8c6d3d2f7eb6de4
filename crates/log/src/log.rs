//! The handle of an open log.
//!
//! Owns: the lifetime of the threads, opening and closing, the end of the log and its counters. Other methods of the
//! handle are in the modules of their subject: appends (`writer`, `try_append`), waiting for durability (`commit`),
//! reads (`reader`), freeing segments (`space`).

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    thread::JoinHandle,
    time::Duration,
};

use thalweg_disk::{Disk, LOCK_PATIENCE, Pacer};
use thalweg_types::{Clock, Generation, Lsn};

use crate::{
    errors::{AppendError, OpenError},
    format::BatchKind,
    options::{LogOptions, LogStats, Recovery, SegmentInfo},
    prepare::StateSpace,
    record::Truncation,
    recovery,
    segment::Segment,
    shared::Shared,
    writer_role::Marked,
};

/// Bytes of the active segment that [`Log::may_wait`] reserves for headers and for batches without records (markers).
const HEADERS_ROOM_BYTES: u64 = 4096;

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// True if the log has no threads, and [`Log::step`] does their work.
    is_stepped: bool,
}

impl Handle {
    fn start(shared: Shared) -> Result<Self, OpenError> {
        let shared = Arc::new(shared);
        let handle = Self { shared: Arc::clone(&shared), threads: Mutex::default(), is_stepped: false };
        let segment_pool = Arc::clone(&shared.segment_pool);
        handle.spawn("log-prepare", move || segment_pool.run())?;
        handle.spawn("log-sync", move || shared.run_syncer())?;
        Ok(handle)
    }

    /// Creates the handle of a log without threads.
    fn stepped(shared: Shared) -> Self {
        Self { shared: Arc::new(shared), threads: Mutex::default(), is_stepped: true }
    }

    fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), OpenError> {
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .map_err(|error| OpenError::Thread { reason: error.to_string() })?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    fn stop_threads(&self) {
        self.shared.syncer.stop();
        self.shared.segment_pool.stop();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.syncer.stop();
        self.shared.segment_pool.stop();
        let threads = std::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A drop must not panic; the thread has already printed its panic.
            let _ = thread.join();
        }
    }
}

/// A handle to the node's log; cheap to clone. Dropping the last handle without [`close`](Self::close) has the effect
/// of a process crash: no written record is lost, but the next open has to search for the end of the log.
///
/// Waiting: `append` at level `disk`, `sync` and `sync_through` lead an fsync, unless another caller is about
/// to lead one. `wait_durable` and `durable_at` only wait for the syncs of other callers.
/// [`request_sync`](Self::request_sync) makes the background thread sync, without waiting for it.
#[derive(Clone, Debug)]
pub struct Log {
    handle: Arc<Handle>,
}

impl Log {
    /// Opens the log in `dir` (e.g. `log`) on the disk, or creates it. `seed` generates segment ids and
    /// should be random.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &str,
        options: LogOptions,
        clock: Arc<dyn Clock>,
        seed: u64,
    ) -> Result<(Self, Recovery), OpenError> {
        let pacer = Arc::new(Pacer::new(Arc::clone(&clock)));
        let (shared, recovery) = recovery::open(disk, dir, options, (clock, pacer), (seed, LOCK_PATIENCE))?;
        Ok((Self { handle: Arc::new(Handle::start(shared)?) }, recovery))
    }

    /// Opens a log like [`open`](Self::open), but without background threads. A simulation uses it to decide when
    /// background work is done: each call of [`step`](Self::step) does the work that is due. An
    /// [`append`](Self::append) prepares segments itself, and [`try_append`](Self::try_append) needs a step to prepare
    /// them.
    pub fn open_stepped(
        disk: Arc<dyn Disk>,
        dir: &str,
        options: LogOptions,
        clock: Arc<dyn Clock>,
        seed: u64,
    ) -> Result<(Self, Recovery), OpenError> {
        let pacer = Arc::new(Pacer::stepped());
        let (shared, recovery) = recovery::open(disk, dir, options, (clock, pacer), (seed, Duration::ZERO))?;
        Ok((Self { handle: Arc::new(Handle::stepped(shared)) }, recovery))
    }

    /// Performs the background work of a [stepped](Self::open_stepped) log that is due now: prepares and removes
    /// segment files, and performs due syncs. Returns true if there was any. Does nothing in a log with threads.
    pub fn step(&self) -> bool {
        if !self.handle.is_stepped {
            return false;
        }
        let shared = self.shared();
        let has_prepared = shared.segment_pool.perform_due();
        shared.perform_due() || has_prepared
    }

    /// Prepares segments on the caller's thread if the log has no threads.
    #[inline]
    pub(crate) fn prepare_if_stepped(&self) {
        if self.handle.is_stepped {
            // The append could not wait for a thread to prepare a segment.
            self.shared().segment_pool.end_rest();
            self.shared().segment_pool.perform_due();
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// Returns the LSN after the last durable record: all records below it are fsynced.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.shared().durable()
    }

    /// Returns the LSN after the last written record.
    #[must_use]
    pub fn end(&self) -> Lsn {
        Lsn(self.shared().end.load(Ordering::Acquire))
    }

    /// Returns the first LSN from which records can be read in order, without a gap, to the end of the log.
    #[must_use]
    pub fn start(&self) -> Lsn {
        self.shared().table.load().contiguous()[0].first
    }

    /// Makes all records written before the call durable. Returns the LSN after the last durable record.
    pub fn sync(&self) -> Result<Lsn, AppendError> {
        let core = self.shared().core();
        let next = core.next;
        self.shared().commit(core, next)?;
        Ok(self.durable())
    }

    /// Makes all records below `lsn` durable. These records must have been written.
    pub fn sync_through(&self, lsn: Lsn) -> Result<(), AppendError> {
        if self.durable() >= lsn {
            return Ok(());
        }
        let core = self.shared().core();
        let lsn = lsn.min(core.next);
        self.shared().commit(core, lsn)
    }

    /// Requests a sync of all written records from the background thread. Does not wait.
    pub fn request_sync(&self) {
        self.shared().syncer.due_now();
    }

    /// Returns the truncations that come after a record that is still readable. A truncation voids the log entries of
    /// one Raft group from an index on. The list is ordered by LSN, and within each Raft group also by index. It leaves
    /// out a truncation that a later one covers. The call costs a few nanoseconds, and the list is usually empty.
    #[must_use]
    pub fn truncations(&self) -> Arc<Vec<Truncation>> {
        self.shared().truncations.load()
    }

    /// Returns the live segments (those that contain the log), oldest first.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.shared().table.load().0.iter().map(|segment| segment.info()).collect()
    }

    /// Returns the generation (segment number) of the newest segment. It rises when the log begins another segment.
    /// Copies no list.
    #[must_use]
    pub fn newest_generation(&self) -> Option<Generation> {
        self.shared().table.load().0.last().map(|segment| segment.info().generation)
    }

    /// Number of bytes that must become free on the disk before the log accepts data for a further segment; 0
    /// if the log accepts data already.
    #[must_use]
    pub fn short_bytes(&self) -> u64 {
        self.shared().segment_pool.short_bytes()
    }

    /// Returns true if an append of about `bytes` bytes may have to wait for a segment, because the active one has
    /// hardly room for them and no other is ready. A thread that must not wait then passes the append to another
    /// thread. The call takes no lock, so a concurrent append can fill the segment after a false result.
    #[inline]
    #[must_use]
    pub fn may_wait(&self, bytes: impl FnOnce() -> u64) -> bool {
        let shared = self.shared();
        // A log without threads prepares segments within the append.
        if !shared.segment_pool.is_short() || self.handle.is_stepped {
            return false;
        }
        let wanted = bytes().saturating_mul(2).saturating_add(HEADERS_ROOM_BYTES);
        let free = |active: &Arc<Segment>| active.key.limit.saturating_sub(active.written());
        shared.table.load().0.last().is_none_or(|active| u64::from(free(active)) < wanted)
    }

    /// Reports the disk space that the state of the log's user needs. The state lies on the same disk as the log, and
    /// the log leaves this space free for it.
    pub fn set_state_space(&self, state: StateSpace) {
        self.shared().segment_pool.set_state_space(state);
    }

    /// Returns the pacer, which decides how long background work pauses so that it leaves the disk to the log's fsyncs.
    /// All background work on the same disk should share it. The pacer of a [stepped](Self::open_stepped) log never
    /// pauses.
    #[must_use]
    pub fn pacer(&self) -> &Arc<Pacer> {
        &self.shared().segment_pool.pacer
    }

    /// Returns counters of events since the log was opened, and current values such as the number of
    /// segments.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        let shared = self.shared();
        let counters = &shared.segment_pool.counters;
        let mut stats = LogStats {
            segments: shared.table.load().0.len() as u64,
            spare_segments: shared.segment_pool.ready_count() as u64,
            free_disk_bytes: shared.segment_pool.check_free_space().0,
            recycled: counters.recycled.load(Ordering::Relaxed),
            created: counters.created.load(Ordering::Relaxed),
            zeroed_bytes: counters.zeroed_bytes.load(Ordering::Relaxed),
            reserved_bytes: counters.reserved_bytes.load(Ordering::Relaxed),
            segment_waits: counters.waits.load(Ordering::Relaxed),
            segment_wait_micros: counters.wait_micros.load(Ordering::Relaxed),
            waiting_writers: shared.gates.waiting.load(Ordering::Relaxed) as u64,
            pacer: shared.segment_pool.pacer.stats(),
            ..LogStats::default()
        };
        let core = shared.core();
        stats.appends = core.counters.appends;
        stats.records = core.counters.records;
        stats.bytes = core.counters.bytes;
        stats.payload_bytes = core.counters.payload_bytes;
        stats.syncs = core.counters.syncs;
        stats.sync_micros = core.counters.sync_micros;
        stats.batches_per_sync_max = core.counters.batches_per_sync_max;
        stats.sync_latency = core.counters.sync_latency;
        stats.batches_per_sync = core.counters.batches_per_sync;
        stats
    }

    /// Returns the reason why the log rejects all appends after a failed write or sync, or `None` if it has
    /// not failed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let shared = self.shared();
        shared.failed.load(Ordering::Acquire).then(|| shared.failure.get().cloned().unwrap_or_default())
    }

    /// Syncs the log, writes a last batch that reports a clean close, and stops the background threads. Further appends
    /// fail; reads continue. Closing twice is allowed.
    pub fn close(&self) -> Result<(), AppendError> {
        let shared = self.shared();
        if shared.closed.swap(true, Ordering::AcqRel) {
            return shared.check_not_failed();
        }
        let synced = self.sync();
        self.handle.stop_threads();
        synced?;
        let mut core = shared.core();
        shared.check_not_failed()?;
        let next = core.next;
        match core.mark(BatchKind::Closed, next) {
            Ok(Marked::Written) => {}
            // The next open reads the tail instead.
            Ok(Marked::NoRoom) => return Ok(()),
            Err(error) => {
                let reason = format!("write of a marker to {}: {error}", core.active.path);
                return Err(shared.fail(core, reason));
            }
        }
        // After a failed sync, the next open can find the marker in the page cache. The next open does not rely on it,
        // and writes the marker again.
        let synced = core.active.file.sync_data();
        if let Err(error) = synced {
            let reason = format!("fsync of {}: {error}", core.active.path);
            return Err(shared.fail(core, reason));
        }
        drop(core);
        shared.wake_durable(Lsn::MAX);
        Ok(())
    }
}
