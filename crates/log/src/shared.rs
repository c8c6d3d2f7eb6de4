//! The state that all parts of an open log share.

use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use arc_swap::ArcSwap;
use thalweg_disk::LockGuard;
use thalweg_types::{Clock, Lsn};

use crate::{
    errors::AppendError, gates::Gates, options::LogOptions, prepare::SegmentPool, segment::Table, syncer::Syncer,
    truncations::Truncations, writer_role::Core,
};

/// State shared by the parts of an open log. Lock order: `core`, then the locks inside `segment_pool`, `syncer`,
/// `gates`.
#[derive(Debug)]
pub(crate) struct Shared {
    pub options: LogOptions,
    pub clock: Arc<dyn Clock>,
    pub segment_pool: Arc<SegmentPool>,
    /// The live segments. Changed only under the mutex `Shared::core`; read without a lock.
    pub table: ArcSwap<Table>,
    core: Mutex<Core>,
    /// LSN after the last written record. `durable`, the LSN after the last durable record, never exceeds it.
    pub end: AtomicU64,
    pub durable: AtomicU64,
    pub released: AtomicU64,
    /// LSN from which another node needs the records; `u64::MAX` if no other node needs any.
    pub kept_from: AtomicU64,
    /// Table of truncations. Changed only under the mutex `Shared::core`; read without a lock.
    pub truncations: Truncations,
    pub failed: AtomicBool,
    pub failure: OnceLock<String>,
    pub closed: AtomicBool,
    pub gates: Gates,
    pub syncer: Syncer,
    /// Lock on the log's directory, held while this value exists.
    _lock: Box<dyn LockGuard>,
}

impl Shared {
    pub(crate) fn new(
        options: LogOptions,
        clock: Arc<dyn Clock>,
        segment_pool: Arc<SegmentPool>,
        table: ArcSwap<Table>,
        core: Core,
        durable: Lsn,
        lock: Box<dyn LockGuard>,
    ) -> Self {
        Self {
            options,
            clock,
            segment_pool,
            table,
            end: AtomicU64::new(core.next.0),
            core: Mutex::new(core),
            durable: AtomicU64::new(durable.0),
            released: AtomicU64::new(0),
            kept_from: AtomicU64::new(u64::MAX),
            truncations: Truncations::default(),
            failed: AtomicBool::new(false),
            failure: OnceLock::new(),
            closed: AtomicBool::new(false),
            gates: Gates::default(),
            syncer: Syncer::default(),
            _lock: lock,
        }
    }

    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(|poisoned: PoisonError<_>| {
            // A batch may be partly written.
            self.failure.get_or_init(|| "a thread panicked while it wrote".to_owned());
            self.failed.store(true, Ordering::Release);
            poisoned.into_inner()
        })
    }

    pub(crate) fn durable(&self) -> Lsn {
        Lsn(self.durable.load(Ordering::Acquire))
    }

    pub(crate) fn check_not_failed(&self) -> Result<(), AppendError> {
        if self.failed.load(Ordering::Acquire) {
            let reason = self.failure.get().cloned().unwrap_or_default();
            return Err(AppendError::Failed { reason });
        }
        Ok(())
    }

    pub(crate) fn check_writable(&self) -> Result<(), AppendError> {
        self.check_not_failed()?;
        if self.closed.load(Ordering::Acquire) { Err(AppendError::Closed) } else { Ok(()) }
    }
}
