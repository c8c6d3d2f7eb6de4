//! The header before each frame between nodes, and the compression of bodies.
//!
//! Owns: both forms of the header, the limits of a body, and compression. Does not own: the contents of frames
//! (`frames`), or the choice of the form, which depends on the version agreed in the handshake (`handshake`).
//!
//! ```text
//! 0        4      5       6          8        16
//! | length | kind | flags | reserved | id     | body ...
//! ```
//! All numbers are little-endian. `length` counts the bytes of the body as sent. Flag 1 means that the body is
//! compressed: an LZ4 block after its uncompressed length (u32). The reserved bytes are 0.
//!
//! From version 3 on, frames after the handshake have a short header instead, because most frames between idle nodes
//! have a body of a few bytes:
//!
//! ```text
//! | kind, and bits | length | id, if bit 0x40 is set | body ...        u8, varint, varint
//! ```
//! Bit 0x80 means that the body is compressed. A node first encodes each frame with a full header. [`shorten`] then
//! replaces it in place by a short header.

use thalweg_types::codec::{EncodeError, Field, MAX_VARINT_BYTES, Malformed, Reader, Structure, put_varint};

/// Size in bytes of the full header of a frame between nodes.
pub const HEADER_BYTES: usize = 16;

/// Maximum size of a frame's body in bytes: enough for the largest log entry and the fields around it.
pub const MAX_BODY_BYTES: usize = 80 * 1024 * 1024;

/// Maximum size of a frame's body in bytes before the peer has proved that it belongs to the cluster.
pub const MAX_HANDSHAKE_BYTES: usize = 2048;

/// Minimum size in bytes of a body that is compressed, if that makes it shorter. For a smaller body, compression takes
/// longer than sending the saved bytes on a local network.
pub const COMPRESS_FROM_BYTES: usize = 16 * 1024;
/// Number of samples that show if a long body is worth compressing. Each has `SAMPLE_BYTES` bytes. A body is long if it
/// has at least four times as many bytes as all samples together.
const SAMPLES: usize = 4;
const SAMPLE_BYTES: usize = 8 * 1024;

const COMPRESSED: u8 = 1;

/// Maximum size of a short header in bytes: the kind, a length below 2^28, and an id.
pub const MAX_SHORT_BYTES: usize = 1 + 4 + MAX_VARINT_BYTES;

/// Bit in the first byte of a short header: the frame's body is compressed.
const SHORT_COMPRESSED: u8 = 0x80;
/// Bit in the first byte of a short header: the header contains an id.
const SHORT_HAS_ID: u8 = 0x40;

// A short header must fit into the space of a full header.
const _: () = assert!(MAX_SHORT_BYTES <= HEADER_BYTES && MAX_BODY_BYTES < 1 << 28);

const _: () = assert!(HEADER_BYTES == 4 + 1 + 1 + 2 + 8);
const _: () = assert!(MAX_BODY_BYTES <= u32::MAX as usize);

/// Error returned for a header or a compressed body that does not follow the format. The connection cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The frame's body is longer than the receiver accepts now.
    #[error("a frame of {got} bytes is above the limit of {max}")]
    TooLarge {
        /// Length of the body in bytes that the header states.
        got: usize,
        /// Maximum length in bytes of a body that the receiver accepts now.
        max: usize,
    },
    /// The header has flags or reserved bytes that this version does not know.
    #[error("unknown flags {flags:#04x} or reserved bytes {reserved:#06x}: another protocol or a newer version")]
    Unknown {
        /// Flags that the header contains.
        flags: u8,
        /// Reserved bytes that the header contains; they must be 0.
        reserved: u16,
    },
    /// The frame's body is not a valid compressed block.
    #[error("a compressed frame does not decompress")]
    Compression,
    /// A number in a short header is malformed, or an id is 0.
    #[error("a malformed number in the head of a frame")]
    Number,
}

/// The header of a frame between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the body in bytes, as sent.
    pub len: usize,
    /// Number of the frame's kind, see [`PeerKind`](super::PeerKind).
    pub kind: u8,
    /// True if the frame's body is compressed.
    pub is_compressed: bool,
    /// Id of the request. A reply has the id of its request. 0 in frames of the handshake.
    pub id: u64,
}

impl Header {
    /// Decodes a full header. `max_body` is the maximum length in bytes of a body that the receiver accepts now.
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

