//! Outgoing frames of a channel: replies, pushes, errors.
//!
//! Owns: encoding frames into the channel's outbox, the client's maximum frame size, and counting large frames against
//! `max_reply_bytes_in_flight` until they are sent. Does not own: the time at which frames are written to the socket
//! (`channel`).
//!
//! Invariants: the outbox contains each frame completely or not at all. At most [`COUNTED_REPLY_BYTES`] plus
//! [`OUTBOX_BYTES`] of its bytes are not counted against the server's limit. Frames that are [counted
//! elsewhere](FrameMemory::CountedBySource) come in addition.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_serving::{
    admission::{Account, Reservation, Resource, counted},
    limits::{COUNTED_REPLY_BYTES, OUTBOX_BYTES, REQUEST_BYTES},
};
use thalweg_transport::{Outbox, SHARED_FROM_BYTES};
use thalweg_types::{Action, Durability};
use thalweg_wire::{EncodeError, Fields, Frame, HEADER_BYTES, Header, Kind};

use super::failure::Failure;

/// Outbox of a channel (a TCP connection or a QUIC stream): encoded frames that wait to be written to the client.
#[derive(Debug)]
pub(crate) struct Replies {
    outbox: Outbox,
    max_frame_bytes: usize,
    account: Arc<Account>,
    /// Size in bytes from which a frame counts in the server's limit on the bytes of replies
    /// (`max_reply_bytes_in_flight`).
    counted_from: usize,
    /// Durability level that the last reply states.
    level: Option<Durability>,
}

/// Source of the memory reservation for a large frame, in the server's limit on replies.
#[derive(Debug)]
pub(crate) enum FrameMemory {
    /// The frame needs a new memory reservation. It is rejected if the server's limit on replies has been reached. Used
    /// for replies to reads.
    Reserve,
    /// The frame is counted even above the server's limit on the bytes of replies, because the change or message that
    /// it reports has already happened.
    Exceed,
    /// The caller has already reserved memory for the frame. Contains the reservation.
    Reserved(Reservation),
    /// This outbox does not count the frame, because its data is small, or counted elsewhere.
    CountedBySource,
}

impl FrameMemory {
    /// Reserves memory for a frame of `bytes` bytes, if frames of this size are counted.
    ///
    /// # Errors `overloaded` if the server's limit on the bytes of replies has no room for the frame.
    pub(crate) fn reserve(account: &Arc<Account>, bytes: usize) -> Result<Self, Failure> {
        if bytes < COUNTED_REPLY_BYTES {
            return Ok(Self::Reserve);
        }
        account.take(Resource::ReplyBytes, bytes as u64).map(Self::Reserved).ok_or_else(no_room)
    }

    /// Takes the memory for a frame of `bytes` bytes out of this value, which stands for several frames. If this value
    /// is a reservation, moves a part of it into the result; otherwise returns a copy.
    pub(crate) fn split_off(&mut self, bytes: usize) -> Self {
        match self {
            Self::Reserved(held) => Self::Reserved(held.split_off(bytes as u64)),
            Self::Reserve => Self::Reserve,
            Self::Exceed => Self::Exceed,
            Self::CountedBySource => Self::CountedBySource,
        }
    }
}

impl Replies {
    /// Creates an empty outbox for a client that accepts frames of at most `max_frame_bytes`. Large frames count in
    /// `account`.
    #[must_use]
    pub(crate) fn new(max_frame_bytes: u32, account: Arc<Account>) -> Self {
        let max_frame_bytes = max_frame_bytes as usize;
        Self { outbox: Outbox::new(), max_frame_bytes, account, counted_from: COUNTED_REPLY_BYTES, level: None }
    }

    /// Returns a handle with which other threads can encode frames. The channel (a TCP connection or a QUIC stream)
    /// later appends these frames to its outbox.
    #[must_use]
    pub(crate) fn factory(&self) -> ReplyFactory {
        ReplyFactory { max_frame_bytes: self.max_frame_bytes, account: Arc::clone(&self.account) }
    }

