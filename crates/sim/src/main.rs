//! The command `thalweg-sim`: runs simulations, repeats one, and shrinks one.
//!
//! Owns: arguments, progress and output. Exit codes: 0 without a violation, 1 with one, 2 for wrong arguments, 130 for
//! an interrupt before a violation was found.

#![allow(clippy::print_stdout, reason = "reports go to standard output")]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use thalweg_sim::{
    Plant, Report, Settings,
    backends::remove_tables,
    faults::{FaultKind, Overlap},
    report::{Gap, Installs, percentile},
    run,
    shrink::shrink,
};
use tokio::signal::unix::{SignalKind, signal};

/// Exit code of the program after an interrupt.
const INTERRUPTED: i32 = 130;
/// Time between two lines of progress if the output cannot show a progress bar.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// Simulates a cluster with faults, and checks what its clients are told
///
/// A simulation is a function of its seed and settings: the same arguments give the same course, byte for byte.
#[derive(Debug, Parser)]
#[command(name = "thalweg-sim", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs many simulations and reports the seeds with a violation
    Run {
        /// Number of seeds
        #[arg(long, value_name = "NUMBER", default_value_t = 100)]
        seeds: u64,
        /// First seed
        #[arg(long, value_name = "SEED", default_value_t = 1)]
        first: u64,
        /// Directory for a file with settings, violations and event log of each seed with a violation
        #[arg(long, value_name = "DIR", default_value = ".")]
        artifacts: PathBuf,
        /// Stop at the first seed with a violation
        #[arg(long)]
        stop_at_first: bool,
        #[command(flatten)]
        simulation: Simulation,
    },
    /// Repeats one simulation and prints its event log, one line an event
    Replay {
        /// Seed to repeat
        seed: u64,
        #[command(flatten)]
        simulation: Simulation,
    },
    /// Leaves out faults of a seed with a violation, as long as a violation remains
    Shrink {
        /// Seed to shrink
        seed: u64,
        #[command(flatten)]
        simulation: Simulation,
    },
}

#[derive(Debug, Args)]
struct Simulation {
    /// Number of nodes
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=9))]
    nodes: u64,
    /// Number of clients
    #[arg(long, value_name = "NUMBER", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1000))]
    clients: u64,
    /// Requests of all clients together per virtual second
    #[arg(long, value_name = "NUMBER", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,
    /// Number of further clients that follow changes: watches of keys and tails of the stream, in turn
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u64).range(0..=1000))]
    subscribers: u64,
    /// Virtual seconds in which faults happen
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(3..=100_000))]
    seconds: u64,
    /// Kinds of faults, by their names in the event log; all by default
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = parse_kind)]
    faults: Option<Vec<FaultKind>>,
    /// Let each fault begin only after the one before it has ended
    #[arg(long)]
    apart: bool,
    /// Let each fault hit the leader
    #[arg(long)]
    on_leader: bool,
    /// Numbers of faults that are left out, as `shrink` prints them
    #[arg(long, value_name = "NUMBER", value_delimiter = ',')]
    without: Vec<usize>,
    /// Deliberate bug in the nodes, which the simulation must find
    #[arg(long, value_name = "BUG")]
    plant: Option<Plant>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_kind(text: &str) -> Result<FaultKind, String> {
    let names = || FaultKind::ALL.map(FaultKind::name).join(", ");
    let found = FaultKind::ALL.into_iter().find(|kind| kind.name() == text);
    found.ok_or_else(|| format!("one of: {}", names()))
}

impl Simulation {
    fn settings(&self, seed: u64) -> Settings {
        Settings {
            seed,
            nodes: self.nodes,
            clients: self.clients,
            rate: self.rate,
            subscribers: self.subscribers,
            lasts: Duration::from_secs(self.seconds),
            kinds: self.faults.clone().unwrap_or_else(|| FaultKind::ALL.to_vec()),
            overlap: if self.apart { Overlap::Never } else { Overlap::Allowed },
            on_leader: self.on_leader,
            without: self.without.iter().copied().collect::<BTreeSet<_>>(),
            plant: self.plant,
        }
    }
}

