//! What the server says of itself: `COMMAND` and `INFO`.
//!
//! `INFO` has the fields that tools and clients read, with Redis's names, where they mean something here; more is in
//! `/metrics`.

use std::{fmt::Write as _, process};

use thalweg_redis::{
    Command, Reply, Run,
    command::{Keys, all},
    wire::Writer,
};
use thalweg_transport::Outbox;

use super::{
    client_commands::subcommand,
    connection_commands::{REDIS_VERSION, seconds_since},
    session::{Session, To},
};

pub(super) const SUBCOMMANDS: &[(&str, i32)] =
    &[("count", 2), ("docs", -2), ("getkeys", -3), ("info", -2), ("list", -2)];

/// `COMMAND`
pub fn command(session: &mut Session, arguments: &[&[u8]], out: &mut Outbox) {
    if arguments.len() == 1 {
        let commands: Vec<_> = all().map(Some).collect();
        return session.say(out, |writer| infos(writer, &commands));
    }
    let named = || arguments[2..].iter().map(|name| thalweg_redis::find(name));
    match subcommand("command", SUBCOMMANDS, arguments) {
        Ok("count") => session.say(out, |writer| writer.integer(all().count() as i64)),
        Ok("info") => {
            let commands: Vec<_> = if arguments.len() == 2 { all().map(Some).collect() } else { named().collect() };
            session.say(out, |writer| infos(writer, &commands));
        }
        Ok("docs") => {
            let commands: Vec<_> = if arguments.len() == 2 { all().collect() } else { named().flatten().collect() };
            session.say(out, |writer| docs(writer, &commands));
        }
        Ok("list") => list(session, &arguments[2..], out),
        Ok(_) => get_keys(session, &arguments[2..], out),
        Err(reply) => session.answer(&reply, out),
    }
}

fn infos(writer: &mut Writer<To<'_>>, commands: &[Option<&Command>]) {
    writer.array(commands.len());
    for command in commands {
        let Some(command) = command else {
            writer.null_array();
            continue;
        };
        writer.array(10);
        writer.bulk(command.name.as_bytes());
        writer.integer(command.arity.into());
        writer.set(command.flags.len());
        command.flags.iter().for_each(|flag| writer.simple(flag));
        for number in [command.keys.first, command.keys.last, command.keys.step] {
            writer.integer(number.into());
        }
        // Categories, tips, specifications of keys, subcommands.
        writer.set(0);
        (0..3).for_each(|_| writer.array(0));
    }
}

/// What a command is about, as far as its table says it.
fn group(command: &Command) -> &'static str {
    match (command.run, command.name.as_bytes()) {
        (Run::Session, b"multi" | b"exec" | b"discard" | b"watch" | b"unwatch") => "transactions",
        (Run::Session, b"info" | b"config" | b"command" | b"time") => "server",
        (Run::Session, _) => "connection",
        (_, [b'x', ..]) => "stream",
        (_, [b'h', ..]) => "hash",
        _ => "generic",
    }
}

fn docs(writer: &mut Writer<To<'_>>, commands: &[&Command]) {
    writer.map(commands.len());
    for command in commands {
        writer.bulk(command.name.as_bytes());
        let summary = format!("As in Redis {REDIS_VERSION}; docs/redis.md says what differs");
        let pairs =
            [("summary", &summary[..]), ("since", "1.0.0"), ("group", group(command)), ("complexity", "as in Redis")];
        writer.map(pairs.len());
        for (key, value) in pairs {
            writer.bulk(key.as_bytes());
            writer.bulk(value.as_bytes());
        }
    }
}

fn list(session: &mut Session, options: &[&[u8]], out: &mut Outbox) {
    let mut names: Vec<&str> = all().map(|command| command.name).collect();
    match options {
        [] => {}
        [filter, kind, pattern] if filter.eq_ignore_ascii_case(b"filterby") => {
            if kind.eq_ignore_ascii_case(b"pattern") {
                names.retain(|name| thalweg_redis::glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes()));
            } else if kind.eq_ignore_ascii_case(b"module") || kind.eq_ignore_ascii_case(b"aclcat") {
                names.clear();
            } else {
                return session.error(thalweg_redis::errors::SYNTAX, out);
            }
        }
        _ => return session.error(thalweg_redis::errors::SYNTAX, out),
    }
    session.say(out, |writer| {
        writer.array(names.len());
        names.iter().for_each(|name| writer.bulk(name.as_bytes()));
    });
}

