//! Time as an argument.
//!
//! The core never reads a clock by itself: it is given a [`Clock`]. *Space time* is the time of the
//! last entry plus the monotonic time since, anchored to the wall clock only at open; it never goes
//! back, so a wall clock stepped while running changes nothing.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Microseconds since the Unix epoch, in space time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct SpaceTime(pub u64);

impl SpaceTime {
    /// The number of microseconds.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// This time plus `span`, saturating.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)))
    }

    /// This time minus `span`, saturating at the epoch.
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

/// Where time comes from.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Wall clock, microseconds since the Unix epoch. May step either way.
    fn wall(&self) -> SpaceTime;
    /// Time since an arbitrary start that never goes back.
    fn monotonic(&self) -> Duration;
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn wall(&self) -> SpaceTime {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        SpaceTime(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}

/// A clock that tests move by hand.
#[derive(Debug, Default)]
pub struct ManualClock {
    wall: AtomicU64,
    monotonic: AtomicU64,
}

impl ManualClock {
    /// A clock whose wall shows `wall`.
    #[must_use]
    pub fn at(wall: SpaceTime) -> Self {
        Self { wall: AtomicU64::new(wall.0), monotonic: AtomicU64::new(0) }
    }

    /// Time passes: both clocks go on.
    pub fn advance(&self, span: Duration) {
        let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        self.wall.fetch_add(micros, Ordering::Relaxed);
        self.monotonic.fetch_add(micros, Ordering::Relaxed);
    }

    /// Somebody steps the wall clock; the monotonic one goes on as before.
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
