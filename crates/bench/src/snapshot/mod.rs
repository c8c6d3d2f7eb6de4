//! The snapshot suite: takes full snapshots of a filled database while writers run. It measures the snapshots and their
//! effect on the writers.
//!
//! Owns: filling the database, the order of the windows, the goals, and the report. Does not own: taking one snapshot
//! (`take`), the writers (`writers`) and the choice of their rate (`knee`), or the options (`options`).
//!
//! Setup fills an embedded engine and waits for its compactions. A search then finds the knee: the highest rate at
//! which the writers, on a schedule, meet an objective repeatedly. The writers then write at half of that rate, in
//! alternating windows without and with a snapshot. A window is as long as a snapshot takes. The figures of all windows
//! of a kind are combined. A snapshot that was written to a file is read again and checked while there are no writers.
//! If the check fails, the figures are not reported. The disk's own fsyncs are measured before and after.

mod content;
mod knee;
mod options;
mod take;
mod windows;
mod writers;

use std::{path::Path, time::Duration};

use thalweg_engine::{Database, Keyspace, Options};
use thalweg_types::Durability;

pub use self::options::{SnapshotOptions, Target, WriterKind};
use self::{
    content::Content,
    knee::Load,
    options::NAME,
    take::{TakenSnapshot, take},
    windows::{SystemSample, Window, WindowSet},
    writers::Writers,
};
use crate::{
    BenchError, Progress, Report, Scratch,
    clock_rule::ClockRule,
    data::KEY_BYTES,
    engine::settle,
    latency::Latencies,
    options::require,
    probe::{Probe, Probed, Sync, steadiness},
    report::{Cell, Check, Table, cells, number},
    stats::Summary,
};

/// Goal: smallest rate of a snapshot while writers run, in bytes of keys and values per second.
const WANTED_RATE: f64 = 300e6;
/// Goal: largest value of the writers' 99th percentile during snapshots, divided by their 99th percentile without a
/// snapshot.
const WANTED_TIMES: f64 = 2.0;
/// Size in bytes of the file with which the disk's own fsyncs are measured.
const PROBE_BYTES: u64 = 16 << 20;

/// Runs the snapshot suite and returns its report.
pub fn run(options: &SnapshotOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    let has_outcome = options.durability != Durability::None;
    require(has_outcome, "--durability", "puts whose outcome is not waited for have no response time: at least os")?;
    let (mut report, scratch) = Report::begin_below("snapshot", options.dir.as_deref())?;
    conditions(options, &mut report);
    let measured = measure(options, &scratch, progress)?;
    report.condition("rate", measured.load.text(options));
    measured.report(&mut report);
    report.notes.push("response times count from the scheduled moment".to_owned());
    report.notes.push(match options.to {
        Target::File => "each snapshot's time includes syncing its file; each was read again and checked".to_owned(),
        Target::Null => "the chunks were dropped: nothing was written, and nothing was read again".to_owned(),
    });
    Ok(report.finish())
}

fn conditions(options: &SnapshotOptions, report: &mut Report) {
    report.condition("backend", options.backend.name());
    report.condition("durability", options.durability.name());
    let drive = match options.drive {
        WriterKind::Tasks => "tasks that share a thread",
        WriterKind::Threads => "a thread each",
    };
    report.condition("concurrency", format!("{} writers, {drive}; 1 snapshot at a time", options.writers));
    report.condition(
        "payload",
        format!(
            "{} entries, keys of {KEY_BYTES} B, values of {} B of which {} % compress 8 to 1",
            number(options.entries as f64),
            options.value_size,
            options.compressible
        ),
    );
    let pace =
        options.pace().map_or_else(|| "no pace".to_owned(), |pace| format!("at most {} MB/s", pace.get() / 1_000_000));
    let place = match options.to {
        Target::File => "a file on the same disk",
        Target::Null => "nothing",
    };
    report.condition(
        "snapshot",
        format!("full, into {place}, compression {}, {pace} beside writers", options.compress.name()),
    );
    let (rounds, warmup) = (options.rounds, options.warmup.as_secs_f64());
    report.condition(
        "rounds",
        format!("{rounds} after {warmup} s of warm-up, a window without and one with a snapshot in turn"),
    );
}

/// Results of all rounds of the snapshot suite.
struct SnapshotFigures {
    /// Bytes of all keys and values in the database.
    payload: f64,
    load: Load,
    /// The snapshot that was taken while there were no writers.
    alone: TakenSnapshot,
    rounds: Vec<Round>,
    /// Durations of the disk's own fsyncs before and after the rounds.
    probe: Latencies,
    /// Rates of the disk's own fsyncs before and after the rounds, in fsyncs per second.
    probe_rates: [f64; 2],
}

