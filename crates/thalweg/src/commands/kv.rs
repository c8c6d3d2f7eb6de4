//! `put`, `get`, `del`, `scan`, `incr`: read and write keys.
//!
//! Owns: the arguments and the output of these commands. Does not own: the requests (`session/kv`), lifetimes (`time`),
//! versions (`history`), or keyspaces (`keyspaces`).

use std::{ops::ControlFlow, path::PathBuf};

use clap::{ArgGroup, Args};
use serde_json::{Map, Value, json};
use thalweg_types::{LeaseId, command::Deadline};

use super::{input, time::parse_ttl};
use crate::{
    args::{KeyArgs, KeyFormat, TargetArgs},
    failure::{Exit, Failure},
    render,
    session::{Access, Expected, Pair, PutTerms, ScanQuery, Session, Written},
};

#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  thalweg put users ada '{\"born\": 1815}'\n  thalweg put files logo --file logo.png\n  \
                        date | thalweg put notes today -\n  thalweg put users ada '{}' --if-revision 17\n  \
                        thalweg put sessions ada token --ttl 30m"
)]
pub(crate) struct Put {
    #[command(flatten)]
    pub key: KeyArgs,
    /// Value of the key; `-` or no argument reads stdin
    pub value: Option<String>,
    /// Read the value from this file
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    pub file: Option<PathBuf>,
    /// Write only if the key does not exist
    #[arg(long, group = "condition")]
    pub if_absent: bool,
    #[command(flatten)]
    pub condition: Condition,
    /// Lifetime: a span such as 30s, never, or keep (the current one) [default: that of the keyspace]
    #[arg(long, value_name = "TTL", value_parser = parse_ttl)]
    pub ttl: Option<Deadline>,
    /// Delete the key when this lease ends
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
    pub lease: Option<u64>,
    #[command(flatten)]
    pub place: TargetArgs,
}

/// Conditions on the current value of a key.
#[derive(Args, Clone, Debug)]
pub(crate) struct Condition {
    /// Write only if the key exists
    #[arg(long, group = "condition")]
    pub if_present: bool,
    /// Write only if the key's value has this revision
    #[arg(long, value_name = "N", group = "condition")]
    pub if_revision: Option<u64>,
    /// Write only if the key has exactly this value
    #[arg(long, value_name = "VALUE", group = "condition")]
    pub if_value: Option<String>,
}

impl Condition {
    fn expected(&self) -> Expected<'_> {
        match self {
            Self { if_present: true, .. } => Expected::Present,
            Self { if_revision: Some(revision), .. } => Expected::Revision(*revision),
            Self { if_value: Some(value), .. } => Expected::Value(value.as_bytes()),
            _ => Expected::Anything,
        }
    }
}

