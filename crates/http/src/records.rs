//! Reading of a stream: pages of records as NDJSON or in the binary format. Requests for tails arrive here too.
//!
//! Owns: the handler, the position and limits of a read in progress, and both formats. Does not own: tails (`tail`),
//! appends (`streams`), or the JSON of a record (`record_json`).
//!
//! ```text
//! binary := frame* | end
//! frame  := len u32 | offset u64 | time u64 | record      len counts the bytes after it: 16 + record
//! end    := 0 u32 | next u64 | high_watermark u64
//! ```
//! Integers are little-endian. `record` is the encoding of `thalweg_types::record` without its own length. `time` is in
//! microseconds since 1970. A body without the end frame was cut off.
//!
//! Invariant: a read sends no record that was appended after it began, so the durability level in the reply's head
//! holds for all records.

use std::{ops::ControlFlow, sync::Arc};

use bytes::Bytes;
use http::{StatusCode, header};
use thalweg_engine::{ReadError, Stream};
use thalweg_serving::{
    admission::{Account, Reservation, Resource},
    app::App,
    error::ApiError,
    limits::{
        DEFAULT_RECORD_BYTES, DEFAULT_RECORDS, INLINE_SCAN_ITEMS, SCAN_PAGE_BYTES, SCAN_PAGE_ITEMS, TAIL_PAGE_BYTES,
    },
};
use thalweg_types::{
    Action, Durability, Offset, SpaceTime,
    record::{Record, RecordBatch},
};

use crate::{
    call::{Answer, Call},
    describe::{BINARY, Binary, Durable, EVENTS, LastEvent, NDJSON, RecordsParameters, StreamPath},
    json::{push_number, push_text},
    pages::{self, FirstPageThread, Framing, Page, PageSource},
    parse::{Media, ParseError, RecordsQuery, StartPosition, negotiate},
    record_json::push_json,
    reply, streams,
    tail::{self, begin},
};

/// Handles `GET /v1/streams/{stream}/records`: reads or tails records.
#[utoipa::path(
    get, path = "/v1/streams/{stream}/records", params(StreamPath, RecordsParameters, LastEvent),
    responses((status = 200, description = "Records in the format that `Accept` requests.",
            headers(("Thalweg-Durability" = Durable, description = "Level of the records.")),
            content((String = NDJSON), (Binary = BINARY), (String = EVENTS))))
)]
pub(crate) async fn read(app: &Arc<App>, call: &Call) -> Answer {
    let query = RecordsQuery::parse(call.head.uri.query())?;
    let offers = [Media::Ndjson, Media::Binary, Media::Events];
    let media = negotiate(call.header(&header::ACCEPT), &offers).ok_or_else(|| {
        ApiError::new(
            StatusCode::NOT_ACCEPTABLE,
            "not_acceptable",
            Action::Fix,
            "Accept must allow application/x-ndjson, application/octet-stream or text/event-stream for records",
        )
    })?;
    let stream = app.find_stream(&streams::name(call, "/records")?)?;
    if query.limit == Some(0) {
        return Err(ParseError::BadParameter { name: "limit", expected: "at least 1" }.into());
    }
    if media == Media::Events {
        return tail::tail(app, call, stream, query).await;
    }
    stream_pages(app, &call.account, stream, query, media).await
}

async fn stream_pages(
    app: &Arc<App>,
    account: &Arc<Account>,
    stream: Stream,
    query: RecordsQuery,
    media: Media,
) -> Answer {
    let held = account
        .take(Resource::Scans, 1)
        .ok_or_else(|| ApiError::overloaded("too many reads at a time: retry later"))?;
    let info = stream.info()?;
    let next = begin(app, account, &stream, query.from.unwrap_or(StartPosition::Start)).await?;
    if next > info.next {
        return Err(ReadError::BeyondEnd { requested: next, next: info.next }.into());
    }
    let level = app.db.blocking().visible_durability();
    let limit = query.limit.unwrap_or(DEFAULT_RECORDS);
    let max_bytes = query.max_bytes.unwrap_or(DEFAULT_RECORD_BYTES);
    let first = if limit <= INLINE_SCAN_ITEMS && max_bytes <= TAIL_PAGE_BYTES as u64 {
        FirstPageThread::Inline
    } else {
        FirstPageThread::Blocking
    };
    let reading = Reading {
        stream,
        next,
        end: info.next,
        limit,
        max_bytes,
        media,
        level,
        count: 0,
        held,
        begun: (next, limit, max_bytes),
        sent: (0, next),
        app: Arc::clone(app),
    };
    Ok(reply::shown(media, pages::body(reading, first, Framing::Any).await?, level))
}

