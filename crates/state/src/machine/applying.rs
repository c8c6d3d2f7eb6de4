//! The log record being applied: the changes collected while its commands run, and the single backend batch made of
//! them.
//!
//! Owns: `Applying`, reads that include the changes so far, and the order of publishing. Does not own: the changes of
//! rows (`staged`), the data kept between records (`applier`), or rollback (`savepoint`).
//!
//! Each command of an entry sees the changes of the earlier commands, in rows and in tables in memory, exactly as if
//! each were an entry of its own. An entry of blind puts and deletes reads nothing and allocates only space in the
//! batch. Several writes of one key are several changes in the batch, and the last one wins. Some writes instead
//! overwrite the previous change in place (`Staged::put_in_place`).
//!
//! Invariant: `visible` rises before the batch is applied; keyspaces, stream heads, counts and liveness are published
//! after it, and `applied` after them.

use std::sync::{Arc, MutexGuard, atomic::Ordering};

use bytes::Bytes;
use thalweg_store::Applied;
use thalweg_types::{BlobRef, KeyspaceId, LogPosition, Offset, Revision, StreamId, steps::READ};

use crate::{
    entry::Position,
    error::MachineError,
    groups::table::GroupTable,
    keyspaces::{read_view::Visibility, row_head::RowHead},
    machine::{applier::Applier, staged::StagedView, state_machine::Machine},
    refused::Refused,
    segments::liveness::BlobKind,
    streams::heads::Head,
    sync::{lock, read, write},
};

/// Maximum number of rows that one command deletes for maintenance. Bounds the batch, and the time for which readers
/// of the log wait for the next entry.
pub(crate) const MAX_RECLAIM_ENTRIES: u32 = 10_000;

/// The log record being applied, with access to the machine and to the changes so far.
pub(crate) struct Applying<'m> {
    pub(crate) applier: &'m mut Applier,
    pub(crate) machine: &'m Machine,
    /// Position that the state will have reached after this log record.
    pub(crate) applied: Applied,
    /// True if a client of this node waits for the outcomes of the log entry being applied.
    pub(crate) is_awaited: bool,
    /// Payload of the entry being applied, and the payload's position in the log; `None` for other log records.
    payload: Option<(&'m [u8], LogPosition)>,
    /// Table of consumer groups, locked by the first command of the record that needs it.
    groups: Option<MutexGuard<'m, GroupTable>>,
}

impl<'m> Applying<'m> {
    pub(crate) fn begin(
        applier: &'m mut Applier,
        machine: &'m Machine,
        position: &Position,
        payload: Option<(&'m [u8], LogPosition)>,
    ) -> Self {
        let mut applied = Applied { lsn: position.next_lsn, ..applier.applied };
        if let Some((term, index, time)) = position.entry {
            applied.term = term;
            applied.index = index;
            applied.time = applied.time.max(time);
            applier.running_hash.begin_entry(&applied);
        } else {
            applier.running_hash.begin_local();
        }
        applier.staged.clear();
        for generation in machine.take_forgotten() {
            applier.liveness.forget(generation);
        }
        Self { applier, machine, applied, is_awaited: false, payload, groups: None }
    }

    /// Reads a value that the state stores as a pointer into the log. A value of the entry being applied is taken from
    /// its payload, because the log may not be readable there yet.
    pub(crate) fn read_blob(&self, blob: &BlobRef) -> Result<Bytes, MachineError> {
        let own = self.payload.filter(|(_, at)| at.generation == blob.generation).and_then(|(payload, at)| {
            let from = blob.offset.checked_sub(at.offset)? as usize;
            payload.get(from..)?.get(..blob.len as usize)
        });
        match own {
            Some(bytes) => Ok(Bytes::copy_from_slice(bytes)),
            None => Ok(self.machine.blobs.read(blob)?),
        }
    }

    /// Returns a stream's head (settings, offsets) as earlier commands have left it, and marks it as changed. The
    /// stream can be deleted.
    pub(crate) fn head(&mut self, stream: StreamId) -> Option<&mut Head> {
        if !self.applier.pending.heads.contains_key(&stream) {
            let head = read(&self.machine.published.streams).get(stream).cloned()?;
            self.applier.pending.heads.insert(stream, Some(head));
        }
        self.applier.pending.heads.get_mut(&stream)?.as_mut()
    }

    pub(crate) fn live_head(&mut self, stream: StreamId) -> Option<&mut Head> {
        self.head(stream).filter(|head| head.is_live())
    }

    /// Returns a live stream's name, start offset and next offset, without marking the stream's head as changed.
    pub(crate) fn stream_bounds(&self, stream: StreamId) -> Option<(Arc<str>, Offset, Offset)> {
        let bounds = |head: &Head| head.is_live().then(|| (head.name.clone(), head.start, head.next));
        match self.applier.pending.heads.get(&stream) {
            Some(head) => head.as_ref().and_then(bounds),
            None => read(&self.machine.published.streams).get(stream).and_then(bounds),
        }
    }

    /// Returns the table of consumer groups as earlier commands have left it. Keeps the table locked until the log
    /// record is applied. Before locking it, waits until the backend can apply the record without a stall, so that
    /// readers of groups do not wait for flushes and compactions.
    pub(crate) fn groups(&mut self) -> &mut GroupTable {
        let machine = self.machine;
        let staged = &mut self.applier.staged;
        self.groups.get_or_insert_with(|| {
            // A failure shows again when the batch is applied, and stops the machine there.
            let _ = machine.backend.make_room(staged.batch().byte_len());
            let mut table = lock(&machine.groups);
            table.applying = true;
            table
        })
    }

    pub(crate) fn raise(&mut self, kind: BlobKind, blob: &BlobRef) {
        self.note_liveness(blob.generation);
        self.applier.liveness.raise(kind, blob, &read(&self.machine.published.liveness));
    }

    pub(crate) fn lower(&mut self, kind: BlobKind, blob: &BlobRef) {
        self.note_liveness(blob.generation);
        self.applier.liveness.lower(kind, blob, &read(&self.machine.published.liveness));
    }

    pub(crate) fn use_revision(&mut self) -> Revision {
        self.applied.revision = self.applied.revision.next();
        self.applied.revision
    }

    /// Returns the rule that decides which rows of a keyspace the commands of this log entry see.
    #[inline]
    pub(crate) fn visibility(&self, keyspace: KeyspaceId) -> Visibility<'_> {
        Visibility { clears: self.applier.clears.of(keyspace), as_of: Revision::MAX }
    }

