//! Locks, elections and semaphores in a keyspace: [`thalweg_recipes`] over an open database.
//!
//! Owns: the translation of the recipes' operations into commits, reads and watches of a database. Does not own: the
//! logic of the recipes.

use std::time::Duration;

use thalweg_recipes::{Contender, Coordinator, EnterResult, Hold, KeyWatch, WatchResult, Watched};
use thalweg_types::{
    Action, Classified, LeaseId, Revision,
    command::{CommandError, CommitBuilder, Expect},
};

use crate::{
    database::Database,
    error::{ReadError, WriteError},
    expiry::PutOptions,
    keyspace::Keyspace,
    scan_range::{ScanRange, Values},
    watch::{Watch, WatchKeys},
    watches::{error::WatchError, event::WatchChange},
};

/// Keyspace that holds locks, elections and semaphores. Cheap to clone; each recipe takes its own clone.
///
/// ```no_run
/// use thalweg_engine::{Database, Options, recipes::{Acquire, Lock}, types::command::CommitBuilder};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let db = Database::open("data", Options::default())?;
/// # let orders = db.keyspace("orders")?;
/// let locks = db.coordination("locks")?;
/// let held = Lock::new(locks.clone(), "nightly")?.acquire(&Acquire::default())?;
/// let mut commit = CommitBuilder::new();
/// locks.fence(&held, &mut commit)?; // the commit succeeds only while the lock is held
/// commit.put(orders.id(), b"7", b"billed")?;
/// db.commit(&commit)?;
/// held.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Coordination {
    keyspace: Keyspace,
}

/// Error returned when an operation on a lock, election or semaphore fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoordinationError {
    /// A write to the keyspace of the locks failed.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A read of the keyspace of the locks failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A watch of the keyspace of the locks failed.
    #[error(transparent)]
    Watch(#[from] WatchError),
}

impl Classified for CoordinationError {
    fn code(&self) -> &'static str {
        match self {
            Self::Write(error) => error.code(),
            Self::Read(error) => error.code(),
            Self::Watch(error) => error.code(),
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Write(error) => error.action(),
            Self::Read(error) => error.action(),
            Self::Watch(error) => error.action(),
        }
    }
}

impl Database {
    /// Returns the keyspace with this name for locks, elections and semaphores, and creates it if it is missing. Use
    /// keyspaces that hold nothing else, and separate ones for locks, elections and semaphores: a lock and a semaphore
    /// with the same name in one keyspace share a queue.
    pub fn coordination(&self, keyspace: &str) -> Result<Coordination, WriteError> {
        // Decisions must be known and durable: a lock that a power loss removes excludes no other holder.
        let db = self.with_durability(self.durability().max(thalweg_types::Durability::Disk));
        Ok(Coordination { keyspace: db.keyspace(keyspace)? })
    }
}

impl Coordination {
    /// Keyspace that stores the locks, elections and semaphores.
    #[must_use]
    pub fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    /// Adds a condition to a commit: the commit succeeds only while the lock, semaphore slot or leadership `hold` is
    /// held, and otherwise fails with [`WriteError::ConditionFailed`].
    pub fn fence<'c>(
        &self,
        hold: &Hold<Self>,
        commit: &'c mut CommitBuilder,
    ) -> Result<&'c mut CommitBuilder, CommandError> {
        commit.expect(self.keyspace.id(), hold.key(), hold.expect())
    }
}

impl Coordinator for Coordination {
    type Error = CoordinationError;
    type Watch = CoordinationWatch;

    const LOOK_EVERY: Duration = Duration::from_millis(100);

    fn is_transient(error: &Self::Error) -> bool {
        error.action() == Action::Retry
    }

    fn now(&self) -> Duration {
        Duration::from_micros(self.keyspace.database().space_time().micros())
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, Self::Error> {
        Ok(self.keyspace.database().leases().grant(ttl)?.id)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<bool, Self::Error> {
        match self.keyspace.database().leases().keep_alive(lease) {
            Ok(_) => Ok(true),
            Err(WriteError::NoSuchLease(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), Self::Error> {
        match self.keyspace.database().leases().revoke(lease) {
            Ok(_) | Err(WriteError::NoSuchLease(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn enter(&self, key: &[u8], value: &[u8], lease: LeaseId) -> Result<EnterResult, Self::Error> {
        let options = PutOptions { lease: Some(lease), expect: Some(Expect::Absent), ..PutOptions::default() };
        match self.keyspace.put_with(key, value, &options) {
            Ok(ack) => match ack.revision {
                Some(revision) => Ok(EnterResult::At(revision)),
                None => Err(WriteError::LevelTooLow.into()),
            },
            Err(WriteError::NoSuchLease(_)) => Ok(EnterResult::LeaseEnded),
            Err(WriteError::ConditionFailed { .. }) => Ok(EnterResult::Exists),
            Err(error) => Err(error.into()),
        }
    }

    fn get(&self, key: &[u8]) -> Result<Option<(Revision, Vec<u8>)>, Self::Error> {
        Ok(self.keyspace.get(key)?.map(|entry| (entry.revision, entry.value.to_vec())))
    }

    fn list(&self, prefix: &[u8], limit: usize) -> Result<Vec<Contender>, Self::Error> {
        let mut listed = Vec::new();
        let range = ScanRange { limit: Some(limit as u64), values: Values::Omit, ..ScanRange::with_prefix(prefix) };
        self.keyspace.scan(&range, &mut |item| {
            listed.push(Contender { key: item.key.to_vec(), revision: item.revision });
            std::ops::ControlFlow::Continue(())
        })?;
        Ok(listed)
    }

    fn watch(&self, watched: Watched<'_>) -> Result<Self::Watch, Self::Error> {
        let keys = match watched {
            Watched::Key(key) => WatchKeys::Key(key.to_vec()),
            Watched::Prefix(prefix) => WatchKeys::Prefix(prefix.to_vec()),
        };
        Ok(CoordinationWatch(self.keyspace.watch(&keys, None)?))
    }
}

/// Watch on the keys that a recipe waits for.
#[derive(Debug)]
pub struct CoordinationWatch(Watch);

impl KeyWatch for CoordinationWatch {
    fn wait(&mut self, timeout: Duration) -> WatchResult {
        match self.0.next_batch(timeout) {
            Err(_) => WatchResult::Unknown,
            Ok(batch) if batch.events.iter().any(|event| event.change == WatchChange::DeletePrefix) => {
                WatchResult::Unknown
            }
            Ok(batch) if batch.events.is_empty() => WatchResult::Nothing,
            Ok(batch) => WatchResult::Keys(batch.events.into_iter().map(|event| event.key.to_vec()).collect()),
        }
    }
}
