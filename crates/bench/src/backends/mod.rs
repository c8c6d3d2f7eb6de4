//! The backends suite. It runs the same groups of operations on every storage backend, behind the engine's log and
//! alone with a sync for each batch. It also has sweeps over data size and number of readers. Most groups are those of
//! *row A*, a published benchmark of another key-value store (see docs/performance.md).
//!
//! Owns: the choice of groups for each store (`subjects`, `groups`, `cells`), their statistics, tables, plots and
//! conclusions. The caller can pass other stores to be measured beside the backends (`peers/`).

mod bare_backend;
mod cells;
mod device;
mod groups;
mod statistics;
mod subjects;
mod summary_sentences;
#[cfg(test)]
mod tests;

use std::{path::PathBuf, time::Duration};

use thalweg_engine::BackendKind;

use self::{
    cells::{BetweenRounds, Cell, MeasuringEffort, measure},
    groups::{Group, Workload},
    subjects::Subject,
};
pub use self::{statistics::Statistics, subjects::Mode};
use crate::{
    BenchError, Progress, Report, Scratch,
    clock_rule::ClockRule,
    data::{KEY_BYTES, Values},
    engine::Contender,
    options::{backend, require, within},
    probe::{Probe, Sync},
    report::{
        Plot, Table,
        plots::{self, Axis},
        table,
    },
    stats::median,
};

/// Size in bytes of each write of the disk probe, about the size of the log batch of a single set.
const PROBE_WRITE_BYTES: usize = 256;
const PROBE_BYTES: u64 = 16 << 20;

/// Options of `thalweg bench backends`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct BackendsOptions {
    /// Storage backends of the engine to measure.
    #[arg(long, value_delimiter = ',', default_values = ["memory", "lsm", "redb", "sqlite"], value_parser = backend)]
    pub backends: Vec<BackendKind>,
    /// Modes to measure: writes synced by the engine's log, or by the backend after each batch.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Mode::ALL)]
    pub modes: Vec<Mode>,
    /// Counted samples of each measurement.
    #[arg(long, default_value_t = 10)]
    pub samples: u64,
    /// Samples of each measurement before the counted ones, to warm up.
    #[arg(long, default_value_t = 1)]
    pub warmup_samples: u64,
    /// Length of a value in bytes.
    #[arg(long, default_value_t = 100)]
    pub value_bytes: usize,
    /// Size of each store's cache in MiB.
    #[arg(long, default_value_t = 64)]
    pub cache_mib: u64,
    /// Run only these groups of operations, by their names in a published benchmark (row A of docs/performance.md), for
    /// example to profile them.
    #[arg(long, value_delimiter = ',', value_name = "GROUPS", value_parser = group, conflicts_with = "no_groups")]
    pub only: Vec<&'static str>,
    /// Leave out the groups of a published benchmark (row A of docs/performance.md), to run the sweeps alone.
    #[arg(long)]
    pub no_groups: bool,
    /// Also measure random reads in stores of 100, 1000, 10000 ... entries, up to this number. The published benchmark
    /// (row A of docs/performance.md) uses 1000000.
    #[arg(long, value_name = "ENTRIES")]
    pub sweep_size: Option<u64>,
    /// Also measure reads by 1, 2, 4, 8 ... threads at once, up to this number. The published benchmark (row A of
    /// docs/performance.md) uses 16.
    #[arg(long, value_name = "THREADS")]
    pub sweep_readers: Option<u64>,
    /// Write plots as SVG files to this directory.
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// Directory below which the stores are created. This decides which disk is measured.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Seed of the random values and orders.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Checks that `text` is the name of a group of operations in a published benchmark (row A of docs/performance.md), and
/// returns the name.
pub fn group(text: &str) -> Result<&'static str, String> {
    let mut names: Vec<_> = GROUPS.map(Group::name).to_vec();
    names.dedup();
    names.iter().find(|name| **name == text).copied().ok_or_else(|| format!("one of {}", names.join(", ")))
}

impl Default for BackendsOptions {
    fn default() -> Self {
        Self {
            backends: vec![BackendKind::Memory, BackendKind::Lsm, BackendKind::Redb, BackendKind::Sqlite],
            modes: Mode::ALL.to_vec(),
            samples: 10,
            warmup_samples: 1,
            value_bytes: 100,
            cache_mib: 64,
            only: Vec::new(),
            no_groups: false,
            sweep_size: None,
            sweep_readers: None,
            plots: None,
            dir: None,
            seed: 1,
        }
    }
}

