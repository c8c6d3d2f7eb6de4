//! `CLIENT` and its subcommands.
//!
//! Owns: the parsing of the subcommands, the filters of `LIST` and `KILL`, and the names that clients give themselves.
//! Does not own: the table of clients and the end of their connections (`client`), or the state of a blocking read
//! (`wait`).

use std::{sync::Arc, time::Instant};

use thalweg_redis::{
    Command,
    command::help,
    errors::{NOT_AN_INTEGER, SYNTAX, wrong_subcommand},
    number::parse_integer,
    table::full_names,
};
use thalweg_transport::Outbox;

use super::{
    client::{Client, MAX_NAME_BYTES, Unblock},
    session::{CommandProgress, ReplyMode, Session},
};

const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";

/// Reply to `CLIENT HELP`.
const HELP: &[&str] = &[
    "CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "GETREDIR",
    "    Return -1: no keys are tracked.",
    "GETNAME",
    "    Return the name of the current connection.",
    "ID",
    "    Return the ID of the current connection.",
    "INFO",
    "    Return information about the current connection.",
    "KILL <ip:port>",
    "    Kill the connection made from <ip:port>.",
    "KILL <option> <value> [<option> <value> [...]]",
    "    Kill connections: ADDR or LADDR <ip:port>, ID <client-id>, TYPE (NORMAL|PUBSUB),",
    "    USER <username>, SKIPME (YES|NO).",
    "LIST [TYPE (NORMAL|PUBSUB) | ID <client-id> ...]",
    "    Return information about connections.",
    "NO-EVICT (ON|OFF)",
    "    Accepted without effect: the server ends no connection to free memory.",
    "NO-TOUCH (ON|OFF)",
    "    Accepted without effect: the server does not record when a key was read.",
    "REPLY (ON|OFF|SKIP)",
    "    Control the replies sent to the current connection.",
    "SETINFO (LIB-NAME|LIB-VER) <value>",
    "    Set the name or version of the client library.",
    "SETNAME <name>",
    "    Give the current connection a name.",
    "UNBLOCK <client-id> [TIMEOUT|ERROR]",
    "    End the blocking read of a client.",
];

/// Handles `CLIENT`: reads and changes the state of connections.
pub(crate) fn client(
    session: &mut Session,
    command: &Command,
    arguments: &[&[u8]],
    out: &mut Outbox,
) -> CommandProgress {
    // `LIST` and `INFO` also show the command that is being handled now.
    let name = full_names()[command.number_of(arguments)];
    session.client().record_command(Instant::now(), name);
    match &*String::from_utf8_lossy(arguments[1]).to_ascii_lowercase() {
        "help" => session.answer(&help(HELP), out),
        "unblock" => unblock(session, arguments, out),
        "id" => {
            let id = session.client().id as i64;
            session.write_reply(out, |writer| writer.integer(id));
        }
        "getname" => {
            let said = session.client().names().name;
            session
                .write_reply(out, |writer| if said.is_empty() { writer.null() } else { writer.bulk(said.as_bytes()) });
        }
        // The server does not track keys for client-side caching, so there is no client to redirect to.
        "getredir" => session.write_reply(out, |writer| writer.integer(-1)),
        "setname" => {
            if set_name(session, arguments[2], out) {
                session.write_reply(out, |writer| writer.ok());
            }
        }
        "setinfo" => set_info(session, arguments[2], arguments[3], out),
        "info" => {
            let mut text = String::new();
            session.client().describe(&mut text, Instant::now());
            session.write_reply(out, |writer| writer.verbatim(&text));
        }
        "list" => list(session, &arguments[2..], out),
        "kill" => return kill(session, &arguments[2..], out),
        "reply" => reply(session, arguments[2], out),
        // Both settings are accepted without effect. The server never disconnects clients to free memory, and a read
        // changes a cache only by counting as a use of the entry.
        "no-evict" | "no-touch" => {
            match [&b"on"[..], b"off"].iter().any(|known| arguments[2].eq_ignore_ascii_case(known)) {
                true => session.write_reply(out, |writer| writer.ok()),
                false => session.error(SYNTAX, out),
            }
        }
        _ => session.answer(&wrong_subcommand("CLIENT", arguments[1]), out),
    }
    CommandProgress::Done
}

