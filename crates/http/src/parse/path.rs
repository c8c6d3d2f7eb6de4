//! Paths: names and keys in their segments.

use std::borrow::Cow;

use super::{ParseError, decode, text};

/// Keyspace name and key.
pub type KvPath<'a> = (Cow<'a, str>, Option<Cow<'a, [u8]>>);

/// The two parts of a key-value path below `/v1/kv/`: keyspace name and key. A `/` in a key may be
/// written as it is or as `%2F`; `None` for the key means that there is no `/` after the name.
pub fn kv_path(rest: &str) -> Result<KvPath<'_>, ParseError> {
    let (name, key) = match rest.split_once('/') {
        Some((name, key)) => (name, Some(decode(key.as_bytes())?)),
        None => (rest, None),
    };
    Ok((name_segment(name)?, key))
}

/// One path segment that holds a name.
pub fn name_segment(segment: &str) -> Result<Cow<'_, str>, ParseError> {
    text(decode(segment.as_bytes())?, "name")
}
