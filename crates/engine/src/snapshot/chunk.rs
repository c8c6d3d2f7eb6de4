//! Writing and reading the chunks of a snapshot: compression, checksums, and the chain of chunks.
//!
//! Owns: [`Packer`] and [`Link`], which build chunks, and [`ChunkReader`], which checks chunks before their contents
//! are decoded. Invariants: the chunks of a snapshot are numbered from 0 without gaps, and each contains the checksum
//! of the previous one. The first chunk is the only one of kind *begin*, the last the only one of kind *end*, and no
//! bytes follow the last chunk.

use std::io::{self, Read};

use bytes::Bytes;
use thalweg_types::limits::MAX_SNAPSHOT_CHUNK_BYTES;
use zstd::bulk::{Compressor, Decompressor};

use super::{
    error::SnapshotReadError,
    format::{ChunkHeader, ChunkKind, Compression, HEADER_BYTES, MAGIC, SnapshotInfo, Totals, VERSION},
};

/// Compression level for zstd. Higher levels take a multiple of the time and make chunks smaller by a few percent.
const ZSTD_LEVEL: i32 = 1;

/// Place of the next chunk in a snapshot's sequence of chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// Number of the next chunk.
    pub(crate) number: u64,
    /// Checksum of the previous chunk.
    pub(crate) chain: u32,
}

/// Compressor of the contents of chunks.
pub(crate) struct Packer {
    compression: Compression,
    zstd: Option<Compressor<'static>>,
}

/// Compressed contents of a chunk, with free space for the header before them.
#[derive(Debug)]
pub(crate) struct Packed {
    compression: Compression,
    plain_len: usize,
    out: Vec<u8>,
}

impl Packer {
    pub(crate) fn new(compression: Compression) -> io::Result<Self> {
        let zstd = (compression == Compression::Zstd).then(|| Compressor::new(ZSTD_LEVEL)).transpose()?;
        Ok(Self { compression, zstd })
    }

    /// Compresses the contents of a chunk. Contents that compression does not shorten are stored uncompressed. The
    /// same contents always give the same chunk.
    pub(crate) fn pack(&mut self, plain: &[u8]) -> io::Result<Packed> {
        let too_large = || io::Error::new(io::ErrorKind::InvalidData, "a row or entry is too large for a chunk");
        if plain.len() > MAX_SNAPSHOT_CHUNK_BYTES {
            return Err(too_large());
        }
        let mut out = vec![0; HEADER_BYTES + self.bound(plain.len())];
        let compressed = match self.compression {
            Compression::None => None,
            Compression::Lz4 => {
                let packed = lz4_flex::block::compress_into(plain, &mut out[HEADER_BYTES..]);
                Some(packed.map_err(io::Error::other)?)
            }
            Compression::Zstd => {
                let zstd = self.zstd.as_mut().expect("new() has created the zstd context");
                Some(zstd.compress_to_buffer(plain, &mut out[HEADER_BYTES..])?)
            }
        };
        let (compression, stored) = match compressed {
            Some(len) if len < plain.len() => (self.compression, len),
            _ => {
                out[HEADER_BYTES..HEADER_BYTES + plain.len()].copy_from_slice(plain);
                (Compression::None, plain.len())
            }
        };
        out.truncate(HEADER_BYTES + stored);
        Ok(Packed { compression, plain_len: plain.len(), out })
    }

    fn bound(&self, plain: usize) -> usize {
        match self.compression {
            Compression::None => plain,
            Compression::Lz4 => lz4_flex::block::get_maximum_output_size(plain),
            Compression::Zstd => zstd::zstd_safe::compress_bound(plain),
        }
    }
}

impl Link {
    /// Builds the next chunk of the snapshot: puts the header before its packed contents.
    pub(crate) fn seal(&mut self, kind: ChunkKind, packed: Packed) -> Bytes {
        let Packed { compression, plain_len, mut out } = packed;
        let Self { number, chain } = *self;
        let (stored, plain) = ((out.len() - HEADER_BYTES) as u32, plain_len as u32);
        let header = ChunkHeader { kind, compression, number, stored, plain, chain, crc: 0 };
        let crc = ChunkHeader::checksum(&header.encode(), &out[HEADER_BYTES..]);
        out[..HEADER_BYTES].copy_from_slice(&ChunkHeader { crc, ..header }.encode());
        *self = Self { number: number + 1, chain: crc };
        out.into()
    }
}

/// A chunk of a snapshot whose checksum has been verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) kind: ChunkKind,
    pub(crate) number: u64,
    /// Contents of the chunk, uncompressed.
    pub(crate) plain: Vec<u8>,
}