    /// Applies all changes of the log record as one batch, and publishes the changed tables to readers. Deleted
    /// prefixes are published before the batch: a reader uses one only if its view has applied the revision of the
    /// delete.
    pub(crate) fn finish(mut self) -> Result<(), MachineError> {
        let Applier {
            staged,
            pending,
            liveness,
            meta,
            stored_meta,
            applied,
            scratch,
            clears,
            counts,
            running_hash,
            digest_wanted,
            inline_floor,
            grown,
            ..
        } = self.applier;
        let batch = staged.batch();
        if *stored_meta != Some(*meta) {
            meta.write(batch);
        }
        for (&id, head) in &pending.heads {
            match head {
                Some(head) => head.write(id, batch, scratch),
                None => batch.delete(&[&crate::keys::stream_head(id)]),
            }
        }
        for id in &pending.counted {
            match counts.get(id) {
                Some(counts) => counts.write(*id, batch),
                None => batch.delete(&[&crate::keys::counts_row(*id)]),
            }
        }
        if let Some(groups) = &mut self.groups {
            groups.write(batch);
        }
        liveness.write(batch);
        inline_floor.write_once(batch);
        let published = &self.machine.published;
        // Raised before any change of the record is visible, so a reader that saw a change finds the bound raised.
        published.visible.store(self.applied.lsn.0, Ordering::Release);
        if !pending.clears.is_empty() {
            let before = read(&published.clears).clone();
            published.show_clears(Arc::new(before.with_added(&pending.clears)));
        }
        self.applied.running_hash = running_hash.finish(self.applied.running_hash, &pending.heads, batch)?;
        self.machine.backend.apply(batch, self.applied)?;
        if stored_meta.is_none_or(|stored| stored.version != meta.version) {
            self.machine.show_version(meta.version);
        }
        if let Some(id) = digest_wanted.take() {
            self.machine.keep_digest_view(id);
        }
        *stored_meta = Some(*meta);
        *applied = self.applied;
        if !pending.clears.is_empty() {
            pending.clears.clear();
            published.show_clears(clears.clone());
        }
        if !pending.counted.is_empty() {
            pending.counted.clear();
            write(&published.counts).clone_from(counts);
        }
        if !pending.keyspaces.is_empty() {
            let mut keyspaces = write(&published.keyspaces);
            for (id, row) in std::mem::take(&mut pending.keyspaces) {
                keyspaces.set(id, row);
            }
        }
        if !pending.heads.is_empty() {
            write(&published.streams).publish(&mut pending.heads);
        }
        if !liveness.is_empty() {
            write(&published.liveness).publish(liveness);
        }
        pending.stream_names.clear();
        pending.producers.clear();
        *write(&published.applied) = self.applied;
        self.machine.growth.publish(grown);
        if let Some(mut groups) = self.groups {
            groups.applying = false;
            if !groups.woken.is_empty() {
                self.machine.groups_woken.store(true, Ordering::Release);
            }
        }
        Ok(())
    }
}

