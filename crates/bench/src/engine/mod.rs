//! The engine suite: all tests of *row P*, a published benchmark of another storage engine (see docs/performance.md),
//! and further tests for Thalweg's goals. The tests measure Thalweg's engine and, with the same code in the same
//! process, other stores (`peers/`).
//!
//! Owns: the workloads (`workloads`, `compaction`, `stream`) and the order of rounds. Stores are reached only through
//! [`KvSubject`]. Within a round the compared stores take turns, one test group after the other. In every second round
//! the first store comes last. Ratios are medians over rounds.

mod compaction;
mod database;
mod findings;
mod results;
mod stream;
mod subject;
mod timing;
mod workloads;

use std::{path::PathBuf, time::Duration};

use thalweg_engine::BackendKind;

pub(crate) use self::database::{engine_options, open, settle};
pub use self::{
    database::Thalweg,
    results::{Results, Row, Space, Test},
    subject::{Contender, KvSubject, Level, LookupResult, Pair, StoreOptions, Visit},
    timing::{FAST_STRIDE, Measure, timed},
};
use self::{
    results::count_at,
    stream::StreamRound,
    workloads::{Context, SMALL_VALUE_BYTES},
};
use crate::{
    BenchError, Progress, Report, Scratch,
    clock_rule::ClockRule,
    data::KEY_BYTES,
    options::require,
    probe::{Probe, Sync, steadiness},
    report::{Check, Table, mebibytes, number, table},
    stats::{median_of, ratio},
    usage::{self, Cost, MeasuredProcess, Usage},
};

/// Part of the engine suite to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Mode {
    /// Reads, writes, ranges and mixes of a published benchmark of another storage engine (row P of
    /// docs/performance.md), in memory and flushed to tables.
    #[default]
    Quick,
    /// The tests of quick, then 2 million pairs in random order, stream appends, and compaction.
    Full,
    /// Only the compaction tests.
    Compaction,
}

/// A group of tests that use the same stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Group {
    /// Small data, 50k × 100 B: writes, and reads and ranges in memory.
    Small,
    /// Flushed data, 200k × 200 B: writes, and reads and ranges of tables on disk.
    Flushed,
    /// Mixed reads and writes over 50k × 100 B: 70 % and 90 % reads.
    Mixed,
    /// Large data, 2 M × 200 B: writes in random order, reads of present and of missing keys.
    Large,
    /// Reads, ranges and disk space before and after compaction.
    Compaction,
    /// Appends to a stream, in batches of 100 × 1 KB.
    Stream,
}

/// Options of `thalweg bench engine`.
#[derive(Clone, Debug, clap::Args)]
pub struct EngineOptions {
    /// Part of the suite to run.
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    /// Run only these groups of tests, whatever the mode, for example to profile them.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Group>,
    /// Durability level of the writes.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Level::Interval, Level::Disk])]
    pub level: Vec<Level>,
    /// Directory below which the stores are created. This decides which disk is measured.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Rounds of each test; medians are reported.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Warm-up rounds before the counted ones. Each round begins with fresh stores, so the warm-up affects the machine
    /// only.
    #[arg(long, default_value_t = 0)]
    pub warmup_rounds: u32,
    /// Factor on the numbers of operations in all tests: 1 runs as many as the published benchmark, a smaller factor
    /// gives a quick look.
    #[arg(long, default_value_t = 1.0)]
    pub scale: f64,
    /// Size of each store's block cache in MiB.
    #[arg(long, default_value_t = 1024)]
    pub cache_mib: u64,
    /// MiB of memory to touch before the run, so that a virtual machine's slow first touch is not measured.
    #[arg(long, default_value_t = 2048)]
    pub warm_mib: u64,
    /// Also measure the backend that holds all data in memory.
    #[arg(long)]
    pub memory_backend: bool,
    /// Seed of the random keys, values and orders.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl EngineOptions {
    fn check(&self) -> Result<(), BenchError> {
        require(self.rounds > 0 && !self.level.is_empty(), "--rounds, --level", "must be at least one")?;
        require(
            self.rounds <= 10_000 && self.warmup_rounds <= 10_000,
            "--rounds, --warmup-rounds",
            "must be at most 10000",
        )?;
        require(self.scale > 0.0 && self.scale <= 100.0, "--scale", "must be above 0 and at most 100")
    }
}

