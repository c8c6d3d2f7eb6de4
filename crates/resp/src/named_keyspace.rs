//! The keyspace of a Redis database, found by its name.
//!
//! Owns: the id of the keyspace that has this name, and the creation of the keyspace by the first write. So a database
//! without data has no keyspace and costs nothing. Does not own reads and writes ([`keyspaces`](super::keyspaces)).
//!
//! Clients of other protocols can drop the keyspace and create another one with the same name. So the stored id is only
//! a hint, and may come from an old state of the node. No id is used twice, so the hint is right if a keyspace with
//! this id exists. A read that finds no keyspace with the id looks up the name again. So does a write that the log
//! refuses with `NoSuchKeyspace`, because none of its commands ran.

use std::sync::atomic::{AtomicU32, Ordering};

use thalweg_engine::{AsyncDatabase, WriteError};
use thalweg_types::{KeyspaceId, command::KeyspaceConfig};

/// Name and last known id of a keyspace; see the module's documentation.
#[derive(Debug)]
pub(crate) struct NamedKeyspace {
    db: AsyncDatabase,
    name: Box<str>,
    /// Id that the keyspace had at the last lookup, or 0 if there was no keyspace. Ids begin at 1.
    id: AtomicU32,
}

impl NamedKeyspace {
    /// Creates the description of the keyspace with this name. The keyspace need not exist.
    pub(crate) fn new(db: &AsyncDatabase, name: &str) -> Self {
        Self { db: db.clone(), name: name.into(), id: AtomicU32::new(0) }
    }

    /// Returns the last known id of the keyspace. Looks the id up if none is known. Returns `None` if the keyspace does
    /// not exist. The keyspace with the returned id may have been dropped since.
    pub(crate) fn known_id(&self) -> Option<KeyspaceId> {
        match self.id.load(Ordering::Relaxed) {
            0 => self.look_up(),
            id => Some(KeyspaceId(id)),
        }
    }

    /// Returns the id that the name has in the state of this node; `None` if there is no such keyspace.
    pub(crate) fn look_up(&self) -> Option<KeyspaceId> {
        let found = self.db.blocking().find_keyspace(&self.name).map(|keyspace| keyspace.id());
        self.id.store(found.map_or(0, |id| id.0), Ordering::Relaxed);
        found
    }

    /// Returns the id of the keyspace. Creates the keyspace if it does not exist. `dropped` is the id of a keyspace
    /// that was dropped, but that this node's state may still contain.
    pub(crate) async fn look_up_or_create(&self, dropped: Option<KeyspaceId>) -> Result<KeyspaceId, WriteError> {
        if let Some(found) = self.look_up().filter(|id| Some(*id) != dropped) {
            return Ok(found);
        }
        let (keyspace, _) = self.db.create_keyspace(&self.name, &Self::config()).await?;
        self.id.store(keyspace.id().0, Ordering::Relaxed);
        Ok(keyspace.id())
    }

    /// Returns the configuration of a new keyspace, which may contain hashes and streams.
    fn config() -> KeyspaceConfig {
        KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() }
    }
}
