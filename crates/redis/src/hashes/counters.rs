//! Commands on numeric fields of a hash.

use bytes::Bytes;

use super::hash::{Hash, check_field};
use crate::{
    Reply,
    errors::{Answer, NOT_FINITE, OVERFLOW, refused},
    long_double::{LongDouble, charge_parsing, charge_writing, float},
    number::{format_integer, integer, parse_integer},
    store::Store,
};

pub(super) fn hincrby<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    let (key, field) = (args[1], args[2]);
    let increment = integer(args[3])?;
    check_field(field)?;
    let mut hash = Hash::find_or_new(store, key)?;
    let old = match hash.get(store, field)? {
        Some(value) => parse_integer(&value).ok_or_else(|| refused("ERR hash value is not an integer"))?,
        None => 0,
    };
    let new = old.checked_add(increment).ok_or_else(|| refused(OVERFLOW))?;
    hash.set(store, field, &format_integer(new))?;
    hash.put(store, key)?;
    Ok(Reply::Integer(new))
}

pub(super) fn hincrbyfloat<'a>(store: &mut dyn Store<'a>, args: &[&'a [u8]]) -> Answer {
    let (key, field) = (args[1], args[2]);
    charge_parsing(store, args[3])?;
    let increment = float(args[3])?;
    if !increment.is_finite() {
        return Ok(Reply::error("ERR value is NaN or Infinity"));
    }
    check_field(field)?;
    let mut hash = Hash::find_or_new(store, key)?;
    let old = match hash.get(store, field)? {
        Some(value) => {
            charge_parsing(store, &value)?;
            LongDouble::parse(&value).ok_or_else(|| refused("ERR hash value is not a float"))?
        }
        None => LongDouble::ZERO,
    };
    let new = old.plus(increment);
    if !new.is_finite() {
        return Err(refused(NOT_FINITE));
    }
    let text = new.to_text();
    charge_writing(store, &text)?;
    hash.set(store, field, &text)?;
    hash.put(store, key)?;
    Ok(Reply::Bulk(Bytes::from(text)))
}
