//! Pages of a stream's records, as frames.
//!
//! A page shares the batches of the log, with a short head before each run of records; record bytes are not copied. A batch
//! that is cut, because a reader begins or ends within it, becomes a slice.

use thalweg_engine::{RunLimits, Stream, StreamRun};
use thalweg_serving::app::App;
use thalweg_types::{Durability, Offset};
use thalweg_wire::Kind;

use super::{
    failure::Failure,
    replies::{Parts, Replies, Room},
};

/// Bytes of `records` and `tailed` before their runs: durability, next, high watermark, how many runs.
const RECORDS_HEAD_BYTES: usize = 1 + 8 + 8 + 4;
/// Bytes of a run before its records.
const RUN_HEAD_BYTES: usize = 8 + 8 + 4 + 4;

/// Bytes of records, and of what stands before each run, that fit into one of the client's frames.
pub(crate) fn room_for_records(max_frame_bytes: usize) -> u64 {
    max_frame_bytes.saturating_sub(RECORDS_HEAD_BYTES) as u64
}

/// What to read of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    /// Where it begins.
    pub from: Offset,
    /// Most records.
    pub max_records: u64,
    /// About so many bytes, and at least one append's.
    pub max_bytes: u64,
    /// No append's records behind so many.
    pub enough_records: u64,
    /// At most so many bytes, even if that cuts an append's, and at least one record.
    pub hard_max_bytes: u64,
}

impl Page {
    /// Reads it.
    pub(crate) fn read(&self, app: &App, stream: &Stream) -> Result<Shown, Failure> {
        let page = stream.read(self.from, self.max_records, self.max_bytes)?;
        // Asked after the read, so that it covers all that was read.
        let durability = app.db.blocking().visible_durability();
        let high_watermark = page.high_watermark;
        let (runs, next) = page.into_runs(RunLimits {
            max_bytes: self.hard_max_bytes,
            per_run_bytes: RUN_HEAD_BYTES as u64,
            enough_records: self.enough_records,
        })?;
        Ok(Shown { durability, next, high_watermark, runs })
    }
}

/// Records as a frame shows them.
#[derive(Debug)]
pub(crate) struct Shown {
    durability: Durability,
    /// Where the next page begins.
    pub next: Offset,
    /// Where the stream ended.
    pub high_watermark: Offset,
    /// The records.
    pub runs: Vec<StreamRun>,
}

impl Shown {
    /// Puts them into the outbox as a frame of that kind.
    pub(crate) fn put(self, out: &mut Replies, kind: Kind, id: u32, room: Room) -> Result<(), Failure> {
        if id == 0 {
            return Ok(());
        }
        let len = RECORDS_HEAD_BYTES + runs_bytes(&self.runs);
        out.shared(kind, id, len, room, |parts| {
            let head = parts.bytes();
            head.push(self.durability as u8);
            head.extend_from_slice(&self.next.0.to_le_bytes());
            head.extend_from_slice(&self.high_watermark.0.to_le_bytes());
            put_runs(parts, self.runs);
        })
    }

    /// Bytes of its records.
    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes.len() as u64).sum()
    }
}

/// Bytes of runs as a frame has them, without how many there are.
pub(crate) fn runs_bytes(runs: &[StreamRun]) -> usize {
    runs.iter().map(|run| RUN_HEAD_BYTES + run.bytes.len()).sum()
}

/// Appends how many runs there are, and the runs: the layout of a list of record runs.
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
