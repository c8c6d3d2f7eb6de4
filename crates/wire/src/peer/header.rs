//! The header before each frame between nodes, and the compression of bodies.
//!
//! ```text
//! 0        4      5       6          8        16
//! | length | kind | flags | reserved | id     | body ...
//! ```
//! All numbers are little-endian. `length` counts the bytes of the body as sent. Flag 1 means that the body is
//! compressed: an LZ4 block after its uncompressed length (u32). The reserved bytes are 0.

use thalweg_types::codec::{EncodeError, Field, Malformed, Structure};

/// Size of a header in bytes.
pub const HEADER_BYTES: usize = 16;

/// Maximum size of a body in bytes: an entry of the largest size, with room for what surrounds it.
pub const MAX_BODY_BYTES: usize = 80 * 1024 * 1024;

/// Maximum size of a body in bytes before the peer has proved that it belongs to the cluster.
pub const MAX_HANDSHAKE_BYTES: usize = 2048;

/// Size of a body in bytes from which it is compressed, if that makes it shorter. Below it, the time of the compression
/// is longer than that of the bytes on a local network.
pub const COMPRESS_FROM_BYTES: usize = 16 * 1024;

const COMPRESSED: u8 = 1;

const _: () = assert!(HEADER_BYTES == 4 + 1 + 1 + 2 + 8);
const _: () = assert!(MAX_BODY_BYTES <= u32::MAX as usize);

/// Error returned for a header or a compressed body that does not follow the format. The connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The body is longer than the receiver accepts at this point.
    #[error("a frame of {got} bytes is above the limit of {max}")]
    TooLarge {
        /// Length that the header states.
        got: usize,
        /// Longest body that is accepted.
        max: usize,
    },
    /// The header has flags or reserved bytes that this version does not know.
    #[error("unknown flags {flags:#04x} or reserved bytes {reserved:#06x}: another protocol or a newer version")]
    Unknown {
        /// Flags of the header.
        flags: u8,
        /// Reserved bytes of the header.
        reserved: u16,
    },
    /// The body is not a valid compressed block.
    #[error("a compressed frame does not decompress")]
    Compression,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the body in bytes, as sent.
    pub len: usize,
    /// Number of the frame's kind, see [`PeerKind`](super::PeerKind).
    pub kind: u8,
    /// True if the body is compressed.
    pub is_compressed: bool,
    /// Id of the request, also in its reply; 0 in frames of the handshake.
    pub id: u64,
}

impl Header {
    /// Decodes a header. `max_body` is the longest body that the receiver accepts now.
    pub fn decode(bytes: &[u8; HEADER_BYTES], max_body: usize) -> Result<Self, HeaderError> {
        let [l0, l1, l2, l3, kind, flags, r0, r1, id @ ..] = *bytes;
        let (len, reserved) = (u32::from_le_bytes([l0, l1, l2, l3]) as usize, u16::from_le_bytes([r0, r1]));
        if flags & !COMPRESSED != 0 || reserved != 0 {
            return Err(HeaderError::Unknown { flags, reserved });
        }
        if len > max_body {
            return Err(HeaderError::TooLarge { got: len, max: max_body });
        }
        Ok(Self { len, kind, is_compressed: flags & COMPRESSED != 0, id: u64::from_le_bytes(id) })
    }

    fn put(&self, out: &mut [u8]) {
        // The callers have checked the length against the limit.
        out[..4].copy_from_slice(&(self.len as u32).to_le_bytes());
        out[4] = self.kind;
        out[5] = if self.is_compressed { COMPRESSED } else { 0 };
        out[6..8].fill(0);
        out[8..HEADER_BYTES].copy_from_slice(&self.id.to_le_bytes());
    }
}

/// A body of one kind of frame.
pub trait PeerFrame<'a>: Field<'a> + Structure {
    /// Number of the frame's kind.
    const KIND: u8;

    /// Decodes a body. Bytes that remain after it are an error.
    fn decode_body(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = thalweg_types::codec::Reader::at(body, 0);
        let frame = Self::take(&mut reader, Self::NAME)?;
        reader.expect_end("the end of the frame")?;
        Ok(frame)
    }
}

/// Appends a frame to `out`. On error `out` is unchanged.
pub fn encode<'a, F: PeerFrame<'a>>(frame: &F, id: u64, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let begin = out.len();
    out.resize(begin + HEADER_BYTES, 0);
    let encoded = frame.put(out).and_then(|()| {
        let len = out.len() - begin - HEADER_BYTES;
        let within = len <= MAX_BODY_BYTES;
        within.then_some(len).ok_or(EncodeError::FrameTooLarge { got: len, max: MAX_BODY_BYTES })
    });
    match encoded {
        Ok(len) => {
            Header { len, kind: F::KIND, is_compressed: false, id }.put(&mut out[begin..]);
            Ok(())
        }
        Err(error) => {
            out.truncate(begin);
            Err(error)
        }
    }
}

