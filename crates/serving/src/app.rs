//! State that all protocols of a server share: the database, the configuration, bounds, subjects and caches.
//!
//! Owns: [`App`], and the lookup of keyspaces and streams by name. Does not own: protocols and their metrics; each
//! protocol's crate keeps its own.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use thalweg_engine::{AsyncDatabase, Database, Keyspace, Stream};
use thalweg_types::command::StreamConfig;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::{
    admission::Admission,
    config::Config,
    error::{self, ApiError},
    limits::MAX_READING_BYTES,
    metrics::Connections,
    solitude::Solitude,
    views::Views,
};

/// What all requests of a server share.
#[derive(Debug)]
pub struct App {
    /// The database.
    pub db: AsyncDatabase,
    /// The configuration.
    pub config: Config,
    /// Bounds.
    pub admission: Admission,
    /// Native connections, which the status of the server counts over every protocol.
    pub native_connections: Arc<Connections>,
    /// Whether one connection has the server to itself.
    pub solitude: Solitude,
    /// What reads on blocking threads may still ask for, in bytes.
    reading: Arc<Semaphore>,
    /// Turns true when the server stops.
    pub stopping: watch::Receiver<bool>,
    /// Subjects and caches.
    pub views: Arc<Views>,
    /// When the server was bound.
    pub started: Instant,
    id_seed: u64,
    id_next: AtomicU64,
}

impl App {
    /// Over a database.
    #[must_use]
    pub fn new(config: Config, db: &Database, stopping: watch::Receiver<bool>) -> Arc<Self> {
        Arc::new(Self {
            db: db.with_durability(config.durability).to_async(),
            admission: Admission::new(&config),
            native_connections: Arc::default(),
            solitude: Solitude::new(Instant::now()),
            reading: Arc::new(Semaphore::new(MAX_READING_BYTES as usize)),
            stopping,
            views: Arc::new(Views::new(&config)),
            started: Instant::now(),
            // Random per process, so that ids of two runs differ; nothing depends on it.
            id_seed: RandomState::new().build_hasher().finish(),
            id_next: AtomicU64::new(0),
            config,
        })
    }

    /// Waits for a place among those that read about so many bytes on blocking threads.
    pub async fn place_to_read(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(MAX_READING_BYTES);
        // It is never closed.
        Arc::clone(&self.reading).acquire_many_owned(bytes).await.ok()
    }

    /// A number that this process gives out once.
    pub fn new_number(&self) -> u64 {
        self.id_seed.wrapping_add(self.id_next.fetch_add(1, Ordering::Relaxed))
    }

    /// A keyspace to read.
    pub fn find_keyspace(&self, name: &str) -> Result<Keyspace, ApiError> {
        self.db.blocking().find_keyspace(name).ok_or_else(|| error::no_such_keyspace(name))
    }

    /// A keyspace to write, created if missing.
    pub async fn keyspace(&self, name: &str) -> Result<Keyspace, ApiError> {
        match self.db.blocking().find_keyspace(name) {
            Some(keyspace) => Ok(keyspace),
            None => Ok(self.db.keyspace(name).await?),
        }
    }

    /// A stream to read or change.
    pub fn find_stream(&self, name: &str) -> Result<Stream, ApiError> {
        self.db.blocking().find_stream(name).ok_or_else(|| error::no_such_stream(name))
    }

    /// A stream to append to, created without limits if missing.
    pub async fn stream(&self, name: &str) -> Result<Stream, ApiError> {
        match self.db.blocking().find_stream(name) {
            Some(stream) => Ok(stream),
            None => Ok(self.db.create_stream(name, &StreamConfig::default()).await?.0),
        }
    }
}
