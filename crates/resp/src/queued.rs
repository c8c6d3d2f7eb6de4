//! The state of a transaction before `EXEC`: the commands queued since `MULTI`, and the keys watched with `WATCH`. The
//! module `transaction` has the commands themselves.

use std::sync::Arc;

use thalweg_redis::{Read, StoreError};
use thalweg_serving::admission::{Account, Reservation, Resource};

use super::commands::Commands;

/// A client's transaction before `EXEC`: the commands queued since `MULTI`, and their memory.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    /// Commands that the client has queued since `MULTI`, with their arguments.
    pub commands: Commands,
    /// True if a command of the transaction was rejected. `EXEC` then discards the transaction.
    pub is_refused: bool,
    /// Memory reservation for the queued commands; `None` while they are small.
    held: Option<Reservation>,
    held_bytes: usize,
}

/// Step in bytes in which a transaction reserves memory for its commands. The first step needs no reservation.
const ROOM_STEP_BYTES: usize = 64 * 1024;

impl Transaction {
    /// Returns true if the transaction may hold commands of this total size in bytes. Reserves memory for them if
    /// necessary.
    pub(crate) fn has_room(&mut self, bytes: usize, account: &Arc<Account>) -> bool {
        if bytes <= ROOM_STEP_BYTES.max(self.held_bytes) {
            return true;
        }
        let wanted = bytes.next_multiple_of(ROOM_STEP_BYTES);
        let more = (wanted - self.held_bytes) as u64;
        let has_room = match &mut self.held {
            Some(held) => held.grow(more),
            none => {
                *none = account.take(Resource::BodyBytes, more);
                none.is_some()
            }
        };
        if has_room {
            self.held_bytes = wanted;
        }
        has_room
    }
}

/// A key that a client watches with `WATCH`.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    /// Index of the database that has the watched key.
    pub database: usize,
    /// Name of the watched key.
    pub key: Box<[u8]>,
    /// Version of the key when it was watched; 0 if it did not exist.
    pub version: u64,
}

impl Watch {
    /// Creates the records of keys that a client watches in a database, with the versions that the keys have in the
    /// view `read`.
    pub(crate) fn all(read: &dyn Read, database: usize, keys: &[&[u8]]) -> Result<Vec<Self>, StoreError> {
        let watch = |key: &&[u8]| {
            let version = read.look(key)?.map_or(0, |look| look.version);
            Ok(Self { database, key: Box::from(*key), version })
        };
        keys.iter().map(watch).collect()
    }
}
