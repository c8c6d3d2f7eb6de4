//! Hashes: one part for each field, with its value unchanged; the key's meta contains the number of fields.
//!
//! ```text
//! key -> (hash, id, meta = fields u64 little-endian)      part (id, field) -> value
//! ```
//!
//! [`counters`] has the commands on numeric fields, [`lists`] those that return many fields.
//!
//! Invariants:
//! * `meta` contains the number of parts. It is never 0: a hash without fields does not exist.
//! * A command that changes a field also puts the key, so that its version changes.

use bytes::Bytes;
use thalweg_types::limits::MAX_KEY_BYTES;

use crate::{
    Reply,
    command::{Answer, Command, Keys, Stop},
    errors::{STRINGS_ONLY, WRONG_TYPE, key_too_long, refused, wrong_arity},
    flags::Flags,
    store::{Collection, CollectionId, Kind, NewValue, Read, Store, StoreError, Value},
    value::{ReplyBudget, check_value},
};

mod counters;
mod lists;

const READ_SLOW: Flags = Flags::HASH.and(Flags::READ_ONLY);
const READ: Flags = READ_SLOW.and(Flags::FAST);
const WRITE_LESS: Flags = Flags::HASH.and(Flags::WRITE).and(Flags::FAST);
const WRITE: Flags = WRITE_LESS.and(Flags::DENY_OOM);

/// Table of the commands on hashes.
pub(crate) const COMMANDS: &[Command] = &[
    Command::write("hset", -4, WRITE, Keys::ONE, hset),
    Command::write("hmset", -4, WRITE, Keys::ONE, hmset),
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

/// A hash that exists, or that a command is about to create.
#[derive(Debug)]
struct Hash {
    id: CollectionId,
    fields: u64,
    deadline: Option<u64>,
}

/// Error returned if a hash's meta is not a counter.
#[derive(Debug, thiserror::Error)]
#[error("a hash's meta has {0} bytes instead of 8: the store is damaged")]
struct BadMeta(usize);

/// Number of fields of a hash.
pub(crate) fn fields_of(hash: &Collection) -> Result<u64, StoreError> {
    let Ok(count) = <[u8; 8]>::try_from(&hash.meta[..]) else {
        return Err(StoreError::Failed(Box::new(BadMeta(hash.meta.len()))));
    };
    Ok(u64::from_le_bytes(count))
}

impl Hash {
    /// Finds the hash of a key. Rejects a key of another kind.
    fn find(read: &(impl Read + ?Sized), key: &[u8]) -> Result<Option<Self>, Stop> {
        let Some(found) = read.get(key)? else { return Ok(None) };
        match found.value {
            Value::Collection(hash) if hash.kind == Kind::Hash => {
                Ok(Some(Self { id: hash.id, fields: fields_of(&hash)?, deadline: found.deadline }))
            }
            Value::Collection(_) | Value::String(_) => Err(refused(WRONG_TYPE)),
        }
    }

    /// Finds the hash of a key, or creates one, which exists only after a put.
    fn find_or_new<'a>(store: &mut dyn Store<'a>, key: &[u8]) -> Result<Self, Stop> {
        if let Some(hash) = Self::find(store, key)? {
            return Ok(hash);
        }
        if !store.has_collections() {
            return Err(refused(STRINGS_ONLY));
        }
        Ok(Self { id: store.new_collection()?, fields: 0, deadline: None })
    }

    fn get(&self, read: &(impl Read + ?Sized), field: &[u8]) -> Result<Option<Bytes>, Stop> {
        Ok(read.part(self.id, field)?)
    }

    /// Sets a field. Returns true if it is new. The caller must put the key afterwards.
    fn set<'a>(&mut self, store: &mut dyn Store<'a>, field: &[u8], value: &[u8]) -> Result<bool, Stop> {
        let is_new = self.fields == 0 || store.part(self.id, field)?.is_none();
        self.fields += u64::from(is_new);
        store.put_part(self.id, field, value)?;
        Ok(is_new)
    }

    /// Puts the key in its current state.
    fn put<'a>(self, store: &mut dyn Store<'a>, key: &'a [u8]) -> Result<(), Stop> {
        let meta = Bytes::copy_from_slice(&self.fields.to_le_bytes());
        let collection = Collection { id: self.id, kind: Kind::Hash, meta };
        Ok(store.put(key, NewValue::Collection(collection), self.deadline)?)
    }
}

/// Rejects a field longer than the name of a part may be.
fn check_field(field: &[u8]) -> Result<(), Stop> {
    if field.len() > MAX_KEY_BYTES { Err(key_too_long().into()) } else { Ok(()) }
}

/// Reads a field of a hash that may not exist.
fn read_field(read: &dyn Read, args: &[&[u8]]) -> Result<Option<Bytes>, Stop> {
    check_field(args[2])?;
    Hash::find(read, args[1])?.map_or(Ok(None), |hash| hash.get(read, args[2]))
}

/// Sets all fields. Returns the number of new ones.
fn set_pairs<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]], command: &str) -> Result<i64, Stop> {
    let pairs = args[2..].chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err(wrong_arity(command).into());
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

fn hset<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    set_pairs(store, args, "hset").map(Reply::Integer)
}

fn hmset<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    set_pairs(store, args, "hmset").map(|_| Reply::Ok)
}

fn hsetnx<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    check_field(args[2])?;
    check_value(args[3].len())?;
    let mut hash = Hash::find_or_new(store, args[1])?;
    if hash.fields > 0 && hash.get(store, args[2])?.is_some() {
        return Ok(Reply::Integer(0));
    }
    hash.set(store, args[2], args[3])?;
    hash.put(store, args[1])?;
    Ok(Reply::Integer(1))
}

fn hget(read: &dyn Read, args: &[&[u8]]) -> Answer {
    Ok(read_field(read, args)?.map_or(Reply::Null, Reply::Bulk))
}

fn hexists(read: &dyn Read, args: &[&[u8]]) -> Answer {
    Ok(Reply::flag(read_field(read, args)?.is_some()))
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
    let mut budget = ReplyBudget::default();
    let mut replies = Vec::with_capacity(args.len() - 2);
    for field in &args[2..] {
        check_field(field)?;
        let value = match &hash {
            Some(hash) => hash.get(read, field)?,
            None => None,
        };
        budget.take(value.as_ref().map_or(0, Bytes::len))?;
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
        if hash.fields > 0 && hash.get(store, field)?.is_some() {
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