    /// Appends the frames in `aside`, which another thread has encoded with a handle from [`factory`](Self::factory).
    pub(crate) fn append(&mut self, aside: Self) {
        self.level = aside.level.or(self.level);
        self.outbox.append(aside.outbox);
    }

    /// Records the durability level that the next reply states. Used for metrics.
    pub(crate) fn states(&mut self, level: Durability) {
        self.level = Some(level);
    }

    /// Returns the durability level that a reply has stated since the previous call; `None` if no reply has.
    pub(crate) fn take_level(&mut self) -> Option<Durability> {
        self.level.take()
    }

    /// Returns the buffers with the encoded bytes, which the channel (a TCP connection or a QUIC stream) writes to the
    /// socket.
    pub(crate) fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Returns the account of the connection, in which large frames count.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Number of bytes that wait to be written to the client.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.outbox.len()
    }

    /// Returns true if no bytes wait to be written to the client.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Returns true if another frame may be added, because fewer than [`OUTBOX_BYTES`] bytes wait to be written. The
    /// added frame may exceed this number.
    #[must_use]
    pub(crate) fn has_room(&self) -> bool {
        self.outbox.len() < OUTBOX_BYTES
    }

    /// Maximum size in bytes of a frame that the client accepts, without its header.
    #[must_use]
    pub(crate) fn max_frame_bytes(&self) -> usize {
        self.max_frame_bytes
    }

    /// Puts the reply to a request that only reads into the outbox. A request without an id gets no reply.
    ///
    /// # Errors
    /// `result_too_large` if the client does not accept frames of this size; `overloaded` if the limit has no room for
    /// the frame.
    #[inline]
    pub(crate) fn reply<'f>(&mut self, id: u32, frame: &impl Frame<'f>) -> Result<(), Failure> {
        if id == 0 {
            return Ok(());
        }
        self.put(FrameMemory::Reserve, |out| frame.encode(out, id).map(|()| true)).map(drop)
    }

    /// Puts a reply into the outbox like [`reply`](Self::reply). `encode` appends the frame to a buffer.
    ///
    /// # Errors
    /// Same errors as [`reply`](Self::reply).
    pub(crate) fn reply_encoded(
        &mut self,
        id: u32,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<bool, EncodeError>,
    ) -> Result<(), Failure> {
        if id == 0 {
            return Ok(());
        }
        self.put(FrameMemory::Reserve, encode).map(drop)
    }

    /// Puts a reply into the outbox like [`reply`](Self::reply), with the reservation `room` for a frame of about
    /// `bytes` bytes. The buffer is allocated in advance, so that encoding needs no more memory than that.
    ///
    /// # Errors
    /// Same errors as [`reply`](Self::reply).
    pub(crate) fn reply_sized<'f>(
        &mut self,
        id: u32,
        frame: &impl Frame<'f>,
        bytes: usize,
        room: FrameMemory,
    ) -> Result<(), Failure> {
        if id == 0 {
            return Ok(());
        }
        if bytes >= self.counted_from {
            self.outbox.buffer().reserve_exact(bytes);
        }
        self.put(room, |out| frame.encode(out, id).map(|()| true)).map(drop)
    }

    /// Puts the reply to a request that has taken effect into the outbox, even above the memory limit. `encode` returns
    /// false if no frame is to be sent.
    ///
    /// # Errors
    /// `result_too_large` if the client does not accept frames of this size.
    pub(crate) fn reply_after_effect(
        &mut self,
        id: u32,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<bool, EncodeError>,
    ) -> Result<bool, Failure> {
        if id == 0 {
            return Ok(true);
        }
        self.put(FrameMemory::Exceed, encode)
    }

    /// Puts a frame of a subscription into the outbox, or a frame about the connection itself (id 0).
    ///
    /// # Errors
    /// Same errors as [`reply_after_effect`](Self::reply_after_effect).
    pub(crate) fn push<'f>(&mut self, id: u32, frame: &impl Frame<'f>) -> Result<(), Failure> {
        self.push_reserved(id, frame, FrameMemory::Exceed)
    }

    /// Puts a frame of a subscription into the outbox, with the reservation `room`.
    ///
    /// # Errors
    /// Same errors as [`reply_after_effect`](Self::reply_after_effect).
    pub(crate) fn push_reserved<'f>(
        &mut self,
        id: u32,
        frame: &impl Frame<'f>,
        room: FrameMemory,
    ) -> Result<(), Failure> {
        self.put(room, |out| frame.encode(out, id).map(|()| true)).map(drop)
    }

    /// Puts a reply with optional fields into the outbox, otherwise like [`reply`](Self::reply).
    ///
    /// # Errors
    /// Same errors as [`reply`](Self::reply).
    pub(crate) fn reply_with<'f>(
        &mut self,
        id: u32,
        fields: &Fields<'_>,
        frame: &impl Frame<'f>,
    ) -> Result<(), Failure> {
        if id == 0 {
            return Ok(());
        }
        self.put(FrameMemory::Reserve, |out| frame.encode_with(out, id, fields).map(|()| true)).map(drop)
    }

    fn put(
        &mut self,
        room: FrameMemory,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<bool, EncodeError>,
    ) -> Result<bool, Failure> {
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
        let bytes = out.len() - begin;
        let got = bytes.saturating_sub(HEADER_BYTES);
        if got > max {
            out.truncate(begin);
            return Err(too_large(got, max));
        }
        if bytes >= self.counted_from {
            self.detach_frame(begin, room)?;
        }
        Ok(there)
    }

    /// Moves the last frame of the outbox, which begins at `begin`, into a buffer of its own, together with its memory
    /// reservation.
    fn detach_frame(&mut self, begin: usize, room: FrameMemory) -> Result<(), Failure> {
        let out = self.outbox.buffer();
        let mut frame = if begin == 0 { std::mem::take(out) } else { out.split_off(begin) };
        // Releases the spare capacity that encoding the frame has left.
        out.shrink_to(OUTBOX_BYTES);
        frame.shrink_to_fit();
        let frame = match self.admit(frame.len(), room)? {
            Some(held) => counted(frame.into(), held),
            None => frame.into(),
        };
        self.outbox.share(frame);
        Ok(())
    }

    /// Reserves memory for a frame of `bytes` bytes. Returns `None` if this outbox does not count the frame.
    fn admit(&self, bytes: usize, room: FrameMemory) -> Result<Option<Reservation>, Failure> {
        if bytes < self.counted_from {
            return Ok(None);
        }
        match room {
            FrameMemory::CountedBySource => Ok(None),
            FrameMemory::Reserve => self.account.take(Resource::ReplyBytes, bytes as u64).map(Some).ok_or_else(no_room),
            FrameMemory::Exceed => Ok(Some(sized(self.account.empty(Resource::ReplyBytes), bytes))),
            FrameMemory::Reserved(held) => Ok(Some(sized(held, bytes))),
        }
    }

    /// Puts a frame into the outbox. The frame shares some of its bytes with other owners. `write` must write exactly
    /// `body_bytes` bytes.
    ///
    /// # Errors
    /// Same errors as [`reply`](Self::reply). After an error, `write` was not called.
    pub(crate) fn shared(
        &mut self,
        kind: Kind,
        id: u32,
        body_bytes: usize,
        room: FrameMemory,
        write: impl FnOnce(&mut Parts<'_>),
    ) -> Result<(), Failure> {
        if body_bytes > self.max_frame_bytes {
            return Err(too_large(body_bytes, self.max_frame_bytes));
        }
        let held = self.admit(HEADER_BYTES + body_bytes, room)?;
        let before = self.outbox.len();
        let len = u32::try_from(body_bytes).expect("at most the bytes that a client accepts");
        let header = Header { len, kind: kind as u16, fields: 0, id };
        let own = held.map(|held| CountedBytes { bytes: Vec::new(), held: Arc::new(held) });
        let mut parts = Parts { outbox: &mut self.outbox, own };
        parts.bytes().extend_from_slice(&header.encode());
        write(&mut parts);
        parts.flush();
        assert_eq!(self.outbox.len() - before, HEADER_BYTES + body_bytes, "a frame is as long as it says");
        Ok(())
    }

    /// Puts a failure into the outbox, even for a request without an id.
    pub(crate) fn fail(&mut self, id: u32, failure: &Failure) {
        self.fail_traced(id, None, failure);
    }

    /// Puts a failure into the outbox like [`fail`](Self::fail), with the name of the request in log lines.
    pub(crate) fn fail_traced(&mut self, id: u32, trace: Option<&str>, failure: &Failure) {
        // All fields are much shorter than any client's maximum frame size.
        let fields = Fields { trace, leader: failure.leader_address(), ..Fields::default() };
        let encoded = failure.failed(|failed| {
            self.put(FrameMemory::Exceed, |out| failed.encode_with(out, id, &fields).map(|()| true)).map(drop)
        });
        debug_assert!(encoded.is_ok(), "{encoded:?}");
    }

    /// Ends a subscription: puts its last frame, `ended`, into the outbox.
    pub(crate) fn end(&mut self, id: u32, failure: &Failure) {
        let encoded = failure.ended(|ended| self.push(id, ended));
        debug_assert!(encoded.is_ok(), "{encoded:?}");
    }
}

