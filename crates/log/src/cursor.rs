//! Reads batches from a segment file: a bounded window over the file, verification, and the search for
//! headers.
//!
//! Owns: the verification of a batch. Readers, recovery and the offline tools all use it, so they agree on
//! which batches are valid. Does not own: the reaction to an invalid one.

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

/// Bytes of one read; a larger batch is read in one piece.
pub(crate) const CHUNK_BYTES: usize = 1024 * 1024;

/// A part of a file in memory.
#[derive(Debug)]
pub(crate) struct Window {
    file: Arc<dyn File>,
    /// Exclusive end of the readable part of the file.
    end: u32,
    chunk: usize,
    start: u32,
    bytes: Bytes,
}

impl Window {
    pub fn new(file: Arc<dyn File>, end: u32, chunk: usize) -> Self {
        Self { file, end, chunk, start: 0, bytes: Bytes::new() }
    }

    pub fn end(&self) -> u32 {
        self.end
    }

    /// Extends the readable part of the file. The bytes in memory stay valid, because bytes below an end
    /// never change.
    pub fn raise_end(&mut self, end: u32) {
        self.end = self.end.max(end);
    }

    /// Loads `at..at + len` into memory, if the range is before the end.
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
    /// little at a time, often, and reuse it.
    fn take_buffer(&mut self) -> BytesMut {
        std::mem::take(&mut self.bytes).try_into_mut().unwrap_or_default()
    }

    fn offset(&self, at: u32) -> usize {
        (at - self.start) as usize
    }

    /// Borrows `len` bytes from `at`; fewer if the end comes first.
    pub fn view(&mut self, at: u32, len: usize) -> io::Result<&[u8]> {
        let len = len.min(self.end.saturating_sub(at) as usize);
        if len == 0 {
            return Ok(&[]);
        }
        self.load(at, len)?;
        let from = self.offset(at);
        Ok(&self.bytes[from..from + len])
    }

    /// Returns the bytes of [`view`](Self::view), sharing the window's memory.
    pub fn share(&mut self, at: u32, len: usize) -> io::Result<Bytes> {
        let len = self.view(at, len)?.len();
        if len == 0 {
            return Ok(Bytes::new());
        }
        let from = self.offset(at);
        Ok(self.bytes.slice(from..from + len))
    }
}

/// First LSN and chain that the next batch must have after the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub first: Lsn,
    pub chain: u32,
}

/// Position and kind of damage in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadAt {
    pub offset: u32,
    pub damage: Damage,
}

/// Header and summary of a verified batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked {
    pub header: BatchHeader,
    /// Space time of the first record and highest space time; `None` without records.
    pub times: Option<(SpaceTime, SpaceTime)>,
    /// True if the batch has records of kind `Truncate`.
    pub truncates: bool,
}

impl Checked {
    /// Values that the next batch must have.
    pub fn expects(&self) -> Expected {
        Expected { first: self.header.next(), chain: self.header.body_crc }
    }
}

/// Reads the header at `at`, without reading the body.
pub(crate) fn read_header(window: &mut Window, key: SegmentKey, at: u32) -> io::Result<Result<BatchHeader, Damage>> {
    let limit = key.limit.min(window.end());
    let view = window.view(at, BATCH_HEADER_BYTES)?;
    let Ok(bytes) = view.try_into() else {
        return Ok(Err(Damage::new("room for a batch header", BATCH_HEADER_BYTES as u64, view.len() as u64)));
    };
    Ok(BatchHeader::decode(bytes, key.id, at, limit))
}

/// Reads and verifies the whole batch at `at`: header, order, chain, padding, every record.
pub(crate) fn read_batch(
    window: &mut Window,
    key: SegmentKey,
    at: u32,
    expected: Option<Expected>,
    sums: &mut Vec<u8>,
) -> io::Result<Result<Checked, BadAt>> {
    let header = match read_header(window, key, at)? {
        Ok(header) => header,
        Err(damage) => return Ok(Err(BadAt { offset: at, damage })),
    };
    if let Some(expected) = expected {
        if header.first != expected.first {
            let damage = Damage::new("LSN that follows the previous batch", expected.first.0, header.first.0);
            return Ok(Err(BadAt { offset: at, damage }));
        }
        if header.chain != expected.chain {
            let damage = Damage::new("chain of the previous batch", expected.chain, header.chain);
            return Ok(Err(BadAt { offset: at, damage }));
        }
    }
    let body_at = at + BATCH_HEADER_BYTES as u32;
    let total = padded(header.body_len);
    let body = window.view(body_at, total as usize)?;
    Ok(check_body(&header, body, sums)
        .map_err(|(within, damage)| BadAt { offset: if within == 0 { at } else { body_at + within as u32 }, damage })
        .map(|Body { times, truncates }| Checked { header, times, truncates }))
}

/// Summary of the records of a verified batch.
struct Body {
    times: Option<(SpaceTime, SpaceTime)>,
    truncates: bool,
}

/// Verifies the records in `body`, which ends with the padding. The error contains its position in the body.
fn check_body(header: &BatchHeader, body: &[u8], sums: &mut Vec<u8>) -> Result<Body, (usize, Damage)> {
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
    Ok(Body { times, truncates })
}

/// Iterates over the records of a batch that [`read_batch`] has verified.
#[derive(Debug)]
pub(crate) struct BatchRecords {
    body: Bytes,
    key: SegmentKey,
    /// Position of `body` in the segment.
    body_at: u32,
    at: usize,
    lsn: Lsn,
}

impl BatchRecords {
    pub fn new(window: &mut Window, key: SegmentKey, at: u32, header: &BatchHeader) -> io::Result<Self> {
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

/// Returns the first valid header at or after `from`. The header's checksum covers the segment's id and the
/// header's position, so payload bytes are never mistaken for a header.
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