pub(crate) fn put(args: &Put) -> Result<(), Failure> {
    let key = args.key.bytes()?;
    let value = match &args.file {
        Some(path) => input::file(path)?,
        None => input::value(args.value.as_deref())?,
    };
    let terms = PutTerms {
        expected: if args.if_absent { Expected::Absent } else { args.condition.expected() },
        deadline: args.ttl.unwrap_or_default(),
        lease: args.lease.map(LeaseId),
    };
    Session::with(&args.place, Access::Write, |session| {
        show_written(&session.put(&args.key.keyspace, &key, &value, &terms)?, args.place.json)
    })
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  thalweg get users ada\n  thalweg get users ada --json    # with its revision\n  \
                        thalweg get files logo > logo.png\n\nEnds with 3 if the key does not exist.")]
pub(crate) struct Get {
    #[command(flatten)]
    pub key: KeyArgs,
    /// Print the value at this revision; only in keyspaces with history
    #[arg(long, value_name = "N")]
    pub revision: Option<u64>,
    #[command(flatten)]
    pub raw: render::RawArgs,
    #[command(flatten)]
    pub place: TargetArgs,
}

pub(crate) fn get(args: &Get) -> Result<(), Failure> {
    let KeyArgs { keyspace, key: typed, .. } = &args.key;
    let key = args.key.bytes()?;
    let found = Session::with(&args.place, Access::Read, |session| match args.revision {
        Some(revision) => session.get_at(keyspace, &key, revision),
        None => session.get(keyspace, &key),
    })?;
    let found = found.ok_or_else(|| match args.revision {
        Some(revision) => {
            let message = format!("key {typed:?} in keyspace {keyspace:?} had no value at revision {revision}");
            Failure::new(Exit::NotFound, "not_found", message)
                .then(format!("`thalweg history {keyspace} {typed}` lists the versions"))
        }
        None => args.key.missing(),
    })?;
    if !args.place.json {
        return render::data(&found.value, args.raw);
    }
    render::line(&pair_json(Pair { key: &key, value: Some(&found.value), revision: found.revision }))
}

#[derive(Args, Debug)]
#[command(
    group(ArgGroup::new("deleted").required(true).args(["key", "prefix"])),
    override_usage = "thalweg del [OPTIONS] <KEYSPACE> <KEY|--prefix <PREFIX>>",
    after_help = "Examples:\n  thalweg del users ada\n  thalweg del users ada --if-revision 17\n  \
                  thalweg del sessions --prefix 'ada/'\n  thalweg del sessions --prefix ''    # clears the keyspace"
)]
pub(crate) struct Del {
    /// Name of the keyspace
    pub keyspace: String,
    /// Key to delete
    pub key: Option<String>,
    /// Delete all keys with this prefix in one step, however many there are
    #[arg(long, value_name = "PREFIX", conflicts_with = "condition")]
    pub prefix: Option<String>,
    /// Format in which the key is typed
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub key_format: KeyFormat,
    #[command(flatten)]
    pub condition: Condition,
    #[command(flatten)]
    pub place: TargetArgs,
}

pub(crate) fn del(args: &Del) -> Result<(), Failure> {
    if let Some(prefix) = &args.prefix {
        return del_prefix(args, prefix);
    }
    let key = args.key_format.parse(args.key.as_deref().unwrap_or_default())?;
    Session::with(&args.place, Access::Read, |session| {
        show_written(&session.delete(&args.keyspace, &key, args.condition.expected())?, args.place.json)
    })
}

fn del_prefix(args: &Del, prefix: &str) -> Result<(), Failure> {
    let prefix = args.key_format.parse(prefix)?;
    let (keys, Written { durability, revision }) =
        Session::with(&args.place, Access::Read, |session| session.delete_prefix(&args.keyspace, &prefix))?;
    let object = json!({"keys": keys, "revision": revision, "durability": durability.name()});
    render::print_result(&object, args.place.json, || {
        let keys =
            keys.map_or("all keys with the prefix are".to_owned(), |keys| render::counted(keys, "key is", "keys are"));
        let revision = revision.map_or(String::new(), |revision| format!("revision {revision}, "));
        format!("ok, {keys} gone, {revision}durability {durability}")
    })
}

#[derive(Args, Debug)]
#[command(after_help = "Prints key, tab, value. Bytes that are not text are escaped; --json keeps them exactly.\n\
                        If --limit leaves out pairs, the command prints a cursor on stderr, or with --json as the last \
                        line. In a keyspace with history, all pages show the state at the time of the first one.\n\n\
                        Examples:\n  thalweg scan users --prefix a --limit 10\n  \
                        thalweg scan zips --start 10001 --end 10100 --keys-only\n  thalweg scan users --reverse --json")]
pub(crate) struct Scan {
    /// Name of the keyspace
    pub keyspace: String,
    /// List only keys with this prefix
    #[arg(long, default_value = "", hide_default_value = true)]
    pub prefix: String,
    /// First key of the range, inclusive
    #[arg(long, value_name = "KEY")]
    pub start: Option<String>,
    /// End of the range of keys, exclusive
    #[arg(long, value_name = "KEY")]
    pub end: Option<String>,
    /// Maximum number of pairs to list
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// List the pairs in descending key order
    #[arg(long)]
    pub reverse: bool,
    /// Print only keys
    #[arg(long)]
    pub keys_only: bool,
    /// List the pairs at this revision; only in keyspaces with history
    #[arg(long, value_name = "N")]
    pub revision: Option<u64>,
    /// Continue an earlier scan, which had a --limit and otherwise the same options
    #[arg(long)]
    pub cursor: Option<String>,
    /// Format in which keys are typed and shown
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub key_format: KeyFormat,
    #[command(flatten)]
    pub place: TargetArgs,
}

