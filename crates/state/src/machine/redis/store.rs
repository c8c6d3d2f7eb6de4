//! Keys and parts as the commands of an entry see and change them.
//!
//! What a command writes goes to the overlay, where later commands find it, and to a list of effects, from which
//! [`keep`](RedisStore::keep) makes rows once the command has ended well.

use std::{borrow::Cow, cell::Cell};

use bytes::Bytes;
use thalweg_redis::{Collection, CollectionId, Kind, Look, NewValue, Read, Reply, Store, StoreError};
use thalweg_types::{
    KeyspaceId, LogPosition, Revision,
    command::{RedisBatch, offset_within},
    limits::{
        MAX_KEY_BYTES, MAX_REDIS_ENTRY_BYTES, MAX_REDIS_READ_BYTES, MAX_REDIS_WRITTEN_BYTES, REDIS_REPLY_ITEM_BYTES,
    },
};

use crate::{
    counts::CountChange,
    expiry::Expiry,
    keyspaces::StoredValue,
    machine::{
        MachineError,
        clearing::{Emptying, plan_emptying},
        commit::within,
        entry::{Applier, Applying},
        live::{LiveKey, LiveValue, change_of_row, is_live, row_before},
        overlay::Overlay,
        redis::{failed, refused},
        versions::Superseded,
    },
    redis::{deadline_of, micros_of},
    versions::Ending,
};

/// What a command changed of keys.
#[derive(Debug)]
pub(super) enum Effect<'a> {
    /// A key has this row now.
    Put {
        key: &'a [u8],
        live: LiveKey<'a>,
        /// When the row before ended.
        before: Expiry,
        /// Whether watches see it.
        shows: Shows,
    },
    /// A key has none any more.
    Delete { key: &'a [u8], before: Expiry, has_ended: bool },
    /// No key has one any more; with those that the entry wrote before.
    Clear { emptying: Emptying, written: Vec<Vec<u8>> },
}

/// What watches see of a row that is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shows {
    /// The value.
    Value,
    /// That the bytes are gone that were there.
    Gone,
    /// Nothing.
    Nothing,
}

/// The keys of a keyspace while an entry is applied.
pub(super) struct RedisStore<'s, 'm, 'a> {
    pub(super) applying: &'s mut Applying<'m>,
    pub(super) overlay: &'s mut Overlay<'a>,
    pub(super) batch: RedisBatch<'a>,
    /// Where the batch begins in the log.
    pub(super) at: LogPosition,
    pub(super) keyspace: KeyspaceId,
    pub(super) counts: bool,
    pub(super) keeps: bool,
    /// The commands', if they write.
    pub(super) revision: Revision,
    /// Whether they have.
    pub(super) wrote: bool,
    pub(super) now: u64,
    /// The current command's first argument.
    first: &'a [u8],
    /// Of the current command.
    pub(super) effects: Vec<Effect<'a>>,
    /// Of the current command.
    pub(super) counted: Vec<CountChange>,
    /// Of the current command.
    pub(super) superseded: Vec<Superseded>,
    /// The key of which a row was written last, if that holds a collection, and which change of the entry's batch that is.
    pub(super) last_row: Option<(&'a [u8], u32)>,
    /// Of the batch.
    pub(super) read_bytes: Cell<usize>,
    pub(super) max_read_bytes: usize,
    /// Of the batch.
    written_bytes: usize,
    max_written_bytes: usize,
    pub(super) seeds: Cell<u64>,
}

pub(super) const TOO_MUCH_READ: &str =
    "ERR the replies of these commands would be too large together: send fewer of them at a time";
const TOO_MUCH_WRITTEN: &str = "ERR these commands write too much at once: send fewer of them at a time";
const TOO_MANY_CLEARS: &str = "ERR too many deleted prefixes wait to be swept: try again later";
const NO_COLLECTIONS: &str =
    "ERR this keyspace holds strings only: hashes and streams need one that counts exactly and keeps no history";

impl<'s, 'm, 'a> RedisStore<'s, 'm, 'a> {
    pub(super) fn new(
        applying: &'s mut Applying<'m>,
        overlay: &'s mut Overlay<'a>,
        batch: RedisBatch<'a>,
        at: LogPosition,
    ) -> Self {
        overlay.want_own();
        let keyspace = batch.keyspace;
        let totals = applying.applier.pending.redis;
        let left = |used: usize| MAX_REDIS_ENTRY_BYTES.saturating_sub(used);
        Self {
            at,
            keyspace,
            counts: applying.counts_exactly(keyspace),
            keeps: applying.keeps_history(keyspace),
            revision: applying.applied.revision.next(),
            wrote: false,
            now: applying.applied.time.0 / 1000,
            first: b"",
            effects: Vec::new(),
            counted: Vec::new(),
            superseded: Vec::new(),
            last_row: None,
            read_bytes: Cell::new(0),
            max_read_bytes: MAX_REDIS_READ_BYTES.min(left(totals.read_bytes)),
            written_bytes: 0,
            max_written_bytes: MAX_REDIS_WRITTEN_BYTES.min(left(totals.written_bytes)),
            seeds: Cell::new(totals.seeds),
            batch,
            applying,
            overlay,
        }
    }

