//! Seeded randomness: one seed gives the same workload on every machine.
//!
//! Owns: the choice of the random generator and of the distributions that the workloads use, and the mapping from ranks
//! of a distribution to keys. Does not own: the algorithm of the generator (`rand_pcg`), or the exponential
//! distribution (`rand_distr`).
//!
//! The generator is PCG XSL 128/64 MCG rather than `rand`'s `SmallRng`, whose algorithm may differ between versions and
//! platforms. Every request draws from a distribution, so this module has its own [`Zipf`]: a draw takes 42 ns, and 98
//! ns with the one of `rand_distr`.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use rand::{RngExt as _, SeedableRng as _};

/// Random generator of all workloads: 16 bytes of state, one 128-bit multiplication for 64 random bits.
pub type Generator = rand_pcg::Pcg64Mcg;

/// Returns the random generator for a seed.
pub fn generator(seed: u64) -> Generator {
    Generator::seed_from_u64(seed)
}

/// Mixes the bits of a number. Different numbers give different results (a bijection of `u64`: the finaliser of
/// SplitMix64), and similar numbers give unrelated ones.
#[inline]
pub const fn mix_bits(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Distribution of the operations over the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Distribution {
    /// All keys are equally likely.
    #[default]
    Uniform,
    /// A few keys take most operations (Zipf distribution with exponent 0.99).
    Zipf,
}

/// Chooses the key of each operation from a distribution.
#[derive(Clone, Debug)]
pub enum KeyChooser {
    /// All keys are equally likely.
    Uniform {
        /// Number of keys, at least 1.
        keys: u64,
    },
    /// A few keys take most operations. The frequent keys are scattered over the key space, as in YCSB's scrambled
    /// Zipf.
    Zipf {
        /// Zipf distribution that draws the rank of a key.
        ranks: Zipf,
        /// Number of keys, at least 1.
        keys: u64,
        /// A number coprime to `keys`. The chooser multiplies ranks by it, so that each rank maps to a different key.
        step: u64,
    },
    /// The keys are chosen in order, and again from the first one after the last. All clones of the chooser share one
    /// position.
    Sequential {
        /// Number of keys, at least 1.
        keys: u64,
        /// Number of keys chosen so far by all clones.
        drawn: Arc<AtomicU64>,
    },
}

/// Exponent of the Zipf distribution of YCSB.
pub const YCSB_EXPONENT: f64 = 0.99;

impl KeyChooser {
    /// Creates a chooser among `keys` keys; 0 counts as 1.
    pub fn new(distribution: Distribution, keys: u64) -> Self {
        match distribution {
            Distribution::Uniform => Self::Uniform { keys: keys.max(1) },
            Distribution::Zipf => Self::zipf(keys, YCSB_EXPONENT),
        }
    }

    /// Creates a chooser among `keys` keys by a Zipf distribution. `exponent` is above 0; for `keys` 0 counts as 1.
    pub fn zipf(keys: u64, exponent: f64) -> Self {
        let keys = keys.max(1);
        let mut step = (0x9e37_79b9_7f4a_7c15 % keys).max(1);
        while greatest_common_divisor(step, keys) != 1 {
            step += 1;
        }
        Self::Zipf { ranks: Zipf::new(keys, exponent), keys, step }
    }

    /// Creates a chooser like [`zipf`](Self::zipf) that does not scatter the keys: key 0 is the most frequent one, then
    /// key 1, and so on.
    pub fn ranks(keys: u64, exponent: f64) -> Self {
        let keys = keys.max(1);
        Self::Zipf { ranks: Zipf::new(keys, exponent), keys, step: 1 }
    }

    /// Creates a chooser that returns `keys` keys in order; 0 counts as 1.
    pub fn sequential(keys: u64) -> Self {
        Self::Sequential { keys: keys.max(1), drawn: Arc::default() }
    }

    /// Draws the index of the key for the next operation.
    #[inline]
    pub fn choose(&self, rng: &mut Generator) -> u64 {
        match self {
            Self::Uniform { keys } => rng.random_range(0..*keys),
            Self::Zipf { ranks, keys, step } => {
                (u128::from(ranks.sample(rng)) * u128::from(*step) % u128::from(*keys)) as u64
            }
            Self::Sequential { keys, drawn } => drawn.fetch_add(1, Ordering::Relaxed) % keys,
        }
    }
}

/// Zipf distribution. Draws ranks `0..count` with probability proportional to `1 / (rank + 1)^exponent`, by
/// rejection-inversion (Hörmann and Derflinger 1996). A draw takes constant time and memory for any count.
#[derive(Clone, Debug)]
pub struct Zipf {
    law: PowerLaw,
    count: f64,
    low: f64,
    high: f64,
    shortcut: f64,
}

impl Zipf {
    fn new(count: u64, exponent: f64) -> Self {
        let (law, count) = (PowerLaw::new(exponent), count as f64);
        let shortcut = 2.0 - law.inverse(law.integral(2.5) - law.density(2.0));
        Self { law, count, low: law.integral(1.5) - 1.0, high: law.integral(count + 0.5), shortcut }
    }

    fn sample(&self, rng: &mut Generator) -> u64 {
        loop {
            let at = self.high + rng.random::<f64>() * (self.low - self.high);
            let x = self.law.inverse(at);
            let rank = x.round().clamp(1.0, self.count);
            if rank - x <= self.shortcut || at >= self.law.integral(rank + 0.5) - self.law.density(rank) {
                return rank as u64 - 1;
            }
        }
    }
}

/// The function `x^-exponent`, to which the probabilities of a Zipf distribution are proportional.
#[derive(Clone, Copy, Debug)]
struct PowerLaw {
    /// One minus the exponent of the function; not 0.
    tail: f64,
}

impl PowerLaw {
    fn new(exponent: f64) -> Self {
        let tail = 1.0 - exponent;
        // An exponent of exactly 1 would need other formulas. The exponent used instead changes no rank, because the
        // difference is smaller than the rounding.
        Self { tail: if tail.abs() < 1e-9 { 1e-9 } else { tail } }
    }

    fn density(self, x: f64) -> f64 {
        ((self.tail - 1.0) * x.ln()).exp()
    }

    /// Returns the integral of [`density`](Self::density) from 1 to `x`.
    fn integral(self, x: f64) -> f64 {
        (self.tail * x.ln()).exp_m1() / self.tail
    }

    /// Returns the `x` for which [`integral`](Self::integral) is `y`.
    fn inverse(self, y: f64) -> f64 {
        ((y * self.tail).max(-1.0).ln_1p() / self.tail).exp()
    }
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng as _, seq::SliceRandom as _};
    use rand_distr::Exp1;

    #[test]
    fn one_seed_gives_one_sequence_pinned() {
        let mut rng = generator(7);
        let first: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        let mut again = generator(7);
        assert_eq!(first, (0..3).map(|_| again.next_u64()).collect::<Vec<_>>());
        assert_ne!(first[0], generator(8).next_u64());
        assert_eq!(first, PINNED, "another sequence would be another workload");
    }

    const PINNED: [u64; 3] = [12_726_360_963_827_698_830, 8_784_933_628_230_385_458, 4_994_307_442_345_819_819];

    #[test]
    fn uniform_and_exponential_have_their_means() {
        let mut rng = generator(1);
        let keys = KeyChooser::new(Distribution::Uniform, 1000);
        let mean = (0..100_000).map(|_| keys.choose(&mut rng) as f64).sum::<f64>() / 1e5;
        assert!((490.0..510.0).contains(&mean), "{mean}");
        let mean = (0..100_000).map(|_| -> f64 { rng.sample(Exp1) }).sum::<f64>() / 1e5;
        assert!((0.98..1.02).contains(&mean), "{mean}");
    }

    #[test]
    fn zipf_frequencies_follow_the_law() {
        let (keys, mut rng) = (KeyChooser::new(Distribution::Zipf, 1000), generator(3));
        let KeyChooser::Zipf { step, .. } = keys else { unreachable!() };
        let mut counts = vec![0_u64; 1000];
        for _ in 0..400_000 {
            counts[keys.choose(&mut rng) as usize] += 1;
        }
        let weight: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-0.99)).sum();
        for rank in [1_usize, 2, 3, 10, 100] {
            let expected = 400_000.0 * (rank as f64).powf(-0.99) / weight;
            let got = counts[(rank - 1) * step as usize % 1000] as f64;
            assert!((got - expected).abs() < 6.0 * expected.sqrt(), "rank {rank}: {got} for {expected}");
        }
    }

    #[test]
    fn ranks_follow_the_law_for_each_exponent() {
        for exponent in [0.5, 0.99, 1.0, 1.5] {
            let (keys, mut rng) = (KeyChooser::ranks(1000, exponent), generator(4));
            let mut counts = vec![0_u64; 1000];
            (0..400_000).for_each(|_| counts[keys.choose(&mut rng) as usize] += 1);
            let weight: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-exponent)).sum();
            for rank in [1_usize, 2, 3, 10, 100, 1000] {
                let expected = 400_000.0 * (rank as f64).powf(-exponent) / weight;
                let got = counts[rank - 1] as f64;
                assert!(
                    (got - expected).abs() < 6.0 * expected.sqrt() + 3.0,
                    "exponent {exponent}, rank {rank}: {got} for {expected}"
                );
            }
        }
    }

    #[test]
    fn sequential_keys_come_in_order_over_all_clones() {
        let (keys, mut rng) = (KeyChooser::sequential(3), generator(1));
        let other = keys.clone();
        let drawn: Vec<u64> = (0..4).flat_map(|_| [keys.choose(&mut rng), other.choose(&mut rng)]).collect();
        assert_eq!(drawn, [0, 1, 2, 0, 1, 2, 0, 1]);
    }

    #[test]
    fn zipf_keys_are_scattered_and_one_to_one() {
        for keys in [1, 2, 12, 1000] {
            let KeyChooser::Zipf { step, .. } = KeyChooser::new(Distribution::Zipf, keys) else { unreachable!() };
            let mut seen: Vec<u64> = (0..keys).map(|rank| rank * step % keys).collect();
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..keys), "{keys}");
        }
    }

    #[test]
    fn a_shuffle_keeps_all_values() {
        let mut values: Vec<u32> = (0..100).collect();
        values.shuffle(&mut generator(5));
        assert_ne!(values, (0..100).collect::<Vec<_>>());
        values.sort_unstable();
        assert_eq!(values, (0..100).collect::<Vec<_>>());
    }
}
