//! Histograms of durations. Each worker thread fills its own histogram, and the benchmark merges them after the run.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Histogram of durations from 1 ns to 10 minutes with three significant digits. Longer durations count as 10 minutes.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
}

const LONGEST_NANOS: u64 = 600_000_000_000;

/// Percentiles that every report prints, from 0 to 100.
const SPECTRUM: [f64; 13] = [0.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99, 99.999, 100.0];

impl Default for Latencies {
    fn default() -> Self {
        Self { histogram: Histogram::new_with_bounds(1, LONGEST_NANOS, 3).expect("bounds are in order") }
    }
}

impl Latencies {
    /// Creates an empty histogram with two significant digits. It takes an eighth of the memory, and can be merged with
    /// histograms of three digits.
    pub fn coarse() -> Self {
        Self { histogram: Histogram::new_with_bounds(1, LONGEST_NANOS, 2).expect("bounds are in order") }
    }

    /// Counts one duration in the histogram.
    #[inline]
    pub fn record(&mut self, time: Duration) {
        self.record_nanos(nanos(time));
    }

    /// Counts one duration, given in nanoseconds.
    #[inline]
    pub fn record_nanos(&mut self, nanos: u64) {
        self.histogram.saturating_record(nanos.max(1));
    }

    /// Counts `times` equal durations of `nanos` nanoseconds each.
    #[inline]
    pub fn record_nanos_times(&mut self, nanos: u64, times: u64) {
        self.histogram.saturating_record_n(nanos.max(1), times);
    }

    /// Returns one histogram with the durations of several histograms.
    pub fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        all.into_iter().for_each(|times| sum.merge(times));
        sum
    }

    /// Adds the durations of another histogram, such as another worker's, to this histogram.
    pub fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("all have the same bounds");
    }

    /// Returns the underlying histogram, whose values are nanoseconds.
    pub(crate) fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }

    /// Returns the number of counted durations.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the duration that `percentile` percent of the counted durations do not exceed; zero if nothing was
    /// counted.
    pub fn percentile(&self, percentile: f64) -> Duration {
        Duration::from_nanos(self.histogram.value_at_percentile(percentile))
    }

    /// Returns the number of counted durations that are longer than `time`, within the histogram's precision.
    pub fn count_above(&self, time: Duration) -> u64 {
        self.count() - self.histogram.count_between(0, nanos(time).min(LONGEST_NANOS))
    }

    /// Returns the mean of the counted durations; zero if nothing was counted.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.histogram.mean() as u64)
    }

    /// Returns the longest counted duration; zero if nothing was counted.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.histogram.max())
    }

    /// Returns the mean, the usual percentiles and the maximum, in microseconds.
    pub fn quantiles(&self) -> Quantiles {
        let at = |percentile| micros(self.percentile(percentile));
        Quantiles {
            mean_us: micros(self.mean()),
            p50_us: at(50.0),
            p90_us: at(90.0),
            p95_us: at(95.0),
            p99_us: at(99.0),
            p999_us: at(99.9),
            max_us: micros(self.max()),
        }
    }

    /// Returns the usual percentiles with their durations, and for each the number of durations that are not longer. A
    /// [`Spectrum`](crate::Spectrum) has the whole distribution.
    pub fn spectrum(&self) -> Vec<SpectrumLine> {
        SPECTRUM
            .iter()
            .map(|&percentile| {
                let time = self.percentile(percentile);
                let count = self.histogram.count_between(0, self.histogram.value_at_percentile(percentile));
                SpectrumLine { percentile, time_us: micros(time), count }
            })
            .collect()
    }
}

/// Converts a duration to nanoseconds; `u64::MAX` if it does not fit.
#[inline]
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Converts a duration to microseconds.
pub fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// Mean, maximum and the percentiles that fit into a table row, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quantiles {
    /// Mean duration in microseconds.
    pub mean_us: f64,
    /// Median duration in microseconds.
    pub p50_us: f64,
    /// 90th percentile of the durations in microseconds.
    pub p90_us: f64,
    /// 95th percentile of the durations in microseconds.
    pub p95_us: f64,
    /// 99th percentile of the durations in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile of the durations in microseconds.
    pub p999_us: f64,
    /// Longest duration in microseconds.
    pub max_us: f64,
}

/// One line of a percentile spectrum: a percentile and its duration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpectrumLine {
    /// Percentile from 0 to 100.
    pub percentile: f64,
    /// Duration that this percentage of the counted durations does not exceed, in microseconds.
    pub time_us: f64,
    /// Number of counted durations that were at most that long.
    pub count: u64,
}

impl SpectrumLine {
    /// Returns `1/(1 - percentile)`, with the percentile as a share from 0 to 1. For a result of 1,000, one duration in
    /// 1,000 is longer than this percentile. Infinite for the longest duration.
    pub fn one_in(&self) -> f64 {
        100.0 / (100.0 - self.percentile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_histograms_know_all_times() {
        let (mut a, mut b) = (Latencies::default(), Latencies::default());
        (1..=50).for_each(|ms| a.record(Duration::from_millis(ms)));
        (51..=100).for_each(|ms| b.record(Duration::from_millis(ms)));
        a.merge(&b);
        assert_eq!(a.count(), 100);
        let within = |got: Duration, ms: f64| (micros(got) / 1e3 - ms).abs() < ms * 0.002;
        assert!(within(a.percentile(50.0), 50.0) && within(a.percentile(99.0), 99.0) && within(a.max(), 100.0));
        assert_eq!(a.spectrum().last().map(|line| line.count), Some(100));
        let one_in = |percentile| SpectrumLine { percentile, time_us: 1.0, count: 1 }.one_in();
        assert_eq!([0.0, 50.0, 75.0, 100.0].map(one_in), [1.0, 2.0, 4.0, f64::INFINITY]);
        assert_eq!([0, 90, 1000].map(|ms| a.count_above(Duration::from_millis(ms))), [100, 10, 0]);
    }

    #[test]
    fn times_out_of_range_are_counted_at_the_ends() {
        let mut times = Latencies::default();
        times.record(Duration::ZERO);
        times.record(Duration::from_secs(100_000));
        assert_eq!(times.count(), 2);
        assert!(times.max() >= Duration::from_secs(599));
    }
}