impl BackendsOptions {
    fn check(&self) -> Result<(), BenchError> {
        within("--samples", self.samples, 10_000)?;
        require(self.warmup_samples <= 10_000, "--warmup-samples", "must be at most 10000")?;
        let is_some = !self.backends.is_empty() && !self.modes.is_empty();
        require(is_some, "--backends, --modes", "must name at least one")?;
        require(self.value_bytes <= 1 << 20, "--value-bytes", "must be at most 1 MiB")?;
        let is_valid = self.sweep_size.is_none_or(|entries| (100..=10_000_000).contains(&entries));
        require(is_valid, "--sweep-size", "must be from 100 to 10000000")?;
        within("--sweep-readers", self.sweep_readers.unwrap_or(1), 256)?;
        let is_some = !self.no_groups || self.sweep_size.is_some() || self.sweep_readers.is_some();
        require(is_some, "--no-groups", "leaves nothing: add --sweep-size or --sweep-readers")
    }
}

/// Runs the backends suite on the backends only, and returns its report.
pub fn run(options: &BackendsOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    run_beside(options, &[], progress)
}

/// Runs the suite on Thalweg's backends and on stores of other systems (`peers`). The stores of other systems sync each
/// write before they acknowledge it.
pub fn run_beside(
    options: &BackendsOptions,
    peers: &[&dyn Contender],
    progress: &mut dyn Progress,
) -> Result<Report, BenchError> {
    options.check()?;
    let (mut report, scratch) = Report::begin_below("backends", options.dir.as_deref())?;
    let subjects: Vec<Subject<'_>> = options
        .modes
        .iter()
        .flat_map(|mode| options.backends.iter().map(|backend| Subject::own(*backend, *mode)))
        .chain(peers.iter().map(|peer| Subject::peer(*peer)))
        .collect();
    describe(options, &subjects, &mut report);
    let mut suite = Suite {
        subjects: &subjects,
        workload: Workload { values: Values::new(options.value_bytes, options.seed), seed: options.seed },
        effort: MeasuringEffort {
            samples: options.samples,
            warmups: options.warmup_samples,
            cache_bytes: options.cache_mib << 20,
        },
        scratch: &scratch,
        report: &mut report,
        clocks: ClockRule::default(),
        progress,
    };
    if !options.no_groups {
        suite.groups(&options.only)?;
    }
    if let Some(entries) = options.sweep_size {
        suite.sweep_size(entries)?;
    }
    if let Some(threads) = options.sweep_readers {
        suite.sweep_readers(threads)?;
    }
    suite.report.checks.extend(suite.clocks.check());
    if let Some(dir) = &options.plots {
        report.save_plots(dir)?;
    }
    Ok(report.finish())
}

fn describe(options: &BackendsOptions, subjects: &[Subject<'_>], report: &mut Report) {
    report.condition("durability", "disk: every write is on disk when it is acknowledged, in both modes");
    for mode in &options.modes {
        let of_mode = subjects.iter().filter(|subject| subject.mode == *mode);
        report.condition(mode.name(), of_mode.map(Subject::describe).collect::<Vec<_>>().join("; "));
    }
    let payload = format!("keys of {KEY_BYTES} bytes, values of {}, one client unless said", options.value_bytes);
    report.condition("payload", payload);
    let (samples, warmups) = (options.samples, options.warmup_samples);
    report.condition("samples", format!("{samples} of each cell in turns, after {warmups} of warm-up"));
}

/// Probe of the disk's raw write rate. Each of its rounds writes for 100 ms.
struct WarmProbe(Probe);

impl WarmProbe {
    fn round(&mut self) -> Result<f64, BenchError> {
        Ok(self.0.run(&[7; PROBE_WRITE_BYTES], Sync::Each, Duration::from_millis(100))?.rate)
    }
}

struct Suite<'a> {
    subjects: &'a [Subject<'a>],
    workload: Workload,
    effort: MeasuringEffort,
    scratch: &'a Scratch,
    report: &'a mut Report,
    clocks: ClockRule,
    progress: &'a mut dyn Progress,
}

