//! Reads of the catalog of keyspaces and of the newest values of keys. Any thread may call them at any time; they
//! block the applying thread only while they copy a little data.

use std::sync::{Arc, atomic::Ordering};

use thalweg_types::{BlobRef, KeyspaceId, Revision, SpaceTime};

use crate::{
    clears::table::Prefixes,
    error::MachineError,
    expiry::rows::Expiry,
    keys,
    keyspaces::{
        catalog::KeyspaceRow,
        counts::Counts,
        read_view::ReadView,
        values::{Stored, decode_owned, decode_value},
    },
    machine::state_machine::Machine,
    sync::read,
};

impl Machine {
    /// Returns the id of the live keyspace with this name.
    #[must_use]
    pub fn keyspace_id(&self, name: &str) -> Option<KeyspaceId> {
        read(&self.published.keyspaces).id(name)
    }

    /// Returns the name of a keyspace.
    #[must_use]
    pub fn keyspace_name(&self, id: KeyspaceId) -> Option<Arc<str>> {
        self.keyspace(id).map(|row| row.name)
    }

    /// Returns the catalog row of a live keyspace; `None` if there is none or the keyspace was dropped.
    #[must_use]
    pub fn keyspace(&self, id: KeyspaceId) -> Option<KeyspaceRow> {
        read(&self.published.keyspaces).row(id).filter(|row| row.is_live()).cloned()
    }

    /// Returns at most `limit` live keyspaces with ids above `after`, in the order of ids.
    #[must_use]
    pub fn keyspaces_after(&self, after: KeyspaceId, limit: usize) -> Vec<(KeyspaceId, KeyspaceRow)> {
        read(&self.published.keyspaces).list_after(after, limit)
    }

    /// Returns all live keyspaces in the order of ids.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<(KeyspaceId, KeyspaceRow)> {
        read(&self.published.keyspaces).list()
    }

    /// Returns the number of live keyspaces.
    #[must_use]
    pub fn keyspace_count(&self) -> usize {
        read(&self.published.keyspaces).live_len()
    }

    /// Returns the exact counts of a keyspace; `None` if it is not configured for them.
    #[must_use]
    pub fn keyspace_counts(&self, id: KeyspaceId) -> Option<Counts> {
        self.keyspace(id).filter(|row| row.config.exact_counts)?;
        Some(read(&self.published.counts).get(&id).copied().unwrap_or_default())
    }

    /// Returns true if the keyspace has deleted prefixes with rows that are not removed yet.
    #[must_use]
    pub fn has_clears_of(&self, keyspace: KeyspaceId) -> bool {
        read(&self.published.clears).of(keyspace).is_some()
    }

    /// Returns how much of the table of deleted prefixes is used, in units. The maximum is
    /// [`MAX_PENDING_CLEARS`](thalweg_types::limits::MAX_PENDING_CLEARS); a long prefix uses several units.
    #[must_use]
    pub fn clear_units(&self) -> usize {
        read(&self.published.clears).units()
    }

    /// Returns true if a delete by prefix with this revision has hidden rows of the keyspace that are not removed yet.
    #[must_use]
    pub fn has_clear_at(&self, keyspace: KeyspaceId, revision: Revision) -> bool {
        read(&self.published.clears).of(keyspace).is_some_and(|prefixes| prefixes.has_delete_at(revision))
    }

    /// Returns the revision of the last delete of all keys of the keyspace; `None` if it has left no rows to remove.
    #[must_use]
    pub fn emptied_at(&self, keyspace: KeyspaceId) -> Option<Revision> {
        read(&self.published.clears).of(keyspace).and_then(Prefixes::emptied_at)
    }

    /// Returns true if a sweep would find rows to remove: hidden rows under deleted prefixes, or parts of Redis
    /// collections without a key.
    #[must_use]
    pub fn sweep_due(&self) -> bool {
        self.published.has_clears.load(Ordering::Acquire) || self.published.has_trash.load(Ordering::Acquire)
    }

    /// Returns the newest consistent view, with the current time as its time.
    ///
    /// The time is read before the view is taken. So the view contains every entry with a lower time. If the view
    /// contains later entries, its time is that of the last of them.
    #[must_use]
    pub fn read_view(&self) -> ReadView {
        let time = if self.has_deadlines() { self.read_time() } else { SpaceTime(0) };
        // The table can change between reading it and taking the view. Only a table that was the same before and
        // after belongs to the view.
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

    /// Returns the newest value of a key; `None` if the key does not exist or has ended.
    #[inline]
    pub fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Stored>, MachineError> {
        // Checked before the backend is read. So a value that a later clear hides still existed when this read began.
        if self.published.has_clears.load(Ordering::Acquire) {
            return self.read_view().get(keyspace, key);
        }
        // The result is passed on as a whole, because moving its parts takes longer than checking its expiry.
        let row = self.row(keyspace, key);
        if let Ok(Some(stored)) = &row
            && stored.expiry != Expiry::NEVER
        {
            return self.get_ending(keyspace, key, row);
        }
        row
    }

    #[inline(never)]
    fn get_ending(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        row: Result<Option<Stored>, MachineError>,
    ) -> Result<Option<Stored>, MachineError> {
        let Some(stored) = row? else { return Ok(None) };
        let now = || self.time_of_reads.source.get().map_or_else(|| self.applied().time, |source| source.now());
        // The value had not ended when it was read, because its deadline has not passed even now.
        if stored.expiry.lease.is_none() && stored.expiry.deadline.is_none_or(|deadline| deadline > now()) {
            return Ok(Some(stored));
        }
        self.read_view().get(keyspace, key)
    }

    /// Returns the newest value of a key, even if its deadline has passed. Only for maintenance of the log bytes that
    /// the value points to; clients must not see an ended value.
    pub fn stored(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Stored>, MachineError> {
        if self.published.has_clears.load(Ordering::Acquire) {
            return self.read_view().stored(keyspace, key);
        }
        self.row(keyspace, key)
    }

    /// Reads the row of a key before a command about the key is applied, so that the row is in memory then. If the key
    /// holds a Redis collection, also reads the row of its field or entry `part`. Also reads expired and deleted rows.
    /// Returns the position of the key's value if the value stays in the log.
    pub fn fetch_row(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        part: Option<&[u8]>,
    ) -> Result<Option<BlobRef>, MachineError> {
        let mut found = Ok((None, None));
        keys::with_data_key(keyspace, key, |full| {
            self.backend.look(full, &mut |row| {
                found = decode_value(full, row).map(|head| (head.value.blob(), head.value.collection()));
            })
        })?;
        let (blob, collection) = found?;
        if let (Some(id), Some(name)) = (collection, part) {
            self.backend.look(&[&keys::part_prefix(keyspace, id), name].concat(), &mut |_| {})?;
        }
        Ok(blob)
    }

    #[inline]
    fn row(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Stored>, MachineError> {
        keys::with_data_key(keyspace, key, |full| decode_owned(full, self.backend.get(full)?))
    }
}
