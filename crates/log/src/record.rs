//! Records as callers pass them to the log and as readers get them back.

use std::{io::IoSlice, time::Duration};

use bytes::Bytes;
use thalweg_types::{Index, LogPosition, Lsn, SpaceId, SpaceTime, Term};

use crate::record_kind::RecordKind;

/// A record to append to the log. The parts of its payload are written one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// Space of the record: the replicated state machine (one Raft group) to which the record belongs.
    pub space: SpaceId,
    /// Kind of the record.
    pub kind: RecordKind,
    /// Raft term of the record, or zero if its kind has none.
    pub term: Term,
    /// Index of the record in the replicated log of its Raft group; zero if records of this kind have no index.
    pub index: Index,
    /// Timestamp of the record in microseconds, by the clock that all replicas share (space time).
    pub time: SpaceTime,
    /// Payload of the record, as slices that the log writes one after the other.
    pub payload: &'a [IoSlice<'a>],
}

impl Draft<'_> {
    /// Length of the payload in bytes.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.payload.iter().map(|part| part.len()).sum()
    }
}

/// A record of kind [`Truncate`](RecordKind::Truncate). It voids those log entries of its Raft group that come before
/// it in the log and have its index or a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// Id of the Raft group (space) whose log entries the truncation voids.
    pub space: SpaceId,
    /// LSN of the truncation record, its position in the log.
    pub lsn: Lsn,
    /// Raft index of the first log entry that the truncation voids.
    pub index: Index,
}

/// Purpose of an append. On a nearly full disk, the log accepts only some purposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Purpose {
    /// The append adds new data: rejected if the disk has less free space than the reserve that the log's options
    /// require.
    #[default]
    Data,
    /// The append is a delete, trim or move, which frees space later: accepted in the disk space reserved for
    /// such appends.
    Reclaim,
}

/// Positions in the log of a batch that was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// LSN of the batch's first record.
    pub first: Lsn,
    /// LSN after the batch's last record (an exclusive bound).
    pub next: Lsn,
    /// Position of the payload of the batch's first record.
    pub payload_at: LogPosition,
    /// Time for which the append waited until the batch was on disk; zero at levels that do not wait.
    pub waited: Duration,
}

/// A record read from the log, with a verified checksum.
///
/// The payload shares the buffer into which it was read (about 1 MiB). A caller that keeps a payload for long
/// should copy it, because a `Bytes` keeps the whole buffer in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// LSN of the record, its position in the log.
    pub lsn: Lsn,
    /// Space of the record: the replicated state machine (one Raft group) to which the record belongs.
    pub space: SpaceId,
    /// Kind of the record.
    pub kind: RecordKind,
    /// Raft term of the record, or zero if its kind has none.
    pub term: Term,
    /// Index of the record in the replicated log of its Raft group; zero if records of this kind have no index.
    pub index: Index,
    /// Timestamp of the record in microseconds, by the clock that all replicas share (space time).
    pub time: SpaceTime,
    /// Payload of the record.
    pub payload: Bytes,
    /// Position of the record's payload in the log.
    pub payload_at: LogPosition,
}
