//! The parts of hashes and streams: what an entry makes of them, and how they go when no key holds them any more.
//!
//! A collection that goes gets a trash row in the same batch, whatever took it from its key; its parts are removed by
//! sweeps, a bounded number at a time. Ids are never used again, so nobody can tell.

use std::{
    cell::OnceCell,
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
    sync::atomic::Ordering,
};

use thalweg_redis::CollectionId;
use thalweg_types::KeyspaceId;

use crate::{
    backend::{Change, Direction, View, WriteBatch},
    keys::{self, KeyRange, PART_PREFIX_LEN, TAG_TRASH, part_prefix, trash_row},
    machine::{
        MachineError,
        entry::{Applier, Applying},
    },
};

/// What the entry made of parts: where its changes of them are in the batch, in order. By name they can be found from when
/// somebody first reads one on: an entry that only adds to streams never does.
#[derive(Debug, Default)]
pub(crate) struct PendingParts {
    written: Vec<Written>,
    /// How many of those are of earlier commands.
    kept: usize,
    index: OnceCell<Index>,
    /// Whether ids of collections were given out.
    pub(crate) gave_ids: bool,
    /// Whether collections went.
    discarded: bool,
    /// Whether a command of the record has removed parts.
    removed: bool,
}

/// A change of a part: which of the batch's.
#[derive(Clone, Copy, Debug)]
struct Written {
    id: CollectionId,
    change: u32,
}

/// The last change of each part, and what the current command has done to this.
#[derive(Debug, Default)]
struct Index {
    rows: BTreeMap<CollectionId, BTreeMap<Box<[u8]>, u32>>,
    tried: Vec<(CollectionId, Box<[u8]>, Option<u32>)>,
}

impl Index {
    fn of(written: &[Written], kept: usize, batch: &WriteBatch) -> Self {
        let mut index = Self::default();
        for (number, part) in written.iter().enumerate() {
            index.add(*part, batch);
            if number < kept {
                index.tried.clear();
            }
        }
        index
    }

    fn add(&mut self, part: Written, batch: &WriteBatch) {
        let Some(Change::Put(key, _) | Change::Delete(key)) = batch.change(part.change) else { return };
        let name = name_of(key);
        let before = self.rows.entry(part.id).or_default().insert(name.into(), part.change);
        self.tried.push((part.id, name.into(), before));
    }

    fn undo(&mut self) {
        while let Some((id, name, before)) = self.tried.pop() {
            let rows = self.rows.entry(id).or_default();
            match before {
                Some(before) => drop(rows.insert(name, before)),
                None => drop(rows.remove(&name)),
            }
        }
    }
}

fn value_of(batch: &WriteBatch, change: u32) -> Option<&[u8]> {
    match batch.change(change) {
        Some(Change::Put(_, value)) => Some(value),
        Some(Change::Delete(_)) | None => None,
    }
}

/// Entries that an empty one keeps room for.
const IDLE_WRITTEN: usize = 16 * 1024;

impl PendingParts {
    /// The batch's last change is one of a part of this collection.
    fn note(&mut self, id: CollectionId, batch: &WriteBatch) {
        let part = Written { id, change: batch.len() as u32 - 1 };
        self.written.push(part);
        if let Some(index) = self.index.get_mut() {
            index.add(part, batch);
        }
    }

    /// What the entry made of a part: `None` if it did not touch it, nothing if it removed it.
    pub(super) fn get<'b>(&self, batch: &'b WriteBatch, id: CollectionId, name: &[u8]) -> Option<Option<&'b [u8]>> {
        let change = *self.index(batch)?.rows.get(&id)?.get(name)?;
        Some(value_of(batch, change))
    }

    pub(super) fn range<'b>(
        &'b self,
        batch: &'b WriteBatch,
        id: CollectionId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> impl DoubleEndedIterator<Item = (&'b [u8], Option<&'b [u8]>)> {
        let rows = self.index(batch).and_then(|index| index.rows.get(&id));
        rows.into_iter()
            .flat_map(move |rows| rows.range::<[u8], _>(bounds))
            .map(|(name, change)| (&**name, value_of(batch, *change)))
    }

    fn index(&self, batch: &WriteBatch) -> Option<&Index> {
        if self.written.is_empty() {
            return None;
        }
        Some(self.index.get_or_init(|| Index::of(&self.written, self.kept, batch)))
    }

    /// Takes back what the current command did; its changes leave the batch.
    pub(super) fn undo(&mut self, batch: &mut WriteBatch) {
        let Some(first) = self.written.get(self.kept) else { return };
        // Until it is kept, a command puts nothing into the batch but parts.
        batch.truncate(first.change as usize);
        self.written.truncate(self.kept);
        if let Some(index) = self.index.get_mut() {
            index.undo();
        }
    }

    /// What the current command did stays.
    pub(super) fn keep(&mut self) {
        self.kept = self.written.len();
        if let Some(index) = self.index.get_mut() {
            index.tried.clear();
        }
    }

    pub(crate) fn clear(&mut self) {
        self.written.clear();
        self.written.shrink_to(IDLE_WRITTEN);
        self.kept = 0;
        self.index.take();
        (self.gave_ids, self.discarded, self.removed) = (false, false, false);
    }
}

