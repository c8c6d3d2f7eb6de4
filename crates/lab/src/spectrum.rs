//! The whole distribution of a run's response times: the percentile spectrum of HdrHistogram, and the histogram itself.
//!
//! Owns: the lines of the spectrum, its text as `wrk2` and HdrHistogram print it, and the encoding of the histogram.
//! Does not own: counting ([`crate::latency`]).
//!
//! ```text
//! histogram := base64(cookie u32 | bytes of counts u32 | offset 0 u32 | digits u32 | lowest u64 | highest u64 | ratio 1.0 f64
//!                     | counts)                                            numbers are big-endian
//! counts    := for each bucket up to the last one in use: a count, or the negative number of empty buckets
//!              as zigzag LEB128
//! ```
//!
//! This is HdrHistogram's encoding V2 without compression. HdrHistogram's tools for all languages can read it. Values
//! are nanoseconds.

use std::fmt::Write as _;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::latency::{Latencies, SpectrumLine};

/// Number of lines of a spectrum for each halving of the distance to 100 %, for example from 50 to 75 %. The tool
/// `wrk2` prints the same number.
const TICKS_PER_HALVING: u32 = 5;
/// Cookie of the encoding V2 with counts of variable length.
const COOKIE: u32 = 0x1c84_9313;
/// Percentiles that `wrk2` prints before the whole spectrum.
const FIRST: [f64; 8] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0];

/// Distribution of the response times of one benchmark run, or of one kind of its requests.
#[derive(Clone, Debug, Serialize)]
pub struct Spectrum {
    /// Name of the load whose response times are counted, or of one kind of its requests.
    pub name: String,
    /// Number of counted response times.
    pub count: u64,
    /// Mean of the response times in microseconds.
    pub mean_us: f64,
    /// Standard deviation of the response times in microseconds.
    pub deviation_us: f64,
    /// Longest response time in microseconds.
    pub max_us: f64,
    /// Percentiles, with five lines for each halving of the distance to 100 %.
    pub lines: Vec<Line>,
    /// The histogram in HdrHistogram's encoding V2 as base64. Its values are nanoseconds.
    pub histogram: String,
    #[serde(skip)]
    buckets: u8,
    #[serde(skip)]
    first: [f64; FIRST.len()],
}

/// One line of a percentile spectrum: a percentile and its response time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Percentile of the response times, from 0 to 100.
    pub percentile: f64,
    /// Time in microseconds that this percentage of the requests did not exceed.
    pub time_us: f64,
    /// Number of requests that took at most this time.
    pub count: u64,
    /// `1/(1 - percentile)`, with the percentile as a share from 0 to 1. `None` for the last line, where this value is
    /// infinite.
    pub one_in: Option<f64>,
}

impl Spectrum {
    /// Creates the spectrum of a histogram of times; `None` if nothing was counted.
    pub fn of(name: impl Into<String>, times: &Latencies) -> Option<Self> {
        let histogram = times.histogram();
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let mut lines = Vec::new();
        let mut count = 0;
        for step in histogram.iter_quantiles(TICKS_PER_HALVING) {
            count += step.count_since_last_iteration();
            let (percentile, time_us) = (100.0 * step.quantile_iterated_to(), micros(step.value_iterated_to()));
            let one_in = Some(SpectrumLine { percentile, time_us, count }.one_in()).filter(|one_in| one_in.is_finite());
            lines.push(Line { percentile, time_us, count, one_in });
        }
        (times.count() > 0).then(|| Self {
            name: name.into(),
            count: times.count(),
            mean_us: histogram.mean() / 1e3,
            deviation_us: histogram.stdev() / 1e3,
            max_us: micros(histogram.max()),
            lines,
            histogram: STANDARD.encode(encoded(histogram)),
            buckets: histogram.buckets(),
            first: FIRST.map(|percentile| micros(histogram.value_at_percentile(percentile))),
        })
    }

    /// Returns the spectrum in the text form of `wrk2`, with times in milliseconds.
    pub fn to_text(&self) -> String {
        let mut out = format!("  Latency Distribution (HdrHistogram - Recorded Latency): {}\n", self.name);
        for (percentile, time_us) in FIRST.iter().zip(self.first) {
            let _ = writeln!(out, "{percentile:>7.3}% {:>10}", short(time_us));
        }
        out.push_str("\n  Detailed Percentile spectrum:\n");
        out.push_str("       Value   Percentile   TotalCount 1/(1-Percentile)\n\n");
        for Line { percentile, time_us, count, one_in } in &self.lines {
            let (value, share) = (time_us / 1e3, percentile / 100.0);
            let one_in = one_in.map_or_else(|| "inf".to_owned(), |one_in| format!("{one_in:.2}"));
            let _ = writeln!(out, "{value:>12.3} {share:>12.6} {count:>12} {one_in:>14}");
        }
        let (mean, deviation, max) = (self.mean_us / 1e3, self.deviation_us / 1e3, self.max_us / 1e3);
        let _ = writeln!(out, "#[Mean    = {mean:>12.3}, StdDeviation   = {deviation:>12.3}]");
        let _ = writeln!(out, "#[Max     = {max:>12.3}, Total count    = {:>12}]", self.count);
        let _ = writeln!(out, "#[Buckets = {:>12}, SubBuckets     = {:>12}]", self.buckets, 2048);
        out
    }
}

