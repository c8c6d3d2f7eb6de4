//! Count of answered requests, for a test that waits until there are enough.

use std::sync::{Arc, Condvar, Mutex};

use super::PATIENCE;

/// A counter that only grows; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Count(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    enough: Condvar,
}

#[derive(Debug, Default)]
struct State {
    count: u64,
    /// Count for which a thread waits; it is woken only then.
    wanted: Option<u64>,
}

impl Count {
    /// Adds 1 to the count, and wakes a waiting thread once there are enough.
    pub fn add(&self) {
        let mut state = self.0.state.lock().unwrap();
        state.count += 1;
        if state.wanted == Some(state.count) {
            self.0.enough.notify_all();
        }
    }

    pub fn get(&self) -> u64 {
        self.0.state.lock().unwrap().count
    }

    /// Waits until the count reaches `wanted`. At most one thread may wait.
    ///
    /// # Panics
    /// If the count is not reached within [`PATIENCE`].
    #[track_caller]
    pub fn wait_for(&self, wanted: u64) {
        let mut state = self.0.state.lock().unwrap();
        assert!(state.wanted.replace(wanted).is_none(), "one waits at a time");
        let (mut state, _) = self.0.enough.wait_timeout_while(state, PATIENCE, |state| state.count < wanted).unwrap();
        state.wanted = None;
        let count = state.count;
        drop(state);
        assert!(count >= wanted, "only {count} of {wanted}");
    }
}
