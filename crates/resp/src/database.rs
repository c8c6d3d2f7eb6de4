//! Interface between sessions and databases. There are two kinds, which differ in when a command's reply is known.
//!
//! Owns: the choice between them, and the trait of batched databases. Does not own the storage of keys, nor the numbering of databases
//! ([`databases`](super::databases)).

use std::{fmt, future::Future, pin::Pin, sync::Arc, task::Context};

use thalweg_redis::{Read, Reply, StoreError};

use super::{cache::CacheDatabase, commands::Commands, failure::Failure};

/// Result of commands of a [`Batched`] database: their replies in order, or `None` if a watched key had changed and
/// nothing was done.
pub(crate) type Outcome = Result<Option<Vec<Reply>>, Failure>;
/// Pending commands. Dropping the future does not undo them.
pub(crate) type PendingOutcome = Pin<Box<dyn Future<Output = Outcome> + Send>>;
/// A key and the version that it must have; 0 means that it must not exist.
pub(crate) type Watched = (Box<[u8]>, u64);

/// Future that completes after an append; see [`Batched::appended`].
pub(crate) struct Appended(pub Pin<Box<dyn Future<Output = ()> + Send>>);

impl Appended {
    /// Polls the future. Returns true once it completes; it must not be polled again after that.
    pub(crate) fn is_ready(&mut self, cx: &mut Context<'_>) -> bool {
        self.0.as_mut().poll(cx).is_ready()
    }
}

impl fmt::Debug for Appended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Appended")
    }
}

/// Database that answers writes later, many together: a keyspace, whose commands go through the log.
pub(crate) trait Batched: fmt::Debug + Send + Sync {
    /// Passes one view of the applied state to `act`. `act` may be called again with a newer view; then only its last
    /// result counts.
    fn read(&self, act: &mut dyn FnMut(&dyn Read) -> Result<(), StoreError>) -> Result<(), Failure>;
    /// Proposes commands, which all run without interruption by others, or not at all if a watched key has changed.
    fn propose(&self, commands: &Commands, watched: &[Watched]) -> PendingOutcome;
    /// Returns a future that completes after an append to this stream by a client of another protocol; `None` if there
    /// are no such clients.
    fn appended(&self, _key: &[u8]) -> Option<Appended> {
        None
    }
}

/// Database of either kind: immediate (a cache) or batched (a keyspace or the native streams).
#[derive(Clone, Debug)]
pub(crate) enum Database {
    /// Database whose commands run immediately: a cache.
    Immediate(Arc<CacheDatabase>),
    /// Database whose writes are answered later.
    Batched(Arc<dyn Batched>),
}

impl Database {
    /// Passes one view of the database to `act`, which may be called again with a newer view.
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