/// Reader of a snapshot that verifies each chunk. Memory: one chunk, in stored and in uncompressed form.
pub(crate) struct ChunkReader<R> {
    from: R,
    link: Link,
    /// Bytes of the complete chunks read so far.
    whole_bytes: u64,
    ended: bool,
    zstd: Option<Decompressor<'static>>,
    stored: Vec<u8>,
}

impl<R: Read> ChunkReader<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from, link: Link::default(), whole_bytes: 0, ended: false, zstd: None, stored: Vec::new() }
    }

    /// Returns the number of the chunk that is read next.
    pub(crate) fn next_number(&self) -> u64 {
        self.link.number
    }

    /// Returns the offset in bytes at which the last complete chunk ends.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.whole_bytes
    }

    /// Returns the next chunk; `None` after the last chunk, if no bytes follow it.
    pub(crate) fn next(&mut self) -> Result<Option<Chunk>, SnapshotReadError> {
        let mut header = [0; HEADER_BYTES];
        let got = read_up_to(&mut self.from, &mut header)?;
        if self.ended {
            return if got == 0 { Ok(None) } else { Err(self.corrupt("bytes follow the last chunk")) };
        }
        let (header, crc) = self.header(&header[..got])?;
        let stored = u64::from(header.stored);
        self.stored.clear();
        // The buffer grows with the bytes that arrive, not with the length that the header claims.
        self.from.by_ref().take(stored).read_to_end(&mut self.stored)?;
        if self.stored.len() as u64 != stored {
            return Err(self.truncated());
        }
        if ChunkHeader::checksum(&crc, &self.stored) != header.crc {
            return Err(self.corrupt("its checksum does not match"));
        }
        if header.number != self.link.number || header.chain != self.link.chain {
            return Err(self.corrupt("it does not follow the previous chunk"));
        }
        if (header.kind == ChunkKind::Begin) != (header.number == 0) {
            return Err(self.corrupt("only the first chunk may describe the snapshot"));
        }
        let plain = self.decompress(&header)?;
        self.link = Link { number: header.number + 1, chain: header.crc };
        self.whole_bytes += HEADER_BYTES as u64 + stored;
        self.ended = header.kind == ChunkKind::End;
        Ok(Some(Chunk { kind: header.kind, number: header.number, plain }))
    }

    /// Checks the header of a chunk before its contents are read, above all the length that the header claims.
    fn header(&self, bytes: &[u8]) -> Result<(ChunkHeader, [u8; HEADER_BYTES]), SnapshotReadError> {
        if self.link.number == 0 && !bytes.is_empty() && (bytes.len() < 4 || bytes[..4] != MAGIC) {
            return Err(SnapshotReadError::NotASnapshot);
        }
        let bytes: &[u8; HEADER_BYTES] = bytes.try_into().map_err(|_| self.truncated())?;
        if bytes[..4] != MAGIC {
            return Err(self.corrupt("it does not begin with the magic number of a chunk"));
        }
        if bytes[4] != VERSION {
            return Err(SnapshotReadError::Version { found: bytes[4], supported: VERSION });
        }
        let header = ChunkHeader::decode(bytes).ok_or_else(|| self.corrupt("its header is unknown"))?;
        if header.stored.max(header.plain) as usize > MAX_SNAPSHOT_CHUNK_BYTES {
            return Err(self.corrupt("its header states a length above the limit"));
        }
        Ok((header, *bytes))
    }

    fn decompress(&mut self, header: &ChunkHeader) -> Result<Vec<u8>, SnapshotReadError> {
        let mut plain = Vec::new();
        let bad = "it does not decompress to the stated length";
        let len = match header.compression {
            Compression::None => {
                plain.extend_from_slice(&self.stored);
                plain.len()
            }
            Compression::Lz4 => {
                plain.resize(header.plain as usize, 0);
                lz4_flex::block::decompress_into(&self.stored, &mut plain).map_err(|_| self.corrupt(bad))?
            }
            Compression::Zstd => {
                plain.resize(header.plain as usize, 0);
                let zstd = match &mut self.zstd {
                    Some(zstd) => zstd,
                    none => none.insert(Decompressor::new()?),
                };
                let done = zstd.decompress_to_buffer(&self.stored, &mut plain[..]);
                done.map_err(|_| self.corrupt(bad))?
            }
        };
        if len == header.plain as usize { Ok(plain) } else { Err(self.corrupt(bad)) }
    }

    pub(crate) fn corrupt(&self, what: &'static str) -> SnapshotReadError {
        SnapshotReadError::Corrupt { chunk: self.link.number, at: self.whole_bytes, what: what.to_owned() }
    }

    fn truncated(&self) -> SnapshotReadError {
        SnapshotReadError::Truncated { chunks: self.link.number, bytes: self.whole_bytes }
    }
}

