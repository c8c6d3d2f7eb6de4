//! Helpers for several families of commands: strings by key, size checks, and the reply budget.

use std::borrow::Cow;

use bytes::Bytes;
use thalweg_types::limits::{MAX_REDIS_REPLY_BYTES, MAX_VALUE_BYTES, REDIS_REPLY_ITEM_BYTES};

use crate::{
    Reply,
    errors::{CommandEnd, REPLY_TOO_LARGE, TOO_LARGE, WRONG_TYPE, refused},
    store::{KeyInfo, Kind, NewValue, Read, Store, Value},
};

/// Reads a string with its deadline. Returns `None` for a missing key; rejects a key of another kind.
pub(crate) fn string(read: &(impl Read + ?Sized), key: &[u8]) -> Result<Option<(Bytes, Option<u64>)>, CommandEnd> {
    match read.get(key)? {
        None => Ok(None),
        Some(found) => match found.value {
            Value::String(bytes) => Ok(Some((bytes, found.deadline))),
            Value::Collection(_) => Err(refused(WRONG_TYPE)),
        },
    }
}

/// Reads a string's properties without its bytes. Returns `None` for a missing key; rejects a key of another
/// kind.
pub(crate) fn string_info(read: &(impl Read + ?Sized), key: &[u8]) -> Result<Option<KeyInfo>, CommandEnd> {
    match read.look(key)? {
        Some(look) if look.kind != Kind::String => Err(refused(WRONG_TYPE)),
        look => Ok(look),
    }
}

/// Returns a string that [`string`] read, as a reply.
pub(crate) fn bulk_or_null(found: Option<(Bytes, Option<u64>)>) -> Reply {
    found.map_or(Reply::Null, |(bytes, _)| Reply::Bulk(bytes))
}

/// Rejects a value longer than the maximum.
pub(crate) fn check_value(bytes: usize) -> Result<(), CommandEnd> {
    if bytes > MAX_VALUE_BYTES { Err(refused(TOO_LARGE)) } else { Ok(()) }
}

/// Writes an argument as a string.
pub(crate) fn put_argument<'a>(
    store: &mut dyn Store<'a>,
    key: &'a [u8],
    value: &'a [u8],
    deadline: Option<u64>,
) -> Result<(), CommandEnd> {
    check_value(value.len())?;
    Ok(store.put(key, NewValue::String(Cow::Borrowed(value)), deadline)?)
}

/// Writes computed bytes as a string.
pub(crate) fn put_computed<'a>(
    store: &mut dyn Store<'a>,
    key: &'a [u8],
    value: Vec<u8>,
    deadline: Option<u64>,
) -> Result<(), CommandEnd> {
    check_value(value.len())?;
    Ok(store.put(key, NewValue::String(Cow::Owned(value)), deadline)?)
}

/// Bytes of [`MAX_REDIS_REPLY_BYTES`] that a reply has used.
#[derive(Debug, Default)]
pub(crate) struct ReplyBudget {
    taken_bytes: usize,
}

impl ReplyBudget {
    /// Counts a value of `bytes` bytes. Returns true if it still fits.
    pub(crate) fn fits(&mut self, bytes: usize) -> bool {
        self.taken_bytes = self.taken_bytes.saturating_add(bytes + REDIS_REPLY_ITEM_BYTES);
        !self.is_exceeded()
    }

    /// Counts a value, and returns an error if it no longer fits.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), CommandEnd> {
        self.fits(bytes);
        self.check()
    }

    /// Counts a part of the reply with all its values. Returns true if it still fits.
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

    /// Returns true if a value did not fit.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.taken_bytes > MAX_REDIS_REPLY_BYTES
    }

    /// Returns an error if a value did not fit.
    pub(crate) fn check(&self) -> Result<(), CommandEnd> {
        if self.is_exceeded() { Err(refused(REPLY_TOO_LARGE)) } else { Ok(()) }
    }
}
