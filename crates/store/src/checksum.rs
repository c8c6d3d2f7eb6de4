//! The checksum in the files that this crate writes itself.

use crc_fast::{CrcAlgorithm, Digest};

/// Returns the CRC-32C checksum of the concatenated slices.
pub(crate) fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}