/// One round of the snapshot suite: a window (a time in which writers write) without a snapshot, and a window in which
/// a snapshot is taken.
struct Round {
    without: Window,
    beside: Window,
    taken: TakenSnapshot,
}

/// The measured database, and the directory of its files.
struct Bench<'a> {
    options: &'a SnapshotOptions,
    database: &'a Database,
    content: &'a Content,
    files: &'a Path,
}

fn measure(
    options: &SnapshotOptions,
    scratch: &Scratch,
    progress: &mut dyn Progress,
) -> Result<SnapshotFigures, BenchError> {
    let (store, files) = (scratch.fresh("store")?, scratch.fresh("snapshots")?);
    let mut probe = Probe::create(&files, PROBE_BYTES)?;
    let engine = Options { backend: Some(options.backend), durability: Durability::Os, ..Options::default() };
    let database = Database::open(&store, engine).map_err(BenchError::subject(NAME, "opening"))?;
    let content = Content {
        entries: options.entries,
        value_bytes: options.value_size as usize,
        compressible: options.compressible as usize,
    };
    let keyspace = filled(&database, &content, options)?;
    progress.step(&format!("filled with {} MB", number(content.bytes() as f64 / 1e6)));
    let asynchronous = database.to_async();
    let mut phases = 0;
    let mut writers = || {
        phases += 1;
        let seed = options.seed.wrapping_add(1 << 32).wrapping_mul(phases << 16);
        Writers { database: &asynchronous, keyspace: &keyspace, content: &content, options, seed }
    };
    let load = match options.rate {
        Some(rate) => Load { rate, knee: None, trials: Vec::new() },
        None => knee::search(options, &mut writers, progress)?,
    };
    let bench = Bench { options, database: &database, content: &content, files: &files };
    let alone = bench.measure_snapshot_alone()?;
    let before = bench.probe(&mut probe)?;
    let mut rounds = Vec::new();
    if !options.warmup.is_zero() {
        writers().open(load.rate, options.warmup, None)?;
    }
    for number in 1..=options.rounds {
        let round = bench.round(number, load.rate, &alone, &mut writers)?;
        progress.step(&round.line(number, content.bytes() as f64));
        rounds.push(round);
    }
    let after = bench.probe(&mut probe)?;
    database.close().map_err(BenchError::subject(NAME, "closing"))?;
    let probe_rates = [before.rate, after.rate];
    let mut times = before.times;
    times.merge(&after.times);
    Ok(SnapshotFigures { payload: content.bytes() as f64, load, alone, rounds, probe: times, probe_rates })
}

/// Fills a keyspace, and waits for the end of the flushes and compactions that this causes.
fn filled(database: &Database, content: &Content, options: &SnapshotOptions) -> Result<Keyspace, BenchError> {
    let keyspace = database.keyspace("bench").map_err(BenchError::subject(NAME, "creating a keyspace"))?;
    content.fill(database, &keyspace)?;
    database.flush().map_err(BenchError::subject(NAME, "flushing"))?;
    settle(database)?;
    Ok(keyspace.with_durability(options.durability))
}

