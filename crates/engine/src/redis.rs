//! Redis commands over the database. Commands that only read use one consistent view. Commands that write are commands
//! of the log, built with [`RedisBuilder`](thalweg_types::command::RedisBuilder) and proposed like any other.

use std::{
    cell::RefCell,
    sync::{Arc, atomic::Ordering},
};

use thalweg_redis::{Read, StoreError, streams::growth::GrowthWaiter};
use thalweg_state::{machine::MachineError, redis::RedisView};
use thalweg_types::{
    KeyspaceId,
    command::{KeyspaceConfig, KeyspaceHistory},
};

use crate::{
    database::Database,
    error::{ReadError, WriteError},
    keyspace::Keyspace,
    stream_growth::GrowthListener,
};

/// Maximum number of views of the state that one read tries. A view fails if the log frees a value just before it is
/// read. Each view is newer than the one before.
pub(crate) const VIEWS: usize = 16;

impl Database {
    /// Reads a keyspace as Redis commands see it. Everything that `read` reads in one call is from one consistent view.
    /// If the bytes of a value in the log were freed in the meantime, `read` is called again with a newer view.
    ///
    /// # Errors
    /// [`ReadError::NoSuchKeyspace`] if there is no keyspace with this id; `read` is not called then. An error if the
    /// state or the log cannot be read.
    pub fn redis_read<T>(
        &self,
        keyspace: KeyspaceId,
        mut read: impl FnMut(&dyn Read) -> Result<T, StoreError>,
    ) -> Result<T, ReadError> {
        let inner = &self.inner;
        let row = inner.open.machine.keyspace(keyspace).ok_or(ReadError::NoSuchKeyspace(keyspace))?;
        let config = row.config;
        let kind = (config.exact_counts, config.history != KeyspaceHistory::default());
        let failure = RefCell::new(None);
        let clock = || inner.open.replica.now();
        let read_ahead = |keys: &[&[u8]]| inner.read_ahead(keys.iter().map(|key| (keyspace, *key)));
        for _ in 0..VIEWS {
            let snapshot = inner.open.machine.read_view();
            let resolve = |key: &[u8], revision, blob| {
                inner.resolve(keyspace, key, revision, blob).map_err(|error| {
                    let said = error.to_string();
                    *failure.borrow_mut() = Some(error);
                    StoreError::Failed(said.into())
                })
            };
            let seed = inner.redis_views.fetch_add(1, Ordering::Relaxed);
            let view = RedisView::new(&snapshot, keyspace, kind, seed, &resolve, &clock);
            let view = view.with_read_ahead(&read_ahead);
            let error = match read(&view) {
                Ok(read) => return Ok(read),
                Err(error) => error,
            };
            match failure.borrow_mut().take() {
                Some(ReadError::ViewExpired) => {}
                Some(error) => return Err(error),
                None => return Err(read_error(error)),
            }
        }
        Err(ReadError::ViewExpired)
    }

    /// Returns true if a keyspace keeps former values of its keys.
    #[must_use]
    pub fn keeps_history(&self, keyspace: KeyspaceId) -> bool {
        let row = self.inner.open.machine.keyspace(keyspace);
        row.is_some_and(|row| row.config.history != KeyspaceHistory::default())
    }

    /// Sets the receiver of the notification that Redis streams may have got entries. Replaces an earlier receiver. The
    /// receiver is called only while a caller [waits](Self::await_stream_growth).
    pub fn listen_to_stream_growth(&self, listener: Arc<dyn GrowthListener>) {
        self.inner.open.growth.set_listener(listener);
    }

    /// Registers a caller that waits for entries of Redis streams. Afterwards the caller must check its streams once,
    /// because entries that were applied earlier cause no notification.
    #[must_use]
    pub fn await_stream_growth(&self) -> GrowthWaiter {
        self.inner.open.machine.await_stream_growth()
    }

    /// Returns the keyspace with this name for Redis clients. A missing keyspace is created with the settings that
    /// Redis hashes and streams need; an existing one is returned unchanged.
    ///
    /// # Errors
    /// The keyspace cannot be created.
    pub fn redis_keyspace(&self, name: &str) -> Result<Keyspace, WriteError> {
        match self.find_keyspace(name) {
            Some(found) => Ok(found),
            None => {
                let config = KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() };
                self.create_keyspace(name, &config).map(|(keyspace, _)| keyspace)
            }
        }
    }
}

fn read_error(error: StoreError) -> ReadError {
    match error {
        StoreError::Failed(error) => match error.downcast::<MachineError>() {
            Ok(error) => (*error).into(),
            Err(error) => ReadError::Io(error.to_string()),
        },
        refused @ StoreError::Refused(_) => ReadError::Io(refused.to_string()),
    }
}
