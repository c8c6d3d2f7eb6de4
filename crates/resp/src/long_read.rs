//! The state of a long read. Reader threads perform such a read for a session. The module `long_reads` has the reads
//! themselves.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_redis::{Command, Reply, streams::block::Blocked};
use thalweg_serving::readers::PendingRead;

use super::{burst::Slot, database::Outcome, failure::Failure, queued::Watch, wait::Wait};

/// A read that reader threads perform for the session, because it takes long or waits for the disk.
#[derive(Debug)]
pub(crate) struct LongRead {
    /// Type of the read: the command or commands that the reader threads run, and the future of their result.
    pub kind: LongReadKind,
    /// True if the client wants no reply to the command.
    pub muted: bool,
}

#[derive(Debug)]
pub(crate) enum LongReadKind {
    /// A command outside of a transaction, which reader threads run.
    Command {
        /// [Number](thalweg_redis::Command::number_of) of the command.
        number: usize,
        /// State of the wait that begins if the command is a blocking read and finds nothing; `None` for other
        /// commands.
        wait: Option<Box<Wait>>,
        reply: PendingRead<Result<LongReply, Failure>>,
    },
    /// A transaction that only reads, which reader threads run.
    Transaction { slots: Vec<Slot>, outcome: PendingRead<Outcome> },
    /// An `EXEC` whose watched keys are in other databases. The reader threads compare these keys. The result is false
    /// if one of them has changed.
    Exec { unchanged: PendingRead<Result<bool, Failure>> },
    /// A command with the option `BLOCK`, before it begins to wait. The result is `None` if the command cannot block.
    Blocking {
        command: &'static Command,
        /// Arguments of the blocking command, its name first.
        arguments: Arc<[Box<[u8]>]>,
        blocked: PendingRead<Result<Option<Blocked>, Failure>>,
    },
    /// A `WATCH` of many keys, or of keys that are not in memory.
    Watch { watched: PendingRead<Result<Vec<Watch>, Failure>> },
}

/// Reply that reader threads have made for a long read.
#[derive(Debug)]
pub(crate) enum LongReply {
    /// A reply whose encoding takes almost no time, such as a number or an error. A string is passed on by reference.
    Reply(Reply),
    /// A reply with many parts, already encoded by the reader threads.
    Encoded(Bytes),
}
