//! A stream as a command finds it, changes it, and puts it back.
//!
//! Owns: entries and the meta's counters of them. Does not own groups.
//!
//! Invariants:
//! * Adding an entry costs one part and one meta, whatever the stream's length. Removing costs what is removed.
//! * A command that changed entries ends with [`Stream::save`]: the key's version tells of it. One that changed groups
//!   only, or the last id, ends with [`Stream::save_groups`]: for `WATCH` that is no change, as in Redis.

use std::ops::{Bound, ControlFlow};

use thalweg_types::{
    limits::{MAX_REDIS_TRIM_BYTES, MAX_VALUE_BYTES},
    reply::Reply,
};

use super::{
    graves,
    id::{EntryId, NewId},
    layout::{self, Meta},
};
use crate::{
    command::Stop,
    errors::{STRINGS_ONLY, WRONG_TYPE, refused},
    store::{Collection, CollectionId, Found, Kind, NewValue, Read, Store, StoreError, Value},
};

/// A stream.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// Where its parts are.
    pub at: CollectionId,
    /// What its key holds.
    pub meta: Meta,
    deadline: Option<u64>,
}

impl Stream {
    /// The stream that a key holds, if there is the key.
    pub fn find(read: &dyn Read, key: &[u8]) -> Result<Option<Self>, Stop> {
        let Some(Found { value, deadline, .. }) = read.get(key)? else { return Ok(None) };
        match value {
            Value::Collection(Collection { id, kind: Kind::Stream, meta }) => {
                Ok(Some(Self { at: id, meta: Meta::decode(&meta)?, deadline }))
            }
            _ => Err(refused(WRONG_TYPE)),
        }
    }

