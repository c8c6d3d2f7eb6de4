//! Coverage of the intervals, on synthetic measurements whose true effect is known. Their noise is like that of a
//! shared machine: each value is similar to the one before it, the level drifts, and other programs disturb some values
//! in a row.

use rand::{Rng as _, RngExt as _};
use rand_distr::StandardNormal;

use super::*;
use crate::random::{Generator, generator};

/// Number of synthetic comparisons for each measured coverage. The more there are, the less the coverage varies by
/// chance.
const REPEATS: u64 = 500;
const PAIRS: usize = 12;

/// Noise of a machine, as a factor that changes from one benchmark run or window to the next.
struct Noise {
    rng: Generator,
    /// Correlation between a value and the value before it, from 0 to 1.
    correlation: f64,
    last: f64,
    /// Change of the noise factor's logarithm from one value to the next.
    drift: f64,
    /// Number of coming values that another program on the machine still disturbs.
    disturbed: u32,
}

impl Noise {
    fn new(seed: u64, correlation: f64) -> Self {
        let mut rng = generator(seed);
        let last = rng.sample(StandardNormal);
        let drift = 0.004 * (rng.random::<f64>() - 0.5);
        Self { rng, correlation, last, drift, disturbed: 0 }
    }

    /// Returns the next factor of the noise, with a deviation of 3 %.
    fn next(&mut self, number: usize) -> f64 {
        let fresh: f64 = self.rng.sample(StandardNormal);
        self.last = self.correlation * self.last + (1.0 - self.correlation.powi(2)).sqrt() * fresh;
        if self.disturbed == 0 && self.rng.random::<f64>() < 0.05 {
            self.disturbed = 1 + self.rng.next_u32() % 5;
        }
        let hit = if self.disturbed > 0 { 0.05 } else { 0.0 };
        self.disturbed = self.disturbed.saturating_sub(1);
        (0.03 * self.last + self.drift * number as f64 - hit).exp()
    }
}

/// Compares alternating runs in the order A B B A A B … Their true values are 1000 for A and 1000 · `ratio` for B.
fn in_turns(seed: u64, correlation: f64, ratio: f64) -> Effect {
    let mut noise = Noise::new(seed, correlation);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        let (first, second) = (noise.next(2 * pair), noise.next(2 * pair + 1));
        let (of_a, of_b) = if pair % 2 == 0 { (first, second) } else { (second, first) };
        a.push(1000.0 * of_a);
        b.push(1000.0 * ratio * of_b);
    }
    compare_pairs(&a, &b, Better::Higher).unwrap()
}

fn covers(effect: &Effect, truth: f64) -> bool {
    let (low, high) = effect.interval.unwrap();
    (low..=high).contains(&(truth - 1.0))
}

/// Returns the percentage of the [`REPEATS`] seeds for which `holds` returns true.
fn of_100(holds: impl Fn(u64) -> bool) -> f64 {
    (0..REPEATS).filter(|seed| holds(*seed)).count() as f64 * 100.0 / REPEATS as f64
}

#[test]
fn the_interval_of_runs_in_turns_covers_the_truth() {
    for correlation in [0.0, 0.5, 0.8, 0.95] {
        for ratio in [1.0, 1.02, 0.8, 2.0] {
            let covered = of_100(|seed| covers(&in_turns(seed, correlation, ratio), ratio));
            assert!(covered >= 93.0, "{covered} of 100 at correlation {correlation}, ratio {ratio}");
        }
    }
}

#[test]
fn a_against_a_shows_no_difference() {
    for correlation in [0.0, 0.5, 0.8, 0.95] {
        let none = of_100(|seed| in_turns(seed, correlation, 1.0).difference == Difference::NoneSeen);
        assert!(none >= 93.0, "{none} of 100 at correlation {correlation}");
    }
}

/// A true difference of 10 % must be seen, with the right sign. Otherwise intervals that cover everything would pass
/// the other tests.
#[test]
fn a_real_difference_is_seen_on_its_side() {
    for correlation in [0.0, 0.5, 0.8] {
        let better = of_100(|seed| in_turns(seed, correlation, 1.1).difference == Difference::Better);
        let worse = of_100(|seed| in_turns(seed, correlation, 0.9).difference == Difference::Worse);
        assert!(better > 95.0 && worse > 95.0, "{better} better, {worse} worse at {correlation}");
    }
}

