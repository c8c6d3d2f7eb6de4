//! Writing and reading the chunks of a snapshot: compression, checksums, and the chain that links each chunk to the
//! previous one.
//!
//! Owns: [`Packer`] and [`Link`], which build chunks, and [`ChunkReader`], which checks chunks before their contents
//! are decoded. Invariants: the chunks of a snapshot are numbered from 0 without gaps, and each contains the checksum
//! of the previous one. Only the first chunk has the kind *begin*, and only the last chunk has the kind *end*. No bytes
//! follow the last chunk.

use std::io::{self, Read};

use bytes::Bytes;
use thalweg_types::limits::MAX_SNAPSHOT_CHUNK_BYTES;
use zstd::{
    bulk::Compressor,
    zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective},
};

use crate::{
    error::SnapshotReadError,
    format::{
        BEGIN_BYTES, Begin, ChunkHeader, ChunkKind, Compression, END_BYTES, HEADER_BYTES, MAGIC, MAX_BEGIN_BYTES,
        OLDEST_VERSION, Totals, VERSION,
    },
};

/// Compression level for zstd. Higher levels take several times as long, and make chunks only a few percent smaller.
const ZSTD_LEVEL: i32 = 1;

/// Base-2 logarithm of the largest window, in bytes, of a zstd frame that the reader accepts. RFC 8878 recommends to
/// support 8 MiB. Frames that this program writes use 512 KiB.
const MAX_ZSTD_WINDOW_LOG: u32 = 23;
/// Largest ratio of uncompressed to stored bytes that LZ4's block format can reach.
const MAX_LZ4_RATIO: usize = 255;
/// Maximum length in bytes that a reader accepts for the last chunk of a snapshot. Chunks that this version writes are
/// shorter, because their layout is fixed.
const MAX_END_BYTES: usize = 4096;
const _: () = assert!(BEGIN_BYTES < MAX_BEGIN_BYTES && END_BYTES < MAX_END_BYTES);
/// Number of bytes of a chunk's contents that are read and discarded at a time.
const SKIP_BYTES: usize = 256 * 1024;
const BAD_LENGTH: &str = "it does not decompress to the stated length";

/// Number and previous checksum that the next chunk of a snapshot must have. Each chunk contains the checksum of the
/// chunk before it, so the chunks form a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// Number that the next chunk of the snapshot gets. The first one gets 0.
    pub(crate) number: u64,
    /// Checksum of the previous chunk, which the next chunk contains.
    pub(crate) chain: u32,
}

/// Compressor of the contents of chunks.
pub(crate) struct Packer {
    compression: Compression,
    zstd: Option<Compressor<'static>>,
}

/// Compressed contents of a chunk. Free space for the header comes before the contents.
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

    /// Compresses the contents of a chunk. If compression does not make the contents shorter, stores them uncompressed.
    /// Equal contents always give an equal chunk.
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
    /// Builds the next chunk of the snapshot by writing the header before the packed contents.
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

/// Reads the bytes of the next chunk without checking them; `None` at the end of the input. If the header states too
/// many bytes, the chunk is cut after its header, so that a later check of the chunk fails.
pub fn read_unchecked(from: &mut impl Read) -> io::Result<Option<Bytes>> {
    let mut chunk = Vec::new();
    if from.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut chunk)? == 0 {
        return Ok(None);
    }
    let stored = chunk.get(16..20).map_or(0, |len| u32::from_le_bytes([len[0], len[1], len[2], len[3]]));
    if stored as usize <= MAX_SNAPSHOT_CHUNK_BYTES {
        from.by_ref().take(u64::from(stored)).read_to_end(&mut chunk)?;
    }
    Ok(Some(chunk.into()))
}

/// A chunk of a snapshot. Its stored bytes have been verified. The [`ChunkReader`] returns its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) kind: ChunkKind,
    pub(crate) number: u64,
}

