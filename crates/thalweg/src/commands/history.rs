//! `history`: prints the versions of a key.

use clap::Args;
use serde_json::Value;

use crate::{
    args::{KeyArgs, TargetArgs},
    failure::Failure,
    render,
    session::{Access, Session},
};

/// Number of versions that the command requests in each page.
const PAGE: u64 = 100;

#[derive(Args, Debug)]
#[command(after_help = "Prints the retained versions, newest first: revision, state and value. Works\n\
                        only in keyspaces with history (`thalweg keyspaces configure users --history 10`).\n\n\
                        Examples:\n  thalweg history users ada\n  thalweg history users ada --limit 1 --json\n  \
                        thalweg get users ada --revision 17")]
pub(crate) struct History {
    #[command(flatten)]
    pub key: KeyArgs,
    /// Maximum number of versions to list
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// List only versions before this revision
    #[arg(long, value_name = "REVISION")]
    pub before: Option<u64>,
    #[command(flatten)]
    pub place: TargetArgs,
}

pub(crate) fn history(args: &History) -> Result<(), Failure> {
    let key = args.key.bytes()?;
    Session::with(&args.place, Access::Read, |session| {
        let mut lines = render::Lines::new();
        let (mut before, mut left) = (args.before, args.limit.unwrap_or(u64::MAX));
        loop {
            let page = session.versions(&args.key.keyspace, &key, before, left.min(PAGE))?;
            let versions = page["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
            for version in versions {
                lines.line(&if args.place.json { version.to_string() } else { version_text(version) })?;
            }
            if versions.is_empty() && before.is_none() {
                return Err(args.key.missing());
            }
            left = left.saturating_sub(versions.len() as u64);
            before = page["next"].as_u64();
            if before.is_none() || left == 0 || versions.is_empty() {
                return lines.flush();
            }
        }
    })
}

/// Formats a version of a key as one line with its revision, its state and its value, such as `17  deleted at 19
/// value`.
fn version_text(version: &Value) -> String {
    let value = version.as_object().and_then(|object| render::take_bytes(object, "value")).unwrap_or_default();
    let state = version["state"].as_str().unwrap_or_default();
    let until = version["until"].as_u64().map_or(String::new(), |until| format!(" at {until}"));
    format!("{}\t{state}{until}\t{}", version["revision"], render::one_line(&value))
}
