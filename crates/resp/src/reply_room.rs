//! View of a database for a read whose reply has limited memory.
//!
//! Owns: [`WithReplyRoom`], which tells commands how many bytes of values their reply may have. So a read on the
//! threads for long reads copies no values that cannot be sent to the client. Does not own: the bound on the replies
//! that wait for clients (`admission`), or the memory reservation of the reply. The session makes this reservation when
//! it has the reply.

use std::ops::Bound;

use bytes::Bytes;
use thalweg_redis::{
    CollectionId, KeyInfo, KeyValue, Read, StoreError,
    store::{Visit, VisitKeys},
};
use thalweg_serving::admission::Account;
use thalweg_types::limits::MAX_REDIS_REPLY_BYTES;

/// Calls `act` with a view of a database. In this view, a reply may have as many bytes as the account may hold now.
pub(crate) fn within_reply_room<T>(
    read: &dyn Read,
    account: &Account,
    act: impl FnOnce(&dyn Read) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let room = account.reply_room_up_to(MAX_REDIS_REPLY_BYTES as u64);
    let room = if room == MAX_REDIS_REPLY_BYTES as u64 { usize::MAX } else { room as usize };
    act(&WithReplyRoom { read, room })
}

struct WithReplyRoom<'r> {
    read: &'r dyn Read,
    room: usize,
}

impl Read for WithReplyRoom<'_> {
    fn reply_room(&self) -> usize {
        self.room
    }

    fn now(&self) -> u64 {
        self.read.now()
    }

    fn seed(&self) -> u64 {
        self.read.seed()
    }

    fn has_collections(&self) -> bool {
        self.read.has_collections()
    }

    fn read_ahead(&self, keys: &[&[u8]]) {
        self.read.read_ahead(keys);
    }

    fn look(&self, key: &[u8]) -> Result<Option<KeyInfo>, StoreError> {
        self.read.look(key)
    }

    fn get(&self, key: &[u8]) -> Result<Option<KeyValue>, StoreError> {
        self.read.get(key)
    }

    fn get_short(&self, key: &[u8], max_bytes: usize) -> Result<Option<Option<KeyValue>>, StoreError> {
        self.read.get_short(key, max_bytes)
    }

    fn len(&self) -> Result<u64, StoreError> {
        self.read.len()
    }

    fn is_empty(&self) -> Result<bool, StoreError> {
        self.read.is_empty()
    }

    fn keys(&self, after: Option<&[u8]>, visit: &mut VisitKeys<'_>) -> Result<(), StoreError> {
        self.read.keys(after, visit)
    }

    fn work(&self, steps: u64) -> Result<(), StoreError> {
        self.read.work(steps)
    }

    fn has_part(&self, id: CollectionId, name: &[u8]) -> Result<bool, StoreError> {
        self.read.has_part(id, name)
    }

    fn part(&self, id: CollectionId, name: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.read.part(id, name)
    }

    fn part_short(&self, id: CollectionId, name: &[u8], max: usize) -> Result<Option<Option<Bytes>>, StoreError> {
        self.read.part_short(id, name, max)
    }

    fn parts(
        &self,
        id: CollectionId,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        descending: bool,
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError> {
        self.read.parts(id, lower, upper, descending, visit)
    }
}
