//! The encoding of a value in our redb and SQLite backends: the value with a checksum in front of it.
//!
//! ```text
//! | crc u32 | value ... |        CRC-32C of the key and the value, little-endian
//! ```
//! Neither redb nor SQLite detects a flipped bit in the data that it reads back; this checksum does.

use crate::{backend::BackendError, checksum::crc32c};

/// Size in bytes of the checksum in front of each value.
pub(crate) const CHECKSUM_BYTES: usize = 4;

/// Returns the checksum of a pair of key and value.
pub(crate) fn checksum(key: &[u8], value: &[u8]) -> [u8; CHECKSUM_BYTES] {
    crc32c(&[key, value]).to_le_bytes()
}

/// Verifies the checksum of the bytes `stored` under `key`, and returns the value after the checksum.
pub(crate) fn checked<'a>(key: &[u8], stored: &'a [u8]) -> Result<&'a [u8], BackendError> {
    match stored.split_first_chunk::<CHECKSUM_BYTES>() {
        Some((crc, value)) if *crc == checksum(key, value) => Ok(value),
        _ => {
            let what = format_args!("the pair under the key that begins with {:02x?}", &key[..key.len().min(16)]);
            Err(BackendError::corrupt(what, "its checksum is wrong"))
        }
    }
}
