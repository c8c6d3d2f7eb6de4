//! Divides a run into windows of equal length, and counts the replies and response times in each of them.
//!
//! Owns: the counts of each window. Does not own: the results of the whole run ([`super::Tally`]), which are more
//! precise.
//!
//! A reply counts for the rate of the window in which it arrived. Its response time counts in the window in which the
//! request was due. A stall therefore shows as a window without replies, and as long response times in the windows up
//! to its end.

use std::{ops::Range, time::Duration};

use crate::latency::{Latencies, nanos};

/// Shortest window (section of a run) in nanoseconds if no option states a length. At usual rates, shorter windows have
/// too few requests for a percentile.
const MIN_WINDOW: u64 = 250_000_000;
/// Maximum number of windows of a benchmark run if no option states a length. Each window takes about 35 KB per worker.
const MAX_WINDOWS: u64 = 120;
/// Maximum number of windows of a benchmark run if an option states their length.
const MAX_ASKED_WINDOWS: u64 = 1200;

/// Counts of all windows of a benchmark run, which are short sections of equal length.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Start of the first window, in nanoseconds since the start of the benchmark run.
    begin: u64,
    /// Length of a window (section of the run) in nanoseconds, above 0.
    window: u64,
    windows: Vec<Window>,
}

/// Counts of one window, a short section of a benchmark run.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Number of correct replies, or of the records or messages in them, that arrived in the window.
    pub right: u64,
    /// Response times of the requests that were due in the window, with two significant digits; `None` if no request
    /// was due.
    pub times: Option<Box<Latencies>>,
    /// Number of fsyncs of the server per second; `None` if it is not known.
    pub fsyncs_per_second: Option<f64>,
    /// Resident memory of the server's process at the end of the window, in bytes; `None` if it is not known.
    pub resident_bytes: Option<u64>,
}

/// The server's number of fsyncs and its memory, read at one moment of a benchmark run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    /// Time of the reading, in nanoseconds since the start of the benchmark run.
    pub at: u64,
    /// Number of fsyncs of the server so far; `None` if it was not read.
    pub fsyncs: Option<u64>,
    /// Resident memory of the server's process in bytes; `None` if it is not known.
    pub resident_bytes: Option<u64>,
}

impl Timeline {
    /// Creates empty windows of equal length over the counted part of a run; `counted` is in nanoseconds since the
    /// start of the run. If `window` is given, the windows have this length or a little more, so that they fill the
    /// run; a run then has at most 1,200 of them. Otherwise the windows are at least 250 ms long, and a run has at most
    /// 120. Returns `None` for a run without an end.
    pub fn over(counted: &Range<u64>, window: Option<Duration>) -> Option<Self> {
        let length = counted.end.checked_sub(counted.start).filter(|length| *length > 0 && counted.end < u64::MAX)?;
        let (shortest, most) = window.map_or((MIN_WINDOW, MAX_WINDOWS), |window| (nanos(window), MAX_ASKED_WINDOWS));
        let count = (length / shortest.max(1)).clamp(1, most);
        let windows = vec![Window::default(); count as usize];
        Some(Self { begin: counted.start, window: length.div_ceil(count), windows })
    }

    /// Describes the windows of benchmark runs of this duration, for a report.
    pub fn describe(duration: Duration, window: Option<Duration>) -> String {
        match Self::over(&(0..nanos(duration)), window) {
            Some(windows) => format!("{} of {:.3} s in each run", windows.windows.len(), windows.window_seconds()),
            None => "none".to_owned(),
        }
    }

    /// Returns the windows of the benchmark run in order.
    pub fn windows(&self) -> &[Window] {
        &self.windows
    }

    /// Returns the length of a window (section of the run) in seconds.
    pub fn window_seconds(&self) -> f64 {
        self.window as f64 / 1e9
    }

    /// Returns the borders of the windows in nanoseconds since the start of the run. The first is the start of the
    /// first window, and the last is the end of the last window.
    pub(super) fn borders(&self) -> Vec<u64> {
        (0..=self.windows.len() as u64).map(|number| self.begin + number * self.window).collect()
    }

    /// Sets the fsyncs and the memory of the server in each window, from readings at the [borders](Self::borders).
    /// Fsyncs between two readings are spread evenly over the windows between them.
    pub(super) fn set_server(&mut self, readings: &[Reading]) {
        for (window, reading) in self.windows.iter_mut().zip(readings.iter().skip(1)) {
            window.resident_bytes = reading.resident_bytes;
        }
        let counts: Vec<_> =
            (0..).zip(readings).filter_map(|(border, reading)| Some((border, reading.at, reading.fsyncs?))).collect();
        for pair in counts.windows(2) {
            let [(from, begun, before), (to, ended, after)] = *pair else { continue };
            let seconds = ended.saturating_sub(begun) as f64 / 1e9;
            let rate = (seconds > 0.0).then(|| after.saturating_sub(before) as f64 / seconds);
            let windows: &mut [Window] = self.windows.get_mut(from..to).unwrap_or_default();
            windows.iter_mut().for_each(|window| window.fsyncs_per_second = rate);
        }
    }

    /// Counts `count` right replies that arrived at `now` to requests that were due at `due`.
    #[inline]
    pub(super) fn replies(&mut self, due: u64, now: u64, count: u64) {
        self.times(due, now.saturating_sub(due), count);
        self.arrived(count, now);
    }