    /// Goes on to a command.
    pub(super) fn begin(&mut self, args: &[&'a [u8]]) {
        self.first = args.get(1).copied().unwrap_or_default();
        self.overlay.try_out();
    }

    /// Takes back what the command did.
    pub(super) fn undo(&mut self) {
        self.effects.clear();
        self.counted.clear();
        self.superseded.clear();
        self.overlay.undo();
        let Applier { batch, pending, .. } = &mut *self.applying.applier;
        pending.parts.undo(batch);
    }

    /// After the last command.
    pub(super) fn end(self) {
        let totals = &mut self.applying.applier.pending.redis;
        totals.seeds = self.seeds.get();
        totals.read_bytes += self.read_bytes.get();
        totals.written_bytes += self.written_bytes;
    }

    /// Replies are in memory until their client has taken them.
    pub(super) fn within_bounds(&self, reply: Reply) -> Reply {
        let items = match &reply {
            Reply::Array(items) | Reply::Set(items) => items.len(),
            Reply::Map(pairs) | Reply::Pairs(pairs) | Reply::FlatPairs(pairs) => 2 * pairs.len(),
            _ => return reply,
        };
        let bytes = self.read_bytes.get() + items * REDIS_REPLY_ITEM_BYTES;
        self.read_bytes.set(bytes);
        if bytes > self.max_read_bytes { Reply::error(TOO_MUCH_READ) } else { reply }
    }

    pub(super) fn note_read(&self, bytes: usize) -> Result<(), StoreError> {
        let bytes = self.read_bytes.get() + bytes;
        if bytes > self.max_read_bytes {
            return Err(refused(TOO_MUCH_READ));
        }
        self.read_bytes.set(bytes);
        Ok(())
    }

    fn note_written(&mut self, bytes: usize) -> Result<(), StoreError> {
        if self.written_bytes + bytes > self.max_written_bytes {
            return Err(refused(TOO_MUCH_WRITTEN));
        }
        self.written_bytes += bytes;
        Ok(())
    }

    /// A key's row, be it hidden or ended.
    fn row(&self, key: &[u8]) -> Result<Option<LiveKey<'a>>, StoreError> {
        row_before(self.applying, self.overlay, self.keyspace, key).map_err(failed)
    }

    /// Whether a row is there for commands.
    pub(super) fn shows(&self, key: &[u8], row: &LiveKey<'_>) -> Result<bool, MachineError> {
        let is_written = || self.overlay.get(self.keyspace, key).is_some();
        let is_hidden = || {
            self.overlay.is_cleared(self.keyspace, key) || !self.applying.sight(self.keyspace).shows(key, row.revision)
        };
        if !is_live(self.applying, &row.expiry)? {
            return Ok(false);
        }
        Ok(is_written() || !is_hidden())
    }