/// Groups of operations of a published benchmark of another key-value store (row A of docs/performance.md), and further
/// groups for Thalweg's goals.
const GROUPS: [Group; 11] = [
    Group::Writes(1000),
    Group::Writers(50),
    Group::Tasks(50),
    Group::Reads(100),
    Group::Copy(100),
    Group::Copy(1000),
    Group::Copy(10_000),
    Group::Mixed(1000),
    Group::Transaction(1),
    Group::Transaction(10),
    Group::Transaction(100),
];

impl Suite<'_> {
    /// Measures all groups, or only those whose names are in `only`.
    fn groups(&mut self, only: &[&str]) -> Result<(), BenchError> {
        let mut probe = self.probe()?;
        let (mut probed, mut all) = (Vec::new(), Vec::new());
        for group in GROUPS.into_iter().filter(|group| only.is_empty() || only.contains(&group.name())) {
            // A backend alone takes one batch at a time, so many writers are as fast as one, and the group is skipped.
            let takes_part = |subject: &&Subject<'_>| {
                subject.mode == Mode::BehindLog || !matches!(group, Group::Writers(_) | Group::Tasks(_))
            };
            let subjects: Vec<_> = self.subjects.iter().filter(takes_part).collect();
            // Figures that are compared with the disk's own rate are measured alternately with that rate.
            let beside = &mut || match group {
                Group::Writes(_) => probe.round().map(|rate| probed.push(rate)),
                _ => Ok(()),
            };
            let cells = self.measure(group, &subjects, beside)?;
            if !cells.is_empty() {
                self.report.plots.push(bars(group, &cells, self.effort.samples));
            }
            all.extend(cells);
        }
        if !probed.is_empty() {
            let rate = crate::report::number(median(&probed));
            let what = format!("{rate} × (pwrite of {PROBE_WRITE_BYTES} B + fdatasync)/s, in turns with single sets");
            self.report.condition("raw disk probe", what);
        }
        self.report.tables.push(overview(&all, self.subjects));
        self.report.tables.push(details(&all));
        self.report.checks.extend(summary_sentences::checks(&all, &probed));
        self.conclude(summary_sentences::summary_sentences(&all, &probed));
        Ok(())
    }

    /// Adds sentences with conclusions to the summary of the report.
    fn conclude(&mut self, sentences: Vec<String>) {
        self.report.summary.extend(sentences.into_iter().map(|sentence| sentence + "."));
    }

    fn probe(&mut self) -> Result<WarmProbe, BenchError> {
        self.progress.step("raw disk probe");
        let mut probe = WarmProbe(Probe::create(self.scratch.path(), PROBE_BYTES)?);
        probe.round()?;
        Ok(probe)
    }

    /// Measures a group of operations on the given stores, and checks for each store separately that the machine's
    /// clocks and processors were usable. If the host takes processor time during one store's samples, this is a small
    /// share of the whole group's time, and a check over the whole group would miss it.
    fn measure(
        &mut self,
        group: Group,
        subjects: &[&Subject<'_>],
        beside: &mut BetweenRounds<'_>,
    ) -> Result<Vec<Cell>, BenchError> {
        let (workload, effort, scratch) = (&self.workload, self.effort, self.scratch);
        let progress = &mut *self.progress;
        let cells = measure(group, subjects, workload, effort, scratch, beside, progress)?;
        cells.iter().for_each(|cell| self.clocks.add(&cell.clocks));
        Ok(cells)
    }

    fn sweep_size(&mut self, most: u64) -> Result<(), BenchError> {
        let sizes = std::iter::successors(Some(100), |size| Some(size * 10)).take_while(|size| *size <= most);
        let cells = self.sweep(sizes.map(Group::ReadsOf))?;
        self.report.tables.push(sweep_table("sweep over data size: random reads, µs", &cells));
        self.conclude(summary_sentences::of_sizes(&cells, self.effort.cache_bytes));
        let axes = [Axis::log("entries in the store"), Axis::log("µs per read")];
        let title = "random reads by the size of the store";
        self.report.plots.push(lines("sweep-data-size", title, &axes, &cells, |cell| cell.statistics.mean));
        Ok(())
    }

    fn sweep_readers(&mut self, most: u64) -> Result<(), BenchError> {
        let threads =
            std::iter::successors(Some(1), |threads| Some(threads * 2)).take_while(|threads| *threads <= most);
        let cells = self.sweep(threads.map(Group::Readers))?;
        let title = "sweep over readers: random reads of 10,000 entries, µs of wall time per read";
        self.report.tables.push(sweep_table(title, &cells));
        self.conclude(summary_sentences::of_readers(&cells));
        let axes = [Axis::log("threads that read at once"), Axis::linear("reads/s of all threads")];
        let title = "random reads of 10,000 entries by the number of readers";
        self.report.plots.push(lines("sweep-readers", title, &axes, &cells, Cell::rate));
        Ok(())
    }

    /// Measures the given groups of reads one after the other on each store, with a growing parameter (a sweep). The
    /// sync of writes does not affect reads, so each store is measured in one mode only.
    fn sweep(&mut self, groups: impl Iterator<Item = Group>) -> Result<Vec<Cell>, BenchError> {
        let mut seen = Vec::new();
        let subjects: Vec<&Subject<'_>> = self
            .subjects
            .iter()
            .filter(|subject| {
                let is_new = !seen.contains(&&subject.name);
                seen.push(&subject.name);
                is_new
            })
            .collect();
        let mut cells = Vec::new();
        for group in groups {
            cells.extend(self.measure(group, &subjects, &mut || Ok(()))?);
        }
        Ok(cells)
    }
}

