//! The frames that callers have staged on a [link](crate::link), until they move to the queue of the socket.
//!
//! Owns: the bytes of these frames in order, including bytes that are sent without a copy. Does not own: the queue of
//! the socket, or the time at which the bytes move there (`link`).

use bytes::Bytes;
use thalweg_transport::Outbox;
use thalweg_wire::EncodeError;

use crate::error::Invalid;

/// Minimum number of staged bytes that move to the queue of the socket without a copy. Fewer bytes are copied into it.
pub(crate) const HAND_OVER_BYTES: usize = 32 * 1024;

/// Frames that callers have staged (handed over for sending) and that wait to be moved to the queue of the socket.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    pub(crate) frames: Vec<u8>,
    /// Bytes that are sent without a copy, each with its position: the number of bytes of `frames` that come
    /// before them.
    shared: Vec<(usize, Bytes)>,
    shared_bytes: usize,
}

impl Staged {
    pub(crate) fn len(&self) -> usize {
        self.frames.len() + self.shared_bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.shared.is_empty()
    }

    pub(crate) fn move_to(&mut self, outbox: &mut Outbox) {
        if self.shared.is_empty() && self.frames.len() >= HAND_OVER_BYTES {
            outbox.share(std::mem::take(&mut self.frames).into());
            return;
        }
        let mut from = 0;
        for (behind, bytes) in self.shared.drain(..) {
            outbox.buffer().extend_from_slice(&self.frames[from..behind]);
            outbox.share(bytes);
            from = behind;
        }
        outbox.buffer().extend_from_slice(&self.frames[from..]);
        self.frames.clear();
        self.frames.shrink_to(HAND_OVER_BYTES);
        self.shared_bytes = 0;
    }

    pub(crate) fn share(&mut self, bytes: Bytes) {
        self.shared_bytes += bytes.len();
        self.shared.push((self.frames.len(), bytes));
    }

    /// Checks that the frame that was appended at position `begin` is at most `max` bytes long, the largest size that
    /// the server accepts.
    pub(crate) fn check(&self, begin: usize, max: usize) -> Result<(), Invalid> {
        let got = (self.frames.len() - begin).saturating_sub(thalweg_wire::HEADER_BYTES);
        if got <= max { Ok(()) } else { Err(EncodeError::FrameTooLarge { got, max }.into()) }
    }
}
