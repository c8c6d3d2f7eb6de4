//! The state of a transaction between `MULTI` or `WATCH` and `EXEC`. `transaction` has the commands.

use std::sync::Arc;

use thalweg_serving::admission::{Bound, Held};

use super::commands::Commands;

/// What was queued since `MULTI`.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    /// Its commands.
    pub commands: Commands,
    /// One of its commands was no command: `EXEC` does nothing.
    pub is_refused: bool,
    /// Room for what is queued, if that is much.
    held: Option<Held>,
    held_bytes: usize,
}

/// Bytes by which a transaction asks for room. As many may be queued without any.
const ROOM_STEP_BYTES: usize = 64 * 1024;

impl Transaction {
    /// Whether there is room for so many bytes of commands.
    pub(crate) fn has_room(&mut self, bytes: usize, room: &Arc<Bound>) -> bool {
        if bytes <= ROOM_STEP_BYTES.max(self.held_bytes) {
            return true;
        }
        let wanted = bytes.next_multiple_of(ROOM_STEP_BYTES);
        let more = (wanted - self.held_bytes) as u64;
        let has_room = match &mut self.held {
            Some(held) => held.grow(more),
            none => {
                *none = room.take(more);
                none.is_some()
            }
        };
        if has_room {
            self.held_bytes = wanted;
        }
        has_room
    }
}

/// A watched key.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    /// Index of its database.
    pub database: usize,
    /// The key.
    pub key: Box<[u8]>,
    /// Its version when it was watched; 0: it was not there.
    pub version: u64,
}
