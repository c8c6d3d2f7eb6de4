//! The async interface of the database: futures for any runtime.
//!
//! Owns: `AsyncDatabase` with the writes of keys, streams and their configuration, and the registration of a future
//! that waits for a stream. Does not own: the futures of groups, leases and transactions, which the modules of these
//! subjects add; reads, which are calls of the blocking `Database`; or the queue of commands (`thalweg_replica`).
//!
//! A write is queued when the method is called, not when the future is polled. If the queue is full, the future fails
//! with `Overloaded` instead of blocking. Dropping a future does not undo its write.

use std::{
    future::{self, Future},
    sync::Arc,
    task::Poll,
};

use thalweg_log::Purpose;
use thalweg_replica::{Client, Origin, Proposal, Wake};
use thalweg_types::{
    Durability, KeyspaceId, Offset, StreamId,
    command::{
        AppendConditions, CommandError, CommitBuilder, Framed, KeyspaceConfig, StreamConfig, encode_append_with,
        encode_configure_stream, encode_create_keyspace, encode_create_stream, encode_delete, encode_delete_stream,
        encode_put, encode_trim_stream,
    },
    record::RecordBatch,
};

use crate::{
    ack::{Ack, ack, check_outcome_known},
    database::Database,
    error::WriteError,
    keyspace::Keyspace,
    stream::{Stream, check_batch},
    tails::Waiter,
    value_reads,
};

/// A database for callers that must not block. For reads, use the database that [`blocking`](Self::blocking) returns;
/// its reads mostly come from memory or the page cache. Call point reads inline, and long scans on a blocking thread.
#[derive(Clone, Debug)]
pub struct AsyncDatabase {
    db: Database,
    /// Client, request name, cost of the values read, and longest wait that each proposed command carries.
    origin: Origin,
}

impl Database {
    /// Returns the async interface of this database.
    #[must_use]
    pub fn to_async(&self) -> AsyncDatabase {
        AsyncDatabase::new(self.clone())
    }
}

impl AsyncDatabase {
    pub(crate) fn new(db: Database) -> Self {
        Self { db, origin: Origin::default() }
    }

    /// Returns this database for a client, usually a connection. The node measures how expensive the client's commands
    /// are. Expensive commands of several clients take turns, so that other clients' cheap commands wait for few of
    /// them. Commands of one client are committed in the order in which they were proposed.
    #[must_use]
    pub fn for_client(&self, client: &Arc<Client>) -> Self {
        Self { db: self.db.clone(), origin: Origin { client: Some(Arc::clone(client)), ..Origin::default() } }
    }

    /// Returns this database like [`for_client`](Self::for_client), for commands of `origin` (client, request name,
    /// limits). If a member of a cluster forwards such a command, the leader's log lines show the request name.
    #[must_use]
    pub fn for_origin(&self, origin: &Origin) -> Self {
        Self { db: self.db.clone(), origin: origin.clone() }
    }

    /// Returns the blocking interface of this database.
    #[must_use]
    pub fn blocking(&self) -> &Database {
        &self.db
    }

    /// Proposes a commit. The future resolves when the commit has reached `level`.
    pub fn commit(
        &self,
        commit: &CommitBuilder,
        level: Durability,
    ) -> impl Future<Output = Result<Ack, WriteError>> + Send + use<> {
        let known = check_outcome_known(commit.is_conditional(), level);
        let proposed = known.and_then(|()| {
            self.propose(level, Purpose::Data, |out| {
                commit.encode(out);
                Ok::<_, CommandError>(())
            })
        });
        async move { ack(proposed?.await?) }
    }

    /// Sets a key of a keyspace.
    pub fn put(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        value: &[u8],
        level: Durability,
    ) -> impl Future<Output = Result<Ack, WriteError>> + Send + use<> {
        let proposed = self.propose(level, Purpose::Data, |out| encode_put(out, keyspace, key, value));
        async move { ack(proposed?.await?) }
    }

    /// Removes a key of a keyspace.
    pub fn delete(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        level: Durability,
    ) -> impl Future<Output = Result<Ack, WriteError>> + Send + use<> {
        let proposed = self.propose(level, Purpose::Reclaim, |out| encode_delete(out, keyspace, key));
        async move { ack(proposed?.await?) }
    }

    /// Appends records to a stream under one of three conditions: none (`None`), a required next offset, or a
    /// producer's stamp (id, epoch and sequence number), by which repetitions are recognised.
    pub fn append<'t, T: Into<AppendConditions<'t>>>(
        &self,
        stream: StreamId,
        conditions: T,
        batch: &RecordBatch,
        level: Durability,
    ) -> impl Future<Output = Result<Ack, WriteError>> + Send + use<T> {
        let conditions = conditions.into();
        let checked = check_batch(batch).and_then(|()| check_outcome_known(conditions.is_conditional(), level));
        let proposed = checked.and_then(|()| {
            self.propose(level, Purpose::Data, |out| encode_append_with(out, stream, &conditions, batch))
        });
        async move { ack(proposed?.await?) }
    }

