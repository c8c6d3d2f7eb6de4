//! Minimum rate of progress of a transfer.
//!
//! Owns: the check that a transfer moves enough bytes in each window of time. Does not own: clocks and timers; the
//! caller passes the time, and checks at least once in each window.
//!
//! The rate is measured in windows and not over the whole transfer. Otherwise a client could send most of a body at
//! once, and then stall for as long as that many bytes take at the minimum rate.

use std::time::{Duration, Instant};

/// Minimum rate of a transfer: a number of bytes in each window of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinRate {
    /// Length of the periods in which the transfer is measured.
    pub window: Duration,
    /// Minimum number of bytes that must be transferred in each window.
    pub bytes: u64,
}

impl MinRate {
    /// Creates a minimum rate of `bytes_per_second`, measured in windows of length `window`. It is at least one byte in
    /// each window.
    #[must_use]
    pub fn new(bytes_per_second: u64, window: Duration) -> Self {
        let bytes = (u128::from(bytes_per_second) * window.as_millis() / 1000) as u64;
        Self { window, bytes: bytes.max(1) }
    }
}

/// Progress of a transfer within the current window: a period in which the transfer must move a minimum number of
/// bytes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    rate: MinRate,
    since: Option<Instant>,
    moved: u64,
}

impl Pace {
    /// Creates the measurement of a transfer with the minimum rate `rate`. The transfer does not wait for its client
    /// yet.
    #[must_use]
    pub fn new(rate: MinRate) -> Self {
        Self { rate, since: None, moved: 0 }
    }

    /// Records that the transfer waits for the client. The first call begins a window (a measured period).
    #[inline]
    pub fn waits(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Records that the client sent or accepted `bytes`. If they complete the minimum of the window, the next wait
    /// begins another window.
    #[inline]
    pub fn moved(&mut self, bytes: u64) {
        self.moved = self.moved.saturating_add(bytes);
        if self.moved >= self.rate.bytes {
            self.done();
        }
    }

    /// Records that the transfer no longer waits for the client.
    #[inline]
    pub fn done(&mut self) {
        (self.since, self.moved) = (None, 0);
    }

    /// Returns true if a whole window has passed and the client moved fewer bytes in it than the minimum.
    #[inline]
    #[must_use]
    pub fn is_too_slow(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.saturating_duration_since(since) >= self.rate.window)
    }

    /// Returns the end of the current window, if the transfer waits for the client.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.since.map(|since| since + self.rate.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trickle_is_too_slow_and_the_minimum_is_not() {
        let begun = Instant::now();
        let rate = MinRate::new(1024, Duration::from_secs(10));
        assert_eq!(rate.bytes, 10_240);
        let slow_after = |bytes_per_second: u64| {
            let mut pace = Pace::new(rate);
            (0..1000).find(|&second| {
                let now = begun + Duration::from_secs(second);
                pace.waits(now);
                pace.moved(bytes_per_second);
                pace.is_too_slow(now)
            })
        };
        assert_eq!(slow_after(0), Some(10));
        assert_eq!(slow_after(900), Some(10));
        assert_eq!(slow_after(1100), None);
        // A large part at the beginning gives no credit for later windows.
        let mut pace = Pace::new(rate);
        pace.waits(begun);
        pace.moved(1 << 30);
        assert!(!pace.is_too_slow(begun + Duration::from_secs(60)), "it waits for nothing");
        pace.waits(begun + Duration::from_secs(60));
        assert!(pace.is_too_slow(begun + Duration::from_secs(70)));
        assert_eq!(MinRate::new(1, Duration::from_millis(10)).bytes, 1);
    }
}
