//! A thread that keeps a hold alive, and says when it is lost.
//!
//! Lost is also what could not be kept alive in time: an attempt that hangs hides nothing, since whoever asks
//! compares the clock with the end that is known.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::{
    coordinator::Coordinator,
    error::RecipeError,
    hold::{FencingToken, Hold},
};

/// Longest wait without a look at the clock: it need not be the one by which threads wait.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Shortest wait between two attempts.
const PAUSE: Duration = Duration::from_millis(1);

/// A hold that a thread keeps alive. Dropping it lets go.
#[derive(Debug)]
pub struct Kept<C: Coordinator + Send + Sync + 'static>
where
    C::Error: Send,
{
    shared: Arc<Shared>,
    coordinator: C,
    token: FencingToken,
    key: Vec<u8>,
    /// Gives the hold back when it is told to stop.
    thread: Option<JoinHandle<Hold<C>>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stop: bool,
    /// Until when it is held for certain, by the coordinator's clock.
    until: Duration,
    lost: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, at_most: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, at_most).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl<C: Coordinator + Send + Sync + 'static> Kept<C>
where
    C::Error: Send,
{
    pub(crate) fn start(hold: Hold<C>) -> Self {
        let shared = Arc::new(Shared::default());
        shared.lock().until = hold.until();
        let (coordinator, token, key) = (hold.coordinator().clone(), hold.token(), hold.key().to_vec());
        let thread = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || keep(hold, &shared))
        };
        Self { shared, coordinator, token, key, thread: Some(thread) }
    }

    /// The fencing token.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// The key that stands for the hold.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Whether it is not held for certain any more. Once it is so, it stays so.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let mut state = self.shared.lock();
        state.lost |= self.coordinator.now() >= state.until;
        state.lost
    }

    /// Waits until it is lost, at most so long; says whether it is.
    #[must_use]
    pub fn wait_lost(&self, timeout: Duration) -> bool {
        let began = self.coordinator.now();
        loop {
            if self.is_lost() {
                return true;
            }
            let now = self.coordinator.now();
            let left = timeout.saturating_sub(now.saturating_sub(began));
            if left.is_zero() {
                return false;
            }
            let state = self.shared.lock();
            if state.lost {
                return true;
            }
            let until_lost = state.until.saturating_sub(now);
            drop(self.shared.wait(state, left.min(until_lost).min(LOOK_EVERY).max(PAUSE)));
        }
    }

    /// Lets go: the next one holds. Waits for an attempt to keep it alive that is under way.
    pub fn release(mut self) -> Result<(), RecipeError<C::Error>> {
        match self.stop() {
            Some(hold) => hold.release(),
            None => Ok(()),
        }
    }

    fn stop(&mut self) -> Option<Hold<C>> {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        self.thread.take().and_then(|thread| thread.join().ok())
    }
}

impl<C: Coordinator + Send + Sync + 'static> Drop for Kept<C>
where
    C::Error: Send,
{
    fn drop(&mut self) {
        drop(self.stop());
    }
}

/// Keeps it alive until it is lost or nobody wants it any more.
fn keep<C: Coordinator>(mut hold: Hold<C>, shared: &Shared) -> Hold<C> {
    let mut state = shared.lock();
    while !state.stop && !state.lost {
        let due = hold.keep_alive_in();
        if !due.is_zero() {
            state = shared.wait(state, due.clamp(PAUSE, LOOK_EVERY));
            continue;
        }
        drop(state);
        let kept = hold.keep_alive();
        state = shared.lock();
        match kept {
            // Others may have been told already that it is lost: then it stays so.
            Ok(_) => state.until = hold.until(),
            Err(RecipeError::Lost { .. }) => state.lost = true,
            // Put off; tried again as long as something remains.
            Err(_) => state.lost |= hold.check().is_err(),
        }
        shared.changed.notify_all();
    }
    drop(state);
    hold
}