/// Number of batches that the stream test appends. They have 2 GB together.
const STREAM_BATCHES: u64 = 20_000;
const PROBE_BYTES: u64 = 64 << 20;
/// Name of the raw disk probe in the report, where it is listed beside the stores.
pub const PROBE: &str = "raw probe (pwrite + fdatasync)";

/// Runs the engine suite on Thalweg's own engine only, and returns its report.
pub fn run(options: &EngineOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    let lsm = Thalweg { backend: BackendKind::Lsm };
    let memory = Thalweg { backend: BackendKind::Memory };
    let mut contenders: Vec<&dyn Contender> = vec![&lsm];
    if options.memory_backend {
        contenders.push(&memory);
    }
    run_all("engine", options, &contenders, progress).map(|(report, _)| report)
}

/// Runs the suite on all compared stores in turn. The report has the ratios of the first store to each other store.
pub fn run_all(
    suite: &'static str,
    options: &EngineOptions,
    contenders: &[&dyn Contender],
    progress: &mut dyn Progress,
) -> Result<(Report, Results), BenchError> {
    options.check()?;
    let (mut report, scratch) = Report::begin_below(suite, options.dir.as_deref())?;
    let warmed = usage::warm_memory(options.warm_mib << 20);
    for contender in contenders {
        report.condition("backend", contender.describe());
    }
    let levels: Vec<String> = options.level.iter().map(Level::to_string).collect();
    report.condition("durability", levels.join(" and "));
    report.condition("concurrency", "1 thread");
    report.condition("payload", format!("keys of {KEY_BYTES} B, values of {SMALL_VALUE_BYTES} or 200 B, random bytes"));
    report.condition("cache", format!("{} MiB each", options.cache_mib));
    let (rounds, warmups) = (options.rounds, options.warmup_rounds);
    report.condition("rounds", format!("{rounds} after {warmups} of warm-up, in turn; counts × {}", options.scale));
    report.condition("memory", format!("{} MiB touched before", warmed >> 20));
    let (results, streams, clocks) = (Results::default(), Vec::new(), ClockRule::default());
    let mut suite = Suite { options, contenders, scratch: &scratch, results, streams, clocks, progress };
    for round in 1..=warmups + rounds {
        if round == warmups + 1 {
            (suite.results, suite.streams, suite.clocks) = (Results::default(), Vec::new(), ClockRule::default());
        }
        suite.round(round)?;
    }
    let Suite { results, streams, clocks, .. } = suite;
    let first = contenders.first().map_or("", |contender| contender.name());
    report.summary = findings::sentences(&results, first);
    report.plots = findings::rates(&results);
    report.tables.extend(results.tables(first));
    if !streams.is_empty() {
        report.tables.push(stream_table(&streams));
        report.checks.extend(stream_checks(&streams));
    }
    report.checks.extend(probe_checks(&results, first));
    report.checks.extend(compaction::checks(&results, first));
    report.checks.extend(clocks.check());
    report.notes.push(
        "every get's value was compared while the clock ran; ranges were summed while it ran and compared pair by \
         pair afterwards; fsyncs of the log only, - where the store does not count them"
            .to_owned(),
    );
    Ok((report.finish(), results))
}

struct Suite<'a> {
    options: &'a EngineOptions,
    contenders: &'a [&'a dyn Contender],
    scratch: &'a Scratch,
    results: Results,
    streams: Vec<StreamRound>,
    clocks: ClockRule,
    progress: &'a mut dyn Progress,
}

