//! The snapshot suite: full snapshots of a filled database while others write, and what the writers notice.
//!
//! Setup fills an embedded engine and waits for its compactions. A search then finds the knee: the highest rate, on a
//! schedule, at which the writers meet an objective, and go on meeting it. At half of that they write first
//! undisturbed and then beside a snapshot, in turns. A snapshot that went to a file is read again and checked, with
//! nobody writing, or the figures are not given.

mod content;
mod take;
mod tasks;
mod writers;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use thalweg_engine::{BackendKind, Database, Options, snapshot::Compression};
use thalweg_types::Durability;

use self::{
    content::Content,
    take::{Taken, take},
    writers::{Writers, Written},
};
pub use self::{take::Target, writers::Drive};
use crate::{
    BenchError, Progress, Report, Scratch,
    backends::backend,
    data::KEY_BYTES,
    engine::settle,
    load::search::{Bounds, Objective, Trial, find_knee, parse_duration},
    report::{Cell, Check, Table, number},
    stats::Summary,
    usage::{Usage, Whose},
};

const NAME: &str = "thalweg";
/// What a snapshot beside writers should do, in bytes of payload a second.
const WANTED_RATE: f64 = 300e6;
/// How much longer the writers' 99th percentile may be beside a snapshot.
const WANTED_TIMES: f64 = 2.0;
/// Fewer puts say nothing about a 99th percentile.
const FEWEST_PUTS: u64 = 1000;
/// Writers that get less of their schedule than this are past what they can do: their times mean nothing.
const LEAST_OF_RATE: f64 = 0.95;
/// The search ends when it knows the knee up to this share of it.
const PRECISION: f64 = 0.05;
/// A rate meets the objective if so many of one less than twice as many runs do: the disks of virtual machines stop
/// for 20 to 30 ms now and then, whatever is asked of them, and one stop decides a run's 99th percentile.
const MAJORITY: usize = 2;
/// A trial is given up when a put takes longer than this and than 20 times what the objective allows.
const LEAST_PATIENCE: Duration = Duration::from_millis(500);

