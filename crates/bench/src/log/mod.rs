//! The log suite: the two tables of *row S*, a published benchmark of another log (see docs/performance.md), at every
//! durability level. A raw probe of the same disk is measured beside them.
//!
//! Owns: the measured combinations of parameters (`cells`), one round of a measurement (`round`), the results and
//! checks (`figures`). The published benchmark has processes that append one batch after the other. Here a thread takes
//! the place of each process, or a task if there are many writers. Probe and log take turns, and the reported ratio is
//! the median of the rounds' ratios.

mod cells;
mod figures;
mod options;
mod round;

use std::{sync::Arc, time::Duration};

use thalweg_disk::RealDisk;
use thalweg_log::Log;
use thalweg_types::SystemClock;

pub use self::options::LogOptions;
use self::{
    cells::{Cell, Purpose},
    figures::CellRounds,
};
use crate::{
    BenchError, Progress, Report, Scratch,
    clock_rule::ClockRule,
    data::Values,
    probe::{Probe, Sync},
    usage,
};

const PROBE_BYTES: u64 = 64 << 20;

/// Runs the log suite and returns its report.
pub fn run(options: &LogOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    options.check()?;
    let (mut report, scratch) = Report::begin_below("log", options.dir.as_deref())?;
    let warmed = usage::warm_memory(options.warm_mib << 20);
    usage::reset_peak(usage::MeasuredProcess::Own);
    let log = open(&scratch)?;
    let mut probe = Probe::create(scratch.path(), PROBE_BYTES)?;
    report.condition("backend", "the log alone: no state, no replica");
    report
        .condition("records", format!("{} B, random bytes, read back and compared after each round", options.payload));
    let warmup =
        if options.warmup.is_zero() { String::new() } else { format!(", after {:?} of warm-up", options.warmup) };
    report.condition("rounds", format!("{} of {:?}, probe and log in turn{warmup}", options.rounds, options.time));
    report.condition("memory", format!("{} MiB touched before", warmed >> 20));
    let (mut measured, mut clocks) = (Vec::new(), ClockRule::default());
    for cell in cells::all(options) {
        measured.push(measure(options, cell, &log, &mut probe, &mut clocks, progress)?);
    }
    log.close().map_err(BenchError::subject("log", "closing"))?;
    fill(&mut report, &measured);
    report.checks.extend(clocks.check());
    report.cost.fsyncs = Some(measured.iter().map(CellRounds::fsyncs).sum());
    Ok(report.finish())
}

fn open(scratch: &Scratch) -> Result<Log, BenchError> {
    let disk = RealDisk::open(scratch.path()).map_err(BenchError::files(scratch.path()))?;
    // The log keeps no history, so segments are freed as soon as they are synced. A long run then needs little disk
    // space.
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
    clocks: &mut ClockRule,
    progress: &mut dyn Progress,
) -> Result<CellRounds, BenchError> {
    let values = Arc::new(Values::new(cell.payload, options.seed));
    let data = vec![7; cell.batch * cell.payload];
    let sync = if cell.level.waits_for_sync() { Sync::Each } else { Sync::Never };
    let mut measured = CellRounds { cell, probes: Vec::new(), rounds: Vec::new() };
    if !options.warmup.is_zero() {
        // The warm-up round has a number of its own, so its records differ from those of other rounds.
        round::run(log, &cell, &values, options.warmup, options.rounds)?;
    }
    for number in 0..options.rounds {
        measured.probes.push(probe.run(&data, sync, options.time / 2)?);
        probe.settle()?;
        measured.rounds.push(clocks.around(|| round::run(log, &cell, &values, options.time, number))?);
    }
    progress.step(&measured.line());
    Ok(measured)
}

fn fill(report: &mut Report, measured: &[CellRounds]) {
    for purpose in [Purpose::OneProcess, Purpose::ManyProcesses, Purpose::Required] {
        let rows: Vec<&CellRounds> = measured.iter().filter(|cell| cell.cell.purpose == purpose).collect();
        if !rows.is_empty() {
            report.tables.push(figures::table(purpose, &rows));
        }
    }
    report.checks = figures::checks(measured);
    report.notes.push(
        "the probe is one thread that writes batch × record bytes with pwrite into a prewritten file, followed by \
         fdatasync at disk and by nothing at the weaker levels; in the log none and os are the same"
            .to_owned(),
    );
}

#[cfg(test)]
mod tests;
