//! Send queue of a channel.
//!
//! Owns: the queued bytes and their order, and the slices of a vectored write. Does not own: the connection
//! (`channel`), or a limit on the queue.
//!
//! Small frames are appended to one buffer. Large byte buffers that several channels share are queued as references,
//! each with the position in the small buffer at which it is sent. So a burst of small frames is one contiguous slice,
//! and a batch of messages for a thousand subscribers is in memory only once.
//!
//! ```text
//! buffer   | sent | a frame | prefix ^ prefix ^ a frame |         ^: a shared piece goes here
//!          0      start                                 len
//! ```
//!
//! Invariants: the positions of shared pieces never decrease, and lie between the sent bytes and the buffer's
//! end.
//! Memory: unbounded; the code that appends must stop at its own limit, measured with [`Outbox::len`]. In
//! addition to queued bytes, an outbox holds at most the same number of sent bytes, plus [`IDLE_BYTES`].

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;

/// Minimum size in bytes of a shared buffer that is queued as a reference. Smaller ones are copied, because a copy
/// costs less than another slice in a vectored write.
pub const SHARED_FROM_BYTES: usize = 1024;

/// Capacity in bytes that an empty outbox keeps for the next frames.
const IDLE_BYTES: usize = 64 * 1024;

/// Minimum size in bytes of the buffer of small frames that is handed to QUIC without a copy. QUIC keeps sent bytes
/// until they are acknowledged. From a buffer below this size, the bytes are copied for QUIC. Copying 32 KiB takes 10
/// µs, or twice as long if the remaining bytes must also move to the front of the buffer.
const OWN_FROM_BYTES: usize = 32 * 1024;

/// Maximum number of slices in one write over TLS.
const WRITE_SLICES: usize = 32;

/// Maximum number of bytes in one write. A kernel that can send immediately copies all of them, and during the copy the
/// thread serves no other connection. Callers stop filling an outbox at 128 KiB, but the last batch of messages can
/// exceed that. With a limit of 128 KiB, the excess would become a small write after each large one; a small write
/// costs a segment and wakes the receiver.
pub(crate) const MAX_WRITE_BYTES: usize = 192 * 1024;

/// Queue of the bytes that a channel has to send, in order. Small frames are copied to one buffer; large shared buffers
/// are queued as references.
#[derive(Debug, Default)]
pub struct Outbox {
    buffer: Vec<u8>,
    /// Number of bytes at the front of `buffer` that were sent already. `start <= buffer.len()`
    start: usize,
    shared: VecDeque<Shared>,
    shared_bytes: usize,
}

#[derive(Debug)]
struct Shared {
    /// Position in the outbox's buffer of small frames at which these shared bytes are sent: after the buffer's bytes
    /// before this position, and before its later bytes. `start <= behind <= buffer.len()`
    behind: usize,
    bytes: Bytes,
}

impl Outbox {
    /// Creates an empty outbox, without allocating memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Buffer to which callers append small frames. Callers may only append bytes, or remove bytes that they have just
    /// appended. Earlier bytes may be partly sent, or mark the position of a shared buffer in the queue.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Queues `bytes`, which other owners may share. Keeps a reference to them, but copies fewer than
    /// [`SHARED_FROM_BYTES`].
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

    /// Appends all queued bytes of `other` to this outbox.
    pub fn append(&mut self, mut other: Self) {
        let mut from = other.start;
        for Shared { behind, bytes } in other.shared.drain(..) {
            self.buffer.extend_from_slice(&other.buffer[from..behind]);
            from = behind;
            self.share(bytes);
        }
        self.buffer.extend_from_slice(&other.buffer[from..]);
    }

    /// Number of queued bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len() - self.start + self.shared_bytes
    }

    /// Returns true if no bytes are queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Releases all memory of an empty outbox, for a channel that has become idle. Has no effect while bytes
    /// are queued.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            *self = Self::new();
        }
    }

    /// Converts a large buffer of small frames into shared pieces, so that QUIC takes its bytes without a
    /// copy. A smaller buffer stays, because a copy is cheaper than allocating a new buffer.
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

    /// Appends references to the front of the queue to `into`: up to `max_shared` shared buffers, and the small frames
    /// between and after them. Shared buffers are not copied. Small frames are copied once, at most `max_gathered`
    /// bytes of them.
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

    /// Writes bytes from the front of the queue to a writer without removing them. Returns the number of
    /// bytes written.
    pub(crate) fn poll_write_to<W: AsyncWrite + Unpin>(
        &self,
        to: &mut W,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); WRITE_SLICES];
        let used = self.slices(&mut slices, MAX_WRITE_BYTES);
        Pin::new(to).poll_write_vectored(cx, &slices[..used])
    }

    /// Writes bytes from the front of the queue and removes the written ones. A write of 0 bytes while bytes
    /// are queued is an error, because otherwise the caller would retry forever.
    pub(crate) fn poll_send<W: AsyncWrite + Unpin>(
        &mut self,
        to: &mut W,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.is_empty() {
            return Poll::Ready(Ok(0));
        }
        // A plain write is cheaper for the kernel than a vectored write of one slice.
        let written = match self.shared.is_empty() {
            true => {
                let chunk = self.chunk();
                ready!(Pin::new(to).poll_write(cx, &chunk[..chunk.len().min(MAX_WRITE_BYTES)]))?
            }
            false => ready!(self.poll_write_to(to, cx))?,
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.sent(written);
        Poll::Ready(Ok(written))
    }

    /// Fills `into` with slices from the front of the queue, `max_bytes` in total at most. Returns their number.
    fn slices<'a>(&'a self, into: &mut [IoSlice<'a>], max_bytes: usize) -> usize {
        let (mut used, mut left) = (0, max_bytes);
        let mut put = |bytes: &'a [u8]| {
            let bytes = &bytes[..bytes.len().min(left)];
            if !bytes.is_empty() && used < into.len() {
                into[used] = IoSlice::new(bytes);
                used += 1;
                left -= bytes.len();
            }
            used < into.len() && left > 0
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

    /// Removes `count` sent bytes from the front of the queue.
    pub(crate) fn sent(&mut self, count: usize) {
        self.advance(count);
    }

    /// Returns the position in the buffer of small frames up to which its bytes are sent before the next shared buffer.
    /// Returns the end of the buffer if no shared buffer is queued.
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

/// Presents the queued bytes as slices to a writer.
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
        self.slices(into, usize::MAX)
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.len(), "cannot advance past the queued bytes");
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