/// Options of the snapshot suite.
#[derive(Clone, Debug, clap::Args)]
pub struct SnapshotOptions {
    /// Entries that the database holds.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub entries: u64,
    /// Bytes of each value.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub value_size: u32,
    /// Percent of each value that compresses 8 to 1; the rest is random bytes.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub compressible: u32,
    /// Which backend holds the state.
    #[arg(long, default_value = "lsm", value_parser = backend)]
    pub backend: BackendKind,
    /// How the snapshot is compressed: none, lz4 or zstd.
    #[arg(long, default_value = "zstd", value_parser = compression)]
    pub compress: Compression,
    /// Where the snapshot goes.
    #[arg(long, value_enum, default_value_t)]
    pub to: Target,
    /// How many write meanwhile, each one put at a time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub writers: u32,
    /// What they are.
    #[arg(long, value_enum, default_value_t)]
    pub drive: Drive,
    /// What the writers must meet at the knee.
    #[arg(long, default_value = "p99<5ms")]
    pub objective: Objective,
    /// Puts a second while a snapshot is taken, instead of half of the knee, which is not searched then.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Durability of their puts.
    #[arg(long, default_value_t = Durability::Disk)]
    pub durability: Durability,
    /// How long the writers write without a snapshot, in each round and in each trial of the search.
    #[arg(long, default_value = "3s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Rounds, each without and then with a snapshot; medians are reported.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Directory below which database and snapshots are made; decides which disk is measured.
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Feeds keys and values.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

fn compression(text: &str) -> Result<Compression, String> {
    let names = Compression::ALL.map(Compression::name).join(", ");
    Compression::from_name(text).ok_or_else(|| format!("one of {names}"))
}

/// Runs the suite.
pub fn run(options: &SnapshotOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    if options.durability == Durability::None {
        let message = "puts whose outcome nobody waits for have no response time: at least os".to_owned();
        return Err(BenchError::Option { option: "--durability", message });
    }
    let (begun, before) = (Instant::now(), Usage::read(Whose::Own));
    let scratch = Scratch::below(options.dir.as_deref())?;
    let mut report = Report::begin("snapshot", scratch.path());
    conditions(options, &mut report);
    let measured = measure(options, &scratch, progress)?;
    report.condition("rate", measured.load.text(options));
    measured.report(&mut report);
    report.notes.push("response times count from the scheduled moment".to_owned());
    report.notes.push(match options.to {
        Target::File => "each snapshot's time includes syncing its file; each was read again and checked".to_owned(),
        Target::Null => "the chunks were dropped: nothing was written, and nothing was read again".to_owned(),
    });
    report.cost = Usage::read(Whose::Own).since(&before);
    report.seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}

fn conditions(options: &SnapshotOptions, report: &mut Report) {
    report.condition("backend", options.backend.name());
    report.condition("durability", options.durability.name());
    let drive = match options.drive {
        Drive::Tasks => "tasks that share a thread",
        Drive::Threads => "a thread each",
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
    let place = match options.to {
        Target::File => "a file on the same disk",
        Target::Null => "nothing",
    };
    report.condition("snapshot", format!("full, into {place}, compression {}", options.compress.name()));
    report.condition("rounds", format!("{}, without and with a snapshot in turn", options.rounds));
}

/// All rounds.
struct Measured {
    /// Bytes of all keys and values.
    payload: f64,
    load: Load,
    rounds: Vec<Round>,
}

/// How fast the writers go.
struct Load {
    /// Puts a second while a snapshot is taken, and without.
    rate: f64,
    /// Highest rate that met the objective; `None` if the rate was given.
    knee: Option<f64>,
    trials: Vec<(f64, Written, Trial)>,
}

impl Load {
    fn text(&self, options: &SnapshotOptions) -> String {
        let rate = number(self.rate);
        match self.knee {
            None => format!("{rate} puts/s, as given"),
            Some(knee) => format!("{rate} puts/s, half of the knee ({} with {})", number(knee), options.objective),
        }
    }
}

/// One round: the writers without, the snapshot without, and both.
struct Round {
    undisturbed: Written,
    alone: Taken,
    beside: Written,
    taken: Taken,
}

fn measure(options: &SnapshotOptions, scratch: &Scratch, progress: &mut dyn Progress) -> Result<Measured, BenchError> {
    let (store, files) = (scratch.fresh("store")?, scratch.fresh("snapshots")?);
    let engine = Options { backend: Some(options.backend), durability: Durability::Os, ..Options::default() };
    let database = Database::open(&store, engine).map_err(BenchError::subject(NAME, "opening"))?;
    let keyspace = database.keyspace("bench").map_err(BenchError::subject(NAME, "creating a keyspace"))?;
    let content = Content {
        entries: options.entries,
        value_bytes: options.value_size as usize,
        compressible: options.compressible as usize,
    };
    content.fill(&database, &keyspace)?;
    database.flush().map_err(BenchError::subject(NAME, "flushing"))?;
    settle(&database)?;
    progress.step(&format!("filled with {} MB", number(content.bytes() as f64 / 1e6)));
    let keyspace = keyspace.with_durability(options.durability);
    let asynchronous = database.to_async();
    let mut phases = 0;
    let mut writers = || {
        phases += 1;
        let seed = options.seed.wrapping_add(1 << 32).wrapping_mul(phases << 16);
        let (database, drive, count) = (&asynchronous, options.drive, options.writers);
        Writers { database, keyspace: &keyspace, content: &content, level: options.durability, drive, count, seed }
    };
    let load = match options.rate {
        Some(rate) => Load { rate, knee: None, trials: Vec::new() },
        None => search(options, &mut writers, progress)?,
    };
    let mut rounds = Vec::new();
    for number in 1..=options.rounds {
        settle(&database)?;
        let alone = checked(options, &content, &files, || take_one(&database, options, &files))?;
        settle(&database)?;
        // As long as a snapshot takes: what happens once in a while shall have the same chance to happen.
        let without = options.duration.max(Duration::from_secs_f64(alone.seconds));
        let undisturbed = writers().open(load.rate, without, None)?;
        settle(&database)?;
        let mut beside = None;
        let taken = checked(options, &content, &files, || {
            let (written, taken) = writers().open_beside(load.rate, || take_one(&database, options, &files))?;
            beside = Some(written);
            Ok(taken)
        })?;
        let round = Round { undisturbed, alone, beside: beside.unwrap_or_default(), taken };
        progress.step(&round.line(number, content.bytes() as f64));
        rounds.push(round);
    }
    database.close().map_err(BenchError::subject(NAME, "closing"))?;
    Ok(Measured { payload: content.bytes() as f64, load, rounds })
}

/// Searches the knee, from a small share of what a closed loop gets.
fn search<'a>(
    options: &SnapshotOptions,
    writers: &mut impl FnMut() -> Writers<'a>,
    progress: &mut dyn Progress,
) -> Result<Load, BenchError> {
    let most = writers().closed(options.duration)?.rate();
    if most.is_nan() || most <= 0.0 {
        let message = "no put was answered in that time: make it longer".to_owned();
        return Err(BenchError::Option { option: "--duration", message });
    }
    progress.step(&format!("closed loop: {} puts/s", number(most)));
    let bounds = Bounds { start: most / 4.0, max: most * 4.0, precision: PRECISION, repeats: 1 };
    let mut trials = Vec::new();
    let knee = find_knee(&bounds, |rate| {
        let mut outcomes = [0, 0];
        while outcomes.iter().all(|count| *count < MAJORITY) {
            let written = writers().open(rate, options.duration, Some(patience(options)))?;
            let trial = trial_of(&written, rate, options.objective);
            outcomes[usize::from(trial == Trial::Pass)] += 1;
            let p99 = written.times.quantiles().p99_us;
            progress.step(&format!("{} puts/s: p99 {} µs, {trial:?}", number(rate), number(p99)));
            trials.push((rate, written, trial));
        }
        Ok::<_, BenchError>(if outcomes[1] == MAJORITY { Trial::Pass } else { Trial::Fail })
    })?;
    let Some(knee) = knee.rate else {
        let message = format!("no rate meets {}", options.objective);
        return Err(BenchError::Option { option: "--objective", message });
    };
    Ok(Load { rate: knee / 2.0, knee: Some(knee), trials })
}

fn patience(options: &SnapshotOptions) -> Duration {
    (options.objective.bound * 20).max(LEAST_PATIENCE)
}

fn trial_of(written: &Written, rate: f64, objective: Objective) -> Trial {
    let kept_up = !written.gave_up && written.rate() >= LEAST_OF_RATE * rate;
    if kept_up && objective.is_met(&written.times) { Trial::Pass } else { Trial::Fail }
}

fn take_one(database: &Database, options: &SnapshotOptions, files: &Path) -> Result<Taken, BenchError> {
    take(database, options.compress, options.to, &files.join("snapshot"))
}

/// What `taking` took, once it is known to hold everything.
fn checked(
    options: &SnapshotOptions,
    content: &Content,
    files: &Path,
    taking: impl FnOnce() -> Result<Taken, BenchError>,
) -> Result<Taken, BenchError> {
    let taken = taking()?;
    let totals = taken.totals;
    if totals.rows < content.entries || totals.row_bytes + totals.carried_bytes < content.bytes() {
        let message = format!("{totals:?} of {content:?}");
        return Err(BenchError::WrongData { subject: NAME.to_owned(), doing: "taking a snapshot", message });
    }
    if options.to == Target::File {
        take::check(&taken, &files.join("snapshot"))?;
    }
    Ok(taken)
}

impl Round {
    fn line(&self, number_of: u32, payload: f64) -> String {
        format!(
            "round {number_of}: {} MB/s, {} beside writers; their p99 {} µs, {} beside a snapshot",
            number(payload / self.alone.seconds / 1e6),
            number(payload / self.taken.seconds / 1e6),
            number(self.undisturbed.times.quantiles().p99_us),
            number(self.beside.times.quantiles().p99_us),
        )
    }
}

impl Measured {
    fn report(&self, report: &mut Report) {
        report.tables.push(self.snapshots());
        report.tables.push(self.writers());
        if !self.load.trials.is_empty() {
            report.tables.push(self.load.table());
        }
        let rates: Vec<f64> = self.rounds.iter().map(|round| self.payload / round.taken.seconds).collect();
        let rate = Summary::of(&rates).median / 1e6;
        report.checks.push(Check::at_least("payload in a snapshot beside writers", rate, WANTED_RATE / 1e6, " MB/s"));
        // Of the medians, not the median of the rounds' ratios: a stop of the disk hits one side of a round.
        let p99 = |of: fn(&Round) -> &Written| {
            let rounds: Vec<f64> = self.rounds.iter().map(|round| self.p99(of(round))).collect();
            if rounds.iter().any(|p99| p99.is_nan()) { f64::NAN } else { Summary::of(&rounds).median }
        };
        let times = p99(|round| &round.beside) / p99(|round| &round.undisturbed);
        report.checks.push(Check::below(
            "median of the writers' p99 beside a snapshot, of without",
            times,
            WANTED_TIMES,
            " ×",
        ));
    }

