//! The state of a long read, which the readers perform for a session. The module `long_reads` has the reads themselves.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_redis::{Command, Reply, streams::block::Blocked};
use thalweg_serving::readers::PendingRead;

use super::{burst::Slot, database::Outcome, failure::Failure, queued::Watch, wait::Wait};

/// A read that the readers perform for the session.
#[derive(Debug)]
pub(crate) struct LongRead {
    /// Commands that the readers run.
    pub kind: LongReadKind,
    /// True if the client wants no reply.
    pub muted: bool,
}

#[derive(Debug)]
pub(crate) enum LongReadKind {
    /// A command outside of a transaction.
    Command {
        /// [Number](thalweg_redis::Command::number_of) of the command.
        number: usize,
        /// Wait that begins if the command is a blocking read that finds nothing.
        wait: Option<Box<Wait>>,
        reply: PendingRead<Result<LongReply, Failure>>,
    },
    /// A transaction that only reads.
    Transaction { slots: Vec<Slot>, outcome: PendingRead<Outcome> },
    /// `EXEC` whose watched keys of other databases are compared. The result is false if one of them has changed.
    Exec { unchanged: PendingRead<Result<bool, Failure>> },
    /// A command with the option `BLOCK`, before it begins to wait. The result is `None` if the command can't block.
    Blocking {
        command: &'static Command,
        /// Arguments of the command, its name first.
        arguments: Arc<[Box<[u8]>]>,
        blocked: PendingRead<Result<Option<Blocked>, Failure>>,
    },
    /// `WATCH` of many keys.
    Watch { watched: PendingRead<Result<Vec<Watch>, Failure>> },
}

/// Reply to a long read.
#[derive(Debug)]
pub(crate) enum LongReply {
    /// A reply whose encoding takes no time, such as a number, an error, or a string, which is shared.
    Reply(Reply),
    /// A reply with many parts, which the readers have encoded.
    Encoded(Bytes),
}
