//! Reads of the catalog of keyspaces, and of the newest values of keys. Any thread, any time; the applying thread waits for
//! short copies only.

use std::sync::{Arc, atomic::Ordering};

use thalweg_types::{KeyspaceId, SpaceTime};

use crate::{
    error::MachineError,
    expiry::rows::Expiry,
    keys,
    keyspaces::{
        catalog::KeyspaceRow,
        counts::Counts,
        read_view::ReadView,
        values::{Stored, decode_owned},
    },
    machine::state_machine::Machine,
    sync::read,
};

impl Machine {
    /// The keyspace of that name.
    #[must_use]
    pub fn keyspace_id(&self, name: &str) -> Option<KeyspaceId> {
        read(&self.published.keyspaces).id(name)
    }

    /// The name of a keyspace.
    #[must_use]
    pub fn keyspace_name(&self, id: KeyspaceId) -> Option<Arc<str>> {
        self.keyspace(id).map(|row| row.name)
    }

    /// A keyspace's row, unless it has been dropped.
    #[must_use]
    pub fn keyspace(&self, id: KeyspaceId) -> Option<KeyspaceRow> {
        read(&self.published.keyspaces).row(id).filter(|row| row.is_live()).cloned()
    }

    /// All keyspaces by id.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<(KeyspaceId, KeyspaceRow)> {
        read(&self.published.keyspaces).list()
    }

    /// What a keyspace holds, if it counts exactly.
    #[must_use]
    pub fn keyspace_counts(&self, id: KeyspaceId) -> Option<Counts> {
        self.keyspace(id).filter(|row| row.config.exact_counts)?;
        Some(read(&self.published.counts).get(&id).copied().unwrap_or_default())
    }

    /// Whether rows of deleted prefixes of a keyspace wait to be swept.
    #[must_use]
    pub fn has_clears_of(&self, keyspace: KeyspaceId) -> bool {
        read(&self.published.clears).of(keyspace).is_some()
    }

    /// Whether a sweep would find something to do.
    #[must_use]
    pub fn sweep_due(&self) -> bool {
        self.published.has_clears.load(Ordering::Acquire) || self.published.has_trash.load(Ordering::Acquire)
    }

    /// The newest consistent view, of this moment.
    ///
    /// The time is taken before the view. So every entry stamped below it is in the view; and what the view
    /// shows beyond, it shows as of its own last entry.
    #[must_use]
    pub fn read_view(&self) -> ReadView {
        let time = if self.has_deadlines() { self.read_time() } else { SpaceTime(0) };
        // A clear may be settled between looking at the table and taking the view, or the other way round:
        // only a table that was there all the while goes with the view.
        let mut clears = read(&self.published.clears).clone();
        loop {
            let view = self.backend.view();
            let after = read(&self.published.clears).clone();
            if Arc::ptr_eq(&clears, &after) {
                let time = time.max(view.applied().time);
                return ReadView::new(view, clears, time);
            }
            clears = after;
        }
    }

    /// The newest value of a key.
    #[inline]
    pub fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Stored>, MachineError> {
        // Asked before the backend is: what a clear that comes later hides was still there when we began.
        if self.published.has_clears.load(Ordering::Acquire) {
            return self.read_view().get(keyspace, key);
        }
        match self.row(keyspace, key)? {
            Some(stored) if stored.expiry != Expiry::NEVER => self.get_ending(keyspace, key, stored),
            stored => Ok(stored),
        }
    }

    #[inline(never)]
    fn get_ending(&self, keyspace: KeyspaceId, key: &[u8], stored: Stored) -> Result<Option<Stored>, MachineError> {
        let now = || self.time_of_reads.source.get().map_or_else(|| self.applied().time, |source| source.now());
        // It was there when it was read, if it still is now.
        if stored.expiry.lease.is_none() && stored.expiry.deadline.is_none_or(|deadline| deadline > now()) {
            return Ok(Some(stored));
        }
        self.read_view().get(keyspace, key)
    }

    /// The newest value of a key, whether it has ended or not: for whoever looks after the bytes. Nobody may
    /// be shown it.
    pub fn stored(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Stored>, MachineError> {
        if self.published.has_clears.load(Ordering::Acquire) {
            return self.read_view().stored(keyspace, key);
        }
        self.row(keyspace, key)
    }

    #[inline]
    fn row(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Stored>, MachineError> {
        keys::with_data_key(keyspace, key, |full| decode_owned(full, self.backend.get(full)?))
    }
}
