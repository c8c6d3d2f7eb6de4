//! The parts of Redis collections (fields of hashes, entries of streams): changes by an entry, and removal after no
//! key refers to the collection.
//!
//! A collection that loses its key gets a trash row in the same batch, whichever operation removed the key. Sweeps
//! later remove its parts, a bounded number at a time. Collection ids are never reused, so parts that are not removed
//! yet are unreachable.

use std::sync::atomic::Ordering;

use thalweg_redis::CollectionId;
use thalweg_store::View;
use thalweg_types::KeyspaceId;

use crate::{
    error::MachineError,
    keys::{self, KeyRange, TAG_TRASH, part_prefix, trash_row},
    machine::applying::Applying,
    rows::keys_of,
};

impl Applying<'_> {
    pub(crate) fn put_part(&mut self, keyspace: KeyspaceId, id: CollectionId, name: &[u8], value: &[u8]) {
        self.applier.staged.put(&[&part_prefix(keyspace, id), name], &[value]);
    }

    pub(crate) fn delete_part(&mut self, keyspace: KeyspaceId, id: CollectionId, name: &[u8]) {
        self.applier.staged.delete(&[&part_prefix(keyspace, id), name]);
    }

    /// Adds a trash row for a Redis collection, because no key refers to it any more. Sweeps then remove its parts.
    pub(crate) fn discard(&mut self, keyspace: KeyspaceId, collection: CollectionId) {
        self.applier.staged.put(&[&trash_row(keyspace, collection)], &[]);
        self.machine.published.has_trash.store(true, Ordering::Release);
    }

    /// Removes parts of Redis collections that have a trash row, because no key refers to them. Removes at most `left`
    /// rows, and decreases `left` by their number. Returns true if more rows may have to be removed.
    pub(crate) fn remove_parts(&mut self, left: &mut u32) -> Result<bool, MachineError> {
        // No outcome depends on the flag: it is set whenever a trash row exists, staged or in the backend.
        if !self.machine.published.has_trash.load(Ordering::Acquire) {
            return Ok(false);
        }
        let (trash, mut more) = keys_of(&self.view(), &KeyRange::with_prefix(&[TAG_TRASH]), *left)?;
        for row in &trash {
            let of = keys::collection_of_trash(row);
            let (keyspace, id) = of.ok_or_else(|| MachineError::corrupt("trash", row, "key of a wrong length"))?;
            *left -= 1;
            let (parts, is_cut) = keys_of(&self.view(), &KeyRange::with_prefix(&part_prefix(keyspace, id)), *left)?;
            *left -= parts.len() as u32;
            parts.iter().for_each(|part| self.applier.staged.delete(&[part]));
            if is_cut || (*left == 0 && Some(row) != trash.last()) {
                more = true;
            }
            if is_cut {
                break;
            }
            self.applier.staged.delete(&[row]);
            if *left == 0 {
                break;
            }
        }
        if !more {
            self.machine.published.has_trash.store(false, Ordering::Release);
        }
        Ok(more)
    }
}

/// Returns true if a trash row exists: a Redis collection has lost its key, and its parts must be removed.
pub(crate) fn has_trash(view: &dyn View) -> Result<bool, MachineError> {
    let (found, _) = keys_of(view, &KeyRange::with_prefix(&[TAG_TRASH]), 1)?;
    Ok(!found.is_empty())
}
