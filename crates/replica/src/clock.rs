//! Space time: anchored to the wall clock once, then carried by the monotonic clock, never going back.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use thalweg_types::{Clock, SpaceTime};

/// The time of one space.
#[derive(Debug)]
pub struct SpaceClock {
    clock: Arc<dyn Clock>,
    anchor: SpaceTime,
    anchored_at: Duration,
    /// Time of the newest entry; `now() >= last` always.
    last: AtomicU64,
}

impl SpaceClock {
    /// Anchors at the wall clock, or at `last` (the time of the newest entry) if that is later.
    #[must_use]
    pub fn anchor(clock: Arc<dyn Clock>, last: SpaceTime) -> Self {
        let anchor = clock.wall().max(last);
        let anchored_at = clock.monotonic();
        Self { clock, anchor, anchored_at, last: AtomicU64::new(last.0) }
    }

    /// The space's time now.
    #[must_use]
    pub fn now(&self) -> SpaceTime {
        let since = self.clock.monotonic().saturating_sub(self.anchored_at);
        self.anchor.plus(since).max(SpaceTime(self.last.load(Ordering::Relaxed)))
    }

    /// The time for the next entry. Called by the holder of the writer role only.
    pub(crate) fn stamp(&self) -> SpaceTime {
        let now = self.now();
        self.last.store(now.0, Ordering::Relaxed);
        now
    }
}

#[cfg(test)]
mod tests {
    use thalweg_types::ManualClock;

    use super::*;

    #[test]
    fn a_stepped_wall_clock_changes_nothing() {
        let clock = Arc::new(ManualClock::at(SpaceTime(1_000_000)));
        let space = SpaceClock::anchor(clock.clone(), SpaceTime(0));
        clock.advance(Duration::from_micros(5));
        assert_eq!(space.stamp(), SpaceTime(1_000_005));
        clock.step_wall(SpaceTime(1));
        assert_eq!(space.now(), SpaceTime(1_000_005));
        clock.step_wall(SpaceTime(u64::MAX / 2));
        clock.advance(Duration::from_micros(5));
        assert_eq!(space.stamp(), SpaceTime(1_000_010));
    }

    #[test]
    fn a_wall_clock_behind_the_newest_entry_does_not_take_time_back() {
        let clock = Arc::new(ManualClock::at(SpaceTime(10)));
        let space = SpaceClock::anchor(clock, SpaceTime(500));
        assert_eq!(space.now(), SpaceTime(500));
    }
}
