//! Parts of HTTP/2 replies that wait for their client.
//!
//! The streams of an HTTP/2 connection have windows of their own, so a client can read one stream and leave another. The
//! socket then moves bytes, and shows nothing of the stream that waits and of the scan, snapshot or memory behind it.
//! Owns: the deadline of each part that was handed to the HTTP library, until the library has sent the part or requests
//! the next one ([`PacedBody`]). Does not own: the check for overdue parts, after which the connection is cut.
//!
//! Bound: at most two entries for each stream of the connection.

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

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use thalweg_serving::{admission::counted, pace::MinRate};

/// Size in bytes from which a part has a deadline until it was sent, and not only until the next part is requested.
const TRACKED_BYTES: usize = 4096;

/// Deadlines of the parts that wait for the client of a connection.
#[derive(Debug, Default)]
pub(crate) struct WaitingParts {
    deadlines: Mutex<HashMap<u64, Instant>>,
    next: AtomicU64,
}

impl WaitingParts {
    /// Returns true if the client has not read a part in time.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        self.deadlines().values().any(|deadline| *deadline <= now)
    }

    fn deadlines(&self) -> MutexGuard<'_, HashMap<u64, Instant>> {
        self.deadlines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Entry of a part in the deadlines of its connection. Dropping it removes the entry.
#[derive(Debug)]
struct WaitingPart {
    parts: Arc<WaitingParts>,
    id: u64,
}

impl WaitingPart {
    fn new(parts: &Arc<WaitingParts>, deadline: Instant) -> Self {
        let id = parts.next.fetch_add(1, Ordering::Relaxed);
        parts.deadlines().insert(id, deadline);
        Self { parts: Arc::clone(parts), id }
    }
}

impl Drop for WaitingPart {
    fn drop(&mut self) {
        self.parts.deadlines().remove(&self.id);
    }
}

/// Body of an HTTP/2 reply, whose client must read it at a minimum rate.
#[derive(Debug)]
pub(crate) struct PacedBody {
    inner: Body,
    parts: Arc<WaitingParts>,
    rate: MinRate,
    waiting: Option<WaitingPart>,
}

impl PacedBody {
    /// Wraps the body of a reply. Its waiting parts are recorded in `parts`, which belongs to the connection.
    pub(crate) fn new(inner: Body, parts: &Arc<WaitingParts>, rate: MinRate) -> Self {
        Self { inner, parts: Arc::clone(parts), rate, waiting: None }
    }

    /// Gives a part its deadline: a window, and the time that its bytes take at the minimum rate.
    fn track(&mut self, part: Bytes) -> Bytes {
        let windows = part.len() as f64 / self.rate.bytes as f64;
        let time = self.rate.window + Duration::from_secs_f64(self.rate.window.as_secs_f64() * windows);
        let deadline = Instant::now() + time;
        self.waiting = Some(WaitingPart::new(&self.parts, deadline));
        if part.len() < TRACKED_BYTES {
            return part;
        }
        counted(part, WaitingPart::new(&self.parts, deadline))
    }
}

impl http_body::Body for PacedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // The library asks for more, so the client has room for it.
        self.waiting = None;
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(context));
        Poll::Ready(match frame {
            Some(Ok(frame)) => Some(match frame.into_data() {
                Ok(part) => Ok(Frame::data(self.track(part))),
                Err(other) => Ok(other),
            }),
            other => other,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
