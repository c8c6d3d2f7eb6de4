//! The command `thalweg-sim`: runs simulations, repeats one, and shrinks one.
//!
//! Owns: arguments, progress and output. Exit codes: 0 without a violation, 1 with one, 2 for wrong arguments or an
//! artifact that cannot be read, 130 for an interrupt before a violation was found.

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
    artifact::Artifact,
    backends::remove_tables,
    faults::{FaultKind, Overlap},
    report::{Gap, Installs, percentile},
    run,
    settings::{CLIENTS, NODES, RATE, SECONDS, SUBSCRIBERS},
    shrink::{shrink, shrink_report},
};
use tokio::signal::unix::{SignalKind, signal};

/// Exit code of the program if an artifact cannot be read; wrong arguments have the same.
const WRONG_ARGUMENTS: u8 = 2;
/// Exit code of the program after an interrupt.
const INTERRUPTED: i32 = 130;
/// Time between two lines of progress if the output cannot show a progress bar.
const SAY_EVERY: Duration = Duration::from_secs(60);
/// Number of lines of the event log that `run` prints for a seed with a violation.
const STORY_LINES: usize = 40;
/// Maximum number of runs in which `run` searches for fewer faults of one seed. The scripts of simulations with the
/// default length usually need fewer.
const SHRINK_RUNS: usize = 50;

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
    Run(ManySeeds),
    /// Repeats one simulation and prints its event log, one line an event
    Replay(OneSeed),
    /// Leaves out faults of a seed with a violation, as long as a violation remains
    Shrink(OneSeed),
}

#[derive(Debug, Args)]
struct ManySeeds {
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
    /// Number of seeds with a violation to shrink, the first ones, with at most 50 further runs each
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    shrink: u64,
    #[command(flatten)]
    simulation: Simulation,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct OneSeed {
    /// Seed of the simulation
    #[arg(required_unless_present = "artifact")]
    seed: Option<u64>,
    /// File of `run` with the seed and all options of the simulation
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "Simulation"])]
    artifact: Option<PathBuf>,
    #[command(flatten)]
    simulation: Simulation,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

// The group of these options has the name of the type: `--artifact` excludes it.
#[derive(Debug, Args)]
struct Simulation {
    /// Number of nodes
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u64).range(NODES))]
    nodes: u64,
    /// Number of clients
    #[arg(long, value_name = "NUMBER", default_value_t = 8, value_parser = clap::value_parser!(u64).range(CLIENTS))]
    clients: u64,
    /// Requests of all clients together per virtual second
    #[arg(long, value_name = "NUMBER", default_value_t = 200, value_parser = clap::value_parser!(u64).range(RATE))]
    rate: u64,
    /// Number of further clients that follow changes: watches of keys and tails of the stream, in turn
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u64).range(SUBSCRIBERS))]
    subscribers: u64,
    /// Virtual seconds in which faults happen
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(SECONDS))]
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
}

