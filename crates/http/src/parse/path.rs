//! Parsing of names and keys in the segments of a path.

use std::borrow::Cow;

use super::{ParseError, decode, text};

/// A keyspace's name, and a key if the path has one.
pub type KvPath<'a> = (Cow<'a, str>, Option<Cow<'a, [u8]>>);

/// Splits a path below `/v1/kv/` into keyspace name and key. A `/` in a key may be literal or `%2F`. The key is `None`
/// if no `/` follows the keyspace name.
pub fn kv_path(rest: &str) -> Result<KvPath<'_>, ParseError> {
    let (name, key) = match rest.split_once('/') {
        Some((name, key)) => (name, Some(decode(key.as_bytes())?)),
        None => (rest, None),
    };
    Ok((name_segment(name)?, key))
}

/// Decodes a path segment that is a name.
pub fn name_segment(segment: &str) -> Result<Cow<'_, str>, ParseError> {
    if !segment.contains('%') {
        return Ok(Cow::Borrowed(segment));
    }
    text(decode(segment.as_bytes())?, "name")
}
