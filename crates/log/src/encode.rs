//! Encodes the records of an append (drafts) into the bytes of a batch, outside the writer's lock where possible.
//!
//! Owns: record headers and checksums, and the choice between copying payload bytes and passing them by reference. Does
//! not own: the batch header, because its position, its LSN and the previous batch's checksum are known only under the
//! writer's lock.

use std::io::IoSlice;

use thalweg_types::SpaceTime;

use crate::{
    crc::{crc32c, crc32c_parts},
    errors::AppendError,
    format::{BATCH_HEADER_BYTES, RECORD_HEADER_BYTES, RecordHeader, padded},
    record::Draft,
    record_kind::RecordKind,
};

/// Maximum bytes of a batch that may be written through the memory-mapped segment. At about this size a
/// system call becomes cheaper than the page faults of the mapping.
pub(crate) const MAPPED_MAX_BYTES: u64 = 32 * 1024;

/// Minimum average record size in bytes for a gathered write: one vectored write directly from the caller's
/// memory, used for batches above `MAPPED_MAX_BYTES`. If the records are shorter on average, a copy costs
/// less than the kernel's work for each slice.
const GATHERED_MIN_RECORD_BYTES: u64 = 4 * 1024;

/// Minimum bytes of a streamed batch. A batch above this size with many short records is written piece by
/// piece, the header last. The kernel then copies each piece from the processor's cache, where the piece was
/// assembled a moment before.
const STREAMED_MIN_BYTES: u64 = 256 * 1024;
/// Bytes at which one piece of a streamed batch ends. A piece ends after a whole record, so it can be longer.
const PIECE_BYTES: usize = 96 * 1024;

const PADDING: [u8; 8] = [0; 8];

/// Sizes and times of a batch before it is encoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measure {
    pub body_len: u64,
    pub payload_len: u64,
    /// Timestamp of the batch's first record, and highest timestamp of its records, by the clock that all replicas
    /// share (space time).
    pub times: (SpaceTime, SpaceTime),
    /// True if some records of the batch are of kind `Truncate`, which voids earlier log entries.
    pub truncates: bool,
}

impl Measure {
    pub(crate) fn of(drafts: &[Draft<'_>]) -> Result<Self, AppendError> {
        let first = drafts.first().ok_or(AppendError::Empty)?;
        let mut times = (first.time, first.time);
        let (mut payload_len, mut truncates) = (0, false);
        for draft in drafts {
            payload_len += draft.payload_len() as u64;
            times.1 = times.1.max(draft.time);
            truncates |= draft.kind == RecordKind::Truncate;
        }
        let body_len = payload_len + (drafts.len() * RECORD_HEADER_BYTES) as u64;
        Ok(Self { body_len, payload_len, times, truncates })
    }

    pub(crate) fn total(&self) -> u64 {
        (BATCH_HEADER_BYTES as u64 + self.body_len).next_multiple_of(8)
    }
}

/// Buffers of an appending thread, reused from append to append.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Buffer that begins with space for the batch header. In a small batch, records and padding follow. A large batch
    /// has only its record headers in this buffer, because its payloads are not copied.
    bytes: Vec<u8>,
    /// Four bytes of space for the previous batch's body checksum, followed by the checksums of the batch's records.
    sums: Vec<u8>,
}

/// Maximum bytes of buffers that a thread keeps between appends.
const SCRATCH_KEEP_BYTES: usize = 2 * 1024 * 1024;

/// A batch that is encoded except for its header. The writer adds the header under its lock.
#[derive(Debug)]
pub(crate) struct Encoded<'a> {
    pub count: u32,
    pub body_len: u32,
    pub payload_len: u64,
    pub times: Option<(SpaceTime, SpaceTime)>,
    pub sums: &'a mut [u8],
    pub body: Body<'a>,
}

#[derive(Debug)]
pub(crate) enum Body<'a> {
    /// The whole batch in one slice, which begins with space for the batch header.
    Flat(&'a mut [u8]),
    /// Slices of the batch's records and padding, which are written after the batch header.
    Parts(Vec<IoSlice<'a>>),
    /// Records to encode and write piece by piece. Their checksums are known only after the last piece.
    Streamed(Stream<'a>),
}

/// Progress of encoding a streamed batch, piece by piece.
#[derive(Debug)]
pub(crate) struct Stream<'a> {
    drafts: std::slice::Iter<'a, Draft<'a>>,
    /// Bytes of the body, including padding, that are not encoded yet.
    left: usize,
    piece: &'a mut Vec<u8>,
}

impl Stream<'_> {
    /// Encodes the next piece of a streamed batch. Stores the checksums of its records in `sums` from
    /// position `done` on, and advances `done`. Returns an empty slice if no piece is left.
    pub(crate) fn next_piece(&mut self, sums: &mut [u8], done: &mut usize) -> &[u8] {
        self.piece.clear();
        while self.piece.len() < PIECE_BYTES
            && let Some(draft) = self.drafts.next()
        {
            let crc = push_record(self.piece, draft);
            sums[*done..*done + 4].copy_from_slice(&crc);
            *done += 4;
        }
        if self.drafts.len() == 0 {
            self.piece.resize(self.left, 0);
        }
        self.left -= self.piece.len();
        self.piece
    }
}

