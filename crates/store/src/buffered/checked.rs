//! A value with its checksum, as stores keep it.
//!
//! ```text
//! | crc u32 | value ... |        CRC-32C of the key and the value, little-endian
//! ```
//! Neither redb nor SQLite notices a flipped bit in what it reads back; this does.

use crc_fast::{CrcAlgorithm, Digest};

use crate::backend::BackendError;

/// Bytes in front of the value.
pub const CHECKSUM_BYTES: usize = 4;

/// The checksum of a pair.
pub fn checksum(key: &[u8], value: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(key);
    digest.update(value);
    (digest.finalize() as u32).to_le_bytes()
}

/// The value within what a store kept under `key`.
pub fn checked<'a>(key: &[u8], stored: &'a [u8]) -> Result<&'a [u8], BackendError> {
    match stored.split_first_chunk::<CHECKSUM_BYTES>() {
        Some((crc, value)) if *crc == checksum(key, value) => Ok(value),
        _ => Err(BackendError::Corrupt {
            what: format!("the pair under the key that begins with {:02x?}", &key[..key.len().min(16)]),
            message: "its checksum is wrong".to_owned(),
        }),
    }
}
