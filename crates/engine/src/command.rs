//! Commands that the caller passes in encoded form, as clients send them. The engine proposes the bytes unchanged.
//!
//! Owns: proposing such bytes, and handles by id, because such commands refer to objects by id. Does not own: the check
//! that a command decodes. The state machine rejects a malformed command when it is applied; that does no damage, but
//! uses a log entry. This module only checks the version of the state machine that a command needs. Once in the log, a
//! command of an unknown version would stop the node.
//!
//! A command is copied once, into a buffer (frame) of its own, because it outlives the caller's buffer. The log takes
//! its bytes from this frame or, if several commands share a log entry, from the assembled entry.

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
    database::Database,
    error::{ReadError, WriteError, refusal},
    group::Group,
    inner::Inner,
    keyspace::Keyspace,
    stream::Stream,
};

/// Result of a command that was carried out: the durability level reached, and the outcome. The outcome is `None` at
/// level `none`, which acknowledges a command before its outcome is known.
pub type CommandResult = (Durability, Option<Outcome>);

/// Future of a proposed command, which resolves to the command's result. Dropping the future does not undo the
/// command.
#[derive(Debug)]
#[must_use = "the result of the command is known only when this future resolves"]
pub struct PendingCommand(Option<Result<Proposal, WriteError>>);

impl Future for PendingCommand {
    type Output = Result<CommandResult, WriteError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.0.take() {
            Some(Ok(mut proposal)) => match Pin::new(&mut proposal).poll(context) {
                Poll::Ready(answer) => Poll::Ready(answer.map_err(WriteError::from).and_then(command_result)),
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

fn command_result(committed: Committed) -> Result<CommandResult, WriteError> {
    Ok((committed.durability, committed.outcome.map(refusal).transpose()?))
}

/// Appends a command's bytes to `out`, the command's buffer (frame). Fails if the command is too large, or if it needs
/// a version of the state machine that is not in force.
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
    /// Proposes an encoded command. A caller that needs the outcome must use a level of at least `os`: at `none` the
    /// command is answered before its outcome is known.
    ///
    /// With [`Wake::Later`] the command waits in the queue until [`commit_queued`](Self::commit_queued) is called, or
    /// until another command is committed. Commands that arrive together are then committed as one entry, with one
    /// fsync.
    pub fn propose_command(&self, command: &[u8], purpose: Purpose, level: Durability, wake: Wake) -> PendingCommand {
        // A command that is too large is rejected before it is copied.
        let mut framed = Framed::with_capacity(command.len().min(MAX_COMMAND_BYTES));
        let proposed = framed
            .encode(|out| frame(&self.blocking().inner, out, command))
            .and_then(|()| self.propose_framed(framed, level, purpose, wake));
        PendingCommand(Some(proposed))
    }

    /// Commits all commands that were proposed with [`Wake::Later`].
    pub fn commit_queued(&self) {
        self.blocking().inner.open.replica.commit_queued();
    }

    /// Commits all queued commands like [`commit_queued`](Self::commit_queued), but on the calling thread if no other
    /// thread is committing. The call blocks for an fsync. It is meant for executors without other work.
    pub fn commit_queued_here(&self) {
        self.blocking().inner.open.replica.commit_queued_here();
    }
}

impl Database {
    /// Proposes an encoded command like [`AsyncDatabase::propose_command`], but blocks until its level is reached.
    pub fn propose_command(
        &self,
        command: &[u8],
        purpose: Purpose,
        level: Durability,
    ) -> Result<CommandResult, WriteError> {
        command_result(self.inner.propose(level, purpose, |out| frame(&self.inner, out, command))?)
    }

    /// Returns the keyspace with this id, if it exists.
    #[must_use]
    pub fn keyspace_by_id(&self, id: KeyspaceId) -> Option<Keyspace> {
        self.inner.open.machine.keyspace_name(id).map(|_| Keyspace::new(self.clone(), id))
    }

    /// Returns a handle of the stream with this id, which need not exist. Operations on a missing stream fail with
    /// `NoSuchStream`.
    #[must_use]
    pub fn stream_by_id(&self, id: StreamId) -> Stream {
        self.stream_with_id(id)
    }

    /// Returns the consumer group with this id, if it exists.
    pub fn group_by_id(&self, id: GroupId) -> Result<Option<Group>, ReadError> {
        let found = self.inner.open.machine.group_cursor(id)?;
        Ok(found.map(|(stream, ..)| Group { db: self.clone(), stream, id }))
    }
}
