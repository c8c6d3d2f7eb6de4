//! Measures how snapshots affect the response times of writers.
//!
//! A *window* is a short time in which the writers write, either while a snapshot is taken or without one. Windows of
//! both kinds alternate, so that disturbances of the machine affect both. The 99th percentile of a single window means
//! little, because one stop of 20 ms is one percent of two seconds.
//!
//! Owns: [`SystemSample`], which makes a [`Window`] from the counters at its start and at its end, and [`WindowSet`],
//! which combines all windows of a kind.

use std::time::Duration;

use thalweg_engine::Database;
use thalweg_types::Log2Histogram;

use super::{knee::LEAST_OF_RATE, writers::Written};
use crate::{
    latency::Latencies,
    report::{Row, Table, cells},
    usage::{self, Clocks, Meter},
};

/// Smallest number of puts for which a 99th percentile is reported.
pub(super) const FEWEST_PUTS: u64 = 1000;
/// Duration in microseconds above which an fsync counts as slow. It is a bucket bound of the log's histogram.
const SLOW_SYNC_MICROS: u64 = 4096;

/// Counters of the log and of the machine at the start of a window, a short time in which the writers write.
pub(super) struct SystemSample<'a> {
    database: &'a Database,
    sync_micros: Log2Histogram,
    stolen: Option<Duration>,
    meter: Meter,
}

/// Response times of the writers in one window (a short time in which they write), with the log's fsyncs and the steal
/// time in it.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    pub(super) written: Written,
    /// Number of fsyncs of the log in the window.
    pub(super) syncs: u64,
    /// Number of fsyncs in the window that took longer than 4.1 ms.
    pub(super) slow_syncs: u64,
    /// Steal time in the window: CPU time that the host of the virtual machine took from its processors. `None` if the
    /// kernel does not report it.
    pub(super) stolen: Option<Duration>,
    /// Drift of the machine's clocks during the window, and processor time that the host of a virtual machine took.
    pub(super) clocks: Clocks,
}

impl<'a> SystemSample<'a> {
    pub(super) fn begin(database: &'a Database) -> Self {
        let (sync_micros, stolen) = (database.stats().log.sync_latency, usage::stolen_from_processors());
        Self { database, sync_micros, stolen, meter: Meter::begin(None) }
    }

    pub(super) fn end(self, written: Written) -> Window {
        let now = self.database.stats().log.sync_latency;
        Window {
            written,
            syncs: now.count() - self.sync_micros.count(),
            slow_syncs: slow(&now) - slow(&self.sync_micros),
            stolen: usage::stolen_from_processors().zip(self.stolen).map(|(now, then)| now.saturating_sub(then)),
            clocks: self.meter.clocks(),
        }
    }
}

fn slow(sync_micros: &Log2Histogram) -> u64 {
    sync_micros.buckets[Log2Histogram::bucket_of(SLOW_SYNC_MICROS) + 1..].iter().sum()
}

/// All windows of one kind added up: those without a snapshot, or those in which a snapshot was taken.
#[derive(Clone, Debug, Default)]
pub(super) struct WindowSet {
    windows: u64,
    times: Latencies,
    seconds: f64,
    syncs: u64,
    slow_syncs: u64,
    stolen: Option<Duration>,
}

impl WindowSet {
    pub(super) fn of<'a>(windows: impl Iterator<Item = &'a Window>) -> Self {
        let mut side = Self { stolen: Some(Duration::ZERO), ..Self::default() };
        for window in windows {
            side.windows += 1;
            side.times.merge(&window.written.times);
            side.seconds += window.written.seconds;
            side.syncs += window.syncs;
            side.slow_syncs += window.slow_syncs;
            side.stolen = side.stolen.zip(window.stolen).map(|(sum, more)| sum + more);
        }
        side
    }

    /// Returns the 99th percentile of the response times in microseconds. NaN if there were too few puts, or if the
    /// writers did not keep up with `rate` puts per second.
    pub(super) fn p99(&self, rate: f64) -> f64 {
        let answered = self.times.count();
        if answered < FEWEST_PUTS || (answered as f64) < LEAST_OF_RATE * rate * self.seconds {
            return f64::NAN;
        }
        self.times.quantiles().p99_us
    }

    /// Returns the percentage of all processors' time that the host of the virtual machine took; `None` if it is not
    /// known.
    fn stolen_percent(&self) -> Option<f64> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        self.stolen.map(|stolen| 100.0 * stolen.as_secs_f64() / (processors * self.seconds))
    }
}

/// Creates the table of the writers' response times. It has a row for the windows without a snapshot, a row for the
/// windows with a snapshot, and a row for the probe of the disk.
pub(super) fn table(without: &WindowSet, beside: &WindowSet, probe: &Latencies) -> Table {
    let mut table = Table::new("all windows of a kind as one, and the disk alone: 4 KiB and fdatasync");
    for (name, side) in [("none", without), ("taken", beside)] {
        let syncs = (side.syncs, side.slow_syncs);
        table.row(row(name, Some(side.windows), &side.times, syncs, side.stolen_percent()));
    }
    let slow = probe.count_above(Duration::from_micros(SLOW_SYNC_MICROS));
    table.row(row("the disk alone", None, probe, (probe.count(), slow), None));
    table
}

