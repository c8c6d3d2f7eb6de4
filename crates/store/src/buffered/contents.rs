//! A summary of all pairs of a database. A verification compares it with the pairs and so finds out if any are missing.
//!
//! Owns: [`Contents`] and its bytes. Does not own: the transactions that store the summary beside the pairs, or the
//! verification that compares the two (`paged.rs`).
//!
//! redb and SQLite do not check their tree pages when they read them, so a flipped bit can hide a whole subtree. The
//! checksum of a pair (`checked.rs`) detects damage in the pair itself, but not that a pair is missing. The summary
//! detects missing pairs: each transaction updates the summary with the pairs that it adds and removes, and stores it
//! together with them.
//!
//! ```text
//! contents := 1 u8 | pairs u64 | bytes u64 | sum u64 | crc u32
//! ```
//! Little-endian. `bytes` counts keys and stored values. `sum` adds, modulo 2^64, a hash of each pair's key and
//! checksum. `crc` is a CRC-32C of the other bytes and of the encoded applied position, which is stored in the same
//! transaction and has no checksum of its own.

use crc_fast::{CrcAlgorithm, Digest};

use super::checked::CHECKSUM_BYTES;
use crate::checksum::crc32c;

const VERSION: u8 = 1;
const ENCODED_BYTES: usize = 1 + 3 * 8 + 4;

/// Summary of all pairs of a database; see the [module](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Number of pairs of key and value in the database.
    pub pairs: u64,
    /// Total bytes of the keys and of the stored values (each with its checksum) in the database.
    pub bytes: u64,
    sum: u64,
}

impl Contents {
    /// Adds a pair to the summary. The pair is given as its key and the bytes stored for it: the checksum and the
    /// value.
    pub fn add(&mut self, key: &[u8], stored: &[u8]) {
        self.pairs = self.pairs.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add((key.len() + stored.len()) as u64);
        self.sum = self.sum.wrapping_add(hash(key, stored));
    }

    /// Removes a pair from the summary. Uses the checksum that is stored with the value, so that a damaged value can be
    /// overwritten and leaves no trace in the summary.
    pub fn remove(&mut self, key: &[u8], stored: &[u8]) {
        self.pairs = self.pairs.wrapping_sub(1);
        self.bytes = self.bytes.wrapping_sub((key.len() + stored.len()) as u64);
        self.sum = self.sum.wrapping_sub(hash(key, stored));
    }

    /// Encodes the summary for a transaction with this encoded applied position.
    pub fn encode(&self, applied: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ENCODED_BYTES);
        bytes.push(VERSION);
        for field in [self.pairs, self.bytes, self.sum] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        let crc = crc32c(&[&bytes, applied]);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a summary that is stored with this encoded applied position. Returns `None` if one of the two is
    /// damaged.
    pub fn decode(bytes: &[u8], applied: &[u8]) -> Option<Self> {
        let (checked, crc) = bytes.split_last_chunk::<4>()?;
        let (&version, fields) = checked.split_first()?;
        let (fields, []) = fields.as_chunks::<8>() else { return None };
        let [pairs, bytes, sum] = <[_; 3]>::try_from(fields).ok()?.map(u64::from_le_bytes);
        let is_good = version == VERSION && *crc == crc32c(&[checked, applied]).to_le_bytes();
        is_good.then_some(Self { pairs, bytes, sum })
    }
}

fn hash(key: &[u8], stored: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(key);
    digest.update(&stored[..stored.len().min(CHECKSUM_BYTES)]);
    digest.update(&(key.len() as u64).to_le_bytes());
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_a_pinned_layout_and_covers_the_applied_position() {
        let mut contents = Contents::default();
        contents.add(b"key", b"crc4value");
        contents.add(b"other", b"crc4");
        contents.remove(b"key", b"crc4value");
        assert_eq!((contents.pairs, contents.bytes), (1, 9));
        let mut alone = Contents::default();
        alone.add(b"other", b"crc4");
        assert_eq!(contents, alone, "the order of changes does not matter");
        let contents = Contents { pairs: 2, bytes: 3, sum: 4 };
        let bytes = contents.encode(b"applied");
        assert_eq!(bytes[..25], *b"\x01\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0");
        assert_eq!(bytes.len(), ENCODED_BYTES);
        assert_eq!(Contents::decode(&bytes, b"applied"), Some(contents));
        assert_eq!(Contents::decode(&bytes, b"applieD"), None);
        for at in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 4;
            assert_eq!(Contents::decode(&broken, b"applied"), None, "byte {at}");
        }
        assert_eq!(Contents::decode(b"", b"applied"), None);
    }
}
