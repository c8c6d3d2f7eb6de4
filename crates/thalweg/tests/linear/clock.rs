//! Moments that order what happened in this process: what ended before something else began has the smaller one.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Counts moments; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Moments(Arc<AtomicU64>);

impl Moments {
    /// The next one.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// Xorshift: random enough to choose what a client does next, and the same from the same seed.
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

/// `SEED` if it is set, else one from the clock. Printed, so that a failure can be repeated.
pub fn seed(test: &str) -> u64 {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_micros() as u64
    });
    eprintln!("{test}: SEED={seed}");
    seed
}
