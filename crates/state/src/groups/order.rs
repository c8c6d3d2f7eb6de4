//! Order per key: the pending records of a key that may be delivered.
//!
//! Invariant: of the pending records of a key only the first can be delivered; all others are parked. So no two are
//! in flight at the same time, and a returned record is redelivered before any later one. Records without a key
//! (hash 0) are not included.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use thalweg_types::{Attempt, Offset};

#[derive(Debug, Default)]
pub(crate) struct KeyQueues {
    /// Pending records by key hash, ascending; no queue is empty. Used for lookups only, never iterated.
    queues: HashMap<u64, VecDeque<Offset>>,
    /// Parcel of each parked record.
    parked: BTreeMap<Offset, Attempt>,
    /// Parked records that are the first of their key.
    free: BTreeSet<Offset>,
}

impl KeyQueues {
    pub(crate) fn is_busy(&self, key: u64) -> bool {
        self.queues.contains_key(&key)
    }

    /// Adds a pending record after all others of its key.
    pub(crate) fn enter(&mut self, key: u64, offset: Offset) {
        self.queues.entry(key).or_default().push_back(offset);
    }

    /// Records that a pending record of a busy key is in a parcel of parked records.
    pub(crate) fn park(&mut self, offset: Offset, parcel: Attempt) {
        self.parked.insert(offset, parcel);
    }

    /// Marks the parked records that are the first of their key as free. Called after loading.
    pub(crate) fn find_free(&mut self) {
        let Self { queues, parked, free } = self;
        // The order of this iteration has no effect, because the result is a set.
        free.extend(queues.values().filter_map(|queue| queue.front()).filter(|front| parked.contains_key(front)));
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Removes the lowest deliverable parked record, and returns it with its parcel.
    pub(crate) fn pop_free(&mut self) -> Option<(Offset, Attempt)> {
        let offset = self.free.pop_first()?;
        Some((offset, self.parked.remove(&offset)?))
    }

    /// Removes a record that is no longer pending.
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
