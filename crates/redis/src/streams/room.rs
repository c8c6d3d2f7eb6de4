//! Size limit of a reply.

use thalweg_types::{
    limits::{MAX_REDIS_REPLY_BYTES, REDIS_REPLY_ITEM_BYTES},
    reply::Reply,
};

/// Byte budget of one reply, which ends when the budget is used up. Used bytes are never returned to it.
#[derive(Clone, Debug)]
pub(super) struct Room {
    left: usize,
    is_full: bool,
}

impl Room {
    pub fn new() -> Self {
        Self { left: MAX_REDIS_REPLY_BYTES, is_full: false }
    }

    /// Takes the bytes of a part of the reply. Returns false if they do not fit.
    pub fn take(&mut self, part: &Reply) -> bool {
        let needed = size(part);
        self.is_full |= needed > self.left;
        if !self.is_full {
            self.left -= needed;
        }
        !self.is_full
    }

    /// Returns true if a part did not fit.
    pub fn is_full(&self) -> bool {
        self.is_full
    }
}

fn size(reply: &Reply) -> usize {
    REDIS_REPLY_ITEM_BYTES
        + match reply {
            Reply::Bulk(bytes) => bytes.len(),
            Reply::Array(parts) => parts.iter().map(size).sum(),
            _ => 0,
        }
}
