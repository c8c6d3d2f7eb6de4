//! Pauses of writes while the background work of a store is behind.
//!
//! Owns: [`OwedPause`], the pauses that a writer has not made yet; and [`Pauses`], the flag that the next write may
//! wait, the pauses that are left to the caller, and the counters of pauses. Does not own: the length of a write's
//! pause, which the store determines, or sleeping (see `running`).
//!
//! A write waits in two ways. A *pause* is short, and slows writes down to the speed of the background work. A *stop*
//! lasts until there is room for another memtable. A caller that must not sleep in `apply`, because its thread also has
//! other work, asks for the pauses: `apply` then skips them, and the caller makes them before its next writes. The
//! caller still waits in stops, because memory is bounded. For example, a member that applies entries of the leader
//! does not slow the leader down, and is stopped only when it is too far behind.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Minimum duration of one pause. Shorter pauses are summed until the sum reaches this duration.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// Maximum duration of one pause. It limits for how long a pausing thread blocks other threads that need its locks.
const MAX_PAUSE: Duration = Duration::from_millis(50);
/// Maximum sum of the pauses that writes have not made yet. If writes are so large that pauses up to this sum do not
/// slow them down enough, the writes wait until there is room for another memtable.
const MAX_OWED: Duration = Duration::from_secs(1);

/// Sum of the pauses that a writer should have made but has not made yet.
#[derive(Debug, Default)]
pub(crate) struct OwedPause(Duration);

impl OwedPause {
    /// Adds the pause that one write requires. Zero means that the store has caught up, and cancels all earlier pauses.
    pub(crate) fn add(&mut self, pause: Duration) {
        self.0 = if pause.is_zero() { Duration::ZERO } else { self.0.saturating_add(pause).min(MAX_OWED) };
    }

    /// Returns the pause to make now; `None` while the sum is shorter than the minimum duration of a pause.
    pub(crate) fn take(&mut self) -> Option<Duration> {
        let pause = self.0.min(MAX_PAUSE);
        self.0 -= if pause < MIN_PAUSE { Duration::ZERO } else { pause };
        (pause >= MIN_PAUSE).then_some(pause)
    }
}

/// The pauses that are left to the caller of `apply`, the flag that the next write may wait, and counters of pauses.
/// All are readable without the memtables' lock.
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

    /// Makes the caller responsible for the pauses of all further writes.
    pub(super) fn leave_to_caller(&self) {
        self.is_left_to_caller.store(true, Relaxed);
    }

    pub(super) fn are_left_to_caller(&self) -> bool {
        self.is_left_to_caller.load(Relaxed)
    }

    /// Adds a pause that a write has skipped. The caller of `apply` must sleep for this time before a later write.
    pub(super) fn owe(&self, pause: Duration) {
        // Only the thread that holds the memtables' writer adds pauses. If the caller takes the sum between the load
        // and the store, it makes these pauses twice, which is harmless.
        let owed = Duration::from_nanos(self.owed_nanos.load(Relaxed)) + pause;
        self.owed_nanos.store(owed.min(MAX_OWED).as_nanos() as u64, Relaxed);
    }

    /// Returns the pause that the caller must make before further writes, and counts it as made.
    pub(super) fn take(&self) -> Duration {
        if self.owed_nanos.load(Relaxed) == 0 {
            return Duration::ZERO;
        }
        let pause = Duration::from_nanos(self.owed_nanos.swap(0, Relaxed));
        self.count(pause);
        pause
    }

    /// Counts a pause of a write in the statistics.
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
