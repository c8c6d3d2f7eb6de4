//! A thread that keeps a hold (an acquired lock, slot or leadership) alive, and reports its loss.
//!
//! A hold that could not be kept alive in time counts as lost too. A keepalive request that hangs cannot hide
//! the loss, because [`KeptHold::is_lost`] compares the clock with the end of the known lifetime.

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

/// Maximum time that the keepalive thread waits between two readings of the clock of the coordinator (the interface to
/// the database). The thread waits by the system's clock, which can run differently.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Minimum pause between two attempts to keep the hold alive.
const PAUSE: Duration = Duration::from_millis(1);

/// A hold that a background thread keeps alive. Dropping this value releases the hold.
#[derive(Debug)]
pub struct KeptHold<C: Coordinator + Send + Sync + 'static>
where
    C::Error: Send,
{
    shared: Arc<Shared>,
    coordinator: C,
    token: FencingToken,
    key: Vec<u8>,
    /// The keepalive thread, which returns the hold when the thread stops.
    thread: Option<JoinHandle<Hold<C>>>,
}

impl<C> Hold<C>
where
    C: Coordinator + Send + Sync + 'static,
    C::Error: Send,
{
    /// Starts a thread that keeps the hold alive and detects its loss.
    #[must_use]
    pub fn keep(self) -> KeptHold<C> {
        KeptHold::start(self)
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stop: bool,
    /// Time, as [`Coordinator::now`] counts it, until which the lock, slot or leadership is certainly held.
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

impl<C: Coordinator + Send + Sync + 'static> KeptHold<C>
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

    /// Fencing token of the hold: a number that is higher than the tokens of earlier holders.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// Key of the holder in the keyspace, which exists while the hold lasts.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns true if the lock, slot or leadership may be lost, because the time for which it was certainly held is
    /// over. Once true, the result stays true.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let mut state = self.shared.lock();
        state.lost |= self.coordinator.now() >= state.until;
        state.lost
    }

    /// Waits until the hold is lost, at most for `timeout`. Returns true if the hold is lost.
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

    /// Releases the hold, so that the next contender acquires the lock, slot or leadership. Waits for a
    /// keepalive request in progress.
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

impl<C: Coordinator + Send + Sync + 'static> Drop for KeptHold<C>
where
    C::Error: Send,
{
    fn drop(&mut self) {
        drop(self.stop());
    }
}

/// Keeps the hold alive until it is lost or the thread must stop.
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
            // Another thread may have seen the hold as lost before this keepalive succeeded. The hold then stays lost.
            Ok(_) => state.until = hold.until(),
            Err(RecipeError::Lost { .. }) => state.lost = true,
            // The attempt failed and is retried while time remains.
            Err(_) => state.lost |= hold.check().is_err(),
        }
        shared.changed.notify_all();
    }
    drop(state);
    hold
}
