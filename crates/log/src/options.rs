//! Knobs, and what open and `stats` tell.

use std::time::Duration;

use thalweg_types::{Generation, Log2Histogram, Lsn, SpaceTime};

use crate::{
    errors::OpenError,
    format::{MAX_NUMBER, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES},
};

/// How a log is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Size of a segment file: 16 KiB to 1 GiB, a multiple of 4096. A batch must fit in one.
    pub segment_bytes: u32,
    /// Prepared segments kept ready, at least 2, of which the last is kept back for [`crate::Purpose::Reclaim`].
    /// Costs `spare_segments * segment_bytes` of disk; of recycled ones as many more as were used in the last minute, up to
    /// 64 or 2 GiB.
    pub spare_segments: u32,
    /// Longest time between an `interval` write and its fsync: what a power loss may take of such writes.
    pub sync_interval: Duration,
    /// Free disk bytes below which data is refused with `DiskFull`.
    pub reserve_bytes: u64,
    /// History floor: segments within this many bytes of the end are kept, if they are also young enough.
    pub history_bytes: u64,
    /// History floor: segments with a record younger than this are kept, if they are also near enough to the end.
    pub history_age: Duration,
    /// How long whoever syncs waits for company first: adds to every durable append. Zero by default, since
    /// a group forms by itself while the previous sync runs.
    pub commit_delay: Duration,
    /// How long after a sync that leaves nothing to do its *idle* batch is written, if no other batch attests it
    /// before. Zero: at once, which costs each lone durable append a write of 3 µs beside its fsync. A process that
    /// is killed within this time leaves its last group undecided, as a power loss does.
    pub idle_mark_after: Duration,
    /// What to do about corruption at open.
    pub repair: Repair,
    /// LSN of the first record of a new log, below 2^62: one that goes on from where a lost log had got to.
    /// Means nothing to a log that exists.
    pub first_lsn: Lsn,
}

impl LogOptions {
    /// The default of every knob.
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

/// What to do about corruption at open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Repair {
    /// Refuse to open.
    #[default]
    Refuse,
    /// Read all of the log, cut it at the first corrupt byte and lose what follows.
    CutAtCorruption,
}

/// What open found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Bytes that were cut from the end: torn, never attested (or given up by a repair). Counted up to the end
    /// of the last batch header found there.
    pub cut_bytes: u64,
    /// Exclusive bound of what the log attested as durable; records in `attested..end` were the last, undecided
    /// group: they are kept, whether they were acknowledged is unknown.
    pub attested: Lsn,
    /// Exclusive bound of the records.
    pub end: Lsn,
    /// Live segments.
    pub segments: u32,
    /// Whether the log was closed cleanly.
    pub clean: bool,
    /// What a repair gave up, if one was needed.
    pub repaired: Option<String>,
}

/// A live segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its generation.
    pub generation: Generation,
    /// Its file, relative to the disk's root.
    pub file: String,
    /// LSN of its first record.
    pub first: Lsn,
    /// Exclusive.
    pub next: Lsn,
    /// Space time of its first record.
    pub first_time: SpaceTime,
    /// Highest space time of a record.
    pub last_time: SpaceTime,
    /// Bytes of its batches.
    pub bytes: u32,
    /// Whether it is still written to.
    pub active: bool,
}

/// Counters since open, and gauges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Batches of records appended.
    pub appends: u64,
    /// Records appended.
    pub records: u64,
    /// Bytes written by appends, with framing and markers.
    pub bytes: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
    /// Syncs done (a sync may take several files).
    pub syncs: u64,
    /// Time spent in them.
    pub sync_micros: u64,
    /// Most batches that shared one sync.
    pub batches_per_sync_max: u64,
    /// Microseconds that each fsync took.
    pub sync_latency: Log2Histogram,
    /// Batches that each fsync made durable.
    pub batches_per_sync: Log2Histogram,
    /// Live segments.
    pub segments: u64,
    /// Prepared segments.
    pub spare_segments: u64,
    /// Free bytes of the disk.
    pub free_disk_bytes: u64,
    /// Segments recycled.
    pub recycled: u64,
    /// Segments created.
    pub created: u64,
    /// Callers that wait for a sync now.
    pub waiting_writers: u64,
    /// Zeroes written into new segments.
    pub zeroed_bytes: u64,
}
