//! Keys and parts (fields, entries) as the Redis commands of an entry change them.
//!
//! Each write of a command immediately becomes staged row changes, which later reads of the same batch see. A rejected
//! command is rolled back completely ([`RedisStore::undo`]).
//!
//! Owns: the savepoints, budgets and revision of a batch. Does not own: the effect of each command (`thalweg-redis`),
//! the rows of parts (`parts`), or the staged changes (`machine`). Invariants: a batch uses at most one revision. A
//! read outside of a transaction has no effect on the rest of the batch.

use std::{borrow::Cow, cell::Cell};

use bytes::Bytes;
use thalweg_redis::{Collection, CollectionId, Command, KeyInfo, NewValue, Read, Reply, Store, StoreError, run_read};
use thalweg_types::{
    KeyspaceId, LogPosition, Revision,
    command::{Outcome, RedisBatch, offset_within},
    limits::{MAX_BATCH_READ_STEPS, MAX_KEY_BYTES, MAX_REDIS_READ_BYTES, REDIS_REPLY_ITEM_BYTES},
    steps::{OPERATION, items, read_bytes, written_bytes},
};

use crate::{
    blobs::within,
    changes::key_change::KeyChange,
    error::MachineError,
    expiry::rows::Expiry,
    history::rows::VersionEnd,
    keys,
    keyspaces::{
        counts::{CountChange, CountedValue},
        live::{Replaced, change_of_row, is_live},
        row_head::RowHead,
        values::{Stored, StoredValue},
    },
    machine::{applying::Applying, undo::Savepoint},
    redis::{
        errors::{failed, failure, refused},
        view::{deadline_of, micros_of, mix},
    },
    refused::Refused,
};

/// Change that watches see when a Redis command writes the row of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchEffect {
    /// Watches see a put of the key's new value.
    Value,
    /// Watches see a delete, because a Redis collection replaces bytes.
    Deletion,
    /// Watches see no change of the key.
    Nothing,
}

/// A value that a Redis command stores under a key.
#[derive(Clone, Debug)]
pub(crate) enum NewRow<'a> {
    /// Bytes of one of the command's arguments, and the position of these bytes in the log.
    Argument(&'a [u8], LogPosition),
    /// Bytes that the command has computed, or copied from another row.
    Bytes(Bytes),
    /// A Redis hash or stream.
    Collection(Collection),
}

impl NewRow<'_> {
    fn collection(&self) -> Option<CollectionId> {
        match self {
            Self::Argument(..) | Self::Bytes(_) => None,
            Self::Collection(collection) => Some(collection.id),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Argument(bytes, _) => bytes.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Collection(collection) => collection.meta.len(),
        }
    }
}

/// The keys of one keyspace, as Redis commands read and change them while an entry is applied.
pub(crate) struct RedisStore<'s, 'm, 'a> {
    pub(crate) applying: &'s mut Applying<'m>,
    pub(crate) batch: RedisBatch<'a>,
    /// Position in the log at which the batch of Redis commands begins.
    pub(crate) at: LogPosition,
    pub(crate) keyspace: KeyspaceId,
    pub(crate) counts: bool,
    pub(crate) keeps: bool,
    /// Revision that the batch uses if one of its commands writes.
    pub(crate) revision: Revision,
    /// True if any command of the batch has written so far.
    wrote: bool,
    /// True if the current Redis command has written a row.
    pub(crate) writes: bool,
    pub(crate) now: u64,
    /// First argument of the current command, after its name.
    first: &'a [u8],
    /// Savepoint at the beginning of the current command, to which a rejection rolls back.
    savepoint: Option<Savepoint>,
    /// State at the beginning of the current transaction, to which a rollback of the transaction returns; `None`
    /// outside of one.
    group: Option<GroupStart>,
    /// Bytes that the batch of Redis commands has read so far.
    pub(crate) read_bytes: Cell<usize>,
    pub(crate) seeds: Cell<u64>,
    reads: ReadsApart,
}

/// Steps of work and bytes that the reads outside of transactions have used so far. They have limits of their own.
#[derive(Debug, Default)]
struct ReadsApart {
    steps: u64,
    bytes: usize,
}

