//! Commands that come as bytes: checked by whoever took them from a client, proposed as they are.
//!
//! Owns: proposing such bytes, and handles by id, which is how such commands name things. Does not own the check: a
//! command that does not decode is refused by the state machine when it is applied, so nothing breaks, but it has
//! used an entry by then. Only the version of the state machine is checked here: a command in the log that needs an
//! unknown one stops the node, so none gets there from outside.
//!
//! What is copied of a command: once into its frame, because it outlives the caller's buffer. The log takes it from
//! there, or, if others join it in one entry, from the entry that is put together.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use thalweg_log::Purpose;
use thalweg_replica::{Committed, Proposal, Wake};
use thalweg_types::{
    Durability, GroupId, KeyspaceId, StreamId,
    command::{CommandError, Framed, Outcome, version_needed},
    limits::MAX_COMMAND_BYTES,
};

use crate::{
    async_database::AsyncDatabase,
    database::{Database, Inner},
    error::{ReadError, WriteError, refusal},
    group::Group,
    keyspace::Keyspace,
    stream::Stream,
};

/// What a command that was carried out came to: the level that was reached, and its outcome, which is not known at level
/// `none`.
pub type Carried = (Durability, Option<Outcome>);

/// A command under way; resolves to what it came to. Dropping it does not take the command back.
#[derive(Debug)]
#[must_use = "what the command came to is known only when this resolves"]
pub struct CommandUnderWay(Option<Result<Proposal, WriteError>>);

impl Future for CommandUnderWay {
    type Output = Result<Carried, WriteError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.0.take() {
            Some(Ok(mut proposal)) => match Pin::new(&mut proposal).poll(context) {
                Poll::Ready(answer) => Poll::Ready(answer.map_err(WriteError::from).and_then(carried)),
                Poll::Pending => {
                    self.0 = Some(Ok(proposal));
                    Poll::Pending
                }
            },
            Some(Err(refused)) => Poll::Ready(Err(refused)),
            None => panic!("polled after it was ready"),
        }
    }
}

fn carried(committed: Committed) -> Result<Carried, WriteError> {
    Ok((committed.durability, committed.outcome.map(refusal).transpose()?))
}

/// Frames a command, unless it is too large or needs a version that is not in force.
fn frame(inner: &Inner, out: &mut Vec<u8>, command: &[u8]) -> Result<(), WriteError> {
    if command.len() > MAX_COMMAND_BYTES {
        return Err(CommandError::CommitTooLarge.into());
    }
    let (needed, in_force) = (version_needed(command), inner.open.machine.version_in_force());
    if needed > in_force {
        return Err(WriteError::VersionNotInForce { needed, in_force });
    }
    out.extend_from_slice(command);
    Ok(())
}

impl AsyncDatabase {
    /// Proposes an encoded command. Whoever needs its outcome asks for `os` at least: at `none` it is answered before it
    /// is known.
    ///
    /// With [`Wake::Later`] it may wait until [`commit_queued`](Self::commit_queued): so that commands which come
    /// together are committed as one entry, with one fsync.
    pub fn propose_command(&self, command: &[u8], purpose: Purpose, level: Durability, wake: Wake) -> CommandUnderWay {
        // One that is too large is refused before it is copied.
        let mut framed = Framed::with_capacity(command.len().min(MAX_COMMAND_BYTES));
        let proposed = framed
            .encode(|out| frame(&self.blocking().inner, out, command))
            .and_then(|()| Ok(self.blocking().inner.open.solo.propose_async_waking(framed, level, purpose, wake)?));
        CommandUnderWay(Some(proposed))
    }

    /// Has what was proposed with [`Wake::Later`] committed.
    pub fn commit_queued(&self) {
        self.blocking().inner.open.solo.commit_queued();
    }

    /// The same on this thread, if nobody else is committing: blocks for an fsync. For executors that have nothing else to
    /// do meanwhile.
    pub fn commit_queued_here(&self) {
        self.blocking().inner.open.solo.commit_queued_here();
    }
}

impl Database {
    /// As [`AsyncDatabase::propose_command`], and blocks until the level is reached.
    pub fn propose_command(&self, command: &[u8], purpose: Purpose, level: Durability) -> Result<Carried, WriteError> {
        carried(self.inner.propose(level, purpose, |out| frame(&self.inner, out, command))?)
    }

    /// The keyspace with that id, if it exists.
    #[must_use]
    pub fn keyspace_by_id(&self, id: KeyspaceId) -> Option<Keyspace> {
        self.inner.open.machine.keyspace_name(id).map(|_| Keyspace::new(self.clone(), id))
    }

    /// A handle to the stream with that id, whether it exists or not: what is done with one that does not fails with
    /// `NoSuchStream`.
    #[must_use]
    pub fn stream_by_id(&self, id: StreamId) -> Stream {
        self.stream_with_id(id)
    }

    /// The consumer group with that id, if it exists.
    pub fn group_by_id(&self, id: GroupId) -> Result<Option<Group>, ReadError> {
        let found = self.inner.open.machine.group_cursor(id)?;
        Ok(found.map(|(stream, ..)| Group { db: self.clone(), stream, id }))
    }
}