fn get_keys(session: &mut Session, arguments: &[&[u8]], out: &mut Outbox) {
    let Some(command) = thalweg_redis::find(arguments[0]) else {
        return session.error("ERR Invalid command specified", out);
    };
    if !command.takes(arguments.len()) {
        return session.error("ERR Invalid number of arguments specified for command", out);
    }
    let keys: Vec<Reply> = match command.keys {
        Keys { first: 0, .. } => streams_of(arguments).iter().map(|key| Reply::bulk(key)).collect(),
        keys => super::waiting::keys_of(keys, arguments).into_iter().flatten().map(Reply::bulk).collect(),
    };
    match keys.is_empty() {
        true => session.error("ERR The command has no key arguments", out),
        false => session.answer(&Reply::Array(keys), out),
    }
}

/// The keys of a command that names them behind `STREAMS`.
fn streams_of<'a>(arguments: &'a [&'a [u8]]) -> &'a [&'a [u8]] {
    let begin = arguments.iter().position(|argument| argument.eq_ignore_ascii_case(b"streams"));
    let named = begin.map_or(&[][..], |begin| &arguments[begin + 1..]);
    &named[..named.len() / 2]
}

/// Writes the fields of a section.
type Section = fn(&Session, &mut String);

/// `INFO`
pub fn info(session: &mut Session, arguments: &[&[u8]], out: &mut Outbox) {
    let wants = |section: &str| {
        let named = &arguments[1..];
        let all = [&b"all"[..], b"everything", b"default"];
        named.is_empty()
            || named.iter().any(|name| {
                name.eq_ignore_ascii_case(section.as_bytes()) || all.iter().any(|all| name.eq_ignore_ascii_case(all))
            })
    };
    let sections: [(&str, Section); 9] = [
        ("Server", server),
        ("Clients", clients),
        ("Memory", memory),
        ("Persistence", persistence),
        ("Stats", stats),
        ("Replication", replication),
        ("Modules", |_, _| ()),
        ("Cluster", |_, text| text.push_str("cluster_enabled:0\r\n")),
        ("Keyspace", keyspace),
    ];
    let mut text = String::new();
    for (name, write) in sections {
        if wants(name) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            let _ = write!(text, "# {name}\r\n");
            write(session, &mut text);
        }
    }
    session.say(out, |writer| writer.verbatim(&text));
}

macro_rules! fields {
    ($text:ident, $($name:literal: $value:expr),+ $(,)?) => {
        $(let _ = write!($text, concat!($name, ":{}\r\n"), $value);)+
    };
}

fn server(session: &Session, text: &mut String) {
    let app = &session.resp.app;
    let uptime = seconds_since(app.started);
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

fn memory(_session: &Session, text: &mut String) {
    let resident = resident_bytes();
    fields!(text,
        "used_memory": resident,
        "used_memory_human": format_args!("{:.2}M", resident as f64 / 1048576.0),
        "used_memory_rss": resident,
        "maxmemory": 0,
        "maxmemory_human": "0B",
        "maxmemory_policy": "noeviction",
    );
}

/// What the process has in memory; 0 where the system does not say.
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
        "aof_enabled": 1,
        "aof_rewrite_in_progress": 0,
        "aof_last_write_status": status,
    );
}

fn stats(session: &Session, text: &mut String) {
    let metrics = &session.resp.app.resp_metrics;
    fields!(text,
        "total_connections_received": metrics.connections_opened_in_all(),
        "total_commands_processed": metrics.all_commands(),
        "total_net_input_bytes": metrics.bytes().0,
        "total_net_output_bytes": metrics.bytes().1,
        "rejected_connections": session.resp.app.admission.connections.shed(),
        "total_error_replies": metrics.errors(),
    );
}

fn replication(_session: &Session, text: &mut String) {
    fields!(text, "role": "master", "connected_slaves": 0, "master_repl_offset": 0);
}

fn keyspace(session: &Session, text: &mut String) {
    for numbered in &session.resp.databases.list {
        match numbered.database.read(|read| read.len()) {
            Ok(0) | Err(_) => {}
            Ok(keys) => {
                let _ = write!(text, "db{}:keys={keys},expires=0,avg_ttl=0\r\n", numbered.number);
            }
        }
    }
}