fn row(name: &str, windows: Option<u64>, times: &Latencies, syncs: (u64, u64), stolen: Option<f64>) -> Row {
    let at = times.quantiles();
    cells! {
        "snapshot" => name, "windows" => windows, "answers" => times.count(), "p50 µs" => at.p50_us,
        "p90 µs" => at.p90_us, "p95 µs" => at.p95_us, "p99 µs" => at.p99_us, "p99.9 µs" => at.p999_us,
        "max µs" => at.max_us,
        "fsyncs" => syncs.0, "over 4.1 ms" => syncs.1, "stolen %" => stolen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(nanos: u64, puts: u64, seconds: f64) -> Window {
        let mut written = Written { seconds, ..Written::default() };
        written.times.record_nanos_times(nanos, puts);
        let stolen = Some(Duration::from_millis(10));
        Window { written, syncs: puts, slow_syncs: 1, stolen, clocks: Clocks::default() }
    }

    #[test]
    fn the_p99_of_a_side_is_of_all_its_puts_and_not_of_its_windows() {
        // In one of four windows every put is slow. So a quarter of all puts are slow: the median is fast, and p90 is
        // not.
        let windows = [window(1_000, 2000, 1.0), window(1_000, 2000, 1.0), window(1_000, 2000, 1.0)];
        let calm = WindowSet::of(windows.iter());
        assert!((calm.p99(2000.0) - 1.0).abs() < 0.01);
        let slow = window(9_000, 2000, 1.0);
        let side = WindowSet::of(windows.iter().chain([&slow]));
        assert!((side.p99(2000.0) - 9.0).abs() < 0.1);
        assert!((side.times.quantiles().p50_us - 1.0).abs() < 0.01);
        assert_eq!((side.windows, side.times.count(), side.syncs, side.slow_syncs), (4, 8000, 8000, 4));
        assert!((side.seconds - 4.0).abs() < 1e-9);
        // A stop that affects 1.6 % of the puts of one window affects 0.4 % of those of four.
        let stop =
            Window { written: Written { times: calm_but(32), seconds: 1.0, gave_up: false }, ..Window::default() };
        assert!(WindowSet::of([&stop].into_iter()).p99(2000.0) > 8.0);
        assert!(WindowSet::of(windows.iter().chain([&stop])).p99(2000.0) < 2.0);
    }

    fn calm_but(slow: u64) -> Latencies {
        let mut times = Latencies::default();
        times.record_nanos_times(1_000, 2000 - slow);
        times.record_nanos_times(9_000, slow);
        times
    }

    #[test]
    fn few_puts_or_a_missed_schedule_say_nothing_about_a_99th_percentile() {
        let side = |puts, seconds| WindowSet::of([window(5_000, puts, seconds)].iter());
        assert!(side(FEWEST_PUTS - 1, 1.0).p99(1000.0).is_nan());
        assert!((side(FEWEST_PUTS, 1.0).p99(1000.0) - 5.0).abs() < 0.1);
        assert!(side(FEWEST_PUTS, 1.2).p99(1000.0).is_nan());
        assert!(WindowSet::of([].into_iter()).p99(1000.0).is_nan());
    }

    #[test]
    fn time_taken_from_the_machine_is_a_share_of_all_processors() {
        let processors = std::thread::available_parallelism().unwrap().get() as f64;
        let (one, other) = (window(1, 1, 0.5), window(1, 1, 0.5));
        let percent = WindowSet::of([&one, &other].into_iter()).stolen_percent().unwrap();
        assert!((percent - 2.0 / processors).abs() < 1e-9, "{percent}");
        let unknown = Window { stolen: None, ..one };
        assert_eq!(WindowSet::of([&other, &unknown].into_iter()).stolen_percent(), None);
    }

    #[test]
    fn syncs_are_slow_above_a_bound_of_the_histogram() {
        let mut sync_micros = Log2Histogram::default();
        [100, SLOW_SYNC_MICROS, SLOW_SYNC_MICROS + 1, 1 << 40]
            .into_iter()
            .for_each(|micros| sync_micros.record(micros));
        assert_eq!(slow(&sync_micros), 2);
    }

    #[test]
    fn both_sides_and_the_disk_have_a_row() {
        let sides = [window(1_000, 10, 1.0), window(2_000, 20, 1.0)].map(|window| WindowSet::of([window].iter()));
        let mut probe = Latencies::default();
        [1, 5, 6].into_iter().for_each(|millis| probe.record(Duration::from_millis(millis)));
        let table = table(&sides[0], &sides[1], &probe);
        let counts: Vec<_> = table.rows.iter().map(|row| (row[2].clone(), row[10].clone())).collect();
        let expected = [(10_u64, 1_u64), (20, 1), (3, 2)].map(|(answers, slow)| (answers.into(), slow.into()));
        assert_eq!(counts, expected);
    }
}