/// Reader of a snapshot that verifies each chunk. Memory: one chunk as stored (compressed), and a part of its
/// decompressed contents; the caller limits the size of this part. A short file may decompress to large contents, so
/// the reader never decompresses a whole chunk at once, except with LZ4.
pub(crate) struct ChunkReader<R> {
    from: R,
    link: Link,
    /// Format version of the snapshot, as its first chunk states it.
    version: u8,
    /// Total bytes of the complete chunks read so far.
    whole_bytes: u64,
    ended: bool,
    zstd: Option<DCtx<'static>>,
    stored: Vec<u8>,
    contents: Unread,
}

/// Progress of decompressing the contents of the chunk that was read last.
#[derive(Default)]
struct Unread {
    compression: Compression,
    /// Number of stored (compressed) bytes of the chunk that the reader has consumed. With LZ4: number of bytes of
    /// `plain` that were returned.
    at: usize,
    /// Number of decompressed bytes of the chunk that are not read yet, based on the length that its header states.
    left: usize,
    /// Decompressed contents. Used only with LZ4, which cannot decompress in parts.
    plain: Vec<u8>,
}

impl<R: Read> ChunkReader<R> {
    pub(crate) fn new(from: R) -> Self {
        Self {
            from,
            link: Link::default(),
            version: VERSION,
            whole_bytes: 0,
            ended: false,
            zstd: None,
            stored: Vec::new(),
            contents: Unread::default(),
        }
    }

    /// Returns the number of the chunk that is read next.
    pub(crate) fn next_number(&self) -> u64 {
        self.link.number
    }

    /// Returns true once the last chunk of the snapshot was read.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the next chunk like [`next`](Self::next), but reads it from `from`, which must contain exactly this
    /// chunk. After an error, the caller can read the chunk again from the right bytes.
    pub(crate) fn next_from(&mut self, from: R) -> Result<Option<Chunk>, SnapshotReadError> {
        self.from = from;
        let before = (self.link, self.version, self.whole_bytes, self.ended);
        let chunk = self.next()?;
        self.check_nothing_follows().inspect_err(|_| {
            (self.link, self.version, self.whole_bytes, self.ended) = before;
            self.contents = Unread::default();
        })?;
        Ok(chunk)
    }

    /// Checks that no bytes follow the chunk that was read last.
    pub(crate) fn check_nothing_follows(&mut self) -> Result<(), SnapshotReadError> {
        match read_up_to(&mut self.from, &mut [0])? {
            0 => Ok(()),
            _ => Err(self.corrupt("other bytes follow it")),
        }
    }

