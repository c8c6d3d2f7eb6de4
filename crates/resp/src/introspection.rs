//! Descriptions of the server: `COMMAND` and `INFO`.
//!
//! Owns: both commands, and the version of Redis that the server reports. Does not own: the table of commands
//! (`thalweg_redis`), or the counters (`metrics`, `statistics`).
//!
//! `INFO` has those fields that tools and clients read, under Redis's names, if they have a meaning for this server.
//! `/metrics` has more figures.

use std::{fmt::Write as _, process};

use thalweg_redis::{
    Command, Flags, Reply, Run,
    command::{Keys, Subcommand, help},
    errors::wrong_subcommand,
    table::{all, find_full},
    wire::Writer,
};
use thalweg_serving::admission::Resource;
use thalweg_transport::Outbox;
use thalweg_types::{
    budget::{Budget, BudgetSpent},
    limits::MAX_REDIS_PATTERN_BYTES,
};

use super::{
    bounds::PATTERN_TOO_LONG,
    databases::Databases,
    metrics::Totals,
    out::ReplyTarget,
    pubsub::Kind,
    session::{CommandProgress, Session},
};

/// Version of Redis that the server reports. Clients use the version to decide which commands they can send.
pub(crate) const REDIS_VERSION: &str = "7.0.15";

/// Reply to `COMMAND HELP`.
const HELP: &[&str] = &[
    "COMMAND <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "(no subcommand)",
    "    Return details about all commands.",
    "COUNT",
    "    Return the number of commands.",
    "LIST [FILTERBY (MODULE|ACLCAT|PATTERN) <value>]",
    "    Return the names of commands.",
    "INFO [<command-name> ...]",
    "    Return details about some commands, or about all.",
    "DOCS [<command-name> ...]",
    "    Return short documentation of some commands, or of all.",
    "GETKEYS <full-command>",
    "    Return the keys among the arguments of a command.",
];

/// A command and, if it is a container of subcommands, the subcommand that the request names.
type NamedCommand = (&'static Command, Option<&'static Subcommand>);

/// Handles `COMMAND`: describes the supported commands.
pub(crate) fn command(session: &mut Session, arguments: &[&[u8]], out: &mut Outbox) {
    let named = || arguments[2..].iter().map(|name| find_full(name));
    let every = || all().map(|command| (command, None));
    let asks = arguments.get(1).map(|name| name.to_ascii_lowercase()).unwrap_or_default();
    match &*asks {
        b"" if arguments.len() == 1 => {
            session.write_reply(out, |writer| infos(writer, &every().map(Some).collect::<Vec<_>>()));
        }
        b"count" => session.write_reply(out, |writer| writer.integer(all().count() as i64)),
        b"info" => {
            let commands: Vec<_> = if arguments.len() == 2 { every().map(Some).collect() } else { named().collect() };
            session.write_reply(out, |writer| infos(writer, &commands));
        }
        b"docs" => {
            let commands: Vec<_> = if arguments.len() == 2 { every().collect() } else { named().flatten().collect() };
            session.write_reply(out, |writer| docs(writer, &commands));
        }
        b"list" => list(session, &arguments[2..], out),
        b"getkeys" => get_keys(session, &arguments[2..], out),
        b"help" => session.answer(&help(HELP), out),
        _ => session.answer(&wrong_subcommand("COMMAND", arguments[1]), out),
    }
}

fn infos(writer: &mut Writer<ReplyTarget<'_>>, commands: &[Option<NamedCommand>]) {
    writer.array(commands.len());
    for command in commands {
        match command {
            None => writer.null(),
            Some((_, Some(of))) => info_of(writer, of.name, of.arity, of.flags, of.keys, &[]),
            Some((of, None)) => info_of(writer, of.name, of.arity, of.flags, of.keys, of.subcommands),
        }
    }
}

fn info_of(
    writer: &mut Writer<ReplyTarget<'_>>,
    name: &str,
    arity: i16,
    flags: Flags,
    keys: Keys,
    subcommands: &[Subcommand],
) {
    writer.array(10);
    writer.bulk(name.as_bytes());
    writer.integer(arity.into());
    names(writer, flags.names());
    for number in [keys.first, keys.last, keys.step] {
        writer.integer(number.into());
    }
    names(writer, flags.categories());
    // The tips and the key specifications are empty sets. As in Redis, a missing list of subcommands is also an empty
    // set, while existing subcommands are an array.
    (0..2).for_each(|_| writer.set(0));
    match subcommands.len() {
        0 => writer.set(0),
        count => writer.array(count),
    }
    for of in subcommands {
        info_of(writer, of.name, of.arity, of.flags, of.keys, &[]);
    }
}

