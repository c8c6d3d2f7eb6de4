//! Helpers for several families of commands: strings by key, size checks, and the reply budget.
//!
//! Owns: reading and writing the string of a key with the checks of its kind and size, and `ReplyBudget`, which counts
//! the bytes of a reply and the steps of a delivery. Does not own: the budget of steps of a whole command, which the
//! store charges.

use std::borrow::Cow;

use bytes::Bytes;
use thalweg_types::{
    limits::{MAX_REDIS_DELIVERY_STEPS, MAX_REDIS_REPLY_BYTES, MAX_VALUE_BYTES, REDIS_REPLY_ITEM_BYTES},
    steps::read_bytes,
};

use crate::{
    Reply,
    errors::{CommandEnd, NO_REPLY_ROOM, REPLY_TOO_LARGE, TOO_LARGE, WRONG_TYPE, refused},
    store::{CollectionId, KeyInfo, KeyValue, Kind, NewValue, Read, Store, Value},
};

/// Reads the string of a key, and the key's deadline in milliseconds since the Unix epoch. Returns `None` for a
/// missing key, and an error for a key that holds a hash or a stream.
pub(crate) fn string(read: &(impl Read + ?Sized), key: &[u8]) -> Result<Option<(Bytes, Option<u64>)>, CommandEnd> {
    match read.get(key)? {
        None => Ok(None),
        Some(found) => match found.value {
            Value::String(bytes) => Ok(Some((bytes, found.deadline))),
            Value::Collection(_) => Err(refused(WRONG_TYPE)),
        },
    }
}

/// Reads the string of a key, and the key's deadline, like [`string`]. A string of more than `max_bytes` bytes is not
/// read: the inner `None` stands for its bytes.
#[expect(clippy::type_complexity)]
pub(crate) fn short_string(
    read: &(impl Read + ?Sized),
    key: &[u8],
    max_bytes: usize,
) -> Result<Option<(Option<Bytes>, Option<u64>)>, CommandEnd> {
    let Some(found) = read.get_short(key, max_bytes)? else { return Ok(None) };
    match found {
        None => Ok(Some((None, None))),
        Some(KeyValue { value: Value::String(bytes), deadline, .. }) => Ok(Some((Some(bytes), deadline))),
        Some(_) => Err(refused(WRONG_TYPE)),
    }
}

/// Reads the properties of a key that must hold a string, without the bytes of the string. Returns `None` for a
/// missing key, and an error for a key that holds a hash or a stream.
pub(crate) fn string_info(read: &(impl Read + ?Sized), key: &[u8]) -> Result<Option<KeyInfo>, CommandEnd> {
    match read.look(key)? {
        Some(look) if look.kind != Kind::String => Err(refused(WRONG_TYPE)),
        look => Ok(look),
    }
}

/// Returns the result of [`string`] as a reply: the bytes of the string, or null for a missing key.
pub(crate) fn bulk_or_null(found: Option<(Bytes, Option<u64>)>) -> Reply {
    found.map_or(Reply::Null, |(bytes, _)| Reply::Bulk(bytes))
}

/// Returns an error if a value of this many bytes exceeds the maximum size of a value.
pub(crate) fn check_value(bytes: usize) -> Result<(), CommandEnd> {
    if bytes > MAX_VALUE_BYTES { Err(refused(TOO_LARGE)) } else { Ok(()) }
}

/// Writes an argument of the command as the string of a key. The store can keep a reference to the argument instead
/// of a copy.
pub(crate) fn put_argument<'a>(
    store: &mut dyn Store<'a>,
    key: &'a [u8],
    value: &'a [u8],
    deadline: Option<u64>,
) -> Result<(), CommandEnd> {
    check_value(value.len())?;
    Ok(store.put(key, NewValue::String(Cow::Borrowed(value)), deadline)?)
}

/// Writes bytes that a command has computed as the string of a key.
pub(crate) fn put_computed<'a>(
    store: &mut dyn Store<'a>,
    key: &'a [u8],
    value: Vec<u8>,
    deadline: Option<u64>,
) -> Result<(), CommandEnd> {
    check_value(value.len())?;
    Ok(store.put(key, NewValue::String(Cow::Owned(value)), deadline)?)
}

/// Returns the steps of work for reading an entry of a Redis stream. Its row has a length before each field and value.
pub(crate) fn steps_to_read(entry: &Reply) -> u64 {
    fn values(reply: &Reply) -> usize {
        match reply {
            Reply::Array(parts) => parts.iter().map(values).sum(),
            _ => 1,
        }
    }
    read_bytes(entry.content_bytes() + 8 * values(entry))
}

