//! Comparison of two measurements of the same figure: the effect, its interval, and the verdict.
//!
//! Owns: how samples become an effect. Does not own the estimate of a mean ([`crate::estimate`]), and the order in which
//! the runs are made, which the suite that measures them decides.
//!
//! The effect is the relative change from A to B. It is computed on logarithms, so that B against A and A against B give
//! the same verdict.

use serde::Serialize;

use crate::{
    estimate::{Estimate, cosines_for_dependent},
    samples::{Better, Samples},
};

/// Probability with which the interval of an effect covers the true effect.
pub const CONFIDENCE: f64 = 0.95;

/// Smallest number of pairs of runs that can be compared. With fewer the interval says nothing.
pub const MIN_PAIRS: usize = 6;

/// Smallest number of windows of each side that can be compared without pairs.
pub const MIN_WINDOWS: usize = 12;

/// Change of a figure from A to B.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// Typical value of A.
    pub a: f64,
    /// Typical value of B.
    pub b: f64,
    /// Relative change from A to B: 0.1 means that B is 10 % higher.
    pub change: f64,
    /// Ends of the interval of `change`, which covers the true change with probability [`CONFIDENCE`].
    pub interval: (f64, f64),
    /// Judgement of the change.
    pub difference: Difference,
}

/// Judgement of B against A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    /// B is better: the whole interval lies on the better side of no change.
    Better,
    /// B is worse: the whole interval lies beyond "no change", on the worse side.
    Worse,
    /// The interval contains no change. There may be a difference that is smaller than the interval.
    NoneSeen,
}

impl Difference {
    /// Returns the judgement in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NoneSeen => "no difference seen",
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
        /// Number of values of the smaller side.
        found: usize,
        /// Number of values that each side must have.
        needed: usize,
    },
    /// A value is not above 0, so that it has no relative change.
    #[error("a value is not above 0, so that there is no relative change")]
    NotPositive,
}

/// Compares alternating runs: `a[i]` and `b[i]` were made next to each other in time, in changing order.
///
/// Conditions that last longer than a pair of runs affect both runs of the pair and cancel out in their ratio. If one run
/// is much like the next, neighbouring ratios therefore differ from each other more than they would by chance, or are
/// independent of each other. The estimate still uses only the slower half of the cosines, which sees a trend of the
/// ratios over many pairs.
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

/// Compares two measurements that were made at different times, from the windows of their runs.
///
/// The interval covers changes within each measurement. It cannot cover changes between the two measurements, such as
/// another state of the machine: only alternating runs can.
pub fn compare_windows(a: &[Vec<f64>], b: &[Vec<f64>], better: Better) -> Result<Effect, Incomparable> {
    let [a, b] = [estimate_of_windows(a)?, estimate_of_windows(b)?];
    let (ln_a, ln_b) = (a.ln().ok_or(Incomparable::NotPositive)?, b.ln().ok_or(Incomparable::NotPositive)?);
    Ok(Effect::new(a.mean, b.mean, &ln_b.minus(&ln_a), better))
}

/// Compares the same figure of two stored measurements.
pub fn compare_samples(a: &Samples, b: &Samples) -> Result<Effect, Incomparable> {
    compare_windows(&a.windows(), &b.windows(), a.better)
}

/// Estimates the mean over all windows. Runs may differ as a whole, so the estimate uses no cosine that is too fast to see
/// such differences: at most half as many as there are runs, if there are enough runs for that.
fn estimate_of_windows(runs: &[Vec<f64>]) -> Result<Estimate, Incomparable> {
    let windows = runs.concat();
    let too_few = Incomparable::TooFew { found: windows.len(), needed: MIN_WINDOWS };
    if windows.len() < MIN_WINDOWS {
        return Err(too_few);
    }
    let most = if runs.len() >= MIN_PAIRS { runs.len() / 2 } else { usize::MAX };
    Estimate::of(&windows, cosines_for_dependent(windows.len()).min(most)).ok_or(too_few)
}

impl Effect {
    fn new(a: f64, b: f64, estimate: &Estimate, better: Better) -> Self {
        let (low, high) = estimate.interval(CONFIDENCE);
        Self {
            a,
            b,
            change: estimate.mean.exp_m1(),
            interval: (low.exp_m1(), high.exp_m1()),
            difference: Difference::of((low, high), better),
        }
    }
}

#[cfg(test)]
#[path = "comparison_tests.rs"]
mod tests;
