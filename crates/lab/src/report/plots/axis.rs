//! Axes of plots: the position of a value on an axis, and the values that get a label.

use crate::report::number;

/// Mapping from values to positions on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// A linear axis: equal differences of values have equal lengths. The axis begins at zero.
    Linear,
    /// A logarithmic axis: equal ratios of values have equal lengths.
    Log,
    /// A logarithmic axis of percentiles. A value N stands for the percentile that one request in N exceeds; its label
    /// shows this percentile.
    Percentile,
}

/// An axis of a plot: its name with the unit, and its scale.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Name of the values on the axis, with their unit.
    pub label: String,
    /// Mapping from values to positions on the axis.
    pub scale: Scale,
}

impl Axis {
    /// Creates an axis that begins at zero.
    pub fn linear(label: &str) -> Self {
        Self { label: label.to_owned(), scale: Scale::Linear }
    }

    /// Creates a logarithmic axis. Its label states that it is logarithmic.
    pub fn log(label: &str) -> Self {
        Self { label: format!("{label} (log scale)"), scale: Scale::Log }
    }

    /// Creates an axis of percentiles, on which each further nine (99, 99.9, 99.99 %) takes the same length.
    pub fn percentiles() -> Self {
        Self { label: "percentile of the requests".to_owned(), scale: Scale::Percentile }
    }
}

/// An axis as it is drawn: the range of its values, and the positions of its two ends in the drawing.
#[derive(Clone, Debug)]
pub(super) struct Span {
    scale: Scale,
    low: f64,
    high: f64,
    /// Position of the end with the lowest value, in units of the drawing. It may be larger than `to`.
    from: f64,
    /// Position of the end with the highest value, in units of the drawing.
    to: f64,
}

impl Span {
    /// Creates a span that contains all values that the axis can show, with a margin beyond them.
    pub(super) fn of(scale: Scale, values: impl Iterator<Item = f64>, (from, to): (f64, f64)) -> Self {
        let usable = values.filter(|value| value.is_finite() && (*value > 0.0 || scale == Scale::Linear));
        let (low, high) = usable.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = match scale {
            _ if high < low => (0.1, 1.0),
            Scale::Linear => {
                let (low, high) = (low.min(0.0), high.max(0.0));
                let high = if high > low { high } else { low + 1.0 };
                (if low < 0.0 { low - 0.04 * (high - low) } else { low }, high + 0.04 * (high - low))
            }
            Scale::Log => (low / 1.25, high * 1.25),
            Scale::Percentile => (1.0, high.max(10.0) * 1.1),
        };
        Self { scale, low, high, from, to }
    }

    pub(super) fn begins_at_zero(&self) -> bool {
        self.scale == Scale::Linear
    }

    /// Returns the position of a value in units of the drawing; `None` if the axis cannot show the value.
    pub(super) fn at(&self, value: f64) -> Option<f64> {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log | Scale::Percentile => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        share.is_finite().then_some(self.from + share * (self.to - self.from))
    }

    /// Returns the positions and labels of the values that get a label.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let values = match self.scale {
            Scale::Linear => linear_ticks(self.low, self.high),
            Scale::Log => log_ticks(self.low, self.high),
            Scale::Percentile => {
                let nines = std::iter::successors(Some(10.0), |value| Some(value * 10.0));
                [1.0, 2.0].into_iter().chain(nines.take_while(|value| *value <= self.high)).collect()
            }
        };
        values.into_iter().filter_map(|value| Some((self.at(value)?, self.label(value)))).collect()
    }

    /// Formats a value as a label of the axis.
    pub(super) fn label(&self, value: f64) -> String {
        match self.scale {
            Scale::Percentile => format!("{} %", trimmed(100.0 - 100.0 / value)),
            Scale::Linear | Scale::Log => trimmed(value),
        }
    }
}

/// Returns about five round values from `low` to `high`.
fn linear_ticks(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(10.0 * power);
    let first = (low / step).ceil() as i64;
    (first..).map(|number| number as f64 * step).take_while(|value| *value <= high).take(20).collect()
}

/// Returns the powers of ten from `low` to `high`. If the range is short, adds 2 and 5 times each power.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = (high / low).log10();
    let factors: &[f64] = if decades < 1.0 {
        &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]
    } else if decades < 3.0 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0]
    };
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let values = powers.flat_map(|power| factors.iter().map(move |factor| factor * 10_f64.powi(power)));
    values.filter(|value| (low..=high).contains(value)).take(40).collect()
}

/// Formats a number without trailing zeros: `0.5`, `20`, `1,500`, `20k`, `3M`.
fn trimmed(value: f64) -> String {
    let size = value.abs();
    if size >= 1e6 {
        return format!("{}M", trimmed_digits(value / 1e6));
    }
    if size >= 1e4 {
        return format!("{}k", trimmed_digits(value / 1e3));
    }
    if size >= 1000.0 {
        return number(value);
    }
    trimmed_digits(value)
}

fn trimmed_digits(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale, low: f64, high: f64) -> Vec<String> {
        let span = Span { scale, low, high, from: 0.0, to: 100.0 };
        span.ticks().into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round_values() {
        assert_eq!(labels(Scale::Linear, 0.0, 52.0), ["0", "20", "40"]);
        assert_eq!(labels(Scale::Linear, -3.0, 9.0), ["-2.5", "0", "2.5", "5", "7.5"]);
        assert_eq!(labels(Scale::Linear, 0.0, 104_000.0), ["0", "25k", "50k", "75k", "100k"]);
        assert_eq!(labels(Scale::Log, 0.5, 400.0), ["0.5", "1", "2", "5", "10", "20", "50", "100", "200"]);
        assert_eq!(labels(Scale::Log, 0.5, 4_000_000.0), ["1", "10", "100", "1,000", "10k", "100k", "1M"]);
        assert_eq!(labels(Scale::Percentile, 1.0, 11_000.0), ["0 %", "50 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
    }

    #[test]
    fn a_span_contains_its_values() {
        let span = Span::of(Scale::Log, [1.0, 100.0, 0.0, f64::NAN].into_iter(), (0.0, 1.0));
        assert!(span.at(1.0).unwrap() > 0.0 && span.at(100.0).unwrap() < 1.0);
        assert_eq!(span.at(0.0), None);
        let span = Span::of(Scale::Linear, [5.0, 5.0].into_iter(), (0.0, 1.0));
        assert_eq!(span.at(0.0), Some(0.0));
        assert!(Span::of(Scale::Linear, [0.0].into_iter(), (0.0, 1.0)).at(0.0).is_some());
        assert!(Span::of(Scale::Log, std::iter::empty(), (0.0, 1.0)).at(0.5).is_some());
    }
}
