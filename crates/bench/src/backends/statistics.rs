//! Statistics of repeated samples: mean, standard deviation, 95 % interval of the mean, outliers.
//!
//! The interval comes from a seeded bootstrap (means of resampled values), because times are not normally distributed.
//! Outliers are defined as by Tukey: a sample beyond 1.5 interquartile ranges is a mild outlier, beyond 3 a severe one.
//! Outliers are counted, never left out.

use rand::RngExt as _;

use crate::random::generator;

const RESAMPLES: usize = 2000;

/// Statistics of the samples of one group of operations on one store, in the unit of the samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    /// Number of samples from which the statistics are computed.
    pub samples: usize,
    /// Mean of the samples.
    pub mean: f64,
    /// Median of the samples.
    pub median: f64,
    /// Standard deviation of the samples.
    pub deviation: f64,
    /// Lower end of the 95 % interval of the mean.
    pub low: f64,
    /// Upper end of the 95 % interval of the mean.
    pub high: f64,
    /// Number of samples beyond 1.5, but not beyond 3 interquartile ranges from the quartiles.
    pub mild_outliers: usize,
    /// Number of samples beyond 3 interquartile ranges from the quartiles.
    pub severe_outliers: usize,
}

impl Statistics {
    /// Computes the statistics of the samples; all are NaN if there is no sample.
    pub fn of(samples: &[f64], seed: u64) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let mean = mean(samples);
        let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        let deviation = if samples.len() > 1 { (squares / (samples.len() - 1) as f64).sqrt() } else { 0.0 };
        let (low, high) = interval(samples, seed);
        let (q1, q3) = (quantile(&sorted, 0.25), quantile(&sorted, 0.75));
        let beyond = |ranges: f64| {
            let reach = ranges * (q3 - q1);
            samples.iter().filter(|sample| **sample < q1 - reach || **sample > q3 + reach).count()
        };
        let severe_outliers = beyond(3.0);
        Self {
            samples: samples.len(),
            mean,
            median: quantile(&sorted, 0.5),
            deviation,
            low,
            high,
            mild_outliers: beyond(1.5) - severe_outliers,
            severe_outliers,
        }
    }
}

fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len() as f64
}

fn interval(samples: &[f64], seed: u64) -> (f64, f64) {
    if samples.is_empty() {
        return (f64::NAN, f64::NAN);
    }
    let mut rng = generator(seed);
    let mut resample = || {
        let draw = |_| samples[rng.random_range(0..samples.len())];
        (0..samples.len()).map(draw).sum::<f64>() / samples.len() as f64
    };
    let mut means: Vec<f64> = (0..RESAMPLES).map(|_| resample()).collect();
    means.sort_by(f64::total_cmp);
    (quantile(&means, 0.025), quantile(&means, 0.975))
}

/// Returns the quantile `at` (from 0 to 1) of sorted values. Interpolates between the two nearest values.
fn quantile(sorted: &[f64], at: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = at * last as f64;
    let (below, share) = (place.floor() as usize, place.fract());
    let above = sorted[(below + 1).min(last)];
    sorted[below] + (above - sorted[below]) * share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_samples_give_known_figures() {
        let samples = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        let statistics = Statistics::of(&samples, 1);
        assert_eq!((statistics.mean, statistics.median), (5.0, 4.5));
        assert!((statistics.deviation - 2.138).abs() < 0.001, "{statistics:?}");
        assert!(statistics.low > 3.4 && statistics.low < 4.2, "{statistics:?}");
        assert!(statistics.high > 5.8 && statistics.high < 6.7, "{statistics:?}");
        assert_eq!(statistics, Statistics::of(&samples, 1), "one seed gives one interval");
    }

    #[test]
    fn outliers_are_counted_by_how_far_they_are() {
        let mut samples: Vec<f64> = (0..20).map(|number| 10.0 + f64::from(number % 5)).collect();
        samples.extend([18.0, 100.0]);
        let statistics = Statistics::of(&samples, 1);
        assert_eq!((statistics.mild_outliers, statistics.severe_outliers), (1, 1), "{statistics:?}");
        assert_eq!(Statistics::of(&[3.0], 1).deviation, 0.0);
        assert!(Statistics::of(&[], 1).mean.is_nan());
    }
}
