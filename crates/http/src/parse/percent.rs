//! Percent-encoding of arbitrary bytes.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};

use super::error::ParseError;

/// Bytes that [`encode`] escapes: all but the unreserved characters of RFC 3986.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Decodes a path: `%XX` stands for a byte, and every other character for itself (also `+`). Returns an error for a `%`
/// without two hexadecimal digits. Borrows the input if it contains no `%`.
pub fn decode(raw: &[u8]) -> Result<Cow<'_, [u8]>, ParseError> {
    if !raw.contains(&b'%') {
        return Ok(Cow::Borrowed(raw));
    }
    let is_escape = |at: usize| raw.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
    match raw.iter().enumerate().find(|&(at, &byte)| byte == b'%' && !is_escape(at)) {
        Some((at, _)) => Err(ParseError::BadEscape { at }),
        None => Ok(percent_decode(raw).into()),
    }
}

/// Decodes a query component like [`decode`], but `+` stands for a space, as forms and most libraries send it.
pub fn decode_query(raw: &[u8]) -> Result<Cow<'_, [u8]>, ParseError> {
    if !raw.contains(&b'+') {
        return decode(raw);
    }
    let spaced: Vec<_> = raw.iter().map(|&byte| if byte == b'+' { b' ' } else { byte }).collect();
    decode(&spaced).map(|decoded| Cow::Owned(decoded.into_owned()))
}

/// Encodes any bytes. [`decode`] and [`decode_query`] return these bytes again.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    percent_encode(bytes, ESCAPED).to_string()
}

/// Converts bytes of a request to text. Returns an error if they are not UTF-8; `what` names their part of the request
/// in the error.
pub(crate) fn text<'a>(bytes: Cow<'a, [u8]>, what: &'static str) -> Result<Cow<'a, str>, ParseError> {
    match bytes {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| ParseError::NotUtf8 { what }),
        Cow::Owned(bytes) => String::from_utf8(bytes).map(Cow::Owned).map_err(|_| ParseError::NotUtf8 { what }),
    }
}
