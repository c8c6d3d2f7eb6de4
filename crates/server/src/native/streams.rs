//! Streams, read and tailed.
//!
//! Records go out as the bytes that were appended: a page is the log's batches, shared, with a few words before each. What
//! is cut from a batch, because a reader begins or ends within it, is a slice of it.

use std::sync::Arc;

use thalweg_engine::{ReadError, RunLimits, Stream, StreamRun};
use thalweg_types::{Action, Durability, Offset};
use thalweg_wire::{self as wire, Kind, Position, Read, Tailing};

use super::{
    failure::{self, Failure},
    reads::reply_off_thread,
    replies::{Parts, Replies, Room},
    request::{Handled, Request, Turn},
    subscription::{Found, Patience, Source, Wanted},
};
use crate::{
    app::App,
    limits::{ALONE_READ_BYTES, DEFAULT_RECORD_BYTES, INLINE_READ_BYTES, NATIVE_PAGE_BYTES},
};

/// Bytes of `records` and `tailed` before their runs: durability, next, high watermark, how many runs.
const RECORDS_HEAD_BYTES: usize = 1 + 8 + 8 + 4;
/// Bytes of a run before its records.
const RUN_HEAD_BYTES: usize = 8 + 8 + 4 + 4;

/// `read`
pub fn read(turn: &mut Turn<'_>, request: &Request<'_>, read: &Read) -> Result<Handled, Failure> {
    let stream = turn.app.db.blocking().stream_by_id(read.stream);
    let from = begin(&stream, &read.from)?;
    let max_records = if read.max_records == 0 { u64::MAX } else { read.max_records.into() };
    let max_bytes = if read.max_bytes == 0 { DEFAULT_RECORD_BYTES } else { read.max_bytes.into() };
    let max_bytes = max_bytes.min(room_for_records(turn.out.max_frame_bytes()));
    let page = Page { from, max_records, max_bytes, enough_records: u64::MAX, hard_max_bytes: max_bytes };
    let on_the_spot = if turn.is_alone { ALONE_READ_BYTES } else { INLINE_READ_BYTES };
    if max_bytes <= on_the_spot {
        page.read(turn.app, &stream)?.put(turn.out, Kind::Records, request.id, Room::Ask)?;
        return Ok(Handled::Replied);
    }
    let app = Arc::clone(turn.app);
    Ok(reply_off_thread(turn, request, max_bytes as usize, move |out, id| {
        page.read(&app, &stream)?.put(out, Kind::Records, id, Room::Ask)
    }))
}

/// `tail`
pub fn tail(turn: &mut Turn<'_>, request: &Request<'_>, tail: &wire::Tail) -> Result<Handled, Failure> {
    let stream = turn.app.db.blocking().stream_by_id(tail.stream);
    let next = begin(&stream, &tail.from)?;
    let info = stream.info()?;
    if next > info.next {
        return Err(ReadError::BeyondEnd { requested: next, next: info.next }.into());
    }
    if next < info.start {
        return Err(ReadError::Trimmed { requested: next, start: info.start }.into());
    }
    turn.out.reply(request.id, &Tailing { next, high_watermark: info.next })?;
    let app = Arc::clone(turn.app);
    Ok(Handled::Began(Source::Tail(Box::new(Tail { app, stream, next, behind: next < info.next }))))
}

/// `find offset`
pub fn find_offset(turn: &mut Turn<'_>, request: &Request<'_>, wanted: &wire::FindOffset) -> Result<Handled, Failure> {
    let stream = turn.app.db.blocking().stream_by_id(wanted.stream);
    let offset = stream.offset_at(wanted.time)?;
    turn.out.reply(request.id, &wire::OffsetFound { offset })?;
    Ok(Handled::Replied)
}

/// A tail.
#[derive(Debug)]
pub struct Tail {
    app: Arc<App>,
    stream: Stream,
    next: Offset,
    /// More was there than the last page held: the next read may go to the disk.
    behind: bool,
}

impl Tail {
    /// Where it goes on.
    #[must_use]
    pub fn next(&self) -> Offset {
        self.next
    }

