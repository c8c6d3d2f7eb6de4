//! The handle of an open log.
//!
//! Owns: the lifetime of the threads, opening and closing, the end of the log and its figures. Other methods of the
//! handle are in the modules of their subject: appends (`writer`), waiting for durability (`commit`), reads (`reader`),
//! freeing segments (`space`).

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    thread::JoinHandle,
};

use thalweg_disk::Disk;
use thalweg_types::{Clock, Lsn};

use crate::{
    errors::{AppendError, OpenError},
    format::BatchKind,
    options::{LogOptions, LogStats, Recovery, SegmentInfo},
    record::Truncation,
    recovery,
    shared::Shared,
};

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
        handle.spawn("log-sync", move || shared.run_syncer())?;
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
/// Waiting: `append` at `disk`, `sync` and `sync_through` lead a sync unless another caller is about to.
/// `wait_durable` and `durable_at` only observe. [`request_sync`](Self::request_sync) makes the background
/// thread sync, without waiting for it.
#[derive(Clone, Debug)]
pub struct Log {
    handle: Arc<Handle>,
}

impl Log {
    /// Opens or creates `dir` (e.g. `log`) on the disk. `seed` generates segment ids and should be random.
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

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// Exclusive bound of the durable records.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.shared().durable()
    }

    /// Exclusive bound of the written records.
    #[must_use]
    pub fn end(&self) -> Lsn {
        Lsn(self.shared().end.load(Ordering::Acquire))
    }

    /// First LSN that is readable in order.
    #[must_use]
    pub fn start(&self) -> Lsn {
        self.shared().table.load().contiguous()[0].first
    }

    /// Makes all records written before the call durable. Returns the new watermark.
    pub fn sync(&self) -> Result<Lsn, AppendError> {
        let core = self.shared().core();
        let next = core.next;
        self.shared().commit(core, next)?;
        Ok(self.durable())
    }

    /// Makes all records below `lsn` durable. They must have been written.
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

    /// Truncations that come after a readable record, ordered by LSN, and for each space also by index. A
    /// truncation that a later one covers is left out. The call costs a few nanoseconds, and the list is
    /// usually empty.
    #[must_use]
    pub fn truncations(&self) -> Arc<Vec<Truncation>> {
        self.shared().truncations.load()
    }

    /// Returns the live segments, oldest first.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.shared().table.load().0.iter().map(|segment| segment.info()).collect()
    }

    /// Bytes that must become free on the disk before the log accepts data for a further segment; 0 if it
    /// does already.
    #[must_use]
    pub fn short_bytes(&self) -> u64 {
        self.shared().spares.short_bytes()
    }

    /// Returns counters since the log was opened, and current gauges.
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

    /// Returns the reason why the log rejects appends, or `None`.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let shared = self.shared();
        shared.failed.load(Ordering::Acquire).then(|| shared.failure.get().cloned().unwrap_or_default())
    }

    /// Syncs, writes a closing marker, and stops the background threads. Further appends fail; reads
    /// continue. Closing twice is allowed.
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