    /// A new one, which is not there until it is saved.
    pub fn create<'a>(store: &mut dyn Store<'a>) -> Result<Self, Stop> {
        if !store.has_collections() {
            return Err(refused(STRINGS_ONLY));
        }
        Ok(Self { at: store.new_collection()?, meta: Meta::default(), deadline: None })
    }

    /// Puts the key's meta. A little is removed of what destroyed groups left.
    pub fn save<'a>(&mut self, store: &mut dyn Store<'a>, key: &'a [u8]) -> Result<(), StoreError> {
        graves::sweep(self, store)?;
        store.put(key, NewValue::Collection(self.collection()), self.deadline)
    }

    /// The same where the entries are as they were: what happens to groups is no change for who watches the key.
    pub fn save_groups<'a>(&mut self, store: &mut dyn Store<'a>, key: &'a [u8]) -> Result<(), StoreError> {
        graves::sweep(self, store)?;
        store.put_meta(key, self.collection())
    }

    fn collection(&self) -> Collection {
        Collection { id: self.at, kind: Kind::Stream, meta: self.meta.encode() }
    }

    /// A number for a group or a consumer.
    pub fn number(&mut self) -> u64 {
        layout::one_more(&mut self.meta.next_number);
        self.meta.next_number
    }

    /// Adds an entry, and says which id it got.
    pub fn add<'a>(&mut self, store: &mut dyn Store<'a>, id: NewId, fields: &[&[u8]]) -> Result<EntryId, Stop> {
        let meta = &mut self.meta;
        if meta.last_id == EntryId::MAX {
            return Err(Stop::error("ERR The stream has exhausted the last possible ID, unable to add more items"));
        }
        let id = id.after(meta.last_id, store.now()).ok_or_else(|| {
            Stop::error("ERR The ID specified in XADD is equal or smaller than the target stream top item")
        })?;
        let value = layout::encode_entry(fields);
        if value.len() > MAX_VALUE_BYTES {
            return Err(Stop::error("ERR Elements are too large to be stored"));
        }
        store.put_part(self.at, &layout::entry(id), &value)?;
        if meta.len == 0 {
            meta.first_id = id;
        }
        layout::one_more(&mut meta.len);
        layout::one_more(&mut meta.added);
        meta.last_id = id;
        Ok(id)
    }

    /// Visits entries from `first` to `last`, both included, by id and encoded fields.
    pub fn visit(
        &self,
        read: &dyn Read,
        (first, last): (EntryId, EntryId),
        order: Order,
        visit: &mut dyn FnMut(EntryId, &[u8]) -> Flow,
    ) -> Result<(), StoreError> {
        // What was trimmed leaves tombstones before the first entry, which a scan needn't walk over.
        let first = first.max(self.meta.first_id);
        if self.meta.len == 0 || first > last {
            return Ok(());
        }
        let (lower, upper) = (layout::entry(first), layout::entry(last));
        visit_parts(read, self.at, (Bound::Included(&lower), Bound::Included(&upper)), order, &mut |name, value| {
            visit(layout::id_of(name)?, value)
        })
    }

    /// The entry of that id, as replies show it.
    pub fn entry(&self, read: &dyn Read, id: EntryId) -> Result<Option<Reply>, StoreError> {
        let Some(value) = read.part(self.at, &layout::entry(id))? else { return Ok(None) };
        entry_reply(id, &value).map(Some)
    }

    /// Whether there is an entry of that id.
    pub fn has(&self, read: &dyn Read, id: EntryId) -> Result<bool, StoreError> {
        Ok(read.part(self.at, &layout::entry(id))?.is_some())
    }

    /// The first id within a range, or the last.
    pub fn edge(
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

    /// Whether there are entries above an id.
    pub fn has_after(&self, read: &dyn Read, id: EntryId) -> Result<bool, StoreError> {
        match id.next() {
            // The last id given is mostly that of an entry; what is not above it needs no look.
            Some(next) if next <= self.meta.last_id => {
                Ok(self.edge(read, (next, EntryId::MAX), Order::Ascending)?.is_some())
            }
            _ => Ok(false),
        }
    }

    /// Removes an entry as `XDEL` does, and says whether it was there. The first id is not put right.
    pub fn delete<'a>(&mut self, store: &mut dyn Store<'a>, id: EntryId) -> Result<bool, StoreError> {
        let was_there = self.has(&*store, id)?;
        if was_there {
            store.delete_part(self.at, &layout::entry(id))?;
            layout::one_less(&mut self.meta.len)?;
            self.meta.max_deleted_id = self.meta.max_deleted_id.max(id);
        }
        Ok(was_there)
    }

    /// Removes entries from the begin while `goes` says so of them: it gets how many are left, and the id. Those beyond
    /// [`MAX_REDIS_TRIM_BYTES`] stay.
    pub fn trim<'a>(
        &mut self,
        store: &mut dyn Store<'a>,
        goes: &mut dyn FnMut(u64, EntryId) -> bool,
    ) -> Result<u64, StoreError> {
        let (mut left, mut gone, mut stays, mut bytes) = (self.meta.len, Vec::new(), EntryId::ZERO, 0);
        self.visit(&*store, (EntryId::ZERO, EntryId::MAX), Order::Ascending, &mut |id, value| {
            if bytes < MAX_REDIS_TRIM_BYTES && goes(left, id) {
                bytes += value.len();
                layout::one_less(&mut left)?;
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

    /// Whether an entry that `XDEL` removed may have been between an id and the end.
    pub fn has_gaps_from(&self, id: EntryId) -> bool {
        let Meta { len, first_id, max_deleted_id, .. } = self.meta;
        len > 0 && max_deleted_id != EntryId::ZERO && first_id <= max_deleted_id && id <= max_deleted_id
    }

    /// How many entries were ever added up to an id, if that can be known without counting.
    pub fn added_up_to(&self, id: EntryId) -> Option<u64> {
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

/// Whether a visit goes on.
pub(super) type Flow = Result<ControlFlow<()>, StoreError>;

/// Which end comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Ascending,
    Descending,
}

/// An entry as replies show it.
pub(super) fn entry_reply(id: EntryId, value: &[u8]) -> Result<Reply, StoreError> {
    Ok(Reply::Array(vec![id.reply(), layout::decode_entry(value)?]))
}

/// Visits parts with a function that may fail.
pub(super) fn visit_parts(
    read: &dyn Read,
    at: CollectionId,
    (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
    order: Order,
    visit: &mut dyn FnMut(&[u8], &[u8]) -> Flow,
) -> Result<(), StoreError> {
    let mut outcome = Ok(());
    read.parts(at, lower, upper, order == Order::Descending, &mut |name, value| match visit(name, value) {
        Ok(flow) => flow,
        Err(error) => {
            outcome = Err(error);
            ControlFlow::Break(())
        }
    })?;
    outcome
}
