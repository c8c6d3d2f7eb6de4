//! What a channel is to send, in order.
//!
//! Small frames are gathered in one buffer; large shared bytes are kept as references with the place in that buffer
//! behind which they go. So a burst of small frames is one contiguous piece, and a batch that goes to a thousand
//! subscribers is in memory once.
//!
//! ```text
//! buffer   | sent | a frame | prefix ^ prefix ^ a frame |         ^: a shared piece goes here
//!          0      start                                 len
//! ```
//!
//! Invariants: the places of shared pieces never fall, and lie between what is sent and the buffer's end.
//! Memory: no bound of its own, because who appends must know when to stop: look at [`Outbox::len`]. Beside what is queued
//! it holds at most as much again of what is sent, plus [`IDLE_BYTES`].

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;

/// Shared bytes from this size on stay references; smaller ones are copied, which costs less than a piece of their own
/// in a vectored write.
pub const SHARED_FROM_BYTES: usize = 1024;

/// Room that an empty outbox keeps for the next frames.
const IDLE_BYTES: usize = 64 * 1024;

/// A buffer of so many bytes is handed on as it is over QUIC, which keeps what was sent until it is acknowledged. Copying so
/// many takes 10 µs, and twice that with moving what is left to the front.
const OWN_FROM_BYTES: usize = 32 * 1024;

/// Pieces that one write over TLS takes.
const WRITE_SLICES: usize = 32;

/// What is to be sent, in order: small frames gathered in a buffer of its own, large shared bytes as references.
#[derive(Debug, Default)]
pub struct Outbox {
    buffer: Vec<u8>,
    /// Sent bytes at the front of `buffer`. `start <= buffer.len()`
    start: usize,
    shared: VecDeque<Shared>,
    shared_bytes: usize,
}

#[derive(Debug)]
struct Shared {
    /// The piece goes out when the buffer is sent up to here. `start <= behind <= buffer.len()`
    behind: usize,
    bytes: Bytes,
}

impl Outbox {
    /// Empty, without memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Where small frames are appended. Only append: what is in it already may have other bytes between it, and may be
    /// half sent. (Taking back what was just appended is fine.)
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Puts `bytes` behind all that is here so far. They are kept as a reference, unless they are so few that copying
    /// them is cheaper: see [`SHARED_FROM_BYTES`].
    pub fn share(&mut self, bytes: Bytes) {
        if bytes.len() < SHARED_FROM_BYTES {
            self.buffer.extend_from_slice(&bytes);
            return;
        }
        let behind = self.buffer.len();
        debug_assert!(self.shared.back().is_none_or(|last| last.behind <= behind), "the buffer was cut");
        self.shared_bytes += bytes.len();
        self.shared.push_back(Shared { behind, bytes });
    }

    /// Puts all that waits in `other` behind all that is here so far.
    pub fn append(&mut self, mut other: Self) {
        let mut from = other.start;
        for Shared { behind, bytes } in other.shared.drain(..) {
            self.buffer.extend_from_slice(&other.buffer[from..behind]);
            from = behind;
            self.share(bytes);
        }
        self.buffer.extend_from_slice(&other.buffer[from..]);
    }