fn names(writer: &mut Writer<ReplyTarget<'_>>, names: impl Iterator<Item = &'static str>) {
    let names: Vec<_> = names.collect();
    writer.set(names.len());
    names.iter().for_each(|name| writer.simple(name));
}

/// Returns the group that Redis's documentation assigns to a command, such as "string".
fn group(command: &Command) -> &'static str {
    match command.name {
        "multi" | "exec" | "discard" | "watch" | "unwatch" => "transactions",
        "info" | "config" | "command" | "time" | "role" | "memory" | "dbsize" | "flushdb" | "flushall" => "server",
        "wait" => "generic",
        name if name == "pubsub" || name.ends_with("publish") || name.ends_with("subscribe") => "pubsub",
        _ if matches!(command.run, Run::Session) => "connection",
        name if name.starts_with('x') => "stream",
        name if name.starts_with('h') => "hash",
        _ if command.flags.categories().any(|category| category == "@string") => "string",
        _ => "generic",
    }
}

fn docs(writer: &mut Writer<ReplyTarget<'_>>, commands: &[NamedCommand]) {
    writer.map(commands.len());
    for (command, subcommand) in commands {
        let (name, subcommands) = match subcommand {
            Some(of) => (of.name, &[][..]),
            None => (command.name, command.subcommands),
        };
        writer.bulk(name.as_bytes());
        writer.map(4 + usize::from(!subcommands.is_empty()));
        doc(writer, command);
        if !subcommands.is_empty() {
            writer.bulk(b"subcommands");
            writer.map(subcommands.len());
            for of in subcommands {
                writer.bulk(of.name.as_bytes());
                writer.map(4);
                doc(writer, command);
            }
        }
    }
}

/// Writes the documentation of a command, as the four fields of its reply to `COMMAND DOCS`.
fn doc(writer: &mut Writer<ReplyTarget<'_>>, command: &Command) {
    let summary = format!("As in Redis {REDIS_VERSION}; docs/redis.md lists the differences");
    let pairs =
        [("summary", &summary[..]), ("since", "1.0.0"), ("group", group(command)), ("complexity", "as in Redis")];
    for (key, value) in pairs {
        writer.bulk(key.as_bytes());
        writer.bulk(value.as_bytes());
    }
}

fn list(session: &mut Session, options: &[&[u8]], out: &mut Outbox) {
    let with_subcommands = |command: &'static Command| {
        let own = command.subcommands.iter().map(|of| (of.name, of.flags));
        std::iter::once((command.name, command.flags)).chain(own)
    };
    let mut named: Vec<(&str, Flags)> = all().flat_map(with_subcommands).collect();
    match options {
        [] => {}
        [filter, kind, pattern] if filter.eq_ignore_ascii_case(b"filterby") => {
            if kind.eq_ignore_ascii_case(b"pattern") && pattern.len() > MAX_REDIS_PATTERN_BYTES {
                return session.error(PATTERN_TOO_LONG, out);
            }
            if kind.eq_ignore_ascii_case(b"pattern") {
                let pattern = pattern.to_ascii_lowercase();
                named.retain(|(name, _)| thalweg_redis::glob::matches(&pattern, name.as_bytes()));
            } else if kind.eq_ignore_ascii_case(b"aclcat") {
                let is_it = |category: &str| category.as_bytes()[1..].eq_ignore_ascii_case(pattern);
                named.retain(|(_, flags)| flags.categories().any(is_it));
            } else if kind.eq_ignore_ascii_case(b"module") {
                named.clear();
            } else {
                return session.error(thalweg_redis::errors::SYNTAX, out);
            }
        }
        _ => return session.error(thalweg_redis::errors::SYNTAX, out),
    }
    session.write_reply(out, |writer| {
        writer.array(named.len());
        named.iter().for_each(|(name, _)| writer.bulk(name.as_bytes()));
    });
}

