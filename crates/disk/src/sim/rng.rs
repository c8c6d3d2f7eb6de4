//! The simulated disk's only source of randomness (SplitMix64). A seed gives the same sequence on any machine.

/// A random number generator. Its whole state is one number.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in `0..bound`; 0 if `bound` is 0. The modulo bias is irrelevant for tests.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// Returns true with a probability of `sixteenths` / 16.
    pub(super) fn chance(&mut self, sixteenths: u64) -> bool {
        self.below(16) < sixteenths
    }
}
