//! The numbered databases that Redis clients can select: opening the configured databases, and finding a database by
//! its number.

use std::sync::Arc;

use thalweg_broker::CreateCacheError;
use thalweg_engine::WriteError;
use thalweg_serving::{app::App, config::RespDatabase};
use thalweg_types::classified;

use super::{
    cache::CacheDatabase, database::Database, keyspaces::KeyspaceDatabase, named_keyspace::NamedKeyspace,
    native_streams::NativeStreams,
};

/// A database that Redis clients can select, and its number.
#[derive(Clone, Debug)]
pub(crate) struct Numbered {
    /// Number by which clients `SELECT` the database.
    pub(crate) number: u32,
    /// The database itself: a cache, a keyspace, or the native streams.
    pub(crate) database: Database,
}

/// All databases that Redis clients can select. The list is never empty; its first database has number 0 and is
/// selected for new clients.
#[derive(Clone, Debug)]
pub struct Databases {
    /// All databases, in the order in which the configuration lists them.
    pub(crate) list: Vec<Numbered>,
}

/// Error returned if a configured database cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The keyspace of the database cannot be created.
    #[error("database {number} of Redis clients: the keyspace {name:?} can't be created: {error}")]
    Keyspace {
        /// Number of the database that needs the keyspace.
        number: u32,
        /// Name of the keyspace that cannot be created.
        name: String,
        /// Cause for which the keyspace cannot be created.
        error: WriteError,
    },
    /// The cache of the database cannot be created.
    #[error("database {number} of Redis clients: the cache {name:?} can't be created: {error}")]
    Cache {
        /// Number of the database that needs the cache.
        number: u32,
        /// Name of the cache that cannot be created.
        name: String,
        /// Cause for which the cache cannot be created.
        error: CreateCacheError,
    },
}

classified!(DatabaseError {
    Self::Keyspace { error, .. } => error.code(), error.action();
    Self::Cache { error, .. } => error.code(), error.action();
});

impl Databases {
    /// Opens the configured databases. Creates missing caches, and a missing keyspace of database 0. The keyspaces of
    /// other databases are created by the first write. In a cluster this also holds for database 0, because a node
    /// starts before there is a leader.
    pub async fn open(app: &Arc<App>) -> Result<Self, DatabaseError> {
        let mut list = Vec::new();
        for (number, wanted) in &app.config.resp_databases.0 {
            let number = *number;
            let database = match wanted {
                RespDatabase::Keyspace(name) => {
                    let keyspace = Arc::new(NamedKeyspace::new(&app.db, name));
                    if number == 0 && app.cluster.is_none() {
                        // If the keyspace exists, no command is written to the log. So the server can start even if the
                        // disk is full.
                        let created = keyspace.look_up_or_create(None).await;
                        created.map_err(|error| DatabaseError::Keyspace { number, name: name.clone(), error })?;
                    }
                    Database::Batched(Arc::new(KeyspaceDatabase::new(&app.db, keyspace, app.config.durability)))
                }
                RespDatabase::Cache(name) => {
                    let created = app.views.cache(&app.local, name, None);
                    let (cache, _) =
                        created.map_err(|error| DatabaseError::Cache { number, name: name.clone(), error })?;
                    let (clock, seed) = (Arc::clone(app), app.new_number());
                    Database::Immediate(Arc::new(CacheDatabase::new(cache.cache, move || clock.views.now(), seed)))
                }
                RespDatabase::Streams => Database::Batched(Arc::new(NativeStreams::new(app))),
            };
            list.push(Numbered { number, database });
        }
        Ok(Self { list })
    }
}
