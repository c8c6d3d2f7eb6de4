//! Commands on strings that are numbers.

use bytes::Bytes;

use crate::{
    Reply,
    errors::{Answer, NOT_AN_INTEGER, NOT_FINITE, OVERFLOW, refused},
    long_double::{LongDouble, charge_parsing, charge_writing, float},
    number::{MAX_DIGITS, format_integer, integer, parse_integer},
    store::Store,
    value::{put_computed, short_string},
};

/// Maximum length in bytes of a string that is parsed as a floating-point number. A longer string counts as malformed.
const MAX_FLOAT_BYTES: usize = 5 * 1024;

pub(super) fn decrby<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    match integer(args[2])?.checked_neg() {
        Some(increment) => add(store, args[1], increment),
        None => Ok(Reply::error("ERR decrement would overflow")),
    }
}

/// Adds `increment` to the integer that the string of a key contains, and replies with the sum. A missing key
/// counts as 0.
pub(super) fn add<'a>(store: &mut dyn Store<'a>, key: &'a [u8], increment: i64) -> Answer {
    let (old, deadline) = match short_string(store, key, MAX_DIGITS)? {
        Some((bytes, deadline)) => {
            let old = bytes.and_then(|bytes| parse_integer(&bytes));
            (old.ok_or_else(|| refused(NOT_AN_INTEGER))?, deadline)
        }
        None => (0, None),
    };
    let new = old.checked_add(increment).ok_or_else(|| refused(OVERFLOW))?;
    put_computed(store, key, format_integer(new), deadline)?;
    Ok(Reply::Integer(new))
}

pub(super) fn incrbyfloat<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    let (old, deadline) = match short_string(store, args[1], MAX_FLOAT_BYTES)? {
        Some((bytes, deadline)) => {
            let bytes = bytes.unwrap_or_default();
            charge_parsing(store, &bytes)?;
            (float(&bytes)?, deadline)
        }
        None => (LongDouble::ZERO, None),
    };
    charge_parsing(store, args[2])?;
    let new = old.plus(float(args[2])?);
    if !new.is_finite() {
        return Err(refused(NOT_FINITE));
    }
    let text = new.to_text();
    charge_writing(store, &text)?;
    put_computed(store, args[1], text.clone(), deadline)?;
    Ok(Reply::Bulk(Bytes::from(text)))
}
