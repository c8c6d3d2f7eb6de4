//! Time as an argument.
//!
//! The core never reads a clock directly; its caller passes a [`Clock`]. *Space time* is the clock of a space (a log
//! and the state computed from it): the time of the space's last log entry plus the monotonic time since then. Space
//! time is set from the wall clock only when the space is opened, and it never goes back, so stepping the wall clock of
//! a running node changes nothing.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::time::{ClockId, clock_gettime};

/// Time of a space's own clock (*space time*), in microseconds since the Unix epoch. Log entries carry it as their
/// timestamp, and deadlines and ages are measured by it. It never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct SpaceTime(pub u64);

impl SpaceTime {
    /// Returns the time in microseconds since the Unix epoch.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// Returns the time `span` after this one; the highest time if there would be an overflow.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)))
    }

    /// Returns the time `span` before this one; the Unix epoch if there would be an underflow.
    #[must_use]
    pub fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for SpaceTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Source of time for code that must not read the clocks of the operating system directly.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Returns the wall clock time in microseconds since the Unix epoch. The wall clock may be stepped forward or back.
    fn wall(&self) -> SpaceTime;
    /// Returns the monotonic time since an arbitrary start. Monotonic time never goes back, and goes on while the
    /// machine is suspended.
    fn monotonic(&self) -> Duration;
    /// Returns the total time for which the machine was suspended, or slightly more. Timers whose clock stands still
    /// during a suspension, such as those of [`Instant`](std::time::Instant), fire late by the length of the
    /// suspension.
    fn suspended(&self) -> Duration {
        Duration::ZERO
    }
}

/// The wall clock and the monotonic clock of the operating system.
#[derive(Debug)]
pub struct SystemClock {
    /// Time from the start of the machine to the creation of this clock.
    start: Duration,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: elapsed(ClockId::Boottime) }
    }
}

/// Returns the current time of `clock`, which counts from the start of the machine.
fn elapsed(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl Clock for SystemClock {
    fn wall(&self) -> SpaceTime {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        SpaceTime(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    fn monotonic(&self) -> Duration {
        elapsed(ClockId::Boottime).saturating_sub(self.start)
    }

    fn suspended(&self) -> Duration {
        // The clock that stands still is read first, so that a pause of the process between the readings can only make
        // the result larger.
        let awake = elapsed(ClockId::Monotonic);
        elapsed(ClockId::Boottime).saturating_sub(awake)
    }
}

/// A clock that tests advance by hand.
#[derive(Debug, Default)]
pub struct ManualClock {
    wall: AtomicU64,
    monotonic: AtomicU64,
}

impl ManualClock {
    /// Creates a clock whose wall time is `wall`.
    #[must_use]
    pub fn at(wall: SpaceTime) -> Self {
        Self { wall: AtomicU64::new(wall.0), monotonic: AtomicU64::new(0) }
    }

    /// Advances both the wall clock and the monotonic clock by `span`.
    pub fn advance(&self, span: Duration) {
        let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        self.wall.fetch_add(micros, Ordering::Relaxed);
        self.monotonic.fetch_add(micros, Ordering::Relaxed);
    }

    /// Steps the wall clock to `wall`. The monotonic clock is unchanged.
    pub fn step_wall(&self, wall: SpaceTime) {
        self.wall.store(wall.0, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> SpaceTime {
        SpaceTime(self.wall.load(Ordering::Relaxed))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.monotonic.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspensions_count_as_time_that_has_passed() {
        let clock = SystemClock::default();
        let begun = clock.monotonic();
        let still = std::time::Instant::now();
        let suspended = clock.suspended();
        let awake = still.elapsed();
        let again = clock.suspended();
        let passed = clock.monotonic() - begun;
        assert!(passed >= awake, "{passed:?} have passed, and {awake:?} by a clock that stands still in a suspension");
        assert!(again <= suspended + passed, "the machine was suspended for {again:?} in {passed:?}");
    }
}