    /// Counts correct replies, or the records or messages in them, that arrived at `now`. Does not count their response
    /// times.
    #[inline]
    pub(super) fn arrived(&mut self, items: u64, now: u64) {
        if let Some(window) = self.at(now) {
            window.right += items;
        }
    }

    /// Counts the response times of `count` requests that were due at `due`. Each waited for `waited` nanoseconds, with
    /// a reply or without.
    #[inline]
    pub(super) fn times(&mut self, due: u64, waited: u64, count: u64) {
        if let Some(window) = self.at(due) {
            window.times.get_or_insert_with(|| Box::new(Latencies::coarse())).record_nanos_times(waited, count);
        }
    }

    #[inline]
    fn at(&mut self, time: u64) -> Option<&mut Window> {
        let number = time.checked_sub(self.begin)? / self.window;
        self.windows.get_mut(number as usize)
    }

    /// Adds the counts of another worker of the same run.
    pub(super) fn merge(&mut self, other: Self) {
        debug_assert_eq!(
            (self.begin, self.window),
            (other.begin, other.window),
            "workers of one run share its windows"
        );
        for (own, other) in self.windows.iter_mut().zip(other.windows) {
            own.right += other.right;
            match (&mut own.times, other.times) {
                (Some(own), Some(other)) => own.merge(&other),
                (own @ None, other) => *own = other,
                (Some(_), None) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_run_is_cut_into_equal_windows() {
        let count = |seconds: u64| Timeline::over(&(SECOND..SECOND + seconds * SECOND), None).unwrap().windows.len();
        assert_eq!([1, 5, 30, 3600].map(count), [4, 20, 120, 120]);
        assert_eq!(Timeline::over(&(0..SECOND / 10), None).unwrap().windows.len(), 1);
        assert!(Timeline::over(&(0..u64::MAX), None).is_none() && Timeline::over(&(5..5), None).is_none());
        assert!((Timeline::over(&(0..30 * SECOND), None).unwrap().window_seconds() - 0.25).abs() < 1e-9);
    }

    #[test]
    fn windows_have_the_length_of_the_option() {
        let of = |seconds: u64, window| {
            let windows = Timeline::over(&(0..seconds * SECOND), Some(window)).unwrap();
            (windows.windows.len(), windows.window)
        };
        assert_eq!(of(2, Duration::from_millis(100)), (20, 100_000_000));
        assert_eq!(of(2, Duration::from_millis(300)), (6, 333_333_334), "they fill the run");
        assert_eq!(of(2, Duration::from_secs(60)), (1, 2 * SECOND));
        assert_eq!(of(3600, Duration::from_millis(10)).0, 1200, "bounded, as each takes memory");
        assert_eq!(Timeline::describe(Duration::from_secs(5), None), "20 of 0.250 s in each run");
    }

    #[test]
    fn fsyncs_are_spread_over_the_windows_between_two_readings() {
        let mut timeline = Timeline::over(&(SECOND..2 * SECOND), None).unwrap();
        let borders = timeline.borders();
        assert_eq!((borders.len(), borders[0], borders[4]), (5, SECOND, 2 * SECOND));
        let fsyncs = [Some(10), None, Some(60), None, Some(61)];
        let reading = |(&at, fsyncs)| Reading { at, fsyncs, resident_bytes: Some(at / SECOND).filter(|_| at > SECOND) };
        timeline.set_server(&borders.iter().zip(fsyncs).map(reading).collect::<Vec<_>>());
        let rates: Vec<_> = timeline.windows.iter().map(|window| window.fsyncs_per_second.unwrap()).collect();
        assert_eq!(rates, [100.0, 100.0, 2.0, 2.0]);
        assert_eq!(timeline.windows[3].resident_bytes, Some(2));
        timeline.set_server(&[]);
        let mut short = Timeline::over(&(SECOND..2 * SECOND), None).unwrap();
        short.set_server(&[Reading { at: SECOND, fsyncs: Some(1), resident_bytes: None }]);
        assert!(short.windows.iter().all(|window| window.fsyncs_per_second.is_none()));
    }

    #[test]
    fn replies_count_where_they_arrive_and_times_where_they_were_due() {
        let mut timeline = Timeline::over(&(SECOND..2 * SECOND), None).unwrap();
        timeline.replies(SECOND + 1, SECOND + 300_000_000, 3);
        timeline.replies(2 * SECOND - 1, 2 * SECOND + 5, 1);
        timeline.replies(0, 1, 1);
        let mut other = Timeline::over(&(SECOND..2 * SECOND), None).unwrap();
        other.times(SECOND, 7_000_000, 2);
        timeline.merge(other);
        let right: Vec<_> = timeline.windows.iter().map(|window| window.right).collect();
        assert_eq!(
            right,
            [0, 3, 0, 0],
            "the last reply came after the end, the first request was due before the start"
        );
        let counts: Vec<_> =
            timeline.windows.iter().map(|window| window.times.as_ref().map_or(0, |times| times.count())).collect();
        assert_eq!(counts, [5, 0, 0, 1]);
        let first = timeline.windows[0].times.as_ref().unwrap();
        assert!((Duration::from_millis(297)..Duration::from_millis(303)).contains(&first.max()), "{:?}", first.max());
    }
}