    /// Decodes a short header from the first bytes of a frame, and returns it with its size in bytes. Returns `None` if
    /// more bytes are needed. A short header has at most [`MAX_SHORT_BYTES`].
    pub fn decode_short(bytes: &[u8], max_body: usize) -> Result<Option<(Self, usize)>, HeaderError> {
        let mut reader = Reader::at(bytes, 0);
        let Ok(first) = reader.u8("a kind") else { return Ok(None) };
        let mut number = || match reader.varint("a number") {
            Ok(number) => Ok(Some(number)),
            // An incomplete number may continue in bytes that have not arrived yet.
            Err(_)
                if bytes.len() < MAX_SHORT_BYTES && bytes[reader.position()..].iter().all(|byte| byte & 0x80 != 0) =>
            {
                Ok(None)
            }
            Err(_) => Err(HeaderError::Number),
        };
        let Some(len) = number()? else { return Ok(None) };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > max_body {
            return Err(HeaderError::TooLarge { got: len, max: max_body });
        }
        let id = match first & SHORT_HAS_ID {
            0 => Some(0),
            _ => number()?.map(|id| if id == 0 { Err(HeaderError::Number) } else { Ok(id) }).transpose()?,
        };
        let Some(id) = id else { return Ok(None) };
        let kind = first & !(SHORT_COMPRESSED | SHORT_HAS_ID);
        let header = Self { len, kind, is_compressed: first & SHORT_COMPRESSED != 0, id };
        Ok(Some((header, reader.position())))
    }

