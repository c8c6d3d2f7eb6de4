//! Commands that concern the client's connection and not keys, such as `AUTH` and `CLIENT`: their names, numbers of
//! arguments and flags. The server implements them.

use crate::{
    command::{Command, Keys, Subcommand},
    flags::Flags,
};

const ANY_TIME: Flags = Flags::LOADING.and(Flags::STALE);
const OWN: Flags = ANY_TIME.and(Flags::NO_SCRIPT);
const ADMIN: Flags = OWN.and(Flags::ADMIN);
const TRANSACTION: Flags = OWN.and(Flags::FAST).and(Flags::ALLOW_BUSY).and(Flags::TRANSACTION);

/// Flags of commands on the connection that Redis permits even while it loads data or its replica lags.
const ASKING: Flags = ANY_TIME.and(Flags::CONNECTION);
const OF_CLIENT: Flags = OWN.and(Flags::CONNECTION);
const OF_CLIENTS: Flags = ADMIN.and(Flags::CONNECTION);
const SETTLING: Flags = OF_CLIENT.and(Flags::FAST).and(Flags::NO_AUTH).and(Flags::ALLOW_BUSY);

const fn session(name: &'static str, arity: i16, flags: Flags) -> Command {
    Command::session(name, arity, flags, Keys::NONE, &[])
}

/// Table of the commands that concern the client's connection.
pub const COMMANDS: &[Command] = &[
    session("auth", -2, SETTLING),
    session("client", -2, Flags::NONE).with(&[
        Subcommand::new("client|getname", 2, OF_CLIENT),
        Subcommand::new("client|getredir", 2, OF_CLIENT),
        Subcommand::help("client|help", Flags::CONNECTION),
        Subcommand::new("client|id", 2, OF_CLIENT),
        Subcommand::new("client|info", 2, OF_CLIENT),
        Subcommand::new("client|kill", -3, OF_CLIENTS),
        Subcommand::new("client|list", -2, OF_CLIENTS),
        Subcommand::new("client|no-evict", 3, OF_CLIENTS),
        Subcommand::new("client|no-touch", 3, OF_CLIENT),
        Subcommand::new("client|reply", 3, OF_CLIENT),
        Subcommand::new("client|setinfo", 4, OF_CLIENT),
        Subcommand::new("client|setname", 3, OF_CLIENT),
        Subcommand::new("client|unblock", -3, OF_CLIENTS),
    ]),
    session("command", -1, ASKING).with(&[
        Subcommand::new("command|count", 2, ASKING),
        Subcommand::new("command|docs", -2, ASKING),
        Subcommand::new("command|getkeys", -4, ASKING),
        Subcommand::help("command|help", Flags::CONNECTION),
        Subcommand::new("command|info", -2, ASKING),
        Subcommand::new("command|list", -2, ASKING),
    ]),
    session("config", -2, Flags::NONE).with(&[
        Subcommand::new("config|get", -3, ADMIN),
        Subcommand::help("config|help", Flags::NONE),
        Subcommand::new("config|resetstat", 2, ADMIN),
        Subcommand::new("config|rewrite", 2, ADMIN),
        Subcommand::new("config|set", -4, ADMIN),
    ]),
    session("discard", 1, TRANSACTION),
    session("echo", 2, ASKING.and(Flags::FAST)),
    session("exec", 1, OWN.and(Flags::SKIP_SLOWLOG).and(Flags::TRANSACTION)),
    session("hello", -1, SETTLING),
    session("info", -1, ANY_TIME.and(Flags::DANGEROUS)),
    session("multi", 1, TRANSACTION),
    session("ping", -1, Flags::CONNECTION.and(Flags::FAST)),
    session("quit", -1, SETTLING),
    session("reset", 1, SETTLING),
    session("role", 1, OWN.and(Flags::FAST).and(Flags::FOR_ADMINS).and(Flags::DANGEROUS)),
    session("select", 2, ASKING.and(Flags::FAST)),
    session("time", 1, ANY_TIME.and(Flags::FAST)),
    session("unwatch", 1, TRANSACTION),
    session("wait", 3, Flags::CONNECTION.and(Flags::NO_SCRIPT)),
    Command::session("watch", -2, TRANSACTION, Keys::ALL, &[]),
];
