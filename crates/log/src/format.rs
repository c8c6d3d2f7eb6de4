//! The bytes of a segment file: layouts, encoding, decoding.
//!
//! Owns: every offset and size on disk. `docs/formats/log.md` describes them in prose; golden files pin both.
//! Does not own: I/O, and the decision what to do with bytes that don't decode. Invariant: decoding never
//! panics and never reads outside its input.
//!
//! ```text
//! 0        4096     8192                                                size-64     size
//! | header | header | batch | batch | …                         | unused | footer  |
//!                   | header 48 | record | record | … | pad to 8 |
//!                               | header 40 | payload |
//! ```
//! Little-endian.

use thalweg_types::{Generation, Index, Lsn, SpaceId, SpaceTime, Term};

use crate::{crc::crc32c, record::RecordKind};

/// Version of the format of segment files, stored in every segment header.
pub const FORMAT_VERSION: u32 = 1;
/// First bytes of a segment file.
pub const SEGMENT_MAGIC: [u8; 8] = *b"THALWSEG";
/// Bytes of the block that holds one copy of a segment header. The block contains nothing else, so no batch
/// shares a disk sector with the header.
pub const HEADER_BLOCK_BYTES: u32 = 4096;
/// Byte position of a segment's first batch, after two copies of the segment header.
pub const DATA_START: u32 = 2 * HEADER_BLOCK_BYTES;
/// Bytes of a segment header; the remaining bytes of its block are zero.
pub const SEGMENT_HEADER_BYTES: usize = 64;
/// Bytes of a batch header.
pub const BATCH_HEADER_BYTES: usize = 48;
/// Bytes of a record header; the payload follows immediately.
pub const RECORD_HEADER_BYTES: usize = 40;
/// Bytes of the footer, which ends the file of a sealed segment.
pub const FOOTER_BYTES: usize = 64;
/// Alignment of batches: each begins at a multiple of this number of bytes.
pub const BATCH_ALIGN: u32 = 8;
/// Smallest permitted segment size in bytes.
pub const MIN_SEGMENT_BYTES: u32 = 16 * 1024;
/// Largest permitted segment size in bytes: positions within a segment fit in 31 bits.
pub const MAX_SEGMENT_BYTES: u32 = 1024 * 1024 * 1024;
/// Bytes that batches of records leave free before the footer, for marker batches, which have no records and
/// only attest durability.
pub const MARKER_ROOM: u32 = 4 * BATCH_HEADER_BYTES as u32;

/// Exclusive bound of generations and LSNs. Both grow by one from zero and never reach this bound, so adding
/// to a decoded number cannot overflow.
pub const MAX_NUMBER: u64 = 1 << 62;

const FOOTER_TAG: u32 = 0x544f_4f46;

const _: () = assert!(SEGMENT_HEADER_BYTES <= 512, "a header must lie in one sector");
const _: () = assert!(BATCH_HEADER_BYTES.is_multiple_of(BATCH_ALIGN as usize));
const _: () = assert!(DATA_START.is_multiple_of(BATCH_ALIGN));
const _: () = assert!(512 % FOOTER_BYTES == 0, "a footer must lie in one sector");
const _: () = assert!(MIN_SEGMENT_BYTES > DATA_START + MARKER_ROOM + FOOTER_BYTES as u32);

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Bytes that don't decode: which check failed, the value that it expected, and the value that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Name of the failed check.
    pub what: &'static str,
    /// Value that the check expected.
    pub expected: u64,
    /// Value found in the bytes.
    pub got: u64,
}

impl Damage {
    pub(crate) fn new(what: &'static str, expected: impl Into<u64>, got: impl Into<u64>) -> Self {
        Self { what, expected: expected.into(), got: got.into() }
    }
}

/// Random id of a segment. The id and the position of the bytes seed every checksum in the segment. Neither
/// an old batch in a recycled file nor a copy of a log in a payload matches both the id and the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentId(pub u64);

impl SegmentId {
    /// Generates an id. The generation is mixed in, so a repeated seed does not repeat an id.
    pub(crate) fn draw(seed: u64, generation: Generation) -> Self {
        let mut x = seed ^ generation.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        loop {
            // SplitMix64's finaliser.
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = x;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
            // A tag of zero would make zeroes look like the start of a header.
            if z as u32 != 0 {
                return Self(z);
            }
        }
    }

    /// Returns the first four bytes of every batch header of the segment: the low half of the segment's id.
    #[inline]
    #[must_use]
    pub fn tag(self) -> u32 {
        self.0 as u32
    }

