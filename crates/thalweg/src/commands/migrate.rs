//! `migrate`: moves a stopped node's state from one backend to another.

use std::{io::IsTerminal, path::PathBuf};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use thalweg_engine::{
    BackendKind, Options,
    migrate::{Migration, MigrationProgress, Phase, migrate},
};

use crate::{failure::Failure, render};

/// What to move where.
#[derive(Args, Debug)]
#[command(
    after_help = "The old state counts until the new one is on disk and compared with it, pair by pair: a migration \
                        that is stopped\nhalf-way changes nothing, and can be started again. Needs disk for both states.\n\n\
                        Example:\n  thalweg migrate --data ./data --from redb --to lsm"
)]
pub struct Migrate {
    /// The directory of a node that is stopped
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The backend that has the state: memory, lsm, redb or sqlite [default: whichever has]
    #[arg(long, value_parser = backend)]
    from: Option<BackendKind>,
    /// The backend that shall have it
    #[arg(long, value_parser = backend)]
    to: BackendKind,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
}

/// Parses the name of a backend.
pub fn backend(text: &str) -> Result<BackendKind, String> {
    let names = BackendKind::ALL.map(BackendKind::name).join(", ");
    BackendKind::from_name(text).ok_or_else(|| format!("one of {names}"))
}

pub fn run(args: &Migrate) -> Result<(), Failure> {
    let bar = bar(args.json);
    let mut tell = |progress: MigrationProgress| show(&bar, progress);
    let migration = Migration { from: args.from, to: args.to };
    let moved = migrate(&args.data, migration, &Options::default(), &mut tell);
    bar.finish_and_clear();
    let moved = moved.map_err(|error| Failure::of(&error))?;
    if args.json {
        let (from, to) = (moved.from.name(), moved.to.name());
        return render::line(
            &json!({ "from": from, "to": to, "pairs": moved.pairs, "bytes": moved.bytes, "verified": true })
                .to_string(),
        );
    }
    render::line(&format!(
        "{} moved from {} to {}: {} pairs, {}, each compared",
        args.data.display(),
        moved.from.name(),
        moved.to.name(),
        render::count(moved.pairs),
        render::bytes(moved.bytes),
    ))
}

fn bar(json: bool) -> ProgressBar {
    let bar = ProgressBar::new(0);
    let style = "{elapsed_precise} {msg:10} {wide_bar} {human_pos} of about {human_len} pairs";
    bar.set_style(ProgressStyle::with_template(style).expect("the template is right"));
    if json || !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar
}

fn show(bar: &ProgressBar, progress: MigrationProgress) {
    bar.set_message(match progress.phase {
        Phase::Copying => "copying",
        Phase::Comparing => "comparing",
        Phase::CleaningUp => "cleaning up",
    });
    bar.set_length(progress.estimated_pairs.max(progress.pairs));
    bar.set_position(progress.pairs);
}
