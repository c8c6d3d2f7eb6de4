//! Encoding of pages of a stream's records as frames.
//!
//! A page shares the batches of the log, with a short head before each run of records, and copies no record bytes. If a
//! reader begins or ends within a batch, the page has a slice of the batch.

use thalweg_engine::{RunLimits, Stream, StreamRun};
use thalweg_serving::app::App;
use thalweg_types::{Durability, Offset};
use thalweg_wire::Kind;

use super::{
    failure::Failure,
    replies::{FrameMemory, Parts, Replies},
};

/// Number of bytes at the beginning of a `records` or `tailed` frame, before its records: durability, next offset, high
/// watermark, number of runs. A run has consecutive records of one append.
const RECORDS_HEAD_BYTES: usize = 1 + 8 + 8 + 4;
/// Number of bytes at the beginning of a run, before its records. A run has consecutive records of one append.
const RUN_HEAD_BYTES: usize = 8 + 8 + 4 + 4;

/// Returns the maximum bytes of records, with their heads, in one frame of at most `max_frame_bytes`.
pub(crate) fn room_for_records(max_frame_bytes: usize) -> u64 {
    max_frame_bytes.saturating_sub(RECORDS_HEAD_BYTES) as u64
}

/// Limits of one read of records from a stream: where it begins, and how many records and bytes it returns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    /// Offset of the first record to read.
    pub from: Offset,
    /// Maximum number of records to read.
    pub max_records: u64,
    /// Approximate maximum number of bytes to read. The read returns at least the records of one append, even if these
    /// are larger.
    pub max_bytes: u64,
    /// Number of records after which the page contains no further append. The records of one append are not separated
    /// for this.
    pub enough_records: u64,
    /// Strict maximum number of bytes in the page. If the records of one append exceed it, the page contains only some
    /// of them, but at least one record.
    pub hard_max_bytes: u64,
}

impl Page {
    /// Reads the page from a stream. May block on the disk.
    pub(crate) fn read(&self, app: &App, stream: &Stream) -> Result<RecordsFrame, Failure> {
        let page = stream.read(self.from, self.max_records, self.max_bytes)?;
        // The durability is determined after the records were read, so it is valid for all of them.
        let durability = app.db.blocking().visible_durability();
        let high_watermark = page.high_watermark;
        let (runs, next) = page.into_runs(RunLimits {
            max_bytes: self.hard_max_bytes,
            per_run_bytes: RUN_HEAD_BYTES as u64,
            enough_records: self.enough_records,
        })?;
        Ok(RecordsFrame { durability, next, high_watermark, runs })
    }
}

/// A page of records, ready to be encoded as a frame.
#[derive(Debug)]
pub(crate) struct RecordsFrame {
    durability: Durability,
    /// Offset at which the page after this one begins.
    pub next: Offset,
    /// High watermark of the stream at the time of the read.
    pub high_watermark: Offset,
    /// Runs of consecutive records on the page.
    pub runs: Vec<StreamRun>,
}

impl RecordsFrame {
    /// Puts the page into the outbox, as a frame of the given kind.
    pub(crate) fn put(self, out: &mut Replies, kind: Kind, id: u32, room: FrameMemory) -> Result<(), Failure> {
        if id == 0 {
            return Ok(());
        }
        let len = RECORDS_HEAD_BYTES + runs_bytes(&self.runs);
        out.states(self.durability);
        out.shared(kind, id, len, room, |parts| {
            let head = parts.bytes();
            head.push(self.durability as u8);
            head.extend_from_slice(&self.next.0.to_le_bytes());
            head.extend_from_slice(&self.high_watermark.0.to_le_bytes());
            put_runs(parts, self.runs);
        })
    }

    /// Returns the number of bytes of all records in the page.
    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes.len() as u64).sum()
    }
}

/// Returns the encoded size in bytes of `runs` (each has consecutive records of one append), without the field with
/// their number.
pub(crate) fn runs_bytes(runs: &[StreamRun]) -> usize {
    runs.iter().map(|run| RUN_HEAD_BYTES + run.bytes.len()).sum()
}

/// Appends records to a frame: the number of runs (consecutive records of one append), then each run with its head.
pub(crate) fn put_runs(parts: &mut Parts<'_>, runs: Vec<StreamRun>) {
    let word = |len: usize| u32::try_from(len).expect("less than a frame").to_le_bytes();
    parts.bytes().extend_from_slice(&word(runs.len()));
    for StreamRun { first, time, count, bytes } in runs {
        let head = parts.bytes();
        head.extend_from_slice(&first.0.to_le_bytes());
        head.extend_from_slice(&time.0.to_le_bytes());
        head.extend_from_slice(&count.to_le_bytes());
        head.extend_from_slice(&word(bytes.len()));
        parts.share(bytes);
    }
}
