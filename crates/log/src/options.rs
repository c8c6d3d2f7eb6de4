//! Options of a log, the report that open returns, and the counters that `stats` returns.

use std::time::Duration;

use thalweg_disk::PacerStats;
use thalweg_types::{Generation, Log2Histogram, Lsn, SpaceTime};

use crate::{
    errors::OpenError,
    format::{MAX_NUMBER, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES},
};

/// Options of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Size of a segment file in bytes: 16 KiB to 1 GiB, a multiple of 4096. A batch must fit in one segment.
    pub segment_bytes: u32,
    /// Number of empty segment files kept ready for the writer, at least 2. The last of them is reserved for
    /// [`crate::Purpose::Reclaim`]. The files take `spare_segments * segment_bytes` bytes of disk. In addition, the log
    /// keeps as many recycled segments as the writer used in the last minute, up to 64 segments or 2 GiB. The log keeps
    /// no empty files while nothing is appended (see [`Log::rest`](crate::Log::rest)).
    pub spare_segments: u32,
    /// Maximum time between a write of durability level `interval` and its fsync. A power loss can discard
    /// the writes of this time.
    pub sync_interval: Duration,
    /// Free disk bytes below which the log rejects data with `DiskFull`.
    pub reserve_bytes: u64,
    /// Maximum history in bytes: segments within this many bytes of the log's end are kept although the state no longer
    /// needs them, if they are also young enough for `history_age`.
    pub history_bytes: u64,
    /// Maximum age of history: segments with a record younger than this are kept although the state no longer needs
    /// them, if they are also within `history_bytes` of the log's end.
    pub history_age: Duration,
    /// Time that the leader of a sync waits for further callers before it starts the fsync. Adds to the
    /// latency of every durable append. Zero by default, because callers already form groups while the
    /// previous sync runs.
    pub commit_delay: Duration,
    /// Delay after a sync before the log writes an *idle* batch, which attests that all records are durable. If another
    /// batch is written within the delay, that batch attests the sync instead. With zero the idle batch is written
    /// immediately, which costs each lone durable append a write of 3 µs in addition to its fsync. If the process is
    /// killed within this time, the next open cannot tell if the last records were synced, as after a power loss.
    pub idle_mark_after: Duration,
    /// Choice of reaction to corruption that is found when the log is opened.
    pub repair: Repair,
    /// LSN of the first record of a new log, below 2^62. Set it for a log that continues the numbering of a
    /// lost log. Ignored if the log already exists.
    pub first_lsn: Lsn,
}

impl LogOptions {
    /// Default value of every option.
    pub const DEFAULTS: Self = Self {
        segment_bytes: 64 * 1024 * 1024,
        spare_segments: 2,
        sync_interval: Duration::from_secs(1),
        reserve_bytes: 256 * 1024 * 1024,
        history_bytes: 1024 * 1024 * 1024,
        history_age: Duration::from_secs(3600),
        commit_delay: Duration::ZERO,
        idle_mark_after: Duration::from_millis(10),
        repair: Repair::Refuse,
        first_lsn: Lsn::ZERO,
    };

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let sizes = MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES;
        if !sizes.contains(&self.segment_bytes) || !self.segment_bytes.is_multiple_of(4096) {
            return Err(OpenError::Option {
                option: "segment_bytes",
                got: self.segment_bytes.into(),
                expected: format!("a multiple of 4096 from {} to {}", sizes.start(), sizes.end()),
            });
        }
        if !(2..=64).contains(&self.spare_segments) {
            return Err(OpenError::Option {
                option: "spare_segments",
                got: self.spare_segments.into(),
                expected: "2 to 64".to_owned(),
            });
        }
        if self.first_lsn.0 >= MAX_NUMBER {
            return Err(OpenError::Option {
                option: "first_lsn",
                got: self.first_lsn.0,
                expected: "below 2^62".to_owned(),
            });
        }
        Ok(())
    }
}

impl Default for LogOptions {
    fn default() -> Self {
        Self::DEFAULTS
    }
}

/// Choice of reaction to corruption that is found when the log is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Repair {
    /// Returns an error and leaves the log unchanged.
    #[default]
    Refuse,
    /// Reads the whole log, cuts it at the first corrupt byte, and discards all records after it.
    CutAtCorruption,
}

/// Report of the state in which a log was found when it was opened, and of the changes that the open made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Bytes that open cut from the end of the log: torn and never attested as durable, or discarded by a repair.
    /// Counted up to the end of the last batch with a valid header.
    pub cut_bytes: u64,
    /// LSN below which all records were attested as durable. Open keeps the records in `attested..end`, but it cannot
    /// tell if they were synced. Their writers may not have received an acknowledgement.
    pub attested: Lsn,
    /// LSN after the last record that open kept.
    pub end: Lsn,
    /// Number of live segments (those that contain the log).
    pub segments: u32,
    /// True if the last run closed the log cleanly.
    pub clean: bool,
    /// Description of the data that a repair discarded; `None` without a repair.
    pub repaired: Option<String>,
}

/// Description of a segment that contains a part of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Generation (segment number) of the segment.
    pub generation: Generation,
    /// Path of the segment file, relative to the disk's root.
    pub file: String,
    /// LSN of the segment's first record.
    pub first: Lsn,
    /// LSN after the segment's last record.
    pub next: Lsn,
    /// Timestamp of the segment's first record, by the clock that all replicas share (space time).
    pub first_time: SpaceTime,
    /// Highest timestamp of the segment's records, by the clock that all replicas share (space time).
    pub last_time: SpaceTime,
    /// Total bytes of the segment's batches.
    pub bytes: u32,
    /// True if the segment is active: the writer still appends to it.
    pub active: bool,
}

/// Counters of a log's events since it was opened, and current values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Number of batches with records that were appended.
    pub appends: u64,
    /// Number of records that were appended.
    pub records: u64,
    /// Bytes written by appends, including headers, padding and batches without records, which only attest durability.
    pub bytes: u64,
    /// Payload bytes of appended records.
    pub payload_bytes: u64,
    /// Number of syncs. A sync makes all written records durable; it calls fsync on each segment file that has unsynced
    /// data.
    pub syncs: u64,
    /// Total microseconds spent in syncs.
    pub sync_micros: u64,
    /// Maximum number of batches that shared one sync.
    pub batches_per_sync_max: u64,
    /// Histogram of the duration of each sync, in microseconds.
    pub sync_latency: Log2Histogram,
    /// Histogram of the number of batches that each sync made durable.
    pub batches_per_sync: Log2Histogram,
    /// Number of live segments (those that contain the log).
    pub segments: u64,
    /// Number of empty segment files that are ready for the writer.
    pub spare_segments: u64,
    /// Free bytes on the log's disk.
    pub free_disk_bytes: u64,
    /// Number of freed segments that were recycled.
    pub recycled: u64,
    /// Number of segment files created.
    pub created: u64,
    /// Number of callers that currently wait for a sync.
    pub waiting_writers: u64,
    /// Bytes of zeroes written into new segments.
    pub zeroed_bytes: u64,
    /// Bytes of new segments that were reserved on the disk but not filled with zeroes, because an append waited for
    /// the segment.
    pub reserved_bytes: u64,
    /// Number of times that an append waited for its next segment: none was prepared, or too many earlier segments were
    /// not synced yet.
    pub segment_waits: u64,
    /// Total microseconds that appends waited for their next segment.
    pub segment_wait_micros: u64,
    /// Counters of the [pacer](crate::Log::pacer), which makes background work pause. Other parts of the program can
    /// share the pacer; then the counters include their work.
    pub pacer: PacerStats,
}
