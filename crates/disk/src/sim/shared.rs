//! The state of a simulated disk behind a lock, shared by the disk's clones and open handles.

use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{names::InodeId, state::State};

/// A reference to the shared state of one simulated disk.
#[derive(Clone)]
pub(super) struct SharedState(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Condition variable that is notified when a file is unlocked.
    released: Condvar,
}

impl SharedState {
    pub(super) fn new(state: State) -> Self {
        Self(Arc::new(Shared { state: Mutex::new(state), released: Condvar::new() }))
    }

    /// Locks the state. Ignores poisoning, because a panic of a test thread (a write beyond a mapping) leaves the state
    /// consistent.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state like [`lock`](Self::lock), but first waits until the file at `path` is unlocked, at most for
    /// `patience`.
    pub(super) fn lock_when_released(&self, path: &str, patience: Duration) -> MutexGuard<'_, State> {
        let state = self.lock();
        let waited = self.0.released.wait_timeout_while(state, patience, |state| state.is_locked(path));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    pub(super) fn unlock(&self, file: InodeId) {
        self.lock().unlock(file);
        self.0.released.notify_all();
    }
}

impl fmt::Debug for SharedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDisk").field("counts", &self.lock().counts).finish_non_exhaustive()
    }
}