fn main() -> ExitCode {
    let found = match Cli::parse().command {
        Command::Run { seeds, first, artifacts, stop_at_first, simulation } => {
            run_many(first..first.saturating_add(seeds), &artifacts, stop_at_first, &simulation)
        }
        Command::Replay { seed, simulation } => {
            let report = run(&simulation.settings(seed));
            print(&report, simulation.json);
            !report.violations.is_empty()
        }
        Command::Shrink { seed, simulation } => shrink_one(seed, &simulation),
    };
    remove_tables();
    ExitCode::from(u8::from(found))
}

/// Sums and extreme values over the results of all simulations of one call of the program.
struct Totals {
    begun: Instant,
    json: bool,
    simulations: u64,
    checked: usize,
    /// Smallest number of checked operations in a simulation.
    fewest_checked: Option<usize>,
    searched: usize,
    undecided: usize,
    unknown: usize,
    /// Number of changes and records that subscribers have received. `refused` counts refusals because history was
    /// gone.
    followed: usize,
    refused: usize,
    /// Number of times that a node stopped because of a failed fsync.
    failed_syncs: usize,
    elapsed: Duration,
    gaps: Vec<Gap>,
    installs: Installs,
    /// Seeds with a violation, each with its first violation.
    failed: Vec<(u64, String)>,
}

impl Totals {
    fn new(json: bool) -> Self {
        Self {
            begun: Instant::now(),
            json,
            simulations: 0,
            checked: 0,
            fewest_checked: None,
            searched: 0,
            undecided: 0,
            unknown: 0,
            followed: 0,
            refused: 0,
            failed_syncs: 0,
            elapsed: Duration::ZERO,
            gaps: Vec::new(),
            installs: Installs::default(),
            failed: Vec::new(),
        }
    }

    fn add(&mut self, report: &Report) {
        self.simulations += 1;
        self.checked += report.checked;
        self.fewest_checked = Some(self.fewest_checked.map_or(report.checked, |fewest| fewest.min(report.checked)));
        self.searched += report.searched;
        self.undecided += report.undecided;
        self.unknown += report.unknown;
        self.followed += report.followed;
        self.refused += report.refused;
        self.failed_syncs += report.failed_syncs();
        self.elapsed += report.elapsed;
        self.gaps.extend(&report.gaps);
        self.installs.add(report.installs());
        if let Some(violation) = report.violations.first() {
            self.failed.push((report.settings.seed, violation.clone()));
        }
    }
}

fn lock(totals: &Mutex<Totals>) -> MutexGuard<'_, Totals> {
    totals.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints the totals so far and ends the process when a signal requests its end.
fn print_when_interrupted(totals: Arc<Mutex<Totals>>) {
    let wait = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            Ok::<(), std::io::Error>(())
        })?;
        let totals = lock(&totals);
        eprintln!("interrupted: the results so far");
        print_totals(&totals);
        remove_tables();
        std::process::exit(if totals.failed.is_empty() { INTERRUPTED } else { 1 });
    };
    std::thread::spawn(move || {
        let waited: Result<(), std::io::Error> = wait();
        if let Err(error) = waited {
            eprintln!("an interrupt will print no results: {error}");
        }
    });
}

fn run_many(seeds: std::ops::Range<u64>, artifacts: &Path, stop_at_first: bool, simulation: &Simulation) -> bool {
    let bar = ProgressBar::new(seeds.end - seeds.start);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {eta} left").expect("a valid template");
    bar.set_style(style);
    let totals = Arc::new(Mutex::new(Totals::new(simulation.json)));
    print_when_interrupted(Arc::clone(&totals));
    let mut said = Instant::now();
    for seed in seeds {
        let report = run(&simulation.settings(seed));
        lock(&totals).add(&report);
        if !report.violations.is_empty() {
            bar.suspend(|| keep(&report, artifacts));
            if stop_at_first {
                break;
            }
        }
        bar.inc(1);
        if bar.is_hidden() && said.elapsed() > SAY_EVERY {
            let totals = lock(&totals);
            eprintln!("{} seeds, {} with a violation", totals.simulations, totals.failed.len());
            said = Instant::now();
        }
    }
    bar.finish_and_clear();
    let totals = lock(&totals);
    print_totals(&totals);
    !totals.failed.is_empty()
}

