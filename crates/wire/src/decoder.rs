//! Splits received bytes into frames.
//!
//! Owns: the buffer of received bytes, the boundaries of frames, and the limit on the size of a frame. Does not own:
//! the contents of frames (`frames`), or sockets.
//!
//! Invariants: a header alone never causes a large allocation. Beyond the received bytes, the buffer has room for at
//! most [`READ_BYTES`] plus as many bytes as have been received. Once 48 KiB of a frame have arrived, it may have room
//! for 1 MiB of the frame. After a [`FrameError`] the channel is unusable, because the start of the next frame is
//! unknown; every later call returns the same error.

use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use thalweg_types::{
    Action, Classified,
    limits::{MAX_FRAME_BYTES, MAX_HELLO_BYTES},
};

use crate::header::{HEADER_BYTES, Header};

/// Minimum room in [`Decoder::buffer`] for one read from a socket, in bytes.
pub const READ_BYTES: usize = 64 * 1024;

/// Number of bytes reserved for a frame in one step, once three quarters of [`READ_BYTES`] have arrived. At that point
/// the first buffer is nearly full. If the buffer only doubled from there, nearly all bytes of a frame of 1 MB would be
/// copied while it arrives.
const AHEAD_BYTES: usize = 16 * READ_BYTES;

/// Error after which no further frame can be read from a channel (a TCP connection or a QUIC stream). The caller closes
/// the channel. If the peer still reads, the caller sends a goodbye first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame is larger than the agreed limit.
    #[error("frame of {got} bytes (kind {kind:#06x}) is above the limit of {max}")]
    TooLarge {
        /// Number of bytes after the header that the frame announces.
        got: u32,
        /// Maximum number of bytes after the header that this side accepts.
        max: u32,
        /// Number of the oversized frame's kind.
        kind: u16,
        /// Id of the oversized frame. Before the goodbye, the caller may answer this request with `frame_too_large`.
        id: u32,
    },
}

impl Classified for FrameError {
    fn code(&self) -> &'static str {
        "frame_too_large"
    }

    fn action(&self) -> Action {
        Action::Fix
    }
}

/// A borrowed frame. Its boundaries are known, and its body is not decoded yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawFrame<'a> {
    /// Header of the frame.
    pub header: Header,
    /// All bytes after the header: the optional fields, then the body.
    pub payload: &'a [u8],
}

/// A frame that shares the decoder's buffer. The frame stays valid after the next call of the decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedFrame {
    /// Header of the frame.
    pub header: Header,
    /// All bytes after the header. A slice of them keeps the whole receive buffer in memory, so callers copy small
    /// parts that they keep for long.
    pub payload: Bytes,
}

impl SharedFrame {
    /// Borrows the frame.
    #[must_use]
    pub fn raw(&self) -> RawFrame<'_> {
        RawFrame { header: self.header, payload: &self.payload }
    }

    /// Shares a part of the payload, such as a field of the decoded frame.
    ///
    /// # Panics
    /// If `part` is not borrowed from this frame.
    #[must_use]
    pub fn share(&self, part: &[u8]) -> Bytes {
        self.payload.slice_ref(part)
    }
}

/// Decoder that takes received bytes and returns frames. The module's documentation describes its invariants.
#[derive(Debug)]
pub struct Decoder {
    buffer: BytesMut,
    /// Bytes at the start of the buffer that belong to a borrowed frame already returned.
    used: usize,
    max_bytes: u32,
    /// Number of bytes still to arrive of a frame that is being skipped.
    skipping: usize,
    /// True if the buffer has become larger than two reads. [`release`](Self::release) then drops it instead of
    /// returning it for reuse.
    is_large: bool,
    failed: Option<FrameError>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// Creates the decoder of a new connection. It accepts frames of at most [`MAX_HELLO_BYTES`] until
    /// [`set_max_bytes`](Self::set_max_bytes) is called. A server calls it when it sends its welcome. A client calls it
    /// immediately, because its hello states its limit.
    #[must_use]
    pub fn new() -> Self {
        Self {
            buffer: BytesMut::new(),
            used: 0,
            max_bytes: MAX_HELLO_BYTES,
            skipping: 0,
            is_large: false,
            failed: None,
        }
    }

