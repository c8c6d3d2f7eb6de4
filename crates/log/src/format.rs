//! The bytes of a segment file: layouts, encoding, decoding.
//!
//! Owns: every offset and size on disk. `docs/formats/log.md` describes them in prose; golden files pin both.
//! Does not own: any I/O, or any decision about bytes that don't decode.
//! Invariant: decoding never panics and never reads outside its input.
//!
//! ```text
//! 0        4096     8192                                                size-64     size
//! | header | header | batch | batch | …                         | unused | footer  |
//!                   | header 48 | record | record | … | pad to 8 |
//!                               | header 40 | payload |
//! ```
//! Headers and footers consist of words of 8 bytes, little-endian; `low | high` are two halves of one word. Encoding
//! and decoding list the words in order, so that no offset is stated twice.

use thalweg_types::{Generation, Index, Lsn, SpaceId, SpaceTime, Term};

use crate::{crc::crc32c, record_kind::RecordKind};

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

/// Exclusive bound of LSNs and of generations (segment numbers). Both grow by one from zero and never reach this bound,
/// so adding to a decoded number cannot overflow.
pub const MAX_NUMBER: u64 = 1 << 62;

const FOOTER_TAG: u32 = 0x544f_4f46;

const _: () = assert!(SEGMENT_HEADER_BYTES <= 512, "a header must lie in one sector");
const _: () = assert!(BATCH_HEADER_BYTES.is_multiple_of(BATCH_ALIGN as usize));
const _: () = assert!(DATA_START.is_multiple_of(BATCH_ALIGN));
const _: () = assert!(512 % FOOTER_BYTES == 0, "a footer must lie in one sector");
const _: () = assert!(MIN_SEGMENT_BYTES > DATA_START + MARKER_ROOM + FOOTER_BYTES as u32);

/// Bytes that don't decode: which check failed, the value that it expected, and the value that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Name of the check that the bytes failed.
    pub what: &'static str,
    /// Value that the failed check expected.
    pub expected: u64,
    /// Value that the failed check found in the bytes.
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
    /// Generates the id of a segment. Its generation (segment number) is mixed in, so a repeated seed does not repeat
    /// an id.
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

    /// Returns the low half of the segment's id. Every batch header of the segment begins with these four bytes.
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

/// State of a segment file: prepared for later use, or a part of the log.
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
    /// State of the file: spare (prepared for later use) or live (a part of the log).
    pub state: SegmentState,
    /// Random id, generated again each time the file is prepared.
    pub id: SegmentId,
    /// Number of the segment, strictly increasing over all segments of the directory; it determines their
    /// order.
    pub generation: Generation,
    /// LSN of the segment's first record, if the segment is live.
    pub base: Lsn,
    /// Body checksum of the last batch of the previous segment, if this segment is live. The segment's first batch
    /// repeats it.
    pub base_chain: u32,
    /// Size of the segment file in bytes.
    pub segment_bytes: u32,
    /// Number in the file's name, such as 3 in `00000003.seg`.
    pub slot: u32,
    /// Generation of the segment before this one, if this segment is live; zero if there was none. Open uses
    /// it to distinguish a segment that was freed from a segment that a power loss destroyed.
    pub previous: Generation,
}

