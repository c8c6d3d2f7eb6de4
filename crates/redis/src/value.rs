//! Helpers for several families of commands: strings by key, size checks, and the reply budget.

use std::borrow::Cow;

use bytes::Bytes;
use thalweg_types::{
    limits::{MAX_REDIS_DELIVERY_STEPS, MAX_REDIS_REPLY_BYTES, MAX_VALUE_BYTES, REDIS_REPLY_ITEM_BYTES},
    steps::read_bytes,
};

use crate::{
    Reply,
    errors::{CommandEnd, REPLY_TOO_LARGE, TOO_LARGE, WRONG_TYPE, refused},
    store::{KeyInfo, KeyValue, Kind, NewValue, Read, Store, Value},
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

/// Reads the string of a key like [`string`], but only if it has at most `max_bytes` bytes. Returns no bytes for a longer
/// string, which is not read.
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

/// Returns the steps of reading an entry of a stream, which its row holds with a length before each field and value.
pub(crate) fn steps_to_read(entry: &Reply) -> u64 {
    fn values(reply: &Reply) -> usize {
        match reply {
            Reply::Array(parts) => parts.iter().map(values).sum(),
            _ => 1,
        }
    }
    read_bytes(entry.content_bytes() + 8 * values(entry))
}

/// Counter of the bytes in a reply, which must not exceed [`MAX_REDIS_REPLY_BYTES`], and of the steps of a delivery, which
/// must not exceed [`MAX_REDIS_DELIVERY_STEPS`].
#[derive(Debug, Default)]
pub(crate) struct ReplyBudget {
    taken_bytes: usize,
    taken_steps: u64,
}

impl ReplyBudget {
    /// Counts a value of `bytes` bytes. Returns true if the reply is still within its limit.
    pub(crate) fn fits(&mut self, bytes: usize) -> bool {
        self.taken_bytes = self.taken_bytes.saturating_add(bytes + REDIS_REPLY_ITEM_BYTES);
        !self.is_exceeded()
    }

    /// Counts a value of `bytes` bytes. Returns an error if the reply now exceeds its limit.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), CommandEnd> {
        self.fits(bytes);
        self.check()
    }

    /// Counts an element of the reply, including nested values. Returns true if the reply is still within its
    /// limit.
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

    /// Counts steps of a delivery that add no bytes to the reply.
    pub(crate) fn work(&mut self, steps: u64) {
        self.taken_steps = self.taken_steps.saturating_add(steps);
    }

    /// Counts a delivered entry: `steps` steps, those of reading its bytes, and its bytes in the reply. Returns true if
    /// the reply and the delivery are still within their limits.
    pub(crate) fn fits_delivery(&mut self, entry: &Reply, steps: u64) -> bool {
        self.work(steps + steps_to_read(entry));
        self.fits_part(entry)
    }

    /// Returns true if an entry of the maximum size could still be delivered.
    pub(crate) fn has_room_for_largest(&self) -> bool {
        !self.is_exceeded() && self.taken_steps + read_bytes(MAX_VALUE_BYTES) <= MAX_REDIS_DELIVERY_STEPS
    }

    /// Returns true if the counted values exceed the limit of a reply, or the counted steps that of a delivery.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.taken_bytes > MAX_REDIS_REPLY_BYTES || self.taken_steps > MAX_REDIS_DELIVERY_STEPS
    }

    /// Returns an error if the counted values exceed the limit of a reply.
    pub(crate) fn check(&self) -> Result<(), CommandEnd> {
        if self.is_exceeded() { Err(refused(REPLY_TOO_LARGE)) } else { Ok(()) }
    }
}