    pub(super) fn live(&self, key: &[u8]) -> Result<Option<LiveKey<'a>>, StoreError> {
        let Some(row) = self.row(key)? else { return Ok(None) };
        Ok(self.shows(key, &row).map_err(failed)?.then_some(row))
    }

    pub(super) fn look_of(live: &LiveKey<'_>) -> Look {
        let kind = match &live.value {
            LiveValue::Stored(StoredValue::Collection(collection)) => collection.kind,
            _ => Kind::String,
        };
        let Expiry { deadline, .. } = live.expiry;
        Look { kind, deadline: deadline.map(deadline_of), version: live.revision.0, len: live.value_len() }
    }

    /// Gives a key a row in the place of another.
    fn replace(
        &mut self,
        key: &'a [u8],
        before: Option<&LiveKey<'a>>,
        live: LiveKey<'a>,
        shows: Shows,
    ) -> Result<(), StoreError> {
        self.note_replaced(key, before, Some(&live), Ending::Overwritten)?;
        self.overlay.set(self.keyspace, key, Some(live.clone()));
        let before = before.map_or(Expiry::NEVER, |before| before.expiry);
        self.effects.push(Effect::Put { key, live, before, shows });
        Ok(())
    }

    /// Takes a key's row away.
    fn remove(&mut self, key: &'a [u8], before: &LiveKey<'a>, ending: Ending) -> Result<(), StoreError> {
        self.note_replaced(key, Some(before), None, ending)?;
        self.overlay.set(self.keyspace, key, None);
        self.effects.push(Effect::Delete { key, before: before.expiry, has_ended: ending == Ending::Expired });
        Ok(())
    }

    /// Looks after counts, trash and history.
    fn note_replaced(
        &mut self,
        key: &[u8],
        before: Option<&LiveKey<'a>>,
        after: Option<&LiveKey<'a>>,
        ending: Ending,
    ) -> Result<(), StoreError> {
        if self.counts {
            let after = after.map(LiveKey::held);
            let change = change_of_row(self.applying, self.overlay, self.keyspace, key, before, after);
            self.counted.push(change);
        }
        if self.keeps {
            let superseded = self.applying.superseded(self.overlay, self.keyspace, key, self.revision, ending);
            self.superseded.extend(superseded.map_err(failed)?);
        }
        Ok(())
    }

    /// A value as it is kept: bytes of an argument by where they are, if whoever has the entry finds them there.
    fn value(&mut self, key: &[u8], value: NewValue<'a>) -> Result<LiveValue<'a>, StoreError> {
        Ok(match value {
            NewValue::Collection(collection) => {
                self.note_written(collection.meta.len())?;
                LiveValue::Stored(StoredValue::Collection(collection))
            }
            NewValue::String(Cow::Borrowed(bytes)) => match self.offset_of(key, bytes) {
                Some(offset) => LiveValue::Written(bytes, within(self.at, offset)),
                None => self.computed(Bytes::copy_from_slice(bytes))?,
            },
            NewValue::String(Cow::Owned(bytes)) => self.computed(bytes.into())?,
        })
    }

    fn computed(&mut self, bytes: Bytes) -> Result<LiveValue<'a>, StoreError> {
        self.note_written(bytes.len())?;
        Ok(LiveValue::Stored(StoredValue::Inline(bytes)))
    }

    /// See [`RedisBatch::values`]. Short values need not be found.
    fn offset_of(&self, key: &[u8], value: &[u8]) -> Option<usize> {
        let offset = offset_within(self.batch.bytes, value)?;
        let is_before = || offset_within(self.batch.bytes, key).is_some_and(|at| at + key.len() + 4 == offset);
        let is_short = value.len() <= self.applying.machine.options.inline_value_bytes;
        (is_short || std::ptr::eq(self.first, key) || is_before()).then_some(offset)
    }

    /// When what ends at this deadline does; `None`: it has ended already.
    fn expiry(&self, deadline: Option<u64>) -> Option<Expiry> {
        match deadline {
            Some(deadline) if deadline <= self.now => None,
            deadline => Some(Expiry { deadline: deadline.map(micros_of), lease: None }),
        }
    }
}

