//! `incr`, `commit`, `txn`, `del --prefix`, and commands for whole keyspaces.

use std::{io::Read as _, path::Path};

use serde_json::{Map, Value, json};
use thalweg_types::limits::MAX_COMMAND_BYTES;

use super::{parse_key, with_target};
use crate::{
    cli::{Commit, Del, Incr, KeyspaceAction, Keyspaces, Txn},
    failure::{Exit, Failure},
    render,
    span::show_time,
    target::{Access, Place},
};

pub fn incr(args: &Incr) -> Result<(), Failure> {
    let key = parse_key(&args.key.key, args.key.key_format)?;
    let (value, written) =
        with_target(&args.place, Access::Write, |target| target.add(&args.key.keyspace, &key, args.by))?;
    if !args.place.json {
        return render::line(&value.to_string());
    }
    let durability = written.durability.name();
    render::line(&json!({"value": value, "revision": written.revision, "durability": durability}).to_string())
}

pub fn del_prefix(args: &Del, prefix: &str) -> Result<(), Failure> {
    let prefix = parse_key(prefix, args.key_format)?;
    let (keys, written) =
        with_target(&args.place, Access::Read, |target| target.delete_prefix(&args.keyspace, &prefix))?;
    let durability = written.durability;
    if args.place.json {
        let object = json!({"keys": keys, "revision": written.revision, "durability": durability.name()});
        return render::line(&object.to_string());
    }
    let keys = keys.map_or("all keys with the prefix are".to_owned(), |keys| match keys {
        1 => "1 key is".to_owned(),
        keys => format!("{} keys are", render::count(keys)),
    });
    let revision = written.revision.map_or(String::new(), |revision| format!("revision {revision}, "));
    render::line(&format!("ok, {keys} gone, {revision}durability {durability}"))
}

/// Returns the request body from the argument, a file, or stdin.
fn body(typed: Option<&str>, file: Option<&Path>) -> Result<Vec<u8>, Failure> {
    match (typed, file) {
        (_, Some(path)) => std::fs::read(path).map_err(|error| Failure::file(path, &error)),
        (None | Some("-"), None) => {
            let mut body = Vec::new();
            std::io::stdin().lock().take(4 * MAX_COMMAND_BYTES as u64).read_to_end(&mut body)?;
            Ok(body)
        }
        (Some(text), None) => Ok(text.as_bytes().to_vec()),
    }
}

pub fn commit(args: &Commit) -> Result<(), Failure> {
    let body = body(args.commit.as_deref(), args.file.as_deref())?;
    let answer = with_target(&args.place, Access::Write, |target| target.commit(&body))?;
    if args.place.json { render::line(&answer.to_string()) } else { show_commit(&answer) }
}

fn show_commit(answer: &Value) -> Result<(), Failure> {
    let level = answer["durability"].as_str().unwrap_or_default();
    let revision = answer["revision"].as_u64().map_or(String::new(), |revision| format!("revision {revision}, "));
    let before = if answer["duplicate"] == json!(true) { "it happened before, " } else { "" };
    render::line(&format!("ok, {before}{revision}durability {level}"))?;
    for (op, name) in [("append", "appends"), ("publish", "published")] {
        for result in answer[name].as_array().into_iter().flatten() {
            render::line(&format!("{op}\t{result}"))?;
        }
    }
    Ok(())
}

pub fn txn(args: &Txn) -> Result<(), Failure> {
    let body = body(args.transaction.as_deref(), args.file.as_deref())?;
    let answer = with_target(&args.place, Access::Write, |target| target.transact(&body))?;
    if args.place.json {
        render::line(&answer.to_string())?;
    } else {
        show_transaction(&answer)?;
    }
    let nothing_done = answer["results"].as_array().is_none_or(Vec::is_empty);
    if answer["succeeded"] == json!(false) && nothing_done {
        let number = answer["failed"]["condition"].as_u64().unwrap_or_default();
        let message = format!("condition {number} did not hold, and there is no \"else\"");
        return Err(Failure::new(Exit::Conflict, "condition_failed", message)
            .then("read the keys again and decide anew; nothing was written"));
    }
    Ok(())
}

fn show_transaction(answer: &Value) -> Result<(), Failure> {
    let branch = if answer["succeeded"] == json!(true) { "then" } else { "else" };
    let level = answer["durability"].as_str().unwrap_or_default();
    render::line(&format!("ok, {branch}, revision {}, durability {level}", answer["revision"]))?;
    for result in answer["results"].as_array().into_iter().flatten() {
        let op = result["op"].as_str().unwrap_or_default();
        let fields = result.as_object().into_iter().flatten().filter(|(name, _)| *name != "op");
        let fields: Map<String, Value> = fields.map(|(name, value)| (name.clone(), value.clone())).collect();
        let fields = if fields.is_empty() { String::new() } else { format!("\t{}", Value::Object(fields)) };
        render::line(&format!("{op}{fields}"))?;
    }
    Ok(())
}

pub fn keyspaces(args: &Keyspaces) -> Result<(), Failure> {
    let place = args.place();
    match &args.action {
        None | Some(KeyspaceAction::List(_)) => list(place),
        Some(KeyspaceAction::Stats { keyspace, .. }) => {
            let found = with_target(place, Access::Read, |target| target.keyspace(keyspace))?;
            show(&found, place.json)
        }
        Some(KeyspaceAction::Create { keyspace, settings, .. }) => {
            let change = settings.change();
            let found = with_target(place, Access::Write, |target| target.create_keyspace(keyspace, &change))?;
            if place.json {
                render::line(&found.to_string())
            } else {
                render::line(&format!("ok, {keyspace} is there"))
            }
        }
        Some(KeyspaceAction::Config { keyspace, settings, .. }) => {
            let change = settings.change();
            let found = with_target(place, Access::Read, |target| target.configure_keyspace(keyspace, &change))?;
            show(&found, place.json)
        }
        Some(KeyspaceAction::Drop { keyspace, .. }) => {
            with_target(place, Access::Read, |target| target.drop_keyspace(keyspace))?;
            let words = format!("ok, {keyspace} and all it held are gone");
            render::line(&if place.json { json!({"dropped": keyspace}).to_string() } else { words })
        }
    }
}

fn list(place: &Place) -> Result<(), Failure> {
    let names = with_target(place, Access::Read, |target| target.keyspaces())?;
    if names.is_empty() && !place.json {
        render::note("no keyspaces yet: `thalweg put KEYSPACE KEY VALUE` creates one");
    }
    for name in names {
        render::line(&if place.json { json!({ "name": name }).to_string() } else { name })?;
    }
    Ok(())
}

fn show(found: &Value, json: bool) -> Result<(), Failure> {
    if json {
        return render::line(&found.to_string());
    }
    let stats = &found["stats"];
    let about = if stats["exact"] == json!(true) { "" } else { "about " };
    let number = |name: &str| stats[name].as_u64().unwrap_or_default();
    let row = vec![
        found["name"].as_str().unwrap_or_default().to_owned(),
        format!("{about}{}", render::count(number("keys"))),
        format!("{about}{}", render::bytes(number("bytes"))),
        if found["config"]["exact_counts"] == json!(true) { "with every write" } else { "when asked" }.to_owned(),
        found["created_micros"].as_u64().map_or("-".to_owned(), show_time),
    ];
    render::line(&render::table(&["keyspace", "keys", "bytes", "counted", "created"], [row]))
}
