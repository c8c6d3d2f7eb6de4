//! A straight line through measured points, with the uncertainty of its predictions.

use serde::Serialize;

/// An estimate with a lower and an upper bound. The true value lies between the bounds in about 95 of 100 cases, if the
/// deviations of the measurements from the line are normally distributed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Estimated value, between the two bounds.
    pub value: f64,
    /// Lower bound of the estimated value.
    pub low: f64,
    /// Upper bound of the estimated value. It is infinite, in JSON `null`, if the measurements set no upper bound.
    pub high: f64,
}

impl Interval {
    /// Returns an interval whose bounds both equal `value`. Used for values that are not measured.
    #[must_use]
    pub fn exact(value: f64) -> Self {
        Self { value, low: value, high: value }
    }

    /// Applies an increasing function to the estimate and to both bounds.
    #[must_use]
    pub fn map(self, function: impl Fn(f64) -> f64) -> Self {
        Self { value: function(self.value), low: function(self.low), high: function(self.high) }
    }
}

/// Critical values for 95 % intervals: the 97.5 % quantiles of Student's t distribution for 1 to 10 degrees of freedom.
/// For 11 to 20 degrees the code uses 2.23, and for more it uses 2.09. These two are a little too large, so the
/// intervals are a little too wide.
const STUDENT: [f64; 10] = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23];

/// A straight line fitted through measured points `(x, y)` by least squares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Value of y on the line at x = 0.
    pub at_zero: f64,
    /// Slope of the line: change of y when x grows by 1.
    pub slope: f64,
    /// Number of points through which the line is fitted.
    pub points: usize,
    /// Standard deviation of the points' y values from the line.
    pub deviation: f64,
    mean: f64,
    /// Sum of the squared differences between the points' x values and the mean of these values.
    spread: f64,
    /// Smallest and largest x value of the points.
    pub range: (f64, f64),
}

impl Line {
    /// Fits a line to points `(x, y)`. Returns `None` if there are fewer than three points, if all have the same x, or
    /// if a coordinate is not finite.
    #[must_use]
    pub fn through(points: &[(f64, f64)]) -> Option<Self> {
        let count = points.len() as f64;
        if points.len() < 3 || points.iter().any(|(x, y)| !x.is_finite() || !y.is_finite()) {
            return None;
        }
        let mean = points.iter().map(|(x, _)| x).sum::<f64>() / count;
        let mean_value = points.iter().map(|(_, y)| y).sum::<f64>() / count;
        let spread = points.iter().map(|(x, _)| (x - mean).powi(2)).sum::<f64>();
        if spread <= 0.0 {
            return None;
        }
        let slope = points.iter().map(|(x, y)| (x - mean) * (y - mean_value)).sum::<f64>() / spread;
        let at_zero = mean_value - slope * mean;
        let squares = points.iter().map(|(x, y)| (y - at_zero - slope * x).powi(2)).sum::<f64>();
        let places = points.iter().map(|(x, _)| *x);
        Some(Self {
            at_zero,
            slope,
            points: points.len(),
            deviation: (squares / (count - 2.0)).sqrt(),
            mean,
            spread,
            range: (places.clone().fold(f64::INFINITY, f64::min), places.fold(f64::NEG_INFINITY, f64::max)),
        })
    }

    /// Predicts the y value of one more measurement at `x = place`. Negative values and bounds are raised to 0.
    #[must_use]
    pub fn at(&self, place: f64) -> Interval {
        let degrees = self.points - 2;
        let student = STUDENT.get(degrees - 1).copied().unwrap_or(if degrees <= 20 { 2.23 } else { 2.09 });
        let distance = (place - self.mean).powi(2) / self.spread;
        let width = student * self.deviation * (1.0 + 1.0 / self.points as f64 + distance).sqrt();
        let value = self.at_zero + self.slope * place;
        Interval { value: value.max(0.0), low: (value - width).max(0.0), high: (value + width).max(0.0) }
    }

    /// Returns true if `place` lies outside of the range of measured x values.
    #[must_use]
    pub fn is_extrapolated(&self, place: f64) -> bool {
        place < self.range.0 || place > self.range.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_on_a_line_give_the_line_without_width() {
        let line = Line::through(&[(0.0, 3.0), (10.0, 23.0), (20.0, 43.0), (20.0, 43.0)]).unwrap();
        assert!((line.at_zero - 3.0).abs() < 1e-9 && (line.slope - 2.0).abs() < 1e-9 && line.deviation < 1e-9);
        let at = line.at(5.0);
        assert!((at.value - 13.0).abs() < 1e-9 && at.high - at.low < 1e-6, "{at:?}");
        assert!(line.is_extrapolated(21.0) && !line.is_extrapolated(20.0));
    }

    #[test]
    fn too_few_or_odd_points_give_no_line() {
        assert_eq!(Line::through(&[(1.0, 1.0), (2.0, 2.0)]), None);
        assert_eq!(Line::through(&[(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]), None);
        assert_eq!(Line::through(&[(1.0, 1.0), (2.0, f64::NAN), (3.0, 3.0)]), None);
    }

    /// Checks the 95 % interval of predictions. The measurements are known values with noise from a small random
    /// generator with a fixed seed. The interval must contain the next measurement in about 95 of 100 cases.
    #[test]
    fn the_interval_holds_the_next_measurement_about_as_often_as_it_says() {
        let mut state = 7_u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / (1_u64 << 31) as f64
        };
        let mut noise = move || (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
        let (mut held, rounds) = (0, 1000);
        for _ in 0..rounds {
            let points: Vec<_> =
                (0..12).map(|at| f64::from(at % 4) * 10.0).map(|x| (x, 100.0 + 3.0 * x + 2.0 * noise())).collect();
            let predicted = Line::through(&points).unwrap().at(17.0);
            let next = 100.0 + 3.0 * 17.0 + 2.0 * noise();
            held += usize::from(predicted.low <= next && next <= predicted.high);
        }
        assert!((930..=970).contains(&held), "{held} of {rounds}");
    }
}
