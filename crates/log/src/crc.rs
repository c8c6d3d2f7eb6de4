//! CRC32C, the only checksum of the log.
//!
//! Owns: the order in which the parts of a record and the seed of a segment enter the checksum. Does not own: the
//! choice of the bytes that are covered (see `format`).

use std::io::IoSlice;

use crc_fast::{CrcAlgorithm, Digest};

/// Maximum total bytes of a record's parts that are copied together and checksummed in one call. Above this
/// size, a streaming digest is used, which costs more to set up.
const GATHER_BYTES: usize = 256;

/// CRC32C of `bytes`.
#[inline]
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Returns the CRC32C of `head` followed by `parts`, the slices of which a record consists.
#[must_use]
pub(crate) fn crc32c_parts(head: &[u8], parts: &[IoSlice<'_>]) -> u32 {
    let total = head.len() + parts.iter().map(|part| part.len()).sum::<usize>();
    if total <= GATHER_BYTES {
        let mut buffer = [0; GATHER_BYTES];
        let mut at = 0;
        for bytes in std::iter::once(head).chain(parts.iter().map(|part| &**part)) {
            buffer[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
        return crc32c(&buffer[..at]);
    }
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(head);
    for part in parts {
        digest.update(part);
    }
    u32::try_from(digest.finalize()).expect("a 32-bit checksum")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn parts_sum_like_the_whole() {
        let bytes: Vec<u8> = (0..2000_u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for len in [0, 1, 40, 255, 256, 257, 1000, 2000] {
            for cut in [0, len / 3, len / 2, len] {
                let parts = [IoSlice::new(&bytes[cut..(cut + len) / 2]), IoSlice::new(&bytes[(cut + len) / 2..len])];
                assert_eq!(crc32c_parts(&bytes[..cut], &parts), crc32c(&bytes[..len]), "{len} cut at {cut}");
            }
        }
    }
}
