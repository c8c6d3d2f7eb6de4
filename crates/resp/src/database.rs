//! The interface between sessions and databases. There are two kinds of databases: immediate ones, which reply to a
//! command at once, and batched ones, which reply after a commit.
//!
//! Owns: the choice between the two kinds, and the trait of batched databases. Does not own the storage of keys,
//! nor the numbering of databases ([`databases`](super::databases)).

use std::{fmt, future::Future, pin::Pin, sync::Arc, task::Context};

use thalweg_engine::Origin;
use thalweg_redis::{Read, Reply, StoreError};
use thalweg_serving::fetched::RowFetcher;
use thalweg_types::{
    KeyspaceId,
    budget::{Budget, BudgetSpent},
};

use super::{cache::CacheDatabase, commands::Commands, failure::Failure};

/// Result of commands that were proposed to a [`Batched`] database: their replies in order. `None` means that a watched
/// key had changed, so no command was executed.
pub(crate) type Outcome = Result<Option<Vec<Reply>>, Failure>;
/// Future that returns the replies to commands which were given to a database. Dropping the future does not undo the
/// commands.
pub(crate) type PendingOutcome = Pin<Box<dyn Future<Output = Outcome> + Send>>;
/// A key that a client watches with `WATCH`, and the version that the key must still have. 0 means that the key must
/// not exist.
pub(crate) type Watched = (Box<[u8]>, u64);

/// Future that completes after the next append to a stream; see [`Batched::appended`].
pub(crate) struct Appended(pub Pin<Box<dyn Future<Output = ()> + Send>>);

impl Appended {
    /// Polls the future. Returns true once the future has completed. The caller must not poll it again after that.
    pub(crate) fn is_ready(&mut self, cx: &mut Context<'_>) -> bool {
        self.0.as_mut().poll(cx).is_ready()
    }
}

impl fmt::Debug for Appended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Appended")
    }
}

/// A database that completes writes later, many of them in one commit. An example is a keyspace: its commands go
/// through the log.
pub(crate) trait Batched: fmt::Debug + Send + Sync {
    /// Calls `act` with a view of the database's applied state. May call `act` again with a newer view; only the result
    /// of the last call counts.
    fn read(&self, act: &mut dyn FnMut(&dyn Read) -> Result<(), StoreError>) -> Result<(), Failure>;
    /// Proposes commands of a client. Either all of them run, without other commands in between, or none runs because a
    /// watched key has changed. The database may first let `fetcher` read rows that the commands need. In this case it
    /// proposes the commands when the returned future is polled.
    fn propose(
        &self,
        origin: &Origin,
        fetcher: RowFetcher<'_>,
        commands: &Commands,
        watched: &[Watched],
    ) -> PendingOutcome;
    /// Returns the keyspace that holds the database's keys; `None` if it does not exist yet, or if the database is not
    /// a keyspace.
    fn keyspace(&self) -> Option<KeyspaceId> {
        None
    }
    /// Returns a future that completes after a client of another protocol has appended to this stream. While the stream
    /// does not exist, the future also completes from time to time. Returns `None` if clients of other protocols cannot
    /// append to the stream.
    fn appended(&self, _key: &[u8]) -> Option<Appended> {
        None
    }
}

/// Database of either kind: immediate (a cache) or batched (a keyspace or the native streams).
#[derive(Clone, Debug)]
pub(crate) enum Database {
    /// Database whose commands complete immediately: a cache.
    Immediate(Arc<CacheDatabase>),
    /// Database whose writes complete later: a keyspace or the native streams.
    Batched(Arc<dyn Batched>),
}

impl Database {
    /// Returns the capacity in bytes at which the database evicts keys; `None` if it never evicts keys.
    pub(crate) fn max_bytes(&self) -> Option<u64> {
        match self {
            Self::Immediate(cache) => Some(cache.max_bytes()),
            Self::Batched(_) => None,
        }
    }

    /// Returns true if the database's writes go through the log. False for a cache, which is only in memory.
    pub(crate) fn is_durable(&self) -> bool {
        matches!(self, Self::Batched(_))
    }

    /// Returns Redis's name of the policy by which the database evicts keys.
    pub(crate) fn eviction_policy(&self) -> &'static str {
        match self {
            Self::Immediate(_) => "allkeys-lru",
            Self::Batched(_) => "noeviction",
        }
    }

    /// Reads like [`read`](Self::read), but with a limit on the work, because the calling thread serves other clients.
    ///
    /// # Errors
    ///
    /// [`BudgetSpent`] if the read has reached the limit; its result was dropped. The caller must then give the read to
    /// the [readers](thalweg_serving::readers).
    #[inline]
    pub(crate) fn read_briefly<R>(
        &self,
        budget: Budget,
        act: impl FnMut(&dyn Read) -> Result<R, StoreError>,
    ) -> Result<Result<R, Failure>, BudgetSpent> {
        budget.perform(|| self.read(act))
    }

    /// Calls `act` with a view of the database. May call `act` again with a newer view.
    pub(crate) fn read<R>(&self, mut act: impl FnMut(&dyn Read) -> Result<R, StoreError>) -> Result<R, Failure> {
        match self {
            Self::Immediate(database) => database.read(act).map_err(Failure::from),
            Self::Batched(database) => {
                let mut result = None;
                database.read(&mut |read| {
                    result = Some(act(read)?);
                    Ok(())
                })?;
                result.ok_or_else(|| Failure("MISCONF the database returned no view of its state".into()))
            }
        }
    }
}
