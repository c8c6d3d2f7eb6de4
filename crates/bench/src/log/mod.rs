//! The log suite: row S's two tables at every durability level, beside a raw probe of the same disk.
//!
//! Owns: the cells (`cells`), one round of a cell (`round`), the report. A process of row S is a thread here (or a
//! task, for the figures of many writers) that appends one batch after the other. Probe and log take turns, and the
//! ratio is the median of the rounds' ratios.

mod cells;
mod round;

use std::{path::PathBuf, sync::Arc, time::Duration};

use thalweg_disk::RealDisk;
use thalweg_log::Log;
use thalweg_types::{Durability, SystemClock};

use self::cells::{Cell, Purpose};
use crate::{
    BenchError, Progress, Report, Scratch,
    data::Values,
    latency::{Latencies, micros},
    options::{parse_duration, require, within},
    probe::{Probe, Probed, Sync},
    report::{Table, cells, number},
    stats::{Summary, ratio},
    usage::{self},
};

/// Options of the log suite.
#[derive(Clone, Debug, clap::Args)]
pub struct LogOptions {
    /// Directory below which the log is made; decides which disk is measured.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Levels to measure.
    #[arg(long, value_delimiter = ',', default_values_t = [Durability::None, Durability::Os, Durability::Interval, Durability::Disk])]
    pub durability: Vec<Durability>,
    /// Numbers of threads that append at the same time.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 50, 100])]
    pub processes: Vec<usize>,
    /// Records per append.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 100, 1000])]
    pub batches: Vec<usize>,
    /// Bytes of a record.
    #[arg(long, default_value_t = 1024)]
    pub payload: usize,
    /// Time of each round of each cell; the probe beside it takes half of it.
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    pub time: Duration,
    /// Rounds of each cell; medians are reported.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Only the cells that are held against a required figure.
    #[arg(long)]
    pub only_checks: bool,
    /// MiB of memory touched before, so that the machine's first touch is not measured.
    #[arg(long, default_value_t = 1024)]
    pub warm_mib: u64,
    /// Seed of the payloads.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

const PROBE_BYTES: u64 = 64 << 20;
/// A batch must fit a segment of the default size, headers included.
const MAX_BATCH_BYTES: usize = 32 << 20;

impl LogOptions {
    fn check(&self) -> Result<(), BenchError> {
        require(self.rounds > 0 && !self.time.is_zero(), "--rounds, --time", "must be above 0")?;
        self.processes.iter().try_for_each(|count| within("--processes", *count, 1000))?;
        let largest = self.batches.iter().max().copied().unwrap_or(0);
        let fits = !self.batches.contains(&0) && largest.saturating_mul(self.payload) <= MAX_BATCH_BYTES;
        require(fits, "--batches", "must be at least 1, and batch × payload at most 32 MiB")
    }
}

/// Figures of all rounds of a cell.
struct Measured {
    cell: Cell,
    rates: Vec<f64>,
    times: Latencies,
    probe_rates: Vec<f64>,
    probe_times: Latencies,
    appends: u64,
    fsyncs: u64,
    cpu_seconds: f64,
    written_bytes: Option<u64>,
}

/// Runs the suite.
pub fn run(options: &LogOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    options.check()?;
    let (mut report, scratch) = Report::begin_below("log", options.dir.as_deref())?;
    let warmed = usage::warm_memory(options.warm_mib << 20);
    usage::reset_peak();
    let log = open(&scratch)?;
    let mut probe = Probe::create(scratch.path(), PROBE_BYTES)?;
    report.condition("backend", "the log alone: no state, no replica");
    report
        .condition("records", format!("{} B, random bytes, read back and compared after each round", options.payload));
    report.condition("rounds", format!("{} of {:?}, probe and log in turn", options.rounds, options.time));
    report.condition("memory", format!("{} MiB touched before", warmed >> 20));
    let mut measured = Vec::new();
    for cell in cells::all(options) {
        measured.push(measure(options, cell, &log, &mut probe, progress)?);
    }
    log.close().map_err(BenchError::subject("log", "closing"))?;
    fill(&mut report, &measured);
    report.cost.fsyncs = Some(measured.iter().map(|cell| cell.fsyncs).sum());
    Ok(report.finish())
}

fn open(scratch: &Scratch) -> Result<Log, BenchError> {
    let disk = RealDisk::open(scratch.path()).map_err(BenchError::files(scratch.path()))?;
    // No history: segments come back as soon as they are synced, so a long run needs little disk.
    let options =
        thalweg_log::LogOptions { history_bytes: 0, history_age: Duration::ZERO, ..thalweg_log::LogOptions::default() };
    let (log, _) = Log::open(Arc::new(disk), "log", options, Arc::new(SystemClock::default()), 1)
        .map_err(BenchError::subject("log", "opening"))?;
    Ok(log)
}

fn measure(
    options: &LogOptions,
    cell: Cell,
    log: &Log,
    probe: &mut Probe,
    progress: &mut dyn Progress,
) -> Result<Measured, BenchError> {
    let values = Arc::new(Values::new(cell.payload, options.seed));
    let data = vec![7; cell.batch * cell.payload];
    let sync = if cell.level.waits_for_sync() { Sync::Each } else { Sync::Never };
    let mut all = Measured {
        cell,
        rates: Vec::new(),
        times: Latencies::default(),
        probe_rates: Vec::new(),
        probe_times: Latencies::default(),
        appends: 0,
        fsyncs: 0,
        cpu_seconds: 0.0,
        written_bytes: Some(0),
    };
    for number in 0..options.rounds {
        let Probed { rate, times } = probe.run(&data, sync, options.time / 2)?;
        probe.settle()?;
        all.probe_rates.push(rate);
        all.probe_times.merge(&times);
        let round = round::run(log, &cell, &values, options.time, number)?;
        all.rates.push(round.rate);
        all.times.merge(&round.times);
        all.appends += round.times.count();
        all.fsyncs += round.cost.fsyncs.unwrap_or(0);
        all.cpu_seconds += round.cost.cpu_seconds;
        all.written_bytes = all.written_bytes.zip(round.cost.written_bytes).map(|(sum, more)| sum + more);
    }
    progress.step(&format!(
        "{} writers ({}) × {} × {} B, {}: {} records/s, p50 {} µs, p99 {} µs, {} × probe",
        cell.writers,
        cell.run_as.name(),
        cell.batch,
        cell.payload,
        cell.level,
        number(Summary::of(&all.rates).median * cell.batch as f64),
        number(micros(all.times.percentile(50.0))),
        number(micros(all.times.percentile(99.0))),
        number(ratio(&all.rates, &all.probe_rates)),
    ));
    Ok(all)
}

fn fill(report: &mut Report, measured: &[Measured]) {
    for purpose in [Purpose::OneProcess, Purpose::ManyProcesses, Purpose::Required] {
        let rows: Vec<&Measured> = measured.iter().filter(|cell| cell.cell.purpose == purpose).collect();
        if !rows.is_empty() {
            report.tables.push(table(purpose, &rows));
        }
    }
    report.checks = cells::checks(measured);
    report.notes.push(
        "the probe is one thread that writes batch × record bytes with pwrite into a prewritten file, followed by \
         fdatasync at disk and by nothing at the weaker levels; in the log none and os are the same"
            .to_owned(),
    );
}

fn table(purpose: Purpose, rows: &[&Measured]) -> Table {
    let mut table = Table::new(purpose.title());
    for row in rows {
        let cell = &row.cell;
        let rates = Summary::of(&row.rates);
        let payload = (row.appends as usize * cell.batch * cell.payload) as f64;
        let ms = |times: &Latencies, percentile| micros(times.percentile(percentile)) / 1e3;
        table.row(cells! {
            "durability" => cell.level.name(), "writers" => cell.writers, "as" => cell.run_as.name(),
            "batch" => cell.batch, "record B" => cell.payload, "records/s" => rates.median * cell.batch as f64,
            "± MAD" => rates.mad * cell.batch as f64, "p50 ms" => ms(&row.times, 50.0),
            "p99 ms" => ms(&row.times, 99.0), "p99.9 ms" => ms(&row.times, 99.9), "max ms" => ms(&row.times, 100.0),
            "probe writes/s" => Summary::of(&row.probe_rates).median, "probe p50 ms" => ms(&row.probe_times, 50.0),
            "appends of probe" => ratio(&row.rates, &row.probe_rates),
            "CPU µs/append" => row.cpu_seconds * 1e6 / row.appends as f64, "fsyncs" => row.fsyncs,
            "appends/fsync" => row.appends as f64 / row.fsyncs as f64,
            "written B/payload B" => row.written_bytes.map(|bytes| bytes as f64 / payload),
        });
    }
    table
}

impl Measured {
    fn rate(&self) -> f64 {
        Summary::of(&self.rates).median
    }
}

#[cfg(test)]
mod tests;