    /// Sets the maximum number of bytes after the header for all later frames, at most [`MAX_FRAME_BYTES`].
    pub fn set_max_bytes(&mut self, max_bytes: u32) {
        self.max_bytes = max_bytes.min(MAX_FRAME_BYTES as u32);
    }

    /// Copies received bytes into the buffer.
    #[inline]
    pub fn feed(&mut self, bytes: &[u8]) {
        self.forget_used();
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the buffer for reading from a socket, with room after the bytes that are already in it. Unlike
    /// [`feed`](Self::feed), this copies nothing. The caller must leave the existing bytes unchanged.
    pub fn buffer(&mut self) -> &mut BytesMut {
        self.forget_used();
        let have = self.buffer.len();
        if self.buffer.capacity() - have < READ_BYTES / 4 {
            let wanted = self.peek().map_or(0, |header| (HEADER_BYTES + header.len as usize).saturating_sub(have));
            let ahead = if have >= READ_BYTES / 4 * 3 { have.max(AHEAD_BYTES) } else { have };
            let more = wanted.min(ahead).max(READ_BYTES);
            self.is_large |= have + more > 2 * READ_BYTES;
            self.buffer.reserve(more);
        }
        &mut self.buffer
    }

    /// Returns the number of received bytes that are not part of a returned frame. If it is above 0 at the end of a
    /// connection, the connection has ended within a frame.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.buffer.len() - self.used
    }

    /// Returns the header of the next frame as soon as it has arrived, even if the rest of the frame has not.
    #[inline]
    #[must_use]
    pub fn peek(&self) -> Option<Header> {
        if self.skipping > 0 {
            return None;
        }
        self.buffer[self.used..].first_chunk().map(Header::decode)
    }

    /// Returns the next frame, which shares the buffer; `None` until the whole frame has arrived.
    pub fn next_shared(&mut self) -> Result<Option<SharedFrame>, FrameError> {
        let Some((header, range)) = self.complete()? else { return Ok(None) };
        self.forget_used();
        let mut frame = self.buffer.split_to(HEADER_BYTES + range.len());
        frame.advance(HEADER_BYTES);
        Ok(Some(SharedFrame { header, payload: frame.freeze() }))
    }