/// Compares all runs of A with all runs of B, which come after them. Each run has 20 windows. Each run as a whole
/// deviates by about 1 %, and one run in ten by 8 % more.
fn apart(seed: u64, correlation: f64, runs: usize, ratio: f64) -> Effect {
    let measure = |seed: u64, value: f64| -> Vec<f64> {
        let mut noise = Noise { drift: 0.0, ..Noise::new(seed, correlation) };
        (0..runs)
            .map(|_| {
                let is_outlier = noise.rng.random::<f64>() < 0.1;
                let deviation = 0.01 * noise.rng.sample::<f64, _>(StandardNormal) + if is_outlier { 0.08 } else { 0.0 };
                value * deviation.exp() * (0..20).map(|number| noise.next(number)).sum::<f64>() / 20.0
            })
            .collect()
    };
    let (a, b) = (measure(2 * seed, 1000.0), measure(2 * seed + 1, 1000.0 * ratio));
    compare_wholes(&a, &b, Better::Lower).unwrap()
}

#[test]
fn the_interval_of_measurements_apart_covers_what_varies_within_them() {
    for correlation in [0.0, 0.5, 0.8] {
        for ratio in [1.0, 1.3] {
            for runs in [6, 10] {
                let covered = of_100(|seed| covers(&apart(seed, correlation, runs, ratio), ratio));
                assert!(covered >= 93.0, "{covered} of 100 of {runs} runs at correlation {correlation}, ratio {ratio}");
            }
        }
    }
    let better = of_100(|seed| apart(seed, 0.5, 10, 0.9).difference == Difference::Better);
    assert!(better > 95.0, "{better}");
}

/// Three runs say little about the differences between runs, even if they have many windows. So there is no verdict.
#[test]
fn few_runs_give_no_verdict() {
    for seed in 0..20 {
        let effect = apart(seed, 0.5, 3, 1.3);
        assert_eq!((effect.difference, effect.interval), (Difference::NoVerdict, None));
        assert!((effect.change - 0.3).abs() < 0.2, "{effect:?}");
    }
}

#[test]
fn both_directions_agree() {
    let (a, b) = ([10.0, 11.0, 10.5, 10.2, 10.9, 10.1], [12.0, 13.1, 12.4, 12.5, 12.8, 12.2]);
    let (there, back) =
        (compare_pairs(&a, &b, Better::Higher).unwrap(), compare_pairs(&b, &a, Better::Higher).unwrap());
    assert_eq!((there.difference, back.difference), (Difference::Better, Difference::Worse));
    assert!(((1.0 + there.change) * (1.0 + back.change) - 1.0).abs() < 1e-12);
    assert_eq!(compare_pairs(&a, &b, Better::Lower).unwrap().difference, Difference::Worse);
    assert!((there.a - 10.44).abs() < 0.01 && (there.b - 12.49).abs() < 0.01, "{there:?}");
}

#[test]
fn measurements_without_an_interval_are_refused() {
    let few = compare_pairs(&[1.0; 5], &[1.0; 9], Better::Higher);
    assert_eq!(few, Err(Incomparable::TooFew { found: 5, needed: MIN_PAIRS }));
    let mut zero = [1.0; 8];
    zero[3] = 0.0;
    assert_eq!(compare_pairs(&zero, &[1.0; 8], Better::Higher), Err(Incomparable::NotPositive));
    assert_eq!(compare_wholes(&[1.0; 5], &[1.0; 9], Better::Higher).unwrap().difference, Difference::NoVerdict);
    assert_eq!(compare_wholes(&[1.0; 6], &[1.0; 9], Better::Higher).unwrap().difference, Difference::NoneSeen);
    assert!(compare_wholes(&[], &[1.0; 9], Better::Higher).is_err());
    assert_eq!(compare_wholes(&[0.0; 20], &[1.0; 20], Better::Higher), Err(Incomparable::NotPositive));
}
