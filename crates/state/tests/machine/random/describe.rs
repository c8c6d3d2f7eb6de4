//! Readable descriptions of commands and rows, for finding the cause of a failing list.

use std::fmt::Write as _;

use thalweg_types::command::{
    Command, Condition, Expect, TimeCommand, Write,
    groups::{Fetch, GroupCommand},
};

/// Maximum bytes shown of a key or a value.
const SHOWN: usize = 24;
/// Maximum writes shown of a command.
const SHOWN_WRITES: usize = 9;

/// Returns bytes as text where they are text, truncated; runs of one letter are shown with their length.
pub fn bytes(bytes: &[u8]) -> String {
    let is_run = bytes.len() > SHOWN && bytes.iter().all(|byte| *byte == bytes[0]);
    match bytes {
        bytes if is_run => format!("{}*{}", bytes[..1].escape_ascii(), bytes.len()),
        bytes if bytes.len() > SHOWN => format!("{}..({} bytes)", bytes[..SHOWN].escape_ascii(), bytes.len()),
        bytes => format!("'{}'", bytes.escape_ascii()),
    }
}

/// Decodes and describes a command.
pub fn command(encoded: &[u8]) -> String {
    match Command::decode(encoded) {
        Err(malformed) => format!("malformed, {malformed:?}: {}", bytes(encoded)),
        Ok(Command::Commit(commit)) => {
            let mut out = "commit".to_owned();
            conditions(&mut out, commit.conditions());
            writes(&mut out, commit.writes().into_iter().flatten());
            out
        }
        Ok(Command::Transaction(transaction)) => {
            let mut out = "transaction".to_owned();
            conditions(&mut out, transaction.conditions());
            if let Ok([then, otherwise]) = transaction.branches() {
                writes(&mut out, then);
                out.push_str(" else");
                writes(&mut out, otherwise);
            }
            out
        }
        Ok(Command::Redis(batch) | Command::RedisJoint(batch)) => {
            let mut out = format!("redis in {}", batch.keyspace.0);
            batch.watched().for_each(|(key, version)| _ = write!(out, " watch {} {version};", bytes(key)));
            let (mut commands, mut args) = (batch.commands(), Vec::new());
            while commands.next_into(&mut args) {
                let words: Vec<_> = args.iter().map(|arg| bytes(arg).trim_matches('\'').to_owned()).collect();
                let _ = write!(out, " [{}]", words.join(" "));
            }
            out
        }
        Ok(Command::Time(TimeCommand::Forget { rows })) => {
            format!("forget rows{}", rows.iter().map(|key| format!(" [{}]", row(key))).collect::<String>())
        }
        Ok(Command::Group(GroupCommand::Fetch(Fetch { group, max, window, member, .. }))) => {
            format!("fetch {max} from group {} as {member}, window {}", group.0, window.0)
        }
        Ok(other) => format!("{other:?}"),
    }
}

fn conditions<'a, E>(out: &mut String, list: impl Iterator<Item = Result<Condition<'a>, E>>) {
    for Condition { keyspace, key, expect } in list.flatten() {
        let _ = match expect {
            Expect::Value(value) => write!(out, " if {} {} is {};", keyspace.0, bytes(key), bytes(value)),
            expect => write!(out, " if {} {} {expect:?};", keyspace.0, bytes(key)),
        };
    }
}

fn writes<'a, E>(out: &mut String, list: impl Iterator<Item = Result<Write<'a>, E>>) {
    let all: Vec<_> = list.flatten().collect();
    for write in all.iter().take(SHOWN_WRITES) {
        let _ = match write {
            Write::Put { keyspace, key, value, .. } => {
                write!(out, " put {} {} = {};", keyspace.0, bytes(key), bytes(value))
            }
            Write::PutUntil { keyspace, key, value, deadline, lease, .. } => {
                write!(out, " put {} {} = {} {deadline:?} {lease:?};", keyspace.0, bytes(key), bytes(value))
            }
            Write::Touch { keyspace, key, deadline } => {
                write!(out, " touch {} {} {deadline:?};", keyspace.0, bytes(key))
            }
            Write::Delete { keyspace, key } => write!(out, " delete {} {};", keyspace.0, bytes(key)),
            Write::DeletePrefix { keyspace, prefix } => {
                write!(out, " delete prefix {} {};", keyspace.0, bytes(prefix))
            }
            Write::Append { stream, expected, producer, count, batch, .. } => {
                let len = batch.len();
                write!(out, " append {} {count} records in {len} bytes {expected:?} {producer:?};", stream.0)
            }
            other => write!(out, " {other:?};"),
        };
    }
    if all.len() > SHOWN_WRITES {
        let _ = write!(out, " and {} more writes;", all.len() - SHOWN_WRITES);
    }
}

/// Describes a row's key: its tag and the remaining bytes.
pub fn row(key: &[u8]) -> String {
    match key {
        [tag, rest @ ..] => format!("{tag:02x} {}", rest.escape_ascii()),
        [] => "empty key".to_owned(),
    }
}
