//! `state`: prints digests for comparing nodes, and the version of the state machine; verifies and rebuilds the state
//! of a stopped node.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use thalweg_engine::state_files;

use crate::{
    args::{Plain, TargetArgs},
    commands::cluster::TokenArgs,
    failure::Failure,
    offline, render,
    session::{Access, Session},
};

/// Actions on the state as a whole.
#[derive(Subcommand, Debug)]
pub(crate) enum State {
    /// Print a hash over all data that replicas have in common
    Digest(Digest),
    /// Print the version of the state machine in force, and the highest one that the node supports
    Version(Plain),
    /// Raise the version of the state machine in force
    RaiseVersion(RaiseVersion),
    /// Read the whole state of a stopped node and verify it; ends with 1 if it is damaged
    Verify(StateFiles),
    /// Replace the damaged state of a stopped node with one computed from its log
    Rebuild(StateFiles),
}

/// Options of `state verify` and `state rebuild`.
#[derive(Args, Debug)]
#[command(
    after_help = "The directory of a running server is in use; the server itself verifies its data in the background (see \
                  scrub_interval).\n`rebuild` needs a log that still has all entries. The old state is kept until the \
                  new one is complete.\n\nExamples:\n  thalweg state verify --data ./data\n  thalweg state rebuild --data ./data"
)]
pub(crate) struct StateFiles {
    /// The node's directory; no server may have it open
    #[arg(long, value_name = "DIR", default_value = "thalweg-data")]
    pub data: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
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
pub(crate) struct Digest {
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
                  can't be lowered again. In a cluster the command needs the admin token (THALWEG_ADMIN_TOKEN), and is\n\
                  refused while a member does not know the version, or does not answer.\n\n\
                  Example:\n  thalweg state version\n  thalweg state raise-version 1"
)]
pub(crate) struct RaiseVersion {
    /// The new version; a lower one than the version in force changes nothing
    #[arg(value_name = "VERSION")]
    pub to: u16,
    /// Raise the version even if members do not answer
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub token: TokenArgs,
    #[command(flatten)]
    pub place: TargetArgs,
}

/// Runs `state`: prints a digest of the state, or prints or raises the version of the state machine.
pub(crate) fn run(args: &State) -> Result<(), Failure> {
    match args {
        State::Digest(args) => digest(args),
        State::Version(args) => {
            show_version(&Session::with(&args.place, Access::Inspect, Session::state_version)?, args.place.json)
        }
        State::RaiseVersion(args) => {
            let token = args.token.token()?;
            let raise = |session: &Session| session.raise_version(args.to, args.force, token.as_deref());
            let version = Session::with(&args.place, Access::Read, raise)?;
            show_version(&version, args.place.json)
        }
        State::Verify(args) => verify(args),
        State::Rebuild(args) => rebuild(args),
    }
}

fn verify(args: &StateFiles) -> Result<(), Failure> {
    let options = offline::options()?;
    let bar = render::progress_bar(None, "{elapsed_precise} reading the state {binary_bytes}", args.json);
    let verified = state_files::verify(&args.data, &options, &mut |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    let verified = verified.map_err(|error| Failure::of(&error))?;
    let backend = verified.backend.name();
    let object = json!({ "backend": backend, "rows": verified.rows, "bytes": verified.bytes, "verified": true });
    render::print_result(&object, args.json, || {
        let rows = render::counted(verified.rows, "row", "rows");
        format!("{}: good, {rows} in {} of {backend}", args.data.display(), render::bytes(verified.bytes))
    })
}

fn rebuild(args: &StateFiles) -> Result<(), Failure> {
    let options = offline::options()?;
    let bar = render::progress_bar(None, "{elapsed_precise} replaying the log {spinner}", args.json);
    bar.enable_steady_tick(std::time::Duration::from_millis(100));
    let rebuilt = state_files::rebuild(&args.data, &options);
    bar.finish_and_clear();
    let rebuilt = rebuilt.map_err(|error| Failure::of(&error))?;
    let backend = rebuilt.backend.name();
    let object = json!({ "backend": backend, "records": rebuilt.records, "lsn": rebuilt.lsn.0 });
    render::print_result(&object, args.json, || {
        let records = render::counted(rebuilt.records, "log record", "log records");
        format!("{}: the {backend} state is rebuilt from {records}", args.data.display())
    })
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
