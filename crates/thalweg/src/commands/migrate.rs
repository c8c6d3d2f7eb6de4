//! `migrate`: moves a stopped node's state from one backend to another.

use std::path::PathBuf;

use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use thalweg_engine::{
    BackendKind,
    migrate::{Migration, MigrationPhase, MigrationProgress, migrate},
};

use crate::{failure::Failure, offline, render};

/// Options of `migrate`.
#[derive(Args, Debug)]
#[command(after_help = "The old state stays in force until the new one is on disk and equal to it, pair by pair. An \
                        interrupted\nmigration changes nothing and can be started again. Both states need disk space.\n\n\
                        Example:\n  thalweg migrate --data ./data --from redb --to lsm")]
pub(crate) struct Migrate {
    /// The directory of a stopped node
    #[arg(long, value_name = "DIR", default_value = "thalweg-data")]
    data: PathBuf,
    /// The current backend: memory, lsm, redb or sqlite [default: the one that has a state]
    #[arg(long, value_parser = backend)]
    from: Option<BackendKind>,
    /// The new backend: memory, lsm, redb or sqlite
    #[arg(long, value_parser = backend)]
    to: BackendKind,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Parses the name of a backend.
pub(crate) fn backend(text: &str) -> Result<BackendKind, String> {
    let names = BackendKind::ALL.map(BackendKind::name).join(", ");
    BackendKind::from_name(text).ok_or_else(|| format!("use one of {names}"))
}

pub(crate) fn run(args: &Migrate) -> Result<(), Failure> {
    let options = offline::options()?;
    let template = "{elapsed_precise} {msg:10} {wide_bar} {human_pos} of about {human_len} pairs";
    let bar = render::progress_bar(Some(0), template, args.json);
    let mut tell = |progress: MigrationProgress| show(&bar, progress);
    let migration = Migration { from: args.from, to: args.to };
    let moved = migrate(&args.data, migration, &options, &mut tell);
    bar.finish_and_clear();
    let moved = moved.map_err(|error| Failure::of(&error))?;
    let (from, to) = (moved.from.name(), moved.to.name());
    let object = json!({ "from": from, "to": to, "pairs": moved.pairs, "bytes": moved.bytes, "verified": true });
    render::print_result(&object, args.json, || {
        let (pairs, bytes) = (render::counted(moved.pairs, "pair", "pairs"), render::bytes(moved.bytes));
        format!("{} moved from {from} to {to}: {pairs}, {bytes}, each compared", args.data.display())
    })
}

fn show(bar: &ProgressBar, progress: MigrationProgress) {
    bar.set_message(match progress.phase {
        MigrationPhase::Copying => "copying",
        MigrationPhase::Comparing => "comparing",
        MigrationPhase::CleaningUp => "cleaning up",
    });
    bar.set_length(progress.estimated_pairs.max(progress.pairs));
    bar.set_position(progress.pairs);
}
