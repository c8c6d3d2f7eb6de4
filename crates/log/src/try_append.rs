//! Appends that never wait, for callers that must not block their thread.
//!
//! Owns: [`Log::try_append`], and the future that resolves when a refused append may succeed. Does not own: the write
//! itself (see `writer`).
//!
//! An append waits in three cases: for an fsync, for an empty segment file, and for the fsync of earlier segments. The
//! append of this module never waits for the fsync: a caller that needs it waits separately. In the other two cases the
//! append is refused.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use thalweg_types::{Action, Classified, Lsn};

use crate::{
    errors::AppendError,
    log::Log,
    record::{Appended, Draft, Purpose},
    shared::Shared,
    writer::MAX_UNSYNCED_SEGMENTS,
    writer_role::{Core, WritePath},
};

/// Reason why an append would have to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// The active segment is full, and the next one is not prepared yet. The preparer thread works on it.
    NoSegment,
    /// The active segment is full, and as many sealed segments as the log allows wait for their fsync. The sync thread
    /// works on it.
    Unsynced,
}

/// Error returned when [`Log::try_append`] appends nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TryAppendError {
    /// The append would have to wait. No bytes were written.
    #[error("the log has no room at the moment ({0:?}): wait until it has, then append again")]
    WouldBlock(Blocked),
    /// The log rejected the append for another reason than a wait.
    #[error(transparent)]
    Append(#[from] AppendError),
}

impl Classified for TryAppendError {
    fn code(&self) -> &'static str {
        match self {
            Self::WouldBlock(_) => "log_would_block",
            Self::Append(error) => error.code(),
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::WouldBlock(_) => Action::Retry,
            Self::Append(error) => error.action(),
        }
    }
}

impl Log {
    /// Appends records as one batch at level `os`: the records are written to the kernel, and readers see them. Never
    /// waits for an fsync or for an empty segment file. The call takes about as long as a write to the page cache, and
    /// it waits while another append writes.
    ///
    /// The batch is written with a system call and not through a memory mapping, which makes an fsync soon afterwards
    /// cheap. The caller requests this fsync with [`sync_through`](Self::sync_through) or
    /// [`request_sync`](Self::request_sync). Errors are those of [`append`](Self::append), except that a missing
    /// segment is [`TryAppendError::WouldBlock`]; [`append_ready`](Self::append_ready) waits for it.
    pub fn try_append(&self, drafts: &[Draft<'_>], purpose: Purpose) -> Result<Appended, TryAppendError> {
        let measure = self.admit(drafts, purpose)?;
        let shared = self.shared();
        let (core, appended) =
            shared.write_drafts(drafts, &measure, WritePath::File, |core| shared.try_roll(core, purpose))?;
        drop(core);
        Ok(appended)
    }

    /// Resolves when a [`try_append`](Self::try_append) that was refused may succeed. It can still be refused again,
    /// because another append may use the space first. Dropping the future is always allowed.
    ///
    /// # Errors
    /// `DiskFull` or `NoSegment` if the preparer thread failed to prepare a segment since the last call; a new call
    /// makes the thread try again. `Failed` and `Closed` as for an append.
    pub fn append_ready(&self, purpose: Purpose) -> impl Future<Output = Result<(), AppendError>> + Send + 'static {
        let shared = Arc::clone(self.shared());
        let (faults, begun) = (shared.segment_pool.request(purpose), shared.clock.monotonic());
        AppendReady { shared, purpose, faults, begun, id: None }
    }
}

impl Shared {
    /// Makes the log continue in a new segment, if one is prepared and the earlier segments are synced. Does not wait.
    fn try_roll<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        purpose: Purpose,
    ) -> Result<MutexGuard<'a, Core>, TryAppendError> {
        if core.unsynced.len() >= MAX_UNSYNCED_SEGMENTS {
            drop(core);
            self.syncer.due_now();
            return Err(TryAppendError::WouldBlock(Blocked::Unsynced));
        }
        let Some(prepared) = self.segment_pool.take(purpose) else {
            drop(core);
            self.segment_pool.request(purpose);
            return Err(TryAppendError::WouldBlock(Blocked::NoSegment));
        };
        core.switch(prepared, &self.table, &self.segment_pool);
        self.syncer.due_now();
        Ok(core)
    }
}

/// A future that resolves when an append need not wait for a segment.
#[derive(Debug)]
struct AppendReady {
    shared: Arc<Shared>,
    purpose: Purpose,
    /// Number of failed attempts to prepare a segment before the future was created.
    faults: u64,
    /// Monotonic time at which the future was created.
    begun: Duration,
    /// Key of the waker that is woken when a sync ends; `None` while no waker is registered.
    id: Option<u64>,
}

impl AppendReady {
    fn outcome(&self) -> Option<Result<(), AppendError>> {
        if let Err(error) = self.shared.check_writable() {
            return Some(Err(error));
        }
        if self.shared.core().unsynced.len() >= MAX_UNSYNCED_SEGMENTS {
            return None;
        }
        let found = self.shared.segment_pool.has_ready(self.purpose, self.faults)?;
        Some(found.map_err(|error| self.shared.no_segment(error)))
    }

    fn register(&mut self, context: &Context<'_>) {
        self.shared.segment_pool.wake_when_ready(context.waker());
        let mut wakers = self.shared.gates.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        let id = *self.id.get_or_insert_with(|| {
            wakers.last_id += 1;
            wakers.last_id
        });
        // Every sync reaches LSN 0, so the end of any sync wakes the task.
        wakers.waiting.insert((Lsn::ZERO, id), context.waker().clone());
    }
}

impl Future for AppendReady {
    type Output = Result<(), AppendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut outcome = self.outcome();
        if outcome.is_none() {
            self.register(context);
            // A segment may have become ready before the wakers were registered.
            outcome = self.outcome();
        }
        if outcome.is_some() {
            self.shared.count_segment_wait(self.begun);
        }
        outcome.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for AppendReady {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let mut wakers = self.shared.gates.wakers.lock().unwrap_or_else(PoisonError::into_inner);
            wakers.waiting.remove(&(Lsn::ZERO, id));
        }
    }
}
