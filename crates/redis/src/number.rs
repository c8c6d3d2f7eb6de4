//! Parsing and formatting of integers as in Redis. Each number has exactly one form, so a value that was parsed is
//! written back as the same bytes.
//!
//! Does not own: floating point (see [`crate::long_double`]).

use crate::errors::{CommandEnd, NOT_AN_INTEGER, refused};

/// Length of the longest decimal `i64`: a sign and nineteen digits.
pub(crate) const MAX_DIGITS: usize = 20;

/// Parses an integer without spaces, plus sign, leading zeros or minus zero, within the range of `i64`.
#[must_use]
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if text.len() <= MAX_DIGITS => {}
        _ => return None,
    }
    let mut magnitude = 0_u64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        magnitude = magnitude.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    if negative { 0_i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// Parses an argument that must be an integer; otherwise returns the error reply.
pub(crate) fn integer(argument: &[u8]) -> Result<i64, CommandEnd> {
    parse_integer(argument).ok_or_else(|| refused(NOT_AN_INTEGER))
}

/// Parses an argument that must be an integer between two inclusive bounds; otherwise returns the error reply.
pub(crate) fn integer_between(argument: &[u8], min: i64, max: i64) -> Result<i64, CommandEnd> {
    let value = integer(argument)?;
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(CommandEnd::error(format!("ERR value is out of range, value must between {min} and {max}")))
    }
}

/// Writes the decimal digits of a number at the end of the buffer `place`, which must have at least [`MAX_DIGITS`]
/// bytes. Returns the position of the first digit in the buffer.
#[inline]
pub(crate) fn put_digits(place: &mut [u8], mut number: u64) -> usize {
    let mut begin = place.len();
    loop {
        begin -= 1;
        place[begin] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return begin;
        }
    }
}

/// Formats an integer in decimal.
pub(crate) fn format_integer(value: i64) -> Vec<u8> {
    let mut digits = [0; MAX_DIGITS];
    let mut begin = put_digits(&mut digits, value.unsigned_abs());
    if value < 0 {
        begin -= 1;
        digits[begin] = b'-';
    }
    digits[begin..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_one_form() {
        for value in [0, 1, -1, 10, 99, -100, i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1] {
            assert_eq!(format_integer(value), value.to_string().into_bytes());
            assert_eq!(parse_integer(&format_integer(value)), Some(value));
        }
        let others: [&[u8]; 14] = [
            b"",
            b"-",
            b"+1",
            b" 1",
            b"1 ",
            b"01",
            b"-0",
            b"00",
            b"1.0",
            b"1e3",
            b"9223372036854775808",
            b"-9223372036854775809",
            b"99999999999999999999",
            b"1\0",
        ];
        for text in others {
            assert_eq!(parse_integer(text), None, "{text:?}");
        }
    }
}