impl SegmentHeader {
    /// Encodes the header. The layout lists its fields with their types; `|` separates words of 8 bytes.
    ///
    /// ```text
    /// magic [8] | version u32, state u32 | id u64 | generation u64 | base LSN u64 | base chain u32, segment bytes u32
    /// | slot u32, low half of the previous generation | its high half, crc32c of the bytes before u32
    /// ```
    #[must_use]
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let state = match self.state {
            SegmentState::Spare => 1,
            SegmentState::Live => 2,
        };
        let [previous_low, previous_high] = halves(self.previous.0);
        let mut words = [
            u64::from_le_bytes(SEGMENT_MAGIC),
            word(FORMAT_VERSION, state),
            self.id.0,
            self.generation.0,
            self.base.0,
            word(self.base_chain, self.segment_bytes),
            word(self.slot, previous_low),
            word(previous_high, 0),
        ];
        words[7] = word(previous_high, Self::crc(&bytes_of(&words)));
        bytes_of(&words)
    }

    /// Computes the checksum of an encoded header. It covers all bytes except the last four, in which the header stores
    /// it.
    fn crc(bytes: &[u8; SEGMENT_HEADER_BYTES]) -> u32 {
        crc32c(&bytes[..SEGMENT_HEADER_BYTES - 4])
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
        let [magic, versions, id, generation, base, sizes, slots, last] = words_of(bytes);
        let ([version, state], [base_chain, segment_bytes]) = (halves(versions), halves(sizes));
        let ([slot, previous_low], [previous_high, stored_crc]) = (halves(slots), halves(last));
        if magic != u64::from_le_bytes(SEGMENT_MAGIC) {
            return Err(Damage::new("segment magic", u64::from_le_bytes(SEGMENT_MAGIC), magic));
        }
        let crc = Self::crc(bytes);
        if crc != stored_crc {
            return Err(Damage::new("segment header checksum", crc, stored_crc));
        }
        if version != FORMAT_VERSION {
            return Err(Damage::new(VERSION_DAMAGE, FORMAT_VERSION, version));
        }
        let state = match state {
            1 => SegmentState::Spare,
            2 => SegmentState::Live,
            other => return Err(Damage::new("segment state of 1 or 2", 2_u64, other)),
        };
        if let Some(number) = [generation, base].into_iter().find(|number| *number >= MAX_NUMBER) {
            return Err(Damage::new("generation and LSN below their bound", MAX_NUMBER, number));
        }
        if !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&segment_bytes) {
            return Err(Damage::new("segment size", MIN_SEGMENT_BYTES, segment_bytes));
        }
        Ok(Self {
            state,
            id: SegmentId(id),
            generation: Generation(generation),
            base: Lsn(base),
            base_chain,
            segment_bytes,
            slot,
            previous: Generation(word(previous_low, previous_high)),
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
    /// A batch without records (a marker), which attests that all earlier records are durable. It is written when the
    /// log has no pending writes.
    Idle,
    /// A batch without records (a marker), which is written when the log is opened. The batches after it belong to a
    /// new run of the process.
    Opened,
    /// A batch without records (a marker), which is written when the log is closed. No batch follows it until the next
    /// open.
    Closed,
}

/// The header of a batch. It attests which earlier records are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BatchHeader {
    /// Number of bytes of the batch's records, without the padding after them.
    pub body_len: u32,
    /// Number of records in the batch; 0 in a marker (a batch that only attests durability).
    pub count: u32,
    /// LSN of the batch's first record; in a marker (a batch without records), the LSN that the next record will get.
    pub first: Lsn,
    /// Attested bound: when the batch was written, all records below this LSN were durable. `attested <=
    /// first`.
    pub attested: Lsn,
    /// Body checksum of the previous batch. By this value, a reader finds a missing or exchanged batch.
    pub chain: u32,
    /// Body checksum: CRC32C of `chain` and the checksums of the batch's records in order.
    pub body_crc: u32,
    /// Kind of the batch: with records, or one of the kinds without records (markers).
    pub kind: BatchKind,
}

impl BatchHeader {
    /// Encodes the header for a batch at `position` of segment `id`. The layout lists its fields with their
    /// types (the struct's fields explain them); `|` separates words of 8 bytes.
    ///
    /// ```text
    /// tag u32 = low half of the segment id, crc32c of (id u64, position u64, the words that follow) u32
    /// | body len u32, count u32 | first LSN u64 | attested LSN u64 | chain u32, body crc u32 | kind u32, zero u32
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
        let [check, sizes, first, attested, sums, kind] = words_of(bytes);
        let ([tag, stored_crc], [body_len, count]) = (halves(check), halves(sizes));
        let ([chain, body_crc], [kind, _]) = (halves(sums), halves(kind));
        if tag != id.tag() {
            return Err(Damage::new("batch header tag", id.tag(), tag));
        }
        let crc = id.seeded_crc(position, &bytes[size_of::<u64>()..]);
        if crc != stored_crc {
            return Err(Damage::new("batch header checksum", crc, stored_crc));
        }
        let kind = match kind {
            0 => BatchKind::Records,
            1 => BatchKind::Idle,
            2 => BatchKind::Opened,
            3 => BatchKind::Closed,
            other => return Err(Damage::new("batch kind", 0_u64, other)),
        };
        let header = Self { body_len, count, first: Lsn(first), attested: Lsn(attested), chain, body_crc, kind };
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

    /// LSN after the batch's last record; the next batch begins with this LSN.
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

/// The header of a record in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// CRC32C of the remaining header bytes and the payload.
    pub crc: u32,
    /// Length of the payload in bytes.
    pub payload_len: u32,
    /// Space of the record: the replicated state machine (one Raft group) to which the record belongs.
    pub space: SpaceId,
    /// Kind of the record, such as an entry or a vote.
    pub kind: RecordKind,
    /// Raft term of the record, or zero if its kind has none.
    pub term: Term,
    /// Index of the record in the replicated log of its Raft group; zero if records of this kind have no index.
    pub index: Index,
    /// Timestamp of the record in microseconds, by the clock that all replicas share (space time).
    pub time: SpaceTime,
}

