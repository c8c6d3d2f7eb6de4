//! `thalweg-row-p`: the workloads of row P (a published benchmark of another system) as an outsider would write them:
//! only the public API of each store, every operation timed, each store and workload in a fresh process.
//!
//! Owns: the order of the processes (rounds, stores in turn), and the command line. Does not own: the stores
//! (`subjects`), what a process does (`workloads`), medians and ratios (`report`).
//!
//! The program starts itself with the hidden command `child` for each process. A child prints its figures as JSON, and
//! ends when its parent does.

mod keys;
mod report;
mod subjects;
#[path = "../../src/ticker.rs"]
mod ticker;
mod timing;
mod workloads;

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use clap::{Args, Parser, Subcommand};

use crate::{
    report::Report,
    subjects::SubjectKind,
    timing::Measured,
    workloads::{Counts, Workload},
};

/// One allocator for all stores, the one that the `thalweg` command uses.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// An error with what was being done. Nothing here recovers from one.
pub type Failure = Box<dyn std::error::Error>;

/// Measures row P's workloads on Thalweg, fjall and redb, and prints medians and ratios.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Option<Run>,
    #[command(flatten)]
    options: Options,
}

#[derive(Clone, Debug, Args)]
struct Options {
    /// A short run: a tenth of the operations, two rounds, a rest of a second.
    #[arg(long)]
    quick: bool,
    /// Number of rounds; medians are printed [default: 3, or 2 with --quick].
    #[arg(long)]
    rounds: Option<u32>,
    /// Directory below which the stores are created. This decides which disk is measured.
    #[arg(long, default_value = "row-p-data")]
    dir: PathBuf,
    /// Stores to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = SubjectKind::STORES)]
    subjects: Vec<SubjectKind>,
    /// Workloads to run.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Workload::ALL)]
    workloads: Vec<Workload>,
    /// Seconds between the large load and the second look at its files [default: 60, or 1 with --quick].
    #[arg(long)]
    rest: Option<u64>,
    /// JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, Subcommand)]
enum Run {
    /// Measures one store on one workload in this process; used by the program itself.
    #[command(hide = true)]
    Child {
        #[arg(long, value_enum)]
        subject: SubjectKind,
        #[arg(long, value_enum)]
        workload: Workload,
        #[arg(long)]
        dir: PathBuf,
        #[arg(long)]
        seed: u64,
        #[arg(long)]
        quick: bool,
        #[arg(long)]
        rest: u64,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Some(Run::Child { subject, workload, dir, seed, quick, rest }) => {
            end_with_parent();
            workloads::run(workload, subject, &dir, &Counts::new(quick, rest), seed)
                .and_then(|figures| Ok(serde_json::to_string(&figures)?))
        }
        None => measure(&cli.options).map(|report| if cli.options.json { report.to_json() } else { report.to_text() }),
    };
    match result {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("thalweg-row-p: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all rounds. Within a round the stores take turns workload by workload, and each round begins with another store.
fn measure(options: &Options) -> Result<Report, Failure> {
    let rounds = options.rounds.unwrap_or(if options.quick { 2 } else { 3 });
    let rest = options.rest.unwrap_or(if options.quick { 1 } else { 60 });
    let mut report = Report::new(&options.subjects, rounds, options.quick);
    for round in 0..rounds {
        for &workload in &options.workloads {
            let mut subjects = workload.subjects(&options.subjects);
            let turn = round as usize % subjects.len().max(1);
            subjects.rotate_left(turn);
            for subject in subjects {
                eprintln!("round {} of {rounds}: {workload}, {subject}", round + 1);
                let figures = in_a_process(options, subject, workload, u64::from(round), rest)?;
                report.add(subject, &figures);
            }
        }
        // A run takes half an hour. If it is interrupted, the finished rounds are not lost.
        if round + 1 < rounds {
            eprintln!("\nafter {} of {rounds} rounds:\n{}", round + 1, report.to_text());
        }
    }
    // Fails if the directory has other contents, which are not ours to remove.
    let _ = std::fs::remove_dir(&options.dir);
    Ok(report)
}

fn in_a_process(
    options: &Options,
    subject: SubjectKind,
    workload: Workload,
    seed: u64,
    rest: u64,
) -> Result<Vec<Measured>, Failure> {
    let scratch = Scratch::create(&options.dir.join(format!("{subject}-{}", std::process::id())))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("child").args(["--subject", &subject.to_string(), "--workload", &workload.to_string()]);
    command.arg("--dir").arg(&scratch.0).args(["--seed", &seed.to_string(), "--rest", &rest.to_string()]);
    if options.quick {
        command.arg("--quick");
    }
    // The child ends when this end of its standard input is closed, however this process ends.
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut child = Running(child);
    let mut printed = String::new();
    if let Some(stdout) = &mut child.0.stdout {
        stdout.read_to_string(&mut printed)?;
    }
    let status = child.0.wait()?;
    if !status.success() {
        return Err(format!("{workload} on {subject} ended with {status}").into());
    }
    Ok(serde_json::from_str(&printed)?)
}

/// A child, killed when dropped.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail if the child has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An empty directory, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn create(path: &Path) -> Result<Self, Failure> {
        std::fs::create_dir_all(path).map_err(|error| format!("creating {}: {error}", path.display()))?;
        if std::fs::read_dir(path)?.next().is_some() {
            return Err(format!("{} is not empty", path.display()).into());
        }
        Ok(Self(path.to_owned()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("removing {}: {error}", self.0.display());
        }
    }
}

/// Ends this process as soon as its standard input is closed.
fn end_with_parent() {
    std::thread::spawn(|| {
        let mut nothing = [0];
        while std::io::stdin().read(&mut nothing).is_ok_and(|count| count > 0) {}
        std::process::exit(1);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_store_does_every_workload_and_finds_what_it_wrote() {
        let counts = Counts { small: 300, ordered: 700, large: 900, batches: 3, durable: 5, queries: 20, rest: 0 };
        let mut report = Report::new(&SubjectKind::STORES, 1, true);
        for workload in Workload::ALL {
            for subject in workload.subjects(&SubjectKind::STORES) {
                let dir = tempfile::tempdir().unwrap();
                report.add(subject, &workloads::run(workload, subject, dir.path(), &counts, 1).unwrap());
            }
        }
        let text = report.to_text();
        for part in ["put in order", "× fjall", "× redb", "raw probe", "files after a rest", "disk", "interval"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(serde_json::from_str::<serde_json::Value>(&report.to_json()).unwrap()["rows"].is_array());
    }
}
