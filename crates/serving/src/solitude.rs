//! Whether one connection has the server to itself.
//!
//! Owns: who was last at work, and since when nobody else was. Does not own what follows from it: a channel that
//! is alone commits on its own thread, which blocks it for an fsync but saves waking the committer and being woken by it,
//! and reads pages of records there. With others at work that would hold them up, and their commands are better committed together.
//!
//! It is a guess about the next moment from the last ones: who comes more often than every `QUIET` is never held up by
//! somebody who takes himself for alone; who comes less often waits for one fsync or one page at most.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// A connection counts as alone when nobody else was at work for so long.
const QUIET: Duration = Duration::from_millis(100);

/// See the module's documentation.
#[derive(Debug)]
pub struct Solitude {
    begun: Instant,
    last: AtomicU64,
    /// When that one came, in microseconds.
    since: AtomicU64,
}

impl Solitude {
    /// From now on.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { begun: now, last: AtomicU64::new(0), since: AtomicU64::new(0) }
    }

    /// `who` is at work. Whether nobody else has been lately.
    #[inline]
    pub fn at_work(&self, who: u64, now: Instant) -> bool {
        let now = now.saturating_duration_since(self.begun).as_micros() as u64;
        if self.last.load(Ordering::Relaxed) != who {
            self.last.store(who, Ordering::Relaxed);
            self.since.store(now, Ordering::Relaxed);
            return false;
        }
        now.saturating_sub(self.since.load(Ordering::Relaxed)) >= QUIET.as_micros() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_time_alone_is_solitude_and_anybody_else_ends_it() {
        let begun = Instant::now();
        let solitude = Solitude::new(begun);
        let at = |millis| begun + Duration::from_millis(millis);
        assert!(!solitude.at_work(7, at(1)));
        assert!(!solitude.at_work(7, at(100)));
        assert!(solitude.at_work(7, at(101)));
        assert!(solitude.at_work(7, at(5_000)));
        assert!(!solitude.at_work(9, at(5_001)));
        assert!(!solitude.at_work(7, at(5_002)));
        assert!(!solitude.at_work(7, at(5_101)));
        assert!(solitude.at_work(7, at(5_102)));
    }
}