impl RecordHeader {
    /// Encodes the header. The layout lists its fields with their types; `|` separates words of 8 bytes.
    ///
    /// ```text
    /// crc32c of all that follows u32, payload len u32 | space u32, kind u8, zero [3] | term u64 | index u64
    /// | space time u64 | payload
    /// ```
    /// Uses the checksum stored in `self`.
    #[inline]
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_HEADER_BYTES] {
        bytes_of(&[
            word(self.crc, self.payload_len),
            word(self.space.0, u32::from(self.kind as u8)),
            self.term.0,
            self.index.0,
            self.time.0,
        ])
    }

    /// Decodes the record at the start of `bytes` and verifies it; its payload follows the header.
    pub fn decode(bytes: &[u8]) -> Result<Self, Damage> {
        let Some((header, payload)) = bytes.split_first_chunk() else {
            return Err(Damage::new("record header", RECORD_HEADER_BYTES as u64, bytes.len() as u64));
        };
        let [check, owner, ..] = words_of::<{ RECORD_HEADER_BYTES / 8 }, RECORD_HEADER_BYTES>(header);
        let ([stored_crc, payload_len], [_, kind]) = (halves(check), halves(owner));
        if payload_len as usize > payload.len() {
            return Err(Damage::new("record within its batch", payload.len() as u64, payload_len));
        }
        let crc = crc32c(&bytes[size_of::<u32>()..RECORD_HEADER_BYTES + payload_len as usize]);
        if crc != stored_crc {
            return Err(Damage::new("record checksum", crc, stored_crc));
        }
        Self::decode_verified(bytes).ok_or(Damage::new("record kind", 1_u64, kind as u8))
    }

    /// Decodes bytes that [`decode`](Self::decode) has verified before.
    #[inline]
    pub(crate) fn decode_verified(bytes: &[u8]) -> Option<Self> {
        let [check, owner, term, index, time] = words_of(bytes.first_chunk::<RECORD_HEADER_BYTES>()?);
        let ([crc, payload_len], [space, kind]) = (halves(check), halves(owner));
        Some(Self {
            crc,
            payload_len,
            space: SpaceId(space),
            kind: RecordKind::from_byte(kind as u8)?,
            term: Term(term),
            index: Index(index),
            time: SpaceTime(time),
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
    /// Timestamp of the segment's first record, by the clock that all replicas share (space time).
    pub first_time: SpaceTime,
    /// Highest timestamp of the segment's records, by the clock that all replicas share (space time).
    pub last_time: SpaceTime,
    /// True if the segment has records of kind `Truncate`. A reader that needs these records must read the
    /// segment.
    pub truncates: bool,
}

/// Bit of a footer's flags: the segment holds records of kind truncate.
const HOLDS_TRUNCATIONS: u32 = 1;

impl Footer {
    /// Encodes the footer for `position` of segment `id`. The layout lists its fields with their types; `|`
    /// separates words of 8 bytes.
    ///
    /// ```text
    /// "FOOT" u32, crc32c of (id u64, position u64, the words that follow) u32 | end u32, chain u32 | first LSN u64
    /// | next LSN u64 | first time u64 | last time u64 | flags u32, zero u32 | zero u64
    /// ```
    #[must_use]
    pub fn encode(&self, id: SegmentId, position: u32) -> [u8; FOOTER_BYTES] {
        let flags = if self.truncates { HOLDS_TRUNCATIONS } else { 0 };
        let mut words = [
            0,
            word(self.end, self.chain),
            self.first.0,
            self.next.0,
            self.first_time.0,
            self.last_time.0,
            word(flags, 0),
            0,
        ];
        let bytes: [u8; FOOTER_BYTES] = bytes_of(&words);
        words[0] = word(FOOTER_TAG, id.seeded_crc(position, &bytes[size_of::<u64>()..]));
        bytes_of(&words)
    }

    /// Decodes and verifies a footer written by [`encode`](Self::encode), at `position` of the segment `id`.
    pub fn decode(bytes: &[u8; FOOTER_BYTES], id: SegmentId, position: u32) -> Result<Self, Damage> {
        let [check, place, first, next, first_time, last_time, flags, _] = words_of(bytes);
        let ([tag, stored_crc], [end, chain]) = (halves(check), halves(place));
        if tag != FOOTER_TAG {
            return Err(Damage::new("footer tag", FOOTER_TAG, tag));
        }
        let crc = id.seeded_crc(position, &bytes[size_of::<u64>()..]);
        if crc != stored_crc {
            return Err(Damage::new("footer checksum", crc, stored_crc));
        }
        let footer = Self {
            end,
            chain,
            first: Lsn(first),
            next: Lsn(next),
            first_time: SpaceTime(first_time),
            last_time: SpaceTime(last_time),
            truncates: halves(flags)[0] & HOLDS_TRUNCATIONS != 0,
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

/// Decodes words in little-endian order; `BYTES` is 8 for each word.
#[inline]
fn words_of<const WORDS: usize, const BYTES: usize>(bytes: &[u8; BYTES]) -> [u64; WORDS] {
    const { assert!(WORDS * 8 == BYTES) };
    let (words, _) = bytes.as_chunks();
    std::array::from_fn(|at| u64::from_le_bytes(words[at]))
}

/// Splits a word into its low and its high half.
#[inline]
fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
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