    /// Returns the offset in bytes of the end of the last complete chunk.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.whole_bytes
    }

    /// Returns the next chunk. Returns `None` after the last chunk of the snapshot; bytes after it are an error. The
    /// contents of the previous chunk must have been read completely.
    pub(crate) fn next(&mut self) -> Result<Option<Chunk>, SnapshotReadError> {
        debug_assert_eq!(self.contents.left, 0, "the previous chunk was read");
        let mut header = [0; HEADER_BYTES];
        let got = read_up_to(&mut self.from, &mut header)?;
        if self.ended {
            return if got == 0 { Ok(None) } else { Err(self.corrupt("bytes follow the last chunk")) };
        }
        let (header, encoded) = self.header(&header[..got])?;
        let stored = u64::from(header.stored);
        self.stored.clear();
        // The buffer grows with the bytes that arrive, and not to the length that the header states.
        self.from.by_ref().take(stored).read_to_end(&mut self.stored)?;
        if self.stored.len() as u64 != stored {
            return Err(self.truncated());
        }
        if ChunkHeader::checksum(&encoded, &self.stored) != header.crc {
            return Err(self.corrupt("its checksum does not match"));
        }
        if header.number != self.link.number || header.chain != self.link.chain {
            return Err(self.corrupt("it does not follow the previous chunk"));
        }
        if (header.kind == ChunkKind::Begin) != (header.number == 0) {
            return Err(self.corrupt("only the first chunk may describe the snapshot"));
        }
        self.begin_contents(&header)?;
        self.version = encoded[4];
        self.link = Link { number: header.number + 1, chain: header.crc };
        self.whole_bytes += HEADER_BYTES as u64 + stored;
        self.ended = header.kind == ChunkKind::End;
        Ok(Some(Chunk { kind: header.kind, number: header.number }))
    }

    /// Checks the header of a chunk before its contents are read, in particular the lengths that the header states.
    fn header(&self, bytes: &[u8]) -> Result<(ChunkHeader, [u8; HEADER_BYTES]), SnapshotReadError> {
        if self.link.number == 0 && !bytes.is_empty() && (bytes.len() < 4 || bytes[..4] != MAGIC) {
            return Err(SnapshotReadError::NotASnapshot);
        }
        let bytes: &[u8; HEADER_BYTES] = bytes.try_into().map_err(|_| self.truncated())?;
        if bytes[..4] != MAGIC {
            return Err(self.corrupt("it does not begin with the magic number of a chunk"));
        }
        if !(OLDEST_VERSION..=VERSION).contains(&bytes[4]) {
            return Err(SnapshotReadError::Version { found: bytes[4], supported: VERSION });
        }
        if self.link.number > 0 && bytes[4] != self.version {
            return Err(self.corrupt("its format is not that of the first chunk"));
        }
        let header = ChunkHeader::decode(bytes).ok_or_else(|| self.corrupt("its header is unknown"))?;
        let most = match header.kind {
            ChunkKind::Begin => MAX_BEGIN_BYTES,
            ChunkKind::End => MAX_END_BYTES,
            ChunkKind::Rows | ChunkKind::Entries => MAX_SNAPSHOT_CHUNK_BYTES,
        };
        if header.stored.max(header.plain) as usize > most {
            return Err(self.corrupt("its header states a length above the limit"));
        }
        Ok((header, *bytes))
    }

    /// Prepares to decompress the contents of a chunk with this header.
    fn begin_contents(&mut self, header: &ChunkHeader) -> Result<(), SnapshotReadError> {
        let left = header.plain as usize;
        let mut plain = std::mem::take(&mut self.contents.plain);
        plain.clear();
        match header.compression {
            Compression::None if self.stored.len() != left => return Err(self.corrupt(BAD_LENGTH)),
            Compression::None => {}
            Compression::Lz4 => {
                if left > self.stored.len().saturating_mul(MAX_LZ4_RATIO) {
                    return Err(self.corrupt(BAD_LENGTH));
                }
                plain.resize(left, 0);
                match lz4_flex::block::decompress_into(&self.stored, &mut plain) {
                    Ok(len) if len == left => {}
                    _ => return Err(self.corrupt(BAD_LENGTH)),
                }
            }
            Compression::Zstd => {
                let zstd = self.zstd.get_or_insert_with(DCtx::create);
                let prepared = zstd
                    .reset(ResetDirective::SessionOnly)
                    .and_then(|_| zstd.set_parameter(DParameter::WindowLogMax(MAX_ZSTD_WINDOW_LOG)));
                prepared.map_err(|_| io::Error::other("zstd cannot be configured"))?;
            }
        }
        self.contents = Unread { compression: header.compression, at: 0, left, plain };
        Ok(())
    }

    /// Appends at most `most` further bytes of the current chunk's contents to `out`. Returns true if the end of the
    /// contents is reached.
    pub(crate) fn read(&mut self, out: &mut Vec<u8>, most: usize) -> Result<bool, SnapshotReadError> {
        let wanted = self.contents.left.min(most);
        let at = self.contents.at;
        match self.contents.compression {
            Compression::None => out.extend_from_slice(&self.stored[at..at + wanted]),
            Compression::Lz4 => out.extend_from_slice(&self.contents.plain[at..at + wanted]),
            Compression::Zstd => {
                self.read_zstd(out, wanted)?;
                self.contents.left -= wanted;
                return Ok(self.contents.left == 0);
            }
        }
        self.contents.at += wanted;
        self.contents.left -= wanted;
        Ok(self.contents.left == 0)
    }

    /// Decompresses exactly `wanted` more bytes. At the end of the contents, also checks that the zstd frame ends and
    /// that all stored bytes are consumed.
    fn read_zstd(&mut self, out: &mut Vec<u8>, wanted: usize) -> Result<(), SnapshotReadError> {
        let zstd = self.zstd.get_or_insert_with(DCtx::create);
        let is_last = wanted == self.contents.left;
        let begin = out.len();
        // One extra byte of space shows if the contents are longer than the header states.
        out.resize(begin + wanted + usize::from(is_last), 0);
        let mut input = InBuffer { src: &self.stored, pos: self.contents.at };
        let mut filled = 0;
        let ended = loop {
            let room = &mut out[begin + filled..];
            if room.is_empty() {
                break false;
            }
            let mut output = OutBuffer::around(room);
            let before = input.pos;
            let decompressed = zstd.decompress_stream(&mut output, &mut input);
            let written = output.pos();
            filled += written;
            match decompressed {
                Ok(0) => break true,
                Ok(_) if written > 0 || input.pos > before => {}
                // The frame is damaged, or the stored bytes end before the frame ends.
                Ok(_) | Err(_) => return Err(self.corrupt_contents()),
            }
        };
        self.contents.at = input.pos;
        let is_sound = filled == wanted && (!is_last || ended && self.contents.at == self.stored.len());
        out.truncate(begin + filled.min(wanted));
        if is_sound { Ok(()) } else { Err(self.corrupt_contents()) }
    }

    /// Returns the error for damaged contents of the chunk that was read last.
    fn corrupt_contents(&self) -> SnapshotReadError {
        let chunk = self.link.number.saturating_sub(1);
        SnapshotReadError::Corrupt { chunk, at: self.whole_bytes, what: BAD_LENGTH.to_owned() }
    }

    /// Reads and discards the rest of the current chunk's contents, to check that they can be decompressed.
    pub(crate) fn skip(&mut self) -> Result<(), SnapshotReadError> {
        let mut scratch = Vec::new();
        while !self.read(&mut scratch, SKIP_BYTES)? {
            scratch.clear();
        }
        Ok(())
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
pub(crate) fn begin<R: Read>(reader: &mut ChunkReader<R>) -> Result<Begin, SnapshotReadError> {
    reader.next()?.ok_or(SnapshotReadError::NotASnapshot)?;
    let mut first = Vec::new();
    reader.read(&mut first, MAX_BEGIN_BYTES)?;
    Begin::decode(reader.version, &first).ok_or_else(|| SnapshotReadError::Corrupt {
        chunk: 0,
        at: 0,
        what: "its description of the snapshot is invalid".to_owned(),
    })
}

/// Reads and decodes the payload of a snapshot's last chunk: the totals.
pub(crate) fn end<R: Read>(reader: &mut ChunkReader<R>) -> Result<Totals, SnapshotReadError> {
    let mut last = Vec::new();
    reader.read(&mut last, MAX_END_BYTES)?;
    Totals::decode(&last).ok_or_else(|| reader.corrupt("the last chunk has a wrong length"))
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
            let mut plain = Vec::new();
            // A number of bytes that does not divide the length of any chunk evenly.
            while !reader.read(&mut plain, 37)? {}
            all.push(plain);
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
    fn contents_that_are_longer_or_shorter_than_stated_are_found() {
        for compression in Compression::ALL {
            for change in [-1_i64, 1] {
                let (mut packer, mut link) = (Packer::new(compression).unwrap(), Link::default());
                let begin = link.seal(ChunkKind::Begin, packer.pack(b"begin").unwrap());
                let mut packed = packer.pack(&b"ab".repeat(5000)).unwrap();
                packed.plain_len = packed.plain_len.checked_add_signed(change as isize).unwrap();
                let rows = link.seal(ChunkKind::Rows, packed);
                let found = read(&[begin, rows].concat());
                assert!(matches!(found, Err(SnapshotReadError::Corrupt { chunk: 1, .. })), "{compression:?} {change}");
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
