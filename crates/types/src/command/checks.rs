//! Checks of names, keys and values, and the encoding of names.

use crate::{
    codec::conversions,
    command::error::CommandError,
    limits::{MAX_KEY_BYTES, MAX_NAME_BYTES, MAX_VALUE_BYTES},
};

conversions! {
    /// The name of a keyspace, stream or group, encoded and checked by the rules of [`check_name`].
    pub(super) Name: &'a str as &'a str, "name" {
        put |name| name,
        take |name| check_name(name).is_ok().then_some(name)
    }
}

/// Checks the name of a keyspace, stream or group: its length and its characters.
pub fn check_name(name: &str) -> Result<(), CommandError> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.starts_with('.') || !name.bytes().all(good) {
        return Err(CommandError::BadName { name: name.chars().take(64).collect() });
    }
    Ok(())
}

/// Checks that a key is at most [`MAX_KEY_BYTES`] long.
pub fn check_key(key: &[u8]) -> Result<(), CommandError> {
    if key.len() > MAX_KEY_BYTES {
        return Err(CommandError::KeyTooLong { got: key.len() });
    }
    Ok(())
}

/// Checks that a value is at most [`MAX_VALUE_BYTES`] long.
pub fn check_value(value: &[u8]) -> Result<(), CommandError> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(CommandError::ValueTooLong { got: value.len() });
    }
    Ok(())
}