impl Bench<'_> {
    fn measure_snapshot_alone(&self) -> Result<TakenSnapshot, BenchError> {
        settle(self.database)?;
        self.checked(|| self.take())
    }

    /// Measures the disk's own fsyncs while nothing else uses the disk.
    fn probe(&self, probe: &mut Probe) -> Result<Probed, BenchError> {
        settle(self.database)?;
        probe.run(&[7; 4096], Sync::Each, self.options.duration)
    }

    /// Measures the writers in two windows: one without a snapshot, and one in which a snapshot is taken. The order of
    /// the two alternates from round to round.
    fn round<'a>(
        &self,
        number: u32,
        rate: f64,
        alone: &TakenSnapshot,
        writers: &mut impl FnMut() -> Writers<'a>,
    ) -> Result<Round, BenchError> {
        if number.is_multiple_of(2) {
            let (beside, taken) = self.measure_together(&writers(), rate)?;
            Ok(Round { without: self.measure_writers_alone(&writers(), rate, alone)?, beside, taken })
        } else {
            let without = self.measure_writers_alone(&writers(), rate, alone)?;
            let (beside, taken) = self.measure_together(&writers(), rate)?;
            Ok(Round { without, beside, taken })
        }
    }

    /// Measures a window without a snapshot. It lasts as long as the snapshot `alone` took, so that rare events are
    /// equally likely in windows without and with a snapshot. It lasts at least the duration that the options state.
    fn measure_writers_alone(
        &self,
        writers: &Writers<'_>,
        rate: f64,
        alone: &TakenSnapshot,
    ) -> Result<Window, BenchError> {
        settle(self.database)?;
        let time = self.options.duration.max(Duration::from_secs_f64(alone.seconds));
        let watch = SystemSample::begin(self.database);
        Ok(watch.end(writers.open(rate, time, None)?))
    }

    fn measure_together(&self, writers: &Writers<'_>, rate: f64) -> Result<(Window, TakenSnapshot), BenchError> {
        settle(self.database)?;
        let mut window = None;
        let taken = self.checked(|| {
            let watch = SystemSample::begin(self.database);
            let (written, taken) = writers.write_during(rate, || self.take())?;
            window = Some(watch.end(written));
            Ok(taken)
        })?;
        Ok((window.unwrap_or_default(), taken))
    }

    fn take(&self) -> Result<TakenSnapshot, BenchError> {
        take(self.database, self.options, &self.files.join("snapshot"))
    }

    /// Calls `taking`, which takes a snapshot. Checks that the snapshot holds all entries, and returns it.
    fn checked(&self, taking: impl FnOnce() -> Result<TakenSnapshot, BenchError>) -> Result<TakenSnapshot, BenchError> {
        let (taken, content) = (taking()?, self.content);
        let totals = taken.totals;
        if totals.rows < content.entries || totals.row_bytes + totals.carried_bytes < content.bytes() {
            let message = format!("{totals:?} of {content:?}");
            return Err(BenchError::wrong(NAME, "taking a snapshot", message));
        }
        if self.options.to == Target::File {
            take::check(&taken, &self.files.join("snapshot"))?;
        }
        Ok(taken)
    }
}

impl Round {
    fn line(&self, number_of: u32, payload: f64) -> String {
        format!(
            "round {number_of}: {} MB/s beside writers; their p99 {} µs, {} beside a snapshot",
            number(payload / self.taken.seconds / 1e6),
            number(self.without.written.times.quantiles().p99_us),
            number(self.beside.written.times.quantiles().p99_us),
        )
    }
}

impl SnapshotFigures {
    fn report(&self, report: &mut Report) {
        let without = WindowSet::of(self.rounds.iter().map(|round| &round.without));
        let beside = WindowSet::of(self.rounds.iter().map(|round| &round.beside));
        report.tables.push(self.snapshots());
        report.tables.push(windows::table(&without, &beside, &self.probe));
        report.tables.push(self.windows());
        if !self.load.trials.is_empty() {
            report.tables.push(self.load.table());
        }
        let rates: Vec<f64> = self.rounds.iter().map(|round| self.payload / round.taken.seconds).collect();
        let rate = Summary::of(&rates).median / 1e6;
        report.checks.push(Check::at_least("payload in a snapshot beside writers", rate, WANTED_RATE / 1e6, " MB/s"));
        let times = beside.p99(self.load.rate) / without.p99(self.load.rate);
        let what = "writers' p99 beside a snapshot / without one, over all windows";
        report.checks.push(Check::below(what, times, WANTED_TIMES, " ×"));
        report.checks.extend(steadiness("the disk alone, before and after", &self.probe_rates, "/s"));
        let mut clocks = ClockRule::default();
        for window in self.rounds.iter().flat_map(|round| [&round.without, &round.beside]) {
            clocks.add(&window.clocks);
        }
        report.checks.extend(clocks.check());
    }

    fn snapshots(&self) -> Table {
        let mut table = Table::new("snapshots");
        let beside =
            self.rounds.iter().zip(1_u64..).map(|(round, number)| (number.into(), "on schedule", &round.taken));
        for (number, writers, taken) in [(Cell::Missing(()), "none", &self.alone)].into_iter().chain(beside) {
            table.row(cells! {
                "round" => number, "writers" => writers, "payload MB/s" => self.payload / taken.seconds / 1e6,
                "written MB/s" => taken.bytes as f64 / taken.seconds / 1e6,
                "written B/payload B" => taken.bytes as f64 / self.payload, "seconds" => taken.seconds,
                "CPU s" => taken.cpu_seconds, "rows" => taken.totals.rows,
            });
        }
        table
    }

