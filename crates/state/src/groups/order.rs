//! Order per key: which pending record of a key may be delivered.
//!
//! Invariant: of the pending records of a key only the first can be delivered; all others are parked. So no
//! two are in flight at once, and a record that comes back is delivered again before any behind it. Records
//! without a key (hash 0) are not in here.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use thalweg_types::{Attempt, Offset};

#[derive(Debug, Default)]
pub(crate) struct KeyQueues {
    /// Pending records by key hash, ascending; none is empty. Looked up only, never iterated.
    queues: HashMap<u64, VecDeque<Offset>>,
    /// Where each parked record lies.
    parked: BTreeMap<Offset, Attempt>,
    /// Parked records that are the first of their key.
    free: BTreeSet<Offset>,
}

impl KeyQueues {
    pub(crate) fn is_busy(&self, key: u64) -> bool {
        self.queues.contains_key(&key)
    }

    /// A record behind all others of its key is pending from now on.
    pub(crate) fn enter(&mut self, key: u64, offset: Offset) {
        self.queues.entry(key).or_default().push_back(offset);
    }

    /// A pending record of a busy key was put into a parcel of parked ones.
    pub(crate) fn park(&mut self, offset: Offset, parcel: Attempt) {
        self.parked.insert(offset, parcel);
    }

    /// At load: frees the parked records that nothing is before.
    pub(crate) fn find_free(&mut self) {
        let Self { queues, parked, free } = self;
        // The order of this iteration does not show: the result is a set.
        free.extend(queues.values().filter_map(|queue| queue.front()).filter(|front| parked.contains_key(front)));
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// The lowest parked record that may be delivered, and its parcel; it is parked no more.
    pub(crate) fn pop_free(&mut self) -> Option<(Offset, Attempt)> {
        let offset = self.free.pop_first()?;
        Some((offset, self.parked.remove(&offset)?))
    }

    /// A record is not pending any more.
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