/// Reads bytes until the buffer is full or the input ends. Returns the number of bytes read.
fn read_up_to(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Reads the first chunk of a snapshot, and returns the description in it.
pub(crate) fn begin<R: Read>(reader: &mut ChunkReader<R>) -> Result<SnapshotInfo, SnapshotReadError> {
    let first = reader.next()?.ok_or(SnapshotReadError::NotASnapshot)?;
    SnapshotInfo::decode(&first.plain).ok_or_else(|| SnapshotReadError::Corrupt {
        chunk: 0,
        at: 0,
        what: "its description of the snapshot is invalid".to_owned(),
    })
}

/// Decodes the payload of a snapshot's last chunk: the totals.
pub(crate) fn end<R: Read>(reader: &ChunkReader<R>, last: &Chunk) -> Result<Totals, SnapshotReadError> {
    Totals::decode(&last.plain).ok_or_else(|| reader.corrupt("the last chunk has a wrong length"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(compression: Compression) -> Vec<Bytes> {
        let (mut packer, mut link) = (Packer::new(compression).unwrap(), Link::default());
        let plain = [b"begin".to_vec(), b"ab".repeat(500), (0..=255).collect(), b"end".to_vec()];
        let kinds = [ChunkKind::Begin, ChunkKind::Rows, ChunkKind::Rows, ChunkKind::End];
        kinds.into_iter().zip(&plain).map(|(kind, plain)| link.seal(kind, packer.pack(plain).unwrap())).collect()
    }

    fn read(bytes: &[u8]) -> Result<Vec<Vec<u8>>, SnapshotReadError> {
        let mut reader = ChunkReader::new(bytes);
        let mut all = Vec::new();
        while let Some(chunk) = reader.next()? {
            assert_eq!(chunk.number, all.len() as u64);
            all.push(chunk.plain);
        }
        assert_eq!(reader.whole_bytes(), bytes.len() as u64);
        Ok(all)
    }

    #[test]
    fn chunks_come_back_in_each_compression() {
        for compression in Compression::ALL {
            let chunks = sealed(compression);
            let all = read(&chunks.concat()).unwrap();
            assert_eq!(all[1], b"ab".repeat(500));
            assert_eq!(all[2], (0..=255).collect::<Vec<u8>>(), "incompressible: stored uncompressed");
            assert_eq!(all.len(), 4);
            let shrunk = chunks[1].len() < 200;
            assert_eq!(shrunk, compression != Compression::None);
        }
    }

    #[test]
    fn missing_swapped_doubled_foreign_and_appended_chunks_are_found() {
        let c = sealed(Compression::Lz4);
        let other = sealed(Compression::None);
        let cases = [
            vec![&c[0], &c[2], &c[3]],
            vec![&c[0], &c[2], &c[1], &c[3]],
            vec![&c[0], &c[1], &c[1], &c[2], &c[3]],
            vec![&c[1], &c[2], &c[3]],
            vec![&c[0], &c[1], &other[2], &c[3]],
            vec![&c[0], &c[1], &c[2], &c[3], &c[3]],
            vec![&c[0], &c[0], &c[1], &c[2], &c[3]],
        ];
        for (number, case) in cases.iter().enumerate() {
            let bytes: Vec<u8> = case.iter().flat_map(|chunk| chunk.iter().copied()).collect();
            assert!(matches!(read(&bytes), Err(SnapshotReadError::Corrupt { .. })), "{number}");
        }
    }

    #[test]
    fn each_flipped_bit_and_each_cut_is_found() {
        for compression in Compression::ALL {
            let bytes = sealed(compression).concat();
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut flipped = bytes.clone();
                    flipped[at] ^= 1 << bit;
                    assert!(read(&flipped).is_err(), "{compression:?}: byte {at}, bit {bit}");
                }
                assert!(read(&bytes[..at]).is_err(), "{compression:?}: cut to {at}");
            }
        }
    }

    #[test]
    fn a_header_that_claims_too_much_is_refused_before_memory_is_taken() {
        let mut bytes = sealed(Compression::None).concat();
        bytes[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(read(&bytes), Err(SnapshotReadError::Corrupt { chunk: 0, .. })));
    }
}
