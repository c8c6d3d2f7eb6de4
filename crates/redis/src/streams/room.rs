//! How large a reply may become.

use thalweg_types::{
    limits::{MAX_REDIS_REPLY_BYTES, REDIS_REPLY_ITEM_BYTES},
    reply::Reply,
};

/// The room of one reply, for replies that end where there is no more. What is taken of it is not given back.
#[derive(Clone, Debug)]
pub(super) struct Room {
    left: usize,
    is_full: bool,
}

impl Room {
    pub fn new() -> Self {
        Self { left: MAX_REDIS_REPLY_BYTES, is_full: false }
    }

    /// Takes room for a part of the reply, if there is enough.
    pub fn take(&mut self, part: &Reply) -> bool {
        let needed = size(part);
        self.is_full |= needed > self.left;
        if !self.is_full {
            self.left -= needed;
        }
        !self.is_full
    }

    /// Whether something found no room.
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