/// State at the beginning of a transaction within a batch.
struct GroupStart {
    savepoint: Savepoint,
    revision: Revision,
    wrote: bool,
    seeds: u64,
}

impl RowHead {
    /// Returns the properties of a key that Redis commands can use without its value.
    pub(crate) fn info(&self) -> KeyInfo {
        let deadline = self.expiry.deadline.map(deadline_of);
        KeyInfo { kind: self.kind, deadline, version: self.revision.0, len: self.held.value_bytes }
    }
}

pub(crate) const TOO_MUCH_READ: &str =
    "ERR the replies of these commands would be too large together: send fewer of them at a time";
/// Reply of a read that was not performed because no client waits for it.
const SKIPPED: Reply = Reply::Null;
const UNREADABLE: &str = "MISCONF the value can't be read: this node's log is damaged (docs/guides/damage.md)";
const TOO_MANY_READS: &str = "ERR too expensive: the reads that follow a write in one pipeline would block others for too \
     long; send them before the writes, or wait for the replies to the writes";
pub(crate) const TOO_EXPENSIVE: &str = "ERR too expensive: the command or transaction would block others for too long, \
     so it changed nothing; split it, or send reads outside of MULTI and before writes";
const TOO_MANY_CLEARS: &str = "ERR too many deleted prefixes wait to be swept: try again later";
const NO_COLLECTIONS: &str =
    "ERR this keyspace stores only strings: hashes and streams need a keyspace with exact counts and without history";

impl<'s, 'm, 'a> RedisStore<'s, 'm, 'a> {
    pub(crate) fn new(applying: &'s mut Applying<'m>, batch: RedisBatch<'a>, at: LogPosition) -> Self {
        let keyspace = batch.keyspace;
        applying.record_changes();
        Self {
            at,
            keyspace,
            counts: applying.counts_exactly(keyspace),
            keeps: applying.keeps_history(keyspace),
            revision: applying.applied.revision.next(),
            wrote: false,
            writes: false,
            now: applying.applied.time.0 / 1000,
            first: b"",
            savepoint: None,
            group: None,
            read_bytes: Cell::new(0),
            seeds: Cell::new(applying.applier.meta.seeds),
            reads: ReadsApart::default(),
            batch,
            applying,
        }
    }

