//! The public face of the log.
#![allow(clippy::todo, missing_docs, unused_variables)]

use std::{future::Future, io::IoSlice, sync::Arc, time::Duration};

use bytes::Bytes;
use thalweg_disk::Disk;
use thalweg_types::{BlobRef, Clock, Durability, Generation, Index, LogPosition, Lsn, SpaceId, SpaceTime, Term};

/// What a record is, to those who read the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordKind {
    /// Commands of a space; has term and index.
    Entry = 1,
    /// A space's membership; has term and index.
    Membership = 2,
    /// A space's vote.
    Vote = 3,
    /// Bytes copied forward on this node; has no term or index.
    Move = 4,
    /// A suffix of a space's entries is void (Raft only).
    Truncate = 5,
    /// A space's entries up to an index are no longer needed.
    Purged = 6,
    /// An entry of a space that carries nothing (a new leader's blank); has term and index.
    Blank = 7,
}

/// A record to append. The payload is given in parts, which are written one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    pub space: SpaceId,
    pub kind: RecordKind,
    pub term: Term,
    pub index: Index,
    pub time: SpaceTime,
    pub payload: &'a [IoSlice<'a>],
}

/// Why something is appended: decides what happens when the disk is nearly full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Purpose {
    /// New data: refused below the reserve.
    #[default]
    Data,
    /// Deletes, trims, moves: go on from the space kept back for them.
    Reclaim,
}

/// Where a batch of records went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// LSN of the first record.
    pub first: Lsn,
    /// Exclusive bound: LSN after the last record.
    pub next: Lsn,
    /// Where the first record's payload begins.
    pub payload_at: LogPosition,
}

/// A record as read back; its checksum has been verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    pub lsn: Lsn,
    pub space: SpaceId,
    pub kind: RecordKind,
    pub term: Term,
    pub index: Index,
    pub time: SpaceTime,
    pub payload: Bytes,
    pub payload_at: LogPosition,
}

#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Size of a segment file. 64 MiB by default.
    pub segment_bytes: u32,
    /// Prepared segments kept ready. 2 by default: costs `2 * segment_bytes` of disk.
    pub spare_segments: u32,
    /// Longest time between an `interval` write and its fsync. 1 s by default.
    pub sync_interval: Duration,
    /// Free disk bytes below which appends are refused with `DiskFull`.
    pub reserve_bytes: u64,
    /// History floor: entries younger than `history_age` and within `history_bytes` of the end are kept.
    pub history_bytes: u64,
    pub history_age: Duration,
    /// Group-commit delay knob; zero by default.
    pub commit_delay: Duration,
    pub repair: Repair,
}

impl Default for LogOptions {
    fn default() -> Self {
        todo!()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Repair {
    #[default]
    Refuse,
    CutAtCorruption,
}

/// What open found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Bytes that were cut from the end: torn, never attested.
    pub cut_bytes: u64,
    /// Exclusive bound of what the log attested as durable; records in `attested..end` were the last, undecided group.
    pub attested: Lsn,
    pub end: Lsn,
    pub segments: u32,
    /// Whether the log was closed cleanly.
    pub clean: bool,
    pub repaired: Option<String>,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    #[error("placeholder")]
    Placeholder,
}
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    #[error("placeholder")]
    Placeholder,
}
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    /// The segment has been freed: look the pointer up again.
    #[error("segment {generation} is gone")]
    Gone { generation: Generation },
    #[error("placeholder")]
    Placeholder,
}

/// A handle to the node's log; cheap to clone.
#[derive(Clone, Debug)]
pub struct Log {
    inner: Arc<()>,
}

