//! Commands that rename and copy keys.

use std::ops::{Bound, ControlFlow};

use thalweg_types::limits::{MAX_REDIS_COPY_BYTES, MAX_REDIS_COPY_PARTS};

use crate::{
    Reply,
    errors::{Answer, CommandEnd, NO_SUCH_KEY, SYNTAX, refused},
    expiry::is,
    number::integer_between,
    store::{Collection, CollectionId, NewValue, Store, Value},
};

pub(super) fn rename<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    let (from, to) = (args[1], args[2]);
    if store.look(from)?.is_none() {
        return Err(refused(NO_SUCH_KEY));
    }
    if from != to {
        store.rename(from, to)?;
    }
    Ok(Reply::Ok)
}

pub(super) fn renamenx<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    let (from, to) = (args[1], args[2]);
    if store.look(from)?.is_none() {
        return Err(refused(NO_SUCH_KEY));
    }
    if from == to || store.look(to)?.is_some() {
        return Ok(Reply::Integer(0));
    }
    store.rename(from, to)?;
    Ok(Reply::Integer(1))
}

pub(super) fn copy<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    let (from, to) = (args[1], args[2]);
    let replaces = parse_copy(&args[3..])?;
    if from == to {
        return Ok(Reply::error("ERR source and destination objects are the same"));
    }
    let Some(found) = store.get(from)? else { return Ok(Reply::Integer(0)) };
    if !replaces && store.look(to)?.is_some() {
        return Ok(Reply::Integer(0));
    }
    let value = match found.value {
        Value::String(bytes) => {
            store.prepare_value(bytes.len())?;
            NewValue::String(bytes.to_vec().into())
        }
        Value::Collection(old) => NewValue::Collection(copy_parts(store, old)?),
    };
    store.put(to, value, found.deadline)?;
    Ok(Reply::Integer(1))
}

/// Parses the options of COPY. Returns true if they contain REPLACE. Then COPY replaces an existing target key.
fn parse_copy(options: &[&[u8]]) -> Result<bool, CommandEnd> {
    let mut replaces = false;
    let mut rest = options;
    while let [option, after @ ..] = rest {
        rest = match after {
            _ if is(option, "replace") => {
                replaces = true;
                after
            }
            [database, _after @ ..] if is(option, "db") => {
                integer_between(database, i64::from(i32::MIN), i64::from(i32::MAX))?;
                // A command can access only one database. Others can be other keyspaces or caches, and one commit
                // cannot change several of them.
                return Err(refused("ERR COPY does not support the DB option: leave it out, or use GET and SET"));
            }
            _ => return Err(refused(SYNTAX)),
        };
    }
    Ok(replaces)
}

/// Copies a collection: creates a new collection with the same parts (fields or entries). The parts are in memory while
/// they are copied, and one log entry contains all writes. So the number and the bytes of the parts are limited.
fn copy_parts<'a>(store: &mut dyn Store<'a>, old: Collection) -> Result<Collection, CommandEnd> {
    let parts = gather(store, old.id)?;
    let id = store.new_collection()?;
    for (name, value) in &parts {
        store.put_part(id, name, value)?;
    }
    Ok(Collection { id, ..old })
}

type Parts = Vec<(Box<[u8]>, Box<[u8]>)>;

fn gather<'a>(store: &mut dyn Store<'a>, id: CollectionId) -> Result<Parts, CommandEnd> {
    let (mut parts, mut bytes, mut fits) = (Parts::new(), 0, true);
    store.parts(id, Bound::Unbounded, Bound::Unbounded, false, &mut |name, value| {
        bytes += name.len() + value.len();
        fits = parts.len() < MAX_REDIS_COPY_PARTS && bytes <= MAX_REDIS_COPY_BYTES;
        if !fits {
            return ControlFlow::Break(());
        }
        parts.push((name.into(), value.into()));
        ControlFlow::Continue(())
    })?;
    if fits {
        Ok(parts)
    } else {
        Err(CommandEnd::error(format!(
            "ERR the key is too large for one copy: at most {MAX_REDIS_COPY_PARTS} parts and {MAX_REDIS_COPY_BYTES} bytes"
        )))
    }
}