fn parse_kind(text: &str) -> Result<FaultKind, String> {
    let names = || FaultKind::ALL.map(FaultKind::name).join(", ");
    FaultKind::named(text).ok_or_else(|| format!("one of: {}", names()))
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

impl OneSeed {
    /// Returns the settings of the simulation, and the artifact if it has given them. Warns of an artifact of another
    /// version of the program.
    fn settings(&self) -> Result<(Settings, Option<Artifact>), String> {
        let Some(path) = &self.artifact else {
            let seed = self.seed.ok_or("a seed or an artifact is needed")?;
            return Ok((self.simulation.settings(seed), None));
        };
        let artifact = Artifact::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        if let Some(warning) = artifact.warning() {
            eprintln!("warning: {warning}");
        }
        Ok((artifact.settings.clone(), Some(artifact)))
    }
}

fn main() -> ExitCode {
    let found = match Cli::parse().command {
        Command::Run(many) => Ok(run_many(&many)),
        Command::Replay(one) => replay_one(&one),
        Command::Shrink(one) => shrink_one(&one),
    };
    remove_tables();
    match found {
        Ok(found) => ExitCode::from(u8::from(found)),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(WRONG_ARGUMENTS)
        }
    }
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

fn run_many(many: &ManySeeds) -> bool {
    let seeds = many.first..many.first.saturating_add(many.seeds);
    let bar = ProgressBar::new(seeds.end - seeds.start);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {eta} left").expect("a valid template");
    bar.set_style(style);
    let totals = Arc::new(Mutex::new(Totals::new(many.json)));
    print_when_interrupted(Arc::clone(&totals));
    let (mut said, mut to_shrink) = (Instant::now(), many.shrink);
    for seed in seeds {
        let report = run(&many.simulation.settings(seed));
        lock(&totals).add(&report);
        if !report.violations.is_empty() {
            bar.suspend(|| {
                let path = keep(&report, &many.artifacts);
                eprint!("{}", report.ending(STORY_LINES));
                if to_shrink > 0 {
                    shrink_failed(report, &path);
                }
            });
            to_shrink = to_shrink.saturating_sub(1);
            if many.stop_at_first {
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

/// Writes the artifact of a simulation with a violation to the directory `artifacts`. Returns the path of the file.
fn keep(report: &Report, artifacts: &Path) -> PathBuf {
    let path = artifacts.join(format!("thalweg-sim-{}.txt", report.settings.seed));
    match std::fs::create_dir_all(artifacts).and_then(|()| std::fs::write(&path, Artifact::text(report))) {
        Ok(()) => eprintln!("{report}: see {}", path.display()),
        Err(error) => eprintln!("{report}; cannot write {}: {error}", path.display()),
    }
    path
}

/// Searches for fewer faults with which the seed of the report still has a violation, and prints the command that
/// repeats the run with the fewest.
fn shrink_failed(report: Report, artifact: &Path) {
    let (seed, all) = (report.settings.seed, report.settings.faults_left().len());
    eprintln!("shrinking seed {seed}, with at most {SHRINK_RUNS} further runs");
    let bar = ProgressBar::new_spinner();
    let smaller = shrink_report(report, SHRINK_RUNS, |left| show_faults(&bar, left));
    bar.finish_and_clear();
    let (report, runs) = (&smaller.report, smaller.runs);
    let left = report.settings.faults_left().len();
    eprintln!("with {left} of its {all} faults, seed {seed} has a violation ({runs} further runs)");
    report.violations.iter().take(1).for_each(|violation| eprintln!("violation: {violation}"));
    if smaller.is_cut {
        let path = artifact.display();
        eprintln!("the search has ended early: `thalweg-sim shrink --artifact {path}` has no bound on its runs");
    }
    eprintln!("repeat it with: {}", report.settings.replay_command());
}

fn show_faults(bar: &ProgressBar, left: usize) {
    bar.set_message(format!("{left} faults remain"));
    bar.tick();
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

fn replay_one(one: &OneSeed) -> Result<bool, String> {
    let (settings, artifact) = one.settings()?;
    let report = run(&settings);
    print(&report, one.json);
    if artifact.is_some_and(|artifact| artifact.fingerprint != report.fingerprint) {
        eprintln!("warning: this is another course than that of the artifact");
    }
    Ok(!report.violations.is_empty())
}

fn shrink_one(one: &OneSeed) -> Result<bool, String> {
    let (settings, _) = one.settings()?;
    let bar = ProgressBar::new_spinner();
    let shrunk = shrink(&settings, |left| show_faults(&bar, left));
    bar.finish_and_clear();
    let Some(report) = shrunk else {
        println!("seed {} has no violation", settings.seed);
        return Ok(false);
    };
    print(&report, one.json);
    if !one.json {
        println!("repeat it with: {}", report.settings.replay_command());
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_seed(arguments: &[&str]) -> Result<OneSeed, String> {
        let cli = Cli::try_parse_from([&["thalweg-sim"][..], arguments].concat()).map_err(|error| error.to_string())?;
        match cli.command {
            Command::Replay(one) | Command::Shrink(one) => Ok(one),
            Command::Run(_) => Err("it is `run`".to_owned()),
        }
    }

    #[test]
    fn replay_arguments_give_the_same_settings() {
        let unusual = Settings {
            seed: 77,
            nodes: 5,
            clients: 3,
            rate: 1_234,
            subscribers: 0,
            lasts: Duration::from_secs(31),
            kinds: vec![FaultKind::SlowThenPowerLoss, FaultKind::Kill],
            overlap: Overlap::Never,
            on_leader: true,
            without: BTreeSet::from([0, 2]),
            plant: Some(Plant::OptionInApply),
        };
        for settings in [Settings::default(), unusual] {
            let arguments = settings.replay_arguments();
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let one = one_seed(&arguments).expect("valid arguments");
            assert_eq!(one.settings().expect("settings").0, settings, "{arguments:?}");
        }
    }

    #[test]
    fn replay_commands_quote_names_of_faults() {
        let kinds = vec![FaultKind::SlowThenPowerLoss, FaultKind::Kill];
        let settings = Settings { seed: 4, kinds, without: BTreeSet::from([1]), ..Settings::default() };
        let expected = "thalweg-sim replay 4 --faults \"slow then power loss,kill\" --without 1";
        assert_eq!(settings.replay_command(), expected);
        assert_eq!(Settings::default().replay_command(), "thalweg-sim replay 1");
    }

    #[test]
    fn an_artifact_replaces_the_seed_and_all_options() {
        for command in ["replay", "shrink"] {
            assert!(one_seed(&[command, "--artifact", "file"]).is_ok());
            assert!(one_seed(&[command, "--artifact", "file", "--json"]).is_ok());
            let error = one_seed(&[command]).expect_err("no seed");
            assert!(error.contains("required"), "{error}");
            for further in [&["7"][..], &["--nodes", "3"], &["--faults", "kill"], &["--apart"], &["--without", "1"]] {
                let error =
                    one_seed(&[&[command, "--artifact", "file"][..], further].concat()).expect_err("a conflict");
                assert!(error.contains("cannot be used with"), "{error}");
            }
        }
    }
}
