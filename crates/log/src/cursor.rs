//! Reads batches from a segment file: a bounded window over the file, verification, and the search for
//! headers.
//!
//! Owns: the verification of a batch. Readers, recovery and the offline tools all use it, so they agree on
//! which batches are valid. Does not own: the reaction to an invalid batch.

use std::{io, sync::Arc};

use bytes::{Bytes, BytesMut};
use thalweg_disk::File;
use thalweg_types::{LogPosition, Lsn, SpaceTime};

use crate::{
    format::{
        BATCH_ALIGN, BATCH_HEADER_BYTES, BatchHeader, Damage, RECORD_HEADER_BYTES, RecordHeader, body_crc, padded,
    },
    record::LogRecord,
    record_kind::RecordKind,
    segment::SegmentKey,
};

/// Number of bytes that one read loads from a segment file; a larger batch is loaded in one piece.
pub(crate) const CHUNK_BYTES: usize = 1024 * 1024;

/// A range of a segment file's bytes, held in memory.
#[derive(Debug)]
pub(crate) struct Window {
    file: Arc<dyn File>,
    /// Position at which the readable part of the segment file ends.
    end: u32,
    chunk: usize,
    start: u32,
    bytes: Bytes,
}

impl Window {
    pub(crate) fn new(file: Arc<dyn File>, end: u32, chunk: usize) -> Self {
        Self { file, end, chunk, start: 0, bytes: Bytes::new() }
    }

    pub(crate) fn end(&self) -> u32 {
        self.end
    }

    /// Extends the readable part of the file to `end`. The bytes in memory stay valid, because bytes of
    /// complete batches never change.
    pub(crate) fn raise_end(&mut self, end: u32) {
        self.end = self.end.max(end);
    }

    /// Loads the bytes `at..at + len` of the file into memory, unless they are loaded already. The range must lie in
    /// the readable part of the file. Reads a whole chunk if the readable part is long enough.
    fn load(&mut self, at: u32, len: usize) -> io::Result<()> {
        let have = self.start..self.start + self.bytes.len() as u32;
        if have.start <= at && u64::from(at) + len as u64 <= u64::from(have.end) {
            return Ok(());
        }
        let room = (self.end - at) as usize;
        debug_assert!(len <= room);
        let len = len.max(self.chunk).min(room);
        let mut buffer = self.take_buffer();
        self.bytes = if buffer.capacity() < len {
            self.file.read_new_at(len, at.into())?.into()
        } else {
            buffer.resize(len, 0);
            self.file.read_exact_at(&mut buffer, at.into())?;
            buffer.freeze()
        };
        self.start = at;
        Ok(())
    }

    /// Returns the window's memory if it is not shared any more. Readers that follow the end of a log load a
    /// few bytes at a time, often, and reuse this memory.
    fn take_buffer(&mut self) -> BytesMut {
        std::mem::take(&mut self.bytes).try_into_mut().unwrap_or_default()
    }

    fn offset(&self, at: u32) -> usize {
        (at - self.start) as usize
    }

    /// Borrows `len` bytes of the file from position `at`; fewer if the readable part of the file ends first.
    pub(crate) fn view(&mut self, at: u32, len: usize) -> io::Result<&[u8]> {
        let len = len.min(self.end.saturating_sub(at) as usize);
        if len == 0 {
            return Ok(&[]);
        }
        self.load(at, len)?;
        let from = self.offset(at);
        Ok(&self.bytes[from..from + len])
    }

    /// Returns `len` bytes of the file from position `at`, like [`view`](Self::view), as a reference-counted slice of
    /// the window's memory.
    pub(crate) fn share(&mut self, at: u32, len: usize) -> io::Result<Bytes> {
        let len = self.view(at, len)?.len();
        if len == 0 {
            return Ok(Bytes::new());
        }
        let from = self.offset(at);
        Ok(self.bytes.slice(from..from + len))
    }
}

/// LSN that the next batch must have, and body checksum of the previous batch, which the next batch must repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub first: Lsn,
    pub chain: u32,
}

/// Position of damage in a segment, and the check that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DamageAt {
    pub offset: u32,
    pub damage: Damage,
}

/// A verified batch: its header, and facts about its records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VerifiedBatch {
    pub header: BatchHeader,
    /// Timestamp of the batch's first record, and highest timestamp of its records; `None` for a batch without records.
    /// Timestamps are times of the clock that all replicas share (space time).
    pub times: Option<(SpaceTime, SpaceTime)>,
    /// True if the batch has records of kind `Truncate`, which void earlier log entries.
    pub truncates: bool,
}

impl VerifiedBatch {
    /// Returns the LSN that the next batch must have, and the previous batch's checksum, which it must repeat.
    pub(crate) fn expects(&self) -> Expected {
        Expected { first: self.header.next(), chain: self.header.body_crc }
    }
}

/// Reads the batch header at position `at` without reading the batch's body.
pub(crate) fn read_header(window: &mut Window, key: SegmentKey, at: u32) -> io::Result<Result<BatchHeader, Damage>> {
    let limit = key.limit.min(window.end());
    let view = window.view(at, BATCH_HEADER_BYTES)?;
    let Ok(bytes) = view.try_into() else {
        return Ok(Err(Damage::new("room for a batch header", BATCH_HEADER_BYTES as u64, view.len() as u64)));
    };
    Ok(BatchHeader::decode(bytes, key.id, at, limit))
}