/// Formats a time with a unit that suits its length, by the rules of `wrk2`.
fn short(time_us: f64) -> String {
    match time_us {
        time if time < 1e3 => format!("{time:.2}us"),
        time if time < 1e6 => format!("{:.2}ms", time / 1e3),
        time => format!("{:.2}s", time / 1e6),
    }
}

/// Encodes a histogram. The head of this module has the layout.
fn encoded(histogram: &Histogram<u64>) -> Vec<u8> {
    let (mut counts, mut empty, mut left) = (Vec::new(), 0_i64, histogram.len());
    for bucket in histogram.iter_all() {
        if left == 0 {
            break;
        }
        let count = bucket.count_at_value();
        left = left.saturating_sub(count);
        if count == 0 {
            empty += 1;
            continue;
        }
        if empty > 0 {
            put_number(-empty, &mut counts);
            empty = 0;
        }
        put_number(i64::try_from(count).unwrap_or(i64::MAX), &mut counts);
    }
    let mut out = Vec::with_capacity(40 + counts.len());
    for number in [COOKIE, u32::try_from(counts.len()).unwrap_or(u32::MAX), 0, u32::from(histogram.sigfig())] {
        out.extend(number.to_be_bytes());
    }
    out.extend(histogram.low().to_be_bytes());
    out.extend(histogram.high().to_be_bytes());
    out.extend(1.0_f64.to_be_bytes());
    out.extend(counts);
    out
}

/// Appends a number as zigzag LEB128. In this format a ninth byte would have eight bits; only numbers above 2^55 would
/// need one.
fn put_number(number: i64, out: &mut Vec<u8>) {
    let mut rest = ((number << 1) ^ (number >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times() -> Latencies {
        let mut times = Latencies::default();
        (1..=10_000_u64).for_each(|number| times.record_nanos(1000 * number));
        times
    }

    /// Decodes an encoded histogram. Returns its header, and each count that is not 0 with the number of its bucket.
    fn decoded(text: &str) -> (Vec<u32>, Vec<(usize, u64)>) {
        let bytes = STANDARD.decode(text).unwrap();
        let head = bytes[..16].chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
        let (mut counts, mut bucket, mut number, mut shift) = (Vec::new(), 0, 0_u64, 0);
        for byte in &bytes[40..] {
            number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                match (number >> 1) as i64 ^ -((number & 1) as i64) {
                    empty @ ..0 => bucket += empty.unsigned_abs() as usize,
                    count => {
                        counts.push((bucket, count as u64));
                        bucket += 1;
                    }
                }
                (number, shift) = (0, 0);
            }
        }
        (head, counts)
    }

    #[test]
    fn the_spectrum_reaches_to_the_longest_time_with_counts() {
        let spectrum = Spectrum::of("put", &times()).unwrap();
        let lines = &spectrum.lines;
        // With five steps for each halving, the percentiles are 0, 10, 20, 30, 40, 50, 55, …
        let at = |percentile: f64| lines.iter().find(|line| (line.percentile - percentile).abs() < 1e-9).unwrap();
        assert_eq!(
            [10.0, 50.0, 55.0, 75.0].map(|percentile| at(percentile).percentile.round()),
            [10.0, 50.0, 55.0, 75.0]
        );
        assert!((at(50.0).time_us / 5000.0 - 1.0).abs() < 0.002 && at(50.0).one_in == Some(2.0));
        assert!(lines.len() > 50, "{} lines", lines.len());
        let last = lines.last().unwrap();
        assert_eq!((last.percentile, last.count, last.one_in), (100.0, 10_000, None));
        assert!(
            lines.is_sorted_by(|a, b| a.percentile <= b.percentile && a.count <= b.count && a.time_us <= b.time_us)
        );
        assert!(Spectrum::of("none", &Latencies::default()).is_none());
    }

    #[test]
    fn the_text_has_the_shape_of_wrk2() {
        let text = Spectrum::of("put", &times()).unwrap().to_text();
        for line in [
            "  Latency Distribution (HdrHistogram - Recorded Latency): put\n 50.000%     5.00ms\n 75.000%",
            "  Detailed Percentile spectrum:\n       Value   Percentile   TotalCount 1/(1-Percentile)\n\n",
            "     0.500000         5",
            "     1.000000        10000            inf\n#[Mean    =",
            "Total count    =        10000]\n#[Buckets =",
            "SubBuckets     =         2048]\n",
        ] {
            assert!(text.contains(line), "{line:?} in\n{text}");
        }
    }

    #[test]
    fn the_histogram_is_read_back_with_all_its_counts() {
        let mut times = Latencies::default();
        times.record_nanos_times(5, 3);
        times.record_nanos_times(2047, 70);
        times.record_nanos(2048);
        times.record_nanos_times(4096, 1 << 20);
        let (head, counts) = decoded(&Spectrum::of("", &times).unwrap().histogram);
        assert_eq!((head[0], head[2], head[3]), (0x1c84_9313, 0, 3));
        // There are 2048 sub-buckets of 1 ns, then buckets of 2 ns from 2048 on, and of 4 ns from 4096 on.
        assert_eq!(counts, [(5, 3), (2047, 70), (2048, 1), (3072, 1 << 20)]);
        let sum: u64 =
            decoded(&Spectrum::of("", &self::times()).unwrap().histogram).1.iter().map(|(_, count)| count).sum();
        assert_eq!(sum, 10_000);
    }
}
