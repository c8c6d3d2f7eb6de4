//! Detection of HTTP/2 streams whose replies the client reads too slowly.
//!
//! Each stream of an HTTP/2 connection has its own flow-control window. So a client can read one stream and leave
//! another unread, which holds a scan, a snapshot or memory. The socket does not show this, because it still moves
//! bytes. Owns: the division of bodies into small parts, and for each stream the rate at which the client reads its
//! parts. A part counts as read when the HTTP library has sent it or requests the next one ([`PacedBody`]). Does not
//! own: the regular check of the rates, which cuts the connection of a slow stream (`connection`).
//!
//! Invariant: the measuring period of a stream ([`Pace`]) ends only when enough bytes were read, or when no part of the
//! stream waits. So a client that reads one small part after another does not begin a new period with each part. Bound:
//! one entry for each stream of the connection.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Instant,
};

use axum_core::body::Body;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use thalweg_serving::{
    admission::counted,
    pace::{MinRate, Pace},
};

/// Maximum size in bytes of a part of a reply's body. Equal to the default size of an HTTP/2 frame, so dividing bodies
/// into parts adds few frames.
const MAX_PART_BYTES: usize = 16 * 1024;
/// Minimum size in bytes of a part of a reply's body that counts as read only when it was sent. A smaller part counts
/// as read when the HTTP library requests the next one. It is also the minimum size of the parts into which a body is
/// divided.
const TRACKED_BYTES: usize = 4096;

/// Returns the size in bytes of the parts of a reply. `rate` is the number of bytes that a client must read in each
/// measuring period. A part counts only once all of it was read. So the number of bytes is a multiple of the part's
/// size; otherwise a client that reads exactly at the minimum rate would be cut. If the number is below the smallest
/// part size, the client must read one part in each period.
fn part_bytes(rate: MinRate) -> usize {
    let parts = rate.bytes.div_ceil(MAX_PART_BYTES as u64).max(1);
    usize::try_from(rate.bytes / parts).unwrap_or(MAX_PART_BYTES).clamp(TRACKED_BYTES, MAX_PART_BYTES)
}

/// Streams of one HTTP/2 connection that have parts of bodies which the client has not read yet.
#[derive(Debug, Default)]
pub(crate) struct WaitingParts {
    streams: Mutex<HashMap<u64, WaitingStream>>,
    next: AtomicU64,
}

/// A stream of an HTTP/2 connection, with parts of its reply that the client has not read yet.
#[derive(Debug)]
struct WaitingStream {
    pace: Pace,
    /// Number of parts of the stream's reply that wait for the client to read them, at least 1.
    parts: usize,
}

impl WaitingParts {
    /// Returns true if the client reads a stream more slowly than the minimum rate.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        self.streams().values().any(|stream| stream.pace.is_too_slow(now))
    }

    /// Records that one more part of a stream waits for the client to read it.
    fn begin(&self, stream: u64, rate: MinRate, now: Instant) {
        let mut streams = self.streams();
        let waiting = streams.entry(stream).or_insert_with(|| WaitingStream { pace: Pace::new(rate), parts: 0 });
        waiting.parts += 1;
        waiting.pace.waits(now);
    }

    /// Records that a part of a stream's reply no longer waits. `bytes` is the number of its bytes that the client has
    /// read.
    fn end(&self, stream: u64, bytes: u64, now: Instant) {
        let mut streams = self.streams();
        let Some(waiting) = streams.get_mut(&stream) else { return };
        waiting.parts -= 1;
        if waiting.parts == 0 {
            streams.remove(&stream);
            return;
        }
        waiting.pace.moved(bytes);
        // If this part completed the last window, the other parts begin the next one.
        waiting.pace.waits(now);
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<u64, WaitingStream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of a reply's body that waits for the client to read it. The HTTP library drops this value when it has sent
/// the part; this records that the client has read the part.
#[derive(Debug)]
struct WaitingPart {
    all: Arc<WaitingParts>,
    stream: u64,
    bytes: u64,
}

impl Drop for WaitingPart {
    fn drop(&mut self) {
        self.all.end(self.stream, self.bytes, Instant::now());
    }
}

/// Body of an HTTP/2 reply that its client must read at a minimum rate.
#[derive(Debug)]
pub(crate) struct PacedBody {
    inner: Body,
    /// Bytes of the last frame of `inner` that the HTTP library has not received yet.
    rest: Bytes,
    all: Arc<WaitingParts>,
    stream: u64,
    rate: MinRate,
    /// Number of bytes that count as read when the HTTP library requests the next part. `None` if no part is
    /// outstanding.
    waiting: Option<u64>,
}

impl PacedBody {
    /// Wraps the body of a reply. `all` has the waiting parts of all streams of the connection, and also records those
    /// of this body.
    pub(crate) fn new(inner: Body, all: &Arc<WaitingParts>, rate: MinRate) -> Self {
        let stream = all.next.fetch_add(1, Ordering::Relaxed);
        Self { inner, rest: Bytes::new(), all: Arc::clone(all), stream, rate, waiting: None }
    }

    /// Returns the next frame of the body. The HTTP library requests a frame only when the client has room for it, so
    /// the previous frame then counts as read.
    fn poll_at(
        &mut self,
        context: &mut Context<'_>,
        now: Instant,
    ) -> Poll<Option<Result<Frame<Bytes>, axum_core::Error>>> {
        let previous = self.waiting.take();
        let next = self.poll_next(context, now);
        // The next part begins to wait before the previous one ends, so both wait in the same window. If `inner` has no
        // frame yet, no part waits for the client.
        if let Some(bytes) = previous {
            self.all.end(self.stream, bytes, now);
        }
        next
    }

    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        now: Instant,
    ) -> Poll<Option<Result<Frame<Bytes>, axum_core::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return Poll::Ready(other),
            }
        }
        Poll::Ready(Some(Ok(self.next_part(now))))
    }

    /// Returns the next part of the remaining bytes, and records that the client must read it from now on.
    fn next_part(&mut self, now: Instant) -> Frame<Bytes> {
        let part = self.rest.split_to(self.rest.len().min(part_bytes(self.rate)));
        let bytes = part.len() as u64;
        self.all.begin(self.stream, self.rate, now);
        if part.len() < TRACKED_BYTES {
            self.waiting = Some(bytes);
            return Frame::data(part);
        }
        self.waiting = Some(0);
        self.all.begin(self.stream, self.rate, now);
        Frame::data(counted(part, WaitingPart { all: Arc::clone(&self.all), stream: self.stream, bytes }))
    }
}

