//! The handle of an open log, and the state that all its parts share.
//!
//! Owns: the lifetime of the threads, opening and closing. Does not own: the work itself (see the other
//! modules).

use std::{
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use thalweg_disk::{Disk, LockGuard};
use thalweg_types::{BlobRef, Clock, Durability, Generation, Lsn, SpaceTime};

use crate::{
    commit::{DurableWait, Gates},
    errors::{AppendError, OpenError, ReadError},
    format::BatchKind,
    options::{LogOptions, LogStats, Recovery, SegmentInfo},
    prepare::Spares,
    reader::Records,
    record::{Appended, Draft, Purpose, Truncation},
    recovery,
    segment::Table,
    space::History,
    syncer::Syncer,
    truncations::Truncations,
    writer::Core,
};

/// State shared by the parts of an open log. Lock order: `core`, then the locks inside `spares`, `syncer`,
/// `gates`.
#[derive(Debug)]
pub(crate) struct Shared {
    pub options: LogOptions,
    pub clock: Arc<dyn Clock>,
    pub spares: Arc<Spares>,
    /// The live segments. Changed only under the core's lock; read without a lock.
    pub table: ArcSwap<Table>,
    core: Mutex<Core>,
    /// LSN after the last written record. `durable`, the LSN after the last durable record, never exceeds it.
    pub end: AtomicU64,
    pub durable: AtomicU64,
    pub released: AtomicU64,
    /// Table of truncations. Changed only under the core's lock; read without a lock.
    pub truncations: Truncations,
    pub failed: AtomicBool,
    pub failure: OnceLock<String>,
    closed: AtomicBool,
    pub gates: Gates,
    pub syncer: Syncer,
    /// Lock on the log's directory, held while this value exists.
    _lock: Box<dyn LockGuard>,
}

impl Shared {
    pub fn new(
        options: LogOptions,
        clock: Arc<dyn Clock>,
        spares: Arc<Spares>,
        table: ArcSwap<Table>,
        core: Core,
        durable: Lsn,
        lock: Box<dyn LockGuard>,
    ) -> Self {
        Self {
            options,
            clock,
            spares,
            table,
            end: AtomicU64::new(core.next.0),
            core: Mutex::new(core),
            durable: AtomicU64::new(durable.0),
            released: AtomicU64::new(0),
            truncations: Truncations::default(),
            failed: AtomicBool::new(false),
            failure: OnceLock::new(),
            closed: AtomicBool::new(false),
            gates: Gates::default(),
            syncer: Syncer::default(),
            _lock: lock,
        }
    }

    pub fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(|poisoned: PoisonError<_>| {
            // A batch may be partly written.
            self.failure.get_or_init(|| "a thread panicked while it wrote".to_owned());
            self.failed.store(true, Ordering::Release);
            poisoned.into_inner()
        })
    }

    pub fn durable(&self) -> Lsn {
        Lsn(self.durable.load(Ordering::Acquire))
    }

    pub fn check_not_failed(&self) -> Result<(), AppendError> {
        if self.failed.load(Ordering::Acquire) {
            let reason = self.failure.get().cloned().unwrap_or_default();
            return Err(AppendError::Failed { reason });
        }
        Ok(())
    }

    pub fn check_writable(&self) -> Result<(), AppendError> {
        self.check_not_failed()?;
        if self.closed.load(Ordering::Acquire) { Err(AppendError::Closed) } else { Ok(()) }
    }
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Handle {
    fn start(shared: Shared) -> Result<Self, OpenError> {
        let shared = Arc::new(shared);
        let handle = Self { shared: Arc::clone(&shared), threads: Mutex::new(Vec::new()) };
        let spares = Arc::clone(&shared.spares);
        handle.spawn("log-prepare", move || spares.run())?;
        handle.spawn("log-sync", move || shared.syncer.run(&shared))?;
        Ok(handle)
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
        self.shared.spares.stop();
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
        self.shared.spares.stop();
        let threads = std::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A drop must not panic; the thread has already printed its panic.
            let _ = thread.join();
        }
    }
}

