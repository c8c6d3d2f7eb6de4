//! Reading data blocks from the files of tables.
//!
//! Owns: reading the bytes of one data block from the disk or from the kernel's memory, verifying their checksum, and
//! decompressing them. Does not own: the meaning of the bytes (`block`), or the cache.
//!
//! ```text
//! block on disk := header | data
//! header        := "LSM" 3 u8 | kind u8 | checksum u128 | data_bytes u32 | block_bytes u32 | header checksum u32
//! ```
//! Little-endian. The checksum covers `data` as it is on the disk. `data` is the block itself, or the block compressed
//! in the LZ4 block format; the table's metadata say which of the two.
//!
//! The LSM crate decodes uncompressed blocks. Compressed blocks are decoded here, because the crate trusts
//! `block_bytes`: it allocates up to 4 GiB for a damaged block. If the data decompress to fewer bytes, it returns
//! uninitialised memory.

use std::{fs::File, io, os::unix::fs::FileExt as _};

use bytes::Bytes;
use lsm_tree::{
    CompressionType,
    table::{Block, BlockHandle, BlockOffset, block::BlockType},
};
use thalweg_disk::decode_resident;
use thalweg_types::budget::{self, BudgetSpent};

use crate::caught::caught;

/// Maximum number of bytes to which LZ4 decompresses one byte: a byte that lengthens a match adds up to 255 bytes.
#[cfg(feature = "lz4")]
const MAX_LZ4_EXPANSION: usize = 255;

/// Error of a failed read of a block.
#[derive(Debug)]
pub(super) enum BlockError {
    /// The file could not be read.
    Io(io::Error),
    /// The bytes in the file are not those of a valid data block.
    Damaged(String),
}

/// Reads the data block of `size` bytes at `offset`, and returns its decompressed bytes. If the [budget] of the
/// thread's read forbids waiting for the disk, and the block is not in the kernel's memory, it fails without reading.
pub(super) fn read(
    file: &File,
    offset: u64,
    size: u32,
    compression: CompressionType,
) -> Result<Result<Bytes, BlockError>, BudgetSpent> {
    if compression == CompressionType::None {
        let handle = BlockHandle::new(BlockOffset(offset), size);
        let decode = |mut bytes: &[u8]| decoded_by_crate(|| Block::from_reader(&mut bytes, CompressionType::None));
        let waiting = || decoded_by_crate(|| Block::from_file(file, handle, CompressionType::None));
        return budget::read_file(|| resident(file, offset, size, decode), waiting);
    }
    let waiting = || {
        let mut bytes = vec![0; size as usize];
        file.read_exact_at(&mut bytes, offset).map_err(BlockError::Io)?;
        decompressed(&bytes)
    };
    budget::read_file(|| resident(file, offset, size, decompressed), waiting)
}

/// Decodes a block with `decode` if the block is in the kernel's memory; returns `None` otherwise.
fn resident(
    file: &File,
    offset: u64,
    size: u32,
    decode: impl FnOnce(&[u8]) -> Result<Bytes, BlockError>,
) -> Option<Result<Bytes, BlockError>> {
    match decode_resident(file, size as usize, offset, decode) {
        Ok(block) => block,
        Err(error) => Some(Err(BlockError::Io(error))),
    }
}

/// Returns the bytes of a data block that `decode` reads through the LSM crate. The crate panics on some damaged
/// headers; a panic is returned as an error.
fn decoded_by_crate(decode: impl FnOnce() -> lsm_tree::Result<Block>) -> Result<Bytes, BlockError> {
    match caught(decode).map_err(BlockError::Damaged)? {
        Ok(block) if block.header.block_type == BlockType::Data => Ok(block.data.into()),
        Ok(_) => Err(BlockError::Damaged("this is no data block".to_owned())),
        Err(lsm_tree::Error::Io(error)) => Err(BlockError::Io(error)),
        Err(error) => Err(BlockError::Damaged(error.to_string())),
    }
}

