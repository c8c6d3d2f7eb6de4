//! Random commands, targets that execute them, and comparison of the replies. Uses only `std`, so that tests
//! of other crates can include it by path and test a real server the same way.

#![allow(clippy::print_stdout, reason = "seeds, and why a test is skipped")]
#![allow(dead_code, reason = "each test uses a part of it")]

pub mod compare;
pub mod connection;
pub mod exhaustive;
pub mod frame;
pub mod generate;
pub mod histories;
pub mod redis_server;

/// SplitMix64 (Steele, Lea, Flood 2014): small, seeded, sufficient for choosing commands.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Returns true once in `n` calls on average.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'i, T>(&mut self, items: &'i [T]) -> &'i T {
        &items[self.below(items.len())]
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Returns the seed of a run: `THALWEG_TEST_SEED` if set, otherwise `default`. Prints it, so that a failure
/// can be replayed.
pub fn seed(default: u64) -> u64 {
    let seed = std::env::var("THALWEG_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    println!("seed {seed} (set THALWEG_TEST_SEED to replay)");
    seed
}
