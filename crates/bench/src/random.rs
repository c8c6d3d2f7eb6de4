//! Seeded randomness: one seed gives one workload, on every machine.

/// A small fast generator (xoshiro256++, Blackman and Vigna 2019), seeded through SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

/// Stirs a number into an unrelated one; a bijection of `u64` (SplitMix64's finaliser).
#[inline]
#[must_use]
pub const fn stir(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Rng {
    /// The generator of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let a = stir(seed);
        let b = stir(a);
        let c = stir(b);
        Self { state: [a, b, c, stir(c)] }
    }

    /// The next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let mut next = [a, b, c ^ a, d ^ b];
        next[1] ^= next[2];
        next[0] ^= next[3];
        next[2] ^= b << 17;
        next[3] = next[3].rotate_left(45);
        self.state = next;
        result
    }

    /// Uniform in `0..bound`; 0 if `bound` is 0. The bias of the multiply-shift is below 2^-32 for
    /// bounds under 2^32.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in `0.0..1.0`.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Exponentially distributed with mean 1: the gaps of a Poisson process.
    #[inline]
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Puts the values into a random order.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for at in (1..values.len()).rev() {
            let other = self.below(at as u64 + 1) as usize;
            values.swap(at, other);
        }
    }
}

/// Ranks `0..count` with probability proportional to `1 / (rank + 1)^exponent`, by rejection-inversion
/// (Hörmann and Derflinger 1996): constant time and memory for any count.
#[derive(Clone, Debug)]
pub struct Zipf {
    count: u64,
    exponent: f64,
    low: f64,
    high: f64,
    shortcut: f64,
}

impl Zipf {
    /// Over `count` ranks (at least 1); `exponent` above 0, 0.99 being the customary one.
    #[must_use]
    pub fn new(count: u64, exponent: f64) -> Self {
        let count = count.max(1);
        let mut zipf = Self { count, exponent, low: 0.0, high: 0.0, shortcut: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(count as f64 + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    /// A rank, 0 being the most frequent.
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        loop {
            let at = self.high + rng.unit() * (self.low - self.high);
            let x = self.inverse(at);
            let rank = x.round().clamp(1.0, self.count as f64);
            if rank - x <= self.shortcut || at >= self.integral(rank + 0.5) - self.density(rank) {
                return rank as u64 - 1;
            }
        }
    }

    fn density(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// Integral of the density from 1 to x.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let power = (1.0 - self.exponent) * log;
        if power.abs() < 1e-8 { log * (1.0 + power / 2.0) } else { power.exp_m1() / power * log }
    }

    fn inverse(&self, y: f64) -> f64 {
        let slope = (y * (1.0 - self.exponent)).max(-1.0);
        let log = if slope.abs() < 1e-8 { y * (1.0 - slope / 2.0) } else { slope.ln_1p() / slope * y };
        log.exp()
    }
}

/// Which key the next operation takes.
#[derive(Clone, Debug)]
pub enum KeyChooser {
    /// Every key alike.
    Uniform {
        /// How many keys.
        keys: u64,
    },
    /// Few keys take most of the operations; which ones is scattered over the key space.
    Zipf {
        /// Draws the rank.
        ranks: Zipf,
        /// How many keys.
        keys: u64,
        /// Coprime to `keys`, so that rank → key is one to one.
        step: u64,
    },
}

impl KeyChooser {
    /// Every one of `keys` alike.
    #[must_use]
    pub fn uniform(keys: u64) -> Self {
        Self::Uniform { keys: keys.max(1) }
    }

    /// Zipf with the customary exponent 0.99.
    #[must_use]
    pub fn zipf(keys: u64) -> Self {
        let keys = keys.max(1);
        let mut step = (0x9e37_79b9_7f4a_7c15 % keys).max(1);
        while greatest_common_divisor(step, keys) != 1 {
            step += 1;
        }
        Self::Zipf { ranks: Zipf::new(keys, 0.99), keys, step }
    }

    /// The index of a key.
    #[inline]
    pub fn choose(&self, rng: &mut Rng) -> u64 {
        match self {
            Self::Uniform { keys } => rng.below(*keys),
            Self::Zipf { ranks, keys, step } => {
                (u128::from(ranks.sample(rng)) * u128::from(*step) % u128::from(*keys)) as u64
            }
        }
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

    #[test]
    fn one_seed_gives_one_sequence_pinned() {
        let mut rng = Rng::new(7);
        let first: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        let mut again = Rng::new(7);
        assert_eq!(first, (0..3).map(|_| again.next_u64()).collect::<Vec<_>>());
        assert_ne!(first[0], Rng::new(8).next_u64());
    }

    #[test]
    fn uniform_and_exponential_have_their_means() {
        let mut rng = Rng::new(1);
        let mean = (0..100_000).map(|_| rng.below(1000) as f64).sum::<f64>() / 1e5;
        assert!((490.0..510.0).contains(&mean), "{mean}");
        let mean = (0..100_000).map(|_| rng.exponential()).sum::<f64>() / 1e5;
        assert!((0.98..1.02).contains(&mean), "{mean}");
    }

    #[test]
    fn zipf_frequencies_follow_the_law() {
        let (zipf, mut rng) = (Zipf::new(1000, 0.99), Rng::new(3));
        let mut counts = vec![0_u64; 1000];
        for _ in 0..400_000 {
            counts[zipf.sample(&mut rng) as usize] += 1;
        }
        let weight: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-0.99)).sum();
        for rank in [1_usize, 2, 3, 10, 100] {
            let expected = 400_000.0 * (rank as f64).powf(-0.99) / weight;
            let got = counts[rank - 1] as f64;
            assert!((got - expected).abs() < 6.0 * expected.sqrt(), "rank {rank}: {got} for {expected}");
        }
    }

    #[test]
    fn zipf_keys_are_scattered_and_one_to_one() {
        for keys in [1, 2, 12, 1000] {
            let KeyChooser::Zipf { step, .. } = KeyChooser::zipf(keys) else { unreachable!() };
            let mut seen: Vec<u64> = (0..keys).map(|rank| rank * step % keys).collect();
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..keys), "{keys}");
        }
    }

    #[test]
    fn a_shuffle_keeps_all_values() {
        let mut values: Vec<u32> = (0..100).collect();
        Rng::new(5).shuffle(&mut values);
        assert_ne!(values, (0..100).collect::<Vec<_>>());
        values.sort_unstable();
        assert_eq!(values, (0..100).collect::<Vec<_>>());
    }
}