/// Verifies and decompresses the bytes of a compressed data block. Allocates at most [`MAX_LZ4_EXPANSION`] times as
/// many bytes as `bytes` has, even if a damaged header names a larger size.
#[cfg(feature = "lz4")]
fn decompressed(bytes: &[u8]) -> Result<Bytes, BlockError> {
    use lsm_tree::{coding::Decode as _, table::block::Header};
    use xxhash_rust::xxh3::xxh3_128;

    let damaged = |message: &str| BlockError::Damaged(message.to_owned());
    let mut data = bytes;
    let header = caught(|| Header::decode_from(&mut data)).map_err(BlockError::Damaged)?;
    let header = header.map_err(|error| BlockError::Damaged(error.to_string()))?;
    if header.block_type != BlockType::Data {
        return Err(damaged("this is no data block"));
    }
    if header.data_length as usize != data.len() || xxh3_128(data) != header.checksum.into_u128() {
        return Err(damaged("its checksum or its length is wrong"));
    }
    let block_bytes = header.uncompressed_length as usize;
    if block_bytes > data.len().saturating_mul(MAX_LZ4_EXPANSION) {
        return Err(damaged("it says that it decompresses to more than its data can"));
    }
    let mut block = vec![0; block_bytes];
    match lz4_flex::decompress_into(data, &mut block) {
        Ok(written) if written == block_bytes => Ok(block.into()),
        Ok(_) => Err(damaged("it decompresses to less than it says")),
        Err(error) => Err(BlockError::Damaged(format!("it can't be decompressed: {error}"))),
    }
}

/// Always fails, because this build has no LZ4 decoder. It is never reached: opening a compressed table fails earlier.
#[cfg(not(feature = "lz4"))]
fn decompressed(_: &[u8]) -> Result<Bytes, BlockError> {
    Err(BlockError::Damaged("this build can't decompress it".to_owned()))
}

#[cfg(test)]
#[cfg(feature = "lz4")]
mod tests {
    use lsm_tree::{Checksum, coding::Encode as _, table::block::Header};
    use xxhash_rust::xxh3::xxh3_128;

    use super::*;

    /// Returns a block as the LSM crate writes it.
    fn written(data: &[u8], kind: BlockType) -> Vec<u8> {
        let mut bytes = Vec::new();
        Block::write_into(&mut bytes, data, kind, CompressionType::Lz4).unwrap();
        bytes
    }

    /// Returns a block with these data and valid checksums, whose header claims a decompressed size of `block_bytes`.
    fn claiming(block_bytes: u32, data: &[u8]) -> Vec<u8> {
        let header = Header {
            block_type: BlockType::Data,
            checksum: Checksum::from_raw(xxh3_128(data)),
            data_length: data.len() as u32,
            uncompressed_length: block_bytes,
        };
        [&header.encode_into_vec()[..], data].concat()
    }

    fn error_of(bytes: &[u8]) -> String {
        match decompressed(bytes) {
            Err(BlockError::Damaged(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_compressed_block_of_the_crate_is_decoded_from_file_and_from_memory() {
        let data: Vec<u8> = (0..20_000_u32).flat_map(|number| (number / 9).to_be_bytes()).collect();
        let bytes = written(&data, BlockType::Data);
        assert!(bytes.len() * 2 < data.len(), "{} of {} bytes", bytes.len(), data.len());
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&bytes, 100).unwrap();
        let read = || super::read(&file, 100, bytes.len() as u32, CompressionType::Lz4);
        assert_eq!(read().unwrap().unwrap(), data);
        // The kernel may have written the file out and dropped it.
        if let Ok(block) = budget::Budget::RESIDENT.perform(read) {
            assert_eq!(block.unwrap().unwrap(), data);
        }
        let cut = super::read(&file, 101, bytes.len() as u32, CompressionType::Lz4).unwrap();
        assert!(matches!(cut, Err(BlockError::Io(_))), "{cut:?}");
    }

    #[test]
    fn a_block_that_claims_more_than_its_data_can_be_is_refused_without_memory_for_it() {
        let (data, block) = (lz4_flex::compress(&[7; 5000]), [7; 5000]);
        assert_eq!(decompressed(&claiming(5000, &data)).unwrap(), block[..]);
        let most = (data.len() * MAX_LZ4_EXPANSION) as u32;
        assert!(error_of(&claiming(u32::MAX, &data)).contains("more than its data can"));
        assert!(error_of(&claiming(most + 1, &data)).contains("more than its data can"));
        assert!(error_of(&claiming(most, &data)).contains("less than it says"));
        assert!(error_of(&claiming(5001, &data)).contains("less than it says"));
        assert!(error_of(&claiming(4999, &data)).contains("can't be decompressed"));
        assert!(error_of(&claiming(5000, &data[..data.len() - 1])).contains("de"), "any error but no panic");
        assert!(error_of(&written(&block, BlockType::Index)).contains("no data block"));
    }

    #[test]
    fn no_flipped_bit_and_no_missing_byte_of_a_compressed_block_is_silent() {
        let data: Vec<u8> = (0..300_u32).flat_map(|number| (number / 9).to_be_bytes()).collect();
        let whole = written(&data, BlockType::Data);
        for at in 0..whole.len() {
            assert!(decompressed(&whole[..at]).is_err(), "cut to {at} bytes");
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                assert!(decompressed(&flipped).is_err(), "bit {bit} of byte {at}");
            }
        }
    }
}
