//! Options of acquiring a lock, a slot of a semaphore, or the leadership of an election.

use std::time::Duration;

/// Options of acquiring a lock, a slot or the leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquire<'a> {
    /// TTL (time to live) of the lease behind the lock, slot or leadership. The holder loses it after this time unless
    /// it sends keepalives. If a holder dies, other contenders have to wait this long.
    pub ttl: Duration,
    /// Maximum time to wait for the lock, slot or leadership. Zero means not to wait, `None` means to wait without
    /// limit. With a limit, a contender retries after every transient error of the database until the time has passed.
    /// Without a limit, a contender that has not entered the queue yet returns such an error immediately; one that has
    /// entered retries.
    pub wait: Option<Duration>,
    /// Value that the contender stores under its key. Observers read it to learn which client holds the lock or leads.
    pub value: &'a [u8],
}

impl Default for Acquire<'_> {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(10), wait: None, value: b"" }
    }
}

impl Acquire<'_> {
    /// Returns options that acquire the lock, slot or leadership only if it is free now.
    #[must_use]
    pub fn without_waiting() -> Self {
        Self { wait: Some(Duration::ZERO), ..Self::default() }
    }
}
