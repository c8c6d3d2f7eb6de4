//! Commands that are about the connection, not about keys: their names and how many arguments they take. What they do is
//! the server's.

use crate::command::{Command, Keys, Subcommand};

const SETTLING: &[&str] = &["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"];
const TRANSACTION: &[&str] = &["noscript", "loading", "stale", "fast", "allow_busy"];
const ANY_TIME: &[&str] = &["loading", "stale"];
const ANY_TIME_FAST: &[&str] = &["loading", "stale", "fast"];
const ADMIN: &[&str] = &["admin", "noscript", "loading", "stale"];
const OWN: &[&str] = &["noscript", "loading", "stale"];

const fn session(name: &'static str, arity: i16, flags: &'static [&'static str]) -> Command {
    Command::session(name, arity, flags, Keys::NONE, &[])
}

/// The table.
pub const COMMANDS: &[Command] = &[
    session("auth", -2, SETTLING),
    session("client", -2, &[]).with(&[
        Subcommand::new("client|getname", 2, OWN),
        Subcommand::new("client|getredir", 2, OWN),
        Subcommand::new("client|help", 2, ANY_TIME),
        Subcommand::new("client|id", 2, OWN),
        Subcommand::new("client|info", 2, OWN),
        Subcommand::new("client|kill", -3, ADMIN),
        Subcommand::new("client|list", -2, ADMIN),
        Subcommand::new("client|no-evict", 3, ADMIN),
        Subcommand::new("client|no-touch", 3, OWN),
        Subcommand::new("client|reply", 3, OWN),
        Subcommand::new("client|setinfo", 4, OWN),
        Subcommand::new("client|setname", 3, OWN),
        Subcommand::new("client|unblock", -3, ADMIN),
    ]),
    session("command", -1, ANY_TIME).with(&[
        Subcommand::new("command|count", 2, ANY_TIME),
        Subcommand::new("command|docs", -2, ANY_TIME),
        Subcommand::new("command|getkeys", -4, ANY_TIME),
        Subcommand::new("command|help", 2, ANY_TIME),
        Subcommand::new("command|info", -2, ANY_TIME),
        Subcommand::new("command|list", -2, ANY_TIME),
    ]),
    session("config", -2, &[]).with(&[
        Subcommand::new("config|get", -3, ADMIN),
        Subcommand::new("config|help", 2, ANY_TIME),
        Subcommand::new("config|resetstat", 2, ADMIN),
        Subcommand::new("config|rewrite", 2, ADMIN),
        Subcommand::new("config|set", -4, ADMIN),
    ]),
    session("discard", 1, TRANSACTION),
    session("echo", 2, ANY_TIME_FAST),
    session("exec", 1, &["noscript", "loading", "stale", "skip_slowlog"]),
    session("hello", -1, SETTLING),
    session("info", -1, ANY_TIME),
    session("multi", 1, TRANSACTION),
    session("ping", -1, &["fast"]),
    session("quit", -1, SETTLING),
    session("reset", 1, SETTLING),
    session("role", 1, &["noscript", "loading", "stale", "fast"]),
    session("select", 2, ANY_TIME_FAST),
    session("time", 1, ANY_TIME_FAST),
    session("unwatch", 1, TRANSACTION),
    session("wait", 3, &["noscript"]),
    Command::session("watch", -2, TRANSACTION, Keys::ALL, &[]),
];