/// Counter of the bytes in a reply and of the steps of work of a delivery. All bytes must not exceed
/// [`MAX_REDIS_REPLY_BYTES`], the bytes of values must not exceed `room`, and the steps must not exceed
/// [`MAX_REDIS_DELIVERY_STEPS`].
#[derive(Debug)]
pub(crate) struct ReplyBudget {
    taken_bytes: usize,
    taken_steps: u64,
    /// Bytes of the values in the reply, without its other bytes. Their maximum is `room`.
    value_bytes: usize,
    room: usize,
}

impl Default for ReplyBudget {
    /// Creates a counter for a reply without a limit on the bytes of values.
    fn default() -> Self {
        Self { taken_bytes: 0, taken_steps: 0, value_bytes: 0, room: usize::MAX }
    }
}

impl ReplyBudget {
    /// Creates the counter of a reply to a command that only reads. The store limits the bytes of values.
    pub(crate) fn of(read: &(impl Read + ?Sized)) -> Self {
        Self { room: read.reply_room(), ..Self::default() }
    }

    /// Reads the value of a key, if there is room for it in the reply. Counts the bytes of a string. The bytes of a
    /// collection are not counted.
    pub(crate) fn read(&mut self, read: &dyn Read, key: &[u8]) -> Result<Option<Value>, CommandEnd> {
        // Without a limit, the whole value is requested, so that the store charges always the same steps.
        let found = match self.room {
            usize::MAX => read.get(key)?.map(Some),
            room => read.get_short(key, room - self.value_bytes.min(room))?,
        };
        let Some(found) = found else { return Ok(None) };
        let value = found.ok_or_else(|| refused(NO_REPLY_ROOM))?.value;
        if let Value::String(bytes) = &value {
            self.take(bytes.len())?;
        }
        Ok(Some(value))
    }

    /// Reads the value of a part of a collection, if there is room for it in the reply, and counts it.
    pub(crate) fn read_part(
        &mut self,
        read: &dyn Read,
        id: CollectionId,
        name: &[u8],
    ) -> Result<Option<Bytes>, CommandEnd> {
        let found = match self.room {
            usize::MAX => read.part(id, name)?.map(Some),
            room => read.part_short(id, name, room - self.value_bytes.min(room))?,
        };
        let value = found.map(|value| value.ok_or_else(|| refused(NO_REPLY_ROOM))).transpose()?;
        self.take(value.as_ref().map_or(0, Bytes::len))?;
        Ok(value)
    }

    /// Returns true if the reply has room for the values of a row with `bytes` bytes. Called before they are copied. If
    /// there is no room, the reply counts as exceeding its limit from now on.
    pub(crate) fn has_room_for_row(&mut self, bytes: usize) -> bool {
        let has_room = self.value_bytes.saturating_add(bytes) <= self.room;
        self.value_bytes = if has_room { self.value_bytes } else { usize::MAX };
        has_room
    }

    /// Returns true if the values counted so far have more bytes than the reply may contain at present.
    pub(crate) fn lacks_room(&self) -> bool {
        self.value_bytes > self.room
    }

    /// Counts a value of `bytes` bytes. Returns true if the reply is still within its limit.
    pub(crate) fn fits(&mut self, bytes: usize) -> bool {
        self.taken_bytes = self.taken_bytes.saturating_add(bytes + REDIS_REPLY_ITEM_BYTES);
        self.value_bytes = self.value_bytes.saturating_add(bytes);
        !self.is_exceeded()
    }

