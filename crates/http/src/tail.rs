//! Tails: records as they are appended, for requests with `Accept: text/event-stream`.
//!
//! Each event is a record. Its `id` is the offset, and its `data` is the JSON object that a read returns. A client that
//! reconnects with `Last-Event-ID` resumes after that record. Comments interrupt long silences. The tail ends when the
//! server stops, the stream is deleted, or `limit` records were sent. If an error ends the tail, a last event `error`
//! states the reason.

use std::{io, ops::ControlFlow, sync::Arc};

use bytes::Bytes;
use thalweg_engine::{ReadError, Stream};
use thalweg_serving::{
    admission::Account,
    app::App,
    error::ApiError,
    limits::{TAIL_PAGE_BYTES, TAIL_PAGE_ITEMS},
};
use thalweg_types::{
    Offset,
    budget::{self, BudgetSpent},
    limits::{MAX_ENTRY_BYTES, MAX_RECORD_BYTES},
    steps::SHORT_READ,
};

use crate::{
    call::{Answer, Call},
    following::{Follower, Format, WakeReason, resumed},
    json::push_digits,
    pages::Running,
    parse::{RecordsQuery, StartPosition},
    reading,
    record_json::push_json,
};

/// Handles a request for a tail. If the request states no position, the tail begins at the end of the stream.
pub(crate) async fn tail(app: &Arc<App>, call: &Call, stream: Stream, query: RecordsQuery) -> Answer {
    let follower = Follower::admit(app, call)?;
    let resumed = resumed(call, "an offset")?.map(|next| StartPosition::Offset(Offset(next)));
    let since = resumed.or(query.from).unwrap_or(StartPosition::End);
    let next = begin(app, follower.account(), &stream, since).await?;
    let info = stream.info()?;
    if next > info.next {
        return Err(ReadError::BeyondEnd { requested: next, next: info.next }.into());
    }
    if next < info.start {
        return Err(ReadError::Trimmed { requested: next, start: info.start }.into());
    }
    let tail = Tail {
        follower,
        stream,
        next,
        left: query.limit.unwrap_or(u64::MAX),
        bytes_left: query.max_bytes.unwrap_or(u64::MAX),
        behind: next < info.next,
    };
    // The head states no level: later records may have another level, so each event states its own.
    Ok(Format::Events.reply(tail.follower.bulk(), tail, step))
}

/// Returns the offset at which a read or a tail of a stream begins. A search by time may need a batch of the log that
/// is not in memory. A thread for reads from the disk then repeats the search.
pub(crate) async fn begin(
    app: &App,
    account: &Arc<Account>,
    stream: &Stream,
    since: StartPosition,
) -> Result<Offset, ApiError> {
    match budget::within(SHORT_READ, || start_offset(stream, since)) {
        Ok(found) => Ok(found?),
        Err(spent) => {
            let stream = stream.clone();
            let search = move || start_offset(&stream, since);
            Ok(reading::search_again(spent, app, account, MAX_ENTRY_BYTES, search).await??)
        }
    }
}

fn start_offset(stream: &Stream, since: StartPosition) -> Result<Offset, ReadError> {
    match since {
        StartPosition::Start => Ok(stream.info()?.start),
        StartPosition::End => Ok(stream.info()?.next),
        StartPosition::Offset(offset) => Ok(offset),
        StartPosition::Time(time) => stream.offset_at(time),
        StartPosition::Last(count) => {
            let info = stream.info()?;
            Ok(info.start.max(Offset(info.next.0.saturating_sub(count))))
        }
    }
}

struct Tail {
    follower: Follower,
    stream: Stream,
    next: Offset,
    left: u64,
    bytes_left: u64,
    /// True if more records exist than the last page contained. The next read may then need the disk.
    behind: bool,
}

/// Result of one read of new records for a tail.
enum TailRead {
    Events(Vec<u8>),
    Nothing,
}