    /// CRC32C of the segment's id, the position and `bytes`. At most 56 bytes are permitted.
    #[inline]
    fn seeded_crc(self, position: u32, bytes: &[u8]) -> u32 {
        let mut buffer = [0; 72];
        buffer[0..8].copy_from_slice(&self.0.to_le_bytes());
        buffer[8..16].copy_from_slice(&u64::from(position).to_le_bytes());
        buffer[16..16 + bytes.len()].copy_from_slice(bytes);
        crc32c(&buffer[..16 + bytes.len()])
    }
}

/// State of a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentState {
    /// The file is prepared for later use; its bytes after the header have no meaning.
    Spare,
    /// The file contains a part of the log.
    Live,
}

/// The header of a segment file, written twice: at byte 0 and at byte 4096.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// State of the file: spare or live.
    pub state: SegmentState,
    /// Random id, generated again each time the file is prepared.
    pub id: SegmentId,
    /// Number of the segment, strictly increasing over all segments of the directory; it determines their
    /// order.
    pub generation: Generation,
    /// LSN of the segment's first record, if the segment is live.
    pub base: Lsn,
    /// Body checksum of the last batch of the previous segment, if this segment is live. It starts the chain
    /// of checksums.
    pub base_chain: u32,
    /// Size of the file in bytes.
    pub segment_bytes: u32,
    /// Number in the file's name, such as 3 in `00000003.seg`.
    pub slot: u32,
    /// Generation of the segment before this one, if this segment is live; zero if there was none. Open uses
    /// it to distinguish a segment that was freed from a segment that a power loss destroyed.
    pub previous: Generation,
}

impl SegmentHeader {
    /// Encodes the header in 64 bytes. The layout gives the byte offset, name and type of each field.
    ///
    /// ```text
    /// 0 magic [8] | 8 version u32 | 12 state u32 | 16 id u64 | 24 generation u64 | 32 base LSN u64
    /// | 40 base chain u32 | 44 segment bytes u32 | 48 slot u32 | 52 previous generation u64
    /// | 60 crc32c of 0..60 u32
    /// ```
    #[must_use]
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = [0; SEGMENT_HEADER_BYTES];
        let state: u32 = match self.state {
            SegmentState::Spare => 1,
            SegmentState::Live => 2,
        };
        out[0..8].copy_from_slice(&SEGMENT_MAGIC);
        out[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&state.to_le_bytes());
        out[16..24].copy_from_slice(&self.id.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.generation.0.to_le_bytes());
        out[32..40].copy_from_slice(&self.base.0.to_le_bytes());
        out[40..44].copy_from_slice(&self.base_chain.to_le_bytes());
        out[44..48].copy_from_slice(&self.segment_bytes.to_le_bytes());
        out[48..52].copy_from_slice(&self.slot.to_le_bytes());
        out[52..60].copy_from_slice(&self.previous.0.to_le_bytes());
        let crc = crc32c(&out[..60]);
        out[60..64].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Returns the header as a whole block: the header bytes, followed by zeroes.
    #[must_use]
    pub fn encode_block(&self) -> [u8; HEADER_BLOCK_BYTES as usize] {
        let mut block = [0; HEADER_BLOCK_BYTES as usize];
        block[..SEGMENT_HEADER_BYTES].copy_from_slice(&self.encode());
        block
    }

    /// Decodes and verifies a header written by [`encode`](Self::encode).
    pub fn decode(bytes: &[u8; SEGMENT_HEADER_BYTES]) -> Result<Self, Damage> {
        if bytes[0..8] != SEGMENT_MAGIC {
            return Err(Damage::new("segment magic", u64::from_le_bytes(SEGMENT_MAGIC), u64_at(bytes, 0)));
        }
        let crc = crc32c(&bytes[..60]);
        if crc != u32_at(bytes, 60) {
            return Err(Damage::new("segment header checksum", crc, u32_at(bytes, 60)));
        }
        if u32_at(bytes, 8) != FORMAT_VERSION {
            return Err(Damage::new(VERSION_DAMAGE, FORMAT_VERSION, u32_at(bytes, 8)));
        }
        let state = match u32_at(bytes, 12) {
            1 => SegmentState::Spare,
            2 => SegmentState::Live,
            other => return Err(Damage::new("segment state of 1 or 2", 2_u64, other)),
        };
        for number in [u64_at(bytes, 24), u64_at(bytes, 32)] {
            if number >= MAX_NUMBER {
                return Err(Damage::new("generation and LSN below their bound", MAX_NUMBER, number));
            }
        }
        let segment_bytes = u32_at(bytes, 44);
        if !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&segment_bytes) {
            return Err(Damage::new("segment size", MIN_SEGMENT_BYTES, segment_bytes));
        }
        Ok(Self {
            state,
            id: SegmentId(u64_at(bytes, 16)),
            generation: Generation(u64_at(bytes, 24)),
            base: Lsn(u64_at(bytes, 32)),
            base_chain: u32_at(bytes, 40),
            segment_bytes,
            slot: u32_at(bytes, 48),
            previous: Generation(u64_at(bytes, 52)),
        })
    }
}