    /// Returns the keyspace with this name, and creates it if it is missing.
    pub fn keyspace(&self, name: &str) -> impl Future<Output = Result<Keyspace, WriteError>> + Send + use<> {
        let db = self.db.clone();
        let created = match db.find_keyspace(name) {
            Some(found) => Ok(found),
            None => Err(self.propose(db.durability().max(Durability::Os), Purpose::Data, |out| {
                encode_create_keyspace(out, name, &KeyspaceConfig::default())
            })),
        };
        async move {
            match created {
                Ok(found) => Ok(found),
                Err(proposed) => db.created_keyspace(proposed?.await?),
            }
        }
    }

    /// Returns the stream with this name, and creates it with `config` if it is missing. The flag is true if this call
    /// created the stream. An existing stream keeps its configuration. The request goes through the log, so its answer
    /// never shows the old state of a member that has fallen behind.
    pub fn create_stream(
        &self,
        name: &str,
        config: &StreamConfig,
    ) -> impl Future<Output = Result<(Stream, bool), WriteError>> + Send + use<> {
        let db = self.db.clone();
        let level = db.durability().max(Durability::Os);
        let proposed = self.propose(level, Purpose::Data, |out| encode_create_stream(out, name, config));
        async move { db.created_stream(proposed?.await?) }
    }

    /// Replaces a stream's configuration.
    pub fn configure_stream(
        &self,
        stream: StreamId,
        config: &StreamConfig,
    ) -> impl Future<Output = Result<Ack, WriteError>> + Send + use<> {
        let proposed = self.propose_infallible(self.db.durability(), Purpose::Reclaim, |out| {
            encode_configure_stream(out, stream, config);
        });
        async move { ack(proposed?.await?) }
    }

    /// Raises a stream's log start offset to `before`. The records below this offset are gone.
    pub fn trim_stream(
        &self,
        stream: StreamId,
        before: Offset,
    ) -> impl Future<Output = Result<Ack, WriteError>> + Send + use<> {
        let proposed = self.propose_infallible(self.db.durability(), Purpose::Reclaim, |out| {
            encode_trim_stream(out, stream, before);
        });
        async move { ack(proposed?.await?) }
    }

    /// Deletes a stream with all its records.
    pub fn delete_stream(&self, stream: StreamId) -> impl Future<Output = Result<Ack, WriteError>> + Send + use<> {
        let proposed = self.propose_infallible(self.db.durability(), Purpose::Reclaim, |out| {
            encode_delete_stream(out, stream);
        });
        async move { ack(proposed?.await?) }
    }

    /// Resolves to true when the stream has a record at `offset`, and to false when the stream is deleted or the
    /// database closes. The future has no timeout: race it against a timer of the caller. It may be dropped at any
    /// time.
    pub fn wait_for(&self, stream: StreamId, offset: Offset) -> impl Future<Output = bool> + Send + use<> {
        let stream = self.db.stream_with_id(stream);
        let registration = Registration::new(&self.db, stream.id());
        future::poll_fn(move |context| {
            registration.register(Waiter::Task(context.waker().clone()));
            match stream.reached(offset) {
                Some(reached) => Poll::Ready(reached),
                None => Poll::Pending,
            }
        })
    }

    pub(crate) fn propose<E>(
        &self,
        level: Durability,
        purpose: Purpose,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Proposal, WriteError>
    where
        WriteError: From<E>,
    {
        let mut command = Framed::new();
        command.encode(encode)?;
        self.propose_framed(command, level, purpose, Wake::Now)
    }

    pub(crate) fn propose_framed(
        &self,
        command: Framed,
        level: Durability,
        purpose: Purpose,
        wake: Wake,
    ) -> Result<Proposal, WriteError> {
        let inner = &self.db.inner;
        inner.check_serving()?;
        let mut origin = self.origin.clone();
        if origin.value_reads.is_none() {
            origin.value_reads = value_reads::of_framed(&inner.open.machine, &command);
        }
        Ok(inner.open.replica.propose_async_from(origin, command, level, purpose, wake)?)
    }

    fn propose_infallible(
        &self,
        level: Durability,
        purpose: Purpose,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Proposal, WriteError> {
        self.propose(level, purpose, |out| {
            encode(out);
            Ok::<_, CommandError>(())
        })
    }
}

/// Registration of a future in the table of waiters for a stream. It removes the waiter when the future is dropped.
pub(crate) struct Registration {
    db: Database,
    stream: StreamId,
    ticket: u64,
}

impl Registration {
    pub(crate) fn new(db: &Database, stream: StreamId) -> Self {
        Self { db: db.clone(), stream, ticket: db.inner.open.tails.ticket() }
    }

    pub(crate) fn register(&self, waiter: Waiter) {
        self.db.inner.open.tails.register(self.stream, self.ticket, waiter);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.db.inner.open.tails.unregister(self.stream, self.ticket);
    }
}