/// Handle that creates [`Replies`] for frames that are encoded outside the channel's task. Such frames may wait for a
/// long time until the channel (a TCP connection or a QUIC stream) appends them to its outbox.
#[derive(Debug)]
pub(crate) struct ReplyFactory {
    max_frame_bytes: usize,
    account: Arc<Account>,
}

impl ReplyFactory {
    /// Creates an empty outbox. It counts all frames of at least [`REQUEST_BYTES`] against the server's limit on
    /// replies.
    #[must_use]
    pub(crate) fn replies(&self) -> Replies {
        let (max_frame_bytes, account) = (self.max_frame_bytes, Arc::clone(&self.account));
        let counted_from = REQUEST_BYTES as usize;
        Replies { outbox: Outbox::new(), max_frame_bytes, account, counted_from, level: None }
    }
}

/// Writer of the body of one frame. The frame may share bytes with other owners.
#[derive(Debug)]
pub(crate) struct Parts<'o> {
    outbox: &'o mut Outbox,
    /// Buffer and memory reservation of the frame, if the frame counts against the server's limit. `None` if its bytes
    /// go directly into the outbox's buffer.
    own: Option<CountedBytes>,
}

/// Bytes of a frame that counts against the server's limit, and the frame's memory reservation.
#[derive(Debug)]
struct CountedBytes {
    bytes: Vec<u8>,
    held: Arc<Reservation>,
}

