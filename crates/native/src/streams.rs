//! Handlers of requests that read and tail streams. `records` encodes pages, and `tail` runs the steps of a tail.

use std::sync::Arc;

use thalweg_engine::Stream;
use thalweg_serving::{
    app::App,
    limits::{ALONE_READ_BYTES, DEFAULT_RECORD_BYTES, INLINE_READ_BYTES},
};
use thalweg_types::{
    Offset,
    budget::{Budget, BudgetSpent},
    limits::MAX_ENTRY_BYTES,
};
use thalweg_wire::{self as wire, Kind, Read};

use super::{
    failure::Failure,
    reads::{inline_or_blocking, reply_off_thread},
    records::{Page, room_for_records},
    replies::{FrameMemory, Replies},
    request::Request,
    stream_start::{begin, tailing},
    subscription::Source,
    tail::Tail,
    turn::{Handled, Turn},
};

/// Handles a `read` request: replies with a page of a stream's records.
pub(crate) fn read(turn: &mut Turn<'_>, request: &Request<'_>, read: &Read) -> Result<Handled, Failure> {
    let (stream, from) = (turn.app.db.blocking().stream_by_id(read.stream), read.from.clone());
    let max_records = if read.max_records == 0 { u64::MAX } else { read.max_records.into() };
    let max_bytes = if read.max_bytes == 0 { DEFAULT_RECORD_BYTES } else { read.max_bytes.into() };
    let max_bytes = max_bytes.min(room_for_records(turn.out.max_frame_bytes())).min(turn.app.config.reading_bytes());
    let limits = Page { from: Offset(0), max_records, max_bytes, enough_records: u64::MAX, hard_max_bytes: max_bytes };
    // A search by time for the start may read a batch of the log, and the page may need the disk too.
    let page = move |app: &App, stream: &Stream| Page { from: begin(stream, &from)?, ..limits }.read(app, stream);
    let (on_the_spot, budget) = match turn.is_sole_client {
        true => (ALONE_READ_BYTES, Budget::alone(u64::MAX)),
        false => (INLINE_READ_BYTES, Budget::RESIDENT),
    };
    let mut spent = BudgetSpent::Steps;
    if max_bytes <= on_the_spot {
        match budget.perform(|| page(turn.app, &stream)) {
            Ok(found) => {
                found?.put(turn.out, Kind::Records, request.id, FrameMemory::Reserve)?;
                return Ok(Handled::Replied);
            }
            Err(reason) => spent = reason,
        }
    }
    let app = Arc::clone(turn.app);
    Ok(reply_off_thread(turn, request, spent, max_bytes as usize, move |out, id| {
        page(&app, &stream)?.put(out, Kind::Records, id, FrameMemory::Reserve)
    }))
}

/// Handles a `tail` request: begins a subscription to the existing and future records of a stream.
pub(crate) fn tail(turn: &mut Turn<'_>, request: &Request<'_>, tail: &wire::Tail) -> Result<Handled, Failure> {
    let stream = turn.app.db.blocking().stream_by_id(tail.stream);
    let tail = match turn.budget().perform(|| tailing(&stream, &tail.from)) {
        Ok(reply) => {
            let reply = reply?;
            turn.out.reply(request.id, &reply)?;
            Tail::new(turn.app, stream, &reply)
        }
        // The tail's first step finds its start on another thread, and then sends the reply.
        Err(spent) => Tail::starting(turn.app, stream, tail.from.clone(), spent),
    };
    Ok(Handled::Began(Source::Tail(Box::new(tail))))
}

/// Handles a `find offset` request: replies with the first offset whose record was appended at or after a time.
pub(crate) fn find_offset(
    turn: &mut Turn<'_>,
    request: &Request<'_>,
    wanted: &wire::FindOffset,
) -> Result<Handled, Failure> {
    let (stream, time) = (turn.app.db.blocking().stream_by_id(wanted.stream), wanted.time);
    // The search may read a batch of the log.
    inline_or_blocking(turn, request, 1, MAX_ENTRY_BYTES, move || {
        let offset = stream.offset_at(time)?;
        Ok(move |out: &mut Replies, id: u32| out.reply(id, &wire::OffsetFound { offset }))
    })
}
