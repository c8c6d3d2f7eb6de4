//! A keyspace that is created by the first write of a Redis client, so that databases without data cost nothing.
//!
//! Owns: the creation. Until then, reads see an empty database. Does not own reads and writes after that
//! ([`keyspaces`](super::keyspaces)).

use std::sync::{Arc, OnceLock};

use thalweg_engine::{AsyncDatabase, Origin};
use thalweg_redis::{Read, StoreError, model::Model};
use thalweg_serving::fetched::RowFetcher;
use thalweg_types::Durability;

use super::{
    commands::Commands,
    database::{Batched, PendingOutcome, Watched},
    failure::Failure,
    keyspaces::KeyspaceDatabase,
};

/// A database over a keyspace that may not exist yet; see the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct UncreatedKeyspace {
    db: AsyncDatabase,
    name: Arc<str>,
    level: Durability,
    created: Arc<OnceLock<KeyspaceDatabase>>,
}

impl UncreatedKeyspace {
    /// Creates a database over the keyspace of this name. Writes are acknowledged at the durability `level`.
    pub(crate) fn new(db: &AsyncDatabase, name: &str, level: Durability) -> Self {
        Self { db: db.clone(), name: name.into(), level, created: Arc::default() }
    }

    /// Returns the keyspace, if it exists by now. A client of another protocol may have created it.
    fn find(&self) -> Option<&KeyspaceDatabase> {
        if let Some(created) = self.created.get() {
            return Some(created);
        }
        let found = self.db.blocking().find_keyspace(&self.name)?;
        Some(self.created.get_or_init(|| KeyspaceDatabase::new(&self.db, &found, self.level)))
    }

    async fn create(&self) -> Result<&KeyspaceDatabase, Failure> {
        let created = self.db.create_keyspace(&self.name, &KeyspaceDatabase::config()).await;
        let (keyspace, _) = created.map_err(|error| Failure::of(&error))?;
        Ok(self.created.get_or_init(|| KeyspaceDatabase::new(&self.db, &keyspace, self.level)))
    }
}

impl Batched for UncreatedKeyspace {
    fn read(&self, act: &mut dyn FnMut(&dyn Read) -> Result<(), StoreError>) -> Result<(), Failure> {
        match self.find() {
            Some(created) => created.read(act),
            None => act(&Model::default()).map_err(Failure::from),
        }
    }

    fn propose(
        &self,
        origin: &Origin,
        fetcher: RowFetcher<'_>,
        commands: &Commands,
        watched: &[Watched],
    ) -> PendingOutcome {
        if let Some(created) = self.find() {
            return created.propose(origin, fetcher, commands, watched);
        }
        let (this, origin, budget) = (self.clone(), origin.clone(), fetcher.budget);
        let (readers, account) = (Arc::clone(fetcher.readers), Arc::clone(fetcher.account));
        let (commands, watched) = (commands.clone(), watched.to_vec());
        Box::pin(async move {
            let fetcher = RowFetcher { readers: &readers, account: &account, budget };
            this.create().await?.propose(&origin, fetcher, &commands, &watched).await
        })
    }
}