    /// NaN if the phase says nothing about it.
    fn p99(&self, written: &Written) -> f64 {
        if written.times.count() < FEWEST_PUTS || written.rate() < LEAST_OF_RATE * self.load.rate {
            return f64::NAN;
        }
        written.times.quantiles().p99_us
    }

    fn snapshots(&self) -> Table {
        let mut table = Table::new(
            "snapshots",
            &["round", "writers", "payload MB/s", "written MB/s", "written B/payload B", "seconds", "CPU s", "rows"],
        );
        for (round, number) in self.rounds.iter().zip(1_u64..) {
            for (writers, taken) in [("none", &round.alone), ("on schedule", &round.taken)] {
                table.row(vec![
                    number.into(),
                    writers.into(),
                    (self.payload / taken.seconds / 1e6).into(),
                    (taken.bytes as f64 / taken.seconds / 1e6).into(),
                    (taken.bytes as f64 / self.payload).into(),
                    taken.seconds.into(),
                    taken.cpu_seconds.into(),
                    taken.totals.rows.into(),
                ]);
            }
        }
        table
    }

    fn writers(&self) -> Table {
        let mut table = Table::new(
            "writers, from the scheduled moment",
            &["round", "snapshot", "puts/s", "puts", "p50 µs", "p99 µs", "p99.9 µs", "max µs", "p99 of without"],
        );
        for (round, number) in self.rounds.iter().zip(1_u64..) {
            let times = round.beside.times.quantiles().p99_us / round.undisturbed.times.quantiles().p99_us;
            let rows = [("none", &round.undisturbed, Cell::Missing(())), ("taken", &round.beside, times.into())];
            for (snapshot, written, times) in rows {
                let quantiles = written.times.quantiles();
                table.row(vec![
                    number.into(),
                    snapshot.into(),
                    written.rate().into(),
                    written.times.count().into(),
                    quantiles.p50_us.into(),
                    quantiles.p99_us.into(),
                    quantiles.p999_us.into(),
                    quantiles.max_us.into(),
                    times,
                ]);
            }
        }
        table
    }
}

impl Load {
    fn table(&self) -> Table {
        let columns = &["offered/s", "answered/s", "p50 µs", "p99 µs", "p99.9 µs", "max µs", "outcome"];
        let mut table = Table::new("the knee: climb, bisect, repeat; two runs of three decide", columns);
        for (rate, written, trial) in &self.trials {
            let quantiles = written.times.quantiles();
            table.row(vec![
                (*rate).into(),
                written.rate().into(),
                quantiles.p50_us.into(),
                quantiles.p99_us.into(),
                quantiles.p999_us.into(),
                quantiles.max_us.into(),
                if *trial == Trial::Pass { "met" } else { "missed" }.to_owned().into(),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quiet;

    fn small() -> SnapshotOptions {
        SnapshotOptions {
            entries: 2000,
            value_size: 1024,
            compressible: 50,
            backend: BackendKind::Lsm,
            compress: Compression::Zstd,
            to: Target::File,
            writers: 2,
            drive: Drive::Tasks,
            objective: "p99<5s".parse().unwrap(),
            rate: None,
            durability: Durability::Os,
            duration: Duration::from_millis(50),
            rounds: 2,
            dir: None,
            seed: 1,
        }
    }

    fn given() -> SnapshotOptions {
        SnapshotOptions { rate: Some(2000.0), drive: Drive::Threads, ..small() }
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
        assert_eq!((report.tables[0].rows.len(), report.tables[1].rows.len(), report.checks.len()), (4, 4, 2));
        assert!(report.tables[2].rows.len() > MAJORITY);
        for row in 0..4 {
            assert!(cell(&report, 0, row, "rows") >= 2000.0);
            let size = cell(&report, 0, row, "written B/payload B");
            assert!((0.5..0.8).contains(&size), "half of each value compresses: {size}");
            assert!(cell(&report, 1, row, "puts") > 0.0 || row % 2 == 1);
        }
    }

    #[test]
    fn without_compression_it_is_as_large_as_what_it_holds() {
        let plain = SnapshotOptions { compress: Compression::None, to: Target::Null, rounds: 1, ..given() };
        let report = run(&plain, &mut Quiet).unwrap();
        assert_eq!(report.tables.len(), 2, "nothing was searched");
        assert!((1.0..1.2).contains(&cell(&report, 0, 0, "written B/payload B")));
    }

    #[test]
    fn few_puts_or_a_missed_schedule_say_nothing_about_a_99th_percentile() {
        let load = Load { rate: 1000.0, knee: None, trials: Vec::new() };
        let measured = Measured { payload: 1.0, load, rounds: Vec::new() };
        let mut written = Written { seconds: 1.0, ..Written::default() };
        (1..FEWEST_PUTS).for_each(|_| written.times.record_nanos(5000));
        assert!(measured.p99(&written).is_nan());
        written.times.record_nanos(5000);
        assert!((measured.p99(&written) - 5.0).abs() < 0.1);
        written.seconds = 1.2;
        assert!(measured.p99(&written).is_nan());
    }

    #[test]
    fn a_rate_passes_if_the_writers_keep_up_and_meet_the_objective() {
        let objective = "p99<5ms".parse().unwrap();
        let mut written = Written { seconds: 1.0, ..Written::default() };
        (0..1000).for_each(|_| written.times.record_nanos(4_000_000));
        assert_eq!(trial_of(&written, 1000.0, objective), Trial::Pass);
        assert_eq!(trial_of(&written, 1100.0, objective), Trial::Fail);
        assert_eq!(trial_of(&Written { gave_up: true, ..written.clone() }, 1000.0, objective), Trial::Fail);
        (0..20).for_each(|_| written.times.record_nanos(6_000_000));
        assert_eq!(trial_of(&written, 1000.0, objective), Trial::Fail);
    }

    #[test]
    fn a_closed_loop_without_an_answer_is_an_error() {
        let at_once = SnapshotOptions { entries: 1, duration: Duration::ZERO, ..small() };
        assert!(matches!(run(&at_once, &mut Quiet), Err(BenchError::Option { option: "--duration", .. })));
    }

    #[test]
    fn an_objective_that_nothing_meets_is_an_error() {
        let objective = "max<1us".parse().unwrap();
        let never = SnapshotOptions { objective, duration: Duration::from_millis(5), ..small() };
        assert!(matches!(run(&never, &mut Quiet), Err(BenchError::Option { option: "--objective", .. })));
    }

    #[test]
    fn puts_without_an_answer_are_refused() {
        let unknown = SnapshotOptions { durability: Durability::None, ..small() };
        assert!(matches!(run(&unknown, &mut Quiet), Err(BenchError::Option { .. })));
    }
}