fn unblock(session: &mut Session, arguments: &[&[u8]], out: &mut Outbox) {
    let how = match &arguments[3..] {
        [] => Some(Unblock::Timeout),
        [how] if how.eq_ignore_ascii_case(b"timeout") => Some(Unblock::Timeout),
        [how] if how.eq_ignore_ascii_case(b"error") => Some(Unblock::Error),
        [_] => None,
        _ => return session.answer(&wrong_subcommand("CLIENT", arguments[1]), out),
    };
    let Some(how) = how else { return session.error("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR", out) };
    let Some(id) = parse_integer(arguments[2]) else { return session.error(NOT_AN_INTEGER, out) };
    let client = u64::try_from(id).ok().and_then(|id| session.resp.clients.of(id));
    let was_blocked = client.is_some_and(|client| client.unblock(how));
    session.write_reply(out, |writer| writer.integer(was_blocked.into()));
}

fn visible(text: &[u8]) -> Option<String> {
    let fits = text.len() <= MAX_NAME_BYTES && text.iter().all(u8::is_ascii_graphic);
    fits.then(|| String::from_utf8_lossy(text).into_owned())
}

/// Sets the client's name. Answers an invalid name with an error and returns false.
pub(crate) fn set_name(session: &mut Session, name: &[u8], out: &mut Outbox) -> bool {
    match visible(name) {
        Some(name) => session.client().update_names(|said| said.name = name),
        None => {
            session.error(BAD_NAME, out);
            return false;
        }
    }
    true
}

fn set_info(session: &mut Session, option: &[u8], value: &[u8], out: &mut Outbox) {
    let is_name = option.eq_ignore_ascii_case(b"lib-name");
    let shown = String::from_utf8_lossy(option).into_owned();
    if !is_name && !option.eq_ignore_ascii_case(b"lib-ver") {
        return session.error(&format!("ERR Unrecognized option '{shown}'"), out);
    }
    let Some(value) = visible(value) else {
        let text = format!("ERR {} cannot contain spaces, newlines or special characters.", shown.to_lowercase());
        return session.error(&text, out);
    };
    session.client().update_names(|said| if is_name { said.library = value } else { said.library_version = value });
    session.write_reply(out, |writer| writer.ok());
}

fn reply(session: &mut Session, mode: &[u8], out: &mut Outbox) {
    if mode.eq_ignore_ascii_case(b"on") {
        (session.reply_mode, session.muted) = (ReplyMode::No, false);
        session.write_reply(out, |writer| writer.ok());
    } else if mode.eq_ignore_ascii_case(b"off") {
        session.reply_mode = ReplyMode::Off;
    } else if mode.eq_ignore_ascii_case(b"skip") {
        if session.reply_mode == ReplyMode::No {
            session.reply_mode = ReplyMode::Next;
        }
    } else {
        session.error(SYNTAX, out);
    }
}

/// Type of client that `CLIENT LIST` or `CLIENT KILL` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Normal,
    Subscriber,
    /// The types `master` and `replica` of Redis's replication. No client has one of them, because the server has no
    /// Redis replication.
    Peer,
}

impl Type {
    fn parse(name: &[u8]) -> Option<Self> {
        let known: [(&[u8], Self); 5] = [
            (b"normal", Self::Normal),
            (b"master", Self::Peer),
            (b"slave", Self::Peer),
            (b"replica", Self::Peer),
            (b"pubsub", Self::Subscriber),
        ];
        known.iter().find(|(known, _)| name.eq_ignore_ascii_case(known)).map(|(_, of)| *of)
    }

    fn has(self, client: &Client) -> bool {
        match self {
            Self::Normal => !client.is_subscriber(),
            Self::Subscriber => client.is_subscriber(),
            Self::Peer => false,
        }
    }
}

fn list(session: &mut Session, options: &[&[u8]], out: &mut Outbox) {
    let mut wanted: Box<dyn Fn(&Client) -> bool> = Box::new(|_| true);
    match options {
        [] => {}
        [option, name] if option.eq_ignore_ascii_case(b"type") => match Type::parse(name) {
            Some(of) => wanted = Box::new(move |client| of.has(client)),
            None => {
                let text = format!("ERR Unknown client type '{}'", String::from_utf8_lossy(name));
                return session.error(&text, out);
            }
        },
        [option, ids @ ..] if option.eq_ignore_ascii_case(b"id") && !ids.is_empty() => {
            let ids: Option<Vec<i64>> = ids.iter().map(|id| parse_integer(id)).collect();
            match ids {
                Some(ids) => wanted = Box::new(move |client| ids.contains(&(client.id as i64))),
                None => return session.error("ERR Invalid client ID", out),
            }
        }
        _ => return session.error(SYNTAX, out),
    }
    let (mut text, now) = (String::new(), Instant::now());
    for client in session.resp.clients.all() {
        if wanted(&client) {
            client.describe(&mut text, now);
        }
    }
    session.write_reply(out, |writer| writer.verbatim(&text));
}