fn step(tail: Tail) -> Running<Tail> {
    Box::pin(async move {
        let mut tail = tail;
        if tail.follower.is_new() {
            return Ok((vec![Bytes::from_static(b": tail\n\n")], Some(tail)));
        }
        let mut room = None;
        loop {
            if tail.follower.is_over() || tail.left == 0 || tail.bytes_left == 0 {
                return Ok((Vec::new(), None));
            }
            let before = (tail.next, tail.left, tail.bytes_left);
            let (found, returned) = read_page(tail).await?;
            tail = returned;
            match found {
                Ok(TailRead::Events(events)) => match tail.follower.counted(events, room.take()) {
                    Ok(events) => return Ok((vec![events], Some(tail))),
                    Err(no_room) => {
                        // The tail reads the page again when there is room, and holds no memory until then.
                        (tail.next, tail.left, tail.bytes_left) = before;
                        tail.behind = true;
                        room = tail.follower.room(no_room).await;
                    }
                },
                Ok(TailRead::Nothing) => match tail.wait().await {
                    WakeReason::Ready(true) => room = None,
                    WakeReason::Silence => return Ok((vec![Bytes::from_static(b": still here\n\n")], Some(tail))),
                    WakeReason::Ready(false) | WakeReason::Stopping => return Ok((Vec::new(), None)),
                },
                Err(error) => return Ok((vec![Format::Events.error(&error)], None)),
            }
        }
    })
}

/// Reads a page of records. At the end of the stream, most records are still in memory, so the current thread reads
/// them. If this takes too long, a thread for long reads takes over; if it needs the disk, a thread for reads from the
/// disk does.
async fn read_page(mut tail: Tail) -> io::Result<(Result<TailRead, ApiError>, Tail)> {
    let before = (tail.next, tail.left, tail.bytes_left);
    let attempt = if tail.behind { Err(BudgetSpent::Steps) } else { budget::within(SHORT_READ, || tail.read()) };
    let spent = match attempt {
        Ok(read) => return Ok((read, tail)),
        Err(spent) => spent,
    };
    let (app, account) = (Arc::clone(&tail.follower.app), Arc::clone(tail.follower.account()));
    let read = move |tail: &mut Tail| {
        (tail.next, tail.left, tail.bytes_left) = before;
        tail.read()
    };
    let read = reading::work_again(spent, (&*app, &account, MAX_RECORD_BYTES), tail, read).await;
    read.map_err(|error| io::Error::other(error.message.into_owned()))
}

impl Tail {
    /// Waits for new records. The result is `false` if the stream was deleted.
    async fn wait(&mut self) -> WakeReason<bool> {
        let records = self.follower.app.db.wait_for(self.stream.id(), self.next);
        self.follower.wait(records).await
    }

    fn read(&mut self) -> Result<TailRead, ApiError> {
        let max_bytes = self.bytes_left.min(TAIL_PAGE_BYTES as u64);
        let max_records = self.left.min(TAIL_PAGE_ITEMS);
        let page = self.stream.read(self.next, max_records, max_bytes)?;
        // The level is determined after the records were read, so it is valid for all of them.
        let level = self.follower.app.db.blocking().visible_durability();
        let (mut out, mut taken, mut next) = (Vec::new(), 0, page.next);
        page.for_each(&mut |offset, time, record| {
            if taken == max_records || (taken > 0 && out.len() as u64 >= max_bytes) {
                next = offset;
                return ControlFlow::Break(());
            }
            taken += 1;
            out.extend_from_slice(b"id: ");
            push_digits(&mut out, offset.0);
            out.extend_from_slice(b"\ndata: ");
            push_json(&mut out, offset, time, record);
            out.pop();
            out.extend_from_slice(b",\"durability\":\"");
            out.extend_from_slice(level.name().as_bytes());
            out.extend_from_slice(b"\"}\n\n");
            ControlFlow::Continue(())
        })?;
        self.next = next;
        self.behind = self.next < page.high_watermark;
        self.left -= taken;
        self.bytes_left = self.bytes_left.saturating_sub(out.len() as u64);
        Ok(if taken == 0 { TailRead::Nothing } else { TailRead::Events(out) })
    }
}