impl<'a> Store<'a> for RedisStore<'_, '_, 'a> {
    fn put(&mut self, key: &'a [u8], value: NewValue<'a>, deadline: Option<u64>) -> Result<(), StoreError> {
        let before = self.row(key)?;
        let Some(expiry) = self.expiry(deadline) else {
            return match &before {
                Some(before) => self.remove(key, before, Ending::Expired),
                None => Ok(()),
            };
        };
        let value = self.value(key, value)?;
        let live = LiveKey { revision: self.revision, value, expiry };
        let shows = match (&live.value, &before) {
            (LiveValue::Stored(StoredValue::Collection(_)), Some(before)) if before.collection().is_none() => {
                Shows::Gone
            }
            (LiveValue::Stored(StoredValue::Collection(_)), _) => Shows::Nothing,
            _ => Shows::Value,
        };
        self.replace(key, before.as_ref(), live, shows)
    }

    fn put_meta(&mut self, key: &'a [u8], collection: Collection) -> Result<(), StoreError> {
        let Some(before) = self.live(key)? else { return Ok(()) };
        let value = self.value(key, NewValue::Collection(collection))?;
        // Still what its revision says: collections have no versions, and their bytes are not in the log.
        let live = LiveKey { revision: before.revision, value, expiry: before.expiry };
        self.replace(key, Some(&before), live, Shows::Nothing)
    }

    fn set_deadline(&mut self, key: &'a [u8], deadline: Option<u64>) -> Result<(), StoreError> {
        let Some(before) = self.live(key)? else { return Ok(()) };
        let Some(expiry) = self.expiry(deadline) else { return self.remove(key, &before, Ending::Expired) };
        let expiry = Expiry { lease: before.expiry.lease, ..expiry };
        let revision = if self.keeps { before.revision } else { self.revision };
        let live = LiveKey { revision, expiry, ..before.clone() };
        self.overlay.set(self.keyspace, key, Some(live.clone()));
        self.effects.push(Effect::Put { key, live, before: before.expiry, shows: Shows::Nothing });
        Ok(())
    }

    fn delete(&mut self, key: &'a [u8]) -> Result<bool, StoreError> {
        let Some(before) = self.row(key)? else { return Ok(false) };
        let was_there = self.shows(key, &before).map_err(failed)?;
        self.remove(key, &before, if was_there { Ending::Deleted } else { Ending::Expired })?;
        Ok(was_there)
    }

    fn rename(&mut self, from: &'a [u8], to: &'a [u8]) -> Result<(), StoreError> {
        let Some(moved) = self.live(from)? else { return Ok(()) };
        // Whoever looks after the log's bytes looks for them under the key that they came with.
        let is_in_log = match &moved.value {
            LiveValue::Stored(StoredValue::Blob(_)) => true,
            LiveValue::Written(bytes, _) => bytes.len() > self.applying.machine.options.inline_value_bytes,
            _ => false,
        };
        let value = if is_in_log {
            // Counted before they are read: what is above the bound costs nothing.
            self.note_written(moved.value_len())?;
            LiveValue::Stored(StoredValue::Inline(moved.bytes(self.applying).map_err(failed)?))
        } else {
            moved.value.clone()
        };
        let live = LiveKey { revision: self.revision, value, expiry: moved.expiry };
        if from == to {
            return self.replace(to, Some(&moved), live, Shows::Value);
        }
        let before = self.row(to)?;
        self.remove(from, &moved, Ending::Deleted)?;
        // It goes along.
        if let Some(change) = self.counted.last_mut() {
            change.trash = None;
        }
        let shows = match (moved.collection(), &before) {
            (None, _) => Shows::Value,
            (Some(_), Some(before)) if before.collection().is_none() => Shows::Gone,
            (Some(_), _) => Shows::Nothing,
        };
        self.replace(to, before.as_ref(), live, shows)
    }

    fn new_collection(&mut self) -> Result<CollectionId, StoreError> {
        if !self.has_collections() {
            return Err(refused(NO_COLLECTIONS));
        }
        let next = &mut self.applying.applier.meta.next_collection;
        let id = *next;
        next.0 += 1;
        self.applying.applier.pending.parts.gave_ids = true;
        Ok(id)
    }

    fn put_part(&mut self, id: CollectionId, name: &[u8], value: &[u8]) -> Result<(), StoreError> {
        if name.len() > MAX_KEY_BYTES {
            return Err(refused("ERR a field's name is above the limit"));
        }
        self.note_written(name.len() + value.len())?;
        self.applying.put_part(self.keyspace, id, name, value);
        Ok(())
    }

    fn delete_part(&mut self, id: CollectionId, name: &[u8]) -> Result<(), StoreError> {
        self.note_written(name.len())?;
        self.applying.delete_part(self.keyspace, id, name);
        Ok(())
    }

    fn clear(&mut self) -> Result<(), StoreError> {
        let emptying = plan_emptying(self.applying, self.overlay, self.keyspace, b"").map_err(failed)?;
        if matches!(emptying, Emptying::Later) && !self.applying.has_room_for_clear(self.keyspace, b"", 0) {
            return Err(refused(TOO_MANY_CLEARS));
        }
        let written = self.overlay.written_under(self.keyspace, b"");
        if self.counts {
            self.note_emptied(&written);
        }
        if self.keeps {
            self.note_superseded(&emptying, &written)?;
        }
        match &emptying {
            Emptying::Later => self.overlay.clear(self.keyspace, b""),
            Emptying::Now(rows) => {
                rows.iter().for_each(|row| self.overlay.set(self.keyspace, row.key.clone(), None));
            }
        }
        written.iter().for_each(|key| self.overlay.set(self.keyspace, key.clone(), None));
        self.effects.push(Effect::Clear { emptying, written });
        Ok(())
    }
}

impl RedisStore<'_, '_, '_> {
    /// Nothing counts any more, and collections that the entry wrote go; those in the backend go with their rows.
    fn note_emptied(&mut self, written: &[Vec<u8>]) {
        let mut counts = self.applying.counts_of(self.keyspace);
        self.counted.iter().for_each(|change| counts.change(*change));
        self.counted.push(CountChange::of_emptying(counts));
        for key in written {
            let held = self.overlay.get(self.keyspace, key).and_then(|live| live.as_ref()?.collection());
            self.counted.push(CountChange { trash: held, ..CountChange::default() });
        }
    }

    fn note_superseded(&mut self, emptying: &Emptying, written: &[Vec<u8>]) -> Result<(), StoreError> {
        let rows = match emptying {
            Emptying::Now(rows) => rows.as_slice(),
            Emptying::Later => &[],
        };
        for key in rows.iter().map(|row| &row.key).chain(written) {
            let superseded = self.applying.superseded(self.overlay, self.keyspace, key, self.revision, Ending::Deleted);
            self.superseded.extend(superseded.map_err(failed)?);
        }
        Ok(())
    }
}
