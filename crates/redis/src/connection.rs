//! Commands that are about the connection, not about keys: their names and how many arguments they take. What they do is
//! the server's.

use crate::command::{Command, Keys, Run};

const SETTLING: &[&str] = &["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"];
const TRANSACTION: &[&str] = &["noscript", "loading", "stale", "fast", "allow_busy"];
const ANY_TIME: &[&str] = &["loading", "stale"];
const ANY_TIME_FAST: &[&str] = &["loading", "stale", "fast"];

const fn session(name: &'static str, arity: i16, flags: &'static [&'static str]) -> Command {
    Command { name, arity, flags, keys: Keys::NONE, run: Run::Session }
}

/// The table.
pub const COMMANDS: &[Command] = &[
    session("auth", -2, SETTLING),
    session("client", -2, &[]),
    session("command", -1, ANY_TIME),
    session("config", -2, &[]),
    session("discard", 1, TRANSACTION),
    session("echo", 2, ANY_TIME_FAST),
    session("exec", 1, &["noscript", "loading", "stale", "skip_slowlog"]),
    session("hello", -1, SETTLING),
    session("info", -1, ANY_TIME),
    session("multi", 1, TRANSACTION),
    session("ping", -1, &["fast"]),
    session("quit", -1, SETTLING),
    session("reset", 1, SETTLING),
    session("select", 2, ANY_TIME_FAST),
    session("time", 1, ANY_TIME_FAST),
    session("unwatch", 1, TRANSACTION),
    Command { keys: Keys::ALL, ..session("watch", -2, TRANSACTION) },
];
