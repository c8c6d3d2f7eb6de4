//! The handle, and what all parts of an open log share.
//!
//! Owns: the threads' lives, opening and closing. Does not own: the work (see the other modules).

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

/// What the parts of an open log share. Lock order: `core`, then those inside `spares`, `syncer`, `gates`.
#[derive(Debug)]
pub(crate) struct Shared {
    pub options: LogOptions,
    pub clock: Arc<dyn Clock>,
    pub spares: Arc<Spares>,
    /// Changed only under the core's lock; read without.
    pub table: ArcSwap<Table>,
    core: Mutex<Core>,
    /// `durable <= end`, both exclusive.
    pub end: AtomicU64,
    pub durable: AtomicU64,
    pub released: AtomicU64,
    /// Changed only under the core's lock; read without.
    pub truncations: Truncations,
    pub failed: AtomicBool,
    pub failure: OnceLock<String>,
    closed: AtomicBool,
    pub gates: Gates,
    pub syncer: Syncer,
    /// The directory is ours as long as this lives.
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
            // A batch may be half written.
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
            // Never panics while dropping; the thread's panic has been printed.
            let _ = thread.join();
        }
    }
}

/// A handle to the node's log; cheap to clone. Dropping the last one without [`close`](Self::close) is what a
/// crash of the process would be: nothing that was written is lost, the next open goes through the tail.
///
/// Waiting: `append` at `disk`, `sync` and `sync_through` sync themselves if nobody else is about to;
/// `wait_durable` and `durable_at` only watch, and [`request_sync`](Self::request_sync) makes the background
/// thread sync without waiting for it.
#[derive(Clone, Debug)]
pub struct Log {
    handle: Arc<Handle>,
}

impl Log {
    /// Opens or creates `dir` (e.g. `log`) on the disk. `seed` feeds segment ids and should be random.
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

    /// Appends records as one batch and returns once `level` is reached. `None` behaves as `Os` here (what
    /// "accepted" means is its caller's business). Group commit: whoever finds the writer role free takes it.
    ///
    /// Nothing is queued: callers wait in the call, holding their own records. On `Failed` the records may or
    /// may not be there after a restart; on any other error nothing was written.
    pub fn append(&self, drafts: &[Draft<'_>], level: Durability, purpose: Purpose) -> Result<Appended, AppendError> {
        self.shared().append(drafts, level, purpose)
    }

    /// Exclusive bound of what is on disk.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.shared().durable()
    }

    /// Exclusive bound of what is written.
    #[must_use]
    pub fn end(&self) -> Lsn {
        Lsn(self.shared().end.load(Ordering::Acquire))
    }

    /// First LSN that is still readable in order.
    #[must_use]
    pub fn start(&self) -> Lsn {
        self.shared().table.load().contiguous()[0].first
    }

    /// Makes everything written before the call durable; returns the new watermark.
    pub fn sync(&self) -> Result<Lsn, AppendError> {
        let core = self.shared().core();
        let next = core.next;
        self.shared().commit(core, next)?;
        Ok(self.durable())
    }

    /// Blocks until somebody's sync has made everything below `lsn` durable.
    pub fn wait_durable(&self, lsn: Lsn) -> Result<(), AppendError> {
        self.shared().wait_durable(lsn)
    }

    /// Makes everything below `lsn`, which must have been written, durable.
    pub fn sync_through(&self, lsn: Lsn) -> Result<(), AppendError> {
        if self.durable() >= lsn {
            return Ok(());
        }
        let core = self.shared().core();
        let lsn = lsn.min(core.next);
        self.shared().commit(core, lsn)
    }

    /// Resolves when somebody's sync has made everything below `lsn` durable.
    pub fn durable_at(&self, lsn: Lsn) -> impl Future<Output = Result<(), AppendError>> + Send + 'static {
        DurableWait::new(Arc::clone(self.shared()), lsn)
    }

    /// Makes the background thread sync what is written now. Does not wait.
    pub fn request_sync(&self) {
        self.shared().syncer.due_now();
    }

    /// Reads bytes by reference and verifies their checksum.
    pub fn read_blob(&self, blob: &BlobRef) -> Result<Bytes, ReadError> {
        self.shared().read_blob(blob)
    }

    /// Iterates over records from `lsn` to the end as of the call.
    pub fn records_from(&self, lsn: Lsn) -> Result<Records, ReadError> {
        self.shared().records_from(lsn)
    }

    /// Lets an iteration that [`records_from`](Self::records_from) began go on to the end as of now. It reads
    /// nothing twice: so this follows the log for as long as it is called before the segments behind are freed.
    ///
    /// # Errors
    /// [`ReadError::Compacted`] if segments between the iteration's and the next that is there have been freed.
    pub fn extend_records(&self, records: &mut Records) -> Result<(), ReadError> {
        self.shared().extend_records(records)
    }

    /// Iterates over the records of one segment that can be read.
    pub fn segment_records(&self, generation: Generation) -> Result<Records, ReadError> {
        self.shared().segment_records(generation)
    }

    /// The truncations that lie behind a record which can be read in order, rising by LSN, and among those of one space
    /// by index: one that a later one covers is left out. It costs a few nanoseconds; there are rarely any.
    #[must_use]
    pub fn truncations(&self) -> Arc<Vec<Truncation>> {
        self.shared().truncations.load()
    }

    /// Live segments, oldest first.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.shared().table.load().0.iter().map(|segment| segment.info()).collect()
    }

    /// Everything below `lsn` is persisted in the state (its user's promise). Segments wholly below it (and
    /// outside the history floor) become candidates for `free`.
    pub fn release(&self, lsn: Lsn) {
        self.shared().release(lsn);
    }

    /// Sealed segments that are wholly released and below the history floor at `now`: may be freed when nothing
    /// points into them.
    #[must_use]
    pub fn freeable(&self, now: SpaceTime) -> Vec<SegmentInfo> {
        self.shared().released_segments(now, History::Past)
    }

    /// Sealed segments that are wholly released, and that history alone keeps, oldest first: for who must have their
    /// space. May be freed as those that are [`freeable`](Self::freeable).
    #[must_use]
    pub fn kept_for_history(&self, now: SpaceTime) -> Vec<SegmentInfo> {
        self.shared().released_segments(now, History::Kept)
    }

    /// Bytes that must become free on the disk before the log takes data as far as a segment more; none: it does.
    #[must_use]
    pub fn short_bytes(&self) -> u64 {
        self.shared().spares.short_bytes()
    }

    /// Frees a sealed and released segment for recycling. Readers that hold it go on; later reads answer `Gone`.
    /// A crash soon after may bring it back as it was; then it can be freed again.
    pub fn free(&self, generation: Generation) -> Result<(), AppendError> {
        self.shared().free(generation)
    }

    /// Counters since open, and gauges.
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

    /// Why the log refuses appends, if it does.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let shared = self.shared();
        shared.failed.load(Ordering::Acquire).then(|| shared.failure.get().cloned().unwrap_or_default())
    }

    /// Syncs, attests, stops the background threads. Further appends fail; reads go on. Closing twice is fine.
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
            // No room: the next open goes through the tail instead.
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