/// Appends a frame to `out`, with a compressed body if it is long enough and becomes shorter by at least an eighth.
pub fn encode_compressed<'a, F: PeerFrame<'a>>(frame: &F, id: u64, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let begin = out.len();
    encode(frame, id, out)?;
    compress(out, begin);
    Ok(())
}

/// Compresses the body of the encoded frame that begins at `begin` and ends at the end of `out`, if it is long enough and
/// becomes shorter by at least an eighth. Takes about 2 ms for each MiB.
pub fn compress(out: &mut Vec<u8>, begin: usize) {
    let Some((header, body)) = out[begin..].split_first_chunk::<HEADER_BYTES>() else { return };
    let Ok(header) = Header::decode(header, MAX_BODY_BYTES) else { return };
    if body.len() < COMPRESS_FROM_BYTES || header.is_compressed {
        return;
    }
    let compressed = lz4_flex::block::compress_prepend_size(body);
    if compressed.len() < body.len() - body.len() / 8 {
        out.truncate(begin + HEADER_BYTES);
        out.extend_from_slice(&compressed);
        Header { len: compressed.len(), is_compressed: true, ..header }.put(&mut out[begin..]);
    }
}

/// Decompresses the body of a frame. The announced length is checked before memory is taken.
pub fn decompress(body: &[u8]) -> Result<Vec<u8>, HeaderError> {
    let Some((len, _)) = body.split_first_chunk::<4>() else { return Err(HeaderError::Compression) };
    let len = u32::from_le_bytes(*len) as usize;
    if len > MAX_BODY_BYTES {
        return Err(HeaderError::TooLarge { got: len, max: MAX_BODY_BYTES });
    }
    // LZ4 compresses to no less than 1/255, so a short block cannot demand much memory.
    if len / 255 > body.len() {
        return Err(HeaderError::Compression);
    }
    let long = lz4_flex::block::decompress_size_prepended(body).map_err(|_| HeaderError::Compression)?;
    // A block that is cut between two of its sequences decompresses to fewer bytes.
    if long.len() == len { Ok(long) } else { Err(HeaderError::Compression) }
}

#[cfg(test)]
mod tests {
    use super::{super::frames::Ping, *};

    #[test]
    fn headers_are_pinned_and_come_back() {
        let mut out = Vec::new();
        encode(&Ping { number: 5, heard: 3 }, 0x0102, &mut out).unwrap();
        let expected =
            [16, 0, 0, 0, 24, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(out, expected);
        let header = Header::decode(out[..HEADER_BYTES].try_into().unwrap(), 16).unwrap();
        assert_eq!(header, Header { len: 16, kind: 24, is_compressed: false, id: 0x0102 });
        assert_eq!(Ping::decode_body(&out[HEADER_BYTES..]).unwrap(), Ping { number: 5, heard: 3 });
    }

    #[test]
    fn lengths_and_flags_beyond_the_limits_are_rejected() {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = 17;
        assert_eq!(Header::decode(&bytes, 16), Err(HeaderError::TooLarge { got: 17, max: 16 }));
        bytes[5] = 2;
        assert_eq!(Header::decode(&bytes, 99), Err(HeaderError::Unknown { flags: 2, reserved: 0 }));
        bytes[5] = 0;
        bytes[7] = 1;
        assert_eq!(Header::decode(&bytes, 99), Err(HeaderError::Unknown { flags: 0, reserved: 256 }));
    }

    #[test]
    fn a_short_block_cannot_demand_much_memory() {
        let mut block = (MAX_BODY_BYTES as u32).to_le_bytes().to_vec();
        block.extend_from_slice(&[0; 64]);
        assert_eq!(decompress(&block), Err(HeaderError::Compression));
        let beyond = (MAX_BODY_BYTES as u32 + 1).to_le_bytes();
        assert_eq!(decompress(&beyond), Err(HeaderError::TooLarge { got: MAX_BODY_BYTES + 1, max: MAX_BODY_BYTES }));
        assert_eq!(decompress(&[1]), Err(HeaderError::Compression));
        assert_eq!(decompress(&[9, 0, 0, 0, 255, 1]), Err(HeaderError::Compression));
    }
}