/// A read in progress. Invariant: `next <= end`. Records that are appended after the read began are not sent. So the
/// durability level in the reply's head is valid for every sent record.
struct Reading {
    stream: Stream,
    next: Offset,
    end: Offset,
    limit: u64,
    max_bytes: u64,
    media: Media,
    level: Durability,
    count: u64,
    held: Reservation,
    /// Next offset, limit on records and limit on bytes, as of the beginning of the read.
    begun: (Offset, u64, u64),
    /// Number of records sent, and the offset after the last of them. Does not include the page that is being made.
    sent: (u64, Offset),
    app: Arc<App>,
}

impl Reading {
    fn read(&mut self, out: &mut Vec<u8>) -> Result<(), ApiError> {
        let records = self.limit.min(self.end.0.saturating_sub(self.next.0)).min(SCAN_PAGE_ITEMS as u64);
        let max_bytes = self.max_bytes.clamp(1, SCAN_PAGE_BYTES as u64);
        let page = self.stream.read(self.next, records, max_bytes)?;
        let (before, begun_at, mut taken) = (self.count, out.len() as u64, 0);
        let mut scratch = RecordBatch::new();
        // Offsets may have gaps, so the next offset and the end cannot be computed from the number of records.
        let (mut next, end) = (page.next, self.end);
        page.for_each(&mut |offset, time, record| {
            // The log returns whole batches, which may be larger than the request.
            if taken == records || offset >= end || (taken > 0 && out.len() as u64 - begun_at >= max_bytes) {
                next = offset;
                return ControlFlow::Break(());
            }
            taken += 1;
            push_record(out, &mut scratch, self.media, offset, time, record);
            ControlFlow::Continue(())
        })?;
        self.count = before + taken;
        self.limit -= taken;
        self.next = next.min(end);
        if taken == 0 {
            // No records are left: the stream was trimmed to its end in the meantime, or only gaps follow.
            self.next = self.end;
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.limit == 0 || self.next >= self.end || self.max_bytes == 0
    }

    fn push_end(&self, out: &mut Vec<u8>) {
        if self.media == Media::Binary {
            out.extend_from_slice(&0_u32.to_le_bytes());
            out.extend_from_slice(&self.next.0.to_le_bytes());
            out.extend_from_slice(&self.end.0.to_le_bytes());
            return;
        }
        out.push(b'{');
        push_number(out, "count", self.count);
        out.push(b',');
        push_number(out, "next", self.next.0);
        out.push(b',');
        push_number(out, "high_watermark", self.end.0);
        out.extend_from_slice(b",\"durability\":");
        push_text(out, self.level.name());
        out.extend_from_slice(b"}\n");
    }
}

impl PageSource for Reading {
    fn page(&mut self) -> Result<Page, ApiError> {
        let mut out = Vec::with_capacity(4096);
        self.sent = (self.count, self.next);
        while !self.is_done() && out.len() < SCAN_PAGE_BYTES {
            let before = out.len();
            self.read(&mut out)?;
            self.max_bytes = self.max_bytes.saturating_sub((out.len() - before) as u64);
        }
        let last = self.is_done();
        if last {
            self.push_end(&mut out);
        }
        Ok(Page { frames: vec![pages::gathered(out)], last })
    }

    fn reader(&self) -> (&Arc<App>, &Arc<Account>) {
        (&self.app, self.held.account())
    }

    fn restart(&mut self) {
        let (next, limit, max_bytes) = self.begun;
        (self.next, self.limit, self.max_bytes, self.count) = (next, limit, max_bytes, 0);
    }

    fn failure(&mut self, error: &ApiError) -> Option<Bytes> {
        // The position of a failed page is undone, so that a client that resumes gets its records again.
        (self.count, self.next) = self.sent;
        (self.media == Media::Ndjson).then(|| {
            let line = serde_json::json!({ "error": error.to_json(None), "count": self.count, "next": self.next.0 });
            Bytes::from(format!("{line}\n"))
        })
    }
}

fn push_record(
    out: &mut Vec<u8>,
    scratch: &mut RecordBatch,
    media: Media,
    offset: Offset,
    time: SpaceTime,
    record: &Record<'_>,
) {
    if media == Media::Binary {
        scratch.clear();
        // The record was within the limits when it was stored, so this cannot fail.
        if scratch.push(record).is_ok() {
            let encoded = &scratch.bytes()[4..];
            out.extend_from_slice(&(16 + encoded.len() as u32).to_le_bytes());
            out.extend_from_slice(&offset.0.to_le_bytes());
            out.extend_from_slice(&time.0.to_le_bytes());
            out.extend_from_slice(encoded);
        }
        return;
    }
    push_json(out, offset, time, record);
    out.push(b'\n');
}
