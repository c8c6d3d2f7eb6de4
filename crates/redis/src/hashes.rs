//! Commands on hashes: reading, setting and deleting fields. [`hash`] reads and writes the rows of a hash, [`counters`]
//! has the commands on numeric fields, and [`lists`] has the commands that return many fields.

use bytes::Bytes;

use crate::{
    Reply,
    command::{Command, Keys},
    errors::{Answer, CommandEnd, incomplete},
    flags::Flags,
    store::{Read, Store},
    value::{ReplyBudget, check_value},
};

mod counters;
mod hash;
mod lists;

pub(crate) use hash::fields_of;
use hash::{Hash, check_field};

const READ_SLOW: Flags = Flags::HASH.and(Flags::READ_ONLY);
const READ: Flags = READ_SLOW.and(Flags::FAST);
const WRITE_LESS: Flags = Flags::HASH.and(Flags::WRITE).and(Flags::FAST);
const WRITE: Flags = WRITE_LESS.and(Flags::DENY_OOM);

/// Table of the commands on hashes.
pub(crate) const COMMANDS: &[Command] = &[
    Command::write("hset", -4, WRITE, Keys::ONE, |store, args| set_pairs(store, args).map(Reply::Integer)),
    Command::write("hmset", -4, WRITE, Keys::ONE, |store, args| set_pairs(store, args).map(|_| Reply::Ok)),
    Command::write("hsetnx", 4, WRITE, Keys::ONE, hsetnx),
    Command::read("hget", 3, READ, Keys::ONE, hget),
    Command::read("hmget", -3, READ, Keys::ONE, hmget),
    Command::read("hgetall", 2, READ_SLOW, Keys::ONE, lists::hgetall),
    Command::write("hdel", -3, WRITE_LESS, Keys::ONE, hdel),
    Command::read("hlen", 2, READ, Keys::ONE, hlen),
    Command::read("hexists", 3, READ, Keys::ONE, hexists),
    Command::read("hkeys", 2, READ_SLOW, Keys::ONE, lists::hkeys),
    Command::read("hvals", 2, READ_SLOW, Keys::ONE, lists::hvals),
    Command::read("hstrlen", 3, READ, Keys::ONE, hstrlen),
    Command::write("hincrby", 4, WRITE, Keys::ONE, counters::hincrby),
    Command::write("hincrbyfloat", 4, WRITE, Keys::ONE, counters::hincrbyfloat),
    Command::read("hrandfield", -2, READ_SLOW, Keys::ONE, lists::hrandfield),
    Command::read("hscan", -3, READ_SLOW, Keys::ONE, lists::hscan),
];

/// Reads the value of a field; `None` if the hash or the field does not exist.
fn read_field(read: &dyn Read, args: &[&[u8]]) -> Result<Option<Bytes>, CommandEnd> {
    check_field(args[2])?;
    Hash::find(read, args[1])?.map_or(Ok(None), |hash| hash.get(read, args[2]))
}

/// Sets the fields that HSET or HMSET names. Returns the number of fields that did not exist before.
fn set_pairs<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Result<i64, CommandEnd> {
    let pairs = args[2..].chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err(incomplete(args));
    }
    for pair in pairs.clone() {
        check_field(pair[0])?;
        check_value(pair[1].len())?;
    }
    let mut hash = Hash::find_or_new(store, args[1])?;
    let mut new = 0;
    for pair in pairs {
        new += i64::from(hash.set(store, pair[0], pair[1])?);
    }
    hash.put(store, args[1])?;
    Ok(new)
}

fn hsetnx<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    check_field(args[2])?;
    check_value(args[3].len())?;
    let mut hash = Hash::find_or_new(store, args[1])?;
    if hash.fields > 0 && hash.has(store, args[2])? {
        return Ok(Reply::Integer(0));
    }
    hash.set(store, args[2], args[3])?;
    hash.put(store, args[1])?;
    Ok(Reply::Integer(1))
}

fn hget(read: &dyn Read, args: &[&[u8]]) -> Answer {
    check_field(args[2])?;
    let Some(hash) = Hash::find(read, args[1])? else { return Ok(Reply::Null) };
    let value = ReplyBudget::of(read).read_part(read, hash.id, args[2])?;
    Ok(value.map_or(Reply::Null, Reply::Bulk))
}

fn hexists(read: &dyn Read, args: &[&[u8]]) -> Answer {
    check_field(args[2])?;
    let hash = Hash::find(read, args[1])?;
    Ok(Reply::flag(hash.map_or(Ok(false), |hash| hash.has(read, args[2]))?))
}

fn hstrlen(read: &dyn Read, args: &[&[u8]]) -> Answer {
    Ok(Reply::Integer(read_field(read, args)?.map_or(0, |value| value.len() as i64)))
}

fn hlen(read: &dyn Read, args: &[&[u8]]) -> Answer {
    let fields = Hash::find(read, args[1])?.map_or(0, |hash| hash.fields);
    Ok(Reply::Integer(i64::try_from(fields).unwrap_or(i64::MAX)))
}

fn hmget(read: &dyn Read, args: &[&[u8]]) -> Answer {
    let hash = Hash::find(read, args[1])?;
    let mut budget = ReplyBudget::of(read);
    let mut replies = Vec::with_capacity(args.len() - 2);
    for field in &args[2..] {
        check_field(field)?;
        let value = match &hash {
            Some(hash) => budget.read_part(read, hash.id, field)?,
            None => None,
        };
        replies.push(value.map_or(Reply::Null, Reply::Bulk));
    }
    Ok(Reply::Array(replies))
}

fn hdel<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    for field in &args[2..] {
        check_field(field)?;
    }
    let Some(mut hash) = Hash::find(store, args[1])? else { return Ok(Reply::Integer(0)) };
    let mut deleted = 0;
    for field in &args[2..] {
        if hash.fields > 0 && hash.has(store, field)? {
            store.delete_part(hash.id, field)?;
            hash.fields -= 1;
            deleted += 1;
        }
    }
    if hash.fields == 0 {
        store.delete(args[1])?;
    } else if deleted > 0 {
        hash.put(store, args[1])?;
    }
    Ok(Reply::Integer(deleted))
}

#[cfg(test)]
mod tests;