    /// Begins a Redis command with a savepoint, so that it can be rolled back.
    pub(crate) fn begin(&mut self, args: &[&'a [u8]]) {
        self.first = args.get(1).copied().unwrap_or_default();
        self.writes = false;
        self.applying.charge(OPERATION + items(args.len()));
        self.savepoint = Some(self.applying.savepoint());
    }

    /// Performs a read outside of transactions, the command with this number in the batch, without any effect on the
    /// rest of the batch. Returns [`SKIPPED`] if no client of this node waits for the reply.
    ///
    /// The reads of a batch have a budget of [`MAX_BATCH_READ_STEPS`]. A read that takes more than half of what is left
    /// of it gets an error reply.
    pub(crate) fn read_apart(
        &mut self,
        command: &Command,
        args: &[&'a [u8]],
        number: u32,
    ) -> Result<Reply, MachineError> {
        if !self.applying.is_awaited {
            return Ok(SKIPPED);
        }
        // A read may use half of the rest. So even a read that is too expensive leaves the other half to later reads.
        let budget = MAX_BATCH_READ_STEPS.saturating_sub(self.reads.steps) / 2;
        let command_budget = self.applying.applier.staged.meter().begin_read(budget);
        let seed = mix(self.revision.0 ^ u64::from(number) << 40);
        let (seeds, bytes) = (self.seeds.replace(seed), self.read_bytes.replace(self.reads.bytes));
        self.applying.charge(OPERATION + items(args.len()));
        // A read is not begun if no steps are left, because opening its scan alone would cost many steps.
        let reply = match self.check_steps() {
            Ok(()) => match run_read(self, command, args).map_err(failure) {
                // Other nodes do not perform the read, so a value that this one has lost fails only the reply.
                Err(MachineError::Blob(error)) => Reply::Error(format!("{UNREADABLE}: {error}").into()),
                read => self.within_bounds(read?),
            },
            Err(_) => SKIPPED,
        };
        let reply = if self.check_steps().is_err() { Reply::error(TOO_MANY_READS) } else { reply };
        self.seeds.set(seeds);
        self.reads.bytes = self.read_bytes.replace(bytes);
        let taken = self.applying.applier.staged.meter().end_read(command_budget);
        self.reads.steps += taken;
        self.applying.applier.read_steps += taken;
        Ok(reply)
    }

    /// Begins a transaction, whose commands are rolled back together if they are too expensive.
    pub(crate) fn begin_group(&mut self) {
        let savepoint = self.applying.savepoint();
        let (revision, wrote, seeds) = (self.applying.applied.revision, self.wrote, self.seeds.get());
        self.group = Some(GroupStart { savepoint, revision, wrote, seeds });
    }

    pub(crate) fn keep_group(&mut self) {
        if let Some(group) = self.group.take() {
            self.applying.keep(group.savepoint);
        }
    }

    /// Rolls back the current transaction, after its current command was rolled back.
    pub(crate) fn undo_group(&mut self) {
        if let Some(GroupStart { savepoint, revision, wrote, seeds }) = self.group.take() {
            self.applying.roll_back(savepoint);
            self.applying.applied.revision = revision;
            self.wrote = wrote;
            self.seeds.set(seeds);
        }
    }

    /// Rolls back the changes of the current command, which was rejected.
    pub(crate) fn undo(&mut self) {
        if let Some(savepoint) = self.savepoint.take() {
            self.applying.roll_back(savepoint);
        }
    }

    pub(crate) fn keep(&mut self) {
        if let Some(savepoint) = self.savepoint.take() {
            self.applying.keep(savepoint);
        }
        if self.writes {
            self.use_revision();
        }
    }

    /// Uses the batch's revision. Called when a command changes keys; only the first call has an effect.
    pub(crate) fn use_revision(&mut self) {
        if !self.wrote {
            self.wrote = true;
            let revision = self.applying.use_revision();
            debug_assert_eq!(revision, self.revision);
        }
    }

    /// Ends the batch after its last command: stores how many random numbers the commands have used.
    pub(crate) fn end(self) {
        self.applying.applier.meta.seeds = self.seeds.get();
    }

    /// Returns the reply, or an error reply if the replies of the batch exceed their maximum bytes. The maximum is
    /// needed because replies stay in memory until the client has received them.
    pub(crate) fn within_bounds(&self, reply: Reply) -> Reply {
        let items = match &reply {
            Reply::Array(items) | Reply::Set(items) => items.len(),
            Reply::Map(pairs) | Reply::Pairs(pairs) | Reply::FlatPairs(pairs) => 2 * pairs.len(),
            _ => return reply,
        };
        let bytes = self.read_bytes.get() + items * REDIS_REPLY_ITEM_BYTES;
        self.read_bytes.set(bytes);
        if bytes > MAX_REDIS_READ_BYTES { Reply::error(TOO_MUCH_READ) } else { reply }
    }

    /// Returns an error if the commands of the batch have used up their steps of work.
    pub(crate) fn check_steps(&self) -> Result<(), StoreError> {
        if self.applying.applier.staged.meter().is_spent() { Err(refused(TOO_EXPENSIVE)) } else { Ok(()) }
    }

    /// Charges `steps` of work, and returns an error if the commands of the batch have used up their steps.
    pub(crate) fn work(&self, steps: u64) -> Result<(), StoreError> {
        self.applying.charge(steps);
        self.check_steps()
    }

    /// Charges `steps` of work that reads no data, such as matching a pattern. Such work also has a limit of its own.
    pub(crate) fn search(&self, steps: u64) -> Result<(), StoreError> {
        self.applying.applier.staged.meter().note_searched(steps);
        self.work(steps)
    }

    /// Counts bytes that a command is about to read towards the bytes that the batch may read.
    pub(crate) fn note_read(&self, bytes: usize) -> Result<(), StoreError> {
        self.work(read_bytes(bytes))?;
        let bytes = self.read_bytes.get() + bytes;
        if bytes > MAX_REDIS_READ_BYTES {
            return Err(refused(TOO_MUCH_READ));
        }
        self.read_bytes.set(bytes);
        Ok(())
    }

    fn note_written(&mut self, bytes: usize) -> Result<(), StoreError> {
        self.work(written_bytes(bytes))
    }

    /// Returns the row of a key without its value, even if the row is hidden or its value has ended.
    fn head(&self, key: &[u8]) -> Result<Option<RowHead>, StoreError> {
        self.check_steps()?;
        keys::with_data_key(self.keyspace, key, |full| self.applying.row_head(full)).map_err(failed)
    }

    /// Returns the row of a key without its value, if the key exists.
    pub(crate) fn live_head(&self, key: &[u8]) -> Result<Option<RowHead>, StoreError> {
        let Some(head) = self.head(key)? else { return Ok(None) };
        Ok(self.shows(key, head.revision, &head.expiry).map_err(failed)?.then_some(head))
    }

    /// Returns true if commands can see a row: no deleted prefix hides it, and its value has not ended.
    pub(crate) fn shows(&self, key: &[u8], revision: Revision, expiry: &Expiry) -> Result<bool, MachineError> {
        Ok(is_live(self.applying, expiry)? && self.applying.visibility(self.keyspace).shows(key, revision))
    }

    /// Returns the row of a key with its value, if the key exists, and counts the bytes of the value as read.
    pub(crate) fn live(&self, key: &[u8]) -> Result<Option<Stored>, StoreError> {
        self.check_steps()?;
        let Some(row) = self.applying.row_of(self.keyspace, key).map_err(failed)? else { return Ok(None) };
        if !self.shows(key, row.revision, &row.expiry).map_err(failed)? {
            return Ok(None);
        }
        self.note_read(row.value_len())?;
        Ok(Some(row))
    }

    /// Replaces the row of a key, and updates counts, history and watches.
    fn replace(
        &mut self,
        key: &'a [u8],
        before: Option<&RowHead>,
        (value, revision, expiry): (NewRow<'a>, Revision, Expiry),
        shows: WatchEffect,
    ) -> Result<(), StoreError> {
        let before = before.map(|before| self.replaced(before));
        if self.counts {
            let after = CountedValue { value_bytes: value.len(), collection: value.collection() };
            let change = change_of_row(key, before.as_ref(), Some(after));
            self.applying.count(self.keyspace, change);
        }
        self.supersede(key, VersionEnd::Overwritten, before.as_ref())?;
        let before = before.map_or(Expiry::NEVER, |before| before.expiry);
        self.put_row(key, before, &value, revision, expiry, shows).map_err(failed)
    }

    /// Removes the row of a key, and updates counts, history and watches. If the key refers to a Redis collection, the
    /// collection's parts are scheduled for removal, unless it moves to another key.
    fn remove(
        &mut self,
        key: &'a [u8],
        before: &RowHead,
        ending: VersionEnd,
        goes: CollectionFate,
    ) -> Result<(), StoreError> {
        let replaced = self.replaced(before);
        if self.counts {
            let change = change_of_row(key, Some(&replaced), None);
            let trash = change.trash.filter(|_| goes == CollectionFate::BecomesTrash);
            self.applying.count(self.keyspace, CountChange { trash, ..change });
        }
        self.supersede(key, ending, Some(&replaced))?;
        let keyspace = self.keyspace;
        let change = match ending {
            VersionEnd::Expired => KeyChange::Expire { keyspace, key },
            _ => KeyChange::Delete { keyspace, key },
        };
        self.delete_row(key, before.expiry, &change).map_err(failed)
    }

    fn replaced(&self, before: &RowHead) -> Replaced {
        let is_counted = self.applying.counts_row(self.keyspace, before.revision);
        Replaced { held: before.held, expiry: before.expiry, is_counted }
    }

    /// Keeps the value that a command replaces as a former value, in a keyspace with history.
    fn supersede(&mut self, key: &[u8], ending: VersionEnd, before: Option<&Replaced>) -> Result<(), StoreError> {
        if self.keeps {
            self.note_written(before.map_or(0, |before| before.held.value_bytes))?;
            self.applying.supersede(self.keyspace, key, self.revision, ending).map_err(failed)?;
        }
        Ok(())
    }

    /// Converts a value to the form in which it is stored. If the value is an argument of the command, a pointer to it
    /// in the log can be stored instead of its bytes, provided that the search for live values in the log will find it
    /// there. Every node charges the same number of steps, wherever it stores the value, because all nodes must decide
    /// equally.
    fn value(&mut self, key: &[u8], value: NewValue<'a>) -> Result<NewRow<'a>, StoreError> {
        Ok(match value {
            NewValue::Collection(collection) => {
                self.note_written(collection.meta.len())?;
                NewRow::Collection(collection)
            }
            NewValue::String(Cow::Borrowed(bytes)) => match self.offset_of(key, bytes) {
                Some(offset) => {
                    self.work(read_bytes(bytes.len()))?;
                    NewRow::Argument(bytes, within(self.at, offset))
                }
                None => self.computed(Bytes::copy_from_slice(bytes))?,
            },
            NewValue::String(Cow::Owned(bytes)) => self.computed(bytes.into())?,
        })
    }

    fn computed(&mut self, bytes: Bytes) -> Result<NewRow<'a>, StoreError> {
        self.note_written(bytes.len())?;
        Ok(NewRow::Bytes(bytes))
    }

    /// Returns the offset of an argument's bytes within the batch, if these bytes are a value in the sense of
    /// [`RedisBatch::values`].
    fn offset_of(&self, key: &[u8], value: &[u8]) -> Option<usize> {
        let offset = offset_within(self.batch.bytes, value)?;
        let is_before = || offset_within(self.batch.bytes, key).is_some_and(|at| at + key.len() + 4 == offset);
        (std::ptr::eq(self.first, key) || is_before()).then_some(offset)
    }

    /// Converts a deadline in Redis's milliseconds to an expiry; returns `None` if the deadline has already passed.
    fn expiry(&self, deadline: Option<u64>) -> Option<Expiry> {
        match deadline {
            Some(deadline) if deadline <= self.now => None,
            deadline => Some(Expiry { deadline: deadline.map(micros_of), lease: None }),
        }
    }
}

/// Destination of a Redis collection when the row of its key is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CollectionFate {
    /// The Redis collection has no key any more, and sweeps remove its fields or entries.
    BecomesTrash,
    /// The Redis collection stays, because it moves to another key.
    MovesToKey,
}

impl<'a> Store<'a> for RedisStore<'_, '_, 'a> {
    fn prepare_value(&mut self, bytes: usize) -> Result<(), StoreError> {
        let left = self.applying.applier.staged.meter().left();
        // The work is charged when the value is written. A rejection uses up the remaining steps.
        if written_bytes(bytes) > left { self.work(left.saturating_add(1)) } else { Ok(()) }
    }

    fn put(&mut self, key: &'a [u8], value: NewValue<'a>, deadline: Option<u64>) -> Result<(), StoreError> {
        let before = self.head(key)?;
        let Some(expiry) = self.expiry(deadline) else {
            return match &before {
                Some(before) => self.remove(key, before, VersionEnd::Expired, CollectionFate::BecomesTrash),
                None => Ok(()),
            };
        };
        let value = self.value(key, value)?;
        let shows = watch_effect(value.collection(), before.as_ref());
        self.replace(key, before.as_ref(), (value, self.revision, expiry), shows)
    }

    fn put_meta(&mut self, key: &'a [u8], collection: Collection) -> Result<(), StoreError> {
        let Some(before) = self.live_head(key)? else { return Ok(()) };
        let value = self.value(key, NewValue::Collection(collection))?;
        // The revision does not change: collections have no versions, and their bytes are not in the log.
        let row = (value, before.revision, before.expiry);
        self.replace(key, Some(&before), row, WatchEffect::Nothing)
    }

    fn set_deadline(&mut self, key: &'a [u8], deadline: Option<u64>) -> Result<(), StoreError> {
        let Some(before) = self.live(key)? else { return Ok(()) };
        let Some(expiry) = self.expiry(deadline) else {
            let head = RowHead::of(before.revision, before.value.as_ref(), before.expiry);
            return self.remove(key, &head, VersionEnd::Expired, CollectionFate::BecomesTrash);
        };
        // The row is written again with its value.
        self.note_written(before.value_len())?;
        let expiry = Expiry { lease: before.expiry.lease, ..expiry };
        let revision = if self.keeps { before.revision } else { self.revision };
        self.put_deadline(key, &before, revision, &expiry).map_err(failed)
    }

    fn delete(&mut self, key: &'a [u8]) -> Result<bool, StoreError> {
        let Some(before) = self.head(key)? else { return Ok(false) };
        let was_there = self.shows(key, before.revision, &before.expiry).map_err(failed)?;
        let ending = if was_there { VersionEnd::Deleted } else { VersionEnd::Expired };
        self.remove(key, &before, ending, CollectionFate::BecomesTrash)?;
        Ok(was_there)
    }

    fn rename(&mut self, from: &'a [u8], to: &'a [u8]) -> Result<(), StoreError> {
        let Some(moved) = self.live(from)? else { return Ok(()) };
        // The value is charged by its length, wherever this node stores it, so that all nodes decide equally.
        self.note_written(moved.value_len())?;
        let head = RowHead::of(moved.revision, moved.value.as_ref(), moved.expiry);
        // The mover looks for a value's log bytes under the original key. So the new row contains the bytes themselves.
        let value = match &moved.value {
            StoredValue::Collection(collection) => NewRow::Collection(collection.clone()),
            StoredValue::Inline(_) | StoredValue::Blob(_) => {
                NewRow::Bytes(self.applying.bytes_of(&moved).map_err(failed)?)
            }
        };
        let row = (value, self.revision, moved.expiry);
        let before = self.head(to)?;
        self.remove(from, &head, VersionEnd::Deleted, CollectionFate::MovesToKey)?;
        let shows = watch_effect(moved.collection(), before.as_ref());
        self.replace(to, before.as_ref(), row, shows)
    }

    fn new_collection(&mut self) -> Result<CollectionId, StoreError> {
        if !self.has_collections() {
            return Err(refused(NO_COLLECTIONS));
        }
        let next = &mut self.applying.applier.meta.next_collection;
        let id = *next;
        next.0 += 1;
        Ok(id)
    }

    fn put_part(&mut self, id: CollectionId, name: &[u8], value: &[u8]) -> Result<(), StoreError> {
        if name.len() > MAX_KEY_BYTES {
            return Err(refused("ERR a field's name is above the limit"));
        }
        self.note_written(name.len())?;
        // The value is charged where its row is staged. If the steps do not suffice for it, the command is rejected
        // before.
        self.prepare_value(value.len())?;
        self.applying.put_part(self.keyspace, id, name, value);
        Ok(())
    }

    fn delete_part(&mut self, id: CollectionId, name: &[u8]) -> Result<(), StoreError> {
        self.note_written(name.len())?;
        self.applying.delete_part(self.keyspace, id, name);
        Ok(())
    }

    fn clear(&mut self) -> Result<(), StoreError> {
        self.check_steps()?;
        self.writes = true;
        match self.applying.empty_prefix(self.keyspace, b"", self.revision) {
            Ok(_) => Ok(()),
            Err(Refused::Outcome(Outcome::TooMany { .. })) => Err(refused(TOO_MANY_CLEARS)),
            Err(Refused::Outcome(_)) => Err(failed(MachineError::Stopped)),
            Err(Refused::Failed(error)) => Err(failed(error)),
        }
    }
}

/// Returns the change that watches see when the row `before` is replaced. `collection` is that of the new row.
fn watch_effect(collection: Option<CollectionId>, before: Option<&RowHead>) -> WatchEffect {
    match (collection, before) {
        (None, _) => WatchEffect::Value,
        (Some(_), Some(before)) if before.held.collection.is_none() => WatchEffect::Deletion,
        (Some(_), _) => WatchEffect::Nothing,
    }
}
