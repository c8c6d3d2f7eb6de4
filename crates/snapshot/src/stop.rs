//! The signal by which a snapshot stops its background threads.
//!
//! Owns: the signal, and pauses that the signal ends early. Does not own: the threads (`pipeline`).

use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// A signal that can be set once, and stays set.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_set: AtomicBool,
    lock: Mutex<()>,
    was_set: Condvar,
}

impl Stop {
    pub(crate) fn set(&self) {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_set.store(true, Ordering::Release);
        drop(lock);
        self.was_set.notify_all();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Waits for `time`, or until the signal is set. Returns true if the signal is set.
    pub(crate) fn rest(&self, time: Duration) -> bool {
        if !time.is_zero() {
            let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.was_set.wait_timeout_while(lock, time, |()| !self.is_set()));
        }
        self.is_set()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    fn a_rest_ends_with_the_signal() {
        let stop = Arc::new(Stop::default());
        assert!(!stop.rest(Duration::ZERO) && !stop.rest(Duration::from_millis(1)));
        let resting = {
            let stop = Arc::clone(&stop);
            thread::spawn(move || stop.rest(Duration::MAX))
        };
        stop.set();
        assert!(resting.join().unwrap());
        assert!(stop.rest(Duration::MAX));
    }
}
