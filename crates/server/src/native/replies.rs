//! What a channel is about to send: replies, pushes, errors.
//!
//! Owns: putting frames into the channel's outbox, and what the client takes at most. Does not own when they are written
//! (`channel`).
//!
//! Invariant: a frame is in the outbox whole or not at all.

use bytes::Bytes;
use thalweg_transport::Outbox;
use thalweg_types::Action;
use thalweg_wire::{EncodeError, Frame, HEADER_BYTES, Header, Kind};

use super::failure::Failure;
use crate::limits::OUTBOX_BYTES;

/// What waits to be written to a channel.
#[derive(Debug)]
pub struct Replies {
    outbox: Outbox,
    max_frame_bytes: usize,
}

impl Replies {
    /// To a client that takes frames of so many bytes.
    #[must_use]
    pub fn new(max_frame_bytes: u32) -> Self {
        Self { outbox: Outbox::new(), max_frame_bytes: max_frame_bytes as usize }
    }

    /// Where it waits.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Bytes that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.outbox.len()
    }

    /// Whether none do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Whether more may be put in: less than [`OUTBOX_BYTES`] wait. One frame may pass that, so what waits is bounded by it
    /// and the largest frame that the client takes.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.outbox.len() < OUTBOX_BYTES
    }

    /// What the client takes in a frame, header not counted.
    #[must_use]
    pub fn max_frame_bytes(&self) -> usize {
        self.max_frame_bytes
    }

    /// Answers a request; nothing is said to one without an id.
    ///
    /// # Errors
    /// The client does not take so large a frame: `result_too_large`.
    #[inline]
    pub fn reply<'f>(&mut self, id: u32, frame: &impl Frame<'f>) -> Result<(), Failure> {
        self.encoded(id, |out| frame.encode(out, id).map(|()| true)).map(drop)
    }

    /// As [`reply`](Self::reply), for an encoder that says whether there is a frame.
    pub fn encoded(
        &mut self,
        id: u32,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<bool, EncodeError>,
    ) -> Result<bool, Failure> {
        if id == 0 {
            return Ok(true);
        }
        self.put(encode)
    }

    /// Pushes a frame to a subscription, or says something about the connection (id 0).
    ///
    /// # Errors
    /// As of [`reply`](Self::reply).
    pub fn push<'f>(&mut self, id: u32, frame: &impl Frame<'f>) -> Result<(), Failure> {
        self.put(|out| frame.encode(out, id).map(|()| true)).map(drop)
    }

    fn put(&mut self, encode: impl FnOnce(&mut Vec<u8>) -> Result<bool, EncodeError>) -> Result<bool, Failure> {
        let max = self.max_frame_bytes;
        let out = self.outbox.buffer();
        let begin = out.len();
        let there = match encode(out) {
            Ok(there) => there,
            Err(error) => {
                out.truncate(begin);
                return Err(match error {
                    EncodeError::FrameTooLarge { got, .. } => too_large(got, max),
                    other => Failure::new("internal", Action::Stop, other.to_string()),
                });
            }
        };
        let got = (out.len() - begin).saturating_sub(HEADER_BYTES);
        if got > max {
            out.truncate(begin);
            return Err(too_large(got, max));
        }
        Ok(there)
    }

    /// Puts a frame some of whose bytes are shared. `body_bytes` is the length of what `write` writes.
    ///
    /// # Errors
    /// As of [`reply`](Self::reply); then `write` is not called.
    pub fn shared(
        &mut self,
        kind: Kind,
        id: u32,
        body_bytes: usize,
        write: impl FnOnce(&mut Parts<'_>),
    ) -> Result<(), Failure> {
        if body_bytes > self.max_frame_bytes {
            return Err(too_large(body_bytes, self.max_frame_bytes));
        }
        let before = self.outbox.len();
        let len = u32::try_from(body_bytes).expect("at most what a client takes");
        let header = Header { len, kind: kind as u16, fields: 0, id };
        self.outbox.buffer().extend_from_slice(&header.encode());
        write(&mut Parts(&mut self.outbox));
        assert_eq!(self.outbox.len() - before, HEADER_BYTES + body_bytes, "a frame is as long as it says");
        Ok(())
    }

    /// Tells of a failure; also where nobody waits for a reply.
    pub fn fail(&mut self, id: u32, failure: &Failure) {
        // Its parts are bounded far below what any client takes.
        let encoded = failure.failed(|failed| self.push(id, failed));
        debug_assert!(encoded.is_ok(), "{encoded:?}");
    }

    /// Ends a subscription.
    pub fn end(&mut self, id: u32, failure: &Failure) {
        let encoded = failure.ended(|ended| self.push(id, ended));
        debug_assert!(encoded.is_ok(), "{encoded:?}");
    }
}

/// The body of a frame as it is written.
#[derive(Debug)]
pub struct Parts<'o>(&'o mut Outbox);

impl Parts<'_> {
    /// Bytes of its own.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        self.0.buffer()
    }

    /// Bytes that are shared.
    pub fn share(&mut self, bytes: Bytes) {
        self.0.share(bytes);
    }
}

fn too_large(got: usize, max: usize) -> Failure {
    let message = format!("the reply would have {got} bytes and the client takes {max}: ask for less at a time");
    Failure::fix("result_too_large", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_wire::{Decoder, Pong, ServerFrame};

    #[test]
    fn a_frame_above_what_the_client_takes_leaves_no_trace() {
        let mut replies = Replies::new(16);
        replies.reply(1, &Pong { token: 7 }).unwrap();
        let before = replies.len();
        let large = replies.encoded(2, |out| {
            out.resize(out.len() + HEADER_BYTES + 17, 0);
            Ok(true)
        });
        assert_eq!(large.unwrap_err().code(), "result_too_large");
        assert_eq!(replies.shared(Kind::Records, 2, 17, |_| ()).unwrap_err().code(), "result_too_large");
        assert_eq!(replies.len(), before);
    }

    #[test]
    fn shared_parts_are_where_they_were_put() {
        let mut replies = Replies::new(1 << 20);
        let shared = Bytes::from(vec![7; 5000]);
        let written = |parts: &mut Parts<'_>| {
            parts.bytes().extend_from_slice(b"ab");
            parts.share(shared.clone());
            parts.bytes().push(b'c');
        };
        replies.shared(Kind::Records, 9, 5003, written).unwrap();
        let mut wire = Vec::new();
        while !replies.is_empty() {
            let chunk = bytes::Buf::chunk(replies.outbox()).to_vec();
            bytes::Buf::advance(replies.outbox(), chunk.len());
            wire.extend_from_slice(&chunk);
        }
        assert_eq!((&wire[12..14], wire[14], wire[5013], wire[5014]), (&b"ab"[..], 7, 7, b'c'));
    }

    #[test]
    fn failures_are_told_even_without_an_id() {
        let mut replies = Replies::new(1 << 16);
        replies.reply(0, &Pong { token: 7 }).unwrap();
        assert!(replies.is_empty(), "nobody waits");
        replies.fail(0, &Failure::fix("some_code", "x".repeat(100_000)).with("next", 5));
        let mut decoder = Decoder::new();
        decoder.feed(replies.outbox().buffer());
        let raw = decoder.next_borrowed().unwrap().unwrap();
        match ServerFrame::decode(raw).unwrap().frame {
            ServerFrame::Failed(failed) => assert_eq!((failed.code, failed.detail("next")), ("some_code", Some(5))),
            other => panic!("{other:?}"),
        }
    }
}
