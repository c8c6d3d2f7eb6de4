//! `CLIENT` and its subcommands.

use std::{sync::Arc, time::Instant};

use thalweg_redis::{
    Reply,
    errors::{NOT_AN_INTEGER, SYNTAX},
};
use thalweg_transport::Outbox;

use super::{
    client::{Client, MAX_NAME_BYTES},
    session::{Flow, Quiet, Session},
};

const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";

/// Subcommands, and how many arguments they take, with `CLIENT` and their name.
pub(super) const SUBCOMMANDS: &[(&str, i32)] = &[
    ("getname", 2),
    ("getredir", 2),
    ("id", 2),
    ("info", 2),
    ("kill", -3),
    ("list", -2),
    ("no-evict", 3),
    ("no-touch", 3),
    ("reply", 3),
    ("setinfo", 4),
    ("setname", 3),
];

/// The subcommand that is meant, if it takes so many arguments; otherwise the error.
pub fn subcommand(container: &str, known: &[(&'static str, i32)], arguments: &[&[u8]]) -> Result<&'static str, Reply> {
    let given = arguments[1];
    let Some((name, arity)) = known.iter().find(|(name, _)| given.eq_ignore_ascii_case(name.as_bytes())) else {
        return Err(thalweg_redis::errors::unknown_subcommand(&container.to_uppercase(), given));
    };
    let wanted = arity.unsigned_abs() as usize;
    let fits = if *arity > 0 { arguments.len() == wanted } else { arguments.len() >= wanted };
    if fits { Ok(name) } else { Err(thalweg_redis::errors::wrong_arity(&format!("{container}|{name}"))) }
}

/// `CLIENT`
pub fn client(session: &mut Session, arguments: &[&[u8]], out: &mut Outbox) -> Flow {
    let name = match subcommand("client", SUBCOMMANDS, arguments) {
        Ok(name) => name,
        Err(reply) => {
            session.answer(&reply, out);
            return Flow::Done;
        }
    };
    match name {
        "id" => {
            let id = session.client().id as i64;
            session.say(out, |writer| writer.integer(id));
        }
        "getname" => {
            let said = session.client().said().name;
            session.say(out, |writer| if said.is_empty() { writer.null() } else { writer.bulk(said.as_bytes()) });
        }
        // Nobody's keys are tracked.
        "getredir" => session.say(out, |writer| writer.integer(-1)),
        "setname" => {
            if set_name(session, arguments[2], out) {
                session.say(out, |writer| writer.ok());
            }
        }
        "setinfo" => set_info(session, arguments[2], arguments[3], out),
        "info" => {
            let mut text = String::new();
            session.client().describe(&mut text, Instant::now());
            session.say(out, |writer| writer.verbatim(&text));
        }
        "list" => list(session, &arguments[2..], out),
        "kill" => return kill(session, &arguments[2..], out),
        "reply" => reply(session, arguments[2], out),
        // Clients are never disconnected for their memory, and reads change nothing about what stays in a cache but that they
        // happened: both wishes are granted as they are.
        _ => match [&b"on"[..], b"off"].iter().any(|known| arguments[2].eq_ignore_ascii_case(known)) {
            true => session.say(out, |writer| writer.ok()),
            false => session.error(SYNTAX, out),
        },
    }
    Flow::Done
}

fn visible(text: &[u8]) -> Option<String> {
    let fits = text.len() <= MAX_NAME_BYTES && text.iter().all(u8::is_ascii_graphic);
    fits.then(|| String::from_utf8_lossy(text).into_owned())
}

/// Gives the client a name; false: it is none, and it was told so.
pub fn set_name(session: &mut Session, name: &[u8], out: &mut Outbox) -> bool {
    match visible(name) {
        Some(name) => session.client().say(|said| said.name = name),
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
    session.client().say(|said| if is_name { said.library = value } else { said.library_version = value });
    session.say(out, |writer| writer.ok());
}

fn reply(session: &mut Session, mode: &[u8], out: &mut Outbox) {
    if mode.eq_ignore_ascii_case(b"on") {
        (session.quiet, session.muted) = (Quiet::No, false);
        session.say(out, |writer| writer.ok());
    } else if mode.eq_ignore_ascii_case(b"off") {
        session.quiet = Quiet::Off;
    } else if mode.eq_ignore_ascii_case(b"skip") {
        if session.quiet == Quiet::No {
            session.quiet = Quiet::Next;
        }
    } else {
        session.error(SYNTAX, out);
    }
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Whether clients of that type are served; none: there is no such type.
fn is_type(name: &[u8]) -> Option<bool> {
    let known = [("normal", true), ("master", false), ("slave", false), ("replica", false), ("pubsub", false)];
    known.iter().find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes())).map(|(_, served)| *served)
}

fn list(session: &mut Session, options: &[&[u8]], out: &mut Outbox) {
    let mut wanted: Box<dyn Fn(&Client) -> bool> = Box::new(|_| true);
    match options {
        [] => {}
        [option, name] if option.eq_ignore_ascii_case(b"type") => match is_type(name) {
            Some(served) => wanted = Box::new(move |_| served),
            None => {
                let text = format!("ERR Unknown client type '{}'", String::from_utf8_lossy(name));
                return session.error(&text, out);
            }
        },
        [option, ids @ ..] if option.eq_ignore_ascii_case(b"id") && !ids.is_empty() => {
            let ids: Option<Vec<i64>> = ids.iter().map(|id| number(id)).collect();
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
    session.say(out, |writer| writer.verbatim(&text));
}

/// Which clients are to end.
#[derive(Debug, Default)]
struct Filter {
    id: Option<u64>,
    address: Option<String>,
    local: Option<String>,
    type_is_served: Option<bool>,
    spare_me: bool,
    /// By `CLIENT KILL address`: one, and an error if there is none.
    is_old_form: bool,
}

fn filter(options: &[&[u8]]) -> Result<Filter, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if let [address] = options {
        return Ok(Filter { address: Some(text(address)), is_old_form: true, ..Filter::default() });
    }
    let mut filter = Filter { spare_me: true, ..Filter::default() };
    if !options.len().is_multiple_of(2) {
        return Err(SYNTAX.to_owned());
    }
    for pair in options.chunks_exact(2) {
        let (option, value) = (pair[0].to_ascii_lowercase(), pair[1]);
        match &option[..] {
            b"id" => match number(value) {
                Some(id) if id > 0 => filter.id = Some(id as u64),
                Some(_) => return Err("ERR client-id should be greater than 0".to_owned()),
                None => return Err(NOT_AN_INTEGER.to_owned()),
            },
            b"type" => match is_type(value) {
                Some(served) => filter.type_is_served = Some(served),
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

fn kill(session: &mut Session, options: &[&[u8]], out: &mut Outbox) -> Flow {
    let filter = match filter(options) {
        Ok(filter) => filter,
        Err(text) => {
            session.error(&text, out);
            return Flow::Done;
        }
    };
    let is_meant = |client: &Arc<Client>| {
        filter.id.is_none_or(|id| id == client.id)
            && filter.address.as_ref().is_none_or(|address| *address == client.peer.to_string())
            && filter.local.as_ref().is_none_or(|local| *local == client.local.to_string())
            && filter.type_is_served.unwrap_or(true)
    };
    let me = session.client().id;
    let meant: Vec<_> = session.resp.clients.all().into_iter().filter(is_meant).collect();
    let meant: Vec<_> = meant.into_iter().filter(|client| !(filter.spare_me && client.id == me)).collect();
    let kills_me = meant.iter().any(|client| client.id == me);
    meant.iter().filter(|client| client.id != me).for_each(|client| client.kill());
    match (filter.is_old_form, meant.len()) {
        (true, 0) => session.error("ERR No such client", out),
        (true, _) => session.say(out, |writer| writer.ok()),
        (false, count) => session.say(out, |writer| writer.integer(count as i64)),
    }
    // Its reply is sent first.
    if kills_me { Flow::End } else { Flow::Done }
}
