//! Moments that order events in this process: an event that ended before another began has the smaller moment.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Counter of moments; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Moments(Arc<AtomicU64>);

impl Moments {
    /// Returns the next moment.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// Xorshift generator for the choices of clients; the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// Returns `SEED` if it is set, else a seed from the clock. Prints it, so that a failure can be repeated.
pub fn seed(test: &str) -> u64 {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_micros() as u64
    });
    eprintln!("{test}: SEED={seed}");
    seed
}