    fn windows(&self) -> Table {
        let mut table = Table::new("each window, from the scheduled moment");
        for (round, number) in self.rounds.iter().zip(1_u64..) {
            for (snapshot, window) in [("none", &round.without), ("taken", &round.beside)] {
                let quantiles = window.written.times.quantiles();
                table.row(cells! {
                    "round" => number, "snapshot" => snapshot, "puts/s" => window.written.rate(),
                    "puts" => window.written.times.count(), "p50 µs" => quantiles.p50_us,
                    "p95 µs" => quantiles.p95_us, "p99 µs" => quantiles.p99_us, "p99.9 µs" => quantiles.p999_us,
                    "max µs" => quantiles.max_us,
                    "slow fsyncs" => window.slow_syncs,
                    "stolen ms" => window.stolen.map_or(Cell::Missing(()), |stolen| (stolen.as_secs_f64() * 1e3).into()),
                });
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use thalweg_engine::{BackendKind, snapshot::Compression};

    use super::*;
    use crate::Quiet;

    fn small() -> SnapshotOptions {
        SnapshotOptions {
            entries: 2000,
            value_size: 1024,
            compressible: 50,
            backend: BackendKind::Lsm,
            compress: Compression::Zstd,
            pace: 0,
            to: Target::File,
            writers: 2,
            drive: WriterKind::Tasks,
            objective: "p99<5s".parse().unwrap(),
            rate: None,
            durability: Durability::Os,
            duration: Duration::from_millis(150),
            warmup: Duration::from_millis(20),
            rounds: 2,
            dir: None,
            seed: 1,
        }
    }

    fn given() -> SnapshotOptions {
        SnapshotOptions { rate: Some(2000.0), drive: WriterKind::Threads, ..small() }
    }

    fn cell(report: &Report, table: usize, row: usize, column: &str) -> f64 {
        let table = &report.tables[table];
        let at = table.columns.iter().position(|name| *name == column).unwrap();
        match &table.rows[row][at] {
            Cell::Number(value) => *value,
            Cell::Count(count) => *count as f64,
            other => panic!("{column}: {other:?}"),
        }
    }

    #[test]
    fn a_small_run_takes_whole_snapshots_beside_writers() {
        let report = run(&small(), &mut Quiet).unwrap();
        assert_eq!(report.tables.iter().map(|table| table.rows.len()).collect::<Vec<_>>()[..3], [3, 3, 4]);
        let of_the_disk = report.checks.iter().filter(|check| check.what.starts_with("the disk alone")).count();
        assert_eq!((report.checks.len(), of_the_disk), (3, 1), "a disk that varies makes the run void");
        assert!(report.tables[3].rows.len() > knee::REPEATS as usize);
        for row in 0..3 {
            assert!(cell(&report, 0, row, "rows") >= 2000.0);
            let size = cell(&report, 0, row, "written B/payload B");
            assert!((0.5..0.8).contains(&size), "half of each value compresses: {size}");
        }
        for side in [0, 1] {
            let puts: f64 = [side, side + 2].map(|row| cell(&report, 2, row, "puts")).into_iter().sum();
            assert_eq!(cell(&report, 1, side, "answers"), puts, "all windows of a kind as one");
        }
        assert!(cell(&report, 1, 2, "answers") > 0.0, "the disk alone");
    }

    #[test]
    fn without_compression_it_is_as_large_as_what_it_holds() {
        let plain = SnapshotOptions { compress: Compression::None, to: Target::Null, rounds: 1, ..given() };
        let report = run(&plain, &mut Quiet).unwrap();
        assert_eq!(report.tables.len(), 3, "nothing was searched");
        assert!((1.0..1.2).contains(&cell(&report, 0, 0, "written B/payload B")));
    }

    #[test]
    fn a_pace_of_zero_is_none_at_all() {
        let paced = |pace| SnapshotOptions { pace, ..small() }.pace();
        assert_eq!((paced(0), paced(50)), (None, NonZeroU64::new(50_000_000)));
    }

    #[test]
    fn a_closed_loop_without_an_answer_is_an_error() {
        let at_once = SnapshotOptions { entries: 1, duration: Duration::ZERO, ..small() };
        assert!(matches!(run(&at_once, &mut Quiet), Err(BenchError::Option { option: "--duration", .. })));
    }

    #[test]
    fn an_objective_that_nothing_meets_is_an_error() {
        let objective = "max<1us".parse().unwrap();
        // Each window is long enough for a reply even on a busy machine. A window without a reply would be another
        // error.
        let never = SnapshotOptions { objective, duration: Duration::from_millis(300), ..small() };
        let result = run(&never, &mut Quiet);
        assert!(matches!(result, Err(BenchError::Option { option: "--objective", .. })), "{result:?}");
    }

    #[test]
    fn puts_without_an_answer_are_refused() {
        let unknown = SnapshotOptions { durability: Durability::None, ..small() };
        assert!(matches!(run(&unknown, &mut Quiet), Err(BenchError::Option { .. })));
    }
}
