//! Options of a log, and the reports of open and `stats`.

use std::time::Duration;

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
    /// Number of prepared segments kept ready, at least 2. The last one is reserved for
    /// [`crate::Purpose::Reclaim`]. Costs `spare_segments * segment_bytes` of disk. In addition, as many
    /// recycled segments are kept as were used in the last minute, up to 64 or 2 GiB.
    pub spare_segments: u32,
    /// Maximum time between an `interval` write and its fsync. A power loss can discard writes of this time.
    pub sync_interval: Duration,
    /// Free disk bytes below which the log rejects data with `DiskFull`.
    pub reserve_bytes: u64,
    /// History floor: segments within this many bytes of the end are kept, if they are also within
    /// `history_age`.
    pub history_bytes: u64,
    /// History floor: segments with a record younger than this are kept, if they are also within
    /// `history_bytes`.
    pub history_age: Duration,
    /// Time that the leader of a sync waits for further callers. Adds to the latency of every durable append.
    /// Zero by default, because groups already form while the previous sync runs.
    pub commit_delay: Duration,
    /// Delay of the *idle* batch, which is written after a sync that leaves nothing to do, unless another
    /// batch attests the sync before. With zero it is written immediately, which costs each lone durable
    /// append a write of 3 µs in addition to its fsync. If a process is killed within this time, its last
    /// group stays undecided, as after a power loss.
    pub idle_mark_after: Duration,
    /// Reaction to corruption at open.
    pub repair: Repair,
    /// LSN of the first record of a new log, below 2^62. Use it for a log that continues the numbering of a
    /// lost log. Ignored for an existing log.
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

/// Reaction to corruption at open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Repair {
    /// Returns an error and leaves the log unchanged.
    #[default]
    Refuse,
    /// Reads the whole log, cuts it at the first corrupt byte, and discards all records after it.
    CutAtCorruption,
}

/// Report of what open found and changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Bytes cut from the end: torn and never attested, or discarded by a repair. Counted up to the end of
    /// the last batch header found there.
    pub cut_bytes: u64,
    /// Exclusive bound of the records attested as durable. Records in `attested..end` are the last, undecided
    /// group: they are kept, but may not have been acknowledged.
    pub attested: Lsn,
    /// Exclusive bound of the records.
    pub end: Lsn,
    /// Number of live segments.
    pub segments: u32,
    /// True if the log was closed cleanly.
    pub clean: bool,
    /// Description of discarded data, if a repair was needed.
    pub repaired: Option<String>,
}

/// Description of a live segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Generation of the segment.
    pub generation: Generation,
    /// Path of the file, relative to the disk's root.
    pub file: String,
    /// LSN of the first record.
    pub first: Lsn,
    /// Exclusive bound of the records.
    pub next: Lsn,
    /// Space time of the first record.
    pub first_time: SpaceTime,
    /// Highest space time of a record.
    pub last_time: SpaceTime,
    /// Total bytes of the segment's batches.
    pub bytes: u32,
    /// True if the segment is still being written.
    pub active: bool,
}

/// Counters since the log was opened, and current gauges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Number of record batches appended.
    pub appends: u64,
    /// Number of records appended.
    pub records: u64,
    /// Bytes written by appends, with framing and markers.
    pub bytes: u64,
    /// Payload bytes of appended records.
    pub payload_bytes: u64,
    /// Number of syncs; a sync can cover several files.
    pub syncs: u64,
    /// Total microseconds spent in syncs.
    pub sync_micros: u64,
    /// Maximum number of batches that shared one sync.
    pub batches_per_sync_max: u64,
    /// Histogram of the microseconds of each fsync.
    pub sync_latency: Log2Histogram,
    /// Histogram of the batches that each fsync made durable.
    pub batches_per_sync: Log2Histogram,
    /// Number of live segments.
    pub segments: u64,
    /// Number of prepared segments.
    pub spare_segments: u64,
    /// Free bytes of the disk.
    pub free_disk_bytes: u64,
    /// Number of segments recycled.
    pub recycled: u64,
    /// Number of segments created.
    pub created: u64,
    /// Number of callers that currently wait for a sync.
    pub waiting_writers: u64,
    /// Bytes of zeroes written into new segments.
    pub zeroed_bytes: u64,
}
