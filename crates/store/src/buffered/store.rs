//! The interface of a store: an ordered map on disk, to which the memtables in front of it are written.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use bytes::Bytes;

use super::owned_source::OwnedSource;
use crate::{
    backend::{Applied, BackendError, BackendStats, Change, VerifiedRows},
    cursor::Cursor,
    merge::Source,
    span::{OwnedSpan, Span},
};

/// An ordered map on disk, behind memtables, that accepts changes in durable transactions.
///
/// Two threads never call `persist` and `tidy` at the same time; any thread may call every other method at any
/// time. The methods that take a [`View`](Self::View) or an [`Upkeep`](Self::Upkeep) run under the lock of the
/// memtables, so they must not block; `add_stats` is the exception.
pub trait Store: Sized + Send + Sync + 'static {
    /// Name of the kind of store in the configuration, such as `lsm` or `redb`.
    const NAME: &'static str;

    /// A consistent, immutable view of the persisted pairs.
    type View: StoreView;

    /// Pending work of the store's own background threads.
    type Upkeep: Default + Send;

    /// Returns the applied position that the last transaction stored. Called once, when the store was opened.
    fn applied(&self) -> Result<Option<Applied>, BackendError>;

    /// Makes the changes and the position `applied` durable in one transaction before the call returns; after a crash
    /// either all of them are stored or none. If the disk is full, the call has no effect, and may be repeated. Returns
    /// the number of bytes written. The changes of a memtable are in ascending order, one for each key. The changes of
    /// a single batch (`SyncMode::PerBatch`) are in any order, and the last change of a key wins.
    fn persist<'a>(&self, changes: impl Iterator<Item = Change<'a>>, applied: Applied) -> Result<u64, BackendError>;

    /// Returns a view of the persisted pairs of key and value, which do not change while the view exists.
    fn view(&self) -> Result<Arc<Self::View>, BackendError>;

    /// Loads newly persisted data into memory before a view of the data is published. Stops early when `go_on` returns
    /// false.
    fn warm(&self, _go_on: &dyn Fn() -> bool) -> Result<(), BackendError> {
        Ok(())
    }

    /// Returns the view to publish: `view`, or a newer one if another thread has changed the store in the meantime.
    /// Adds the background work that became necessary to `_upkeep`.
    fn publish(&self, view: &Arc<Self::View>, _upkeep: &mut Self::Upkeep) -> Arc<Self::View> {
        Arc::clone(view)
    }

    /// Does maintenance after a transaction, once the newest view includes this transaction. Returns true if the caller
    /// should publish a new view, because a new view keeps less old data alive.
    fn maintain(&self) -> Result<bool, BackendError> {
        Ok(false)
    }

    /// Releases disk space that only earlier views needed. Called after [`maintain`](Self::maintain) and after the
    /// publication of the view that it requested. Called again from time to time, because readers may still hold an
    /// earlier view.
    fn release(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Counts a write of `_bytes` bytes to the memtables. Only the thread that holds the lock of the memtables' writer
    /// calls this. Returns the duration for which the writer must pause because the store's background work is behind;
    /// zero if the work is not behind.
    #[inline]
    fn wrote(&self, _view: &Self::View, _bytes: usize) -> Duration {
        Duration::ZERO
    }

    /// Returns true if [`wrote`](Self::wrote) may return a pause while this is the newest view.
    fn slows_down(&self, _view: &Self::View) -> bool {
        false
    }

    /// Returns true if no further memtable may be sealed until the store's background work has caught up.
    fn is_behind(&self, _view: &Self::View) -> bool {
        false
    }

    /// Returns the approximate number of bytes that the store has written since it was opened, including work in
    /// progress. Callers use the number to tell slow work from work that has stopped.
    fn written_bytes(&self) -> u64 {
        0
    }

    /// Reports to the store how urgent its background work is. Called after each change of one of the arguments.
    fn report_demand(&self, _view: &Self::View, _upkeep: &Self::Upkeep, _demand: Demand) {}

    /// Returns a full-disk error while a call of [`persist`](Self::persist) waits for free disk space. Only stores that
    /// wait there instead of returning the error implement this.
    fn full_disk(&self) -> Option<BackendError> {
        None
    }

    /// Ends waits within the store, because the background threads must stop.
    fn stop(&self) {}

    /// Asks background threads to return the space of overwritten and deleted data to the disk. The threads use only
    /// the disk space that is free now.
    fn request_space(_upkeep: &mut Self::Upkeep) {}

    /// Returns an estimate of the disk space in bytes that persisting `memtables` memtables takes at most, if each has
    /// `changes` changes in `bytes` bytes.
    fn bytes_to_persist(&self, memtables: u64, _changes: u64, bytes: u64) -> u64 {
        memtables * bytes
    }

    /// Returns the number of free bytes within the store's files, which the store uses again before the files grow.
    fn reusable_bytes(&self) -> u64 {
        0
    }

    /// Requests the removal of all overwritten and deleted data (a compaction). Returns the number of the request;
    /// `None` if the store has nothing to remove.
    fn request_compaction(_upkeep: &mut Self::Upkeep) -> Option<u64> {
        None
    }

    /// Returns true if the requested compaction with this number has finished.
    fn has_compacted(_upkeep: &Self::Upkeep, _request: u64) -> bool {
        true
    }

    /// Adds the statistics of the store and of its newest view to `stats`: bytes on disk, bytes cached, keys. May
    /// block.
    fn add_stats(&self, view: &Self::View, stats: &mut BackendStats);
}

/// Urgency of the work of a store's background threads.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// True if a caller waits for a flush, or for the background threads to end.
    pub is_awaited: bool,
    /// Number of memtables that wait to be persisted, including the memtable that is being persisted.
    pub sealed: usize,
}

/// A consistent, immutable view of a [`Store`].
pub trait StoreView: Send + Sync + 'static {
    /// Cursor over one sorted run of pairs of key and value.
    type Cursor<'a>: Cursor
    where
        Self: 'a;

    /// Cursor over one sorted run of pairs that keeps the data of the view alive.
    type OwnedCursor: Cursor + Clone + Send + Sync + 'static;

    /// Returns the value of a key; `None` if the key does not exist.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError>;

    /// Requests from the disk the bytes that a read of this key will need; see
    /// [`View::read_ahead`](crate::View::read_ahead).
    fn read_ahead(&self, _key: &[u8]) {}

    /// Reads all pairs and verifies them; see [`Backend::verify`](crate::Backend::verify).
    fn verify(&self, step: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<VerifiedRows, BackendError>;

    /// Returns the maximum number of sorted runs that a scan over the view must merge; 0 if the view has no pairs.
    fn run_count(&self) -> usize;

    /// Adds a merge source to `sources` for each sorted run that has pairs within the span, newest run first.
    fn add_sources<'a>(
        &'a self,
        span: Span<'a>,
        sources: &mut Vec<Source<'a, Self::Cursor<'a>>>,
    ) -> Result<(), BackendError>;

    /// Adds sources like [`add_sources`](Self::add_sources). The cursors of these sources keep the data of the view
    /// alive. Returns false if the store has no such cursors.
    fn add_owned_sources(
        &self,
        span: &OwnedSpan,
        sources: &mut Vec<OwnedSource<Self::OwnedCursor>>,
    ) -> Result<bool, BackendError>;
}
