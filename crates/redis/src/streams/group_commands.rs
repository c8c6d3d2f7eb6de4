//! `XGROUP`: creates, changes and destroys consumer groups and their consumers.
//!
//! Owns: the subcommands with their options and errors. Does not own: the rows of groups and consumers (`groups`), or
//! the leftovers of destroyed groups (`destroyed_groups`).

use thalweg_types::limits::{MAX_REDIS_GROUPS, MAX_REDIS_STREAM_ROWS};

use super::{
    arguments::{is, wrong_subcommand},
    destroyed_groups,
    groups::{check_name, consumer_number, create_consumer, find, no_group, put},
    id::EntryId,
    layout::{self, Consumer, Group},
    pending::{Ledger, of_consumer},
    stream::Stream,
};
use crate::{
    Reply,
    command::{Subcommand, chosen, help},
    errors::{Answer, CommandEnd, c_string},
    flags::Flags,
    number::integer,
    store::Store,
};

/// Help text of `XGROUP`.
const HELP: &[&str] = &[
    "XGROUP <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CREATE <key> <groupname> <id|$> [option]",
    "    Create a new consumer group. Options are:",
    "    * MKSTREAM",
    "      Create the empty stream if it does not exist.",
    "    * ENTRIESREAD entries_read",
    "      Set the group's entries_read counter (internal use).",
    "CREATECONSUMER <key> <groupname> <consumer>",
    "    Create a new consumer in the specified group.",
    "DELCONSUMER <key> <groupname> <consumer>",
    "    Remove the specified consumer.",
    "DESTROY <key> <groupname>",
    "    Remove the specified group.",
    "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
    "    Set the current group ID and entries_read counter.",
];

const WRITE: Flags = Flags::STREAM.and(Flags::WRITE);
const ADD: Flags = WRITE.and(Flags::DENY_OOM);

/// Subcommands of `XGROUP`.
pub(super) const SUBCOMMANDS: &[Subcommand] = &[
    Subcommand::of_key("xgroup|create", -5, ADD),
    Subcommand::of_key("xgroup|createconsumer", 5, ADD),
    Subcommand::of_key("xgroup|delconsumer", 5, WRITE),
    Subcommand::of_key("xgroup|destroy", 4, WRITE),
    Subcommand::help("xgroup|help", Flags::STREAM),
    Subcommand::of_key("xgroup|setid", -5, WRITE),
];

/// `XGROUP subcommand ...`: creates, changes and destroys consumer groups and their consumers.
pub(super) fn xgroup<'a>(store: &mut dyn Store<'a>, arguments: &[&'a [u8]]) -> Answer {
    match chosen(SUBCOMMANDS, arguments) {
        "create" => create(store, arguments),
        "help" => Ok(help(HELP)),
        other => on_stream(store, arguments, other),
    }
}

/// Options of `XGROUP CREATE` and `XGROUP SETID`.
#[derive(Clone, Copy, Debug)]
struct Options {
    make_stream: bool,
    read: i64,
}

impl Options {
    fn parse(arguments: &[&[u8]], can_make_stream: bool) -> Result<Self, CommandEnd> {
        let mut parsed = Self { make_stream: false, read: -1 };
        let mut options = arguments[5..].iter();
        while let Some(&option) = options.next() {
            if can_make_stream && is(option, "mkstream") {
                parsed.make_stream = true;
                continue;
            }
            match options.next() {
                Some(&argument) if is(option, "entriesread") => parsed.read = integer(argument)?,
                _ => return Err(wrong_subcommand("XGROUP", arguments[1])),
            }
            if parsed.read < -1 {
                return Err(CommandEnd::error("ERR value for ENTRIESREAD must be positive or -1"));
            }
        }
        Ok(parsed)
    }
}