/// A record's place for `Log::read_record`-like random access is not offered; use `BlobRef`s.
impl Log {
    /// Opens or creates `dir` (e.g. `log`) on the disk. `seed` feeds segment ids.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &str,
        options: LogOptions,
        clock: Arc<dyn Clock>,
        seed: u64,
    ) -> Result<(Self, Recovery), OpenError> {
        todo!()
    }
    /// Appends records as one batch and returns once `level` is reached. `None` behaves as `Os` here (what
    /// "accepted" means is its caller's business). Group commit: whoever finds the writer role free takes it.
    pub fn append(&self, drafts: &[Draft<'_>], level: Durability, purpose: Purpose) -> Result<Appended, AppendError> {
        todo!()
    }
    /// Exclusive bound of what is on disk.
    pub fn durable(&self) -> Lsn {
        todo!()
    }
    /// Exclusive bound of what is written.
    pub fn end(&self) -> Lsn {
        todo!()
    }
    /// First LSN that is still readable in order.
    pub fn start(&self) -> Lsn {
        todo!()
    }
    /// Makes everything written before the call durable; returns the new watermark.
    pub fn sync(&self) -> Result<Lsn, AppendError> {
        todo!()
    }
    /// Blocks until everything below `lsn` is durable (someone else's sync, or own one for `sync_through`).
    pub fn wait_durable(&self, lsn: Lsn) -> Result<(), AppendError> {
        todo!()
    }
    pub fn sync_through(&self, lsn: Lsn) -> Result<(), AppendError> {
        todo!()
    }
    pub fn durable_at(&self, lsn: Lsn) -> impl Future<Output = Result<(), AppendError>> + Send + 'static {
        let r: Result<(), AppendError> = todo!();
        async move { r }
    }
    /// Reads bytes by reference and verifies their checksum.
    pub fn read_blob(&self, blob: &BlobRef) -> Result<Bytes, ReadError> {
        todo!()
    }
    /// Iterates over records from `lsn` to the end as of the call.
    pub fn records_from(&self, lsn: Lsn) -> Result<Records, ReadError> {
        todo!()
    }
    /// Iterates over the records of one segment that can be read.
    pub fn segment_records(&self, generation: Generation) -> Result<Records, ReadError> {
        todo!()
    }
    /// Live segments, oldest first.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        todo!()
    }
    /// Everything below `lsn` is persisted in the state (its user's promise). Segments wholly below it (and
    /// outside the history floor) become candidates for `free`.
    pub fn release(&self, lsn: Lsn) {
        todo!()
    }
    /// Sealed segments that are wholly released and below the history floor at `now`: may be freed when nothing points into them.
    pub fn freeable(&self, now: SpaceTime) -> Vec<SegmentInfo> {
        todo!()
    }
    /// Frees a segment for recycling. Readers that hold it go on; later reads answer `Gone`.
    pub fn free(&self, generation: Generation) -> Result<(), AppendError> {
        todo!()
    }
    pub fn stats(&self) -> LogStats {
        todo!()
    }
    /// Why the log refuses appends, if it does.
    pub fn failure(&self) -> Option<String> {
        todo!()
    }
    /// Syncs, attests, stops the background threads. Further appends fail.
    pub fn close(&self) -> Result<(), AppendError> {
        todo!()
    }
}

#[derive(Debug)]
pub struct Records;
impl Iterator for Records {
    type Item = Result<LogRecord, ReadError>;
    fn next(&mut self) -> Option<Self::Item> {
        todo!()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    pub generation: Generation,
    pub file: String,
    pub first: Lsn,
    /// Exclusive.
    pub next: Lsn,
    pub first_time: SpaceTime,
    pub last_time: SpaceTime,
    pub bytes: u32,
    pub active: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    pub appends: u64,
    pub records: u64,
    pub bytes: u64,
    pub payload_bytes: u64,
    pub syncs: u64,
    pub sync_micros: u64,
    pub batches_per_sync_max: u64,
    pub segments: u64,
    pub spare_segments: u64,
    pub free_disk_bytes: u64,
    pub recycled: u64,
    pub created: u64,
    pub waiting_writers: u64,
    pub zeroed_bytes: u64,
}
