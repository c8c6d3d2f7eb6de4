//! Waits of writes for a store whose background work is behind.
//!
//! Owns: [`Pauses`]: the sign that a write may have to wait, the pauses that a caller makes itself, and their counters. Does not
//! own: the length of a pause, which the store determines, or sleeping (see `running`).
//!
//! A write waits in two ways. A *pause* is short, and slows writes down to the speed of the background work. A *stop* lasts
//! until there is room for another memtable. A caller that must not sleep in `apply`, because other work runs on its thread,
//! leaves the pauses to itself: it makes them before its next writes. Stops remain, because memory is bounded. So a member
//! that applies what another node has proposed does not slow that node down, and is stopped once it is too far behind.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Maximum duration of one pause, so that a thread that holds locks or a role gives them up soon.
pub(super) const MAX_PAUSE: Duration = Duration::from_millis(50);
/// Maximum sum of the pauses that writes have not made yet. Writes that are much larger than a pause allows for are slowed down
/// by stops.
pub(super) const MAX_OWED: Duration = Duration::from_secs(1);

/// Waits of writes, apart from the state under the lock of the memtables; see the [module](self).
#[derive(Debug, Default)]
pub(super) struct Pauses {
    may_wait: AtomicBool,
    is_left_to_caller: AtomicBool,
    owed_nanos: AtomicU64,
    pub made: AtomicU64,
    pub micros: AtomicU64,
}

impl Pauses {
    /// Returns true if the next write may have to wait.
    pub(super) fn may_wait(&self) -> bool {
        self.may_wait.load(Relaxed)
    }

    pub(super) fn set_may_wait(&self, may_wait: bool) {
        self.may_wait.store(may_wait, Relaxed);
    }

    /// Leaves the pauses of all further writes to the caller.
    pub(super) fn leave_to_caller(&self) {
        self.is_left_to_caller.store(true, Relaxed);
    }

    pub(super) fn are_left_to_caller(&self) -> bool {
        self.is_left_to_caller.load(Relaxed)
    }

    /// Adds a pause that the caller has to make.
    pub(super) fn owe(&self, pause: Duration) {
        // Only the holder of the memtables' writer adds, and a pause taken in between is made once too often at most.
        let owed = Duration::from_nanos(self.owed_nanos.load(Relaxed)) + pause;
        self.owed_nanos.store(owed.min(MAX_OWED).as_nanos() as u64, Relaxed);
    }

    /// Returns the pause that the caller has to make before further writes. The caller then makes it.
    pub(super) fn take(&self) -> Duration {
        if self.owed_nanos.load(Relaxed) == 0 {
            return Duration::ZERO;
        }
        let pause = Duration::from_nanos(self.owed_nanos.swap(0, Relaxed));
        self.count(pause);
        pause
    }

    /// Counts a pause in the statistics.
    pub(super) fn count(&self, pause: Duration) {
        self.made.fetch_add(1, Relaxed);
        self.micros.fetch_add(pause.as_micros() as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_caller_owes_is_taken_once_and_has_a_bound() {
        let pauses = Pauses::default();
        assert_eq!(pauses.take(), Duration::ZERO);
        pauses.owe(Duration::from_millis(3));
        pauses.owe(Duration::from_millis(4));
        assert_eq!((pauses.take(), pauses.take()), (Duration::from_millis(7), Duration::ZERO));
        (0..100).for_each(|_| pauses.owe(Duration::from_millis(50)));
        assert_eq!(pauses.take(), MAX_OWED);
        assert_eq!((pauses.made.load(Relaxed), pauses.micros.load(Relaxed)), (2, 1_007_000));
    }
}
