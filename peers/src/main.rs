//! `thalweg-peers`: the engine suite of `thalweg bench`, with the same code and in the same process,
//! beside other embedded stores.
//!
//! Owns: the adapters and which ratios must hold. Not part of the main workspace, so that a normal
//! build never needs these dependencies.

mod fjall_store;
mod redb_store;
mod targets;
mod ticker;

use std::process::ExitCode;

use clap::Parser;
use thalweg_bench::{
    BenchError, Progress, Report, Stderr,
    backends::{self, BackendsOptions},
    engine::{self, Contender, EngineOptions, Mode, Thalweg},
    report::Verdict,
};

/// One allocator for all, the one that the `thalweg` command uses.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A store to be compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Peer {
    /// fjall, the store above lsm-tree.
    Fjall,
    /// redb, a copy-on-write B-tree.
    Redb,
}

/// Runs the engine suite for Thalweg and its peers in turn, and prints the ratios.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    options: EngineOptions,
    /// Which part of the suite; another name for --mode.
    #[arg(long, value_enum)]
    suite: Option<Mode>,
    /// Whom to compare with.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Peer::Fjall, Peer::Redb])]
    peers: Vec<Peer>,
    /// The backends suite instead: Thalweg's backends with fjall beside them, synced per put.
    #[arg(long)]
    backends: bool,
    /// With --backends: only these groups.
    #[arg(long, value_delimiter = ',', value_name = "GROUPS", value_parser = backends::group, requires = "backends")]
    groups: Vec<&'static str>,
    /// With --backends: samples of each cell.
    #[arg(long, default_value_t = BackendsOptions::default().samples)]
    samples: u64,
    /// JSON instead of text.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli, &mut Stderr::default()) {
        Ok(report) => {
            println!("{}", if cli.json { report.to_json() } else { report.to_text() });
            if report.verdict() == Verdict::Met { ExitCode::SUCCESS } else { ExitCode::from(2) }
        }
        Err(error) => {
            eprintln!("thalweg-peers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    if cli.backends {
        let options = &cli.options;
        let options = BackendsOptions {
            dir: options.dir.clone(),
            seed: options.seed,
            only: cli.groups.clone(),
            samples: cli.samples,
            ..BackendsOptions::default()
        };
        return backends::run_beside(&options, &[&fjall_store::Fjall], progress);
    }
    let own = Thalweg { backend: thalweg_engine::BackendKind::Lsm };
    let mut contenders: Vec<&dyn Contender> = vec![&own];
    for peer in &cli.peers {
        contenders.push(match peer {
            Peer::Fjall => &fjall_store::Fjall,
            Peer::Redb => &redb_store::Redb,
        });
    }
    let mut options = cli.options.clone();
    options.mode = cli.suite.unwrap_or(options.mode);
    let (mut report, results) = engine::run_all("peers", &options, &contenders, progress)?;
    report.checks.extend(targets::checks(&results));
    report.notes.push(
        "interval 1s: fjall writes each put to the kernel and is synced once a second by a thread; redb commits each \
         put with Durability::None and once a second with Immediate; redb's reads share one open read transaction \
         until the next write"
            .to_owned(),
    );
    Ok(report)
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Fjall => "fjall",
            Self::Redb => "redb",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_bench::Quiet;

    #[test]
    fn every_peer_does_the_whole_suite() {
        let flags = "peers --suite full --scale 0.002 --rounds 1 --warm-mib 0 --cache-mib 8";
        let report = run(&Cli::parse_from(flags.split(' ')), &mut Quiet).unwrap();
        let text = report.to_text();
        for part in ["fjall 3.1.13", "redb 4.4.0", "random gets, flushed: of redb's", "miss, large"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(report.checks.iter().all(|check| check.verdict != Verdict::Void), "{text}");
    }
}
