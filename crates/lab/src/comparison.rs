//! Comparison of two measurements A and B of the same figure: the change from A to B (the effect), its confidence
//! interval, and the verdict.
//!
//! Owns: how samples become an effect. Does not own: the estimate of a mean ([`crate::estimate`]), or the order of the
//! runs, which the measuring suite decides.
//!
//! The effect is a relative change. It is computed on logarithms, so that B against A and A against B give the same
//! verdict.

use serde::Serialize;

use crate::{
    estimate::Estimate,
    samples::{Better, Samples},
};

/// Probability with which the confidence interval of an effect covers the true effect.
pub const CONFIDENCE: f64 = 0.95;

/// Smallest number of pairs of benchmark runs that can be compared. With fewer pairs the interval says nothing.
pub const MIN_PAIRS: usize = 6;

/// Smallest number of benchmark runs that each of two measurements must have for a verdict, if their runs are not
/// paired.
pub const MIN_RUNS: usize = 6;

/// Change of a figure from measurement A to measurement B.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// Geometric mean of the figure in the benchmark runs of measurement A.
    pub a: f64,
    /// Geometric mean of the figure in the benchmark runs of measurement B.
    pub b: f64,
    /// Relative change of the figure from measurement A to measurement B: 0.1 means that B is 10 % higher.
    pub change: f64,
    /// Lower and upper end of the interval of `change`. It covers the true change with probability [`CONFIDENCE`].
    /// `None` if there is no verdict.
    pub interval: Option<(f64, f64)>,
    /// Judgement of measurement B against measurement A.
    pub difference: Difference,
}

/// Judgement of measurement B against measurement A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    /// B is better: the whole interval lies on the better side of zero change.
    Better,
    /// B is worse: the whole interval lies on the worse side of zero change.
    Worse,
    /// The interval contains zero change. The true change may still be any value in the interval.
    NoneSeen,
    /// There are too few valid runs for an interval.
    NoVerdict,
}

impl Difference {
    /// Returns the judgement of measurement B in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NoneSeen => "no difference seen",
            Self::NoVerdict => "no verdict",
        }
    }

    fn of((low, high): (f64, f64), better: Better) -> Self {
        match better {
            _ if low <= 0.0 && high >= 0.0 => Self::NoneSeen,
            Better::Higher if low > 0.0 => Self::Better,
            Better::Lower if high < 0.0 => Self::Better,
            Better::Higher | Better::Lower => Self::Worse,
        }
    }
}

/// Reason why two measurements cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incomparable {
    /// The measurements have too few values for an interval.
    #[error("{found} values are too few for an interval: at least {needed} are needed")]
    TooFew {
        /// Number of values of the measurement that has fewer values.
        found: usize,
        /// Number of values that each of the two measurements must have.
        needed: usize,
    },
    /// A value is not above 0. Relative changes exist only between positive values.
    #[error("a value is not above 0, so that there is no relative change")]
    NotPositive,
}

/// Compares alternating runs: `a[i]` and `b[i]` were made next to each other in time, in changing order.
///
/// Conditions that last longer than a pair of runs affect both runs of the pair, so they cancel out in the ratio of the
/// pair. Therefore neighbouring ratios are either independent, or differ more than independent ones would. A trend of
/// the ratios over many pairs is still possible. To include it, the estimate of the variance uses few cosine waves:
/// half as many as there are pairs, the slowest ones.
pub fn compare_pairs(a: &[f64], b: &[f64], better: Better) -> Result<Effect, Incomparable> {
    let pairs = a.len().min(b.len());
    if pairs < MIN_PAIRS {
        return Err(Incomparable::TooFew { found: pairs, needed: MIN_PAIRS });
    }
    if !a.iter().chain(b).all(|value| *value > 0.0 && value.is_finite()) {
        return Err(Incomparable::NotPositive);
    }
    let logs = |values: &[f64]| values[..pairs].iter().map(|value| value.ln()).collect::<Vec<_>>();
    let (a, b) = (logs(a), logs(b));
    let ratios: Vec<f64> = a.iter().zip(&b).map(|(a, b)| b - a).collect();
    let estimate = Estimate::of(&ratios, pairs / 2).ok_or(Incomparable::TooFew { found: 0, needed: MIN_PAIRS })?;
    let mean = |logs: &[f64]| (logs.iter().sum::<f64>() / pairs as f64).exp();
    Ok(Effect::new(mean(&a), mean(&b), &estimate, better))
}

/// Compares two measurements that were made at different times. Each run counts as one value.
///
/// Two runs of the same program differ as a whole, so even a long run gives only one value. The interval covers changes
/// between the runs of each measurement. It cannot cover changes between the two measurements, such as another state of
/// the machine; only alternating runs can. If a side has fewer than [`MIN_RUNS`] runs, there is no interval, and
/// therefore no verdict.
pub fn compare_wholes(a: &[f64], b: &[f64], better: Better) -> Result<Effect, Incomparable> {
    let found = a.len().min(b.len());
    if found == 0 {
        return Err(Incomparable::TooFew { found, needed: MIN_RUNS });
    }
    if !a.iter().chain(b).all(|value| *value > 0.0 && value.is_finite()) {
        return Err(Incomparable::NotPositive);
    }
    let logs = |values: &[f64]| values.iter().map(|value| value.ln()).collect::<Vec<_>>();
    let (a, b) = (logs(a), logs(b));
    let mean = |logs: &[f64]| logs.iter().sum::<f64>() / logs.len() as f64;
    let (of_a, of_b) = (mean(&a), mean(&b));
    let estimate = |logs: &[f64]| Estimate::of(logs, logs.len() / 2).filter(|_| found >= MIN_RUNS);
    Ok(match estimate(&a).zip(estimate(&b)) {
        Some((a, b)) => Effect::new(of_a.exp(), of_b.exp(), &b.minus(&a), better),
        None => Effect {
            a: of_a.exp(),
            b: of_b.exp(),
            change: (of_b - of_a).exp_m1(),
            interval: None,
            difference: Difference::NoVerdict,
        },
    })
}

/// Compares the values that one figure has in two stored measurements, `a` and `b`.
pub fn compare_samples(a: &Samples, b: &Samples) -> Result<Effect, Incomparable> {
    compare_wholes(&a.wholes(), &b.wholes(), a.better)
}

impl Effect {
    fn new(a: f64, b: f64, estimate: &Estimate, better: Better) -> Self {
        let (low, high) = estimate.interval(CONFIDENCE);
        Self {
            a,
            b,
            change: estimate.mean.exp_m1(),
            interval: Some((low.exp_m1(), high.exp_m1())),
            difference: Difference::of((low, high), better),
        }
    }

    /// Returns the effect without an interval and a verdict, because its values come from void (invalid) runs.
    #[must_use]
    pub fn of_void_runs(self) -> Self {
        Self { interval: None, difference: Difference::NoVerdict, ..self }
    }
}

#[cfg(test)]
#[path = "comparison_tests.rs"]
mod tests;
