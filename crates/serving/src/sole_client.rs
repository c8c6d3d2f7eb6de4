//! Detection of a connection that is the only active one of the server.
//!
//! Owns: the connection that was active last, and the time since which no other connection was active. Does not own:
//! the consequences. A channel that is the only active one commits on its own thread. The commit blocks the thread for
//! an fsync, but saves two wakes: of the committer, and of the channel afterwards. Such a channel also reads pages of
//! records on its own thread. If other connections were active, this work would delay them, and it would be better to
//! commit their commands together.
//!
//! The detection predicts the next moment from the last ones, and may be wrong. A connection that is active more often
//! than every `QUIET` prevents all others from counting as the only one, so they never delay it. A connection that is
//! active less often waits for at most one fsync or one page.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Time without activity of any other connection after which a connection counts as the only active one.
const QUIET: Duration = Duration::from_millis(100);
/// Shortest time between two updates of the stored connection, in microseconds. Without this limit, the threads that
/// serve many active connections would write to the same memory in each turn of each connection.
const RECORDED_EVERY: u64 = 1000;

/// Detector of a connection that is the only active one of the server. It has a cache line of its own, so that updates
/// do not slow down threads that read neighbouring values.
#[derive(Debug)]
#[repr(align(64))]
pub struct SoleClientMode {
    begun: Instant,
    last: AtomicU64,
    /// Start of the period in which only the connection `last` has been active, in microseconds since `begun`.
    since: AtomicU64,
}

impl SoleClientMode {
    /// Starts the detection at `now`. No connection has been active yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { begun: now, last: AtomicU64::new(0), since: AtomicU64::new(0) }
    }

    /// Records that the connection with number `who` is active at `now`. Returns true if no other connection was active
    /// for at least `QUIET`.
    #[inline]
    pub fn report_activity(&self, who: u64, now: Instant) -> bool {
        let now = now.saturating_duration_since(self.begun).as_micros() as u64;
        let quiet = now.saturating_sub(self.since.load(Ordering::Relaxed));
        if self.last.load(Ordering::Relaxed) == who {
            return quiet >= QUIET.as_micros() as u64;
        }
        // Within this time no connection counts as the only active one, so the stored connection does not matter.
        if quiet >= RECORDED_EVERY {
            self.last.store(who, Ordering::Relaxed);
            self.since.store(now, Ordering::Relaxed);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_time_alone_is_solitude_and_anybody_else_ends_it() {
        let begun = Instant::now();
        let solitude = SoleClientMode::new(begun);
        let at = |millis| begun + Duration::from_millis(millis);
        assert!(!solitude.report_activity(7, at(1)));
        assert!(!solitude.report_activity(7, at(100)));
        assert!(solitude.report_activity(7, at(101)));
        assert!(solitude.report_activity(7, at(5_000)));
        assert!(!solitude.report_activity(9, at(5_001)));
        assert!(!solitude.report_activity(7, at(5_002)));
        assert!(!solitude.report_activity(7, at(5_101)));
        assert!(solitude.report_activity(7, at(5_102)));
    }

    #[test]
    fn two_connections_that_are_active_in_turns_are_never_alone() {
        let begun = Instant::now();
        let solitude = SoleClientMode::new(begun);
        for turn in 0..10_000_u32 {
            let now = begun + turn * Duration::from_micros(70);
            assert!(!solitude.report_activity(u64::from(turn % 2) + 1, now), "turn {turn}");
        }
    }
}
