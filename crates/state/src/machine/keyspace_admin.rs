//! Commands about keyspaces themselves. None of them uses a revision.

use thalweg_types::{
    KeyspaceId,
    command::{KeyspaceConfig, Outcome},
    limits::MAX_KEYSPACES,
};

use crate::{
    catalog::{KeyspaceLife, KeyspaceRow},
    machine::{
        entry::{Applying, Refused},
        read,
    },
};

impl Applying<'_> {
    /// A keyspace's row as earlier commands of the record left it, dropped ones included.
    pub(crate) fn keyspace_row(&self, id: KeyspaceId) -> Option<KeyspaceRow> {
        match self.applier.pending.keyspaces.get(&id) {
            Some(row) => row.clone(),
            None => read(&self.machine.published.keyspaces).row(id).cloned(),
        }
    }

    fn keyspace_named(&self, name: &str) -> Option<KeyspaceId> {
        let pending = &self.applier.pending.keyspaces;
        let is_it = |row: &Option<KeyspaceRow>| row.as_ref().is_some_and(|row| row.is_live() && *row.name == *name);
        let created = pending.iter().find(|(_, row)| is_it(row)).map(|(&id, _)| id);
        let published = || read(&self.machine.published.keyspaces).id(name).filter(|id| !pending.contains_key(id));
        created.or_else(published)
    }

    fn set_keyspace(&mut self, id: KeyspaceId, row: KeyspaceRow) {
        row.write(id, &mut self.applier.batch);
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
        return Ok(Outcome::CannotConfigure { what: "exact counts can only be asked for when a keyspace is created" });
    }
    applying.set_keyspace(id, KeyspaceRow { config, ..row });
    Ok(Outcome::Done)
}