impl Applying<'_> {
    /// Sets a part.
    pub(super) fn put_part(&mut self, keyspace: KeyspaceId, id: CollectionId, name: &[u8], value: &[u8]) {
        let Applier { batch, pending, .. } = &mut *self.applier;
        batch.put(&[&part_prefix(keyspace, id), name], &[value]);
        pending.parts.note(id, batch);
    }

    /// Removes a part.
    pub(super) fn delete_part(&mut self, keyspace: KeyspaceId, id: CollectionId, name: &[u8]) {
        let Applier { batch, pending, .. } = &mut *self.applier;
        batch.delete(&[&part_prefix(keyspace, id), name]);
        pending.parts.note(id, batch);
    }

    /// No key holds the collection any more.
    pub(crate) fn discard(&mut self, keyspace: KeyspaceId, collection: CollectionId) {
        self.applier.batch.put(&[&trash_row(keyspace, collection)], &[]);
        self.applier.pending.parts.discarded = true;
        self.machine.published.has_trash.store(true, Ordering::Release);
    }

    /// Removes parts of collections that went with an earlier record: at most `left` rows, which it counts down. Says
    /// whether there may be more.
    pub(super) fn remove_parts(&mut self, left: &mut u32) -> Result<bool, MachineError> {
        if !self.machine.published.has_trash.load(Ordering::Acquire) {
            return Ok(false);
        }
        // What was removed is still in the view.
        if std::mem::replace(&mut self.applier.pending.parts.removed, true) || *left == 0 {
            return Ok(true);
        }
        let view = self.machine.backend.view();
        let (trash, mut more) = keys_of(&*view, &KeyRange::with_prefix(&[TAG_TRASH]), *left)?;
        for row in &trash {
            *left -= 1;
            let of = keys::collection_of_trash(row);
            let (keyspace, id) = of.ok_or_else(|| MachineError::corrupt("trash", row, "key of a wrong length"))?;
            let (parts, is_cut) = keys_of(&*view, &KeyRange::with_prefix(&part_prefix(keyspace, id)), *left)?;
            *left -= parts.len() as u32;
            parts.iter().for_each(|part| self.applier.batch.delete(&[part]));
            if is_cut || (*left == 0 && Some(row) != trash.last()) {
                more = true;
            }
            if is_cut {
                break;
            }
            self.applier.batch.delete(&[row]);
            if *left == 0 {
                break;
            }
        }
        more |= self.applier.pending.parts.discarded;
        if !more {
            self.machine.published.has_trash.store(false, Ordering::Release);
        }
        Ok(more)
    }
}

/// At most `max` keys of a range, and whether there are more.
fn keys_of(view: &dyn View, range: &KeyRange, max: u32) -> Result<(Vec<Vec<u8>>, bool), MachineError> {
    let (mut found, mut more) = (Vec::new(), false);
    view.scan(range.lower(), range.upper(), Direction::Forward, &mut |key, _| {
        if found.len() == max as usize {
            more = true;
            return ControlFlow::Break(());
        }
        found.push(key.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok((found, more))
}

/// Whether parts wait to be removed.
pub(super) fn has_trash(view: &dyn View) -> Result<bool, MachineError> {
    let (found, _) = keys_of(view, &KeyRange::with_prefix(&[TAG_TRASH]), 1)?;
    Ok(!found.is_empty())
}

/// The rows of the parts between two names.
pub(crate) fn parts_range(
    keyspace: KeyspaceId,
    id: CollectionId,
    (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
) -> KeyRange {
    let prefix = part_prefix(keyspace, id);
    let full = |name: &[u8]| [&prefix, name].concat();
    let mut range = KeyRange::with_prefix(&prefix);
    if !matches!(lower, Bound::Unbounded) {
        range.set_lower(lower.map(full));
    }
    if !matches!(upper, Bound::Unbounded) {
        range.set_upper(upper.map(full));
    }
    range
}

/// The name of a part, from its row's key.
pub(crate) fn name_of(row: &[u8]) -> &[u8] {
    row.get(PART_PREFIX_LEN..).unwrap_or_default()
}