impl Suite<'_> {
    fn round(&mut self, round: u32) -> Result<(), BenchError> {
        let options = self.options;
        let warms_up = if round <= options.warmup_rounds { ", which warms up" } else { "" };
        self.progress.step(&format!("round {round} of {}{warms_up}", options.warmup_rounds + options.rounds));
        let mut order: Vec<&dyn Contender> = self.contenders.to_vec();
        // The first counted round has the given order of stores, which is also the order of the report's rows.
        if (round + options.warmup_rounds).is_multiple_of(2) {
            order.reverse();
        }
        for &level in &options.level {
            if level == Level::Disk && groups(options, level).contains(&Group::Small) {
                self.probe()?;
            }
            for group in groups(options, level) {
                let Some(run) = group.run() else { continue };
                for contender in &order {
                    let dir = self.scratch.fresh("store")?;
                    let mut context = Context {
                        scale: options.scale,
                        seed: options.seed.wrapping_add(u64::from(round) * 1000),
                        cache_bytes: options.cache_mib << 20,
                        level,
                        contender: *contender,
                        dir: &dir,
                        results: &mut self.results,
                        progress: self.progress,
                    };
                    self.clocks.around(|| run(&mut context))?;
                }
            }
        }
        if groups(options, Level::Interval).contains(&Group::Stream) && options.level.contains(&Level::Interval) {
            self.stream()?;
        }
        Ok(())
    }

    /// Measures the rate at which the disk makes raw synced writes of the size of one small put. Records it beside the
    /// stores' test of sequential writes.
    fn probe(&mut self) -> Result<(), BenchError> {
        let dir = self.scratch.fresh("probe")?;
        let mut probe = Probe::create(&dir, PROBE_BYTES)?;
        let data = [7; KEY_BYTES + SMALL_VALUE_BYTES];
        let (before, cpu) = (Usage::read(MeasuredProcess::Own), usage::thread_cpu());
        let seconds = self.options.scale.min(1.0);
        let probed = probe.run(&data, Sync::Each, Duration::from_secs_f64(seconds))?;
        let operations = probed.times.count();
        let measure = Measure {
            operations,
            seconds: operations as f64 / probed.rate,
            thread_cpu: usage::thread_cpu().saturating_sub(cpu),
            longest: probed.times.max(),
            times: probed.times,
            apart: None,
            payload_bytes: operations * data.len() as u64,
            hits: None,
            cost: Cost { fsyncs: Some(operations), ..Usage::read(MeasuredProcess::Own).since(&before) },
        };
        let parameters = format!("{seconds} s × {} B", data.len());
        let line = self.results.record(workloads::SEQUENTIAL_WRITE, parameters, Level::Disk, PROBE, measure);
        self.progress.step(&line);
        Ok(())
    }

    fn stream(&mut self) -> Result<(), BenchError> {
        let (options, dir) = (self.options, self.scratch.fresh("stream")?);
        let batches = count_at(STREAM_BATCHES, options.scale);
        let run = || stream::run(&dir, batches, options.cache_mib << 20, options.seed);
        let round = self.clocks.around(run)?;
        self.scratch.fresh("stream")?;
        self.progress.step(&format!(
            "thalweg interval 1s: stream append (100 × 1 KB): {} MB/s, p50 {} µs, p99 {} µs",
            number(round.bytes_per_second / 1e6),
            number(round.quantiles.p50_us),
            number(round.quantiles.p99_us),
        ));
        self.streams.push(round);
        Ok(())
    }
}

