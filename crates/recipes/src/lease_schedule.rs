//! Computes until when a lease certainly lives, as far as its holder can know.
//!
//! The module reads no clock: time is an argument. The database counts a lease's TTL (time to live) from the
//! moment at which it orders the command that grants or extends the lease. That moment is not before the
//! command was sent. So the lease lives at least until the sending time plus the TTL, if both clocks run at
//! the same speed and no other client revokes it. Afterwards the holder cannot know whether the lease lives,
//! and must treat the lease as lost until the database reports otherwise.

use std::time::Duration;

/// Divisor of a lease's TTL (time to live). A keepalive is due after a third of the TTL, so that two attempts can fail
/// before the lease ends.
const KEEP_AFTER: u32 = 3;
/// Divisor of a lease's TTL (time to live). After a failed keepalive, the next attempt is due after a tenth of the TTL.
const AGAIN_AFTER: u32 = 10;

/// Time at which a held lease ends, and time at which its next keepalive is due.
///
/// `next <= until` unless a failed attempt has moved `next` beyond the end. Both times are at most a TTL
/// after the last command for the lease that the database has confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseSchedule {
    ttl: Duration,
    until: Duration,
    next: Duration,
}

impl LeaseSchedule {
    /// Creates the schedule of a lease that was granted by a command sent at time `sent`.
    pub(crate) fn granted(sent: Duration, ttl: Duration) -> Self {
        Self { ttl, until: sent + ttl, next: sent + ttl / KEEP_AFTER }
    }

    /// Records that the lease was extended by a keepalive command sent at time `sent`.
    pub(crate) fn record_keepalive(&mut self, sent: Duration) {
        let next = Self::granted(sent, self.ttl);
        if next.until > self.until {
            *self = next;
        }
    }

    /// Schedules the next attempt to keep the lease alive after an attempt failed.
    pub(crate) fn retry_later(&mut self, now: Duration) {
        self.next = now + self.ttl / AGAIN_AFTER;
    }

    /// Records that the lease has ended.
    pub(crate) fn end(&mut self) {
        (self.until, self.next) = (Duration::ZERO, Duration::MAX);
    }

    pub(crate) fn until(&self) -> Duration {
        self.until
    }

    pub(crate) fn is_live(&self, now: Duration) -> bool {
        now < self.until
    }

    pub(crate) fn remaining(&self, now: Duration) -> Duration {
        self.until.saturating_sub(now)
    }

    /// Time until the next keepalive of the lease is due; zero if it is due now.
    pub(crate) fn due_in(&self, now: Duration) -> Duration {
        self.next.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_lives_for_its_ttl_from_when_it_was_asked_for() {
        let mut keeping = LeaseSchedule::granted(s(100), s(30));
        assert_eq!((keeping.due_in(s(100)), keeping.due_in(s(110))), (s(10), s(0)));
        assert!(keeping.is_live(s(129)) && !keeping.is_live(s(130)));
        keeping.retry_later(s(110));
        assert_eq!((keeping.due_in(s(110)), keeping.remaining(s(110))), (s(3), s(20)), "a failure extends no lease");
        keeping.record_keepalive(s(113));
        assert_eq!((keeping.remaining(s(113)), keeping.due_in(s(113))), (s(30), s(10)));
        keeping.record_keepalive(s(105));
        assert_eq!(keeping.until(), s(143), "a late answer to an older request must not shorten the lease");
        keeping.end();
        assert!(!keeping.is_live(s(0)) && keeping.remaining(s(0)).is_zero() && keeping.due_in(s(1000)) > s(1000));
    }
}