/// Name of the failed check for a segment header that another program version wrote. Such a header is not
/// corruption.
pub(crate) const VERSION_DAMAGE: &str = "format version";

/// Kind of a batch: a batch of records, or a marker, which has no records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub enum BatchKind {
    /// The batch carries records.
    #[default]
    Records,
    /// A marker: all records before it were durable when it was written, and the log had no pending writes.
    Idle,
    /// A marker that open writes before any record: the batches after it belong to a new run of the process.
    Opened,
    /// A marker that close writes: no batch follows it until the next open.
    Closed,
}

/// The header of a batch. It attests which earlier records are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BatchHeader {
    /// Number of bytes of the batch's records, without the padding after them.
    pub body_len: u32,
    /// Number of records; 0 in a marker.
    pub count: u32,
    /// LSN of the batch's first record; in a marker, the LSN that the next record will get.
    pub first: Lsn,
    /// Attested bound: when the batch was written, all records below this LSN were durable. `attested <=
    /// first`.
    pub attested: Lsn,
    /// Body checksum of the previous batch. It chains the batches, so that a missing or exchanged batch is
    /// found.
    pub chain: u32,
    /// Body checksum: CRC32C of `chain` and the checksums of the batch's records in order.
    pub body_crc: u32,
    /// Kind of the batch: records, or a kind of marker.
    pub kind: BatchKind,
}

impl BatchHeader {
    /// Encodes the header for a batch at `position` of segment `id`. The layout gives the byte offset, name and
    /// type of each field.
    ///
    /// ```text
    /// 0 tag u32 = low half of the segment id | 4 crc32c of (id u64, position u64, bytes 8..48) u32
    /// | 8 body len u32 | 12 count u32 | 16 first LSN u64 | 24 attested LSN u64
    /// | 32 chain u32 | 36 body crc u32 | 40 kind u32 | 44 zero u32
    /// ```
    #[inline]
    #[must_use]
    pub fn encode(&self, id: SegmentId, position: u32) -> [u8; BATCH_HEADER_BYTES] {
        let mut words = [
            id.0,
            u64::from(position),
            word(self.body_len, self.count),
            self.first.0,
            self.attested.0,
            word(self.chain, self.body_crc),
            word(self.kind as u32, 0),
        ];
        let crc = crc32c(&bytes_of::<7, 56>(&words));
        words[1] = word(id.tag(), crc);
        let words: &[u64; 6] = words.last_chunk().expect("six of seven");
        bytes_of(words)
    }

    /// Decodes and verifies a batch header written by [`encode`](Self::encode). `position` is its byte
    /// position in the segment `id`, whose batches end before `limit`.
    pub fn decode(bytes: &[u8; BATCH_HEADER_BYTES], id: SegmentId, position: u32, limit: u32) -> Result<Self, Damage> {
        if u32_at(bytes, 0) != id.tag() {
            return Err(Damage::new("batch header tag", id.tag(), u32_at(bytes, 0)));
        }
        let crc = id.seeded_crc(position, &bytes[8..]);
        if crc != u32_at(bytes, 4) {
            return Err(Damage::new("batch header checksum", crc, u32_at(bytes, 4)));
        }
        let kind = match u32_at(bytes, 40) {
            0 => BatchKind::Records,
            1 => BatchKind::Idle,
            2 => BatchKind::Opened,
            3 => BatchKind::Closed,
            other => return Err(Damage::new("batch kind", 0_u64, other)),
        };
        let header = Self {
            body_len: u32_at(bytes, 8),
            count: u32_at(bytes, 12),
            first: Lsn(u64_at(bytes, 16)),
            attested: Lsn(u64_at(bytes, 24)),
            chain: u32_at(bytes, 32),
            body_crc: u32_at(bytes, 36),
            kind,
        };
        header.check(position, limit)?;
        Ok(header)
    }