/// A handle to the node's log; cheap to clone. Dropping the last handle without [`close`](Self::close) has
/// the effect of a process crash: no written record is lost, and the next open reads the tail.
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
        let (shared, recovery) = recovery::open(disk, dir, options, clock, seed)?;
        Ok((Self { handle: Arc::new(Handle::start(shared)?) }, recovery))
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// Appends records as one batch and returns once durability `level` is reached. Level `None` behaves like
    /// `Os` here: the records are written to the kernel before the call returns, and the caller decides when
    /// it acknowledges them. Group commit: a caller that finds the writer role free takes it.
    ///
    /// There is no queue: callers wait inside the call and keep their own records. After the error `Failed`,
    /// the records may or may not exist after a restart. After any other error, no bytes were written.
    pub fn append(&self, drafts: &[Draft<'_>], level: Durability, purpose: Purpose) -> Result<Appended, AppendError> {
        self.shared().append(drafts, level, purpose)
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

    /// Blocks until a sync by another caller has made all records below `lsn` durable. Does not start a sync.
    pub fn wait_durable(&self, lsn: Lsn) -> Result<(), AppendError> {
        self.shared().wait_durable(lsn)
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

    /// Resolves when a sync by another caller has made all records below `lsn` durable.
    pub fn durable_at(&self, lsn: Lsn) -> impl Future<Output = Result<(), AppendError>> + Send + 'static {
        DurableWait::new(Arc::clone(self.shared()), lsn)
    }

    /// Requests a sync of all written records from the background thread. Does not wait.
    pub fn request_sync(&self) {
        self.shared().syncer.due_now();
    }

    /// Reads the bytes to which a reference points, and verifies their checksum.
    pub fn read_blob(&self, blob: &BlobRef) -> Result<Bytes, ReadError> {
        self.shared().read_blob(blob)
    }

    /// Iterates over the records from `lsn` to the end that the log has at the time of the call.
    pub fn records_from(&self, lsn: Lsn) -> Result<Records, ReadError> {
        self.shared().records_from(lsn)
    }

    /// Extends an iteration of [`records_from`](Self::records_from) to the current end of the log. The
    /// extended iteration reads no record twice. A reader can follow the log by calling this repeatedly,
    /// before the segments that it still needs are freed.
    ///
    /// # Errors
    /// [`ReadError::Compacted`] if segments between the end of the iteration and the next existing segment
    /// were freed.
    pub fn extend_records(&self, records: &mut Records) -> Result<(), ReadError> {
        self.shared().extend_records(records)
    }

    /// Iterates over the readable records of one segment.
    pub fn segment_records(&self, generation: Generation) -> Result<Records, ReadError> {
        self.shared().segment_records(generation)
    }

    /// Returns the truncations (records that void later entries of a space from an index on) that come after
    /// a readable record, ordered by LSN, and for each space also by index. A truncation that a later one
    /// covers is left out. The call costs a few nanoseconds, and the list is usually empty.
    #[must_use]
    pub fn truncations(&self) -> Arc<Vec<Truncation>> {
        self.shared().truncations.load()
    }

    /// Returns the live segments, oldest first.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.shared().table.load().0.iter().map(|segment| segment.info()).collect()
    }

    /// Declares that the state machine has persisted all records below `lsn`; the caller guarantees this.
    /// Segments that lie completely below `lsn`, and are too old or too far from the end for the kept
    /// history, become candidates for `free`.
    pub fn release(&self, lsn: Lsn) {
        self.shared().release(lsn);
    }

    /// Returns the sealed segments that the log does not need any more at `now`, oldest first: their records
    /// were passed to [`release`](Self::release), and they are older than the history that the options keep.
    /// They may be freed when no pointer refers to them.
    #[must_use]
    pub fn freeable(&self, now: SpaceTime) -> Vec<SegmentInfo> {
        self.shared().released_segments(now, History::Past)
    }

    /// Returns the sealed segments, oldest first, that only the options `history_bytes` and `history_age`
    /// still keep: all their records were passed to [`release`](Self::release). A caller that must regain
    /// space may free them like those of [`freeable`](Self::freeable).
    #[must_use]
    pub fn kept_for_history(&self, now: SpaceTime) -> Vec<SegmentInfo> {
        self.shared().released_segments(now, History::Kept)
    }

    /// Number of bytes that must become free on the disk before the log accepts data for a further segment; 0
    /// if the log accepts data already.
    #[must_use]
    pub fn short_bytes(&self) -> u64 {
        self.shared().spares.short_bytes()
    }

    /// Frees a sealed segment whose records were all released, so that its file can be recycled. Readers that
    /// hold the segment continue; later reads return the error `Gone`. A crash soon afterwards can restore
    /// the segment unchanged; then it can be freed again.
    pub fn free(&self, generation: Generation) -> Result<(), AppendError> {
        self.shared().free(generation)
    }

    /// Returns counters of events since the log was opened, and current values such as the number of
    /// segments.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        let shared = self.shared();
        let counters = &shared.spares.counters;
        let mut stats = LogStats {
            segments: shared.table.load().0.len() as u64,
            spare_segments: shared.spares.ready_count() as u64,
            free_disk_bytes: shared.spares.look().0,
            recycled: counters.recycled.load(Ordering::Relaxed),
            created: counters.created.load(Ordering::Relaxed),
            zeroed_bytes: counters.zeroed_bytes.load(Ordering::Relaxed),
            waiting_writers: shared.gates.waiting.load(Ordering::Relaxed) as u64,
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

    /// Syncs the log, writes a marker that reports a clean close, and stops the background threads. Further
    /// appends fail; reads continue. Closing twice is allowed.
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
        if !core.mark(BatchKind::Closed, next) {
            // The segment has no room for the marker, so the next open reads the tail instead.
            return Ok(());
        }
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
