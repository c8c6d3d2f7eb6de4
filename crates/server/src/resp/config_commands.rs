//! `CONFIG GET`: what tools ask for of Redis's configuration, as far as it means something here.

use thalweg_transport::Outbox;
use thalweg_types::{
    Durability,
    limits::{MAX_COMMAND_BYTES, MAX_REDIS_COMMANDS},
};

use super::{client_commands::subcommand, session::Session};

pub(super) const SUBCOMMANDS: &[(&str, i32)] = &[("get", -3), ("set", -4), ("resetstat", 2), ("rewrite", 2)];

/// Names in Redis's configuration, and what is to be said of them.
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
        ("appendonly", text("yes")),
        ("bind", session.client().local.ip().to_string()),
        ("databases", (last + 1).to_string()),
        ("maxclients", config.max_connections.to_string()),
        ("maxmemory", text("0")),
        ("maxmemory-policy", text("noeviction")),
        ("max-transaction-commands", MAX_REDIS_COMMANDS.to_string()),
        ("notify-keyspace-events", String::new()),
        ("port", session.client().local.port().to_string()),
        ("proto-max-bulk-len", MAX_COMMAND_BYTES.to_string()),
        ("save", String::new()),
        ("tcp-keepalive", text("0")),
        ("timeout", text("0")),
    ]
}

/// `CONFIG`
pub fn config(session: &mut Session, arguments: &[&[u8]], out: &mut Outbox) {
    match subcommand("config", SUBCOMMANDS, arguments) {
        Ok("get") => get(session, &arguments[2..], out),
        Ok("set") => {
            let name = String::from_utf8_lossy(arguments[2]).into_owned();
            let known = parameters(session).iter().any(|(known, _)| name.eq_ignore_ascii_case(known));
            let text = if known {
                format!("ERR CONFIG SET failed (possibly related to argument '{name}') - can't set immutable config")
            } else {
                format!("ERR Unknown option or number of arguments for CONFIG SET - '{name}'")
            };
            session.error(&text, out);
        }
        Ok("resetstat") => session.error("ERR figures count from the start of the server: see /metrics", out),
        Ok(_) => session.error("ERR The server is running without a config file", out),
        Err(reply) => session.answer(&reply, out),
    }
}

fn get(session: &mut Session, patterns: &[&[u8]], out: &mut Outbox) {
    let mut found = parameters(session);
    found.retain(|(name, _)| {
        patterns.iter().any(|pattern| thalweg_redis::glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
    });
    session.say(out, |writer| {
        writer.map(found.len());
        for (name, value) in &found {
            writer.bulk(name.as_bytes());
            writer.bulk(value.as_bytes());
        }
    });
}