impl Drop for PacedBody {
    fn drop(&mut self) {
        if let Some(bytes) = self.waiting.take() {
            self.all.end(self.stream, bytes, Instant::now());
        }
    }
}

impl http_body::Body for PacedBody {
    type Data = Bytes;
    type Error = axum_core::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum_core::Error>>> {
        self.poll_at(context, Instant::now())
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

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, task::Waker, time::Duration};

    use super::*;

    /// A body of frames of 100 bytes.
    struct Frames {
        /// Number of polls after each frame at which the body is not ready.
        pause: u32,
        /// Number of polls so far.
        polls: u32,
    }

    impl http_body::Body for Frames {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.polls += 1;
            if (self.polls - 1).is_multiple_of(self.pause + 1) {
                return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 100])))));
            }
            Poll::Pending
        }
    }

    const RATE: MinRate = MinRate { window: Duration::from_secs(30), bytes: 1000 };

    /// Polls a body every `seconds`. Returns the time in seconds at which its client counts as too slow; `None` if it
    /// never does.
    fn overdue_after(frames: Frames, seconds: usize) -> Option<usize> {
        let (all, begun) = (Arc::new(WaitingParts::default()), Instant::now());
        let mut body = PacedBody::new(Body::new(frames), &all, RATE);
        (0..1000_usize).find(|second| {
            let now = begun + Duration::from_secs(*second as u64);
            if (*second).is_multiple_of(seconds) {
                let _ = body.poll_at(&mut Context::from_waker(Waker::noop()), now);
            }
            all.is_overdue(now)
        })
    }

    #[test]
    fn a_client_that_reads_small_frames_must_read_enough_of_them() {
        assert_eq!(overdue_after(Frames { pause: 0, polls: 0 }, 10), Some(30));
        assert_eq!(overdue_after(Frames { pause: 0, polls: 0 }, 2), None);
        // The server had no bytes to send between the frames.
        assert_eq!(overdue_after(Frames { pause: 1, polls: 0 }, 10), None);
    }

    #[test]
    fn streams_that_ended_do_not_wait() {
        let all = Arc::new(WaitingParts::default());
        let mut body = PacedBody::new(Body::from(vec![b'x'; 10_000]), &all, RATE);
        let now = Instant::now();
        let part = body.poll_at(&mut Context::from_waker(Waker::noop()), now);
        assert!(all.is_overdue(now + RATE.window));
        drop(body);
        assert!(all.is_overdue(now + RATE.window), "the part was not sent yet");
        drop(part);
        assert!(!all.is_overdue(now + RATE.window) && all.streams().is_empty());
    }

    #[test]
    fn a_window_has_a_whole_number_of_parts() {
        let of = |bytes| part_bytes(MinRate { bytes, ..RATE });
        assert_eq!(of(30_720), 15_360);
        assert_eq!([of(16_384), of(16_385), of(10_000)], [16_384, 8192, 10_000]);
        assert_eq!([of(1), of(4095), of(u64::MAX)], [4096, 4096, 16_383]);
    }
}
