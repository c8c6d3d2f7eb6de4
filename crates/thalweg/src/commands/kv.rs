//! `put`, `get`, `del`, `scan`.

use std::{
    io::{IsTerminal as _, Read as _},
    ops::ControlFlow,
};

use serde_json::{Map, Value, json};
use thalweg_types::{
    LeaseId, Revision,
    command::{Deadline, Expect},
    limits::MAX_VALUE_BYTES,
};

use super::{parse_key, transaction, with_target};
use crate::{
    cli::{Del, Get, KeyFormat, Put, Scan},
    failure::{Exit, Failure},
    render,
    target::{Access, Pair, ScanQuery, Written, time::PutTerms},
};

pub fn put(args: &Put) -> Result<(), Failure> {
    let key = parse_key(&args.key.key, args.key.key_format)?;
    let value = value_of(args)?;
    let expect = expectation(args.if_absent, args.if_present, args.if_revision, args.if_value.as_deref());
    with_target(&args.place, Access::Write, |target| {
        let deadline = args.ttl.unwrap_or_default();
        let written = match (deadline, args.lease) {
            (Deadline::Default, None) => target.put(&args.key.keyspace, &key, &value, expect)?,
            (deadline, lease) => {
                let terms = PutTerms { expect, deadline, lease: lease.map(LeaseId) };
                target.put_until(&args.key.keyspace, &key, &value, &terms)?
            }
        };
        show_written(&written, args.place.json)
    })
}

pub fn get(args: &Get) -> Result<(), Failure> {
    let key = parse_key(&args.key.key, args.key.key_format)?;
    let found = with_target(&args.place, Access::Read, |target| match args.revision {
        Some(revision) => target.get_at(&args.key.keyspace, &key, revision),
        None => target.get(&args.key.keyspace, &key),
    })?;
    let Some(found) = found else {
        if let Some(revision) = args.revision {
            let message = format!(
                "key {:?} in keyspace {:?} had no value at revision {revision}",
                args.key.key, args.key.keyspace
            );
            return Err(Failure::new(Exit::NotFound, "not_found", message)
                .then(format!("`thalweg history {} {}` lists what is kept", args.key.keyspace, args.key.key)));
        }
        return Err(Failure::new(
            Exit::NotFound,
            "not_found",
            format!("there is no key {:?} in keyspace {:?}", args.key.key, args.key.keyspace),
        )
        .then(format!("`thalweg scan {}` lists what is there", args.key.keyspace)));
    };
    if !args.place.json {
        render::out(&found.value)?;
        // A terminal prompt directly after the value would look like part of it.
        let split = std::io::stdout().is_terminal() && !found.value.ends_with(b"\n");
        return if split { render::line("") } else { Ok(()) };
    }
    let mut object = Map::new();
    render::insert_bytes(&mut object, "key", &key);
    render::insert_bytes(&mut object, "value", &found.value);
    object.insert("revision".into(), json!(found.revision));
    render::line(&Value::Object(object).to_string())
}

pub fn del(args: &Del) -> Result<(), Failure> {
    if let Some(prefix) = &args.prefix {
        return transaction::del_prefix(args, prefix);
    }
    let key = parse_key(args.key.as_deref().unwrap_or_default(), args.key_format)?;
    let expect = expectation(false, args.if_present, args.if_revision, args.if_value.as_deref());
    with_target(&args.place, Access::Read, |target| {
        let written = target.delete(&args.keyspace, &key, expect)?;
        show_written(&written, args.place.json)
    })
}

pub fn scan(args: &Scan) -> Result<(), Failure> {
    let key = |text: &String| parse_key(text, args.key_format);
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
    with_target(&args.place, Access::Read, |target| {
        let mut lines = render::Lines::new();
        let more = target.scan(&args.keyspace, &query, &mut |pair| {
            let text = if args.place.json { pair_json(pair) } else { pair_text(pair, args.key_format) };
            lines.line(&text)?;
            Ok(ControlFlow::Continue(()))
        })?;
        if let Some(cursor) = more.as_ref().filter(|_| args.place.json) {
            lines.line(&json!({ "cursor": cursor }).to_string())?;
        }
        lines.flush()?;
        if let Some(cursor) = more.filter(|_| !args.place.json) {
            render::note(&format!("there is more: the same with --cursor {cursor}"));
        }
        Ok(())
    })
}

/// Formats a pair as one JSON object.
pub fn pair_json(pair: Pair<'_>) -> String {
    let mut object = Map::new();
    render::insert_bytes(&mut object, "key", pair.key);
    if let Some(value) = pair.value {
        render::insert_bytes(&mut object, "value", value);
    }
    object.insert("revision".into(), json!(pair.revision));
    Value::Object(object).to_string()
}

fn pair_text(pair: Pair<'_>, format: KeyFormat) -> String {
    let key = match format {
        KeyFormat::Text => render::one_line(pair.key),
        KeyFormat::Hex => pair.key.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    match pair.value {
        Some(value) => format!("{key}\t{}", render::one_line(value)),
        None => key,
    }
}

fn value_of(args: &Put) -> Result<Vec<u8>, Failure> {
    if let Some(path) = &args.file {
        return std::fs::read(path).map_err(|error| Failure::file(path, &error));
    }
    bytes_or_stdin(args.value.as_deref())
}

/// Returns the argument; for `-` or no argument, the contents of stdin.
pub fn bytes_or_stdin(typed: Option<&str>) -> Result<Vec<u8>, Failure> {
    match typed {
        None | Some("-") => {
            let mut value = Vec::new();
            // Reads one byte more than allowed, so that a longer value is rejected instead of truncated.
            std::io::stdin().lock().take(MAX_VALUE_BYTES as u64 + 1).read_to_end(&mut value)?;
            Ok(value)
        }
        Some(text) => Ok(text.as_bytes().to_vec()),
    }
}

fn expectation(absent: bool, present: bool, revision: Option<u64>, value: Option<&str>) -> Option<Expect<'_>> {
    match (absent, present, revision, value) {
        (true, ..) => Some(Expect::Absent),
        (_, true, ..) => Some(Expect::Present),
        (.., Some(revision), _) => Some(Expect::Revision(Revision(revision))),
        (.., Some(value)) => Some(Expect::Value(value.as_bytes())),
        _ => None,
    }
}

fn show_written(written: &Written, json: bool) -> Result<(), Failure> {
    if json {
        return render::line(
            &json!({"revision": written.revision, "durability": written.durability.name()}).to_string(),
        );
    }
    let revision = written.revision.map_or(String::new(), |revision| format!("revision {revision}, "));
    render::line(&format!("ok, {revision}durability {}", written.durability))
}