fn get_keys(session: &mut Session, arguments: &[&[u8]], out: &mut Outbox) {
    match keys_among(arguments) {
        Ok(keys) => session.answer(&Reply::Array(keys), out),
        Err(text) => session.error(text, out),
    }
}

/// Returns the keys among the arguments of a command. The first argument is the command's name. Errors, and the order
/// in which they are checked, are those of Redis.
fn keys_among(arguments: &[&[u8]]) -> Result<Vec<Reply>, &'static str> {
    const UNKNOWN: &str = "ERR Invalid command specified";
    let command = thalweg_redis::find(arguments[0]).ok_or(UNKNOWN)?;
    let (mut keys, mut flags) = (command.keys, command.flags);
    if let (false, Some(name)) = (command.subcommands.is_empty(), arguments.get(1)) {
        let named = |of: &&Subcommand| name.eq_ignore_ascii_case(of.own_name().as_bytes());
        let subcommand = command.subcommands.iter().find(named).ok_or(UNKNOWN)?;
        (keys, flags) = (subcommand.keys, subcommand.flags);
    }
    // `COMMAND INFO` gives sharded channels positions like those of keys. But channels are no keys.
    if keys == Keys::NONE || flags.contains(Flags::PUBSUB) {
        return Err("ERR The command has no key arguments");
    }
    // The subcommand exists, so the only possible error is a wrong number of arguments.
    if !command.takes(arguments.len()) || command.subcommand(arguments).is_err() {
        return Err("ERR Invalid number of arguments specified for command");
    }
    let keys: Vec<Reply> = command.keys_of(arguments).map(Reply::bulk).collect();
    if keys.is_empty() { Err("ERR Invalid arguments specified for command") } else { Ok(keys) }
}

/// Function that writes the fields of an `INFO` section.
type Section = fn(&Session, &mut String);

/// Sections that `INFO` shows only by name, or for `all` and `everything`.
const UNUSUAL_SECTIONS: [&str; 2] = ["Commandstats", "Latencystats"];

/// Handles `INFO`: reports the state of the server in sections.
pub(crate) fn info(session: &mut Session, command: &Command, arguments: &[&[u8]], out: &mut Outbox) -> CommandProgress {
    let named = &arguments[1..];
    let names = |name: &str| named.iter().any(|named| named.eq_ignore_ascii_case(name.as_bytes()));
    let (all, default) = (names("all") || names("everything"), named.is_empty() || names("default"));
    let wants = |section: &str| all || names(section) || default && !UNUSUAL_SECTIONS.contains(&section);
    let sections: [(&str, Section); 11] = [
        ("Server", server),
        ("Clients", clients),
        ("Memory", memory),
        ("Persistence", persistence),
        ("Stats", stats),
        ("Replication", replication),
        ("Modules", |_, _| ()),
        ("Commandstats", |session, text| totals(session).figures.command_stats(text)),
        ("Errorstats", |session, text| totals(session).figures.error_stats(text)),
        ("Latencystats", |session, text| totals(session).figures.latency_stats(text)),
        ("Cluster", |_, text| text.push_str("cluster_enabled:0\r\n")),
    ];
    let mut text = String::new();
    for (name, write) in sections {
        if wants(name) {
            begin_section(&mut text, name);
            write(session, &mut text);
        }
    }
    if wants("Keyspace") {
        begin_section(&mut text, "Keyspace");
        match keyspaces(&session.resp.databases, session.budget()) {
            Ok(lines) => text.push_str(&lines),
            // A command within `EXEC` must reply immediately, so the numbers of keys are left out.
            Err(_) if session.is_executing => {}
            Err(spent) => return session.info_again(spent, command.number_of(arguments), text, out),
        }
    }
    session.write_reply(out, |writer| writer.verbatim(&text));
    CommandProgress::Done
}

fn begin_section(text: &mut String, name: &str) {
    if !text.is_empty() {
        text.push_str("\r\n");
    }
    let _ = write!(text, "# {name}\r\n");
}

macro_rules! fields {
    ($text:ident, $($name:literal: $value:expr),+ $(,)?) => {
        $(let _ = write!($text, concat!($name, ":{}\r\n"), $value);)+
    };
}

