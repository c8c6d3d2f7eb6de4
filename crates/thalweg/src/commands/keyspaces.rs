//! `keyspaces`: lists and manages keyspaces.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use thalweg_types::command::KeyspaceHistory;

use crate::{
    args::{Plain, TargetArgs},
    failure::Failure,
    render,
    session::{Access, Session},
    span::{Limit, limit_json, parse_limit, parse_span, show_span, show_time},
};

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Keyspaces {
    #[command(subcommand)]
    pub action: Option<KeyspaceAction>,
    #[command(flatten)]
    pub place: TargetArgs,
}

#[derive(Subcommand, Debug)]
pub(crate) enum KeyspaceAction {
    /// List all keyspaces
    List(Plain),
    /// Create a keyspace; an existing one is not changed
    Create(Configured),
    /// Show the size and the settings of a keyspace
    #[command(alias = "stats")]
    Show(Named),
    /// Change the named settings of a keyspace; the others keep their values
    #[command(alias = "config")]
    Configure(Configured),
    /// Drop a keyspace and everything in it
    #[command(alias = "delete")]
    Drop(Named),
}

/// Arguments of actions on an existing keyspace.
#[derive(Args, Debug)]
pub(crate) struct Named {
    /// Name of the keyspace
    pub keyspace: String,
    #[command(flatten)]
    pub place: TargetArgs,
}

/// Arguments of actions that set options of a keyspace.
#[derive(Args, Debug)]
pub(crate) struct Configured {
    /// Name of the keyspace
    pub keyspace: String,
    /// Count keys and bytes exactly; each write then reads the value that it replaces [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub exact_counts: Option<bool>,
    /// Lifetime of values that are put without one; none: they stay forever [default: none]
    #[arg(long, value_name = "SPAN", value_parser = |text: &str| parse_limit(text, parse_span))]
    pub default_ttl: Option<Limit<Duration>>,
    /// Keep overwritten and deleted values: a number of revisions per key, an age, or both, such as 10, 1h or 10,1h;
    /// off keeps none [default: off]
    #[arg(long, value_name = "BOUNDS", value_parser = parse_history)]
    pub history: Option<KeyspaceHistory>,
    #[command(flatten)]
    pub place: TargetArgs,
}

impl Configured {
    /// Returns the settings that the user requests, as JSON for the HTTP API.
    fn config(&self) -> Value {
        let mut object = Map::new();
        object.extend(self.exact_counts.map(|exact| ("exact_counts".into(), json!(exact))));
        let ttl = self.default_ttl.map(|limit| limit_json(limit, |ttl| json!(ttl.as_secs_f64())));
        object.extend(ttl.map(|ttl| ("default_ttl_seconds".into(), ttl)));
        object.extend(self.history.map(|history| {
            let age = history.age.map(|age| age.as_secs_f64());
            let bounds = json!({ "revisions": history.revisions, "age_seconds": age });
            ("history".into(), if history.is_kept() { bounds } else { Value::Null })
        }));
        Value::Object(object)
    }
}

/// Parses `off`, a number of revisions, an age, or a number and an age separated by a comma.
fn parse_history(text: &str) -> Result<KeyspaceHistory, String> {
    let mut history = KeyspaceHistory::default();
    if text == "off" {
        return Ok(history);
    }
    for part in text.split(',') {
        match part.parse() {
            Ok(revisions) if history.revisions.is_none() => history.revisions = Some(revisions),
            Err(_) if history.age.is_none() => {
                let age = parse_span(part);
                history.age = Some(age.map_err(|_| format!("{part:?} is neither a number nor a span such as 1h"))?);
            }
            _ => return Err("give at most one number of revisions and one age".to_owned()),
        }
    }
    history.check().map(|()| history).map_err(|error| error.to_string())
}

pub(crate) fn run(args: &Keyspaces) -> Result<(), Failure> {
    match &args.action {
        None => list(&args.place),
        Some(KeyspaceAction::List(plain)) => list(&plain.place),
        Some(KeyspaceAction::Show(Named { keyspace, place })) => {
            show(&Session::with(place, Access::Read, |session| session.keyspace(keyspace))?, place.json)
        }
        Some(KeyspaceAction::Create(created)) => {
            let (name, place) = (&created.keyspace, &created.place);
            let config = created.config();
            let found = Session::with(place, Access::Write, |session| session.create_keyspace(name, &config))?;
            render::print_result(&found, place.json, || format!("ok, {name} exists"))
        }
        Some(KeyspaceAction::Configure(changed)) => {
            let (name, place) = (&changed.keyspace, &changed.place);
            let config = changed.config();
            show(&Session::with(place, Access::Read, |session| session.configure_keyspace(name, &config))?, place.json)
        }
        Some(KeyspaceAction::Drop(Named { keyspace, place })) => {
            Session::with(place, Access::Read, |session| session.drop_keyspace(keyspace))?;
            let text = || format!("ok, {keyspace} and everything in it are gone");
            render::print_result(&json!({"dropped": keyspace}), place.json, text)
        }
    }
}

fn list(place: &TargetArgs) -> Result<(), Failure> {
    let all = Session::with(place, Access::Read, Session::keyspaces)?;
    if place.json {
        return all.iter().try_for_each(|keyspace| render::line(&keyspace.to_string()));
    }
    if all.is_empty() {
        render::note("no keyspaces yet: `thalweg put KEYSPACE KEY VALUE` creates one");
        return Ok(());
    }
    let rows = all.iter().map(|keyspace| [vec![name(keyspace)], settings(keyspace)].concat());
    render::line(&render::table(&["keyspace", "counted", "lifetime", "history", "created"], rows))
}

fn show(found: &Value, json: bool) -> Result<(), Failure> {
    render::print_result(found, json, || {
        let stats = &found["stats"];
        let about = if stats["exact"] == json!(true) { "" } else { "about " };
        let number = |name: &str| stats[name].as_u64().unwrap_or_default();
        let size = vec![
            name(found),
            format!("{about}{}", render::count(number("keys"))),
            format!("{about}{}", render::bytes(number("bytes"))),
        ];
        let header = ["keyspace", "keys", "bytes", "counted", "lifetime", "history", "created"];
        render::table(&header, [[size, settings(found)].concat()])
    })
}

fn name(keyspace: &Value) -> String {
    keyspace["name"].as_str().unwrap_or_default().to_owned()
}

/// Returns the cells of a table row for the settings of a keyspace, and the time of its creation.
fn settings(keyspace: &Value) -> Vec<String> {
    let config = &keyspace["config"];
    let span =
        |seconds: &Value| seconds.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).map(show_span);
    let history = &config["history"];
    let revisions = history["revisions"].as_u64().map(|count| render::counted(count, "revision", "revisions"));
    let bounds: Vec<_> = revisions.into_iter().chain(span(&history["age_seconds"])).collect();
    vec![
        if config["exact_counts"] == json!(true) { "with every write" } else { "on request" }.to_owned(),
        span(&config["default_ttl_seconds"]).unwrap_or_else(|| "forever".to_owned()),
        if bounds.is_empty() { "-".to_owned() } else { bounds.join(", ") },
        keyspace["created_micros"].as_u64().map_or("-".to_owned(), show_time),
    ]
}