    /// Checks the header's values. The checksum is correct, but a broken program could have written invalid
    /// values with a correct checksum.
    fn check(&self, position: u32, limit: u32) -> Result<(), Damage> {
        let room = u64::from(limit).saturating_sub(u64::from(position) + BATCH_HEADER_BYTES as u64);
        if u64::from(self.body_len) > room {
            return Err(Damage::new("batch within its segment", room, self.body_len));
        }
        let least = u64::from(self.count) * RECORD_HEADER_BYTES as u64;
        if u64::from(self.body_len) < least || (self.count == 0) != (self.kind != BatchKind::Records) {
            return Err(Damage::new("batch count that fits its length", least, self.body_len));
        }
        if self.attested > self.first || self.first.0 >= MAX_NUMBER {
            return Err(Damage::new("attested LSN below the batch", self.first.0, self.attested.0));
        }
        Ok(())
    }

    /// LSN after the batch's last record.
    #[must_use]
    pub fn next(&self) -> Lsn {
        self.first.plus(u64::from(self.count))
    }

    /// Bytes from the header to the start of the next batch.
    #[must_use]
    pub fn total_bytes(&self) -> u32 {
        padded(BATCH_HEADER_BYTES as u32 + self.body_len)
    }
}

/// `len` rounded up to [`BATCH_ALIGN`].
#[inline]
#[must_use]
pub const fn padded(len: u32) -> u32 {
    len.next_multiple_of(BATCH_ALIGN)
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// CRC32C of the remaining header bytes and the payload.
    pub crc: u32,
    /// Length of the payload in bytes.
    pub payload_len: u32,
    /// Space of the record: the state machine to which the record belongs.
    pub space: SpaceId,
    /// Kind of the record.
    pub kind: RecordKind,
    /// Term of the record.
    pub term: Term,
    /// Index of the record.
    pub index: Index,
    /// Space time of the record, in microseconds.
    pub time: SpaceTime,
}

impl RecordHeader {
    /// Encodes the header. The layout gives the byte offset, name and type of each field, and where the payload
    /// follows.
    ///
    /// ```text
    /// 0 crc32c of 4..40 and the payload u32 | 4 payload len u32 | 8 space u32 | 12 kind u8 | 13 zero [3]
    /// | 16 term u64 | 24 index u64 | 32 space time u64 | 40 payload
    /// ```
    /// Writes the checksum that `self` stores, without computing it.
    #[inline]
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_HEADER_BYTES] {
        let mut out = [0; RECORD_HEADER_BYTES];
        out[0..4].copy_from_slice(&self.crc.to_le_bytes());
        out[4..8].copy_from_slice(&self.payload_len.to_le_bytes());
        out[8..12].copy_from_slice(&self.space.0.to_le_bytes());
        out[12] = self.kind as u8;
        out[16..24].copy_from_slice(&self.term.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.index.0.to_le_bytes());
        out[32..40].copy_from_slice(&self.time.0.to_le_bytes());
        out
    }

    /// Decodes the record at the start of `bytes` and verifies it; its payload follows the header.
    pub fn decode(bytes: &[u8]) -> Result<Self, Damage> {
        if bytes.len() < RECORD_HEADER_BYTES {
            return Err(Damage::new("record header", RECORD_HEADER_BYTES as u64, bytes.len() as u64));
        }
        let payload_len = u32_at(bytes, 4);
        let Some(covered) = bytes.get(4..RECORD_HEADER_BYTES + payload_len as usize) else {
            let room = bytes.len() - RECORD_HEADER_BYTES;
            return Err(Damage::new("record within its batch", room as u64, payload_len));
        };
        let crc = crc32c(covered);
        if crc != u32_at(bytes, 0) {
            return Err(Damage::new("record checksum", crc, u32_at(bytes, 0)));
        }
        Self::decode_verified(bytes).ok_or(Damage::new("record kind", 1_u64, bytes[12]))
    }

    /// Decodes bytes that [`decode`](Self::decode) has verified before.
    #[inline]
    pub(crate) fn decode_verified(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..RECORD_HEADER_BYTES)?;
        Some(Self {
            crc: u32_at(bytes, 0),
            payload_len: u32_at(bytes, 4),
            space: SpaceId(u32_at(bytes, 8)),
            kind: RecordKind::from_byte(bytes[12])?,
            term: Term(u64_at(bytes, 16)),
            index: Index(u64_at(bytes, 24)),
            time: SpaceTime(u64_at(bytes, 32)),
        })
    }
}

/// The last bytes of a sealed segment. They summarize the segment, so that open need not read the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Byte position in the segment at which the last batch ends.
    pub end: u32,
    /// Body checksum of the segment's last batch.
    pub chain: u32,
    /// LSN of the segment's first record.
    pub first: Lsn,
    /// LSN after the segment's last record.
    pub next: Lsn,
    /// Space time of the segment's first record.
    pub first_time: SpaceTime,
    /// Highest space time of the segment's records.
    pub last_time: SpaceTime,
    /// True if the segment has records of kind `Truncate`. A reader that needs these records must read the
    /// segment.
    pub truncates: bool,
}

