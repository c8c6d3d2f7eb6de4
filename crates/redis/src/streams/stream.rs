//! A stream during a command: reading, changing and saving it.
//!
//! Owns: entries and their counters in the meta. Does not own: groups.
//!
//! Invariants:
//! * Adding an entry writes one part and one meta, for any length of the stream. The cost of removing is proportional
//!   to the number of removed entries.
//! * A command that changed entries ends with [`Stream::save`], which changes the key's version. A command
//!   that changed only groups or the last id ends with [`Stream::save_groups`]: `WATCH` ignores such changes,
//!   as in Redis.

use std::ops::{Bound, ControlFlow};

use thalweg_types::{
    limits::{MAX_REDIS_TRIM_BYTES, MAX_VALUE_BYTES},
    reply::Reply,
};

use super::{
    destroyed_groups,
    id::{EntryId, NewId},
    layout::{self, Meta},
    visit::{Flow, Order, visit_parts},
};
use crate::{
    errors::{CommandEnd, STRINGS_ONLY, WRONG_TYPE, refused},
    store::{Collection, CollectionId, KeyValue, Kind, NewValue, Read, Store, StoreError, Value},
};

/// A stream that a command has loaded.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// Number of the collection under which the rows of the stream are stored.
    pub at: CollectionId,
    /// Meta of the stream, which is the value of its key.
    pub meta: Meta,
    deadline: Option<u64>,
}

impl Stream {
    /// Loads the stream of a key; `None` if the key does not exist.
    pub(super) fn find(read: &dyn Read, key: &[u8]) -> Result<Option<Self>, CommandEnd> {
        let Some(found) = read.get_collection(key)? else { return Ok(None) };
        match found {
            Some(KeyValue {
                value: Value::Collection(Collection { id, kind: Kind::Stream, meta }), deadline, ..
            }) => Ok(Some(Self { at: id, meta: Meta::decode(&meta)?, deadline })),
            _ => Err(refused(WRONG_TYPE)),
        }
    }

