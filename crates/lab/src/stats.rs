//! Medians, deviations and ratios of the values that a figure has in the rounds (repetitions) of a benchmark.

/// Returns the median. For an even count this is the mean of the two middle values. NaN without values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

/// Returns the median of a figure that `figure` computes for each item; NaN without items.
pub fn median_of<T>(items: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    median(&items.iter().map(figure).collect::<Vec<_>>())
}

/// Returns the median absolute deviation: the median of the distances of the values from their median.
pub fn mad(values: &[f64]) -> f64 {
    let middle = median(values);
    median(&values.iter().map(|value| (value - middle).abs()).collect::<Vec<_>>())
}

/// Summary of the values that one figure had in the rounds (repetitions) of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Median of the values of all rounds.
    pub median: f64,
    /// Median absolute deviation of the rounds' values from their median.
    pub mad: f64,
    /// Smallest value of any round.
    pub min: f64,
    /// Largest value of any round.
    pub max: f64,
    /// Number of rounds (repetitions of the benchmark).
    pub rounds: usize,
}

impl Summary {
    /// Creates the summary of the given values, one for each round; all figures are NaN if there is no value.
    pub fn of(values: &[f64]) -> Self {
        Self {
            median: median(values),
            mad: mad(values),
            min: values.iter().copied().fold(f64::NAN, f64::min),
            max: values.iter().copied().fold(f64::NAN, f64::max),
            rounds: values.len(),
        }
    }
}

/// Returns the median of the ratios `a / b` of the rounds (repetitions). Each ratio has the values of one round, so a
/// drift of the machine's speed between rounds cancels out.
pub fn ratio(a: &[f64], b: &[f64]) -> f64 {
    median(&a.iter().zip(b).map(|(a, b)| a / b).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn one_wild_round_does_not_move_summary_or_ratio() {
        let summary = Summary::of(&[10.0, 11.0, 500.0]);
        assert_eq!((summary.median, summary.mad, summary.min, summary.max), (11.0, 1.0, 10.0, 500.0));
        assert_eq!(ratio(&[10.0, 20.0, 500.0], &[5.0, 10.0, 1.0]), 2.0);
    }
}