pub(crate) fn scan(args: &Scan) -> Result<(), Failure> {
    let key = |text: &String| args.key_format.parse(text);
    let query = ScanQuery {
        prefix: key(&args.prefix)?,
        start: args.start.as_ref().map(key).transpose()?,
        end: args.end.as_ref().map(key).transpose()?,
        limit: args.limit,
        reverse: args.reverse,
        keys_only: args.keys_only,
        revision: args.revision,
        cursor: args.cursor.clone(),
    };
    if let (Some(start), Some(end)) = (&query.start, &query.end)
        && start > end
    {
        return Err(Failure::usage("the range has no keys, because --start is behind --end")
            .then("exchange the two; --reverse lists the pairs in descending order"));
    }
    Session::with(&args.place, Access::Read, |session| {
        let mut lines = render::Lines::new();
        let scanned = session.scan(&args.keyspace, &query, &mut |pair| {
            let text = if args.place.json { pair_json(pair) } else { pair_text(pair, args.key_format) };
            lines.line(&text)?;
            Ok(ControlFlow::Continue(()))
        });
        let more = match scanned {
            // The first write creates a missing keyspace. So a keyspace that does not exist yet counts as empty.
            Err(failure) if failure.code == "no_such_keyspace" => {
                if !args.place.json {
                    render::note(&format!("{}; `thalweg keyspaces` lists the existing ones", failure.message));
                }
                None
            }
            scanned => scanned?,
        };
        if let Some(cursor) = more.as_ref().filter(|_| args.place.json) {
            lines.line(&json!({ "cursor": cursor }).to_string())?;
        }
        lines.flush()?;
        if let Some(cursor) = more.filter(|_| !args.place.json) {
            render::note(&format!("there are more pairs: continue with --cursor {cursor}"));
        }
        Ok(())
    })
}

/// Formats a key, its value and its revision as one JSON object.
pub(crate) fn pair_json(pair: Pair<'_>) -> String {
    let mut object = Map::new();
    render::insert_bytes(&mut object, "key", pair.key);
    if let Some(value) = pair.value {
        render::insert_bytes(&mut object, "value", value);
    }
    object.insert("revision".into(), json!(pair.revision));
    Value::Object(object).to_string()
}

fn pair_text(pair: Pair<'_>, format: KeyFormat) -> String {
    let key = format.show(pair.key);
    pair.value.map_or(key.clone(), |value| format!("{key}\t{}", render::one_line(value)))
}

#[derive(Args, Debug)]
#[command(after_help = "A counter is a value in decimal digits; a missing key counts as 0.\n\n\
                        Examples:\n  thalweg incr stats visits\n  thalweg incr stats stock --by -3")]
pub(crate) struct Incr {
    #[command(flatten)]
    pub key: KeyArgs,
    /// Number to add
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    pub by: i64,
    #[command(flatten)]
    pub place: TargetArgs,
}

pub(crate) fn incr(args: &Incr) -> Result<(), Failure> {
    let key = args.key.bytes()?;
    let (value, Written { durability, revision }) =
        Session::with(&args.place, Access::Write, |session| session.add(&args.key.keyspace, &key, args.by))
            .map_err(|failure| naming_key(failure, &args.key))?;
    let object = json!({"value": value, "revision": revision, "durability": durability.name()});
    render::print_result(&object, args.place.json, || value.to_string())
}

/// Replaces the words "operation 0" in the message of a failure by the key and its keyspace. The server uses these
/// words even if the request has only one operation.
fn naming_key(mut failure: Failure, args: &KeyArgs) -> Failure {
    if let Some(message) = failure.message.strip_prefix("operation 0: ") {
        failure.message = format!("key {:?} in keyspace {:?}: {message}", args.key, args.keyspace);
    }
    failure
}

fn show_written(Written { durability, revision }: &Written, json: bool) -> Result<(), Failure> {
    render::print_result(&json!({"revision": revision, "durability": durability.name()}), json, || {
        let revision = revision.map_or(String::new(), |revision| format!("revision {revision}, "));
        format!("ok, {revision}durability {durability}")
    })
}