    /// Prepares a new stream. The store contains the stream only after one of the save functions was called.
    pub(super) fn create<'a>(store: &mut dyn Store<'a>) -> Result<Self, CommandEnd> {
        if !store.has_collections() {
            return Err(refused(STRINGS_ONLY));
        }
        Ok(Self { at: store.new_collection()?, meta: Meta::default(), deadline: None })
    }

    /// Saves a stream whose entries have changed: writes its meta under the key, which changes the version of the
    /// key. Also removes some leftover rows of destroyed groups.
    pub(super) fn save<'a>(&mut self, store: &mut dyn Store<'a>, key: &'a [u8]) -> Result<(), StoreError> {
        destroyed_groups::sweep(self.at, &mut self.meta, store)?;
        store.put(key, NewValue::Collection(self.collection()), self.deadline)
    }

    /// Saves a stream whose entries have not changed, only its groups or its last id. `WATCH` ignores such changes,
    /// so the key keeps its version.
    pub(super) fn save_groups<'a>(&mut self, store: &mut dyn Store<'a>, key: &'a [u8]) -> Result<(), StoreError> {
        destroyed_groups::sweep(self.at, &mut self.meta, store)?;
        store.put_meta(key, self.collection())
    }

    fn collection(&self) -> Collection {
        Collection { id: self.at, kind: Kind::Stream, meta: self.meta.encode() }
    }

    /// Returns a new number that identifies a group or a consumer of the stream.
    pub(super) fn number(&mut self) -> u64 {
        layout::increment(&mut self.meta.next_number);
        self.meta.next_number
    }

    /// Adds an entry to the stream and returns the id of the entry.
    pub(super) fn add<'a>(
        &mut self,
        store: &mut dyn Store<'a>,
        id: NewId,
        fields: &[&[u8]],
    ) -> Result<EntryId, CommandEnd> {
        let meta = &mut self.meta;
        if meta.last_id == EntryId::MAX {
            return Err(CommandEnd::error(
                "ERR The stream has exhausted the last possible ID, unable to add more items",
            ));
        }
        let id = id.after(meta.last_id, store.now()).ok_or_else(|| {
            CommandEnd::error("ERR The ID specified in XADD is equal or smaller than the target stream top item")
        })?;
        let value = layout::encode_entry(fields);
        if value.len() > MAX_VALUE_BYTES {
            return Err(CommandEnd::error("ERR Elements are too large to be stored"));
        }
        store.put_part(self.at, &layout::entry(id), &value)?;
        if meta.len == 0 {
            meta.first_id = id;
        }
        layout::increment(&mut meta.len);
        layout::increment(&mut meta.added);
        meta.last_id = id;
        Ok(id)
    }

    /// Calls a visitor with the id and the encoded fields of each entry from `first` to `last`, both inclusive.
    pub(super) fn visit(
        &self,
        read: &dyn Read,
        (first, last): (EntryId, EntryId),
        order: Order,
        visit: &mut dyn FnMut(EntryId, &[u8]) -> Flow,
    ) -> Result<(), StoreError> {
        // Trimmed entries leave tombstones before the first entry. Starting at the first entry avoids a scan of them.
        let first = first.max(self.meta.first_id);
        if self.meta.len == 0 || first > last {
            return Ok(());
        }
        let (lower, upper) = (layout::entry(first), layout::entry(last));
        visit_parts(read, self.at, (Bound::Included(&lower), Bound::Included(&upper)), order, &mut |name, value| {
            visit(layout::id_of(name)?, value)
        })
    }

    /// Returns the entry with that id as a reply; `None` if there is no such entry.
    pub(super) fn entry(&self, read: &dyn Read, id: EntryId) -> Result<Option<Reply>, StoreError> {
        let Some(value) = read.part(self.at, &layout::entry(id))? else { return Ok(None) };
        entry_reply(id, &value).map(Some)
    }

    /// Returns true if an entry with that id exists.
    pub(super) fn has(&self, read: &dyn Read, id: EntryId) -> Result<bool, StoreError> {
        read.has_part(self.at, &layout::entry(id))
    }

    /// Returns the id of the first entry within an inclusive id range, or of the last one if `order` is descending.
    /// Returns `None` if the range has no entries.
    pub(super) fn first_or_last(
        &self,
        read: &dyn Read,
        range: (EntryId, EntryId),
        order: Order,
    ) -> Result<Option<EntryId>, StoreError> {
        let mut edge = None;
        self.visit(read, range, order, &mut |id, _| {
            edge = Some(id);
            Ok(ControlFlow::Break(()))
        })?;
        Ok(edge)
    }

    /// Returns true if the stream has entries with ids above `id`.
    pub(super) fn has_after(&self, read: &dyn Read, id: EntryId) -> Result<bool, StoreError> {
        match id.next() {
            // If the id is that of the last entry, which is the usual case, no entry is above it, and no read is
            // needed.
            Some(next) if next <= self.meta.last_id => {
                Ok(self.first_or_last(read, (next, EntryId::MAX), Order::Ascending)?.is_some())
            }
            _ => Ok(false),
        }
    }

    /// Deletes an entry as `XDEL` does. Returns true if the entry existed. Does not update the first id in the stream's
    /// meta.
    pub(super) fn delete<'a>(&mut self, store: &mut dyn Store<'a>, id: EntryId) -> Result<bool, StoreError> {
        let was_there = self.has(&*store, id)?;
        if was_there {
            store.delete_part(self.at, &layout::entry(id))?;
            layout::decrement(&mut self.meta.len)?;
            self.meta.max_deleted_id = self.meta.max_deleted_id.max(id);
        }
        Ok(was_there)
    }

    /// Removes entries from the start of the stream while `goes` returns true. The arguments of `goes` are the number
    /// of remaining entries and the id of the next entry. Stops after [`MAX_REDIS_TRIM_BYTES`] bytes of removed
    /// entries.
    pub(super) fn trim<'a>(
        &mut self,
        store: &mut dyn Store<'a>,
        goes: &mut dyn FnMut(u64, EntryId) -> bool,
    ) -> Result<u64, StoreError> {
        let (mut left, mut gone, mut stays, mut bytes) = (self.meta.len, Vec::new(), EntryId::ZERO, 0);
        self.visit(&*store, (EntryId::ZERO, EntryId::MAX), Order::Ascending, &mut |id, value| {
            if bytes < MAX_REDIS_TRIM_BYTES && goes(left, id) {
                bytes += value.len();
                layout::decrement(&mut left)?;
                gone.push(id);
                return Ok(ControlFlow::Continue(()));
            }
            stays = id;
            Ok(ControlFlow::Break(()))
        })?;
        for id in &gone {
            store.delete_part(self.at, &layout::entry(*id))?;
        }
        (self.meta.len, self.meta.first_id) = (left, stays);
        Ok(gone.len() as u64)
    }

    /// Returns true if `XDEL` may have removed an entry with this id or a higher one.
    pub(super) fn has_gaps_from(&self, id: EntryId) -> bool {
        let Meta { len, first_id, max_deleted_id, .. } = self.meta;
        len > 0 && max_deleted_id != EntryId::ZERO && first_id <= max_deleted_id && id <= max_deleted_id
    }

    /// Returns the number of entries ever added to the stream with ids up to this one. Returns `None` if it could be
    /// found only by counting entries.
    pub(super) fn added_up_to(&self, id: EntryId) -> Option<u64> {
        let Meta { len, last_id, first_id, max_deleted_id, added, .. } = self.meta;
        if added == 0 {
            return Some(0);
        }
        if id == last_id || (len == 0 && id < last_id) {
            return Some(added);
        }
        if id > last_id || id > first_id || (max_deleted_id != EntryId::ZERO && max_deleted_id >= first_id) {
            return None;
        }
        Some((added.wrapping_sub(len)).wrapping_add(u64::from(id == first_id)))
    }
}

/// Returns an entry as a reply: its id and its fields.
pub(super) fn entry_reply(id: EntryId, value: &[u8]) -> Result<Reply, StoreError> {
    Ok(Reply::Array(vec![id.reply(), layout::decode_entry(value)?]))
}