fn bars(group: Group, cells: &[Cell], samples: u64) -> Plot {
    let (what, unit) = (group.what(), group.unit());
    let words = what.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let name = format!("{}-{}", group.name(), words.collect::<Vec<_>>().join("-"));
    let caption = format!(
        "Bar: mean of {samples} samples; line: 95 % interval of the mean; shorter is better. (log): behind Thalweg's log, \
         which makes the writes durable; (alone): the store syncs each batch itself."
    );
    let bars: Vec<plots::Bar> = cells.iter().map(Cell::bar).collect();
    plots::rows(&name, &format!("{what}: time per {unit}"), &caption, &Axis::linear(&format!("µs per {unit}")), &bars)
}

/// Draws a plot with one line for each store. Each measurement (cell) is a point: `figure` computes its height, and the
/// parameter of its group, such as the number of threads, is its position on the horizontal axis.
fn lines(name: &str, title: &str, axes: &[Axis; 2], cells: &[Cell], figure: fn(&Cell) -> f64) -> Plot {
    let mut lines: Vec<plots::Line> = Vec::new();
    for cell in cells {
        let point = (cell.group.parameter() as f64, figure(cell));
        match lines.iter_mut().find(|(store, _)| *store == cell.store) {
            Some((_, points)) => points.push(point),
            None => lines.push((cell.store.clone(), vec![point])),
        }
    }
    plots::lines(name, title, "Each point is the mean of the samples of one store.", axes, &lines)
}

/// Creates the table of all measured rates. Each combination of group, store and sync mode is a row.
fn overview(cells: &[Cell], subjects: &[Subject<'_>]) -> Table {
    table! {
        format!("every cell ({} stores)", subjects.len()); cell in cells;
        let statistics = &cell.statistics;
        let half = (statistics.high - statistics.low) / 2.0;
        "group" => cell.group.name(), "what" => cell.group.what(), "store" => cell.store.as_str(),
        "mode" => cell.mode.name(), "per s" => cell.rate(),
        "batches/s" => cell.group.batch().map(|sets| cell.rate() / sets as f64), "mean µs" => statistics.mean,
        "± 95 %" => half,
    }
}

fn details(cells: &[Cell]) -> Table {
    table! {
        "statistics, flushes of the disk and bytes written per operation"; cell in cells;
        let statistics = &cell.statistics;
        "what" => cell.group.what(), "store" => cell.store.as_str(), "mode" => cell.mode.name(),
        "unit" => cell.group.unit(), "samples" => statistics.samples, "median µs" => statistics.median,
        "std dev" => statistics.deviation, "95 % low" => statistics.low, "95 % high" => statistics.high,
        "mild outliers" => statistics.mild_outliers, "severe outliers" => statistics.severe_outliers,
        "disk flushes" => cell.flushes, "bytes written" => cell.written_bytes,
    }
}

fn sweep_table(title: &str, cells: &[Cell]) -> Table {
    table! {
        title; cell in cells;
        let statistics = &cell.statistics;
        "what" => cell.group.what(), "store" => cell.store.as_str(), "mean µs" => statistics.mean,
        "std dev" => statistics.deviation, "95 % low" => statistics.low, "95 % high" => statistics.high,
        "per s" => cell.rate(), "disk flushes" => cell.flushes, "bytes written" => cell.written_bytes,
    }
}
