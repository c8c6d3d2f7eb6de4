//! The destination of replies: the client's outbox, or a buffer.

use bytes::Bytes;
use thalweg_redis::wire::Out;
use thalweg_transport::Outbox;

/// Destination of the encoded replies to a client.
pub(crate) enum ReplyTarget<'a> {
    /// The client's outbox, which is sent to the socket.
    Outbox(&'a mut Outbox),
    /// A buffer of the caller, for replies that are kept for later or discarded.
    Buffer(&'a mut Vec<u8>),
}

impl Out for ReplyTarget<'_> {
    #[inline]
    fn buffer(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Outbox(outbox) => outbox.buffer(),
            Self::Buffer(buffer) => buffer,
        }
    }

    #[inline]
    fn share(&mut self, bytes: &Bytes) {
        match self {
            Self::Outbox(outbox) if bytes.len() >= SHARED_FROM_BYTES => outbox.share(bytes.clone()),
            _ => self.buffer().extend_from_slice(bytes),
        }
    }
}

/// Size in bytes at which a reply is passed to the outbox by reference instead of being copied.
const SHARED_FROM_BYTES: usize = 16 * 1024;
