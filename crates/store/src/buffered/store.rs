//! The interface of a store behind memtables.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    backend::{Applied, BackendError, BackendStats, Change},
    merge::{Cursor, Source},
    span::Span,
};

/// An ordered map on disk that accepts changes in durable transactions.
///
/// Two threads never call `persist` and `tidy` at the same time; any thread may call every other method at any
/// time. The methods that take a [`View`](Self::View) or an [`Upkeep`](Self::Upkeep) run under the lock of the
/// memtables, so they must not block; `add_stats` is the exception.
pub trait Store: Sized + Send + Sync + 'static {
    /// The store's name in the configuration.
    const NAME: &'static str;

    /// A consistent, immutable view of the persisted pairs.
    type View: StoreView;

    /// Pending work of the store's own background threads.
    type Upkeep: Default + Send;

    /// Returns the position of the last transaction. Called once, when the store was opened.
    fn applied(&self) -> Result<Option<Applied>, BackendError>;

    /// Makes the changes and `applied` durable in one transaction, all or nothing, before it returns. Returns the
    /// bytes written. The changes of a memtable are in ascending order, one for each key. The changes of a single
    /// batch (`SyncMode::PerBatch`) are in any order, and the last change of a key wins.
    fn persist<'a>(&self, changes: impl Iterator<Item = Change<'a>>, applied: Applied) -> Result<u64, BackendError>;

    /// Returns a view of the persisted pairs, which stay as they are while the view exists.
    fn view(&self) -> Result<Arc<Self::View>, BackendError>;

    /// Loads newly persisted data into memory before a view of it is published, while `go_on` returns true.
    fn warm(&self, _go_on: &dyn Fn() -> bool) -> Result<(), BackendError> {
        Ok(())
    }

    /// Returns the view to publish: `view`, or a newer one if another thread has changed the store since. Notes the
    /// upkeep that the change makes due.
    fn publish(&self, view: &Arc<Self::View>, _upkeep: &mut Self::Upkeep) -> Arc<Self::View> {
        Arc::clone(view)
    }

    /// Does maintenance when the view of the transaction before the last one is no longer the newest. Returns true
    /// if a new view would retain less old data than the newest one.
    fn maintain(&self) -> Result<bool, BackendError> {
        Ok(false)
    }

    /// Counts a write of `bytes` to the memtables. Returns the pause by which the writer must slow down, because the
    /// store's upkeep is behind.
    #[inline]
    fn wrote(&self, _view: &Self::View, _bytes: usize) -> Duration {
        Duration::ZERO
    }

    /// Returns true if no further memtable may be sealed until the store's upkeep has caught up.
    fn is_behind(&self, _view: &Self::View) -> bool {
        false
    }

    /// Reports how urgent the store's work is. Called after each change of the arguments.
    fn report_demand(&self, _view: &Self::View, _upkeep: &Self::Upkeep, _demand: Demand) {}

    /// Requests the removal of all overwritten and deleted data. Returns the number of the request; `None` if the
    /// store has nothing to remove.
    fn request_compaction(_upkeep: &mut Self::Upkeep) -> Option<u64> {
        None
    }

    /// Returns true if the compaction with this number has finished.
    fn has_compacted(_upkeep: &Self::Upkeep, _request: u64) -> bool {
        true
    }

    /// Adds the statistics of the store and of its newest view: bytes on disk, bytes cached, keys. May block.
    fn add_stats(&self, view: &Self::View, stats: &mut BackendStats);
}

/// Demand for the work of a store's threads.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// True if a caller waits for a flush or for the end of the threads.
    pub is_awaited: bool,
    /// Number of memtables that wait to be persisted, including the one being persisted.
    pub sealed: usize,
}

/// A consistent, immutable view of a [`Store`].
pub trait StoreView: Send + Sync + 'static {
    /// A cursor over one sorted run of pairs.
    type Cursor<'a>: Cursor
    where
        Self: 'a;

    /// Returns the value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError>;

    /// Returns the maximum number of runs that a scan merges; 0 if the view has no pairs.
    fn run_count(&self) -> usize;

    /// Adds a source for each run that has pairs within the span, newest first.
    fn add_sources<'a>(
        &'a self,
        span: Span<'a>,
        sources: &mut Vec<Source<'a, Self::Cursor<'a>>>,
    ) -> Result<(), BackendError>;
}