/// Writes a file with the settings, the violations and the event log of a simulation with a violation to the directory
/// `artifacts`.
fn keep(report: &Report, artifacts: &Path) {
    let path = artifacts.join(format!("thalweg-sim-{}.txt", report.settings.seed));
    let text = format!("{:#}\n\n{}", report.json(), report.story());
    match std::fs::create_dir_all(artifacts).and_then(|()| std::fs::write(&path, text)) {
        Ok(()) => eprintln!("{report}: see {}", path.display()),
        Err(error) => eprintln!("{report}; cannot write {}: {error}", path.display()),
    }
}

fn print_totals(totals: &Totals) {
    let (took, json) = (totals.begun.elapsed(), totals.json);
    let mut kinds: BTreeMap<FaultKind, Vec<Duration>> = BTreeMap::new();
    for gap in &totals.gaps {
        kinds.entry(gap.kind).or_default().push(gap.lasted);
    }
    let times_real = totals.elapsed.as_secs_f64() / took.as_secs_f64();
    let millis = |values: &mut [Duration], share| percentile(values, share).unwrap_or_default().as_millis();
    if json {
        let gaps: serde_json::Map<_, _> = kinds
            .iter_mut()
            .map(|(kind, values)| {
                let figures = serde_json::json!({
                    "count": values.len(),
                    "p50_ms": millis(values, 0.5),
                    "p99_ms": millis(values, 0.99),
                    "max_ms": millis(values, 1.0),
                });
                (kind.name().to_owned(), figures)
            })
            .collect();
        let text = serde_json::json!({
            "simulations": totals.simulations,
            "checked": totals.checked,
            "fewest_checked": totals.fewest_checked,
            "searched": totals.searched,
            "undecided": totals.undecided,
            "unknown": totals.unknown,
            "followed": totals.followed,
            "history_gone": totals.refused,
            "stops_after_failed_fsync": totals.failed_syncs,
            "virtual_seconds": totals.elapsed.as_secs_f64(),
            "times_real_time": times_real,
            "next_answer_after_fault": gaps,
            "installs": totals.installs.done,
            "installs_cut": totals.installs.cut,
            "installs_not_switched": totals.installs.not_switched,
            "failed": totals.failed,
        });
        return println!("{text:#}");
    }
    println!("{:<20} {:>6} {:>8} {:>8} {:>8}", "time to next ack", "faults", "p50 ms", "p99 ms", "max ms");
    for (kind, values) in &mut kinds {
        let (count, p50, p99, max) = (values.len(), millis(values, 0.5), millis(values, 0.99), millis(values, 1.0));
        println!("{:<20} {count:>6} {p50:>8} {p99:>8} {max:>8}", kind.name());
    }
    println!(
        "{} simulations, {} operations checked ({} or more in each), {} of them also without the committed entries ({} \
         undecided), {} writes without an answer, {:.0} virtual seconds, {times_real:.1} × real time",
        totals.simulations,
        totals.checked,
        totals.fewest_checked.unwrap_or(0),
        totals.searched,
        totals.undecided,
        totals.unknown,
        totals.elapsed.as_secs_f64()
    );
    let Installs { done, cut, not_switched } = totals.installs;
    println!("{done} snapshots installed, {cut} power cuts in or after an install, {not_switched} failed switches");
    println!(
        "{} changes and records received by subscribers, {} refusals because history was gone, {} stops after a failed \
         fsync",
        totals.followed, totals.refused, totals.failed_syncs
    );
    for (seed, violation) in &totals.failed {
        println!("seed {seed}: {violation}");
    }
    println!("{} seeds with a violation", totals.failed.len());
}

fn print(report: &Report, json: bool) {
    if json {
        return println!("{:#}", report.json());
    }
    print!("{}", report.story());
    println!("{report}");
    report.violations.iter().for_each(|violation| println!("violation: {violation}"));
}

fn shrink_one(seed: u64, simulation: &Simulation) -> bool {
    let bar = ProgressBar::new_spinner();
    let shrunk = shrink(&simulation.settings(seed), |left| {
        bar.set_message(format!("{left} faults remain"));
        bar.tick();
    });
    bar.finish_and_clear();
    let Some(report) = shrunk else {
        println!("seed {seed} has no violation");
        return false;
    };
    print(&report, simulation.json);
    if !simulation.json && !report.settings.without.is_empty() {
        let without: Vec<String> = report.settings.without.iter().map(usize::to_string).collect();
        println!("repeat it with: replay {seed} --without {} and the same options", without.join(","));
    }
    true
}