/// Bit of a footer's flags: the segment holds records of kind truncate.
const HOLDS_TRUNCATIONS: u32 = 1;

impl Footer {
    /// Encodes the footer for `position` of segment `id`. The layout gives the byte offset, name and type of each
    /// field.
    ///
    /// ```text
    /// 0 "FOOT" u32 | 4 crc32c of (id u64, position u64, bytes 8..64) u32 | 8 end u32 | 12 chain u32
    /// | 16 first LSN u64 | 24 next LSN u64 | 32 first time u64 | 40 last time u64
    /// | 48 flags u32 | 52 zero [12]
    /// ```
    #[must_use]
    pub fn encode(&self, id: SegmentId, position: u32) -> [u8; FOOTER_BYTES] {
        let mut out = [0; FOOTER_BYTES];
        out[0..4].copy_from_slice(&FOOTER_TAG.to_le_bytes());
        out[8..12].copy_from_slice(&self.end.to_le_bytes());
        out[12..16].copy_from_slice(&self.chain.to_le_bytes());
        out[16..24].copy_from_slice(&self.first.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.next.0.to_le_bytes());
        out[32..40].copy_from_slice(&self.first_time.0.to_le_bytes());
        out[40..48].copy_from_slice(&self.last_time.0.to_le_bytes());
        let flags = if self.truncates { HOLDS_TRUNCATIONS } else { 0 };
        out[48..52].copy_from_slice(&flags.to_le_bytes());
        let crc = id.seeded_crc(position, &out[8..]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes and verifies a footer written by [`encode`](Self::encode), at `position` of the segment `id`.
    pub fn decode(bytes: &[u8; FOOTER_BYTES], id: SegmentId, position: u32) -> Result<Self, Damage> {
        if u32_at(bytes, 0) != FOOTER_TAG {
            return Err(Damage::new("footer tag", FOOTER_TAG, u32_at(bytes, 0)));
        }
        let crc = id.seeded_crc(position, &bytes[8..]);
        if crc != u32_at(bytes, 4) {
            return Err(Damage::new("footer checksum", crc, u32_at(bytes, 4)));
        }
        let footer = Self {
            end: u32_at(bytes, 8),
            chain: u32_at(bytes, 12),
            first: Lsn(u64_at(bytes, 16)),
            next: Lsn(u64_at(bytes, 24)),
            first_time: SpaceTime(u64_at(bytes, 32)),
            last_time: SpaceTime(u64_at(bytes, 40)),
            truncates: u32_at(bytes, 48) & HOLDS_TRUNCATIONS != 0,
        };
        let numbers = footer.first <= footer.next && footer.next.0 < MAX_NUMBER;
        if !(DATA_START..=position).contains(&footer.end) || !numbers {
            return Err(Damage::new("footer's end within the segment", position, footer.end));
        }
        Ok(footer)
    }
}

/// Computes the body checksum of a batch: CRC32C of the previous batch's body checksum and the records'
/// checksums, in order.
///
/// A record's checksum covers its header and payload, so the body checksum covers the whole batch without
/// reading it twice. `sums` begins with four bytes of space for the previous checksum.
#[inline]
pub(crate) fn body_crc(sums: &mut [u8], chain: u32) -> u32 {
    if let [_, _, _, _, sum @ ..] = &*sums
        && let Ok(sum) = <[u8; 4]>::try_from(sum)
    {
        return crc32c(&word(chain, u32::from_le_bytes(sum)).to_le_bytes());
    }
    sums[..4].copy_from_slice(&chain.to_le_bytes());
    crc32c(sums)
}

/// Combines two 32-bit numbers into one 64-bit word, so that the checksum can read the word immediately after
/// it was written. If the two halves were written separately, the processor would delay the read until both
/// writes have finished.
#[inline]
fn word(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// Encodes words in little-endian order; `BYTES` is 8 for each word.
#[inline]
fn bytes_of<const WORDS: usize, const BYTES: usize>(words: &[u64; WORDS]) -> [u8; BYTES] {
    const { assert!(WORDS * 8 == BYTES) };
    let mut bytes = [0; BYTES];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Returns the file name of the segment file with this number.
#[must_use]
pub fn segment_name(slot: u32) -> String {
    format!("{slot:08}.seg")
}

/// Returns the number in a segment file's name, or `None` if the name is not that of a segment file.
#[must_use]
pub fn parse_segment_name(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".seg")?;
    let slot = digits.parse().ok()?;
    (segment_name(slot) == name).then_some(slot)
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