impl Parts<'_> {
    /// Returns the buffer for those bytes of the frame that are not shared. The caller appends them.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        match &mut self.own {
            Some(own) => &mut own.bytes,
            None => self.outbox.buffer(),
        }
    }

    /// Appends bytes to the frame without copying them; other owners may share them. Few bytes of a counted frame are
    /// copied.
    pub(crate) fn share(&mut self, bytes: Bytes) {
        match &mut self.own {
            Some(own) if bytes.len() < SHARED_FROM_BYTES => own.bytes.extend_from_slice(&bytes),
            Some(own) => {
                let bytes = counted(bytes, Arc::clone(&own.held));
                self.flush();
                self.outbox.share(bytes);
            }
            None => self.outbox.share(bytes),
        }
    }

    /// Moves the bytes that were appended so far into the outbox. Few bytes are copied. Many become a buffer of their
    /// own, which keeps its memory reservation.
    fn flush(&mut self) {
        let Some(own) = &mut self.own else { return };
        if own.bytes.len() < SHARED_FROM_BYTES {
            self.outbox.buffer().append(&mut own.bytes);
            return;
        }
        let mut bytes = std::mem::take(&mut own.bytes);
        bytes.shrink_to_fit();
        self.outbox.share(counted(bytes.into(), Arc::clone(&own.held)));
    }
}

