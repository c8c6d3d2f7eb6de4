//! Points in time, which callers pass to this crate.

use std::{fmt, time::Duration};

/// Point in time, in nanoseconds since the start of a monotonic clock, as in
/// [`Clock::monotonic`](thalweg_types::Clock::monotonic). Moments of different clocks are not comparable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Moment(u64);

impl Moment {
    /// Moment later than any other. Stands for "no deadline".
    pub const NEVER: Self = Self(u64::MAX);

    /// Creates a moment from the nanoseconds since the start of the monotonic clock.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds from the start of the monotonic clock to this moment.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Returns the moment `span` after this one, at most [`NEVER`](Self::NEVER).
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Time from `now` until this moment; zero if this moment has passed.
    #[must_use]
    pub const fn after(self, now: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(now.0))
    }
}

impl From<Duration> for Moment {
    fn from(since_start: Duration) -> Self {
        Self(u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&Duration::from_nanos(self.0), f)
    }
}