    fn put_short(&self, out: &mut Vec<u8>) {
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        out.push(self.kind | bit(self.is_compressed, SHORT_COMPRESSED) | bit(self.id != 0, SHORT_HAS_ID));
        put_varint(out, self.len as u64);
        if self.id != 0 {
            put_varint(out, self.id);
        }
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

/// The body of one kind of frame between nodes.
pub trait PeerFrame<'a>: Field<'a> + Structure {
    /// Number of the frame's kind, as in its header.
    const KIND: u8;

    /// Decodes the body of a frame of this kind. Bytes that remain after the body are an error.
    fn decode_body(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = thalweg_types::codec::Reader::at(body, 0);
        let frame = Self::take(&mut reader, Self::NAME)?;
        reader.expect_end("the end of the frame")?;
        Ok(frame)
    }
}

/// Appends a frame with a full header and an uncompressed body to `out`. On error `out` is unchanged.
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

/// Compresses the body of the encoded frame that takes the bytes of `out` from `begin` on. Leaves it uncompressed if it
/// is short, or if it would not become shorter by at least an eighth. Also leaves a body of 128 KiB or more
/// uncompressed if samples of it hardly become shorter. Takes about 2 ms for each MiB that is compressed.
pub fn compress(out: &mut Vec<u8>, begin: usize) {
    let Some((header, body)) = out[begin..].split_first_chunk::<HEADER_BYTES>() else { return };
    let Ok(header) = Header::decode(header, MAX_BODY_BYTES) else { return };
    if body.len() < COMPRESS_FROM_BYTES || header.is_compressed || !seems_compressible(body) {
        return;
    }
    let compressed = lz4_flex::block::compress_prepend_size(body);
    if compressed.len() < body.len() - body.len() / 8 {
        out.truncate(begin + HEADER_BYTES);
        out.extend_from_slice(&compressed);
        Header { len: compressed.len(), is_compressed: true, ..header }.put(&mut out[begin..]);
    }
}

/// Returns false if samples of a long body hardly become shorter, as with data that is already compressed or encrypted.
fn seems_compressible(body: &[u8]) -> bool {
    if body.len() < SAMPLES * SAMPLE_BYTES * 4 {
        return true;
    }
    let sample = |number: usize| {
        let begin = (body.len() - SAMPLE_BYTES) / (SAMPLES - 1) * number;
        lz4_flex::block::compress(&body[begin..begin + SAMPLE_BYTES]).len()
    };
    (0..SAMPLES).map(sample).sum::<usize>() < SAMPLES * SAMPLE_BYTES / 16 * 15
}

/// Replaces the header of an encoded frame by a short header. Returns the position in `frame` at which the frame now
/// begins.
///
/// # Panics
/// `frame` is not exactly one frame with a full header and a kind below 64, as [`encode`] creates it.
pub fn shorten(frame: &mut [u8]) -> usize {
    let (header, body) = frame.split_first_chunk_mut::<HEADER_BYTES>().expect("a frame has a header");
    let decoded = Header::decode(header, MAX_BODY_BYTES).expect("the header was encoded here");
    assert!(decoded.len == body.len() && decoded.kind < SHORT_HAS_ID, "one frame: {decoded:?}");
    let mut head = Vec::with_capacity(MAX_SHORT_BYTES);
    decoded.put_short(&mut head);
    let begin = HEADER_BYTES - head.len();
    header[begin..].copy_from_slice(&head);
    begin
}

/// Decompresses the body of a frame. Checks the length that the body states before it allocates memory.
pub fn decompress(body: &[u8]) -> Result<Vec<u8>, HeaderError> {
    let Some((len, _)) = body.split_first_chunk::<4>() else { return Err(HeaderError::Compression) };
    let len = u32::from_le_bytes(*len) as usize;
    if len > MAX_BODY_BYTES {
        return Err(HeaderError::TooLarge { got: len, max: MAX_BODY_BYTES });
    }
    // LZ4 shortens data to no less than 1/255, so this check keeps a short body from causing a large allocation.
    if len / 255 > body.len() {
        return Err(HeaderError::Compression);
    }
    let long = lz4_flex::block::decompress_size_prepended(body).map_err(|_| HeaderError::Compression)?;
    // A block that is cut between two of its sequences is still valid, but decompresses to fewer bytes.
    if long.len() == len { Ok(long) } else { Err(HeaderError::Compression) }
}

#[cfg(test)]
mod tests {
    use thalweg_types::{Index, Term};

    use super::{
        super::frames::{Heartbeat, Ping, Sign},
        *,
    };

    #[test]
    fn samples_show_whether_a_long_body_is_worth_compressing() {
        let mut random = 7_u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 56) as u8
        })
        .take(300_000)
        .collect();
        let text: Vec<u8> = noise.iter().map(|byte| b'a' + byte % 4).collect();
        assert!(!seems_compressible(&noise) && seems_compressible(&text));
        // A part that becomes shorter is enough for the whole body. Short bodies are always tried.
        assert!(seems_compressible(&[&noise[..200_000], &text[..100_000]].concat()));
        assert!(seems_compressible(&noise[..100_000]));
    }

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

    /// Returns an encoded frame with a short header.
    fn short<'a, F: PeerFrame<'a>>(frame: &F, id: u64) -> Vec<u8> {
        let mut out = Vec::new();
        encode(frame, id, &mut out).unwrap();
        let begin = shorten(&mut out);
        out.split_off(begin)
    }

    #[test]
    fn short_heads_are_pinned_and_come_back() {
        assert_eq!(short(&Sign { number: 5, heard: 300 }, 0), [50, 3, 5, 0xac, 2]);
        let heartbeat = Heartbeat { term: Term(2), heard: 1, last_term: Term(1), last_index: Index(200) };
        let bytes = short(&heartbeat, 130);
        assert_eq!(bytes, [0x40 | 54, 5, 0x82, 1, 2, 1, 1, 0xc8, 1]);
        let expected = Header { len: 5, kind: 54, is_compressed: false, id: 130 };
        for cut in 0..4 {
            assert_eq!(Header::decode_short(&bytes[..cut], 99), Ok(None), "cut to {cut}");
        }
        assert_eq!(Header::decode_short(&bytes, 99), Ok(Some((expected, 4))));
        assert_eq!(Heartbeat::decode_body(&bytes[4..]), Ok(heartbeat));
        let mut long = vec![0; HEADER_BYTES + 0x1234];
        Header { len: 0x1234, kind: 17, is_compressed: true, id: u64::MAX }.put(&mut long);
        let begin = shorten(&mut long);
        assert_eq!((begin, &long[begin..begin + 3]), (HEADER_BYTES - 13, &[0xd1, 0xb4, 0x24][..]));
        let (header, size) = Header::decode_short(&long[begin..], MAX_BODY_BYTES).unwrap().unwrap();
        assert_eq!((header.len, header.kind, header.is_compressed, header.id), (0x1234, 17, true, u64::MAX));
        assert_eq!(size, 13);
    }

    #[test]
    fn malformed_short_heads_are_rejected_and_never_need_more_than_their_bound() {
        assert_eq!(Header::decode_short(&[50, 17], 16), Err(HeaderError::TooLarge { got: 17, max: 16 }));
        for bytes in [&[50, 0x80, 0][..], &[0x40 | 50, 2, 0], &[0x40 | 50, 2, 0x80, 0], &[0xff; MAX_SHORT_BYTES]] {
            assert_eq!(Header::decode_short(bytes, MAX_BODY_BYTES), Err(HeaderError::Number), "{bytes:x?}");
        }
        // Tries all short inputs: each gives a header, an error, or a request for more bytes, but never a panic.
        for first in 0..=255_u8 {
            for second in [0, 1, 0x7f, 0x80, 0xff] {
                let bytes = [&[first][..], &[second; MAX_SHORT_BYTES - 1]].concat();
                assert!(Header::decode_short(&bytes, MAX_BODY_BYTES) != Ok(None), "{bytes:x?}");
                for cut in 0..bytes.len() {
                    let _ = Header::decode_short(&bytes[..cut], MAX_BODY_BYTES);
                }
            }
        }
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