    /// The next page of records.
    pub async fn step(&mut self, wanted: Wanted) -> Found {
        loop {
            let from = self.next;
            match self.look(&wanted).await {
                Err(failure) => return Found::Over(failure),
                Ok(Some(shown)) => match wanted.room_for(&self.app, shown.bytes()) {
                    Some(room) => return shown.found(room),
                    None => {
                        // Read again when there is room: what waits holds nothing meanwhile.
                        drop(shown);
                        (self.next, self.behind) = (from, true);
                        match wanted.pause().await {
                            true => return Found::Nothing,
                            false => continue,
                        }
                    }
                },
                Ok(None) if wanted.patience == Patience::TakeWhatIsThere => return Found::Nothing,
                Ok(None) => {}
            }
            tokio::select! {
                biased;
                () = wanted.stop.notified() => return Found::Nothing,
                there = self.app.db.wait_for(self.stream.id(), self.next) => if !there {
                    return Found::Over(self.gone());
                },
            }
        }
    }

    /// A page, if there are records: read on the spot at the end of the stream, where they are fresh in memory, else on a
    /// blocking thread.
    async fn look(&mut self, wanted: &Wanted) -> Result<Option<Shown>, Failure> {
        let hard_max_bytes = room_for_records(wanted.max_frame_bytes);
        let (credit_records, credit_bytes) = wanted.credit;
        let page = Page {
            from: self.next,
            max_records: wanted.max_messages,
            max_bytes: NATIVE_PAGE_BYTES.min(credit_bytes).min(hard_max_bytes),
            enough_records: credit_records,
            hard_max_bytes,
        };
        let shown = if self.behind {
            let (app, stream) = (Arc::clone(&self.app), self.stream.clone());
            off_thread(move || page.read(&app, &stream)).await?
        } else {
            page.read(&self.app, &self.stream)?
        };
        self.next = shown.next;
        self.behind = shown.next < shown.high_watermark;
        Ok((!shown.runs.is_empty()).then_some(shown))
    }

    fn gone(&self) -> Failure {
        match self.stream.info() {
            Ok(_) => failure::stopping(),
            Err(error) => error.into(),
        }
    }
}

/// Where reading begins.
fn begin(stream: &Stream, from: &Position) -> Result<Offset, Failure> {
    Ok(match *from {
        Position::Offset { offset } => offset,
        Position::Start {} => stream.info()?.start,
        Position::End {} => stream.info()?.next,
        Position::Time { time } => stream.offset_at(time)?,
        Position::Last { records } => {
            let info = stream.info()?;
            Offset(info.next.0.saturating_sub(records)).max(info.start)
        }
    })
}

/// Bytes of records, and of what stands before each run, that fit into one of the client's frames.
fn room_for_records(max_frame_bytes: usize) -> u64 {
    max_frame_bytes.saturating_sub(RECORDS_HEAD_BYTES) as u64
}

/// What to read of a stream.
#[derive(Clone, Copy, Debug)]
struct Page {
    from: Offset,
    max_records: u64,
    /// About so many bytes, and at least one append's.
    max_bytes: u64,
    /// No append's records behind so many.
    enough_records: u64,
    /// At most so many bytes, even if that cuts an append's, and at least one record.
    hard_max_bytes: u64,
}

impl Page {
    fn read(&self, app: &App, stream: &Stream) -> Result<Shown, Failure> {
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
struct Shown {
    durability: Durability,
    next: Offset,
    high_watermark: Offset,
    runs: Vec<StreamRun>,
}

impl Shown {
    fn put(self, out: &mut Replies, kind: Kind, id: u32, room: Room) -> Result<(), Failure> {
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
    fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes.len() as u64).sum()
    }

    /// As a tail's frame.
    fn found(self, room: Room) -> Found {
        let records = self.runs.iter().map(|run| u64::from(run.count)).sum();
        Found::frame(records, self.bytes(), move |out, id| self.put(out, Kind::Tailed, id, room))
    }
}

/// Bytes of runs as a frame has them, without how many there are.
pub fn runs_bytes(runs: &[StreamRun]) -> usize {
    runs.iter().map(|run| RUN_HEAD_BYTES + run.bytes.len()).sum()
}

/// Appends how many runs there are, and the runs: the layout of a list of record runs.
pub fn put_runs(parts: &mut Parts<'_>, runs: Vec<StreamRun>) {
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

/// Runs what may read from disk where that holds up nobody.
pub(super) async fn off_thread<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(read).await {
        Ok(read) => read,
        Err(error) => Err(Failure::new("internal", Action::Stop, error.to_string())),
    }
}
