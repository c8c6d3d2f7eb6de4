//! `watch`: prints changes of keys, as they happen or from a revision on.

use std::ops::ControlFlow;

use clap::Args;
use serde_json::{Map, Value, json};

use crate::{
    args::{KeyFormat, TargetArgs},
    failure::Failure,
    render::{self, Lines},
    session::{Access, Change, Session, WatchKeys, WatchQuery},
};

#[derive(Args, Debug)]
#[command(after_help = "Prints revision, kind (put, delete, expire, delete_prefix), key, value. Continues after a \
                  restart of the server.\n\nExamples:\n  thalweg watch users\n  thalweg watch users --prefix a --from 17 \
                  --json\n  thalweg watch config --key feature --limit 1    # until the next change")]
pub(crate) struct Watch {
    /// Name of the keyspace
    pub keyspace: String,
    /// Print only changes of this key
    #[arg(long, conflicts_with_all = ["prefix", "start", "end"])]
    pub key: Option<String>,
    /// Print only changes of keys with this prefix
    #[arg(long, conflicts_with_all = ["start", "end"])]
    pub prefix: Option<String>,
    /// First key of the range, inclusive
    #[arg(long, value_name = "KEY")]
    pub start: Option<String>,
    /// End of the range of keys, exclusive
    #[arg(long, value_name = "KEY")]
    pub end: Option<String>,
    /// First revision to print [default: the next change]
    #[arg(long, value_name = "REVISION")]
    pub from: Option<u64>,
    /// End after this number of changes
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Format in which keys are typed and shown
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub key_format: KeyFormat,
    #[command(flatten)]
    pub place: TargetArgs,
}

pub(crate) fn run(args: &Watch) -> Result<(), Failure> {
    if args.limit == Some(0) {
        return Ok(());
    }
    let key = |text: &Option<String>| text.as_ref().map(|text| args.key_format.parse(text)).transpose();
    let keys = match (key(&args.key)?, key(&args.prefix)?, key(&args.start)?, key(&args.end)?) {
        (Some(key), ..) => WatchKeys::Key(key),
        (_, Some(prefix), ..) => WatchKeys::Prefix(prefix),
        (.., None, None) => WatchKeys::Prefix(Vec::new()),
        (.., start, end) => WatchKeys::Range(start, end),
    };
    let query = WatchQuery { keys, from: args.from };
    Session::with(&args.place, Access::Read, |session| {
        let (mut lines, mut left) = (Lines::new(), args.limit);
        session.watch(&args.keyspace, &query, &mut |change| {
            let text = if args.place.json { change_json(change) } else { change_text(change, args.key_format) };
            lines.line(&text)?;
            lines.flush()?;
            left = left.map(|left| left - 1);
            Ok(if left == Some(0) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })
    })
}

/// Formats a change as one JSON object, in the format of the HTTP API.
fn change_json(change: &Change) -> String {
    let mut object = Map::new();
    object.insert("revision".into(), json!(change.revision));
    object.insert("time_micros".into(), json!(change.time));
    object.insert("change".into(), json!(change.what));
    render::insert_bytes(&mut object, if change.is_prefix() { "prefix" } else { "key" }, &change.key);
    if let Some(value) = &change.value {
        render::insert_bytes(&mut object, "value", value);
    }
    if change.is_last {
        object.insert("last".into(), json!(true));
    }
    Value::Object(object).to_string()
}

fn change_text(change: &Change, format: KeyFormat) -> String {
    let key = format.show(&change.key);
    match &change.value {
        Some(value) => format!("{}\t{}\t{key}\t{}", change.revision, change.what, render::one_line(value)),
        None => format!("{}\t{}\t{key}", change.revision, change.what),
    }
}
