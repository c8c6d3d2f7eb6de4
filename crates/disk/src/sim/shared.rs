//! The state of a simulated disk, shared by its clones and handles.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::state::State;

/// A reference to the state of one disk.
#[derive(Clone)]
pub(super) struct SharedState(Arc<Mutex<State>>);

impl SharedState {
    pub(super) fn new(state: State) -> Self {
        Self(Arc::new(Mutex::new(state)))
    }

    /// Ignores poisoning: a panic in one test thread (a write beyond a mapping) leaves the state consistent.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SharedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDisk").field("counts", &self.lock().counts).finish_non_exhaustive()
    }
}
