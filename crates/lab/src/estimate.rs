//! The mean of a series whose values depend on each other, with an interval that accounts for this.
//!
//! Figures that are measured one after the other are not independent. A busy neighbour on the machine, the heat of a
//! processor or a compaction affects several of them. The usual standard error assumes independence. It is then too
//! small, and shows differences that do not exist.
//!
//! Method: equally weighted cosines (EWC) estimate the long-run variance. This estimator is of the same kind as that of
//! Newey and West (1987). The interval is taken from Student's t distribution with as many degrees of freedom as
//! cosines. Source: Lazarus, Lewis, Stock and Watson, "HAR Inference: Recommendations for Practice", Journal of
//! Business and Economic Statistics 36 (2018) 541–559. They recommend the method because its intervals have the stated
//! coverage even in short series. Intervals of Newey and West with a normal distribution are too narrow there. With all
//! cosines of a series, the result is the usual t interval for independent values.

use std::f64::consts::PI;

use crate::student::two_sided_quantile;

/// Mean of a series of measured values, with its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Mean of the values in the series.
    pub mean: f64,
    /// Standard error of the mean. It accounts for dependence between the values.
    pub standard_error: f64,
    /// Degrees of freedom of the standard error.
    pub degrees: f64,
}

impl Estimate {
    /// Estimates the mean of `values`, which are in the order in which they were measured. The estimate of the variance
    /// compares the values with `cosines` cosine waves, the slowest ones. These have up to `cosines / 2` periods over
    /// the series. Fewer cosines account for dependence over a longer time, and give a wider interval. At most
    /// `values.len() - 1` cosines are used. Returns `None` for fewer than 2 values or 0 cosines.
    pub fn of(values: &[f64], cosines: usize) -> Option<Self> {
        let count = values.len();
        let cosines = cosines.min(count.saturating_sub(1));
        if cosines == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        let weight = |frequency: usize| {
            let step = PI * frequency as f64 / count as f64;
            let along = (0..count).map(|at| (step * (at as f64 + 0.5)).cos());
            values.iter().zip(along).map(|(value, cosine)| (value - mean) * cosine).sum::<f64>()
        };
        let squares: f64 = (1..=cosines).map(|frequency| 2.0 / count as f64 * weight(frequency).powi(2)).sum();
        let long_run_variance = squares / cosines as f64;
        let standard_error = (long_run_variance / count as f64).sqrt();
        Some(Self { mean, standard_error, degrees: cosines as f64 })
    }

    /// Returns the difference of two means that were measured independently of each other. Its degrees of freedom
    /// follow from the formula of Welch and Satterthwaite.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        let (own, others) = (self.standard_error.powi(2), other.standard_error.powi(2));
        let pooled = own.powi(2) / self.degrees + others.powi(2) / other.degrees;
        let degrees = if pooled > 0.0 { (own + others).powi(2) / pooled } else { self.degrees.min(other.degrees) };
        Self { mean: self.mean - other.mean, standard_error: (own + others).sqrt(), degrees }
    }

    /// Returns the logarithm of the mean. Its standard error is that of the mean divided by the mean. Returns `None` if
    /// the mean is not above 0.
    pub fn ln(&self) -> Option<Self> {
        (self.mean > 0.0).then(|| Self {
            mean: self.mean.ln(),
            standard_error: self.standard_error / self.mean,
            degrees: self.degrees,
        })
    }

    /// Returns the ends of the interval that contains the true mean with probability `confidence`, from 0 to 1.
    pub fn interval(&self, confidence: f64) -> (f64, f64) {
        let half = two_sided_quantile(confidence, self.degrees) * self.standard_error;
        (self.mean - half, self.mean + half)
    }
}

#[cfg(test)]
mod tests {
    use rand::RngExt as _;
    use rand_distr::StandardNormal;

    use super::*;
    use crate::random::generator;

    /// Returns the number of cosine waves for estimating the variance of a series of `count` values in which
    /// neighbouring values may be similar: 0.4 · count^⅔, but at least 2. The head of this module names the source of
    /// this rule.
    fn cosines_for_dependent(count: usize) -> usize {
        ((0.4 * (count as f64).powf(2.0 / 3.0)) as usize).max(2)
    }

    #[test]
    fn with_all_cosines_it_is_the_usual_interval() {
        let values = [3.0, 5.0, 4.0, 8.0, 6.0];
        let estimate = Estimate::of(&values, 99).unwrap();
        let variance = values.iter().map(|value| (value - 5.2_f64).powi(2)).sum::<f64>() / 4.0;
        assert!((estimate.mean - 5.2).abs() < 1e-12);
        assert!((estimate.standard_error - (variance / 5.0).sqrt()).abs() < 1e-12, "{estimate:?}");
        assert_eq!(estimate.degrees, 4.0);
        assert!(Estimate::of(&[1.0], 5).is_none() && Estimate::of(&values, 0).is_none());
    }

    #[test]
    fn constant_series_differ_without_doubt() {
        let [two, three] = [2.0, 3.0].map(|value| Estimate::of(&[value; 10], 4).unwrap());
        let difference = three.minus(&two);
        assert_eq!(difference.interval(0.95), (1.0, 1.0));
        assert!(Estimate::of(&[0.0; 10], 4).unwrap().ln().is_none());
    }

    /// Neighbouring values of the test's series are similar (correlation 0.7). The interval must cover the true mean
    /// about as often as stated, although the interval for independent values covers it in little more than half of the
    /// series.
    #[test]
    fn dependence_widens_the_interval_as_much_as_it_must() {
        let (series, count) = (1000, 100);
        let (mut covered, mut covered_if_independent) = (0, 0);
        for seed in 0..series {
            let mut rng = generator(seed);
            let mut last: f64 = rng.sample::<f64, _>(StandardNormal) / (1.0_f64 - 0.49).sqrt();
            let values: Vec<f64> = (0..count)
                .map(|_| {
                    last = 0.7 * last + rng.sample::<f64, _>(StandardNormal);
                    last
                })
                .collect();
            let covers = |cosines| {
                let (low, high) = Estimate::of(&values, cosines).unwrap().interval(0.95);
                u64::from((low..=high).contains(&0.0))
            };
            covered += covers(cosines_for_dependent(count));
            covered_if_independent += covers(count);
        }
        assert!(covered * 100 >= series * 93, "{covered} of {series}");
        assert!(covered_if_independent * 100 < series * 70, "{covered_if_independent} of {series}");
    }
}
