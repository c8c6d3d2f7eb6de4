//! `state`: prints digests for comparing nodes, and the version of the state machine.

use std::io::IsTerminal;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

use super::with_target;
use crate::{
    failure::Failure,
    render,
    target::{Access, Place},
};

/// What to do with the state as a whole.
#[derive(Subcommand, Debug)]
pub enum State {
    /// Print a hash over everything that replicas agree on
    Digest(Digest),
    /// Print the version of the state machine that is in force, and the highest one that the node knows
    Version(Version),
    /// Raise the version of the state machine that is in force
    RaiseVersion(RaiseVersion),
}

impl State {
    /// Returns true if the command prints JSON, which then applies to its errors as well.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::Digest(args) => args.place.json,
            Self::Version(args) => args.place.json,
            Self::RaiseVersion(args) => args.place.json,
        }
    }
}

/// Which digest.
#[derive(Args, Debug)]
#[command(
    after_help = "Nodes that have applied the same entries have the same digest at the same index, whatever their options and\n\
                  disks. Where two differ, the rows per kind tell in what. A server writes an entry for the digest, computes it\n\
                  while it serves, and keeps it for --last; a directory is read as it is.\n\n\
                  Examples:\n  thalweg state digest\n  thalweg state digest --timeout 10m     # a large state takes a while\n  \
                  thalweg state digest --data ./data --json"
)]
pub struct Digest {
    /// Print the one that the server has computed last
    #[arg(long)]
    pub last: bool,
    #[command(flatten)]
    pub place: Place,
}

/// Whose version.
#[derive(Args, Debug)]
pub struct Version {
    #[command(flatten)]
    pub place: Place,
}

/// To which version.
#[derive(Args, Debug)]
#[command(
    after_help = "A node that does not know the version stops, and goes on once it is upgraded: upgrade every node first. The\n\
                  version can't be lowered again.\n\n\
                  Example:\n  thalweg state version\n  thalweg state raise-version 1"
)]
pub struct RaiseVersion {
    /// The version that shall be in force; a lower one than that in force changes nothing
    #[arg(value_name = "VERSION")]
    pub to: u16,
    #[command(flatten)]
    pub place: Place,
}

/// Runs `state`: prints a digest, or prints or raises the version.
pub fn run(args: &State) -> Result<(), Failure> {
    match args {
        State::Digest(args) => digest(args),
        State::Version(args) => {
            show_version(&with_target(&args.place, Access::Inspect, |target| target.state_version())?, args.place.json)
        }
        State::RaiseVersion(args) => {
            let version = with_target(&args.place, Access::Read, |target| target.raise_version(args.to))?;
            show_version(&version, args.place.json)
        }
    }
}

fn digest(args: &Digest) -> Result<(), Failure> {
    let digest = with_target(&args.place, Access::Inspect, |target| {
        if args.last {
            return target.last_state_digest();
        }
        let bar = bar(args.place.json);
        let digest = target.state_digest(&mut |rows| bar.set_position(rows));
        bar.finish_and_clear();
        digest
    })?;
    if args.place.json {
        return render::line(&digest.to_string());
    }
    let figures = ["index", "term", "revision", "running_hash", "digest", "rows"];
    let rows = figures.map(|name| vec![name.replace('_', " "), text(&digest[name])]);
    render::line(&render::table(&["figure", "value"], rows.to_vec()))?;
    let kinds = digest["kinds"].as_array().map(Vec::as_slice).unwrap_or_default();
    let kinds = kinds.iter().map(|kind| ["tag", "name", "rows", "digest"].map(|name| text(&kind[name])).to_vec());
    render::line(&render::table(&["tag", "kind", "rows", "digest"], kinds))
}

fn show_version(version: &Value, json: bool) -> Result<(), Failure> {
    if json {
        return render::line(&version.to_string());
    }
    let rows = ["in_force", "known"].map(|name| vec![name.replace('_', " "), text(&version[name])]);
    render::line(&render::table(&["version", "value"], rows.to_vec()))
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn bar(json: bool) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    let style = "{elapsed_precise} reading the state {human_pos} rows";
    bar.set_style(ProgressStyle::with_template(style).expect("the template is right"));
    if json || !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar
}
