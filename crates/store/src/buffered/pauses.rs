//! Waits of writes for a store whose background work is behind.
//!
//! Owns: [`OwedPause`], the pauses that a writer has not made yet; and [`Pauses`]: the sign that a write may have to
//! wait, the pauses that a caller makes itself, and their counters. Does not own: the time that a write costs, which
//! the store determines, or sleeping (see `running`).
//!
//! A write waits in two ways. A *pause* is short, and slows writes down to the speed of the background work. A *stop*
//! lasts until there is room for another memtable. A caller that must not sleep in `apply`, because other work runs on
//! its thread, leaves the pauses to itself: it makes them before its next writes. Stops remain, because memory is
//! bounded. So a member that applies what another node has proposed does not slow that node down, and is stopped once
//! it is too far behind.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Minimum duration of one pause. Shorter pauses are added up until they reach this duration.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// Maximum duration of one pause, so that a thread that holds locks or a role gives them up soon.
const MAX_PAUSE: Duration = Duration::from_millis(50);
/// Maximum sum of the pauses that writes have not made yet. Writes that are much larger than a pause allows for are
/// slowed down by stops.
const MAX_OWED: Duration = Duration::from_secs(1);

/// Sum of the pauses that a writer should have made but has not made yet.
#[derive(Debug, Default)]
pub(crate) struct OwedPause(Duration);

impl OwedPause {
    /// Adds the pause of a write. A write without one shows that the store has caught up, so earlier pauses have no
    /// purpose any more.
    pub(crate) fn add(&mut self, pause: Duration) {
        self.0 = if pause.is_zero() { Duration::ZERO } else { self.0.saturating_add(pause).min(MAX_OWED) };
    }

    /// Returns the pause to make now; `None` if it is not worth while yet.
    pub(crate) fn take(&mut self) -> Option<Duration> {
        let pause = self.0.min(MAX_PAUSE);
        self.0 -= if pause < MIN_PAUSE { Duration::ZERO } else { pause };
        (pause >= MIN_PAUSE).then_some(pause)
    }
}

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
    fn pauses_are_neither_very_short_nor_long() {
        let mut owed = OwedPause::default();
        owed.add(Duration::from_micros(999));
        assert_eq!(owed.take(), None);
        owed.add(Duration::from_micros(2));
        assert_eq!(owed.take(), Some(Duration::from_micros(1001)));
        owed.add(Duration::MAX);
        for _ in 0..20 {
            assert_eq!(owed.take(), Some(MAX_PAUSE));
        }
        assert_eq!(owed.take(), None);
        owed.add(Duration::from_millis(7));
        owed.add(Duration::ZERO);
        assert_eq!(owed.take(), None, "the store has caught up");
    }

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
