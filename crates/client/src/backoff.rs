//! Pauses between retries of an operation: they grow up to a maximum and are random, so that clients don't
//! retry at the same time.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use crate::options::Retries;

/// Computes the pauses between the retries of one operation.
#[derive(Debug)]
pub(crate) struct Backoff {
    retries: Retries,
    tried: u32,
    seed: u64,
}

impl Backoff {
    pub(crate) fn new(retries: Retries) -> Self {
        Self::seeded(retries, RandomState::new().hash_one(0))
    }

    fn seeded(retries: Retries, seed: u64) -> Self {
        Self { retries, tried: 0, seed: seed | 1 }
    }

    /// Returns the pause before the next retry: a random time between half of a bound and the bound. The bound is
    /// `base` before the first retry, doubles with each retry, and is at most `max`.
    pub(crate) fn next(&mut self) -> Duration {
        let full = self.retries.base.saturating_mul(1 << self.tried.min(20)).min(self.retries.max);
        self.tried = self.tried.saturating_add(1);
        // A xorshift generator is good enough here: it only has to give different pauses to clients that lost their
        // connections at the same time.
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        full.mul_f64(0.5 + (self.seed >> 11) as f64 / (1_u64 << 54) as f64)
    }

    /// Returns the pause before the next retry, or `None` once the maximum number of retries is reached.
    pub(crate) fn again(&mut self) -> Option<Duration> {
        (self.tried < self.retries.max_attempts).then(|| self.next())
    }

    pub(crate) fn reset(&mut self) {
        self.tried = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_bound_and_end() {
        let retries = Retries { max_attempts: 9, base: Duration::from_millis(10), max: Duration::from_millis(500) };
        let mut backoff = Backoff::seeded(retries, 7);
        let pauses: Vec<_> = std::iter::from_fn(|| backoff.again()).collect();
        assert_eq!(pauses.len(), 9);
        for (at, pause) in pauses.iter().enumerate() {
            let full = Duration::from_millis(10 << at).min(retries.max);
            assert!(*pause >= full / 2 && *pause <= full, "{at}: {pause:?}");
        }
        let other: Vec<_> = std::iter::repeat_with({
            let mut backoff = Backoff::seeded(retries, 8);
            move || backoff.next()
        })
        .take(9)
        .collect();
        assert_ne!(pauses, other, "clients must not reconnect in step");
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(10));
    }
}
