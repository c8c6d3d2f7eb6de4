//! The bound on the number of fetches from consumer groups that wait for records.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use thalweg_types::limits::MAX_WAITING_FETCHES;

/// Counter of the fetches from consumer groups that wait for records.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitingFetches(Arc<AtomicUsize>);

impl WaitingFetches {
    /// Counts a fetch that begins to wait. Returns `None` if the maximum number of fetches already waits.
    pub(crate) fn enter(&self) -> Option<WaitingFetch> {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        let waiting = WaitingFetch(self.clone());
        (before < MAX_WAITING_FETCHES).then_some(waiting)
    }
}

/// A fetch from a consumer group that waits for records. Dropping it decreases the counter.
#[derive(Debug)]
pub(crate) struct WaitingFetch(WaitingFetches);

impl Drop for WaitingFetch {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