    /// Bytes that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len() - self.start + self.shared_bytes
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes back memory that is not needed: all of it from an empty outbox. For a channel that has gone idle.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            *self = Self::new();
        }
    }

    /// Makes pieces of the buffer what is shared already, if it is so large that copying it costs more than a new one: what
    /// was composed in it goes on without a copy.
    pub(crate) fn share_large_buffer(&mut self) {
        if self.buffer.len() - self.start < OWN_FROM_BYTES {
            return;
        }
        let gathered = Bytes::from(std::mem::take(&mut self.buffer));
        let mut from = std::mem::take(&mut self.start);
        self.shared_bytes += gathered.len() - from;
        let mut pieces = VecDeque::with_capacity(2 * self.shared.len() + 1);
        let mut put = |to: usize, pieces: &mut VecDeque<Shared>| {
            if from < to {
                pieces.push_back(Shared { behind: 0, bytes: gathered.slice(from..to) });
                from = to;
            }
        };
        for Shared { behind, bytes } in self.shared.drain(..) {
            put(behind, &mut pieces);
            pieces.push_back(Shared { behind: 0, bytes });
        }
        put(gathered.len(), &mut pieces);
        self.shared = pieces;
    }

    /// The front as references, up to `max_shared` shared pieces and what goes between and behind them. Shared bytes come as
    /// they are, those of the buffer copied once, at most `max_gathered` of them.
    pub(crate) fn pieces(&self, into: &mut Vec<Bytes>, max_shared: usize, max_gathered: usize) {
        let whole = self.shared.get(max_shared).map_or(self.buffer.len(), |next| next.behind);
        let end = whole.min(self.start + max_gathered);
        let gathered = Bytes::copy_from_slice(&self.buffer[self.start..end]);
        let mut from = self.start;
        let mut put = |to: usize, into: &mut Vec<Bytes>| {
            if from < to {
                into.push(gathered.slice(from - self.start..to - self.start));
                from = to;
            }
        };
        for Shared { behind, bytes } in self.shared.iter().take(max_shared).take_while(|shared| shared.behind <= end) {
            put(*behind, into);
            into.push(bytes.clone());
        }
        put(end, into);
    }

    /// Writes from the front without removing it; says how much.
    pub(crate) fn poll_write_to<W: AsyncWrite + Unpin>(
        &self,
        to: &mut W,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); WRITE_SLICES];
        let used = self.chunks_vectored(&mut slices);
        Pin::new(to).poll_write_vectored(cx, &slices[..used])
    }

    /// Writes from the front and removes what was written; an error if that is nothing, though something waits: it would be
    /// tried again for ever.
    pub(crate) fn poll_send<W: AsyncWrite + Unpin>(
        &mut self,
        to: &mut W,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.is_empty() {
            return Poll::Ready(Ok(0));
        }
        // The kernel takes one piece more cheaply than a list of one.
        let written = match self.shared.is_empty() {
            true => ready!(Pin::new(to).poll_write(cx, self.chunk()))?,
            false => ready!(self.poll_write_to(to, cx))?,
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.sent(written);
        Poll::Ready(Ok(written))
    }

    /// Removes the front, which was sent.
    pub(crate) fn sent(&mut self, count: usize) {
        self.advance(count);
    }

    /// Where the buffer's bytes end that go before the next shared piece.
    fn gathered_end(&self) -> usize {
        self.shared.front().map_or(self.buffer.len(), |next| next.behind)
    }

    fn compact(&mut self) {
        if self.start == self.buffer.len() && self.shared.is_empty() {
            self.start = 0;
            self.buffer.clear();
            self.buffer.shrink_to(IDLE_BYTES);
        } else if self.start >= IDLE_BYTES && self.start >= self.buffer.len() / 2 {
            self.buffer.drain(..self.start);
            for shared in &mut self.shared {
                shared.behind -= self.start;
            }
            self.start = 0;
        }
    }
}

/// How a writer sees it.
impl Buf for Outbox {
    fn remaining(&self) -> usize {
        self.len()
    }

    fn chunk(&self) -> &[u8] {
        let end = self.gathered_end();
        match self.shared.front() {
            Some(next) if self.start == end => &next.bytes,
            _ => &self.buffer[self.start..end],
        }
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let mut used = 0;
        let mut put = |bytes: &'a [u8]| {
            if !bytes.is_empty() && used < into.len() {
                into[used] = IoSlice::new(bytes);
                used += 1;
            }
            used < into.len()
        };
        let mut from = self.start;
        for Shared { behind, bytes } in &self.shared {
            if !put(&self.buffer[from..*behind]) || !put(bytes) {
                return used;
            }
            from = *behind;
        }
        put(&self.buffer[from..]);
        used
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.len(), "cannot advance past what waits");
        while count > 0 {
            let gathered = (self.gathered_end() - self.start).min(count);
            self.start += gathered;
            count -= gathered;
            let Some(next) = self.shared.front_mut().filter(|_| count > 0) else { break };
            let taken = next.bytes.len().min(count);
            next.bytes.advance(taken);
            self.shared_bytes -= taken;
            count -= taken;
            if next.bytes.is_empty() {
                self.shared.pop_front();
            }
        }
        self.compact();
    }
}

#[cfg(test)]
mod tests;