/// Reads and verifies the whole batch at position `at`: header, order of LSNs, the previous batch's checksum, padding,
/// and every record.
pub(crate) fn read_batch(
    window: &mut Window,
    key: SegmentKey,
    at: u32,
    expected: Option<Expected>,
    sums: &mut Vec<u8>,
) -> io::Result<Result<VerifiedBatch, DamageAt>> {
    let header = match read_header(window, key, at)? {
        Ok(header) => header,
        Err(damage) => return Ok(Err(DamageAt { offset: at, damage })),
    };
    if let Some(expected) = expected {
        if header.first != expected.first {
            let damage = Damage::new("LSN that follows the previous batch", expected.first.0, header.first.0);
            return Ok(Err(DamageAt { offset: at, damage }));
        }
        if header.chain != expected.chain {
            let damage = Damage::new("chain of the previous batch", expected.chain, header.chain);
            return Ok(Err(DamageAt { offset: at, damage }));
        }
    }
    let body_at = at + BATCH_HEADER_BYTES as u32;
    let total = padded(header.body_len);
    let body = window.view(body_at, total as usize)?;
    Ok(check_body(&header, body, sums)
        .map_err(|(within, damage)| DamageAt { offset: if within == 0 { at } else { body_at + within as u32 }, damage })
        .map(|BodySummary { times, truncates }| VerifiedBatch { header, times, truncates }))
}

/// Facts about the records of a verified batch.
struct BodySummary {
    times: Option<(SpaceTime, SpaceTime)>,
    truncates: bool,
}

/// Verifies the records in `body`, which ends with the padding. An error contains the position of the damage
/// in the body.
fn check_body(header: &BatchHeader, body: &[u8], sums: &mut Vec<u8>) -> Result<BodySummary, (usize, Damage)> {
    let len = header.body_len as usize;
    if body.len() < len {
        return Err((0, Damage::new("batch within its segment", len as u64, body.len() as u64)));
    }
    sums.clear();
    sums.extend_from_slice(&[0; 4]);
    let mut at = 0;
    let mut times: Option<(SpaceTime, SpaceTime)> = None;
    let mut truncates = false;
    for _ in 0..header.count {
        let record = RecordHeader::decode(&body[at..len]).map_err(|damage| (at, damage))?;
        sums.extend_from_slice(&record.crc.to_le_bytes());
        times = Some(times.map_or((record.time, record.time), |(first, last)| (first, last.max(record.time))));
        truncates |= record.kind == RecordKind::Truncate;
        at += RECORD_HEADER_BYTES + record.payload_len as usize;
    }
    if at != len {
        return Err((0, Damage::new("batch filled by its records", len as u64, at as u64)));
    }
    if let Some(stray) = body[len..].iter().find(|byte| **byte != 0) {
        return Err((len, Damage::new("zero after the last record", 0_u64, *stray)));
    }
    let crc = body_crc(sums, header.chain);
    if crc != header.body_crc {
        return Err((0, Damage::new("batch body checksum", crc, header.body_crc)));
    }
    Ok(BodySummary { times, truncates })
}

/// Iterates over the records of a batch. [`read_batch`] has verified the batch before.
#[derive(Debug)]
pub(crate) struct BatchRecords {
    body: Bytes,
    key: SegmentKey,
    /// Byte position of `body` in the segment file.
    body_at: u32,
    at: usize,
    lsn: Lsn,
}

impl BatchRecords {
    pub(crate) fn new(window: &mut Window, key: SegmentKey, at: u32, header: &BatchHeader) -> io::Result<Self> {
        let body_at = at + BATCH_HEADER_BYTES as u32;
        let body = window.share(body_at, header.body_len as usize)?;
        Ok(Self { body, key, body_at, at: 0, lsn: header.first })
    }
}

impl Iterator for BatchRecords {
    type Item = LogRecord;

    fn next(&mut self) -> Option<LogRecord> {
        if self.at >= self.body.len() {
            return None;
        }
        let header = RecordHeader::decode_verified(&self.body[self.at..])?;
        let from = self.at + RECORD_HEADER_BYTES;
        let to = from + header.payload_len as usize;
        let record = LogRecord {
            lsn: self.lsn,
            space: header.space,
            kind: header.kind,
            term: header.term,
            index: header.index,
            time: header.time,
            payload: self.body.slice(from..to),
            payload_at: LogPosition { generation: self.key.generation, offset: self.body_at + from as u32 },
        };
        self.at = to;
        self.lsn = self.lsn.next();
        Some(record)
    }
}

/// Returns the first valid batch header at or after position `from`. A header's checksum covers the segment's
/// id and the header's position, so payload bytes are never mistaken for a header.
pub(crate) fn find_header(window: &mut Window, key: SegmentKey, from: u32) -> io::Result<Option<(u32, BatchHeader)>> {
    let tag = key.id.tag().to_le_bytes();
    let end = window.end().min(key.limit);
    let mut at = from.next_multiple_of(BATCH_ALIGN);
    while at < end {
        let len = CHUNK_BYTES.min((end - at) as usize);
        let view = window.view(at, len)?;
        let steps = view.chunks(BATCH_ALIGN as usize);
        let hits: Vec<u32> = steps
            .enumerate()
            .filter(|(_, bytes)| bytes.starts_with(&tag))
            .map(|(step, _)| at + step as u32 * BATCH_ALIGN)
            .collect();
        for hit in hits {
            if let Ok(header) = read_header(window, key, hit)? {
                return Ok(Some((hit, header)));
            }
        }
        at += len as u32;
    }
    Ok(None)
}
