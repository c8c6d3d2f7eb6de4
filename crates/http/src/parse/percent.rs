//! Percent-encoding of arbitrary bytes, and text among them.

use std::borrow::Cow;

use super::error::ParseError;

/// Decodes a path: `%XX` is a byte, everything else stands for itself (also `+`).
/// Borrows when there is nothing to decode.
pub fn decode(raw: &[u8]) -> Result<Cow<'_, [u8]>, ParseError> {
    match raw.iter().position(|&byte| byte == b'%') {
        None => Ok(Cow::Borrowed(raw)),
        Some(first) => decode_from(raw, first, false).map(Cow::Owned),
    }
}

/// Decodes a query component: as [`decode`], and `+` is a space, as forms and most libraries send it.
pub fn decode_query(raw: &[u8]) -> Result<Cow<'_, [u8]>, ParseError> {
    match raw.iter().position(|&byte| byte == b'%' || byte == b'+') {
        None => Ok(Cow::Borrowed(raw)),
        Some(first) => decode_from(raw, first, true).map(Cow::Owned),
    }
}

fn decode_from(raw: &[u8], first: usize, plus_is_space: bool) -> Result<Vec<u8>, ParseError> {
    let mut out = Vec::with_capacity(raw.len());
    out.extend_from_slice(&raw[..first]);
    let mut at = first;
    while let Some(&byte) = raw.get(at) {
        at += match byte {
            b'%' => {
                out.push(escaped(raw, at)?);
                3
            }
            b'+' if plus_is_space => {
                out.push(b' ');
                1
            }
            other => {
                out.push(other);
                1
            }
        };
    }
    Ok(out)
}

fn escaped(raw: &[u8], at: usize) -> Result<u8, ParseError> {
    let digit = |at: usize| raw.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    match (digit(at + 1), digit(at + 2)) {
        (Some(high), Some(low)) => Ok((high << 4 | low) as u8),
        _ => Err(ParseError::BadEscape { at }),
    }
}

/// Encodes any bytes so that both [`decode`] and [`decode_query`] give them back.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = String::with_capacity(bytes.len() + 16);
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
    out
}

/// Bytes that must be text.
pub(crate) fn text<'a>(bytes: Cow<'a, [u8]>, what: &'static str) -> Result<Cow<'a, str>, ParseError> {
    match bytes {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| ParseError::NotUtf8 { what }),
        Cow::Owned(bytes) => String::from_utf8(bytes).map(Cow::Owned).map_err(|_| ParseError::NotUtf8 { what }),
    }
}
