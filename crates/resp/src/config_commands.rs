//! `CONFIG GET`. Supports those parameters of Redis's configuration that tools read and that have a meaning for this
//! server.

use thalweg_redis::{
    Reply,
    command::help,
    errors::{SYNTAX, printable, wrong_subcommand},
};
use thalweg_serving::admission::Resource;
use thalweg_transport::Outbox;
use thalweg_types::{
    Durability,
    limits::{MAX_COMMAND_BYTES, MAX_REDIS_PATTERN_BYTES},
};

use super::{bounds::PATTERN_TOO_LONG, session::Session, transaction::MAX_TRANSACTION_COMMANDS};

/// Reply to `CONFIG HELP`.
const HELP: &[&str] = &[
    "CONFIG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "GET <pattern>",
    "    Return parameters matching the glob-like <pattern> and their values.",
    "SET <directive> <value>",
    "    Not supported: clients cannot change the server's configuration.",
    "RESETSTAT",
    "    Reset the statistics reported by the INFO command. /metrics keeps its counters.",
    "REWRITE",
    "    Not supported, like SET.",
];

/// Returns the supported parameters of Redis's configuration with their values.
fn parameters(session: &Session) -> Vec<(&'static str, String)> {
    let config = &session.resp.app.config;
    let sync = match config.durability {
        Durability::None | Durability::Os => "no",
        Durability::Interval => "everysec",
        Durability::Disk | Durability::Quorum => "always",
    };
    let last = session.resp.databases.list.iter().map(|database| database.number).max().unwrap_or(0);
    let text = |text: &str| text.to_owned();
    vec![
        ("appendfsync", text(sync)),
        // The value depends on the selected database: a cache is in memory only.
        ("appendonly", text(if session.store().is_durable() { "yes" } else { "no" })),
        ("bind", session.client().local.ip().to_string()),
        ("databases", (last + 1).to_string()),
        ("maxclients", config.max_connections.to_string()),
        // The value depends on the selected database: keyspaces evict nothing, and each cache has a limit.
        ("maxmemory", session.store().max_bytes().unwrap_or(0).to_string()),
        ("maxmemory-policy", text(session.store().eviction_policy())),
        ("max-transaction-commands", MAX_TRANSACTION_COMMANDS.to_string()),
        ("notify-keyspace-events", String::new()),
        ("port", session.client().local.port().to_string()),
        ("proto-max-bulk-len", MAX_COMMAND_BYTES.to_string()),
        ("save", String::new()),
        ("tcp-keepalive", text("0")),
        ("timeout", text("0")),
    ]
}

/// Handles `CONFIG`. Clients can read parameters but not change them.
pub(crate) fn config(session: &mut Session, arguments: &[&[u8]], out: &mut Outbox) {
    match &*String::from_utf8_lossy(arguments[1]).to_ascii_lowercase() {
        "get" => get(session, &arguments[2..], out),
        "set" => {
            let text = refusal(&parameters(session), &arguments[2..]);
            session.error(&text, out);
        }
        "resetstat" => {
            let resp = &session.resp;
            resp.metrics.reset(resp.app.admission.bound(Resource::Connections).rejections());
            session.write_reply(out, |writer| writer.ok());
        }
        "rewrite" => session.error("ERR The server is running without a config file", out),
        "help" => session.answer(&help(HELP), out),
        _ => session.answer(&wrong_subcommand("CONFIG", arguments[1]), out),
    }
}

/// Parameters that a running redis-server cannot change. `CONFIG SET` never changes anything on this server. Before it
/// refuses a request, it reports the same mistakes as Redis.
const IMMUTABLE_IN_REDIS: [&str; 1] = ["databases"];

/// Returns the error reply to `CONFIG SET` with these names and values. The reply reports the first mistake that Redis
/// would find. If there is no mistake, the reply refuses the first parameter.
fn refusal(parameters: &[(&str, String)], pairs: &[&[u8]]) -> String {
    if !pairs.len().is_multiple_of(2) {
        return SYNTAX.to_owned();
    }
    let immutable = |name: &str| {
        format!("ERR CONFIG SET failed (possibly related to argument '{name}') - can't set immutable config")
    };
    let mut seen: Vec<&str> = Vec::new();
    for pair in pairs.chunks_exact(2) {
        let name = printable(pair[0]);
        let Some((known, _)) = parameters.iter().find(|(known, _)| name.eq_ignore_ascii_case(known)) else {
            return format!("ERR Unknown option or number of arguments for CONFIG SET - '{name}'");
        };
        if IMMUTABLE_IN_REDIS.contains(known) {
            return immutable(&name);
        }
        if seen.contains(known) {
            return format!("ERR CONFIG SET failed (possibly related to argument '{name}') - duplicate parameter");
        }
        seen.push(known);
    }
    immutable(&printable(pairs.first().copied().unwrap_or_default()))
}

fn get(session: &mut Session, patterns: &[&[u8]], out: &mut Outbox) {
    if patterns.iter().any(|pattern| pattern.len() > MAX_REDIS_PATTERN_BYTES) {
        return session.error(PATTERN_TOO_LONG, out);
    }
    let known = parameters(session);
    let pairs = known.iter().filter_map(|(name, value)| {
        let shown = name_shown(name, patterns)?;
        Some((Reply::bulk(shown), Reply::bulk(value.as_bytes())))
    });
    session.answer(&Reply::Map(pairs.collect()), out);
}

/// Returns the name under which the reply to `CONFIG GET` shows a parameter; `None` if no pattern selects the
/// parameter. As in Redis, a pattern without wildcards is a name in upper or lower case, and the reply repeats it as
/// the client wrote it.
fn name_shown<'a>(name: &'a str, patterns: &[&'a [u8]]) -> Option<&'a [u8]> {
    let name = name.as_bytes();
    patterns.iter().find_map(|pattern| {
        if pattern.iter().any(|byte| b"*?[".contains(byte)) {
            thalweg_redis::glob::matches(&pattern.to_ascii_lowercase(), name).then_some(name)
        } else {
            pattern.eq_ignore_ascii_case(name).then_some(*pattern)
        }
    })
}
