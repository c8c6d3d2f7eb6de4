//! Delivery order per key: decides which pending records of a key may be delivered.
//!
//! Owns: the queues of records with the same key. Does not own: the parcels of these records (`parcels`).
//!
//! Invariant: of the pending records of a key only the first can be delivered; all others are parked. So no two are
//! in flight at the same time, and a returned record is redelivered before any later one. Records without a key
//! (hash 0) are not included.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use thalweg_types::{Attempt, Offset};

#[derive(Debug, Default)]
pub(crate) struct KeyQueues {
    /// Pending records of each key, by the key's hash, in ascending order of offsets; no queue is empty. Used for
    /// lookups only, never iterated.
    queues: HashMap<u64, VecDeque<Offset>>,
    /// Attempt number of the parcel of each parked record (one that waits behind another record of its key).
    parked: BTreeMap<Offset, Attempt>,
    /// Parked records (that waited behind another record of their key) that can be delivered now.
    free: BTreeSet<Offset>,
}

impl KeyQueues {
    pub(crate) fn is_busy(&self, key: u64) -> bool {
        self.queues.contains_key(&key)
    }

    /// Appends a record to the pending records of its key. All other records there have lower offsets.
    pub(crate) fn enter(&mut self, key: u64, offset: Offset) {
        self.queues.entry(key).or_default().push_back(offset);
    }

    /// Marks a pending record as parked: it waits behind another record of its key. `parcel` is the attempt number of
    /// the parcel that contains it.
    pub(crate) fn park(&mut self, offset: Offset, parcel: Attempt) {
        self.parked.insert(offset, parcel);
    }

    /// Finds the parked records that are the first pending records of their keys, and marks them as deliverable. Called
    /// after the rows of a group are loaded.
    pub(crate) fn find_free(&mut self) {
        let Self { queues, parked, free } = self;
        // The order of this iteration has no effect, because the result is a set.
        free.extend(queues.values().filter_map(|queue| queue.front()).filter(|front| parked.contains_key(front)));
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns the attempt number of the first deliverable parked record: the one with the lowest offset among the
    /// parked records that can be delivered now.
    pub(crate) fn first_free(&self) -> Option<Attempt> {
        self.parked.get(self.free.first()?).copied()
    }

    /// Removes the first deliverable parked record and returns its offset; `None` if it is not stored under `attempt`.
    pub(crate) fn pop_free(&mut self, attempt: Attempt) -> Option<Offset> {
        let offset = *self.free.first().filter(|&offset| self.parked.get(offset) == Some(&attempt))?;
        self.free.remove(&offset);
        self.parked.remove(&offset);
        Some(offset)
    }

    /// Removes a record that is no longer pending from the queue of its key, so that the next record of the key can be
    /// delivered.
    pub(crate) fn leave(&mut self, key: u64, offset: Offset) {
        self.parked.remove(&offset);
        self.free.remove(&offset);
        let Some(queue) = self.queues.get_mut(&key) else { return };
        if let Ok(at) = queue.binary_search(&offset) {
            queue.remove(at);
        }
        match queue.front() {
            None => _ = self.queues.remove(&key),
            Some(front) if self.parked.contains_key(front) => _ = self.free.insert(*front),
            Some(_) => {}
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
