//! Commands on keys of any kind: existence and deletion. [`expire`] changes deadlines, [`moves`] renames and
//! copies keys, [`scan`] lists them, [`object`] and [`memory`] report how they are stored.

use crate::{
    Reply,
    command::{Command, Keys},
    errors::{Answer, SYNTAX, refused},
    expiry::{
        TimeOrigin::{Epoch, Now},
        Unit::{Milliseconds, Seconds},
        is,
    },
    flags::Flags,
    store::{Read, Store},
};

mod expire;
mod memory;
mod moves;
mod object;
mod scan;

const READ_SLOW: Flags = Flags::KEYSPACE.and(Flags::READ_ONLY);
const READ: Flags = READ_SLOW.and(Flags::FAST);
const WRITE_SLOW: Flags = Flags::KEYSPACE.and(Flags::WRITE);
const WRITE: Flags = WRITE_SLOW.and(Flags::FAST);

/// Table of the commands on keys.
pub(crate) const COMMANDS: &[Command] = &[
    Command::write("del", -2, WRITE_SLOW, Keys::ALL, del),
    Command::write("unlink", -2, WRITE, Keys::ALL, del),
    Command::read("exists", -2, READ, Keys::ALL, exists),
    Command::read("touch", -2, READ, Keys::ALL, exists),
    Command::read("type", 2, READ, Keys::ONE, kind),
    Command::read("ttl", 2, READ, Keys::ONE, |read, args| expire::reply_deadline(read, args, Seconds, Now)),
    Command::read("pttl", 2, READ, Keys::ONE, |read, args| expire::reply_deadline(read, args, Milliseconds, Now)),
    Command::read("expiretime", 2, READ, Keys::ONE, |read, args| expire::reply_deadline(read, args, Seconds, Epoch)),
    Command::read("pexpiretime", 2, READ, Keys::ONE, |read, args| {
        expire::reply_deadline(read, args, Milliseconds, Epoch)
    }),
    Command::write("expire", -3, WRITE, Keys::ONE, |store, args| expire::set(store, args, Seconds, Now)),
    Command::write("pexpire", -3, WRITE, Keys::ONE, |store, args| expire::set(store, args, Milliseconds, Now)),
    Command::write("expireat", -3, WRITE, Keys::ONE, |store, args| expire::set(store, args, Seconds, Epoch)),
    Command::write("pexpireat", -3, WRITE, Keys::ONE, |store, args| expire::set(store, args, Milliseconds, Epoch)),
    Command::write("persist", 2, WRITE, Keys::ONE, expire::persist),
    Command::write("rename", 3, WRITE_SLOW, Keys::TWO, moves::rename),
    Command::write("renamenx", 3, WRITE, Keys::TWO, moves::renamenx),
    Command::write("copy", -3, WRITE_SLOW.and(Flags::DENY_OOM), Keys::TWO, moves::copy),
    Command::read("scan", -2, READ_SLOW, Keys::NONE, scan::scan),
    Command::read("keys", 2, READ_SLOW.and(Flags::DANGEROUS), Keys::NONE, scan::keys),
    Command::read("randomkey", 1, READ_SLOW, Keys::NONE, scan::randomkey),
    Command::read("dbsize", 1, READ, Keys::NONE, dbsize),
    Command::write("flushdb", -1, WRITE_SLOW.and(Flags::DANGEROUS), Keys::NONE, flush),
    Command::write("flushall", -1, WRITE_SLOW.and(Flags::DANGEROUS), Keys::NONE, flush),
    Command::read("memory", -2, Flags::NONE, Keys::NONE, memory::memory).with(memory::SUBCOMMANDS),
    Command::read("object", -2, Flags::NONE, Keys::NONE, object::object).with(object::SUBCOMMANDS),
];

fn del<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    let mut deleted = 0;
    for key in &args[1..] {
        deleted += i64::from(store.delete(key)?);
    }
    Ok(Reply::Integer(deleted))
}

fn exists(read: &dyn Read, args: &[&[u8]]) -> Answer {
    let mut there = 0;
    for key in &args[1..] {
        there += i64::from(read.look(key)?.is_some());
    }
    Ok(Reply::Integer(there))
}

fn kind(read: &dyn Read, args: &[&[u8]]) -> Answer {
    Ok(Reply::Simple(read.look(args[1])?.map_or("none", |look| look.kind.name())))
}

fn dbsize(read: &dyn Read, _: &[&[u8]]) -> Answer {
    Ok(Reply::Integer(i64::try_from(read.len()?).unwrap_or(i64::MAX)))
}

/// Deletes all keys of the client's database, even for FLUSHALL. The other databases are separate keyspaces and caches,
/// and one commit cannot change several of them.
fn flush<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    match args[1..] {
        [] => {}
        [mode] if is(mode, "sync") || is(mode, "async") => {}
        _ => return Err(refused(SYNTAX)),
    }
    store.clear()?;
    Ok(Reply::Ok)
}
