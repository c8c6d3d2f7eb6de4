//! How long a lease lives for certain, as its holder can know it.
//!
//! Pure: time is an argument. The database counts a lease's TTL from when it orders the command, which is not before
//! the command was sent: so until its sending plus the TTL the lease lives, if both clocks run alike and nobody else
//! revokes it. Past that, the holder cannot know, and must take it as lost until the database says otherwise.

use std::time::Duration;

/// A lease is kept alive when this part of its TTL has passed: so two attempts may fail.
const KEEP_AFTER: u32 = 3;
/// And tried again after this part, if that failed.
const AGAIN_AFTER: u32 = 10;

/// When a lease that is held ends, and when it is to be kept alive.
///
/// `next <= until` unless a failed attempt has put it off past the end, and both lie within a TTL of the last command
/// that the database has confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keeping {
    ttl: Duration,
    until: Duration,
    next: Duration,
}

impl Keeping {
    /// Granted by a command that was sent then.
    pub(crate) fn granted(sent: Duration, ttl: Duration) -> Self {
        Self { ttl, until: sent + ttl, next: sent + ttl / KEEP_AFTER }
    }

    /// Kept alive by a command that was sent then.
    pub(crate) fn kept(&mut self, sent: Duration) {
        let next = Self::granted(sent, self.ttl);
        if next.until > self.until {
            *self = next;
        }
    }

    /// An attempt to keep it alive has failed, and may be made again.
    pub(crate) fn put_off(&mut self, now: Duration) {
        self.next = now + self.ttl / AGAIN_AFTER;
    }

    /// It is known to have ended.
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

    /// How long until it is to be kept alive; zero: now.
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
        let mut keeping = Keeping::granted(s(100), s(30));
        assert_eq!((keeping.due_in(s(100)), keeping.due_in(s(110))), (s(10), s(0)));
        assert!(keeping.is_live(s(129)) && !keeping.is_live(s(130)));
        keeping.put_off(s(110));
        assert_eq!((keeping.due_in(s(110)), keeping.remaining(s(110))), (s(3), s(20)), "a failure buys no time");
        keeping.kept(s(113));
        assert_eq!((keeping.remaining(s(113)), keeping.due_in(s(113))), (s(30), s(10)));
        keeping.kept(s(105));
        assert_eq!(keeping.until(), s(143), "an older answer that comes later shortens nothing");
        keeping.end();
        assert!(!keeping.is_live(s(0)) && keeping.remaining(s(0)).is_zero() && keeping.due_in(s(1000)) > s(1000));
    }
}