    /// Returns the next frame, borrowed until the next call. This is cheaper than [`next_shared`](Self::next_shared)
    /// for frames that are processed immediately.
    #[inline]
    pub fn next_borrowed(&mut self) -> Result<Option<RawFrame<'_>>, FrameError> {
        let Some((header, range)) = self.complete()? else { return Ok(None) };
        self.used = range.end;
        Ok(Some(RawFrame { header, payload: &self.buffer[range] }))
    }

    /// Returns the next frame like [`next_borrowed`](Self::next_borrowed), and leaves it in the decoder.
    pub fn peek_frame(&mut self) -> Result<Option<RawFrame<'_>>, FrameError> {
        let Some((header, range)) = self.complete()? else { return Ok(None) };
        Ok(Some(RawFrame { header, payload: &self.buffer[range] }))
    }

    /// Skips the next frame: the bytes that have arrived and those that are still to come. Its header must have
    /// arrived. Callers use this for a frame that is too large for them.
    pub fn skip_frame(&mut self) {
        if let Some(header) = self.peek() {
            self.skipping = HEADER_BYTES + header.len as usize;
            self.skip();
        }
    }

    /// Returns the buffer like [`buffer`](Self::buffer), but calls `spare` for a buffer if the decoder has none.
    /// Callers keep buffers that [`release`](Self::release) has returned as spares.
    pub fn buffer_or(&mut self, spare: impl FnOnce() -> BytesMut) -> &mut BytesMut {
        if self.buffer.capacity() == 0 {
            self.buffer = spare();
            self.used = 0;
        }
        self.buffer()
    }

    /// Removes the buffer from a decoder to save memory, while the decoder's channel (a TCP connection or a QUIC
    /// stream) waits for the peer. Returns the buffer for reuse; `None` if it contains a part of a frame, which stays,
    /// or if it has become large and was dropped.
    pub fn release(&mut self) -> Option<BytesMut> {
        if self.pending_bytes() > 0 {
            return None;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        self.used = 0;
        buffer.clear();
        (!std::mem::take(&mut self.is_large)).then_some(buffer)
    }

    fn skip(&mut self) {
        let passed = self.skipping.min(self.pending_bytes());
        self.used += passed;
        self.skipping -= passed;
    }

    #[inline]
    fn forget_used(&mut self) {
        if self.used > 0 {
            self.buffer.advance(self.used);
            self.used = 0;
        }
    }

    /// Returns the header of the next frame and the range of its payload in the buffer; `None` until the whole frame
    /// has arrived.
    #[inline]
    fn complete(&mut self) -> Result<Option<(Header, Range<usize>)>, FrameError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.skipping > 0 {
            self.skip();
        }
        let Some(header) = self.peek() else { return Ok(None) };
        if header.len > self.max_bytes {
            let Header { len: got, kind, id, .. } = header;
            let error = FrameError::TooLarge { got, max: self.max_bytes, kind, id };
            self.failed = Some(error.clone());
            return Err(error);
        }
        let begin = self.used + HEADER_BYTES;
        let end = begin + header.len as usize;
        Ok((end <= self.buffer.len()).then_some((header, begin..end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::{Fields, put_frame};

    fn frame(id: u32, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_frame(&mut out, 4, id, &Fields::default(), |out| {
            out.extend_from_slice(body);
            Ok(())
        })
        .unwrap();
        out
    }

    #[test]
    fn frames_come_out_whole_however_they_came_in() {
        let bodies = [&b"first"[..], b"", &[7; 3000], b"last"];
        let stream: Vec<u8> = (1..).zip(bodies).flat_map(|(id, body)| frame(id, body)).collect();
        for step in [1, 2, 11, 12, 13, 100, stream.len()] {
            let mut decoder = Decoder::new();
            let mut got = Vec::new();
            for chunk in stream.chunks(step) {
                decoder.feed(chunk);
                loop {
                    // Alternates between the two methods.
                    let next = if got.len() % 2 == 0 {
                        decoder.next_shared().unwrap().map(|frame| (frame.header.id, frame.payload.to_vec()))
                    } else {
                        decoder.next_borrowed().unwrap().map(|frame| (frame.header.id, frame.payload.to_vec()))
                    };
                    let Some(next) = next else { break };
                    got.push(next);
                }
            }
            let wanted: Vec<_> = (1..).zip(bodies.map(<[u8]>::to_vec)).collect();
            assert_eq!(got, wanted, "in steps of {step}");
            assert_eq!(decoder.pending_bytes(), 0);
        }
    }

    #[test]
    fn what_is_read_into_the_buffer_joins_what_is_there() {
        let stream: Vec<u8> = (1..=400).flat_map(|id: u32| frame(id, &vec![id as u8; id as usize * 3])).collect();
        for step in [5, 1000, 40_000] {
            let mut decoder = Decoder::new();
            let (mut at, mut seen) = (0, 0);
            while at < stream.len() {
                // A socket delivers at most as many bytes as the buffer has room for.
                let buffer = decoder.buffer();
                let room = buffer.capacity() - buffer.len();
                assert!(room > 0);
                let read = step.min(room).min(stream.len() - at);
                buffer.extend_from_slice(&stream[at..at + read]);
                at += read;
                while let Some(raw) = decoder.next_borrowed().unwrap() {
                    seen += 1;
                    assert_eq!((raw.header.id, raw.payload.len()), (seen, seen as usize * 3), "in steps of {step}");
                    assert!(raw.payload.iter().all(|byte| *byte == seen as u8));
                }
            }
            assert_eq!((seen, decoder.pending_bytes()), (400, 0));
        }
    }

    #[test]
    fn an_announced_length_is_not_allocated() {
        let mut decoder = Decoder::new();
        decoder.set_max_bytes(u32::MAX);
        let header = Header { len: MAX_FRAME_BYTES as u32, kind: 4, fields: 0, id: 1 };
        decoder.feed(&header.encode());
        assert_eq!(decoder.next_shared(), Ok(None));
        assert!(decoder.buffer().capacity() <= 2 * READ_BYTES, "{}", decoder.buffer().capacity());
        decoder.feed(&[0; READ_BYTES]);
        assert_eq!(decoder.next_shared(), Ok(None));
        assert!(decoder.buffer().capacity() <= 2 * AHEAD_BYTES, "{}", decoder.buffer().capacity());
        decoder.feed(&vec![0; 2 << 20]);
        assert_eq!(decoder.next_shared(), Ok(None));
        assert!(decoder.buffer().capacity() <= 8 << 20, "{}", decoder.buffer().capacity());
        assert_eq!(decoder.peek(), Some(header));
    }

    #[test]
    fn a_frame_of_a_megabyte_is_moved_once_while_it_comes() {
        let stream = frame(1, &vec![3; 1_000_000]);
        let mut decoder = Decoder::new();
        decoder.set_max_bytes(u32::MAX);
        let (mut at, mut rooms) = (0, Vec::new());
        while at < stream.len() {
            let buffer = decoder.buffer();
            rooms.push(buffer.capacity());
            let read = READ_BYTES.min(buffer.capacity() - buffer.len()).min(stream.len() - at);
            buffer.extend_from_slice(&stream[at..at + read]);
            at += read;
        }
        rooms.dedup();
        assert_eq!(rooms.len(), 2, "{rooms:?}");
        assert_eq!(decoder.next_shared().unwrap().unwrap().payload.len(), 1_000_000);
    }

    #[test]
    fn a_frame_above_the_limit_ends_the_channel() {
        let mut decoder = Decoder::new();
        decoder.feed(&frame(1, &[0; MAX_HELLO_BYTES as usize]));
        assert!(decoder.next_borrowed().unwrap().is_some(), "at the limit");
        decoder.feed(&frame(9, &[0; MAX_HELLO_BYTES as usize + 1])[..HEADER_BYTES]);
        let error = FrameError::TooLarge { got: MAX_HELLO_BYTES + 1, max: MAX_HELLO_BYTES, kind: 4, id: 9 };
        assert_eq!(decoder.next_shared(), Err(error.clone()), "as soon as the header is there");
        decoder.feed(&frame(1, b""));
        decoder.set_max_bytes(1 << 20);
        assert_eq!(decoder.next_borrowed(), Err(error), "for good");
    }

    #[test]
    fn a_frame_is_passed_over_however_it_comes() {
        let stream = [frame(1, b"first"), frame(2, &[9; 3000]), frame(3, b"last")].concat();
        for step in [1, 7, 100, stream.len()] {
            let mut decoder = Decoder::new();
            let mut got = Vec::new();
            for chunk in stream.chunks(step) {
                decoder.feed(chunk);
                loop {
                    if decoder.peek().is_some_and(|header| header.id == 2) {
                        decoder.skip_frame();
                    }
                    let Some(next) = decoder.next_borrowed().unwrap() else { break };
                    got.push((next.header.id, next.payload.to_vec()));
                }
                assert!(decoder.buffer().len() <= 3000, "skipped bytes are not kept");
            }
            assert_eq!(got, [(1, b"first".to_vec()), (3, b"last".to_vec())], "in steps of {step}");
            decoder.release();
            assert_eq!(decoder.pending_bytes(), 0);
        }
    }

    #[test]
    fn text_of_another_protocol_is_too_large() {
        let mut decoder = Decoder::new();
        decoder.feed(b"GET / HTTP/1.1\r\n\r\n");
        assert!(decoder.next_shared().is_err());
    }

    #[test]
    fn shares_outlive_the_decoder() {
        let mut decoder = Decoder::new();
        decoder.feed(&frame(1, b"payload"));
        let shared = decoder.next_shared().unwrap().unwrap();
        let part = shared.share(&shared.payload[3..]);
        drop((decoder, shared));
        assert_eq!(part, "load");
    }
}