/// Options of `CLIENT KILL`. They select the clients to disconnect.
#[derive(Debug, Default)]
struct Filter {
    id: Option<u64>,
    address: Option<String>,
    local: Option<String>,
    of_type: Option<Type>,
    spare_me: bool,
    /// True for the old form `CLIENT KILL address`. It disconnects one client, and fails if no client has the address.
    is_old_form: bool,
}

fn filter(options: &[&[u8]]) -> Result<Filter, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if let [address] = options {
        return Ok(Filter { address: Some(text(address)), is_old_form: true, ..Filter::default() });
    }
    let mut filter = Filter { spare_me: true, ..Filter::default() };
    // As in Redis, options are checked from left to right: an invalid value is reported before a later missing value.
    for pair in options.chunks(2) {
        let &[option, value] = pair else { return Err(SYNTAX.to_owned()) };
        match &option.to_ascii_lowercase()[..] {
            b"id" => match parse_integer(value) {
                Some(id) if id > 0 => filter.id = Some(id as u64),
                _ => return Err("ERR client-id should be greater than 0".to_owned()),
            },
            b"type" => match Type::parse(value) {
                Some(of) => filter.of_type = Some(of),
                None => return Err(format!("ERR Unknown client type '{}'", text(value))),
            },
            b"addr" => filter.address = Some(text(value)),
            b"laddr" => filter.local = Some(text(value)),
            b"user" if value == b"default" => {}
            b"user" => return Err(format!("ERR No such user '{}'", text(value))),
            b"skipme" if value.eq_ignore_ascii_case(b"yes") => filter.spare_me = true,
            b"skipme" if value.eq_ignore_ascii_case(b"no") => filter.spare_me = false,
            _ => return Err(SYNTAX.to_owned()),
        }
    }
    Ok(filter)
}

fn kill(session: &mut Session, options: &[&[u8]], out: &mut Outbox) -> CommandProgress {
    let filter = match filter(options) {
        Ok(filter) => filter,
        Err(text) => {
            session.error(&text, out);
            return CommandProgress::Done;
        }
    };
    let is_meant = |client: &Arc<Client>| {
        filter.id.is_none_or(|id| id == client.id)
            && filter.address.as_ref().is_none_or(|address| *address == client.peer.to_string())
            && filter.local.as_ref().is_none_or(|local| *local == client.local.to_string())
            && filter.of_type.is_none_or(|of| of.has(client))
    };
    let me = session.client().id;
    let meant: Vec<_> = session.resp.clients.all().into_iter().filter(is_meant).collect();
    let meant: Vec<_> = meant.into_iter().filter(|client| !(filter.spare_me && client.id == me)).collect();
    let kills_me = meant.iter().any(|client| client.id == me);
    meant.iter().filter(|client| client.id != me).for_each(|client| client.kill());
    match (filter.is_old_form, meant.len()) {
        (true, 0) => session.error("ERR No such client", out),
        (true, _) => session.write_reply(out, |writer| writer.ok()),
        (false, count) => session.write_reply(out, |writer| writer.integer(count as i64)),
    }
    // A client that kills itself gets the reply before its connection ends.
    if kills_me { CommandProgress::End } else { CommandProgress::Done }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(options: &str) -> Option<String> {
        let options: Vec<&[u8]> = options.split(' ').map(str::as_bytes).collect();
        filter(&options).err()
    }

    #[test]
    fn the_first_invalid_option_of_a_kill_is_reported() {
        const BAD_ID: &str = "ERR client-id should be greater than 0";
        for (options, error) in [
            ("ID x ADDR", BAD_ID),
            ("ID 0 nope", BAD_ID),
            ("TYPE nope ID", "ERR Unknown client type 'nope'"),
            ("ID 1 ADDR", SYNTAX),
            ("ID 1 nope 2", SYNTAX),
            ("nope 1 ID x", SYNTAX),
        ] {
            assert_eq!(error_of(options).as_deref(), Some(error), "{options}");
        }
        for options in ["1.2.3.4:5", "ID 1 SKIPME no", "ADDR 1.2.3.4:5 TYPE pubsub USER default"] {
            assert_eq!(error_of(options), None, "{options}");
        }
    }
}
