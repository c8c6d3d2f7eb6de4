//! Records as passed to the log and as read back.

use std::io::IoSlice;

use bytes::Bytes;
use thalweg_types::{Index, LogPosition, Lsn, SpaceId, SpaceTime, Term};

use crate::{format::RECORD_HEADER_BYTES, record_kind::RecordKind};

/// A record to append. The parts of its payload are written one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// Space of the record.
    pub space: SpaceId,
    /// Kind of the record.
    pub kind: RecordKind,
    /// Term of the record, or zero.
    pub term: Term,
    /// Index of the record, or zero.
    pub index: Index,
    /// Space time of the record.
    pub time: SpaceTime,
    /// Payload of the record, in parts.
    pub payload: &'a [IoSlice<'a>],
}

impl Draft<'_> {
    /// Length of the payload in bytes.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.payload.iter().map(|part| part.len()).sum()
    }
}

/// A record of kind [`Truncate`](RecordKind::Truncate). It voids entries of its space that come before it in
/// the log and have its index or a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// Space of the record.
    pub space: SpaceId,
    /// Position of the record in the log.
    pub lsn: Lsn,
    /// First index that the truncation voids.
    pub index: Index,
}

/// Purpose of an append, which determines the behaviour on a nearly full disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Purpose {
    /// New data: rejected below the reserve.
    #[default]
    Data,
    /// Deletes, trims, moves: continue in the space reserved for them.
    Reclaim,
}

/// Positions of an appended batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// LSN of the first record.
    pub first: Lsn,
    /// Exclusive bound: LSN after the last record.
    pub next: Lsn,
    /// Position of the first record's payload.
    pub payload_at: LogPosition,
}

impl Appended {
    /// Positions of the payloads, for the drafts that were appended.
    pub fn payload_positions<'a>(&self, drafts: &'a [Draft<'_>]) -> impl Iterator<Item = LogPosition> + use<'a> {
        let mut at = self.payload_at;
        drafts.iter().map(move |draft| {
            let here = at;
            // A batch fits in a segment, whose offsets fit in 31 bits.
            at.offset += (draft.payload_len() + RECORD_HEADER_BYTES) as u32;
            here
        })
    }
}

/// A record read from the log, with a verified checksum.
///
/// The payload shares the buffer into which it was read (about 1 MiB). Copy a payload that lives long,
/// instead of keeping the `Bytes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// LSN of the record, its position in the log.
    pub lsn: Lsn,
    /// Space of the record.
    pub space: SpaceId,
    /// Kind of the record.
    pub kind: RecordKind,
    /// Term of the record, or zero.
    pub term: Term,
    /// Index of the record, or zero.
    pub index: Index,
    /// Space time of the record.
    pub time: SpaceTime,
    /// Payload of the record.
    pub payload: Bytes,
    /// Position of the payload in the log.
    pub payload_at: LogPosition,
}
