//! `state`: prints digests for comparing nodes, and the version of the state machine.

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::{
    args::{Plain, TargetArgs},
    failure::Failure,
    render,
    session::{Access, Session},
};

/// Actions on the state as a whole.
#[derive(Subcommand, Debug)]
pub enum State {
    /// Print a hash over all data that replicas have in common
    Digest(Digest),
    /// Print the version of the state machine in force, and the highest one that the node supports
    Version(Plain),
    /// Raise the version of the state machine in force
    RaiseVersion(RaiseVersion),
}

/// Options of `state digest`.
#[derive(Args, Debug)]
#[command(
    after_help = "Nodes that have applied the same entries have the same digest at the same index, whatever their options and\n\
                  disks. If two digests differ, the rows per kind show where. A server writes an entry for the digest,\n\
                  computes it while it serves, and keeps it for --last. A directory is read without writing an entry.\n\n\
                  Examples:\n  thalweg state digest\n  thalweg state digest --timeout 10m     # for a large state\n  \
                  thalweg state digest --data ./data --json"
)]
pub struct Digest {
    /// Print the digest that the server computed last
    #[arg(long)]
    pub last: bool,
    #[command(flatten)]
    pub place: TargetArgs,
}

/// Options of `state raise-version`.
#[derive(Args, Debug)]
#[command(
    after_help = "A node that does not support the version stops until it is upgraded, so upgrade every node first. The version\n\
                  can't be lowered again.\n\n\
                  Example:\n  thalweg state version\n  thalweg state raise-version 1"
)]
pub struct RaiseVersion {
    /// The new version; a lower one than the version in force changes nothing
    #[arg(value_name = "VERSION")]
    pub to: u16,
    #[command(flatten)]
    pub place: TargetArgs,
}

/// Runs `state`: prints a digest of the state, or prints or raises the version of the state machine.
pub fn run(args: &State) -> Result<(), Failure> {
    match args {
        State::Digest(args) => digest(args),
        State::Version(args) => {
            show_version(&Session::with(&args.place, Access::Inspect, Session::state_version)?, args.place.json)
        }
        State::RaiseVersion(args) => {
            let version = Session::with(&args.place, Access::Read, |session| session.raise_version(args.to))?;
            show_version(&version, args.place.json)
        }
    }
}

fn digest(args: &Digest) -> Result<(), Failure> {
    let digest = Session::with(&args.place, Access::Inspect, |session| {
        if args.last {
            return session.last_state_digest();
        }
        let template = "{elapsed_precise} reading the state {human_pos} rows";
        let bar = render::progress_bar(None, template, args.place.json);
        let digest = session.state_digest(&mut |rows| bar.set_position(rows));
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
    render::print_result(version, json, || {
        let rows = ["in_force", "known"].map(|name| vec![name.replace('_', " "), text(&version[name])]);
        render::table(&["version", "value"], rows.to_vec())
    })
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