impl Applying<'_> {
    /// Returns the content of a row as the commands so far have left it; `None` if there is no such row.
    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, MachineError> {
        self.charge(READ);
        match self.applier.staged.get(key) {
            Some(value) => Ok(value.map(Bytes::copy_from_slice)),
            None => Ok(self.machine.backend.get(key)?),
        }
    }

    /// Passes the content of a row to `show` without copying it. Does not call `show` if the row does not exist.
    #[inline]
    pub(crate) fn look(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<(), MachineError> {
        self.charge(READ);
        match self.applier.staged.get(key) {
            Some(Some(value)) => show(value),
            Some(None) => {}
            None => self.machine.backend.look(key, show)?,
        }
        Ok(())
    }

    /// Returns the row of a key without its value, as the commands so far have left it; `None` if there is no such row.
    /// A row of 16 KiB or more is read from the backend once for all commands of the log record.
    #[inline]
    pub(crate) fn row_head(&self, key: &[u8]) -> Result<Option<RowHead>, MachineError> {
        self.charge(READ);
        let staged = &self.applier.staged;
        if let Some(own) = staged.get(key) {
            return own.map(|row| RowHead::decode(key, row)).transpose();
        }
        if let Some(head) = staged.large_rows().head(key) {
            return Ok(Some(head));
        }
        let mut found = Ok(None);
        self.machine.backend.look(key, &mut |row| {
            found = RowHead::decode(key, row).map(|head| {
                staged.large_rows().note_head(key, row, head);
                Some(head)
            });
        })?;
        found
    }

    /// Returns the row of a key without its value, if the row is in the backend, has 16 KiB or more and was read
    /// before, and this log record has not changed it.
    #[inline]
    pub(crate) fn known_row_head(&self, key: &[u8]) -> Option<RowHead> {
        let head = self.applier.staged.large_rows().head(key)?;
        self.applier.staged.get(key).is_none().then_some(head)
    }

    /// Remembers the head (row without the value) of a row of 16 KiB or more that was read and that this log record has
    /// not changed.
    pub(crate) fn note_large_row(&self, key: &[u8], row: &[u8]) -> Result<(), MachineError> {
        if self.applier.staged.get(key).is_none() {
            self.applier.staged.large_rows().note_head(key, row, RowHead::decode(key, row)?);
        }
        Ok(())
    }

    /// Returns true if a row with this key exists after the commands so far. Not for rows of users' keys. A row of 16
    /// KiB or more is read from the backend once for all commands of the log record.
    pub(crate) fn has_row(&self, key: &[u8]) -> Result<bool, MachineError> {
        self.charge(READ);
        let staged = &self.applier.staged;
        if let Some(own) = staged.get(key) {
            return Ok(own.is_some());
        }
        let mut is_there = staged.large_rows().has_other(key);
        if !is_there {
            self.machine.backend.look(key, &mut |row| {
                staged.large_rows().note_other(key, row);
                is_there = true;
            })?;
        }
        Ok(is_there)
    }

    /// Returns a view of all rows as the commands so far have left them.
    pub(crate) fn view(&self) -> StagedView<'_> {
        self.applier.staged.over(self.machine.backend.view())
    }
}

impl Applying<'_> {
    #[inline]
    pub(crate) fn charge(&self, steps: u64) {
        self.applier.staged.meter().charge(steps);
    }

    /// Counts the steps of work charged since their number was `before` as search work (matching, skipping), which has
    /// its own limit.
    pub(crate) fn note_searched_since(&self, before: u64) {
        self.applier.staged.meter().note_searched(self.steps_used() - before);
    }

    /// Returns the number of steps of work that all commands have taken since the machine was opened.
    pub(crate) fn steps_used(&self) -> u64 {
        self.applier.staged.meter().used()
    }

    /// Rejects the current command if it has used up the steps of work that a command may take.
    #[inline]
    pub(crate) fn check_budget(&self) -> Result<(), Refused> {
        let meter = self.applier.staged.meter();
        if meter.is_spent() { Err(Refused::Outcome(meter.too_expensive())) } else { Ok(()) }
    }
}
