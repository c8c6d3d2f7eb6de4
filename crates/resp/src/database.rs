//! What a session needs of a database: two kinds, by when a command's reply is known.
//!
//! Owns: the traits. Does not own where keys are, nor which number is which database ([`databases`](super::databases)).

use std::{fmt, future::Future, pin::Pin, sync::Arc, task::Context};

use thalweg_redis::{Read, Reply, Store, StoreError};

use super::{cache::Cached, commands::Commands, failure::Failure};

/// What commands of a [`Batched`] database came to: their replies in order; `None`: a watched key had changed, and
/// nothing happened.
pub(crate) type Outcome = Result<Option<Vec<Reply>>, Failure>;
/// Commands on their way. Dropping it does not take them back.
pub(crate) type UnderWay = Pin<Box<dyn Future<Output = Outcome> + Send>>;
/// A key, and the version that it must have; 0: it must not be there.
pub(crate) type Watched = (Box<[u8]>, u64);

/// See [`Batched::appended`].
pub(crate) struct Appended(pub Pin<Box<dyn Future<Output = ()> + Send>>);

impl Appended {
    /// Whether it is ready; once it is, it is not asked again.
    pub(crate) fn is_ready(&mut self, cx: &mut Context<'_>) -> bool {
        self.0.as_mut().poll(cx).is_ready()
    }
}

impl fmt::Debug for Appended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Appended")
    }
}

/// A database whose commands happen at once: a cache.
pub(crate) trait Immediate: fmt::Debug + Send + Sync {
    /// Shows it for reading. `act` is called once.
    fn read(&self, act: &mut dyn FnMut(&dyn Read));
    /// Shows it for writing, to nobody else meanwhile who writes. `act` is called once. `'a` is for how long the
    /// arguments of commands live.
    fn write<'a>(&self, act: &mut dyn FnMut(&mut dyn Store<'a>));
}

impl Immediate for Cached {
    fn read(&self, act: &mut dyn FnMut(&dyn Read)) {
        Self::read(self, act);
    }

    fn write<'a>(&self, act: &mut dyn FnMut(&mut dyn Store<'a>)) {
        Self::write(self, act);
    }
}

/// A database whose writes are answered later, many together: a keyspace, whose commands go through the log.
pub(crate) trait Batched: fmt::Debug + Send + Sync {
    /// Shows one view of what is applied. `act` may be called again with a newer view: then what it came to before does not
    /// count.
    fn read(&self, act: &mut dyn FnMut(&dyn Read) -> Result<(), StoreError>) -> Result<(), Failure>;
    /// Proposes commands, all of which happen with nothing in between, or none if a watched key has changed.
    fn propose(&self, commands: &Commands, watched: &[Watched]) -> UnderWay;
    /// Ready when somebody who is no Redis client has appended to this stream after now; none: nobody else does.
    fn appended(&self, _key: &[u8]) -> Option<Appended> {
        None
    }
}

/// A database of either kind.
#[derive(Clone, Debug)]
pub(crate) enum Database {
    /// See [`Immediate`].
    Immediate(Arc<dyn Immediate>),
    /// See [`Batched`].
    Batched(Arc<dyn Batched>),
}

impl Database {
    /// Shows one view of it. `act` may be called again with a newer one.
    pub(crate) fn read<R>(&self, mut act: impl FnMut(&dyn Read) -> Result<R, StoreError>) -> Result<R, Failure> {
        let mut result = None;
        match self {
            Self::Immediate(database) => database.read(&mut |read| result = Some(act(read).map_err(Failure::from))),
            Self::Batched(database) => database.read(&mut |read| {
                result = Some(Ok(act(read)?));
                Ok(())
            })?,
        }
        result.unwrap_or_else(|| Err(Failure("MISCONF the database was not shown".into())))
    }
}
