//! How much clients have been answered, for a test that waits until it is enough.

use std::sync::{Arc, Condvar, Mutex};

use super::PATIENCE;

/// A number that only grows; clones are the same one.
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
    /// What somebody waits for: nobody is woken before.
    wanted: Option<u64>,
}

impl Count {
    /// One more.
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

    /// Returns when there are so many. Not for two threads at a time.
    ///
    /// # Panics
    /// After [`PATIENCE`].
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
