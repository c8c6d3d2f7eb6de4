//! Commands and rows in words, for whoever has to find out why a list fails.

use std::fmt::Write as _;

use thalweg_types::command::{Command, Write};

/// Bytes that are shown of a key or a value.
const SHOWN: usize = 24;

/// Bytes as text where they are text, and cut: runs of one letter say how long they are.
pub fn bytes(bytes: &[u8]) -> String {
    let is_run = bytes.len() > SHOWN && bytes.iter().all(|byte| *byte == bytes[0]);
    match bytes {
        bytes if is_run => format!("{}*{}", bytes[..1].escape_ascii(), bytes.len()),
        bytes if bytes.len() > SHOWN => format!("{}..({} bytes)", bytes[..SHOWN].escape_ascii(), bytes.len()),
        bytes => format!("'{}'", bytes.escape_ascii()),
    }
}

/// A command, decoded.
pub fn command(encoded: &[u8]) -> String {
    match Command::decode(encoded) {
        Err(malformed) => format!("malformed, {malformed:?}: {}", bytes(encoded)),
        Ok(Command::Commit(commit)) => {
            let mut out = "commit".to_owned();
            commit.conditions().for_each(|condition| {
                let Ok(condition) = condition else { return };
                let _ = write!(out, " if {} {} {:?};", condition.keyspace.0, bytes(condition.key), condition.expect);
            });
            writes(&mut out, commit.writes().into_iter().flatten());
            out
        }
        Ok(Command::Transaction(transaction)) => {
            let mut out = "transaction".to_owned();
            transaction.conditions().for_each(|condition| {
                let Ok(condition) = condition else { return };
                let _ = write!(out, " if {} {} {:?};", condition.keyspace.0, bytes(condition.key), condition.expect);
            });
            if let Ok([then, otherwise]) = transaction.branches() {
                writes(&mut out, then);
                out.push_str(" else");
                writes(&mut out, otherwise);
            }
            out
        }
        Ok(Command::Redis(batch)) => {
            let mut out = format!("redis in {}", batch.keyspace.0);
            batch.watched().for_each(|(key, version)| _ = write!(out, " watch {} {version};", bytes(key)));
            let (mut commands, mut args) = (batch.commands(), Vec::new());
            while commands.next_into(&mut args) {
                let words: Vec<_> = args.iter().map(|arg| bytes(arg).trim_matches('\'').to_owned()).collect();
                let _ = write!(out, " [{}]", words.join(" "));
            }
            out
        }
        Ok(other) => format!("{other:?}"),
    }
}

fn writes<'a, E>(out: &mut String, list: impl Iterator<Item = Result<Write<'a>, E>>) {
    for write in list.flatten() {
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
}

/// A row's key: its tag and the rest.
pub fn row(key: &[u8]) -> String {
    match key {
        [tag, rest @ ..] => format!("{tag:02x} {}", rest.escape_ascii()),
        [] => "empty key".to_owned(),
    }
}