fn server(session: &Session, text: &mut String) {
    let app = &session.resp.app;
    let uptime = app.started.elapsed().as_secs();
    fields!(text,
        "redis_version": REDIS_VERSION,
        "server_name": "thalweg",
        "thalweg_version": env!("CARGO_PKG_VERSION"),
        "redis_mode": "standalone",
        "os": std::env::consts::OS,
        "arch_bits": usize::BITS,
        "multiplexing_api": "epoll",
        "process_id": process::id(),
        "run_id": format_args!("{:040x}", session.resp.run),
        "tcp_port": session.client().local.port(),
        "uptime_in_seconds": uptime,
        "uptime_in_days": uptime / 86_400,
    );
}

fn clients(session: &Session, text: &mut String) {
    let resp = &session.resp;
    fields!(text,
        "connected_clients": resp.clients.count(),
        "cluster_connections": 0,
        "maxclients": resp.app.config.max_connections,
        "blocked_clients": resp.waiting.count(),
        "tracking_clients": 0,
    );
}

fn memory(session: &Session, text: &mut String) {
    let resident = resident_bytes();
    let max = session.store().max_bytes().unwrap_or(0);
    fields!(text,
        "used_memory": resident,
        "used_memory_human": format_args!("{:.2}M", resident as f64 / 1048576.0),
        "used_memory_rss": resident,
        "maxmemory": max,
        "maxmemory_human": if max == 0 { "0B".to_owned() } else { format!("{:.2}M", max as f64 / 1048576.0) },
        "maxmemory_policy": session.store().eviction_policy(),
    );
}

/// Returns the resident memory of the process in bytes; 0 if the operating system does not report it.
fn resident_bytes() -> u64 {
    let pages =
        std::fs::read_to_string("/proc/self/statm").ok().and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

fn persistence(session: &Session, text: &mut String) {
    let healthy = matches!(session.resp.app.db.blocking().health(), thalweg_engine::Health::Good);
    let status = if healthy { "ok" } else { "err" };
    fields!(text,
        "loading": 0,
        "async_loading": 0,
        "rdb_bgsave_in_progress": 0,
        "rdb_last_bgsave_status": "ok",
        "aof_enabled": u8::from(session.store().is_durable()),
        "aof_rewrite_in_progress": 0,
        "aof_last_write_status": status,
    );
}

/// Returns the totals of commands, connections and bytes since the start or the last `CONFIG RESETSTAT`.
fn totals(session: &Session) -> Totals {
    session.resp.metrics.totals(session.resp.app.admission.bound(Resource::Connections).rejections())
}

fn stats(session: &Session, text: &mut String) {
    let totals = totals(session);
    fields!(text,
        "total_connections_received": totals.connections,
        "total_commands_processed": totals.figures.calls(),
        "total_net_input_bytes": totals.received,
        "total_net_output_bytes": totals.sent,
        "rejected_connections": totals.rejected_connections,
        "total_error_replies": totals.figures.error_replies,
        "pubsub_channels": session.resp.subscriptions.count(Kind::Channel),
        "pubsub_patterns": session.resp.subscriptions.count(Kind::Pattern),
        "pubsubshard_channels": session.resp.subscriptions.count(Kind::Shard),
    );
}

fn replication(_session: &Session, text: &mut String) {
    fields!(text, "role": "master", "connected_slaves": 0, "master_repl_offset": 0);
}

/// Returns the numbers of keys of all databases, one line for each database. A database without exact counts is shown
/// only if it has few keys. `budget` limits the work for each database separately.
///
/// # Errors
/// [`BudgetSpent`] if a number must be read from a file, and `budget` forbids waiting for the disk.
pub(crate) fn keyspaces(databases: &Databases, budget: Budget) -> Result<String, BudgetSpent> {
    let mut text = String::new();
    for numbered in &databases.list {
        match numbered.database.read_briefly(budget, |read| read.len()) {
            Err(BudgetSpent::Disk) => return Err(BudgetSpent::Disk),
            Ok(Ok(0) | Err(_)) | Err(BudgetSpent::Steps) => {}
            Ok(Ok(keys)) => {
                let _ = write!(text, "db{}:keys={keys},expires=0,avg_ttl=0\r\n", numbered.number);
            }
        }
    }
    Ok(text)
}