/// `XGROUP CREATE key group id|$ [MKSTREAM] [ENTRIESREAD entries-read]`: creates a group.
fn create<'a>(store: &mut dyn Store<'a>, arguments: &[&'a [u8]]) -> Answer {
    let options = Options::parse(arguments, true)?;
    let (key, name) = (arguments[2], arguments[3]);
    let found = Stream::find(&*store, key)?;
    if found.is_none() && !options.make_stream {
        return Err(no_stream());
    }
    if arguments.len() > 8 {
        return Err(wrong_subcommand("XGROUP", arguments[1]));
    }
    let last_id = match c_string(arguments[4]) {
        b"$" => found.as_ref().map_or(EntryId::ZERO, |stream| stream.meta.last_id),
        _ => EntryId::strict(arguments[4], 0)?,
    };
    check_name(name)?;
    let is_new = found.is_none();
    let mut stream = match found {
        Some(stream) => stream,
        None => Stream::create(store)?,
    };
    if find(&*store, &stream, name)?.is_some() {
        return Err(CommandEnd::error("BUSYGROUP Consumer Group name already exists"));
    }
    if stream.meta.groups >= MAX_REDIS_GROUPS {
        let text = format!("ERR the stream has {MAX_REDIS_GROUPS} consumer groups already: destroy unneeded ones");
        return Err(CommandEnd::error(text));
    }
    let number = stream.number();
    put(store, &stream, name, &Group { number, last_id, read: options.read, pending: 0, consumers: 0 })?;
    stream.meta.groups = stream.meta.groups.saturating_add(1);
    match is_new {
        true => stream.save(store, key)?,
        false => stream.save_groups(store, key)?,
    }
    Ok(Reply::Ok)
}

fn no_stream() -> CommandEnd {
    CommandEnd::error(
        "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM \
         option to create an empty stream automatically.",
    )
}

/// Runs the subcommands of `XGROUP` that need an existing stream. Most of them also need an existing group.
fn on_stream<'a>(store: &mut dyn Store<'a>, arguments: &[&'a [u8]], command: &str) -> Answer {
    let options = match command {
        "setid" => Options::parse(arguments, false)?,
        _ => Options { make_stream: false, read: -1 },
    };
    let (key, name) = (arguments[2], arguments[3]);
    let mut stream = Stream::find(&*store, key)?.ok_or_else(no_stream)?;
    let Some(mut group) = find(&*store, &stream, name)? else {
        return match command {
            "destroy" => Ok(Reply::Integer(0)),
            _ => Err(no_group(name, key)),
        };
    };
    let (reply, is_changed) = match command {
        "setid" => {
            if arguments.len() != 5 && arguments.len() != 7 {
                return Err(wrong_subcommand("XGROUP", arguments[1]));
            }
            (group.last_id, group.read) = (set_id(&stream, arguments[4])?, options.read);
            put(store, &stream, name, &group)?;
            (Reply::Ok, true)
        }
        "destroy" => {
            store.delete_part(stream.at, &layout::group(name))?;
            stream.meta.groups = stream.meta.groups.saturating_sub(1);
            destroyed_groups::remove(stream.at, &mut stream.meta, store, group.number)?;
            (Reply::Integer(1), true)
        }
        "createconsumer" => {
            let is_new = consumer_number(&*store, &stream, &group, arguments[4])?.is_none();
            if is_new {
                create_consumer(store, &mut stream, &mut group, arguments[4])?;
                put(store, &stream, name, &group)?;
            }
            (Reply::flag(is_new), is_new)
        }
        _ => match consumer_number(&*store, &stream, &group, arguments[4])? {
            Some(number) => (delete_consumer(store, &stream, group, name, number)?, true),
            None => (Reply::Integer(0), false),
        },
    };
    if is_changed {
        stream.save_groups(store, key)?;
    }
    Ok(reply)
}

fn set_id(stream: &Stream, argument: &[u8]) -> Result<EntryId, CommandEnd> {
    match c_string(argument) {
        b"$" => Ok(stream.meta.last_id),
        _ => EntryId::any(argument, 0),
    }
}

fn delete_consumer<'a>(
    store: &mut dyn Store<'a>,
    stream: &Stream,
    group: Group,
    name: &[u8],
    number: u64,
) -> Result<Reply, CommandEnd> {
    let mut ledger = Ledger::open(stream, group);
    let Consumer { pending, name: consumer, .. } = ledger.consumer(&*store, number)?.clone();
    if pending > MAX_REDIS_STREAM_ROWS {
        let text = format!(
            "ERR the consumer has {pending} pending entries: claim or acknowledge all but {MAX_REDIS_STREAM_ROWS}"
        );
        return Err(CommandEnd::error(text));
    }
    for (id, row) in of_consumer(&*store, stream, &ledger.group, number, EntryId::ZERO, None)? {
        ledger.remove(store, id, row)?;
    }
    ledger.forget(number);
    layout::decrement(&mut ledger.group.consumers)?;
    store.delete_part(stream.at, &layout::consumer_name(ledger.group.number, &consumer))?;
    store.delete_part(stream.at, &layout::consumer(number))?;
    ledger.close(store, name)?;
    Ok(Reply::Integer(pending as i64))
}
