//! The bound of fetches that wait.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use thalweg_types::limits::MAX_WAITING_FETCHES;

/// Number of fetches that wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits(Arc<AtomicUsize>);

impl Waits {
    /// Counts a waiting fetch; `None` at the bound.
    pub(crate) fn enter(&self) -> Option<Waiting> {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting(self.clone());
        (before < MAX_WAITING_FETCHES).then_some(waiting)
    }
}

/// A fetch that waits. Dropping it decreases the count.
#[derive(Debug)]
pub(crate) struct Waiting(Waits);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