/// Appends an encoded record (header and payload) to `bytes`, and returns the record's checksum.
#[inline]
fn push_record(bytes: &mut Vec<u8>, draft: &Draft<'_>) -> [u8; 4] {
    let at = bytes.len();
    bytes.extend_from_slice(&header_of(draft).encode());
    for part in draft.payload {
        bytes.extend_from_slice(part);
    }
    let crc = crc32c(&bytes[at + 4..]).to_le_bytes();
    bytes[at..at + 4].copy_from_slice(&crc);
    crc
}

fn header_of(draft: &Draft<'_>) -> RecordHeader {
    RecordHeader {
        crc: 0,
        payload_len: draft.payload_len() as u32,
        space: draft.space,
        kind: draft.kind,
        term: draft.term,
        index: draft.index,
        time: draft.time,
    }
}

impl Scratch {
    pub(crate) fn encode<'a>(&'a mut self, drafts: &'a [Draft<'a>], measure: &Measure) -> Encoded<'a> {
        if self.bytes.capacity() > SCRATCH_KEEP_BYTES || self.sums.capacity() > SCRATCH_KEEP_BYTES {
            *self = Self::default();
        }
        self.bytes.clear();
        self.sums.clear();
        self.sums.extend_from_slice(&[0; 4]);
        let total = measure.total();
        let short_records = total < drafts.len() as u64 * GATHERED_MIN_RECORD_BYTES;
        let body = if short_records && total > STREAMED_MIN_BYTES {
            self.sums.resize(4 + 4 * drafts.len(), 0);
            let left = total as usize - BATCH_HEADER_BYTES;
            Body::Streamed(Stream { drafts: drafts.iter(), left, piece: &mut self.bytes })
        } else if short_records || total <= MAPPED_MAX_BYTES {
            self.encode_flat(drafts, total as usize);
            Body::Flat(&mut self.bytes)
        } else {
            self.encode_headers(drafts);
            Body::Parts(gather(&self.bytes, drafts, measure.body_len as u32))
        };
        Encoded {
            count: drafts.len() as u32,
            body_len: measure.body_len as u32,
            payload_len: measure.payload_len,
            times: Some(measure.times),
            sums: &mut self.sums,
            body,
        }
    }

    fn encode_flat(&mut self, drafts: &[Draft<'_>], total: usize) {
        let bytes = &mut self.bytes;
        bytes.reserve(total);
        bytes.extend_from_slice(&[0; BATCH_HEADER_BYTES]);
        for draft in drafts {
            let crc = push_record(bytes, draft);
            self.sums.extend_from_slice(&crc);
        }
        bytes.resize(total, 0);
    }

    fn encode_headers(&mut self, drafts: &[Draft<'_>]) {
        for draft in drafts {
            let mut header = header_of(draft).encode();
            let crc = crc32c_parts(&header[4..], draft.payload).to_le_bytes();
            header[..4].copy_from_slice(&crc);
            self.bytes.extend_from_slice(&header);
            self.sums.extend_from_slice(&crc);
        }
    }
}

/// Returns the slices of a large batch (record headers, payloads, padding) in the order in which they are written.
fn gather<'a>(headers: &'a [u8], drafts: &'a [Draft<'a>], body_len: u32) -> Vec<IoSlice<'a>> {
    let pieces: usize = drafts.iter().map(|draft| draft.payload.len() + 1).sum();
    let mut parts = Vec::with_capacity(pieces + 1);
    for (header, draft) in headers.chunks_exact(RECORD_HEADER_BYTES).zip(drafts) {
        parts.push(IoSlice::new(header));
        parts.extend(draft.payload.iter().map(|part| IoSlice::new(part)));
    }
    let pad = padded(BATCH_HEADER_BYTES as u32 + body_len) - BATCH_HEADER_BYTES as u32 - body_len;
    parts.push(IoSlice::new(&PADDING[..pad as usize]));
    parts
}
