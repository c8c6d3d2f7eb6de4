//! The parts of hashes and streams: what an entry makes of them, and how they go when no key holds them any more.
//!
//! A collection that goes gets a trash row in the same batch, whatever took it from its key; its parts are removed by
//! sweeps, a bounded number at a time. Ids are never used again, so nobody can tell.

use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
    sync::atomic::Ordering,
};

use bytes::Bytes;
use thalweg_redis::CollectionId;
use thalweg_types::KeyspaceId;

use crate::{
    backend::{Direction, View},
    keys::{self, KeyRange, PART_PREFIX_LEN, TAG_TRASH, part_prefix, trash_row},
    machine::{MachineError, entry::Applying},
};

/// A part's name, and what the entry had made of it before.
type Before = (CollectionId, Box<[u8]>, Option<Option<Bytes>>);

/// The parts that the entry wrote; `None` where it removed them.
#[derive(Debug, Default)]
pub(crate) struct PendingParts {
    rows: BTreeMap<CollectionId, BTreeMap<Box<[u8]>, Option<Bytes>>>,
    /// What the current command did.
    tried: Vec<Before>,
    /// Whether ids of collections were given out.
    pub(crate) gave_ids: bool,
    /// Whether collections went.
    discarded: bool,
    /// Whether a command of the record has removed parts.
    removed: bool,
}

impl PendingParts {
    pub(super) fn set(&mut self, id: CollectionId, name: &[u8], value: Option<Bytes>) {
        let before = self.rows.entry(id).or_default().insert(name.into(), value);
        self.tried.push((id, name.into(), before));
    }

    /// What the entry made of a part; `None` if it did not touch it.
    pub(super) fn get(&self, id: CollectionId, name: &[u8]) -> Option<&Option<Bytes>> {
        self.rows.get(&id)?.get(name)
    }

    pub(super) fn range(
        &self,
        id: CollectionId,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> impl DoubleEndedIterator<Item = (&[u8], Option<&Bytes>)> {
        let rows = self.rows.get(&id);
        rows.into_iter()
            .flat_map(move |rows| rows.range::<[u8], _>(bounds))
            .map(|(name, value)| (&**name, value.as_ref()))
    }

    /// Takes back what the current command did.
    pub(super) fn undo(&mut self) {
        while let Some((id, name, before)) = self.tried.pop() {
            let rows = self.rows.entry(id).or_default();
            match before {
                Some(before) => drop(rows.insert(name, before)),
                None => drop(rows.remove(&name)),
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        if self.gave_ids || self.discarded || self.removed || !self.rows.is_empty() {
            *self = Self::default();
        }
    }
}

impl Applying<'_> {
    /// What the current command did to parts stays.
    pub(super) fn keep_parts(&mut self, keyspace: KeyspaceId) {
        let PendingParts { rows, tried, .. } = &mut self.applier.pending.parts;
        for (id, name, _) in tried.drain(..) {
            let key: [&[u8]; 2] = [&part_prefix(keyspace, id), &name];
            match rows.get(&id).and_then(|rows| rows.get(&name)) {
                Some(Some(value)) => self.applier.batch.put(&key, &[value]),
                _ => self.applier.batch.delete(&key),
            }
        }
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