/// Changes a memory reservation to the actual size of the frame in bytes.
fn sized(mut held: Reservation, bytes: usize) -> Reservation {
    held.set(bytes as u64);
    held
}

/// Creates the failure of a large reply for which the limit on replies has no room.
pub(crate) fn no_room() -> Failure {
    Failure::overloaded("too many bytes of replies wait for clients: retry later")
}

fn too_large(got: usize, max: usize) -> Failure {
    let message = format!("the reply would have {got} bytes, and the client accepts {max}: request less at a time");
    Failure::invalid("result_too_large", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_serving::admission::{AddressKey, Admission};
    use thalweg_wire::{Decoder, Pong, ServerFrame};

    const LARGE: usize = COUNTED_REPLY_BYTES;

    fn replies(max_frame_bytes: u32, room: u64) -> Replies {
        let mut config = thalweg_serving::config::Config::default();
        (config.max_reply_bytes_in_flight.0, config.share_reserve_percent) = (room, 0);
        Replies::new(max_frame_bytes, Admission::new(&config).account(AddressKey::LOCAL))
    }

    fn used(replies: &Replies) -> u64 {
        replies.account.held(Resource::ReplyBytes)
    }

    /// Puts a frame of `bytes` bytes, including the header, into the outbox.
    fn put(replies: &mut Replies, room: FrameMemory, bytes: usize) -> Result<bool, Failure> {
        replies.put(room, |out| {
            out.resize(out.len() + bytes, 7);
            Ok(true)
        })
    }

    fn all(replies: &mut Replies) -> Vec<u8> {
        let mut wire = Vec::new();
        while !replies.is_empty() {
            let chunk = bytes::Buf::chunk(replies.outbox()).to_vec();
            bytes::Buf::advance(replies.outbox(), chunk.len());
            wire.extend_from_slice(&chunk);
        }
        wire
    }

    #[test]
    fn large_frames_are_counted_until_they_are_sent() {
        let mut replies = replies(1 << 20, 2 * LARGE as u64);
        put(&mut replies, FrameMemory::Reserve, LARGE - 1).unwrap();
        assert_eq!(used(&replies), 0, "a small one is not counted");
        put(&mut replies, FrameMemory::Reserve, LARGE + 5).unwrap();
        assert_eq!(used(&replies), LARGE as u64 + 5);
        let (before, refused) = (replies.len(), put(&mut replies, FrameMemory::Reserve, LARGE).unwrap_err());
        assert_eq!((refused.code(), replies.len()), ("overloaded", before));
        put(&mut replies, FrameMemory::Reserve, 10).unwrap();
        put(&mut replies, FrameMemory::Exceed, LARGE).unwrap();
        assert_eq!(used(&replies), 2 * LARGE as u64 + 5, "what has happened is told");
        assert_eq!(all(&mut replies), vec![7; 3 * LARGE + 14]);
        assert_eq!(used(&replies), 0);
    }

    #[test]
    fn all_parts_of_a_large_frame_are_counted_as_one() {
        let mut replies = replies(1 << 20, 1 << 20);
        // Many copied pieces, one shared piece, and a few bytes after it.
        let small = Bytes::from(vec![1; SHARED_FROM_BYTES - 1]);
        let body = 200 * small.len() + LARGE + 3;
        replies
            .shared(Kind::Records, 9, body, FrameMemory::Reserve, |parts| {
                (0..200).for_each(|_| parts.share(small.clone()));
                parts.share(Bytes::from(vec![2; LARGE]));
                parts.bytes().extend_from_slice(b"end");
            })
            .unwrap();
        let whole = (HEADER_BYTES + body) as u64;
        assert_eq!((used(&replies), replies.len() as u64), (whole, whole));
        assert!(replies.outbox().buffer().len() < SHARED_FROM_BYTES, "nothing of it is where it is not counted");
        bytes::Buf::advance(replies.outbox(), whole as usize - 4);
        assert_eq!(used(&replies), whole, "a byte of a piece keeps it");
        assert_eq!(all(&mut replies), b"\x02end");
        assert_eq!(used(&replies), 0);
        let elsewhere = |parts: &mut Parts<'_>| parts.share(Bytes::from(vec![2; LARGE]));
        replies.shared(Kind::Deliver, 9, LARGE, FrameMemory::CountedBySource, elsewhere).unwrap();
        assert_eq!(used(&replies), 0);
    }

    #[test]
    fn what_waits_aside_is_counted_from_the_first_pages_on() {
        let mut replies = replies(1 << 20, 1 << 20);
        put(&mut replies, FrameMemory::Reserve, 3).unwrap();
        let mut aside = replies.factory().replies();
        put(&mut aside, FrameMemory::Reserve, REQUEST_BYTES as usize - 1).unwrap();
        assert_eq!(used(&replies), 0);
        put(&mut aside, FrameMemory::Reserve, REQUEST_BYTES as usize).unwrap();
        assert_eq!(used(&replies), REQUEST_BYTES);
        replies.append(aside);
        assert_eq!(all(&mut replies), vec![7; 2 + 2 * REQUEST_BYTES as usize]);
        assert_eq!(used(&replies), 0);
    }

    #[test]
    fn a_frame_above_what_the_client_takes_leaves_no_trace() {
        let mut replies = replies(16, 0);
        replies.reply(1, &Pong { token: 7 }).unwrap();
        let before = replies.len();
        let large = replies.reply_after_effect(2, |out| {
            out.resize(out.len() + HEADER_BYTES + 17, 0);
            Ok(true)
        });
        assert_eq!(large.unwrap_err().code(), "result_too_large");
        assert_eq!(
            replies.shared(Kind::Records, 2, 17, FrameMemory::Reserve, |_| ()).unwrap_err().code(),
            "result_too_large"
        );
        assert_eq!(replies.len(), before);
    }

    #[test]
    fn shared_parts_are_where_they_were_put() {
        let mut replies = replies(1 << 20, 0);
        let shared = Bytes::from(vec![7; 5000]);
        let written = |parts: &mut Parts<'_>| {
            parts.bytes().extend_from_slice(b"ab");
            parts.share(shared.clone());
            parts.bytes().push(b'c');
        };
        replies.shared(Kind::Records, 9, 5003, FrameMemory::Reserve, written).unwrap();
        let wire = all(&mut replies);
        assert_eq!((&wire[12..14], wire[14], wire[5013], wire[5014]), (&b"ab"[..], 7, 7, b'c'));
    }

    #[test]
    fn failures_are_told_even_without_an_id() {
        let mut replies = replies(1 << 16, 0);
        replies.reply(0, &Pong { token: 7 }).unwrap();
        assert!(replies.is_empty(), "nobody waits");
        replies.fail(0, &Failure::invalid("some_code", "x".repeat(100_000)).with("next", 5));
        let mut decoder = Decoder::new();
        decoder.feed(replies.outbox().buffer());
        let raw = decoder.next_borrowed().unwrap().unwrap();
        match ServerFrame::decode(raw).unwrap().frame {
            ServerFrame::Failed(failed) => assert_eq!((failed.code, failed.detail("next")), ("some_code", Some(5))),
            other => panic!("{other:?}"),
        }
    }
}
