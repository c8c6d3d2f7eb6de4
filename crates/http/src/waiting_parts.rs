//! Parts of HTTP/2 replies that wait for their client.
//!
//! Each stream of an HTTP/2 connection has its own flow-control window, so a client can read one stream and leave
//! another unread. The socket then still moves bytes, so it does not show that a stream waits and holds a scan, a
//! snapshot or memory. Owns: division of bodies into small parts, and a deadline for each stream whose parts wait. The
//! deadline is renewed whenever the HTTP library has sent a part or requests the next one ([`PacedBody`]). Does not
//! own: the check for overdue streams, after which the connection is cut.
//!
//! Bound: one entry for each stream of the connection.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum_core::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use thalweg_serving::admission::counted;

/// Maximum size in bytes of a part. The client must read one in each `write_timeout`. Equal to the default size of an
/// HTTP/2 frame, so the division adds no frames.
const PART_BYTES: usize = 16 * 1024;
/// Size in bytes from which a part waits until it was sent, and not only until the next part is requested.
const TRACKED_BYTES: usize = 4096;

/// Streams of one HTTP/2 connection that have parts of bodies which the client has not read yet.
#[derive(Debug, Default)]
pub(crate) struct WaitingParts {
    streams: Mutex<HashMap<u64, WaitingStream>>,
    next: AtomicU64,
}

/// A stream with parts that the client has not read yet.
#[derive(Debug)]
struct WaitingStream {
    deadline: Instant,
    /// Number of parts that wait, at least 1.
    parts: usize,
}

impl WaitingParts {
    /// Returns true if the client has not read a part of a stream in time.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        self.streams().values().any(|stream| stream.deadline <= now)
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<u64, WaitingStream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part that waits for the client, or a body that waits until its next part is requested. Dropping it records
/// progress of its stream.
#[derive(Debug)]
struct WaitingPart {
    all: Arc<WaitingParts>,
    stream: u64,
    write_timeout: Duration,
}

impl WaitingPart {
    fn new(all: &Arc<WaitingParts>, stream: u64, write_timeout: Duration) -> Self {
        let deadline = Instant::now() + write_timeout;
        all.streams().entry(stream).or_insert(WaitingStream { deadline, parts: 0 }).parts += 1;
        Self { all: Arc::clone(all), stream, write_timeout }
    }
}

impl Drop for WaitingPart {
    fn drop(&mut self) {
        let mut streams = self.all.streams();
        if let Some(stream) = streams.get_mut(&self.stream) {
            stream.parts -= 1;
            stream.deadline = Instant::now() + self.write_timeout;
            if stream.parts == 0 {
                streams.remove(&self.stream);
            }
        }
    }
}

/// Body of an HTTP/2 reply, whose client must read each part in time.
#[derive(Debug)]
pub(crate) struct PacedBody {
    inner: Body,
    /// Bytes of the last frame of `inner` that were not handed out yet.
    rest: Bytes,
    all: Arc<WaitingParts>,
    stream: u64,
    write_timeout: Duration,
    /// Present from the time when a part was handed out until the next one is requested.
    waiting: Option<WaitingPart>,
}

impl PacedBody {
    /// Wraps the body of a reply. Its waiting parts are recorded in `all`, which belongs to the connection.
    pub(crate) fn new(inner: Body, all: &Arc<WaitingParts>, write_timeout: Duration) -> Self {
        let stream = all.next.fetch_add(1, Ordering::Relaxed);
        Self { inner, rest: Bytes::new(), all: Arc::clone(all), stream, write_timeout, waiting: None }
    }

    fn wait(&self) -> WaitingPart {
        WaitingPart::new(&self.all, self.stream, self.write_timeout)
    }

    /// Returns the next part of the bytes that were not handed out yet. From now on the client must read, or the write
    /// timeout ends the connection.
    fn next_part(&mut self) -> Frame<Bytes> {
        let part = self.rest.split_to(self.rest.len().min(PART_BYTES));
        self.waiting = Some(self.wait());
        Frame::data(if part.len() < TRACKED_BYTES { part } else { counted(part, self.wait()) })
    }
}

impl http_body::Body for PacedBody {
    type Data = Bytes;
    type Error = axum_core::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum_core::Error>>> {
        // The library asks for more, so the client has room for it.
        self.waiting = None;
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(self.next_part())));
        }
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(context));
        Poll::Ready(match frame {
            Some(Ok(frame)) => Some(match frame.into_data() {
                Ok(data) => {
                    self.rest = data;
                    Ok(self.next_part())
                }
                Err(other) => Ok(other),
            }),
            other => other,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.inner.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}
