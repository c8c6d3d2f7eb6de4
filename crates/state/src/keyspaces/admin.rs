//! Commands that create and configure keyspaces. Neither uses a revision.

use std::time::Duration;

use thalweg_types::{
    KeyspaceId, Revision,
    command::{KeyspaceConfig, KeyspaceHistory, Outcome},
    limits::MAX_KEYSPACES,
};

use crate::{
    clears::table::Prefixes,
    keys,
    keyspaces::{
        catalog::{KeyspaceKind, KeyspaceLife, KeyspaceRow},
        counts::{CountChange, Counts},
    },
    machine::{applying::Applying, undo::Undo},
    refused::Refused,
    sync::read,
};

impl Applying<'_> {
    /// Returns the catalog row of a keyspace as earlier commands of the same log entry have left it, even for a dropped
    /// keyspace.
    pub(crate) fn keyspace_row(&self, id: KeyspaceId) -> Option<KeyspaceRow> {
        match self.applier.pending.keyspaces.get(&id) {
            Some(row) => row.clone(),
            None => read(&self.machine.published.keyspaces).row(id).cloned(),
        }
    }

    /// Returns true if plain puts to a keyspace get a deadline by default.
    #[inline]
    pub(crate) fn has_default_ttl(&self, id: KeyspaceId) -> bool {
        self.applier.kinds.of(id) == KeyspaceKind::Configured && self.default_ttl(id).is_some()
    }

    /// Returns the time to live that a keyspace gives to a value whose put specifies none; `None` if such a value
    /// never ends.
    pub(crate) fn default_ttl(&self, id: KeyspaceId) -> Option<Duration> {
        match self.applier.pending.keyspaces.get(&id) {
            Some(row) => row.as_ref()?.config.default_ttl,
            None => read(&self.machine.published.keyspaces).row(id)?.config.default_ttl,
        }
    }

    fn keyspace_named(&self, name: &str) -> Option<KeyspaceId> {
        let pending = &self.applier.pending.keyspaces;
        let is_it = |row: &Option<KeyspaceRow>| row.as_ref().is_some_and(|row| row.is_live() && *row.name == *name);
        let created = pending.iter().find(|(_, row)| is_it(row)).map(|(&id, _)| id);
        let published = || read(&self.machine.published.keyspaces).id(name).filter(|id| !pending.contains_key(id));
        created.or_else(published)
    }

    /// Removes the catalog row of a dropped keyspace that has no key rows left.
    pub(crate) fn forget_keyspace(&mut self, id: KeyspaceId) {
        self.applier.staged.delete(&[&keys::keyspace_row(id)]);
        self.applier.kinds.set(id, None);
        self.applier.pending.keyspaces.insert(id, None);
        self.applier.keyspace_count -= 1;
        if self.applier.counts.remove(&id).is_some() {
            self.applier.pending.counted.insert(id);
        }
    }

    /// Returns true if the keyspace is configured to keep exact counts. Then a write reads the row that it replaces.
    #[inline]
    pub(crate) fn counts_exactly(&self, id: KeyspaceId) -> bool {
        self.applier.kinds.of(id) == KeyspaceKind::Configured
            && self.keyspace_row(id).is_some_and(|row| row.config.exact_counts)
    }

    /// Adds the effect of one write to the exact counts of its keyspace.
    pub(crate) fn count(&mut self, id: KeyspaceId, change: CountChange) {
        if change != CountChange::default() {
            if let Some(collection) = change.trash {
                self.discard(id, collection);
            }
            self.note_undo(|applier| Undo::Counts(id, applier.counts.get(&id).copied()));
            self.applier.counts.entry(id).or_default().change(change);
            self.applier.pending.counted.insert(id);
        }
    }

    /// Returns true if the keyspace's exact counts include the row of a key that was written at `revision`. They
    /// exclude it if all keys of the keyspace were deleted after that.
    #[inline]
    pub(crate) fn counts_row(&self, id: KeyspaceId, revision: Revision) -> bool {
        let emptied = self.applier.clears.of(id).and_then(Prefixes::emptied_at);
        emptied.is_none_or(|emptied| revision >= emptied)
    }

    /// Returns the exact counts of a keyspace after all commands applied so far, including those of the current entry.
    pub(crate) fn counts_of(&self, id: KeyspaceId) -> Counts {
        self.applier.counts.get(&id).copied().unwrap_or_default()
    }

    pub(crate) fn set_keyspace(&mut self, id: KeyspaceId, row: KeyspaceRow) {
        row.write(id, &mut self.applier.staged);
        self.applier.kinds.set(id, Some(&row));
        self.applier.pending.keyspaces.insert(id, Some(row));
    }
}

pub(crate) fn create(applying: &mut Applying<'_>, name: &str, config: KeyspaceConfig) -> Result<Outcome, Refused> {
    if let Some(id) = applying.keyspace_named(name) {
        return Ok(Outcome::Keyspace { id, created: false });
    }
    let id = applying.applier.meta.next_keyspace;
    if applying.applier.keyspace_count >= MAX_KEYSPACES || id == KeyspaceId::MAX {
        return Ok(Outcome::TooMany { what: "keyspaces", limit: MAX_KEYSPACES });
    }
    applying.applier.meta.next_keyspace = id.next();
    applying.applier.keyspace_count += 1;
    let (revision, created) = (applying.applied.revision, applying.applied.time);
    let row = KeyspaceRow { name: name.into(), config, life: KeyspaceLife::Live, revision, created };
    applying.set_keyspace(id, row);
    applying.configure_history(id, KeyspaceHistory::default(), config.history);
    Ok(Outcome::Keyspace { id, created: true })
}

pub(crate) fn configure(
    applying: &mut Applying<'_>,
    id: KeyspaceId,
    config: KeyspaceConfig,
) -> Result<Outcome, Refused> {
    let Some(row) = applying.keyspace_row(id).filter(KeyspaceRow::is_live) else {
        return Ok(Outcome::NoSuchKeyspace(id));
    };
    if config.exact_counts && !row.config.exact_counts {
        return Ok(Outcome::CannotConfigure { what: "exact counts can only be enabled when a keyspace is created" });
    }
    // Rows that are not swept yet may refer to collections. After a blind put over such a row, the collection's parts
    // would never be removed.
    let may_hold_collections = applying.counts_of(id).collections > 0
        || (row.config.exact_counts
            && row.config.history == KeyspaceHistory::default()
            && applying.applier.clears.of(id).is_some());
    if may_hold_collections && (!config.exact_counts || config.history != KeyspaceHistory::default()) {
        let what = "a keyspace that holds hashes or streams of Redis clients counts exactly and keeps no history: \
                    delete those keys first, and try again when they are swept";
        return Ok(Outcome::CannotConfigure { what });
    }
    if !config.exact_counts && applying.applier.counts.remove(&id).is_some() {
        applying.applier.pending.counted.insert(id);
    }
    applying.configure_history(id, row.config.history, config.history);
    applying.set_keyspace(id, KeyspaceRow { config, ..row });
    Ok(Outcome::Done)
}