    /// Counts a value of `bytes` bytes. Returns an error if the reply now exceeds its limit.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), CommandEnd> {
        self.fits(bytes);
        self.check()
    }

    /// Counts one element of the reply, including the values nested in it. Returns true if the reply is still within
    /// its limit.
    pub(crate) fn fits_part(&mut self, part: &Reply) -> bool {
        match part {
            Reply::Array(parts) => {
                self.fits(0);
                for part in parts {
                    self.fits_part(part);
                }
                !self.is_exceeded()
            }
            Reply::Bulk(bytes) => self.fits(bytes.len()),
            _ => self.fits(0),
        }
    }

    /// Counts steps of work of a delivery that add no bytes to the reply.
    pub(crate) fn work(&mut self, steps: u64) {
        self.taken_steps = self.taken_steps.saturating_add(steps);
    }

    /// Counts a delivered entry: `steps` of work, the steps of reading its bytes, and its bytes in the reply. Returns
    /// true if the reply and the delivery are still within their limits.
    pub(crate) fn fits_delivery(&mut self, entry: &Reply, steps: u64) -> bool {
        self.work(steps + steps_to_read(entry));
        self.fits_part(entry)
    }

    /// Returns true if the limits still permit to deliver one more entry, even one of the maximum size.
    pub(crate) fn has_room_for_largest(&self) -> bool {
        !self.is_exceeded() && self.taken_steps + read_bytes(MAX_VALUE_BYTES) <= MAX_REDIS_DELIVERY_STEPS
    }

    fn is_too_large(&self) -> bool {
        self.taken_bytes > MAX_REDIS_REPLY_BYTES || self.taken_steps > MAX_REDIS_DELIVERY_STEPS
    }

    /// Returns true if the reply or its values exceed their limit, or if the steps exceed the limit of a delivery.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.is_too_large() || self.lacks_room()
    }

    /// Returns an error if the reply, its values or the steps exceed their limit.
    pub(crate) fn check(&self) -> Result<(), CommandEnd> {
        match (self.is_too_large(), self.lacks_room()) {
            (true, _) => Err(refused(REPLY_TOO_LARGE)),
            (false, true) => Err(refused(NO_REPLY_ROOM)),
            (false, false) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, ops::Bound};

    use super::*;
    use crate::{
        Reply, StoreError, execute, find,
        model::Model,
        run_read,
        store::{Visit, VisitKeys},
    };

    /// A store for tests with limited room for a reply. It counts the bytes of values that it has copied for commands.
    struct Roomy<'m> {
        model: &'m Model,
        room: usize,
        copied: Cell<usize>,
    }

    impl Read for Roomy<'_> {
        fn reply_room(&self) -> usize {
            self.room
        }

        fn now(&self) -> u64 {
            self.model.now()
        }

        fn look(&self, key: &[u8]) -> Result<Option<KeyInfo>, StoreError> {
            self.model.look(key)
        }

        fn get(&self, key: &[u8]) -> Result<Option<KeyValue>, StoreError> {
            let found = self.model.get(key)?;
            if let Some(KeyValue { value: Value::String(bytes), .. }) = &found {
                self.copied.set(self.copied.get() + bytes.len());
            }
            Ok(found)
        }

        fn len(&self) -> Result<u64, StoreError> {
            self.model.len()
        }

        fn keys(&self, after: Option<&[u8]>, visit: &mut VisitKeys<'_>) -> Result<(), StoreError> {
            self.model.keys(after, visit)
        }

        fn part(&self, id: CollectionId, name: &[u8]) -> Result<Option<Bytes>, StoreError> {
            let found = self.model.part(id, name)?;
            self.copied.set(self.copied.get() + found.as_ref().map_or(0, Bytes::len));
            Ok(found)
        }

        fn part_short(&self, id: CollectionId, name: &[u8], max: usize) -> Result<Option<Option<Bytes>>, StoreError> {
            let found = self.model.part_short(id, name, max)?;
            self.copied.set(self.copied.get() + found.iter().flatten().map(Bytes::len).sum::<usize>());
            Ok(found)
        }

        fn parts(
            &self,
            id: CollectionId,
            lower: Bound<&[u8]>,
            upper: Bound<&[u8]>,
            descending: bool,
            visit: &mut Visit<'_>,
        ) -> Result<(), StoreError> {
            self.model.parts(id, lower, upper, descending, visit)
        }
    }

    #[test]
    fn a_read_whose_values_have_no_room_is_rejected_before_it_copies_them() {
        let (mut model, value) = (Model::default(), vec![b'v'; 1000]);
        for command in [
            &[&b"set"[..], b"k", &value] as &[&[u8]],
            &[b"hset", b"h", b"f", &value],
            &[b"xadd", b"s", b"1-1", b"f", &value],
        ] {
            assert!(!matches!(execute(&mut model, command).unwrap(), Reply::Error(_)));
        }
        let run = |room, args: &[&[u8]]| {
            let read = Roomy { model: &model, room, copied: Cell::new(0) };
            let reply = run_read(&read, find(args[0]).unwrap(), args).unwrap();
            (reply, read.copied.get())
        };
        let reads: &[&[&[u8]]] = &[
            &[b"get", b"k"],
            &[b"mget", b"none", b"k"],
            &[b"getrange", b"k", b"0", b"-1"],
            &[b"hget", b"h", b"f"],
            &[b"hmget", b"h", b"none", b"f"],
            &[b"hgetall", b"h"],
            &[b"hvals", b"h"],
            &[b"hrandfield", b"h", b"1", b"withvalues"],
            &[b"hscan", b"h", b"0"],
            &[b"xrange", b"s", b"-", b"+"],
            &[b"xrevrange", b"s", b"+", b"-"],
            &[b"xread", b"streams", b"s", b"0"],
            &[b"xinfo", b"stream", b"s", b"full"],
        ];
        for args in reads {
            let name = String::from_utf8_lossy(args[0]);
            assert_eq!(run(999, args), (Reply::error(NO_REPLY_ROOM), 0), "{name}");
            let (reply, _) = run(1100, args);
            assert!(reply.content_bytes() >= 1000, "{name}: {reply:?}");
        }
        // The replies of these commands are short, however long the values are.
        for args in [&[&b"getrange"[..], b"k", b"0", b"9"] as &[&[u8]], &[b"hkeys", b"h"], &[b"strlen", b"k"]] {
            assert!(!matches!(run(999, args).0, Reply::Error(_)));
        }
    }
}