type Run = fn(&mut Context<'_>) -> Result<(), BenchError>;

impl Group {
    /// Returns the function that runs this group of tests on one store. `None` for the stream test, which only runs on
    /// Thalweg's engine.
    fn run(self) -> Option<Run> {
        match self {
            Self::Small => Some(workloads::small),
            Self::Flushed => Some(workloads::flushed),
            Self::Mixed => Some(workloads::mixed),
            Self::Large => Some(workloads::large),
            Self::Compaction => Some(compaction::run),
            Self::Stream => None,
        }
    }
}

/// Returns the test groups to run at a durability level. Reads are the same at both levels, so the level `disk` repeats
/// only the writes.
fn groups(options: &EngineOptions, level: Level) -> Vec<Group> {
    if !options.only.is_empty() {
        return options.only.clone();
    }
    match (options.mode, level) {
        (Mode::Compaction, Level::Interval) => vec![Group::Compaction],
        (Mode::Compaction, Level::Disk) => vec![],
        (Mode::Quick, _) | (Mode::Full, Level::Disk) => vec![Group::Small, Group::Flushed, Group::Mixed],
        (Mode::Full, Level::Interval) => {
            vec![Group::Small, Group::Flushed, Group::Mixed, Group::Large, Group::Compaction, Group::Stream]
        }
    }
}

/// Returns the check that compares small durable puts with the raw disk probe, and the check that the probe's rounds
/// agree.
fn probe_checks(results: &Results, first: &str) -> Vec<Check> {
    let rows = || results.rows.iter().filter(|row| row.test == workloads::SEQUENTIAL_WRITE && row.level == Level::Disk);
    let Some(probe) = rows().find(|row| row.contender == PROBE) else { return Vec::new() };
    let steady = steadiness(PROBE, &probe.rates(), "/s");
    let own = rows().find(|row| row.contender == first).map(|own| {
        let of_probe = ratio(&own.rates(), &probe.rates());
        Check::at_least("puts of 100 B at disk, 1 thread: rate of the raw probe's", of_probe, 0.85, " ×")
    });
    steady.into_iter().chain(own).collect()
}

fn written_per_payload(round: &StreamRound) -> (f64, f64) {
    let Some(written) = round.cost.written_bytes else { return (f64::NAN, f64::NAN) };
    let payload = round.payload_bytes as f64;
    (written as f64 / payload, written.saturating_sub(round.zeroed_bytes) as f64 / payload)
}

fn stream_table(rounds: &[StreamRound]) -> Table {
    table! {
        "stream append, 1 writer, batches of 100 × 1 KB, durability interval 1s, backend lsm"; round in rounds;
        let (all, without_zeroes) = written_per_payload(round);
        "payload MB/s" => round.bytes_per_second / 1e6,
        "until synced MB/s" => round.synced_bytes_per_second / 1e6, "p50 µs" => round.quantiles.p50_us,
        "p99 µs" => round.quantiles.p99_us, "max µs" => round.quantiles.max_us,
        "payload MiB" => mebibytes(Some(round.payload_bytes)),
        "log B/payload B" => round.log_bytes as f64 / round.payload_bytes as f64, "written B/payload B" => all,
        "without prewritten zeroes" => without_zeroes, "zeroed MiB" => mebibytes(Some(round.zeroed_bytes)),
        "fsyncs" => round.cost.fsyncs, "CPU s" => round.cost.cpu_seconds,
        "peak RSS MiB" => mebibytes(round.cost.peak_rss_bytes),
    }
}

fn stream_checks(rounds: &[StreamRound]) -> Vec<Check> {
    let rate = median_of(rounds, |round| round.bytes_per_second / 1e6);
    let written = |figure: fn((f64, f64)) -> f64| median_of(rounds, |round| figure(written_per_payload(round)));
    let (all, without_zeroes) = (written(|(all, _)| all), written(|(_, without)| without));
    vec![
        Check::at_least("stream append: payload", rate, 1000.0, " MB/s"),
        Check::below("stream append: written ÷ payload, without prewritten zeroes", without_zeroes, 1.2, " ×"),
        Check::below("stream append: written ÷ payload, with them", all, 2.2, " ×"),
    ]
}

#[cfg(test)]
mod tests;
